"""Weaker views of a batch: dropped low frequencies, and noise whose place is learned.

Both work on pixels brought to [−1, 1], where grey is zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ostinato.ops.expect import Expected, Like
from ostinato.ops.snapshot import State


def drop_low_frequencies(
    pixels: Tensor, share: float, generator: torch.Generator, side: float = 0.2
) -> Tensor:
    """Amplitudes of a central square of frequencies set to zero with a probability; phases stay.

    Args:
        pixels: (B, C, H, W) in [0, 1].
        share: probability, drawn for every frequency of every channel.
        generator: on the CPU.
        side: of the square, as a share of the spectrum's.

    >>> flat = torch.full((1, 3, 8, 8), 0.75)
    >>> bool(torch.allclose(drop_low_frequencies(flat, 0.0, torch.Generator()), flat))
    True
    """
    keep = _symmetric_mask(pixels.shape, share, generator, side).to(pixels.device)
    spectrum = torch.fft.fftshift(torch.fft.fft2(2 * pixels.float() - 1), dim=(-2, -1))
    back: Tensor = torch.fft.ifft2(torch.fft.ifftshift(spectrum * keep, dim=(-2, -1))).real
    return (back + 1) / 2


def _symmetric_mask(
    shape: torch.Size, share: float, generator: torch.Generator, side: float
) -> Tensor:
    """Zeros for dropped frequencies, the same at opposite ones, so that images stay real."""
    height, width = shape[-2:]
    low = torch.zeros(height, width, dtype=torch.bool)
    rows, columns = max(1, int(side * height)), max(1, int(side * width))
    top, left = (height - rows) // 2, (width - columns) // 2
    low[top : top + rows, left : left + columns] = True
    row, column = torch.arange(height)[:, None], torch.arange(width)[None]
    half = (row < height // 2) | ((row == height // 2) & (column >= width // 2))
    dropped = (torch.rand(shape, generator=generator) < share) & low & half
    opposite = dropped.flip(-2, -1).roll((1 - height % 2, 1 - width % 2), (-2, -1))
    return (~(dropped | opposite)).float()


class PatchNoise:
    """How much of each patch is noise: α², learned upwards, with a fixed mean.

    Args:
        size: pixels of a patch, down and across.
        mean: of α² over all patches.
        lr: of the ascent, with momentum 0.9.
    """

    def __init__(self, size: tuple[int, int], mean: float, lr: float) -> None:
        self.size, self.mean, self.lr = size, mean, lr
        self.alpha: Tensor | None = None
        self.velocity: Tensor | None = None

    def view(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Pixels with noise in [0, 1], one field for the whole batch; carries α's gradient."""
        height, width = pixels.shape[-2:]
        grid = (math.ceil(height / self.size[0]), math.ceil(width / self.size[1]))
        if self.alpha is None or self.alpha.shape != grid:  # images of another size start afresh
            self.alpha = torch.full(grid, math.sqrt(self.mean), device=pixels.device)
            self.velocity = torch.zeros_like(self.alpha)
        self.alpha = self.alpha.detach().requires_grad_()
        field = torch.randn(pixels.shape[1:], generator=generator).to(pixels.device)
        amount = self.alpha.square().repeat_interleave(self.size[0], 0)
        amount = amount.repeat_interleave(self.size[1], 1)[:height, :width]
        mixed = (1 - amount) * (2 * pixels - 1) + amount * field
        return (mixed.clamp(-1, 1) + 1) / 2

    @torch.no_grad()
    def ascend(self) -> None:
        """One step up the gradient of the last view, then back to the mean."""
        assert self.alpha is not None
        assert self.velocity is not None
        if self.alpha.grad is None or not bool(self.alpha.grad.isfinite().all()):
            return
        self.velocity = 0.9 * self.velocity - self.alpha.grad
        moved = self.alpha.detach() - self.lr * self.velocity
        moved = moved * torch.sqrt(self.mean / moved.square().mean().clamp_min(1e-12))
        self.alpha = moved.clamp(-1, 1)

    def export_state(self) -> State:
        """The amounts and their momentum, once there are any."""
        if self.alpha is None or self.velocity is None:
            return State()
        return State({"alpha": self.alpha.detach(), "velocity": self.velocity})

    def expected(self, state: State) -> Expected:
        """Nothing, or an amount and its momentum for every patch of an image."""
        grid = ("rows", "columns")
        both = {"alpha": Like(grid, low=-1, high=1), "velocity": Like(grid)}
        return Expected(both if state.tensors else {})

    def import_state(self, state: State) -> None:
        """Continue from there."""
        held = {name: tensor.detach().clone() for name, tensor in state.tensors.items()}
        self.alpha, self.velocity = held.get("alpha"), held.get("velocity")


def surer_divergence(weak: Tensor, clean: Tensor) -> tuple[Tensor, Tensor]:
    """Mean KL from the clean to the weak prediction, over images where the clean one is surer.

    The clean prediction carries no gradient. Also returns how many images these are.
    """
    soft = clean.detach().float().softmax(1)
    logp = weak.float().log_softmax(1)
    surer = soft.amax(1) > logp.detach().exp().amax(1)
    each = F.kl_div(logp, soft, reduction="none").sum(1)
    return torch.where(surer, each, 0).sum() / surer.sum().clamp_min(1), surer.sum()
