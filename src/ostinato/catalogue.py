"""What is registered, as rows to print: one line a thing, from its own declaration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

from ostinato import registry
from ostinato.methods.contract import resolve_config

Kind = Literal[
    "methods", "datasets", "streams", "tables", "corruptions", "descriptors", "discriminators"
]
Row = tuple[str, ...]


def catalogue(kind: Kind) -> tuple[Row, list[Row]]:
    """The head and the rows of one collection.

    >>> head, rows = catalogue("descriptors")
    >>> head, [row[0] for row in rows][:4]
    (('name', 'what it is'), ['cls-feature', 'full', 'high', 'low'])
    """
    head, rows = _KINDS[kind]
    return head, rows()


def needs_text(kind: Any) -> str:
    """The help a method needs, told apart by preset where that decides.

    >>> needs_text(registry.METHODS["tent"]), needs_text(registry.METHODS["eata"])
    ('none', 'prepared file')
    """
    names: list[str | None] = list(kind.presets) or [None]
    found: dict[str, list[str]] = {}
    for name in names:
        needs = ", ".join(sorted(kind.needs(resolve_config(kind, name, {})))) or "none"
        found.setdefault(needs, []).append(str(name))
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{', '.join(names)}: {needs}" for needs, names in found.items())


def first_line(item: Any) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(item) or "").partition("\n")[0]


def _methods() -> list[Row]:
    rows: list[Row] = []
    for name in registry.METHODS:
        kind = registry.METHODS[name]
        info = kind.info
        tasks = ", ".join(sorted(info.tasks))
        rows.append((name, info.title, info.paper, info.predicts, tasks, needs_text(kind)))
    return rows


def _datasets() -> list[Row]:
    from ostinato.data.sources import SOURCES

    rows: list[Row] = []
    for name in registry.DATASETS:
        kind = registry.DATASETS[name]
        source = SOURCES.get(name)
        how = "your own" if source is None else "fetch" if source.files else "by hand"
        rows.append((name, kind.task, how, first_line(kind)))
    return rows


def _corruptions() -> list[Row]:
    from ostinato.data.corruptions import COMMON, DRIVING, EXTRA

    sets = {"common": COMMON, "extra": EXTRA, "driving": DRIVING}
    rows: list[Row] = []
    for group, names in sets.items():
        for name in names:
            item = registry.CORRUPTIONS[name]
            how = "from a seed" if item.random else "deterministic"
            rows.append((name, group, item.kind, how))
    others = [n for n in registry.CORRUPTIONS if not any(n in names for names in sets.values())]
    return rows + [(n, "own", registry.CORRUPTIONS[n].kind, "") for n in others]


def _documented(collection: registry.Registry[Any]) -> Callable[[], list[Row]]:
    return lambda: [(name, first_line(collection[name])) for name in collection]


def _tables() -> list[Row]:
    return [(name, registry.TABLES[name].title) for name in registry.TABLES]


_KINDS: dict[str, tuple[Row, Callable[[], list[Row]]]] = {
    "methods": (("name", "title", "paper", "predicts", "tasks", "needs"), _methods),
    "datasets": (("name", "task", "how to get it", "what it is"), _datasets),
    "streams": (("name", "what it is"), _documented(registry.STREAMS)),
    "tables": (("name", "what it shows"), _tables),
    "corruptions": (("name", "set", "kind", "result"), _corruptions),
    "descriptors": (("name", "what it is"), _documented(registry.DESCRIPTORS)),
    "discriminators": (("name", "what it is"), _documented(registry.DISCRIMINATORS)),
}
