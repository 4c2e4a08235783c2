"""Write docs/printed.md: the cells of the paper's tables that its other cells contradict.

python docs/_site/write_printed.py docs/printed.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from ostinato.tables._recomputed import disagreements
from ostinato.tables.printed import PRINTED


def page() -> str:
    """A table of every disagreement, as Markdown."""
    lines = ["| table | row | column | printed | its own cells give |", "|---|---|---|---:|---:|"]
    for table in PRINTED.values():
        for one in disagreements(table):
            part = "" if one.column.round is None else f", round {one.column.round + 1}"
            lines.append(
                f"| `{table.name}` | {one.method} | {one.column.heading}{part} | {one.printed:g} "
                f"| {one.computed:.1f} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
