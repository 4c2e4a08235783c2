"""A run's records as lines that hang on one another by their checksums.

That is no signature: it shows damage and careless edits, not the work of someone who computes it
anew.
"""

from __future__ import annotations

import hashlib
import re

from ostinato.errors import DataError
from ostinato.scoring.record import Record

_SEAL = re.compile(rb',"sum":"([0-9a-f]{16})"\}\Z')


def checksum(before: str, text: bytes) -> str:
    """Of a text that follows another checksum.

    >>> checksum("a", b"x") != checksum("b", b"x")
    True
    """
    return hashlib.sha256(before.encode() + b"\n" + text).hexdigest()[:16]


class RecordChain:
    """Turns records into lines and back, in order; each line's checksum covers all before it.

    Args:
        run: the run's hash, which the first line hangs on.
        sealed: whether lines carry checksums; those of runs of version 1 do not.

    >>> record = Record(run="a", index=0, domain="fog", images=1, correct=1, counted=1)
    >>> line = RecordChain("a").line(record)
    >>> RecordChain("a").read(line) == record
    True
    >>> RecordChain("b").read(line)
    Traceback (most recent call last):
        ...
    ostinato.errors.DataError: does not follow from the line before it: ...
    """

    def __init__(self, run: str, sealed: bool = True) -> None:
        self.run, self.sealed = run, sealed
        self.last = run
        self.count = 0

    def line(self, record: Record) -> bytes:
        """The record as the next line; the chain itself stays where it is until `read`."""
        text = record.to_line().encode()
        if self.sealed:
            mark = checksum(self.last, text)
            text = text[:-1] + f',"sum":"{mark}"}}'.encode()
        return text + b"\n"

    def read(self, line: bytes) -> Record:
        """The next line's record; one that does not belong there is a DataError."""
        text = line.removesuffix(b"\n")
        last = self.last
        if self.sealed:
            text, last = self._unseal(text)
        record = Record.from_line(text)
        if record.run != self.run or record.index != self.count:
            raise DataError(
                f"is batch {record.index} of run {record.run!r}, where batch {self.count} of "
                f"{self.run!r} should stand"
            )
        self.last = last
        self.count += 1
        return record

    def _unseal(self, text: bytes) -> tuple[bytes, str]:
        found = _SEAL.search(text)
        if found is None:
            raise DataError("carries no checksum: it is damaged, or not one that Ostinato wrote")
        plain, mark = text[: found.start()] + b"}", found.group(1).decode()
        if checksum(self.last, plain) != mark:
            raise DataError(
                "does not follow from the line before it: one of them was changed, removed or "
                "written twice"
            )
        return plain, mark
