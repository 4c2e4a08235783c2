"""`ostinato report RUN...`: the page, written to a file."""

from __future__ import annotations

from pathlib import Path

from ostinato.cli_words import Runs, Text, Written
from ostinato.ops.files import check_writable, write_atomically


def report(runs: Runs, out: Written = Path("report.html"), title: Text = "Ostinato report") -> None:
    """Write one self-contained HTML page about runs.

    Args:
        runs: folders of runs, or a folder that holds such folders.
        out: the page to write; a folder gets report.html.
        title: the page's heading.
    """
    print(write_report(list(runs), out, title))


def write_report(
    runs: list[Path], out: str | Path = "report.html", title: str = "Ostinato report"
) -> Path:
    """Read the runs, draw what they allow, and write the page; returns where it lies."""
    from ostinato.report.page import render
    from ostinato.report.runs import read_variants

    place = Path(out)
    place = place / "report.html" if place.is_dir() else place
    check_writable(place)  # before minutes of drawing
    text = render(read_variants(runs), title)
    write_atomically(place, text.encode())
    return place
