"""`ostinato list`."""

from __future__ import annotations

import shutil
import sys
from typing import Annotated, Literal

import tyro

from ostinato.cli._command import command
from ostinato.cli._remembered import remembered
from ostinato.lines import columns
from ostinato.lines import markdown as as_markdown

_Kind = Literal[
    "methods", "datasets", "streams", "tables", "corruptions", "descriptors", "discriminators"
]


@command("list", "methods | datasets | streams | tables | ...: what is registered", "methods")
def list_command(kind: Annotated[_Kind, tyro.conf.Positional], markdown: bool = False) -> None:
    """Show what is registered, one line each.

    Args:
        kind: which collection.
        markdown: as a Markdown table.
    """
    rows = remembered(kind, lambda: _listed(kind))
    if markdown:
        print(as_markdown(rows[0], rows[1:]))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in columns(rows):
        print(line[:width])


def _listed(kind: _Kind) -> list[list[str]]:
    from ostinato.catalogue import catalogue

    head, rows = catalogue(kind)
    return [list(row) for row in (head, *rows)]
