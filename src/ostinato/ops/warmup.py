"""Warming what a method adds, on source images, before deployment."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.errors import ConfigError, StateError
from ostinato.ops.adapters import Adapted
from ostinato.ops.optim import make_optimizer
from ostinato.ops.snapshot import State

IGNORE = 255


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
) -> State:
    """Descend the labels' cross-entropy over these parameters alone; returns their values.

    Labels are (N,) or (N, H, W), where 255 is ignored. `extra` is a term to add, read after each
    forward.
    """
    if len(images) != len(labels):
        raise ConfigError(f"There are {len(images)} images and {len(labels)} labels.")
    labels = labels.to(images.device).long()
    optimizer = make_optimizer("adam", list(parameters.values()), lr=lr)
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    with torch.enable_grad():
        for _ in range(steps):
            chosen = torch.randperm(len(images), generator=generator)[:batch].to(images.device)
            wanted = labels[chosen]
            if wanted.ndim > 1 and not bool((wanted != IGNORE).any()):
                continue  # the mean over no pixel is no number, and would spoil every parameter
            logits = model(images[chosen])
            if logits.shape[2:] != wanted.shape[1:]:
                size = tuple(wanted.shape[1:])
                logits = F.interpolate(logits, size=size, mode="bilinear", align_corners=False)
            loss = F.cross_entropy(logits.float(), wanted, ignore_index=IGNORE)
            if extra is not None:
                loss = loss + extra()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    return State({name: p.detach().clone() for name, p in parameters.items()})


def warm_beside(
    adapted: Adapted,
    images: Tensor,
    labels: Tensor | None,
    *,
    steps: int,
    lr: float,
    batch: int,
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
