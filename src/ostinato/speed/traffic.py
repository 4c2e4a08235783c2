"""Images to measure speed on: drawn content that never repeats, under the usual corruptions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ostinato.data.corruptions import COMMON, corrupt, scene

_SCENES = 16


class Traffic:
    """Endless new images of known shifts, on one device.

    Content is two drawn scenes blended, moved, mirrored and lit differently each time: different
    enough to count as new images, and quick to make.

    Args:
        size: channels, height and width.
        device: where the images are made and stay.
        severity: of the corruptions.

    >>> traffic = Traffic((3, 32, 32), "cpu")
    >>> traffic.clean(4).shape, traffic.shifted(0, 2).shape, traffic.mixed(3).shape
    (torch.Size([4, 3, 32, 32]), torch.Size([2, 3, 32, 32]), torch.Size([3, 3, 32, 32]))
    """

    def __init__(
        self, size: tuple[int, int, int], device: torch.device | str, severity: int = 5
    ) -> None:
        height, width = size[1:]
        drawn = torch.stack([scene(96, 96, seed) for seed in range(_SCENES)]).float() / 255
        drawn = F.interpolate(drawn, (height, width), mode="bilinear")
        self.scenes = drawn.to(device)
        self.severity, self.made = severity, 0

    def clean(self, count: int) -> Tensor:
        """(count, 3, H, W) in [0, 1]: content alone."""
        draw = torch.Generator().manual_seed(self.made)
        self.made += 1
        device = self.scenes.device
        first, second = torch.randint(_SCENES, (2, count), generator=draw).to(device)
        share, light, contrast = torch.rand(3, count, 1, 1, 1, generator=draw).to(device)
        shift = torch.randint(1, 64, (2,), generator=draw).tolist()
        moved = self.scenes.roll(shift, (2, 3))[second]
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
