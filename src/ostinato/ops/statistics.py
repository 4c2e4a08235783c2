"""Source statistics: taken once before deployment, a few kilobytes, no image kept.

For every block, mean and standard deviation over source images of the class token (or of the
pooled tokens where there is none). Alignment pulls a batch's statistics towards them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ostinato.errors import ConfigError, MissingResource
from ostinato.ops.features import FeatureTaps
from ostinato.ops.snapshot import State

FORMAT = "ostinato-statistics"


@dataclass(frozen=True)
class SourceStatistics:
    """Per block: feature mean and standard deviation on source images.

    >>> stats = SourceStatistics((torch.zeros(4),), (torch.ones(4),), images=300)
    >>> stats.describe()
    '1 blocks x 4 features from 300 images'
    """

    means: tuple[Tensor, ...]
    stds: tuple[Tensor, ...]
    images: int

    def describe(self) -> str:
        """One line for reports."""
        widths = sorted({int(mean.numel()) for mean in self.means})
        shown = "/".join(str(width) for width in widths)
        return f"{len(self.means)} blocks x {shown} features from {self.images} images"

    def to(self, device: torch.device | str) -> SourceStatistics:
        """The same numbers on another device."""
        move = lambda values: tuple(value.to(device) for value in values)  # noqa: E731
        return SourceStatistics(move(self.means), move(self.stds), self.images)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file."""
        tensors = {f"mean.{i}": t.cpu().contiguous() for i, t in enumerate(self.means)}
        tensors |= {f"std.{i}": t.cpu().contiguous() for i, t in enumerate(self.stds)}
        meta = {"format": FORMAT, "info": json.dumps({"images": self.images})}
        save_file(tensors, str(path), metadata=meta)

    @classmethod
    def load(cls, path: str | Path) -> SourceStatistics:
        """Read a file written by `save`."""
        if not Path(path).is_file():
            raise MissingResource(
                f"There is no statistics file {path}. Make one with "
                "ostinato.collect_statistics(model, images).save(path)."
            )
        try:
            with safe_open(str(path), framework="pt") as file:
                meta = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise MissingResource(f"{path} is truncated or damaged ({error}).") from None
        if meta.get("format") != FORMAT:
            raise MissingResource(f"{path} holds no source statistics that Ostinato saved.")
        count = len(tensors) // 2
        take = lambda key: tuple(tensors[f"{key}.{i}"] for i in range(count))  # noqa: E731
        return cls(take("mean"), take("std"), json.loads(meta["info"])["images"])


def collect(vision: nn.Module, batches: Iterable[Tensor]) -> SourceStatistics:
    """Statistics of a pixels-to-logits model over batches of source pixels."""
    images = total = 0
    sums: list[Tensor] = []
    squares: list[Tensor] = []
    with torch.no_grad():
        for pixels in batches:
            with FeatureTaps(vision) as taps:
                vision(pixels)
            kept = [feature.double() for feature in taps.features]
            sums = sums or [torch.zeros_like(k[0]) for k in kept]
            squares = squares or [torch.zeros_like(k[0]) for k in kept]
            for index, feature in enumerate(kept):
                sums[index] += feature.sum(0)
                squares[index] += feature.square().sum(0)
            images += len(pixels)
            total += len(kept[0])  # a model that cuts its images up has more features than images
    if images < 2:
        raise ConfigError(f"Source statistics need at least 2 images (300 are good), not {images}.")
    means = [s / total for s in sums]
    spread = zip(squares, means, strict=True)
    stds = [((q / total - m.square()) * total / (total - 1)).clamp_min(0).sqrt() for q, m in spread]
    return SourceStatistics(
        tuple(m.float() for m in means), tuple(s.float() for s in stds), images=images
    )


Moments = list[tuple[Tensor, Tensor]]


def moments(features: Sequence[Tensor]) -> Moments:
    """Mean and unbiased standard deviation over images, for each block's (B, D) features."""
    return [(feature.mean(0), feature.std(0)) for feature in features]


