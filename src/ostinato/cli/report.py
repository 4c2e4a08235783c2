"""`ostinato report`."""

from __future__ import annotations

from pathlib import Path

from ostinato.cli._command import command
from ostinato.cli._words import Runs, Text, Written


@command("report", "RUN...: one self-contained HTML page with every figure", "benchmark")
def report_command(
    runs: Runs, out: Written = Path("report.html"), title: Text = "Ostinato report"
) -> None:
    """Write one self-contained HTML page about runs.

    Args:
        runs: folders of runs, or a folder that holds such folders.
        out: the page to write; a folder gets report.html.
        title: the page's heading.
    """
    from ostinato.report.command import write_report

    print(write_report(list(runs), out, title))
