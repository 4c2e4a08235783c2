"""Spatter: drops of water or of mud on the lens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ostinato.data.corruptions._core import Draws, corruption
from ostinato.data.corruptions._filters import blur

_FAR = 20
_WATER = (175.0, 238.0, 238.0)
_MUD = (63.0, 42.0, 20.0)
_RELIEF = ((-2.0, -1.0, 0.0), (-1.0, 1.0, 1.0), (0.0, 1.0, 2.0))


def _correlate(x: Tensor, kernel: tuple[tuple[float, ...], ...]) -> Tensor:
    """3×3 correlation of (B, H, W), mirrored borders; exact for whole numbers."""
    height, width = x.shape[-2:]
    wide = F.pad(x[:, None], (1, 1, 1, 1), mode="reflect")[:, 0]
    out = torch.zeros_like(x)
    for i, row in enumerate(kernel):
        for j, weight in enumerate(row):
            if weight:
                out.add_(wide[:, i : i + height, j : j + width], alpha=weight)
    return out


def _mean3(x: Tensor) -> Tensor:
    return _correlate(x, ((1.0,) * 3,) * 3) / 9


def _shift(x: Tensor, down: int, right: int, fill: float) -> Tensor:
    """What lies `down` and `right` of every pixel, `fill` outside."""
    height, width = x.shape[-2:]
    wide = F.pad(x, (1, 1, 1, 1), value=fill)
    return wide[:, 1 + down : 1 + down + height, 1 + right : 1 + right + width]


def _edges(x: Tensor, low: float, high: float) -> Tensor:
    """Canny edges of (B, H, W): thinned gradients above `high`, or above `low` and touching one."""
    across = _correlate(x, ((-1, 0, 1), (-2, 0, 2), (-1, 0, 1)))
    down = _correlate(x, ((-1, -2, -1), (0, 0, 0), (1, 2, 1)))
    size = across.abs() + down.abs()
    flat, steep = (down.abs() < 0.41421 * across.abs()), (down.abs() > 2.41421 * across.abs())
    same = across * down >= 0
    peak = torch.where(
        flat,
        (size > _shift(size, 0, -1, 0)) & (size >= _shift(size, 0, 1, 0)),
        torch.where(
            steep,
            (size > _shift(size, -1, 0, 0)) & (size >= _shift(size, 1, 0, 0)),
            torch.where(
                same,
                (size > _shift(size, -1, -1, 0)) & (size > _shift(size, 1, 1, 0)),
                (size > _shift(size, -1, 1, 0)) & (size > _shift(size, 1, -1, 0)),
            ),
        ),
    )
    weak, strong = peak & (size > low), peak & (size > high)
    for _ in range(8):  # Long chains of weak edges do not occur on the steep rims of drops.
        near = F.max_pool2d(strong[:, None].float(), 3, 1, 1)[:, 0] > 0
        strong = strong | (weak & near)
    return strong


def _distance(marked: Tensor) -> Tensor:
    """Euclidean distance to the nearest marked pixel, at most 20, by two one-dimensional passes."""
    along = torch.where(marked, 0.0, float(_FAR))
    for _ in range(_FAR - 1):
        best = torch.minimum(_shift(along, 0, -1, _FAR), _shift(along, 0, 1, _FAR))
        along = torch.minimum(along, best + 1)
    squares = F.pad(along.square(), (0, 0, _FAR, _FAR), value=_FAR**2)
    height = marked.shape[-2]
    out = torch.full_like(along, float(_FAR**2))
    for down in range(-_FAR, _FAR + 1):
        part = squares[:, _FAR + down : _FAR + down + height] + down**2
        out = torch.minimum(out, part)
    return out.sqrt()


def _equalise(x: Tensor) -> Tensor:
    """Histogram equalisation of whole numbers 0..20 to 0..255, the lowest one to 0."""
    counts = torch.stack([(x == k).sum((1, 2)) for k in range(_FAR + 1)], 1).float()
    total = counts.cumsum(1)
    first = counts.gather(1, (counts > 0).int().argmax(1, keepdim=True))
    rest = (total[:, -1:] - first).clamp(min=1)
    table = ((total - first).clamp(min=0) * (255 / rest)).round()
    return table.gather(1, x.long().flatten(1)).view(x.shape)


def _water(x: Tensor, liquid: Tensor, strength: float) -> Tensor:
    """Pale drops whose shade follows the distance to their rims, lit from one side."""
    liquid = liquid.mul(255).add(1e-3).floor()
    depth = _distance(_edges(liquid, 50, 150))
    relief = _equalise(_mean3(depth).add(1e-3).floor())
    relief = _correlate(relief, _RELIEF).clamp(0, 255)
    shine = liquid * _mean3(relief).round()
    shine = shine / shine.amax((1, 2), keepdim=True).clamp(min=1) * strength
    colour = torch.tensor(_WATER, device=x.device).view(1, 3, 1, 1)
    return x + shine[:, None] * colour


def _mud(x: Tensor, liquid: Tensor, threshold: float, sigma: float) -> Tensor:
    """Brown splashes that cover what is behind them."""
    cover = blur((liquid > threshold)[:, None].float() * 255, sigma) / 255
    cover = torch.where(cover < 0.8, 0, cover)
    colour = torch.tensor(_MUD, device=x.device).view(1, 3, 1, 1)
    return x * (1 - cover) + colour * cover


@corruption(
    "weather",
    # mean, deviation, blur, threshold, strength of water or blur of mud, mud
    imagenet=(
        (0.65, 0.3, 4, 0.69, 0.6, False),
        (0.65, 0.3, 3, 0.68, 0.6, False),
        (0.65, 0.3, 2, 0.68, 0.5, False),
        (0.65, 0.3, 1, 0.65, 1.5, True),
        (0.67, 0.4, 1, 0.65, 1.5, True),
    ),
    cifar=(
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    ),
)
def spatter(x: Tensor, c: tuple[float, float, float, float, float, bool], draws: Draws) -> Tensor:
    """Blurred noise above a threshold is a drop of water (severity 1 to 3) or mud (4 and 5)."""
    mean, deviation, sigma, threshold, strength, mud = c
    # In units where the deviation is an eighth of the filter's 12-bit range.
    unit = 4080 / 16 / 8
    noise = (draws.normal(0, (1, *x.shape[-2:])).mul_(unit * 16)).round_().clamp_(-4080, 4080) / 16
    layer = blur(noise, sigma)[:, 0] / unit * deviation + mean
    liquid = torch.where(layer < threshold, 0, layer).clamp(max=1)
    if mud:
        return _mud(x.float(), liquid, threshold, strength)
    return _water(x.float(), liquid, strength)
