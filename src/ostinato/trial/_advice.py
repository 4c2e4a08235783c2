"""From figures to advice: what would be gained, where, at what cost, with which settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ostinato.scoring.compare import Contrast, Interval

Verdict = Literal["yes", "unclear", "no"]


@dataclass(frozen=True)
class Outcome:
    """What one method came to on one kind of traffic.

    Attributes:
        traffic: the kind's name.
        row: the method's title.
        error: wrong answers in percent.
        gain: points fewer than the source model's, with a confidence interval; None for itself.
        domains: the same by domain.
        milliseconds: an image, adaptation included.
        memory: bytes at the highest point, where known.
        trained: parameters that a step moves.
        found: domains that it told apart, where it does.

    >>> gain = Interval(5.0, 3.6, 6.6)
    >>> Outcome("returning", "Ostinato robust", 21.4, gain, {}, 66.4, None, 0, 13).found
    13
    """

    traffic: str
    row: str
    error: float
    gain: Interval | None
    domains: dict[str, Interval]
    milliseconds: float | None
    memory: int | None
    trained: int
    found: int | None


@dataclass(frozen=True)
class Refused:
    """A method that could not be tried, and why.

    >>> Refused("BN statistics", "This model has no batch norm.").row
    'BN statistics'
    """

    row: str
    reason: str


@dataclass(frozen=True)
class Advice:
    """What the page says first.

    Attributes:
        verdict: in one word.
        headline: in one sentence.
        preset: the settings to take; None where the advice is to leave it.
        reasons: further sentences.

    >>> Advice("no", "Nothing is gained.", None, ()).preset is None
    True
    """

    verdict: Verdict
    headline: str
    preset: str | None
    reasons: tuple[str, ...]


def gained(contrast: Contrast) -> Interval:
    """Points of error that were gained: the difference with its sign turned.

    >>> zero = Interval(50.0, 49.0, 51.0)
    >>> str(gained(Contrast(10, zero, zero, Interval(-4.0, -6.0, -2.0), 0.01)))
    '4.00 [2.00, 6.00]'
    """
    difference = contrast.difference
    # Adding nought turns a negative nought into the one that people write.
    return Interval(0.0 - difference.estimate, 0.0 - difference.high, 0.0 - difference.low)


def judge(gain: Interval) -> Verdict:
    """Whether a gain is one, by its interval alone.

    >>> judge(Interval(3, 1, 5)), judge(Interval(3, -1, 7)), judge(Interval(-3, -5, -1))
    ('yes', 'unclear', 'no')
    """
    if gain.low > 0:
        return "yes"
    return "no" if gain.high < 0 else "unclear"


def advise(outcomes: Sequence[Outcome], ours: str, extra: Interval | None, word: str) -> Advice:
    """The advice that follows from a trial.

    Args:
        outcomes: of all methods on all kinds of traffic.
        ours: the title of our method.
        extra: points that learning gains on top of the maps alone, where both were tried.
        word: what is counted, "error" or "disagreement".
    """
    first = next((o for o in outcomes if (o.traffic, o.row) == ("returning", ours)), None)
    if first is None or first.gain is None:
        return Advice("no", "Our method could not be tried on this model.", None, ())
    verdict = judge(first.gain)
    source = first.error + first.gain.estimate
    figures = (
        f"{word} goes from {source:.1f} to {first.error:.1f} % where domains return "
        f"(gain {points(first.gain)})"
    )
    headline = {
        "yes": f"Yes: {figures}.",
        "unclear": f"Not shown: {figures}, which may be chance. More images would tell.",
        "no": f"No: {figures}.",
    }[verdict]
    preset, reason = _choose_preset(extra)
    reasons = (*([reason] if reason else []), *_losses(outcomes, ours))
    return Advice(verdict, headline, None if verdict == "no" else preset, reasons)


def _choose_preset(extra: Interval | None) -> tuple[str, str]:
    """The preset to take, and why: gradients only where they show a gain of their own.

    >>> _choose_preset(Interval(2.0, 1.0, 3.0))[0], _choose_preset(Interval(0.1, -1.0, 1.2))[0]
    ('robust', 'forward-only')
    """
    if extra is None:
        return "robust", ""
    if extra.low == extra.high == 0:
        return "forward-only", (
            "Learning on top of the maps changed no answer in so short a trial: forward-only is as "
            "good here and needs no gradients. Longer streams may tell otherwise."
        )
    if judge(extra) == "yes":
        return "robust", f"Learning on top of the maps adds {points(extra)}: take robust."
    return "forward-only", (
        f"Learning on top of the maps adds {points(extra)}, which may be chance: forward-only is "
        "as good here and needs no gradients. Longer streams may tell otherwise."
    )


def _losses(outcomes: Sequence[Outcome], ours: str) -> list[str]:
    found = []
    for one in outcomes:
        if one.row != ours or one.gain is None or one.traffic == "returning":
            continue
        if judge(one.gain) == "no":
            found.append(
                f"Beware: {-one.gain.estimate:.1f} points are lost on {_NAMES[one.traffic]}."
            )
    if not found:
        found.append("On no kind of traffic that was tried is anything lost for certain.")
    return found


_NAMES = {
    "mixed": "batches that hold all domains",
    "single": "images that come one by one",
    "few-classes": "streams of few classes",
    "ordinary": "ordinary images",
}


def points(gain: Interval) -> str:
    """A gain with its interval, in words.

    >>> points(Interval(4.0, 2.0, 6.0))
    '+4.0 points, 95 % interval +2.0 to +6.0'
    """
    return f"{gain.estimate:+.1f} points, 95 % interval {gain.low:+.1f} to {gain.high:+.1f}"
