"""Sequence numbers that were met, in little room."""

from __future__ import annotations

from bisect import bisect_right

MOST = 512
"""Intervals kept; gaps below them count as met."""
LARGEST = 2**53 - 1
"""What every client can count to without rounding."""


class Sequences:
    """A set of whole numbers that mostly count up.

    >>> met = Sequences()
    >>> [met.add(n) for n in (1, 2, 3, 7, 2)]
    [True, True, True, True, False]
    >>> met.intervals, 3 in met, 5 in met, len(met)
    ([[1, 3], [7, 7]], True, False, 4)
    """

    def __init__(self, intervals: list[list[int]] | None = None) -> None:
        self.intervals = [[int(first), int(last)] for first, last in intervals or []]

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self.intervals, [number, LARGEST + 1]) - 1
        return at >= 0 and self.intervals[at][1] >= number

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.intervals)

    def add(self, number: int) -> bool:
        """Note a number; False where it was met before."""
        if number in self:
            return False
        at = bisect_right(self.intervals, [number, number])
        before = self.intervals[at - 1] if at else None
        after = self.intervals[at] if at < len(self.intervals) else None
        joins_before = before is not None and before[1] == number - 1
        joins_after = after is not None and after[0] == number + 1
        if joins_before and joins_after:
            assert before is not None
            assert after is not None
            before[1] = after[1]
            del self.intervals[at]
        elif joins_before and before is not None:
            before[1] = number
        elif joins_after and after is not None:
            after[0] = number
        else:
            self.intervals.insert(at, [number, number])
        while len(self.intervals) > MOST:
            first, second = self.intervals[:2]
            self.intervals[:2] = [[first[0], second[1]]]
        return True

    def export(self) -> list[list[int]]:
        """The intervals, as a copy."""
        return [list(one) for one in self.intervals]
