"""What can be seen of a stream without labels: a timeline, a summary, alarms."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BUCKET = 2.0
"""Seconds that a point of the timeline covers."""
BUCKETS = 450
RECENT = 30
"""Points that a summary rests on."""
SHORT, LONG = 200.0, 5000.0
"""Images that the present and the usual mix of answers reach back."""
ENOUGH = 100
"""Images before which nothing is alarming."""
UNDONE = ("rolled back",)
"""How events begin that say that something learned was undone."""
FRESH = 300.0
"""Seconds for which a rollback of the method itself is shown."""


@dataclass
class Point:
    """Two seconds of a stream."""

    at: float
    images: int = 0
    trust: float = 0.0
    far: int = 0
    distance: float = 0.0
    confidence: float = 0.0
    compared: int = 0
    differing: int = 0
    domains: Counter[int] = field(default_factory=Counter)

    def shown(self) -> dict[str, Any]:
        """For the page."""
        count = max(self.images, 1)
        return {
            "at": self.at,
            "images": self.images,
            "trust": round(self.trust / count, 4),
            "unknown": round(self.far / count, 4),
            "confidence": round(self.confidence / count, 4),
            "differing": round(self.differing / self.compared, 4) if self.compared else None,
            "domains": {str(domain): n for domain, n in sorted(self.domains.items())},
        }


class Mix(dict[int, float]):
    """How often labels came, older images weighing less; shares of it mean something, sums do not.

    New images weigh more instead of old ones less, so that an image costs the same however many
    labels there are.

    Args:
        reach: images by which a weight falls to 1 / e.

    >>> mix = Mix(reach=2.0)
    >>> mix.add([1])
    >>> mix.add([2])
    >>> mix[1] / mix[2]
    0.5
    """

    LARGEST = 1e12

    def __init__(self, reach: float) -> None:
        super().__init__()
        self._more, self._weight = 1 / (1 - 1 / reach), 1.0

    def add(self, labels: Sequence[int]) -> None:
        """Take in the labels of some images, all of one weight."""
        self._weight *= self._more ** len(labels)
        for label in labels:
            self[label] = self.get(label, 0.0) + self._weight
        if self._weight > self.LARGEST:
            for label in self:
                self[label] /= self._weight
            self._weight = 1.0


class Watch:
    """Follows one stream's answers.

    Args:
        now: the time.
    """

    def __init__(self, now: float) -> None:
        self.points: deque[Point] = deque(maxlen=BUCKETS)
        self.answered = 0
        self.founded = 0
        self.started = now
        self._short, self._long = Mix(SHORT), Mix(LONG)
        self._since: dict[str, float] = {}
        self._undone: float | None = None
        self._lock = threading.Lock()

    def note(
        self,
        *,
        domains: Sequence[int],
        trust: Sequence[float],
        far: Sequence[bool],
        distance: Sequence[float],
        labels: Sequence[int],
        confidence: Sequence[float],
        source: Sequence[int] | None,
    ) -> None:
        """Take in one answered request."""
        now = time.time()
        with self._lock:
            if not self.points or now - self.points[-1].at >= BUCKET:
                self.points.append(Point(now))
            point = self.points[-1]
            point.images += len(domains)
            point.trust += sum(trust)
            point.far += sum(far)
            point.distance += sum(distance)
            point.confidence += sum(confidence)
            point.domains.update(domains)
            if source is not None:
                point.compared += len(labels)
                point.differing += sum(a != b for a, b in zip(labels, source, strict=True))
            self.answered += len(domains)
            self._short.add(labels)
            self._long.add(labels)

    def note_events(self, events: Sequence[str]) -> None:
        """Take in what happened to domains."""
        self.founded += sum(event.startswith("founded") for event in events)
        if any(event.startswith(UNDONE) for event in events):
            self._undone = time.time()

    def timeline(self) -> list[dict[str, Any]]:
        """All points, oldest first."""
        with self._lock:
            return [point.shown() for point in self.points]

    def summary(self) -> dict[str, float | None]:
        """Means of the latest points."""
        with self._lock:
            points = list(self.points)[-RECENT:]
        images = sum(point.images for point in points)
        compared = sum(point.compared for point in points)
        count = max(images, 1)
        return {
            "trust": sum(point.trust for point in points) / count,
            "unknown": sum(point.far for point in points) / count,
            "distance": sum(point.distance for point in points) / count if images else None,
            "confidence": sum(point.confidence for point in points) / count if images else None,
            "differing": sum(p.differing for p in points) / compared if compared else None,
        }

    def alarms(self) -> list[tuple[str, str, float]]:
        """(kind, text, since) of everything that a person should look at."""
        now = time.time()
        found = self._found(now)
        self._since = {kind: self._since.get(kind, now) for kind in found}
        return [(kind, text, self._since[kind]) for kind, text in found.items()]

    def _found(self, now: float) -> dict[str, str]:
        with self._lock:
            points = list(self.points)[-RECENT:]
            short, usual = dict(self._short), dict(self._long)
        found = {}
        images, far = sum(p.images for p in points), sum(p.far for p in points)
        if images >= ENOUGH / 2 and far > 0.5 * images:
            found["unknown domain"] = f"no domain explains {far} of the latest {images} images"
        if self._undone is not None and now - self._undone < FRESH:
            found["collapse"] = "learned answers lost their variety and were undone"
        if self.answered >= 2 * SHORT:
            found |= _mix_alarms(short, usual)
        return found


def _mix_alarms(short: Mapping[int, float], usual: Mapping[int, float]) -> dict[str, str]:
    if variety(short) < 0.3 * variety(usual):
        label, share = max(short.items(), key=lambda item: item[1])
        share /= sum(short.values())
        return {"collapse": f"{share:.0%} of the latest answers are {label}"}
    moved = distance(short, usual)
    if moved > 0.35 + chance(usual, SHORT):
        return {"class mix": f"{moved:.0%} of the latest answers are of other classes than usual"}
    return {}


def variety(counts: Mapping[int, float]) -> float:
    """Entropy of a mix, in nats.

    >>> round(variety({1: 5.0, 2: 5.0}), 3), variety({1: 3.0})
    (0.693, 0.0)
    """
    total = sum(counts.values()) or 1.0
    shares = [value / total for value in counts.values() if value > 0]
    return abs(-sum(share * math.log(share) for share in shares))


def distance(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    """Share of one mix that would have to move to make it the other.

    >>> distance({1: 1.0}, {2: 4.0}), distance({1: 2.0, 2: 2.0}, {1: 1.0, 2: 1.0})
    (1.0, 0.0)
    """
    whole_a, whole_b = sum(a.values()) or 1.0, sum(b.values()) or 1.0
    labels = {*a, *b}
    return 0.5 * sum(abs(a.get(k, 0.0) / whole_a - b.get(k, 0.0) / whole_b) for k in labels)


def chance(mix: Mapping[int, float], images: float) -> float:
    """What `distance` between a mix and that many draws from it is on average."""
    total = sum(mix.values()) or 1.0
    return 0.4 * sum(math.sqrt(value / total / images) for value in mix.values())
