"""Learned branches of one domain as one flat vector: one tensor to step, copy, save and load."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ostinato.errors import StateError
from ostinato.experts._mixture import seeded
from ostinato.experts.routed import Branch, leaves
from ostinato.ops.expect import Expected, Kind, Like
from ostinato.ops.snapshot import State

BETAS, EPSILON = (0.9, 0.999), 1e-8


def _adam(
    value: Tensor,
    grad: Tensor,
    first: Tensor,
    second: Tensor,
    step: int,
    *,
    lr: float,
    times: int = 1,
) -> None:
    """One Adam step in place (Kingma and Ba, 2015), `step` counted from 1.

    With `times` its moments are those after so many steps that had this gradient, the last of which
    is `step`; `lr` is what these steps' rates come to together.
    """
    kept, kept_squares = BETAS[0] ** times, BETAS[1] ** times
    first.lerp_(grad, 1 - kept)
    second.mul_(kept_squares).addcmul_(grad, grad, value=1 - kept_squares)
    size = (second / (1 - BETAS[1] ** step)).sqrt_().add_(EPSILON)
    value.addcdiv_(first, size, value=-lr / (1 - BETAS[0] ** step))


class FlatBranches:
    """The branches at every feed-forward network in one vector, with their optimizer's moments.

    `down` starts at random, `up` at zero: without effect.

    Args:
        widths: name and width D of each feed-forward network.
        rank: of each branch.
        seed: start, together with the label.
        label: which group this is ("shared", or a domain).
        device: where the vector lives.

    Attributes:
        latest: what `published` gives, where it is known.

    >>> flat = FlatBranches([("a", 8), ("b", 8)], rank=2, seed=0, label="shared")
    >>> flat.value.shape, [branch.down.shape for branch in flat.branches()]
    (torch.Size([64]), [torch.Size([8, 2]), torch.Size([8, 2])])
    """

    def __init__(
        self,
        widths: Sequence[tuple[str, int]],
        rank: int,
        seed: int,
        label: object,
        device: torch.device | str = "cpu",
    ) -> None:
        self.widths, self.rank = tuple(widths), rank
        parts = []
        for name, width in widths:
            down = torch.empty(width, rank).uniform_(
                -(width**-0.5), width**-0.5, generator=seeded(seed, label, name)
            )
            parts += [down.flatten(), torch.zeros(rank * width)]
        self.value = torch.cat(parts).to(device)
        self.first, self.second = torch.zeros_like(self.value), torch.zeros_like(self.value)
        self.updates = self.changes = 0  # the second never goes back
        self.latest: tuple[Branch, ...] | None = None

    def branches(self, value: Tensor | None = None) -> tuple[Branch, ...]:
        """Views of the vector (or of another one like it), a branch for each network."""
        flat = self.value if value is None else value
        found, at = [], 0
        for _, width in self.widths:
            size = width * self.rank
            down = flat[at : at + size].view(width, self.rank)
            up = flat[at + size : at + 2 * size].view(self.rank, width)
            found.append(Branch(down, up))
            at += 2 * size
        return tuple(found)

    def leaves(self, value: Tensor | None = None) -> tuple[Branch, ...]:
        """The branches as tensors to differentiate by; each has a gradient of its own size."""
        return leaves(self.branches(value))

    def published(self) -> tuple[Branch, ...]:
        """Branches that later steps do not change; the same ones until the next step."""
        if self.latest is None:
            self.latest = self.branches(self.value.clone())
        return self.latest

    def step(self, grad: Tensor, *, lr: float, times: int = 1) -> None:
        """One Adam step, which may stand for several with the same gradient."""
        self.updates += times
        self.changes += 1
        _adam(self.value, grad, self.first, self.second, self.updates, lr=lr, times=times)
        self.latest = self.branches(self.value.clone())

    def move(self, device: torch.device | str) -> None:
        """Go to another device; what was published stays where it was."""
        if self.value.device != torch.device(device):
            for name in ("value", "first", "second"):
                setattr(self, name, getattr(self, name).to(device))
            self.latest = None

    def export_state(self) -> State:
        """The vector, its moments and how many updates it had."""
        tensors = {"value": self.value, "first": self.first, "second": self.second}
        return State(tensors, {"updates": self.updates})

    def expected(self, state: State) -> Expected:
        """Vectors like the ones here; second moments are squares."""
        tensors = {"value": Like.of(self.value), "first": Like.of(self.value)}
        return Expected(tensors | {"second": Like.of(self.value, low=0)}, {"updates": Kind.count()})

    def import_state(self, state: State) -> None:
        """Become what `export_state` described."""
        given = {name: state.tensors.get(name) for name in ("value", "first", "second")}
        for name, tensor in given.items():
            if tensor is None or tensor.shape != self.value.shape:
                raise StateError(f"The learned branches' {name} does not fit this model.")
        if "updates" not in state.values:
            raise StateError("The learned branches' state does not say how many updates it had.")
        for name, tensor in given.items():
            assert tensor is not None
            setattr(self, name, tensor.detach().clone().to(self.value))
        self.updates = int(state.values["updates"])
        self.changes += 1
        self.latest = None
