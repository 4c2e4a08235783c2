"""What sequence numbers were answered, so that a repeated one is not learned twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field

from ostinato.errors import OstinatoError


class SequenceConflict(OstinatoError):
    """A sequence number came again with other images."""


@dataclass
class Recorded:
    """One sequence number: what came with it, and the answer, which may still be on its way.

    Answers are kept as JSON: as objects they take several times the room.
    """

    digest: str
    body: Future[bytes] = field(default_factory=Future)


class Record:
    """The latest answers of one stream by sequence number.

    >>> record = Record(most=2)
    >>> first, new = record.claim(1, "a")
    >>> new, record.claim(1, "a") == (first, False)
    (True, True)

    Attributes:
        highest: number that was ever answered; what is above it is in no record.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.highest = -1
        self._known: OrderedDict[int, Recorded] = OrderedDict()
        self._lock = threading.Lock()

    def claim(self, sequence: int, digest: str) -> tuple[Recorded, bool]:
        """The entry of a number, and whether this caller is the one to answer it."""
        with self._lock:
            known = self._known.get(sequence)
            if known is None:
                known = self._known[sequence] = Recorded(digest)
                self._trim()
                return known, True
        check_digest(sequence, known.digest, digest)
        return known, False

    def is_new(self, sequence: int) -> bool:
        """Whether a number is above all that were answered, so that nobody has to look for it."""
        with self._lock:
            new, self.highest = sequence > self.highest, max(sequence, self.highest)
        return new

    def release(self, sequence: int, error: BaseException) -> None:
        """It was not answered: the next one who comes with it may try."""
        with self._lock:
            known = self._known.pop(sequence, None)
        if known is not None and not known.body.done():
            known.body.set_exception(error)

    def drop(self, sequence: int) -> None:
        """Keep a number's answer no longer; whoever waits for it still gets it."""
        with self._lock:
            self._known.pop(sequence, None)

    def clear(self) -> None:
        """Forget the answers that have been given."""
        with self._lock:
            for sequence in [n for n, one in self._known.items() if one.body.done()]:
                del self._known[sequence]

    def _trim(self) -> None:
        for sequence in [*self._known][: max(0, len(self._known) - self.most)]:
            if self._known[sequence].body.done():
                del self._known[sequence]


def check_digest(sequence: int, known: str, given: str) -> None:
    """Refuse other images under a number that was used."""
    if known != given:
        raise SequenceConflict(
            f"Sequence number {sequence} was used for other images: count on instead."
        )
