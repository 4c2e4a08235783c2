"""Finding the command that was named, and ending well whatever it does."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import tyro

from ostinato.cli._command import COMMANDS, SECTIONS
from ostinato.errors import OstinatoError, did_you_mean

USAGE = """Ostinato: continual test-time adaptation that remembers the domains it has met.

usage: ostinato COMMAND [options]        ostinato COMMAND --help for its options

{commands}
"""


def usage(group: str = "") -> str:
    """The help page, of all commands or of those that begin with a word."""
    chosen = [COMMANDS[name] for name in COMMANDS if name.startswith(group)]
    parts = [[one for one in chosen if one.section == section] for section in SECTIONS]
    texts = ["\n".join(f"  {one.name:12} {one.line}" for one in part) for part in parts if part]
    return USAGE.format(commands="\n\n".join(texts))


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
    if not rest and not COMMANDS[name].alone:
        rest = ["--help"]
    if name != "run" and "TORCHELASTIC_RUN_ID" in os.environ and "LOCAL_RANK" in os.environ:
        _fail(f"torchrun starts several processes, and only 'run' is done by several, not {name}.")
    try:
        tyro.cli(COMMANDS[name].call, args=rest, prog=f"ostinato {name}")
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
