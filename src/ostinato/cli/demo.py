"""`ostinato demo`."""

from __future__ import annotations

from ostinato.cli._command import command
from ostinato.cli._words import Place


@command(
    "demo",
    "adapt an embedded model to domains that come back; table and report",
    "start",
    alone=True,
)
def demo_command(quick: bool = False, out: Place = None) -> None:
    """Adapt an embedded model to a stream of returning domains; print a table, write a report.

    Args:
        quick: one seed and few images, to see that everything works.
        out: folder for runs and report; ./ostinato-demo, or a temporary one if that fails.
    """
    from ostinato.demo.command import demo

    demo(quick, out)
