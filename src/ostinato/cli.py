"""The command line. Every command is a function; its flags are the function's typed arguments.

Nothing heavy is imported until a command runs, so that help is immediate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ostinato.cli_bench import compare_command, run_command, table_command
from ostinato.errors import OstinatoError, did_you_mean
from ostinato.report.command import report as report_command

Name = Annotated[str, tyro.conf.arg(metavar="NAME")]

USAGE = """Ostinato: continual test-time adaptation that remembers the domains it has met.

usage: ostinato COMMAND [options]        ostinato COMMAND --help for its options

{commands}
"""


def _demo(quick: bool = False, out: Path | None = None) -> None:
    """Adapt an embedded model to a stream of returning domains; print a table, write a report.

    Args:
        quick: one seed and few images, to see that everything works.
        out: folder for runs and report; ./ostinato-demo, or a temporary one if that fails.
    """
    from ostinato.demo.command import demo

    demo(quick, out)


def _list(kind: Literal["methods", "descriptors", "discriminators"]) -> None:
    """Show what is registered.

    Args:
        kind: which collection.
    """
    from ostinato import registry

    table = {
        "methods": registry.METHODS,
        "descriptors": registry.DESCRIPTORS,
        "discriminators": registry.DISCRIMINATORS,
    }[kind]
    for name in table.names():
        info = getattr(table[name], "info", None)
        if info is None:
            print(name)
        else:
            needs = ", ".join(sorted(info.needs)) or "-"
            print(f"{name:14} {info.title:24} {info.paper:30} needs: {needs}")


def _check(method: Name) -> None:
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


COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "demo": (_demo, "adapt an embedded model to domains that come back; table and report"),
    "list": (_list, "methods | descriptors | discriminators: what is registered"),
    "check": (_check, "METHOD: run the conformance suite"),
    "run": (run_command, "SPEC | RUN: run a method on a stream, or go on with a run"),
    "table": (table_command, "NAME: make one of the paper's tables"),
    "compare": (compare_command, "RUN RUN...: paired comparison with confidence intervals"),
    "report": (report_command, "RUN...: one self-contained HTML page with every figure"),
}


def usage() -> str:
    """The help page."""
    rows = [f"  {name:10} {text}" for name, (_, text) in COMMANDS.items()]
    return USAGE.format(commands="\n".join(rows))


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `ostinato` command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print(usage())
        return
    if given[0] in ("--version", "version"):
        from ostinato import __version__

        print(f"ostinato {__version__}")
        return
    words = 2 if " ".join(given[:2]) in COMMANDS else 1
    name, rest = " ".join(given[:words]), given[words:]
    if name not in COMMANDS:
        _fail(f"There is no command {name!r}. {did_you_mean(name, COMMANDS)}")
    config = (tyro.conf.PositionalRequiredArgs,)
    try:
        tyro.cli(COMMANDS[name][0], args=rest, prog=f"ostinato {name}", config=config)
    except OstinatoError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)
