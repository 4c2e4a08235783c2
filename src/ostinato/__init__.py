"""Ostinato: continual test-time adaptation that remembers the domains it has met."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = ["adapt", "collect_statistics", "prepare", "unwrap"]

if TYPE_CHECKING:
    from ostinato.api import adapt, collect_statistics, prepare, unwrap


def __getattr__(name: str) -> Any:
    # Loaded when used, so that `import ostinato` and `ostinato --help` stay quick.
    if name in __all__:
        from ostinato import api

        return getattr(api, name)
    raise AttributeError(f"module 'ostinato' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
