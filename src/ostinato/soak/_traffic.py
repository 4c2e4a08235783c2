"""The batches of a soak: each follows from the plan and its position alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ostinato.data.corruptions import corrupt
from ostinato.data.embedded import embedded_images, normalized
from ostinato.ops.files import write_atomically
from ostinato.soak._styles import nothing, refusable, restyle
from ostinato.soak.plan import POOL, SOURCE, Plan

_RETURNS = 10
"""Batches that a returning domain stays."""
_EMPTY = 5
"""Every so many hostile batches one is without content, and one is preceded by refused input."""


_ASKED = 100
"""Images of the pool that the source model is asked about at once."""


@dataclass(frozen=True)
class Shown:
    """One batch.

    Attributes:
        images: in uint8.
        labels: where there are any.
        refused: what has to be refused first.
        source: the classes that the source model tells, where they are known.

    >>> Shown(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1])).refused is None
    True
    """

    images: Tensor
    labels: Tensor | None
    refused: Tensor | None = None
    source: Tensor | None = None


class Traffic:
    """Batches by position, drawn from images that were corrupted once.

    Args:
        plan: of the soak.
        pool: (domains, images, 3, H, W); the first domain is clean.
        source: (domains, images) the classes that the source model tells, where they are known.
    """

    def __init__(
        self, plan: Plan, pool: NDArray[np.uint8], source: NDArray[np.int64] | None = None
    ) -> None:
        self.plan = plan
        self.source = None if source is None else torch.from_numpy(source)
        self.pool = torch.from_numpy(pool)
        self.labels = embedded_images("test")[1][: plan.images]
        self.order = np.random.default_rng([plan.seed, 1]).permutation(len(pool))

    def __getitem__(self, position: int) -> Shown:
        draw = np.random.default_rng([self.plan.seed, 2, position])
        kind = self.plan.kind(position)
        if kind == "hostile":
            return self._hostile(position, draw)
        size = self.plan.batch_size
        if kind == "mixed":
            domains = draw.integers(len(self.pool), size=size)
            return self._of(domains, draw.integers(self.plan.images, size=size))
        if kind == "returning":
            domains = np.full(size, self._returning(position))
            return self._of(domains, draw.integers(self.plan.images, size=size))
        return self._few(position, draw)

    def _of(self, domains: NDArray[np.int64], chosen: NDArray[np.int64]) -> Shown:
        of, where = torch.from_numpy(domains), torch.from_numpy(chosen)
        says = None if self.source is None else self.source[of, where]
        return Shown(self.pool[of, where], self.labels[where], source=says)

    def _returning(self, position: int) -> int:
        """The domains in one order, again and again over the laps."""
        lap, within = divmod(position, self.plan.lap)
        turns = -(-self.plan.stretch // _RETURNS)
        return int(self.order[(lap * turns + within // _RETURNS) % len(self.order)])

    def _few(self, position: int, draw: np.random.Generator) -> Shown:
        """One domain and two classes for as long as a block lasts."""
        fixed = np.random.default_rng([self.plan.seed, 3, position // self.plan.block])
        domain = int(fixed.integers(len(self.pool)))
        classes = fixed.choice(10, 2, replace=False)
        known = np.flatnonzero(np.isin(self.labels.numpy(), classes))
        chosen = draw.choice(known, self.plan.batch_size)
        return self._of(np.full(len(chosen), domain), chosen)

    def _hostile(self, position: int, draw: np.random.Generator) -> Shown:
        where = torch.from_numpy(draw.integers(self.plan.images, size=self.plan.batch_size))
        clean = self.pool[0, where].float() / 255
        if position % _EMPTY == 0:
            return Shown(_levels(nothing(tuple(clean.shape), draw)), None)
        refused = refusable(clean, draw) if position % _EMPTY == 1 else None
        return Shown(_levels(restyle(clean, draw)), self.labels[where], refused)


def open_traffic(plan: Plan, folder: Path, model: nn.Module) -> Traffic:
    """The traffic of a soak.

    Its images are corrupted at the first start and kept in the folder, with what the source model
    says of them: they come again and again.
    """
    place, said = folder / POOL, folder / SOURCE
    if not place.is_file():
        write_atomically(place, _bytes(make_pool(plan)))
    pool = np.load(place, allow_pickle=False)
    if not said.is_file():
        parts = torch.from_numpy(pool).flatten(0, 1).split(_ASKED)
        says = torch.cat([told(model, part) for part in parts])
        write_atomically(said, _bytes(says.view(pool.shape[:2]).numpy()))
    return Traffic(plan, pool, np.load(said, allow_pickle=False))


@torch.no_grad()
def told(model: nn.Module, images: Tensor) -> Tensor:
    """The classes that a model tells of images in uint8."""
    found: Tensor = model(normalized(images)).argmax(1)
    return found


def make_pool(plan: Plan) -> NDArray[np.uint8]:
    """Clean images, then every corruption at every severity."""
    images = embedded_images("test")[0][: plan.images]
    seeds = list(range(len(images)))
    made = [images] + [
        corrupt(images, name, severity, seeds, constants="cifar")
        for severity in plan.severities
        for name in plan.corruptions
    ]
    return torch.stack(made).numpy()


def _bytes(array: NDArray[Any]) -> bytes:
    import io

    text = io.BytesIO()
    np.save(text, array)
    return text.getvalue()


def _levels(pixels: Tensor) -> Tensor:
    return (pixels * 255).round().to(torch.uint8)
