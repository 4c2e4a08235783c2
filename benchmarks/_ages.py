"""What the index tells of kills: who wrote a stream, and how old what was lost had become.

Pure counting over a stream's events, in the order in which they were written:

- `learned` (number `learned`): an update, at the moment it was made;
- `saved` (`epoch`, `learned`): a state that contains all updates up to that number;
- `claimed` (`epoch`, `shard`): the stream went to a shard, or to a new start of it;
- `began`: somebody loaded the newest state and goes on from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Event = tuple[float, str, Mapping[str, Any]]
"""When, what, and its body."""
Death = tuple[float, int]
"""When a shard died, and which."""


NEVER = (
    "epochs out of order",
    "states under another epoch",
    "starts that lost what was too old",
)
"""What must not be."""


@dataclass
class Found:
    """Of one stream, or of several together.

    Attributes:
        counts: claims, states, updates, updates lost, starts that lost something, and `NEVER`.
        ages: of every update that was lost, seconds from it to the death that took it.
    """

    counts: Counter[str] = field(default_factory=Counter)
    ages: list[float] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """Take in another stream's."""
        self.counts.update(other.counts)
        self.ages += other.ages


def look_at(events: Iterable[Event], deaths: Sequence[Death], interval: float) -> Found:
    """Count one stream's events.

    What is lost is lost when its holder dies: the first death of the shard that had the stream,
    between the claim under which it had loaded it and the next one. Who claims it afterwards may
    die or lose it too, and many may, before one of them has loaded it; that takes nothing more. A
    stream that was given away had its state written before.

    Args:
        events: in the order in which they were written.
        deaths: of all shards.
        interval: seconds that may be lost.
    """
    found = Found(Counter(dict.fromkeys(NEVER, 0)))
    held, owner, since, died = 0, -1, 0.0, None
    pending: dict[int, float] = {}
    for at, kind, body in events:
        if kind == "claimed":
            found.counts["claims"] += 1
            found.counts["epochs out of order"] += body["epoch"] <= held
            if died is None:
                died = min((t for t, who in deaths if who == owner and since < t <= at), default=at)
            held, owner, since = body["epoch"], body["shard"], at
        elif kind == "saved":
            found.counts["states"] += 1
            found.counts["states under another epoch"] += body["epoch"] != held
            pending = {n: when for n, when in pending.items() if n > body["learned"]}
        elif kind == "learned":
            found.counts["updates"] += 1
            pending[body["learned"]] = at
        elif kind == "began":
            if died is not None:
                ages = [max(0.0, died - when) for when in pending.values()]
                found.ages += ages
                found.counts["starts that lost something"] += bool(ages)
                found.counts["starts that lost what was too old"] += max(ages, default=0) > interval
                found.counts["updates lost"] += len(ages)
            pending, died = {}, None
    return found
