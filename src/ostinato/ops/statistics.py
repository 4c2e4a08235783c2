"""Source statistics: taken once before deployment from clean images, none of which is kept.

For every block: mean and standard deviation over images of the class token (or of the pooled tokens
where there is none), and mean and covariance of the tokens themselves. Beside them, what the
descriptors that images are routed by are like when nothing has shifted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor, nn

from ostinato.errors import ConfigError, MissingResource
from ostinato.ops._altered import altered
from ostinato.ops._gather import Gatherer
from ostinato.ops._tensors import digest, read_tensors
from ostinato.ops.colours import three_colours
from ostinato.ops.files import write_atomically
from ostinato.ops.moments import BlockMoments
from ostinato.ops.whitening import PLACING, WIDE, Content

_FORMAT, _UNSIGNED = "ostinato-statistics-2", "ostinato-statistics"
"""Of files with a checksum, and of those without one that earlier versions wrote."""
_RANK = 256
"""Covariances of wider blocks are stored by so many directions and one variance for the rest."""
_VARIED = 500
"""Clean images that alterations are made of, at most."""
_ENOUGH = 100
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
        if self.images < _ENOUGH:
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
            tensors |= {f"content.{name}": getattr(content, name) for name in PLACING}
            tensors |= {f"content.{name}": getattr(content, name).half() for name in WIDE}
            info["content_images"] = content.images
        kept = {
            name: (t if t.dtype == torch.half else t.float()).cpu().contiguous()
            for name, t in tensors.items()
        }
        text = json.dumps(info)
        meta = {"format": _FORMAT, "info": text, "digest": digest(kept, text)}
        write_atomically(path, save(kept, metadata=meta))

    @classmethod
    def load(cls, path: str | Path) -> SourceStatistics:
        """Read a file written by `save`, of this version or an earlier one."""
        if not Path(path).is_file():
            raise MissingResource(
                f"There is no statistics file {path}. Make one with "
                "ostinato.collect_statistics(model, images).save(path)."
            )
        try:
            tensors, meta = read_tensors(path)
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise MissingResource(f"{path} is truncated or damaged ({error}).") from None
        if meta.get("format") not in (_FORMAT, _UNSIGNED):
            raise MissingResource(f"{path} holds no source statistics that Ostinato saved.")
        if meta["format"] == _FORMAT and meta.get("digest") != digest(
            tensors, f"{meta.get('info')}"
        ):
            raise MissingResource(f"{path} is damaged: its contents do not match their checksum.")
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise MissingResource(f"{path} holds values that are not finite: collect them anew.")
        try:
            return _unpacked(tensors, json.loads(meta["info"]))
        except (KeyError, ValueError, TypeError) as error:
            raise MissingResource(f"{path} lacks a part ({error}): collect them anew.") from None


def _packed(covariance: Tensor, index: int) -> dict[str, Tensor]:
    if len(covariance) <= _RANK:
        return {f"token_covariance.{index}": covariance}
    values, vectors = torch.linalg.eigh(covariance.double())
    rest = values[:-_RANK].clamp_min(0).mean()
    root = (values[-_RANK:] - rest).clamp_min(0).sqrt()
    factor = vectors[:, -_RANK:] * root
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
    if all(f"content.{name}" in tensors for name in PLACING):
        parts = [tensors[f"content.{name}"].float() for name in PLACING]
        content = Content(int(str(info["content_images"])), *parts)
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
    descriptors: list[Tensor] = []
    others: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for pixels in batches:
            if gatherer.images < _VARIED:
                for name, images in altered(three_colours(pixels), gatherer.images).items():
                    others.setdefault(name, []).append(describe(images).cpu())
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
        content=Content.of(torch.cat(descriptors), [torch.cat(group) for group in others.values()]),
        fingerprint=fingerprint,
        entropy=gatherer.entropy(),
    )


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
