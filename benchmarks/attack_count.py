"""One row of the attack's table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass
class Count:
    """One row of the table."""

    name: str
    tried: int = 0
    accepted: int = 0
    tracebacks: int = 0
    leftovers: int = 0
    changed: int = 0

    @property
    def clean(self) -> bool:
        """Whether everything but the first column is nought."""
        return not (self.accepted or self.tracebacks or self.leftovers or self.changed)


def joined(rows: Iterable[Count]) -> list[Count]:
    """Rows of the same name as one."""
    found: dict[str, Count] = {}
    for row in rows:
        known = found.setdefault(row.name, Count(row.name))
        for field in fields(Count)[1:]:
            setattr(known, field.name, getattr(known, field.name) + getattr(row, field.name))
    return list(found.values())


def show(rows: list[Count]) -> str:
    heads = ("", "tried", "wrong accepted", "tracebacks", "leftovers", "changed by a refusal")
    lines = [heads] + [
        (r.name, *map(str, (r.tried, r.accepted, r.tracebacks, r.leftovers, r.changed)))
        for r in rows
    ]
    widths = [max(len(line[n]) for line in lines) for n in range(len(heads))]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(x, widths, strict=True)) for x in lines)
