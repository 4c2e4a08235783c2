"""True domains in place of found ones: what routing could gain at most."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.domains.verdict import SOURCE, Change
from ostinato.ops.expect import Expected, Kind
from ostinato.ops.snapshot import State

_NAMES = Kind(
    "different names",
    lambda value: (
        isinstance(value, list)
        and all(isinstance(name, str) for name in value)
        and len(set(value)) == len(value)
    ),
)


class Told:
    """Numbers the domains that it is told, in the order in which they come.

    >>> told = Told()
    >>> told.observe(["fog", "snow", "fog"]).owners, told.observe(["snow"]).founded
    ([1, 2, 1], {})
    """

    def __init__(self) -> None:
        self.names: list[str] = []

    def clear(self) -> None:
        """Back to none."""
        self.names = []

    def observe(self, names: Sequence[str]) -> Change:
        """The domain of every image; what comes for the first time is founded."""
        founded = {}
        for name in dict.fromkeys(names):
            if name not in self.names:
                self.names.append(name)
                founded[len(self.names)] = SOURCE
        owners = [1 + self.names.index(name) for name in names]
        return Change(owners, [True] * len(owners), founded)

    def export_state(self) -> State:
        """The names."""
        return State({}, {"names": list(self.names)})

    def expected(self, state: State) -> Expected:
        """Names, each once."""
        return Expected(values={"names": _NAMES})

    def import_state(self, state: State) -> None:
        """Become what `export_state` described."""
        self.names = list(state.values["names"])
