"""What a command is: a function whose typed arguments are its flags, with a name and a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ostinato.registry import Registry

Section = Literal["start", "methods", "benchmark", "data", "serving", "measuring"]
SECTIONS: tuple[Section, ...] = ("start", "methods", "benchmark", "data", "serving", "measuring")
"""The parts of the help page, in its order."""


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        name: one word, or two where several commands share the first.
        line: what the help page says of it.
        section: the part of the help page that shows it.
        alone: whether it says enough without a further word; any other then shows its help.
        call: what it does; nothing heavy is imported until then.
    """

    name: str
    line: str
    section: Section
    alone: bool
    call: Callable[..., None]


COMMANDS: Registry[Command] = Registry("command", "ostinato.cli")
"""Every command: the files of this package, and what outside packages add."""


def command(
    name: str, line: str, section: Section, *, alone: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: make the function below a command. A file that holds one is all it takes."""

    def add(call: Callable[..., None]) -> Callable[..., None]:
        COMMANDS.register(name)(Command(name, line, section, alone, call))
        return call

    return add
