"""`ostinato compare`."""

from __future__ import annotations

from pathlib import Path

from ostinato.cli._command import command
from ostinato.cli._words import (
    Amount,
    Count,
    Folder,
    Metric,
    Runs,
)
from ostinato.errors import DataError


@command("compare", "RUN RUN...: paired comparison with confidence intervals", "benchmark")
def compare_command(
    runs: Runs,
    /,
    *,
    baseline: Folder = None,
    metric: Metric = None,
    resamples: Count = 10_000,
    confidence: Amount = 0.95,
    parts: bool = True,
) -> None:
    """Compare runs of one stream with the first: paired, with bootstrap confidence intervals.

    Args:
        runs: two or more run folders.
        baseline: the folder name to compare with, in place of the first.
        metric: error, accuracy or miou; the task's own unless given.
        resamples: bootstrap draws over images.
        confidence: of the intervals.
        parts: also show every domain and round.
    """
    from rich.console import Console

    from ostinato.running.results import RunFolder
    from ostinato.scoring.compare import compare
    from ostinato.scoring.comparison import comparison_table

    records = {}
    for path in runs:
        name = path.name if path.name not in records else str(path)
        records[name] = RunFolder.open(path).records()
        if not records[name]:
            raise DataError(f"{path} has no finished batch; go on with: ostinato run {path}")
    if baseline is not None:
        baseline = Path(baseline).name
    found = compare(
        records, baseline=baseline, metric=metric, resamples=resamples, confidence=confidence
    )
    console = Console()
    for one in found:
        console.print(comparison_table(one, parts=parts))
