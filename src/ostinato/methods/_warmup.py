"""Warming what a method adds, on source images, before deployment."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.errors import ConfigError, StateError
from ostinato.methods._adapters import Adapted
from ostinato.ops.optim import make_optimizer
from ostinato.ops.snapshot import State

_IGNORE = 255
_CHECKS = 10
"""How often held-out images are looked at on the way."""


def predictions(model: Callable[[Tensor], Tensor], images: Tensor, batch: int) -> Tensor:
    """The model's own hard labels, for source images that come without any."""
    with torch.no_grad():
        return torch.cat([model(part).argmax(1) for part in images.split(batch)])


def warm_up(
    model: Callable[[Tensor], Tensor],
    parameters: Mapping[str, nn.Parameter],
    images: Tensor,
    labels: Tensor,
    *,
    steps: int,
    lr: float,
    batch: int,
    generator: torch.Generator,
    extra: Callable[[], Tensor] | None = None,
    held: float = 0.0,
) -> State:
    """Descend the labels' cross-entropy over these parameters alone; returns their values.

    Labels are (N,) or (N, H, W), where 255 is ignored. `extra` is a term to add, read after each
    forward. With a share of the images `held` out, the values are those that predicted them best
    on the way, the start included: a few hundred images are soon learned by heart.
    """
    if len(images) != len(labels):
        raise ConfigError(f"There are {len(images)} images and {len(labels)} labels.")
    labels = labels.to(images.device).long()
    watch: Watch | None = None
    if count := int(held * len(images)):
        order = torch.randperm(len(images), generator=generator).to(images.device)
        watch = Watch(images[order[:count]], labels[order[:count]], batch)
        images, labels = images[order[count:]], labels[order[count:]]
    optimizer = make_optimizer("adam", list(parameters.values()), lr=lr)
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    for step in range(steps):
        if watch is not None and step % max(1, steps // _CHECKS) == 0:
            watch.look(model, parameters)
        chosen = torch.randperm(len(images), generator=generator)[:batch].to(images.device)
        with torch.enable_grad():
            loss = _source_loss(model, images[chosen], labels[chosen])
            if loss is None:
                continue
            if extra is not None:
                loss = loss + extra()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
        optimizer.step()
    if watch is not None:
        watch.look(model, parameters)
        return watch.state()
    return State({name: p.detach().clone() for name, p in parameters.items()})


def _source_loss(
    model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor
) -> Tensor | None:
    """Mean cross-entropy, at the labels' size where they are maps; None without a valid pixel."""
    if labels.ndim > 1 and not bool((labels != _IGNORE).any()):
        return None  # the mean over no pixel is no number, and would spoil every parameter
    logits = model(images)
    if logits.shape[2:] != labels.shape[1:]:
        size = tuple(labels.shape[1:])
        logits = F.interpolate(logits, size=size, mode="bilinear", align_corners=False)
    return F.cross_entropy(logits.float(), labels, ignore_index=_IGNORE)


class Watch:
    """Remembers the values with which held-out images were predicted best."""

    def __init__(self, images: Tensor, labels: Tensor, batch: int) -> None:
        self.parts = list(zip(images.split(batch), labels.split(batch), strict=True))
        self.losses: list[float] = []
        self.values: dict[str, Tensor] = {}

    @torch.no_grad()
    def look(
        self, model: Callable[[Tensor], Tensor], parameters: Mapping[str, nn.Parameter]
    ) -> None:
        """Keep the present values if none before were better."""
        losses = [(_source_loss(model, x, y), len(x)) for x, y in self.parts]
        valid = [(float(loss), count) for loss, count in losses if loss is not None]
        total = sum(count for _, count in valid)
        mean = sum(loss * count for loss, count in valid) / max(total, 1)
        if not self.losses or mean < min(self.losses):
            self.values = {name: p.detach().clone() for name, p in parameters.items()}
        self.losses.append(mean)

    def state(self) -> State:
        """The best values, and what they gained on the held-out images."""
        count = sum(len(images) for images, _ in self.parts)
        gain = {"images": count, "before": self.losses[0], "after": min(self.losses)}
        return State(self.values, {"held out": gain})


def warm_beside(
    adapted: Adapted,
    images: Tensor,
    labels: Tensor | None,
    *,
    steps: int,
    lr: float,
    batch: int,
    held: float,
    generator: torch.Generator,
) -> State:
    """Warm what stands beside a model's layers, then take it out; without labels, on its own."""
    try:
        if labels is None:  # what was added has no effect yet: these are the source's
            labels = predictions(adapted, images, batch)
        return warm_up(
            adapted,
            adapted.added(),
            images,
            labels,
            steps=steps,
            lr=lr,
            batch=batch,
            held=held,
            generator=generator,
        )
    finally:
        adapted.detach()


@torch.no_grad()
def take_over(parameters: Mapping[str, nn.Parameter], state: State) -> None:
    """Start from warmed values; refuses those of another model or other settings."""
    for name, parameter in parameters.items():
        given = state.tensors.get(name)
        if given is None or given.shape != parameter.shape:
            raise StateError(
                f"The prepared file has no fitting values for {name!r}: it was made for another "
                "model or with other settings. Prepare again with this model and these settings."
            )
    for name, parameter in parameters.items():
        parameter.copy_(state.tensors[name])
