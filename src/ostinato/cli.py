"""The command line. Every command is a function; its flags are the function's typed arguments.

Nothing heavy is imported until a command runs, so that help is immediate.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import tyro

from ostinato.cli_bench import compare_command, run_command, search_command, table_command
from ostinato.cli_data import data_check_command, data_fetch_command
from ostinato.cli_methods import list_command, prepare_command
from ostinato.cli_serve import (
    keys_add_command,
    keys_list_command,
    keys_revoke_command,
    replay_command,
    serve_command,
    streams_command,
    verify_command,
)
from ostinato.cli_serve_demo import serve_demo_command
from ostinato.cli_speed import speed_command
from ostinato.cli_trial import trial_command
from ostinato.cli_words import Named, Place
from ostinato.errors import OstinatoError, did_you_mean
from ostinato.report.command import report as report_command
from ostinato.soak.command import soak_command

USAGE = """Ostinato: continual test-time adaptation that remembers the domains it has met.

usage: ostinato COMMAND [options]        ostinato COMMAND --help for its options

{commands}
"""


def _demo(quick: bool = False, out: Place = None) -> None:
    """Adapt an embedded model to a stream of returning domains; print a table, write a report.

    Args:
        quick: one seed and few images, to see that everything works.
        out: folder for runs and report; ./ostinato-demo, or a temporary one if that fails.
    """
    from ostinato.demo.command import demo

    demo(quick, out)


def _check(method: Named) -> None:
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
    "trial": (trial_command, "should I use this? Your model and images in, a page out"),
    "list": (list_command, "methods | datasets | streams | tables | ...: what is registered"),
    "check": (_check, "METHOD: run the conformance suite"),
    "prepare": (prepare_command, "METHOD: make what it needs from source images; a file"),
    "run": (run_command, "SPEC | RUN: run a method on a stream, or go on with a run"),
    "table": (table_command, "NAME: make one of the paper's tables"),
    "search": (search_command, "TABLE: each method's learning rate, the same budget for all"),
    "compare": (compare_command, "RUN RUN...: paired comparison with confidence intervals"),
    "report": (report_command, "RUN...: one self-contained HTML page with every figure"),
    "data check": (data_check_command, "NAME: is a data set there and whole?"),
    "data fetch": (data_fetch_command, "NAME: download it, or say what only a person can do"),
    "serve": (serve_command, "[CONFIG]: one model behind HTTP, a state for every camera"),
    "serve-demo": (serve_demo_command, "a server on the embedded model with three cameras"),
    "streams": (streams_command, "WHAT [NAME]: look at a server's streams, and change them"),
    "replay": (replay_command, "FOLDER | VIDEO: feed images to a server's stream"),
    "verify": (verify_command, "STREAM: make its states again from its event log, and compare"),
    "keys add": (keys_add_command, "NAME: make an API key for a server"),
    "keys list": (keys_list_command, "show a server's API keys"),
    "keys revoke": (keys_revoke_command, "NAME: take an API key back"),
    "speed": (speed_command, "images per second and memory of a step, beside the forward alone"),
    "soak": (soak_command, "adapt for hours with reloads and kills; a page about what broke"),
}


ALONE = frozenset({"demo", "speed"})
"""Commands that say enough without a further word; any other then shows its help."""


def usage(group: str = "") -> str:
    """The help page, of all commands or of those that begin with a word."""
    chosen = {name: text for name, (_, text) in COMMANDS.items() if name.startswith(group)}
    return USAGE.format(commands="\n".join(f"  {n:10} {text}" for n, text in chosen.items()))


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
    group = f"{given[0]} "
    if any(name.startswith(group) for name in COMMANDS) and given[1:2] in ([], ["-h"], ["--help"]):
        print(usage(group))
        return
    words = 2 if any(name.startswith(group) for name in COMMANDS) else 1
    name, rest = " ".join(given[:words]), given[words:]
    if name not in COMMANDS:
        _fail(f"There is no command {name!r}. {did_you_mean(name, COMMANDS)}")
    if not rest and name not in ALONE:
        rest = ["--help"]
    if name != "run" and "TORCHELASTIC_RUN_ID" in os.environ and "LOCAL_RANK" in os.environ:
        _fail(f"torchrun starts several processes, and only 'run' is done by several, not {name}.")
    try:
        tyro.cli(COMMANDS[name][0], args=rest, prog=f"ostinato {name}")
    except OstinatoError as error:
        _fail(str(error))
    except BrokenPipeError:  # whoever read the output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except OSError as error:  # a disk, a folder or a file that is not as it has to be
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}. Choose another place, or make it usable.")
    except (MemoryError, RecursionError) as error:
        _fail(f"This is too large or too deep ({type(error).__name__}): ask for less.")
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)
