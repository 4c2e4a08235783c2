"""`ostinato data fetch`."""

from __future__ import annotations

from ostinato.cli._command import command
from ostinato.cli._words import Named, Out


@command("data fetch", "NAME: download it, or say what only a person can do", "data")
def data_fetch_command(
    name: Named,
    /,
    *,
    root: Out,
    keep: bool = False,
    force: bool = False,
    progress: bool = True,
) -> None:
    """Download and unpack a data set; go on where it stopped; say what only a person can do.

    Ends with status 1 where something is left to do.

    Args:
        name: a data set; `ostinato list datasets` shows them.
        root: the folder to put it into.
        keep: keep the archives after unpacking.
        force: download again even if it is complete.
        progress: show a bar.
    """
    from rich.console import Console

    from ostinato.data.fetch import fetch

    result = fetch(name, root, keep=keep, force=force, progress=progress)
    Console(soft_wrap=True).print(result)
    if result.status == "manual" or (result.report is not None and not result.report.ok):
        raise SystemExit(1)
