"""Source statistics: taken once before deployment from clean images, none of which is kept.

For every block: mean and standard deviation over images of the class token (or of the pooled tokens
where there is none), and mean and covariance of the tokens themselves. Beside them, what the
descriptors that images are routed by are like when nothing has shifted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ostinato.errors import ConfigError, MissingResource
from ostinato.ops.files import write_atomically
from ostinato.ops.gather import Gatherer
from ostinato.ops.moments import BlockMoments
from ostinato.ops.snapshot import State
from ostinato.ops.whitening import Content

FORMAT = "ostinato-statistics"
RANK = 256
"""Covariances of wider blocks are stored by so many directions and one variance for the rest."""
ENOUGH = 100
"""Clean images below which statistics are said to be thin."""


@dataclass(frozen=True)
class SourceStatistics:
    """What a model's features and images are like without a shift.

    Attributes:
        means: per block, of the class token or of the pooled tokens.
        stds: per block, likewise.
        images: how many clean images there were.
        tokens: per block, moments of the tokens themselves; empty in files of version 0.1.
        content: what descriptors of clean images are like; None in such files.
        fingerprint: of the model, "" where unknown.
        entropy: the model's mean entropy on these images as a share of ln C, where known.

    >>> stats = SourceStatistics((torch.zeros(4),), (torch.ones(4),), images=300)
    >>> stats.describe()
    '1 blocks x 4 features from 300 images'
    """

    means: tuple[Tensor, ...]
    stds: tuple[Tensor, ...]
    images: int
    tokens: tuple[BlockMoments, ...] = ()
    content: Content | None = None
    fingerprint: str = ""
    entropy: float | None = None

    def describe(self) -> str:
        """One line for reports."""
        widths = sorted({int(mean.numel()) for mean in self.means})
        shown = "/".join(str(width) for width in widths)
        return f"{len(self.means)} blocks x {shown} features from {self.images} images"

    def doubts(self) -> list[str]:
        """What speaks against these statistics, a sentence each; empty where nothing does."""
        found = []
        if self.images < ENOUGH:
            found.append(f"They rest on {self.images} images; 300 are good.")
        if self.entropy is not None and self.entropy > 0.5:
            found.append(
                "The model is unsure of these images: are they like those it was made for?"
            )
        return found

    def to(self, device: torch.device | str) -> SourceStatistics:
        """The same numbers on another device; what routing needs stays on the CPU."""
        return replace(
            self,
            means=tuple(value.to(device) for value in self.means),
            stds=tuple(value.to(device) for value in self.stds),
            tokens=tuple(block.to(device) for block in self.tokens),
        )

    def save(self, path: str | Path) -> None:
        """Write a safetensors file; wide covariances in low rank."""
        tensors = {f"mean.{i}": t for i, t in enumerate(self.means)}
        tensors |= {f"std.{i}": t for i, t in enumerate(self.stds)}
        for index, block in enumerate(self.tokens):
            tensors |= {f"token_mean.{index}": block.mean, f"token_prefix.{index}": block.prefix}
            tensors |= _packed(block.covariance, index)
        info: dict[str, object] = {"images": self.images, "fingerprint": self.fingerprint}
        info["entropy"] = self.entropy
        if self.content is not None:
            content = self.content
            tensors |= {"content.mean": content.mean, "content.scale": content.scale}
            tensors["content.covariance"] = content.covariance
            info |= {"spread": content.spread, "content_images": content.images}
        kept = {
            name: (t if t.dtype == torch.half else t.float()).cpu().contiguous()
            for name, t in tensors.items()
        }
        write_atomically(path, save(kept, metadata={"format": FORMAT, "info": json.dumps(info)}))

    @classmethod
    def load(cls, path: str | Path) -> SourceStatistics:
        """Read a file written by `save`, of this version or the one before."""
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
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise MissingResource(f"{path} holds values that are not finite: collect them anew.")
        try:
            return _unpacked(tensors, json.loads(meta["info"]))
        except (KeyError, ValueError, TypeError) as error:
            raise MissingResource(f"{path} lacks a part ({error}): collect them anew.") from None


def _packed(covariance: Tensor, index: int) -> dict[str, Tensor]:
    if len(covariance) <= RANK:
        return {f"token_covariance.{index}": covariance}
    values, vectors = torch.linalg.eigh(covariance.double())
    rest = values[:-RANK].clamp_min(0).mean()
    root = (values[-RANK:] - rest).clamp_min(0).sqrt()
    factor = vectors[:, -RANK:] * root
    return {
        f"token_factor.{index}": factor.half(),
        f"token_rest.{index}": rest.float().reshape(1),
    }


def _unpacked(tensors: dict[str, Tensor], info: dict[str, object]) -> SourceStatistics:
    count = sum(name.startswith("mean.") for name in tensors)
    blocks = []
    for index in range(count):
        if f"token_mean.{index}" not in tensors:
            break
        if f"token_covariance.{index}" in tensors:
            covariance = tensors[f"token_covariance.{index}"]
        else:
            factor = tensors[f"token_factor.{index}"].float()
            rest = torch.eye(len(factor)) * tensors[f"token_rest.{index}"]
            covariance = factor @ factor.T + rest
        blocks.append(
            BlockMoments(
                tensors[f"token_mean.{index}"], covariance, tensors[f"token_prefix.{index}"]
            )
        )
    content = None
    if "content.mean" in tensors:
        content = Content(
            tensors["content.mean"],
            tensors["content.scale"],
            tensors["content.covariance"],
            float(str(info["spread"])),
            int(str(info["content_images"])),
        )
    entropy = info.get("entropy")
    return SourceStatistics(
        tuple(tensors[f"mean.{i}"] for i in range(count)),
        tuple(tensors[f"std.{i}"] for i in range(count)),
        images=int(str(info["images"])),
        tokens=tuple(blocks),
        content=content,
        fingerprint=str(info.get("fingerprint", "")),
        entropy=None if entropy is None else float(str(entropy)),
    )


def collect(
    vision: nn.Module,
    batches: Iterable[Tensor],
    describe: Callable[[Tensor], Tensor],
    fingerprint: str = "",
) -> SourceStatistics:
    """Statistics of a pixels-to-logits model over batches of source pixels.

    Args:
        vision: maps pixels to logits.
        batches: of pixels in [0, 1].
        describe: gives each image's descriptor.
        fingerprint: of the model.
    """
    gatherer = Gatherer(vision)
    descriptors = []
    with torch.no_grad():
        for pixels in batches:
            gatherer.take(pixels)
            descriptors.append(describe(pixels).cpu())
    if gatherer.images < 2:
        raise ConfigError(
            f"Source statistics need at least 2 images (300 are good), not {gatherer.images}."
        )
    means, stds = gatherer.features()
    return SourceStatistics(
        means,
        stds,
        images=gatherer.images,
        tokens=gatherer.tokens(),
        content=Content.of(torch.cat(descriptors)),
        fingerprint=fingerprint,
        entropy=gatherer.entropy(),
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


def check_fits(statistics: SourceStatistics, blocks: int, fingerprint: str = "") -> None:
    """Refuse statistics of another model before anything starts."""
    if len(statistics.means) != blocks:
        raise ConfigError(
            f"These source statistics ({statistics.describe()}) are of another model: this one has "
            f"{blocks} blocks. Collect them anew with ostinato.collect_statistics."
        )
    known = statistics.fingerprint
    if known and fingerprint and known != fingerprint:
        raise ConfigError(
            f"These source statistics are of another model ({known}, this one is {fingerprint}). "
            "Collect them anew with ostinato.collect_statistics."
        )
