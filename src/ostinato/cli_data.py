"""The commands for data sets: check what is there, fetch what is not."""

from __future__ import annotations

from ostinato.cli_words import Count, Named, Out, Words


def data_check_command(
    name: Named, /, *, root: Out, option: Words = (), samples: Count = 3
) -> None:
    """Is a data set there and whole? Layout, counts, a few decoded images; status 1 if not.

    Args:
        name: a data set; `ostinato list datasets` shows them.
        root: the folder that holds it.
        option: the data set's own options, such as split=val or subset=full.
        samples: images a domain to decode as a test.
    """
    from rich.console import Console

    from ostinato.data.check import check
    from ostinato.running.spec import parse_pairs

    report = check(name, root, samples, **parse_pairs(option))
    Console(soft_wrap=True).print(report)
    if not report.ok:
        raise SystemExit(1)


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