class RunningMoments:
    """Moments of small batches, filled up with what recent batches of the same group had.

    The spread of one image is nothing, that of five is noise. Up to `fill` images of the past
    are blended in as constants, so that the moments describe enough images while the gradient
    still reaches the present ones alone. A batch of `fill` images or more stands on its own.

    >>> running = RunningMoments(fill=4)
    >>> _ = running.blend(0, [torch.tensor([[0.0], [2.0]])])
    >>> mean, std = running.blend(0, [torch.tensor([[1.0], [1.0]])])[0]
    >>> round(float(mean), 3), round(float(std), 3)
    (1.0, 0.816)
    """

    def __init__(self, fill: int = 32) -> None:
        self.fill = fill
        self._past: dict[int, tuple[int, list[Tensor], list[Tensor]]] = {}

    def blend(self, group: int, features: Sequence[Tensor]) -> Moments:
        """Moments of this batch with the group's past; remembers the result."""
        images = len(features[0])
        if images >= self.fill:
            return moments(features)
        count, firsts, seconds = self._past.get(group, (0, [], []))
        past = min(count, self.fill - images)
        share = images / (past + images)
        blended: Moments = []
        kept: tuple[list[Tensor], list[Tensor]] = ([], [])
        for index, feature in enumerate(features):
            first, second = feature.mean(0), feature.square().mean(0)
            if past:  # a loaded past may still be on another device
                first = share * first + (1 - share) * firsts[index].to(first.device)
                second = share * second + (1 - share) * seconds[index].to(first.device)
            total = past + images
            unbiased = total / max(total - 1, 1)
            # The small floor keeps the root's gradient finite where there is no spread at all.
            std = ((second - first.square()) * unbiased).clamp_min(1e-6).sqrt()
            blended.append((first, std))
            kept[0].append(first.detach())
            kept[1].append(second.detach())
        self._past[group] = (past + images, *kept)
        return blended

    def forget(self, group: int) -> None:
        """Drop a group that no longer exists."""
        self._past.pop(group, None)

    def export_state(self) -> State:
        """Counts and moments per group."""
        tensors = {
            f"{group}.{order}.{index}": tensor
            for group, (_, *both) in self._past.items()
            for order, tensors in enumerate(both)
            for index, tensor in enumerate(tensors)
        }
        return State(tensors, {"counts": {str(g): past[0] for g, past in self._past.items()}})

    def import_state(self, state: State) -> None:
        """Continue from there."""
        self._past = {}
        for text, count in state.values.get("counts", {}).items():
            blocks = sum(name.startswith(f"{text}.0.") for name in state.tensors)
            first, second = (
                [state.tensors[f"{text}.{order}.{i}"].clone() for i in range(blocks)]
                for order in (0, 1)
            )
            self._past[int(text)] = (count, first, second)


def alignment(
    batch: Sequence[tuple[Tensor, Tensor]], source: SourceStatistics, std_weight: float = 1.0
) -> Tensor:
    """Mean over blocks of ‖batch mean − source mean‖ + ‖batch std − source std‖.

    >>> source = SourceStatistics((torch.zeros(2),), (torch.ones(2),), images=10)
    >>> float(alignment([(torch.tensor([3.0, 4.0]), torch.ones(2))], source))
    5.0
    """
    terms = [
        torch.linalg.vector_norm(mean - m) + std_weight * torch.linalg.vector_norm(std - s)
        for (mean, std), m, s in zip(batch, source.means, source.stds, strict=True)
    ]
    return torch.stack(terms).mean()


def excess(
    batch: Sequence[tuple[Tensor, Tensor]], source: SourceStatistics, tolerance: float
) -> Tensor:
    """Mean over blocks of how far means are off, beyond what a part of the source may be off.

    A source image lies s from the source's mean, be it because scenes differ or because images of
    one scene do. Images that spread by σ among themselves leave √(s² − σ²) to the scene. Per
    block this is the root mean square over features of max(|mean − m| − t √(s² − σ²), 0) / s.

    >>> source = SourceStatistics((torch.zeros(2),), (torch.ones(2),), images=10)
    >>> mean, alike, spread = torch.tensor([-6.0, 1.0]), torch.zeros(2), torch.ones(2)
    >>> [round(float(excess([(mean, std)], source, 2.0)), 2) for std in (alike, spread)]
    [2.83, 4.3]
    """
    terms = []
    for (mean, std), m, s in zip(batch, source.means, source.stds, strict=True):
        # A spread is measured, not pursued: images made alike would be allowed more.
        allowed = tolerance * (s.square() - std.detach().square()).clamp_min(0).sqrt()
        off = ((mean - m).abs() - allowed).clamp_min(0) / s.clamp_min(1e-6)
        # The small floor keeps the root's gradient finite where nothing is off.
        terms.append(off.square().mean().clamp_min(1e-12).sqrt())
    return torch.stack(terms).mean()


def check_fits(statistics: SourceStatistics, blocks: int) -> None:
    """Refuse statistics of another model before anything starts."""
    if len(statistics.means) != blocks:
        raise ConfigError(
            f"These source statistics ({statistics.describe()}) are of another model: this one has "
            f"{blocks} blocks. Collect them anew with ostinato.collect_statistics."
        )
