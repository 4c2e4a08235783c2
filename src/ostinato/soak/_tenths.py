"""What a soak's logs say: error against the source, memory and domains, tenth by tenth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ostinato.errors import ConfigError, DataError
from ostinato.methods.contract import resolve_config
from ostinato.registry import METHODS
from ostinato.soak import _log as log
from ostinato.soak._log import Block
from ostinato.soak.plan import KINDS, LOG, Plan, read_plan

MOST_ERROR = 0.3
"""Percentage points that a tenth may be above the source."""
_MOST_GROWTH = 0.02
"""Share that memory may grow by after the first tenth."""
_PARTS = ("memory", "mapped", "allocated", "idle")


@dataclass(frozen=True)
class Sum:
    """Some blocks together; errors in percent.

    >>> Sum("all", 10, 250, error=20.0, source=30.0, updates=4, domains=3, files=9).gap
    -10.0
    """

    name: str
    batches: int
    images: int
    error: float
    source: float
    updates: int
    domains: int
    files: int

    @property
    def gap(self) -> float:
        """Error minus the source's."""
        return self.error - self.source


@dataclass(frozen=True)
class Piece:
    """One folder: its blocks once each, and what followed from kills."""

    name: str
    plan: Plan
    blocks: tuple[Block, ...]
    lives: int
    differing: tuple[int, ...]

    @property
    def batches(self) -> int:
        """How many were done."""
        return self.blocks[-1].end

    def tenth(self, number: int) -> list[Block]:
        """The blocks that begin in a tenth of what was done."""
        return [b for b in self.blocks if 10 * b.start // self.batches == number]

    @property
    def growth(self) -> float:
        """How far memory at rest is in any later tenth above the most of the first, as a share.

        At the end of a lap, all has just been loaded anew and free pages went back to the system.
        Where the first tenth is shorter than a lap, its peaks count.
        """
        rest = [[b for b in self.tenth(n) if b.end % self.plan.lap == 0] for n in range(10)]
        return _grown(rest) if rest[0] else self.peak_growth

    @property
    def peak_growth(self) -> float:
        """The same for all blocks: with what the allocator holds on to between batches."""
        return _grown([self.tenth(n) for n in range(10)])

    def parts(self) -> list[dict[str, int]]:
        """What memory was made of at its most, in bytes, tenth by tenth."""
        most = [max(self.tenth(n), key=lambda b: b.memory, default=None) for n in range(10)]
        return [{name: getattr(one, name) for name in _PARTS} for one in most if one is not None]

    @property
    def bound(self) -> int | None:
        """Domains that the method may hold, where it says."""
        kind = METHODS[self.plan.method]
        config = resolve_config(kind, self.plan.preset, dict(self.plan.settings))
        return getattr(config, "max_domains", None)


def _grown(by_tenth: Sequence[Sequence[Block]]) -> float:
    """The most memory of any later tenth above the most of the first, as a share."""
    first, *later = (max((b.memory for b in part), default=0) for part in by_tenth)
    return max(later) / first - 1


def read_piece(folder: Path) -> Piece:
    """What a folder holds."""
    plan, blocks = read_plan(folder), log.read(folder / LOG)
    if not blocks:
        raise DataError(f"{folder} holds no finished block: go on with the soak first.")
    lives = 1 + max(block.life for block in blocks)
    return Piece(folder.name, plan, tuple(log.settled(blocks)), lives, tuple(log.differing(blocks)))


def check_alike(pieces: Sequence[Piece]) -> None:
    """Refuse pieces that cannot be told of as one: of other settings, or with the same batches."""
    first, *others = pieces
    for other in others:
        if other.plan.replace(seed=first.plan.seed) != first.plan:
            raise ConfigError(
                f"{first.name} and {other.name} are soaks of other settings: join pieces that "
                "differ in their seed alone."
            )
    known: dict[int, Piece] = {}
    for piece in pieces:
        if (same := known.setdefault(piece.plan.seed, piece)) is not piece:
            raise ConfigError(
                f"{same.name} and {piece.name} have the same seed, {piece.plan.seed}, and so the "
                "same batches: leave one of them out."
            )


def _total(name: str, blocks: Sequence[Block]) -> Sum:
    """Blocks summed up."""
    images = sum(b.images for b in blocks)
    return Sum(
        name,
        batches=sum(b.end - b.start for b in blocks),
        images=images,
        error=100 * sum(b.wrong for b in blocks) / max(1, images),
        source=100 * sum(b.source_wrong for b in blocks) / max(1, images),
        updates=sum(b.updates for b in blocks),
        domains=max((b.domains for b in blocks), default=0),
        files=max((b.files for b in blocks), default=0),
    )


def tenths(pieces: Sequence[Piece]) -> list[Sum]:
    """The same tenth of every piece together."""
    return [_total(f"{n + 1}", [b for p in pieces for b in p.tenth(n)]) for n in range(10)]


def kinds(pieces: Sequence[Piece]) -> list[Sum]:
    """Every kind of traffic by itself."""
    blocks = [b for p in pieces for b in p.blocks]
    return [_total(kind, [b for b in blocks if b.kind == kind]) for kind in KINDS]


def faults(pieces: Sequence[Piece]) -> list[str]:
    """Everything that should not have happened, in words."""
    found = [f"{p.name}: {fault}" for p in pieces for b in p.blocks for fault in b.faults]
    found += [
        f"{p.name}: batches from {start} gave other answers when done again after a kill"
        for p in pieces
        for start in p.differing
    ]
    return found


def verdicts(pieces: Sequence[Piece]) -> dict[str, tuple[bool, str]]:
    """What was to be shown: whether it holds, and by how much."""
    gap = max(one.gap for one in tenths(pieces))
    growth, peak = max(p.growth for p in pieces), max(p.peak_growth for p in pieces)
    files = max(b.files for p in pieces for b in p.blocks)
    least = min(p.blocks[0].files for p in pieces)
    held = [(max(b.domains for b in p.blocks), p.bound) for p in pieces]
    bounded = all(most <= (bound or 0) for most, bound in held)  # without a bound: none at all
    count = len(faults(pieces))
    return {
        "error": (gap <= MOST_ERROR, f"at most {gap:+.2f} above the source's in a tenth"),
        "memory": (
            peak <= _MOST_GROWTH,
            f"{100 * peak:+.1f} % after the first tenth, {100 * growth:+.1f} % at rest",
        ),
        "domains": (bounded, f"at most {max(most for most, _ in held)}, bound {held[0][1]}"),
        "open files": (files <= least + 4, f"{least} at first, at most {files}"),
        "faults": (not count, str(count)),
    }


def as_json(pieces: Sequence[Piece]) -> dict[str, Any]:
    """Everything the page shows, as plain values."""
    return {
        "batches": sum(p.batches for p in pieces),
        "verdicts": {k: {"holds": ok, "found": text} for k, (ok, text) in verdicts(pieces).items()},
        "tenths": [asdict(one) | {"gap": one.gap} for one in tenths(pieces)],
        "kinds": [asdict(one) | {"gap": one.gap} for one in kinds(pieces)],
        "pieces": [_piece(p) for p in pieces],
        "faults": faults(pieces),
    }


def _piece(piece: Piece) -> dict[str, Any]:
    by_tenth = [piece.tenth(n) for n in range(10)]
    return {
        "name": piece.name,
        "plan": piece.plan.model_dump(mode="json"),
        "batches": piece.batches,
        "lives": piece.lives,
        "memory growth": piece.growth,
        "peak memory growth": piece.peak_growth,
        "memory": piece.parts(),
        "state": [max((b.state for b in part), default=0) for part in by_tenth],
        "domains": [max((b.domains for b in part), default=0) for part in by_tenth],
        "seconds": round(sum(b.seconds for b in piece.blocks), 1),
    }
