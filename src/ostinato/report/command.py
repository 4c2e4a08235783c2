"""The page about runs, written to a file."""

from __future__ import annotations

from pathlib import Path

from ostinato.ops.files import check_writable, write_atomically


def write_report(
    runs: list[Path], out: str | Path = "report.html", title: str = "Ostinato report"
) -> Path:
    """Read the runs, draw what they allow, and write the page; returns where it lies."""
    from ostinato.report._runs import read_variants
    from ostinato.report.page import render

    place = Path(out)
    place = place / "report.html" if place.is_dir() else place
    check_writable(place)  # before minutes of drawing
    text = render(read_variants(runs), title)
    write_atomically(place, text.encode())
    return place
