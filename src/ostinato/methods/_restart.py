"""Going back to the source in the middle of a stream, for methods that do so by themselves."""

from __future__ import annotations

from ostinato.methods.base import Method


def restart(method: Method, *names: str) -> None:
    """Set the named tracked parts back to how they were at the start; the rest goes on."""
    for name in names:
        method._tracked[name].import_state(method._initial.part(name))
