"""`ostinato trial`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from ostinato.cli._command import command
from ostinato.cli._words import (
    Amount,
    Given,
    Names,
    Normalize,
    Number,
    Out,
    Weights,
    called,
)
from ostinato.errors import ConfigError

_Folders = Annotated[tuple[str, ...], called("[NAME=DIR ...]")]
_Images = Annotated[str | None, called("DIR|NAME|FILE")]


@command("trial", "should I use this? Your model and images in, a page out", "start")
def trial_command(
    *,
    model: Given = "embedded",
    images: _Images = None,
    domains: _Folders = (),
    weights: Weights = None,
    num_classes: Number = None,
    normalize: Normalize = None,
    severity: Annotated[int, tyro.conf.arg(metavar="1-5")] = 4,
    limit: Number = None,
    minutes: Amount = 10.0,
    peers: Names = (),
    device: Given = "auto",
    estimate: bool = False,
    out: Out = Path("ostinato-trial"),
) -> None:
    """Should I use this? Try it on your model and your images; ends with a page.

    Collects statistics from half of the images, shows the others under 15 corruptions (or under
    your own domains) in several kinds of traffic to the source model, to ours and to two peers,
    and says what would be gained, where, at what cost and with which settings.

    Args:
        model: 'embedded', or a timm name with its tag.
        images: a folder of ordinary images, with class folders or without; a data set's name or
            an npz file. Without labels, agreement with the answer to the ordinary image stands
            for accuracy.
        domains: your own domains in place of corruptions: folders of class folders.
        weights: a checkpoint file, or 'random'.
        num_classes: outputs of a timm model, where not its usual number.
        normalize: the input convention; model unless given.
        severity: of the corruptions.
        limit: images a domain; as many as fit into the time unless given.
        minutes: how long it may take, about.
        peers: methods beside ours, in place of eata rdumb.
        device: cpu, cuda or auto.
        estimate: say how long it would take, and stop.
        out: the trial's folder; an interrupted trial there goes on.
    """
    from ostinato.trial.command import show, trial
    from ostinato.trial.setting import PEERS, Request

    if images is None:
        if model != "embedded":
            raise ConfigError("Name the folder that holds your images: --images DIR.")
        images = "embedded"
    request = Request(
        model=model,
        images=images,
        domains=_named_folders(domains),
        weights=weights,
        num_classes=num_classes,
        normalize=normalize or "model",
        severity=severity,
        limit=limit,
        minutes=minutes,
        peers=peers or PEERS,
        device=device,
    )
    show(trial(request, out, estimate_only=estimate))


def _named_folders(words: tuple[str, ...]) -> dict[str, str]:
    """Folders by the name of their domain.

    >>> _named_folders(("day=photos/day", "night=photos/night"))
    {'day': 'photos/day', 'night': 'photos/night'}
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, place = word.partition("=")
        if not (name and equals and place):
            raise ConfigError(f"{word!r}: write a domain as NAME=DIR, such as night=photos/night.")
        if name in found or name == "ordinary":
            raise ConfigError(f"{word!r}: give every domain a name of its own, not {name!r}.")
        found[name] = place
    return found
