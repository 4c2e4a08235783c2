"""`ostinato check`."""

from __future__ import annotations

from ostinato.cli._command import command
from ostinato.cli._words import Named


@command("check", "METHOD: run the conformance suite", "methods")
def check_command(method: Named) -> None:
    """Run the public conformance suite on a method.

    Args:
        method: a registered name, or "all".
    """
    from ostinato.checks import check_method
    from ostinato.registry import METHODS

    reports = [check_method(name) for name in (METHODS.names() if method == "all" else [method])]
    for report in reports:
        print(report)
    if not all(report.passed for report in reports):
        raise SystemExit(1)
