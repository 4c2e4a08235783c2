"""The command line: one file a command, a function whose typed arguments are its flags.

The files of this package that do not begin with an underscore are found and imported by name, so
a new command is one new file (`check.py` is the smallest). Nothing heavy is imported until a
command runs, so that help is immediate.
"""

from ostinato.cli._command import COMMANDS
from ostinato.cli._main import main, usage

__all__ = ["COMMANDS", "main", "usage"]
