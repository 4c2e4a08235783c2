"""What a seed changes from run to run, told from the streams themselves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ostinato.data.streams import Stream
from ostinato.running.job import open_stream
from ostinato.running.spec import Spec


def seed_note(specs: Mapping[str, Spec]) -> str | None:
    """What ± is over, for a table's parts by name; None where there is one seed."""
    pairs = {
        name: [open_stream(one) for one in spec.runs()[:2]]
        for name, spec in specs.items()
        if len(spec.seeds) > 1
    }
    if not pairs:
        return None
    order = [name for name, (one, two) in pairs.items() if _reordered(one, two)]
    drawn = [name for name, (one, two) in pairs.items() if _redrawn(one, two)]
    sets = ["what is random in the method"]
    if order:
        sets.append(f"which images{_of(order, pairs)} come when")
    if drawn:
        sets.append(f"the corruptions{_of(drawn, pairs)}, which are made on the way")
    listed = " and ".join(filter(None, (", ".join(sets[:-1]), sets[-1])))
    rest = "" if order else "; the images and their order are the same for all"
    return f"± is the standard deviation over seeds. A seed sets {listed}{rest}."


def _reordered(one: Stream, two: Stream) -> bool:
    """Whether two streams over the same files show other images, or in another order."""
    if len(one.segments) != len(two.segments):
        return True
    return not all(
        a.name == b.name and np.array_equal(a.which, b.which) and np.array_equal(a.where, b.where)
        for a, b in zip(one.segments, two.segments, strict=True)
    )


def _redrawn(one: Stream, two: Stream) -> bool:
    """Whether they corrupt images themselves, each with draws of its own."""
    made = any(part.corruption for segment in one.segments for part in segment.parts)
    return made and one.config.seed != two.config.seed


def _of(names: list[str], every: Mapping[str, object]) -> str:
    """Which parts of a table, where not all of them."""
    return "" if len(names) == len(every) else f" of {' and '.join(names)}"
