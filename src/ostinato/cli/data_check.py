"""`ostinato data check`."""

from __future__ import annotations

from ostinato.cli._command import command
from ostinato.cli._words import Count, Named, Out, Words


@command("data check", "NAME: is a data set there and whole?", "data")
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
