"""Noticing a new domain by the mean and variance of the patch embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ostinato.ops.expect import Expected, Like
from ostinato.ops.features import prefix_tokens
from ostinato.ops.snapshot import State
from ostinato.ops.tokens import entering


@dataclass(frozen=True)
class Look:
    """Mean and variance of patch tokens, each (D,)."""

    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, model: nn.Module, pixels: Tensor) -> Look:
        """Of a batch, over its images and patches, on their way into the first block."""
        tokens = patch_tokens(model, pixels)
        return cls(tokens.mean(0), tokens.var(0))

    def distance(self, other: Look) -> float:
        """The symmetric KL divergence of normal distributions, mean over features.

        >>> one = Look(torch.zeros(2), torch.ones(2))
        >>> one.distance(Look(torch.tensor([0.0, 2.0]), torch.ones(2)))
        2.0
        """
        apart = (self.mean - other.mean).square()
        mine, yours = self.variance.clamp_min(1e-8), other.variance.clamp_min(1e-8)
        return float(((mine + apart) / yours + (yours + apart) / mine).mean() / 2 - 1)


class _EnoughError(Exception):
    """Ends a forward as soon as the tokens are there."""


@torch.no_grad()
def _embedded_tokens(model: nn.Module, pixels: Tensor) -> Tensor:
    """The tokens (B, N, D) that go into the first block; no block runs."""
    found: list[Tensor] = []

    def stop(tokens: Tensor) -> Tensor:
        found.append(tokens)
        raise _EnoughError

    try:
        with entering(model, stop):
            model(pixels)
    except _EnoughError:
        pass
    return found[0]


def patch_tokens(model: nn.Module, pixels: Tensor) -> Tensor:
    """All patches of all images as (T, D), on their way into the first block."""
    tokens = _embedded_tokens(model, pixels)[:, prefix_tokens(model) :]
    return tokens.reshape(-1, tokens.shape[-1]).float()


class ShiftDetector:
    """A running look of the present domain; a batch that looks otherwise begins a new one.

    Args:
        threshold: distance from which a batch is new.
        least: images below which a batch is neither judged nor remembered.
        rate: share of a batch in the running look.
    """

    def __init__(self, threshold: float, least: int, rate: float = 0.2) -> None:
        self.threshold, self.least, self.rate = threshold, least, rate
        self.look: Look | None = None

    def distance(self, now: Look, images: int) -> float:
        """To the present domain; zero where that cannot be said."""
        if self.look is None or images < self.least:
            return 0.0
        return self.look.distance(now)

    def follow(self, now: Look, images: int) -> None:
        """Remember a batch of the present domain."""
        if images < self.least:
            return
        past = self.look or now
        mean = torch.lerp(past.mean, now.mean, self.rate)
        self.look = Look(mean, torch.lerp(past.variance, now.variance, self.rate))

    def forget(self) -> None:
        """The next batch begins a domain."""
        self.look = None

    def judge(
        self, model: nn.Module, pixels: Tensor, ended: Callable[[], None]
    ) -> tuple[float, bool]:
        """Take in a batch: its distance, and whether it begins a domain.

        Args:
            model: whose patch embeddings are looked at.
            pixels: the batch.
            ended: called before the present domain is forgotten.
        """
        now = Look.of(model, pixels)
        distance = self.distance(now, len(pixels))
        is_new = distance > self.threshold
        if is_new:
            ended()
            self.forget()
        self.follow(now, len(pixels))
        return distance, is_new

    def export_state(self) -> State:
        """The running look, where there is one."""
        if self.look is None:
            return State()
        return State({"mean": self.look.mean, "variance": self.look.variance})

    def expected(self, state: State) -> Expected:
        """Nothing, or a mean and a variance of the same width."""
        width = ("width",) if self.look is None else tuple(self.look.mean.shape)
        both = {"mean": Like(width), "variance": Like(width, low=0)}
        return Expected(both if state.tensors else {})

    def import_state(self, state: State) -> None:
        """Continue from there."""
        held = {name: tensor.detach().clone() for name, tensor in state.tensors.items()}
        self.look = Look(held["mean"], held["variance"]) if held else None
