"""A bank of domain vectors: differences from the source that a softmax mixes into the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ostinato.ops.expect import Expected, Kind, Like
from ostinato.ops.snapshot import State


class DomainVectors:
    """Up to `capacity` vectors beside the source's own, which is zero, and how they are mixed.

    The mix is Σ softmax(scale · α)ᵢ · vᵢ. Room is made at the start, so memory never grows.
    """

    def __init__(self, size: int, capacity: int, scale: float, first: float) -> None:
        self.capacity = capacity
        self.vectors = torch.zeros(capacity + 1, size)
        self.alphas = torch.zeros(capacity + 1)
        self.alphas[0] = first
        self.scale = torch.tensor(scale)
        self.count = 1

    def __len__(self) -> int:
        return self.count

    def to(self, device: torch.device) -> DomainVectors:
        """The same bank on another device."""
        self.vectors, self.alphas = self.vectors.to(device), self.alphas.to(device)
        self.scale = self.scale.to(device)
        return self

    def shares(self) -> Tensor:
        """softmax(scale · α), (count,)."""
        return (self.scale * self.alphas[: self.count]).softmax(0)

    def mix(self) -> Tensor:
        """The mixed vector."""
        return self.shares() @ self.vectors[: self.count]

    def slopes(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """From a loss's gradient by the weights to those by α and by the scale.

        >>> bank = DomainVectors(2, 3, scale=1.0, first=0.0)
        >>> bank.add(torch.tensor([1.0, 0.0]), size=0.0, margin=0.01)
        >>> bank.slopes(torch.tensor([4.0, 1.0]))[0].tolist()  # half of each, pulled apart
        [-1.0, 1.0]
        """
        shares = self.shares()
        pulls = self.vectors[: self.count] @ gradient
        inner = shares * (pulls - shares @ pulls)
        return self.scale * inner, self.alphas[: self.count] @ inner

    def step(self, gradient: Tensor, lr: float, decay: float, scale_decay: float | None) -> None:
        """One step of AdamW that remembers nothing; the scale moves too where it has a decay."""
        by_alpha, by_scale = self.slopes(gradient)
        self.move(by_alpha, lr, decay)
        if scale_decay is not None and self.count > 1:
            self.scale = _first_step(self.scale, by_scale, lr, scale_decay)

    def move(self, by_alpha: Tensor, lr: float, decay: float) -> None:
        """The same for α alone, whose gradient is given; the source alone has nothing to mix."""
        if self.count > 1:
            now = self.alphas[: self.count]
            self.alphas[: self.count] = _first_step(now, by_alpha, lr, decay)

    def add(self, vector: Tensor, size: float, margin: float) -> None:
        """One more vector, with the largest share so far.

        Args:
            vector: a difference from the source.
            size: the largest mean length of what was learned beside the mix.
            margin: where `size` is above this, the new share grows with it.
        """
        now = self.scale * self.alphas[: self.count]
        alpha = now.max()
        if size > margin:
            alpha = torch.maximum(alpha, now.logsumexp(0) + math.log(size / margin - 1))
        self.vectors[self.count] = vector
        self.alphas[self.count] = (alpha / self.scale).clamp(-10, 10)
        self.count += 1

    def remove(self, index: int) -> None:
        """Let one go; the source's own, at 0, stays."""
        for held in (self.vectors, self.alphas):
            held[index : self.count - 1] = held[index + 1 : self.count].clone()
            held[self.count - 1] = 0
        self.count -= 1

    def weakest(self) -> int:
        """The vector with the smallest share."""
        return 1 + int((self.scale * self.alphas[1 : self.count]).argmin())

    def twin(self, sizes: list[int]) -> int:
        """The older of the two most alike: mean cosine over parts of these sizes."""
        parts = self.vectors[1 : self.count].split(sizes, 1)
        unit = [nn.functional.normalize(part, dim=1) for part in parts]
        alike = torch.stack([part @ part.T for part in unit]).mean(0).triu(1)
        alike = alike.masked_fill(torch.ones_like(alike).tril().bool(), -math.inf)
        return 1 + int(alike.argmax()) // len(alike)

    def export_state(self) -> State:
        """All vectors and their shares."""
        held = {"vectors": self.vectors, "alphas": self.alphas, "scale": self.scale}
        return State(held, {"count": self.count})

    def expected(self, state: State) -> Expected:
        """The room that was made at the start, and how much of it is taken."""
        held = {"vectors": self.vectors, "alphas": self.alphas, "scale": self.scale}
        tensors = {name: Like.of(tensor) for name, tensor in held.items()}
        return Expected(tensors, {"count": Kind.count(1, len(self.vectors))})

    def import_state(self, state: State) -> None:
        """Continue from there."""
        held = {name: tensor.detach().clone() for name, tensor in state.tensors.items()}
        self.vectors, self.alphas, self.scale = held["vectors"], held["alphas"], held["scale"]
        self.count = state.values["count"]


def flat(values: Mapping[str, Tensor]) -> Tensor:
    """Tensors as one vector, in order."""
    return torch.cat([value.detach().reshape(-1) for value in values.values()])


def parts(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One vector as tensors of these names and shapes."""
    pieces = vector.split([value.numel() for value in like.values()])
    pairs = zip(like.items(), pieces, strict=True)
    return {name: piece.view_as(value) for (name, value), piece in pairs}


@torch.no_grad()
def assign(parameters: Mapping[str, nn.Parameter], vector: Tensor) -> None:
    """Write one vector into parameters."""
    for name, value in parts(vector, parameters).items():
        parameters[name].copy_(value)


def _first_step(value: Tensor, gradient: Tensor, lr: float, decay: float) -> Tensor:
    """AdamW's first step: its averages are the gradient itself."""
    return value * (1 - lr * decay) - lr * gradient / (gradient.abs() + 1e-8)
