"""Whitening and colouring: giving tokens the mean and covariance that source tokens have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ostinato.errors import ConfigError, StateError
from ostinato.ops.blocks import find_blocks
from ostinato.ops.features import open_tokens
from ostinato.ops.layouts import Layout
from ostinato.ops.snapshot import State

REGULAR = 1e-5  # on every variance, so that a covariance can be inverted


@dataclass
class TokenMoments:
    """Mean (D,) and covariance (D, D) of tokens."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, tokens: Tensor) -> TokenMoments:
        """Of (T, D) tokens, unbiased, with a little added to every variance."""
        mean = tokens.mean(0)
        apart = tokens - mean
        covariance = apart.T @ apart / max(len(tokens) - 1, 1)
        covariance.diagonal().add_(REGULAR)
        return cls(mean, covariance)

    @classmethod
    def blend(cls, new: TokenMoments, old: TokenMoments, share: float) -> TokenMoments:
        """`share` of the new ones, the rest of the old ones."""
        mean = torch.lerp(old.mean, new.mean, share)
        return cls(mean, torch.lerp(old.covariance, new.covariance, share))


def power(matrix: Tensor, exponent: float, floor: float) -> Tensor:
    """A power of a symmetric matrix, with no eigenvalue below a floor.

    >>> half = power(torch.diag(torch.tensor([4.0, 9.0])), 0.5, 0.0)
    >>> half.diagonal().tolist()
    [2.0, 3.0]
    """
    values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.T))
    found: Tensor = (vectors * values.clamp_min(floor).pow(exponent)) @ vectors.T
    return found


def recolour(tokens: Tensor, target: TokenMoments, mean: Tensor, root: Tensor) -> Tensor:
    """Tokens (T, D) whitened by the target's moments and given the source's mean and root."""
    white = (tokens - target.mean) @ power(target.covariance, -0.5, REGULAR)
    return white @ root + mean


def relative(scores: Tensor) -> Tensor:
    """Brought to [0, 1] by the smallest and the largest; zeros where they are equal.

    >>> relative(torch.tensor([1.0, 3.0, 2.0])).tolist()
    [0.0, 1.0, 0.5]
    """
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if bool(high > low) else torch.zeros_like(scores)


Visit = Callable[[int, Tensor], Tensor]


@contextmanager
def visiting(blocks: Sequence[nn.Module], visit: Visit) -> Iterator[None]:
    """Show every block's output tokens to `visit(number, tokens)`, and pass on what it returns."""

    def hook(number: int) -> Callable[..., Any]:
        layout = Layout.of(blocks[number])

        def change(module: nn.Module, inputs: Any, output: Any) -> Any:
            opened = open_tokens(output, layout)
            return None if opened is None else opened[1](visit(number, opened[0]))

        return change

    handles = [block.register_forward_hook(hook(n)) for n, block in enumerate(blocks)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def collect_colours(model: nn.Module, batches: Iterable[Tensor]) -> State:
    """Mean and covariance of all tokens after every block, over batches of source pixels."""
    blocks = list(find_blocks(model).values())
    counts = [0] * len(blocks)
    sums: dict[int, Tensor] = {}
    squares: dict[int, Tensor] = {}

    def visit(number: int, tokens: Tensor) -> Tensor:
        flat = tokens.reshape(-1, tokens.shape[-1]).double()
        counts[number] += len(flat)
        sums[number] = sums.get(number, 0) + flat.sum(0)
        squares[number] = squares.get(number, 0) + flat.T @ flat
        return tokens

    with visiting(blocks, visit):
        for pixels in batches:
            model(pixels)
    if min(counts) < 2:
        raise ConfigError("Source moments need at least 2 tokens: give more source images.")
    tensors: dict[str, Tensor] = {}
    for number, count in enumerate(counts):
        mean = sums[number] / count
        covariance = (squares[number] - count * torch.outer(mean, mean)) / (count - 1)
        tensors[f"mean.{number}"] = mean.float()
        tensors[f"covariance.{number}"] = covariance.float()
    return State(tensors)


def read_colours(state: State, blocks: int, device: torch.device) -> list[TokenMoments]:
    """A prepared file's moments, one for each block."""
    names = {f"{kind}.{n}" for kind in ("mean", "covariance") for n in range(blocks)}
    if set(state.tensors) != names:
        raise StateError(
            f"The prepared file does not hold token moments of {blocks} blocks: it is of another "
            "method or model. Prepare again with this one."
        )
    held = {name: tensor.to(device) for name, tensor in state.tensors.items()}
    return [TokenMoments(held[f"mean.{n}"], held[f"covariance.{n}"]) for n in range(blocks)]
