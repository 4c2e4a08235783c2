"""What the commands that make tables share."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, Literal

from ostinato.cli._words import Words

Form = Literal["terminal", "markdown", "latex", "csv", "json"]


def changes_of(root: str | None, weights: str | None, pairs: Words) -> dict[str, Any]:
    """The settings of all runs that a command line names."""
    from ostinato.running.spec import merge, parse_pairs

    given = {"roots": root, "weights": weights}
    return merge({k: v for k, v in given.items() if v is not None}, parse_pairs(pairs))


def show(result: Any, form: str, save: Path | None) -> None:
    """Print a table, and write its files where a folder is named."""
    from rich.console import Console

    if form == "terminal":
        console = Console()
        console.print(result.on_terminal(console.width))
    else:
        print(result.render(form), end="")
    if save is not None:
        for path in result.save(save):
            print(f"wrote {path}", file=sys.stderr)


def spoken() -> str:
    """The command line as it was typed."""
    return "ostinato " + " ".join(shlex.quote(word) for word in sys.argv[1:])
