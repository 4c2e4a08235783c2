"""Linear maps by their singular values: what moves them, and how evenly they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.errors import StateError
from ostinato.methods._shifts import Look, patch_tokens
from ostinato.ops.blocks import find_blocks
from ostinato.ops.expect import Expected, Kind, Like
from ostinato.ops.snapshot import State


def block_linears(model: nn.Module, blocks: range) -> dict[str, nn.Linear]:
    """The linear maps of these blocks, by name."""
    found: dict[str, nn.Linear] = {}
    for number, (outer, block) in enumerate(find_blocks(model).items()):
        if number in blocks:
            for name, module in block.named_modules():
                if isinstance(module, nn.Linear):
                    found[f"{outer}.{name}"] = module
    return found


class Spectrum:
    """A weight as U · diag(s) · V, of which only s moves.

    >>> layer = nn.Linear(3, 2, bias=False)
    >>> spectrum = Spectrum(layer.weight)
    >>> bool((spectrum.weight(spectrum.values) == layer.weight).all())
    True
    """

    def __init__(self, weight: Tensor) -> None:
        self.source = weight.detach()
        left, self.values, self.right = torch.linalg.svd(self.source.float(), full_matrices=False)
        self.left = left.contiguous()

    def weight(self, values: Tensor) -> Tensor:
        """The weight under other singular values; under its own, the source's to the bit."""
        with torch.autocast(values.device.type, enabled=False):
            moved: Tensor = self.source + (self.left * (values - self.values)) @ self.right
            return moved


def spread_of_use(inputs: Tensor, right: Tensor) -> Tensor:
    """Mean standard deviation of tokens' directions along singular vectors, but for the largest.

    Args:
        inputs: (B, N, D) tokens that go into the linear map.
        right: (R, D), its right singular vectors.
    """
    with torch.autocast(inputs.device.type, enabled=False):
        along = F.normalize(inputs.float(), dim=-1) @ right.T
        spread = along.flatten(0, -2).std(0)
        keep = spread < spread.max()
        return torch.where(keep, spread, 0).sum() / keep.sum().clamp_min(1)


@contextmanager
def inputs_of(linears: Sequence[nn.Linear]) -> Iterator[list[Tensor]]:
    """Collects what goes into linear maps, in the order of the forward."""
    found: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        found.append(inputs[0])

    handles = [linear.register_forward_pre_hook(keep) for linear in linears]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


class CodeBank:
    """Singular values by the look of the domain that they were learned for; the source's first.

    Room is made at the start, so memory never grows; the oldest but the source's is let go.
    """

    def __init__(self, capacity: int, code: Tensor, look: Look) -> None:
        self.codes = code.new_zeros(capacity + 1, len(code))
        self.looks = code.new_zeros(capacity + 1, 2, len(look.mean))
        self.count = 0
        self.add(code, look)

    def __len__(self) -> int:
        return self.count

    def add(self, code: Tensor, look: Look) -> None:
        """One more domain."""
        if self.count == len(self.codes):
            for held in (self.codes, self.looks):
                held[1:-1] = held[2:].clone()
            self.count -= 1
        self.codes[self.count] = code
        self.looks[self.count] = torch.stack([look.mean, look.variance])
        self.count += 1

    def distances(self, look: Look) -> Tensor:
        """To every domain."""
        held = self.looks[: self.count]
        return torch.tensor([look.distance(Look(mean, variance)) for mean, variance in held])

    def recall(self, distances: Tensor, temperature: float | None) -> Tensor:
        """The nearest domain's code, or a mix by softmax(−distance / temperature)."""
        if temperature is None:
            return self.codes[int(distances.argmin())].clone()
        shares = (-distances / temperature).softmax(0).to(self.codes.device)
        return shares @ self.codes[: self.count]

    def export_state(self) -> State:
        """All codes and looks."""
        return State({"codes": self.codes, "looks": self.looks}, {"count": self.count})

    def expected(self, state: State) -> Expected:
        """The room that was made at the start, and how much of it is taken."""
        tensors = {"codes": Like.of(self.codes), "looks": Like.of(self.looks)}
        return Expected(tensors, {"count": Kind.count(1, len(self.codes))})

    def import_state(self, state: State) -> None:
        """Continue from there."""
        self.codes = state.tensors["codes"].detach().clone()
        self.looks = state.tensors["looks"].detach().clone()
        self.count = state.values["count"]


@torch.no_grad()
def collect_look(model: nn.Module, images: Tensor, batch: int = 50) -> State:
    """The look of source images: moments of their patch embeddings."""
    count = 0
    total: Tensor | float = 0.0
    squares: Tensor | float = 0.0
    for part in images.split(batch):
        tokens = patch_tokens(model, part).double()
        count += len(tokens)
        total, squares = total + tokens.sum(0), squares + tokens.square().sum(0)
    mean = torch.as_tensor(total) / count
    variance = (torch.as_tensor(squares) - count * mean.square()) / (count - 1)
    return State({"mean": mean.float(), "variance": variance.float()})


def read_look(prepared: Mapping[str, Tensor], device: torch.device) -> Look:
    """The source's look from a prepared file's tensors."""
    if set(prepared) != {"mean", "variance"}:
        raise StateError(
            "The prepared file does not hold the moments of patch embeddings: it is of another "
            "method. Prepare again with this one."
        )
    return Look(prepared["mean"].to(device), prepared["variance"].to(device))
