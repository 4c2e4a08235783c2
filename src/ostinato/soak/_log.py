"""What a soak leaves behind: one line for every block of batches."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path

from ostinato.errors import DataError


@dataclass(frozen=True)
class Block:
    """Some batches of one kind in a row.

    Attributes:
        start: position of the first batch.
        end: one past the last.
        kind: of traffic.
        images: that have labels.
        wrong: how many of them the method got wrong.
        source_wrong: how many the source model gets wrong.
        answers: a hash of all logits; a repeated block has to give the same.
        memory: bytes of the process, at the end.
        mapped: bytes of it that are files and libraries.
        allocated: bytes that its allocator has handed out.
        idle: bytes that its allocator holds on to.
        state: bytes of the method's state, at the last save.
        files: that the process has open.
        domains: that the method holds.
        updates: batches after which something had moved.
        faults: what should not have happened, in words.
        seconds: that the block took.
        life: which process, counted from 0.
    """

    start: int
    end: int
    kind: str
    images: int
    wrong: int
    source_wrong: int
    answers: str
    memory: int
    mapped: int
    allocated: int
    idle: int
    state: int
    files: int
    domains: int
    updates: int
    faults: tuple[str, ...]
    seconds: float
    life: int


def append(path: Path, block: Block) -> None:
    """Add a line, and hand it to the disk before anything that builds on it is saved."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(block)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[Block]:
    """All whole lines; a last one that a kill cut off is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    found = [_block(line, path, number) for number, line in enumerate(lines[:-1], 1)]
    for number, (one, other) in enumerate(pairwise(found), 2):
        if other.start > one.end:
            raise DataError(f"{path}, line {number}: batches {one.end}-{other.start} are missing.")
    return found


def last(path: Path, most: int = 1 << 16) -> Block | None:
    """The last whole line, without reading all of them; None where there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - most))
        lines = file.read().decode("utf-8", errors="replace").split("\n")
    return _block(lines[-2], path, 0) if len(lines) > 1 else None


def _block(line: str, path: Path, number: int) -> Block:
    try:
        values = json.loads(line)
        block = Block(**{**values, "faults": tuple(values["faults"])})
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}, line {number} is no block of a soak: {error}") from None
    wrong = [f.name for f in fields(Block) if not _fits(getattr(block, f.name), str(f.type))]
    if wrong or not 0 <= block.start < block.end:
        raise DataError(f"{path}, line {number} holds wrong values ({', '.join(wrong)}).")
    return block


_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "float": (int, float),
    "tuple[str, ...]": (tuple,),
}


def _fits(value: object, kind: str) -> bool:
    return isinstance(value, _KINDS[kind]) and not isinstance(value, bool)


def cut_off(path: Path) -> None:
    """Remove a last line that is not whole, so that the next one begins a line."""
    if path.is_file():
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with path.open("r+b") as file:
                file.truncate(whole)


def settled(blocks: list[Block]) -> list[Block]:
    """Every block once, in order; of a repeated one the first counts.

    >>> settled([])
    []
    """
    first: dict[int, Block] = {}
    for block in blocks:
        first.setdefault(block.start, block)
    return [first[start] for start in sorted(first)]


def differing(blocks: list[Block]) -> list[int]:
    """Where a block that was done again after a kill did not give the same answers."""
    first: dict[int, str] = {}
    again = [b.start for b in blocks if first.setdefault(b.start, b.answers) != b.answers]
    return sorted(set(again))
