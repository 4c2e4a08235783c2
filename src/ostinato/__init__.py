"""Ostinato: continual test-time adaptation that remembers the domains it has met."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
_WHERE = {
    "adapt": "api",
    "collect_statistics": "api",
    "export": "exporting",
    "from_pretrained": "hub",
    "prepare": "api",
    "push_to_hub": "hub",
    "unwrap": "api",
    "zero_shot": "models.clip",
}
__all__ = [
    "adapt",
    "collect_statistics",
    "export",
    "from_pretrained",
    "prepare",
    "push_to_hub",
    "unwrap",
    "zero_shot",
]

if TYPE_CHECKING:
    from ostinato.api import adapt, collect_statistics, prepare, unwrap
    from ostinato.exporting import export
    from ostinato.hub import from_pretrained, push_to_hub
    from ostinato.models.clip import zero_shot


def __getattr__(name: str) -> Any:
    # Loaded when used, so that `import ostinato` and `ostinato --help` stay quick.
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(f"ostinato.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'ostinato' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
