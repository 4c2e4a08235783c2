"""Images to measure speed on: content that never repeats, under the usual corruptions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from ostinato.data.corruptions import COMMON, corrupt, scene
from ostinato.errors import DataError

_SCENES = 16
_WIDER = 8 / 7
"""How much larger photographs are kept than they are shown: each time another part is."""
_MOST = 1024
"""Photographs that are kept."""
PICTURES = (".jpg", ".jpeg", ".png", ".webp")


class Traffic:
    """Endless new images of known shifts, on one device.

    Content is two drawn scenes blended, moved, mirrored and lit differently each time: different
    enough to count as new images, and quick to make. With a folder of photographs it is another
    part of one of them, mirrored or not.

    Args:
        size: channels, height and width.
        device: where the images are made and stay.
        severity: of the corruptions.
        images: a folder of photographs, in any folders below it; drawn scenes unless given.

    >>> traffic = Traffic((3, 32, 32), "cpu")
    >>> traffic.clean(4).shape, traffic.shifted(0, 2).shape, traffic.mixed(3).shape
    (torch.Size([4, 3, 32, 32]), torch.Size([2, 3, 32, 32]), torch.Size([3, 3, 32, 32]))
    """

    def __init__(
        self,
        size: tuple[int, int, int],
        device: torch.device | str,
        severity: int = 5,
        images: Path | None = None,
    ) -> None:
        self.size, self.photographs = size[1:], images is not None
        self.device = torch.device(device)
        if images is None:
            drawn = torch.stack([scene(96, 96, seed) for seed in range(_SCENES)]).float() / 255
            self.scenes = F.interpolate(drawn, self.size, mode="bilinear").to(device)
        else:
            self.scenes = photographs(images, [round(_WIDER * side) for side in self.size])
            self.scenes = self.scenes.to(device)
        self.severity, self.made = severity, 0

    def clean(self, count: int) -> Tensor:
        """(count, 3, H, W) in [0, 1]: content alone."""
        draw = torch.Generator().manual_seed(self.made)
        self.made += 1
        return self._taken(count, draw) if self.photographs else self._drawn(count, draw)

    def _taken(self, count: int, draw: torch.Generator) -> Tensor:
        """Parts of photographs."""
        which = torch.randint(len(self.scenes), (count,), generator=draw)
        room = [have - want for have, want in zip(self.scenes.shape[2:], self.size, strict=True)]
        places = [torch.randint(most + 1, (count,), generator=draw).tolist() for most in room]
        mirrored = torch.rand(count, generator=draw) < 0.5
        parts = torch.stack(
            [
                self.scenes[image, :, top : top + self.size[0], left : left + self.size[1]]
                for image, top, left in zip(which.tolist(), *places, strict=True)
            ]
        )
        side = mirrored.to(parts.device)[:, None, None, None]
        return torch.where(side, parts.flip(3), parts).float() / 255

    def _drawn(self, count: int, draw: torch.Generator) -> Tensor:
        """Blended scenes."""
        device = self.scenes.device
        first, second = torch.randint(_SCENES, (2, count), generator=draw).to(device)
        share, light, contrast = torch.rand(3, count, 1, 1, 1, generator=draw).to(device)
        moved = rolled(self.scenes[second], torch.randint(1, 64, (2, count), generator=draw))
        images = share * self.scenes[first] + (1 - share) * moved.flip(3)
        own = torch.Generator(device).manual_seed(self.made)
        grain = 0.02 * torch.randn(images.shape, generator=own, device=device)
        lit: Tensor = (0.6 + 0.4 * contrast) * (images - 0.5) + 0.4 + 0.2 * light + grain
        return lit.clamp(0, 1)

    def shifted(self, domain: int, count: int) -> Tensor:
        """New images of one shift."""
        seeds = torch.arange(self.made * 1000, self.made * 1000 + count)
        name = COMMON[domain % len(COMMON)]
        return corrupt(self.clean(count), name, self.severity, seeds)

    def mixed(self, count: int, domains: int = len(COMMON)) -> Tensor:
        """New images, each of the next of so many shifts."""
        images = self.clean(count)
        seeds = torch.arange(self.made * 1000, self.made * 1000 + count)
        which = torch.arange(count) % domains
        for domain in range(min(domains, count)):
            rows = (which == domain).nonzero()[:, 0]
            name = COMMON[domain % len(COMMON)]
            images[rows] = corrupt(images[rows], name, self.severity, seeds[rows])
        return images


def photographs(folder: Path, size: Sequence[int]) -> Tensor:
    """(n, 3, H, W) uint8: the first photographs below a folder, each filling the size."""
    from PIL import Image, ImageOps
    from torchvision.transforms.functional import pil_to_tensor

    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)
    if not found:
        raise DataError(f"There are no photographs ({', '.join(PICTURES)}) below {folder}.")
    kept = []
    for path in found[:: max(1, len(found) // _MOST)][:_MOST]:
        with Image.open(path) as picture:
            fitted = ImageOps.fit(picture.convert("RGB"), (size[1], size[0]))
        kept.append(pil_to_tensor(fitted))
    return torch.stack(kept)


def rolled(images: Tensor, shift: Tensor) -> Tensor:
    """Each image rolled down and to the right by pixels of its own.

    Args:
        images: (n, C, H, W).
        shift: (2, n).

    >>> rolled(torch.arange(4.0).view(1, 1, 2, 2), torch.tensor([[1], [0]])).flatten().tolist()
    [2.0, 3.0, 0.0, 1.0]
    """
    count, _, height, width = images.shape
    rows, columns = (
        (torch.arange(size) - by[:, None]).remainder(size).to(images.device)
        for size, by in zip((height, width), shift, strict=True)
    )
    each = torch.arange(count, device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)
