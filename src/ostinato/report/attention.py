"""Where each expert looks: similarity of the class token to all patch tokens, per branch.

Taken from a live dual-expert method by hooks, without changing it, and kept beside the records as
`attention.npz`, since records hold no images.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError, InputError
from ostinato.ops.files import write_atomically
from ostinato.registry import METHODS

if TYPE_CHECKING:
    from torch import Tensor

    from ostinato.experts.layers import DualBranch
    from ostinato.experts.pool import ExpertPool
    from ostinato.methods.base import Method

_SHARED = "shared"


@dataclass(frozen=True)
class ExpertAttention:
    """Maps of every expert on a few images.

    Attributes:
        images: (N, H, W, 3) uint8.
        maps: (N, E, h, w), cosine similarity in [−1, 1].
        experts: E names; "shared" first, where there is such a branch, then domains.
        active: (N,) place in `experts` of the domain that was active; -1 for none.
        titles: N names of the images, such as their true domains.
        layer: name of the layer that was read.
    """

    images: NDArray[np.uint8]
    maps: NDArray[np.float32]
    experts: tuple[str, ...]
    active: NDArray[np.int64]
    titles: tuple[str, ...]
    layer: str

    def save(self, path: str | Path) -> None:
        """Write as arrays; nothing in the file is ever unpickled."""
        content = io.BytesIO()
        np.savez_compressed(
            content, images=self.images, maps=self.maps, experts=np.array(self.experts),
            active=self.active, titles=np.array(self.titles), layer=np.array(self.layer),
        )  # fmt: skip
        write_atomically(path, content.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> ExpertAttention:
        """Read back; a damaged file is an error that says so."""
        try:
            with np.load(Path(path), allow_pickle=False) as file:
                found = cls(
                    file["images"],
                    file["maps"],
                    tuple(map(str, file["experts"])),
                    file["active"],
                    tuple(map(str, file["titles"])),
                    str(file["layer"]),
                )
            found._check()
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise DataError(
                f"{path} is damaged or not one that Ostinato wrote ({error}); delete it and the "
                "report leaves its figure out."
            ) from None
        except Exception as error:  # zipfile's own error is no OSError
            raise DataError(f"{path} cannot be read ({error}); delete it.") from None
        return found

    def _check(self) -> None:
        count = len(self.images)
        if self.images.ndim != 4 or self.maps.ndim != 4 or self.images.shape[-1] != 3:
            raise ValueError("arrays of other shapes")
        if self.maps.shape[:2] != (count, len(self.experts)) or len(self.titles) != count:
            raise ValueError("arrays that do not fit one another")
        if self.active.shape != (count,) or not (self.active < len(self.experts)).all():
            raise ValueError("experts that are not there")


def _expert_attention(
    adapted: Method,
    images: Tensor,
    *,
    domains: Sequence[int] | None = None,
    titles: Sequence[str] | None = None,
    layer: int | None = None,
) -> ExpertAttention:
    """Similarity of the class token to all patch tokens in each branch's output.

    Nothing is learned and nothing changes. Models without a class token take the mean token in
    its place.

    Args:
        adapted: a dual-expert method that has met at least one domain.
        images: (N, 3, H, W), as the method takes them.
        domains: the domain to activate for each image; the most probable one unless given.
        titles: a name for each image.
        layer: which of the layers with experts to read. Unless given, the last but one: the last
            one's patch tokens reach no class token any more.
    """
    import torch

    pool, layers = _experts(adapted)
    names, chosen = list(layers), list(layers.values())
    if layer is None:
        layer = max(-2, -len(chosen))
    if not -len(chosen) <= layer < len(chosen):
        raise InputError(f"layer = {layer}: there are {len(chosen)} layers with experts.")
    read = chosen[layer]
    with torch.no_grad():
        pixels = adapted.model.check(images)
        owners = _owners(adapted, pool, pixels, domains)
        if titles is not None and len(titles) != len(pixels):
            raise InputError(f"{len(titles)} titles do not fit {len(pixels)} images.")
        with _selected(pool, owners), _tokens(read) as seen:
            adapted.model(pixels)
            adapted.model.release()
        mixtures = {_SHARED: read.shared} if read.shared is not None else {}
        if read.config.domain:
            mixtures |= {f"domain {d}": read.mixture(d) for d in pool.domains}
        maps = [_similarity(m(seen[0].to(m.down)), adapted, pixels) for m in mixtures.values()]
        pictures = (pixels.permute(0, 2, 3, 1) * 255).round().to(torch.uint8).cpu().numpy()
    experts = tuple(mixtures)
    places = [f"domain {d}" for d in owners]
    return ExpertAttention(
        pictures,
        torch.stack([m.float().cpu() for m in maps], 1).numpy(),
        experts,
        np.array([experts.index(p) if p in experts else -1 for p in places], dtype=np.int64),
        tuple(titles or [""] * len(pictures)),
        names[layer],
    )


def write_attention(adapted: Method, images: Tensor, path: str | Path, **options: Any) -> Path:
    """Compute `_expert_attention` and keep it; a run's folder as `path` gets `attention.npz`."""
    from ostinato.report._runs import ATTENTION

    place = Path(path)
    place = place / ATTENTION if place.is_dir() else place
    if not place.parent.is_dir():
        raise InputError(f"Cannot write {place}: the folder {place.parent} does not exist.")
    _expert_attention(adapted, images, **options).save(place)
    return place


def _experts(adapted: Method) -> tuple[ExpertPool, dict[str, DualBranch]]:
    pool: ExpertPool | None = getattr(adapted, "pool", None)
    if "attention" not in adapted.info.draws or pool is None:
        able = ", ".join(name for name in METHODS if "attention" in METHODS[name].info.draws)
        raise InputError(f"{adapted.name} has no experts to look at; these have: {able}.")
    if not pool.domains:
        raise InputError("No domain was met yet: let the method adapt to a batch first.")
    return pool, pool.layers


def _owners(
    adapted: Any, pool: ExpertPool, pixels: Tensor, domains: Sequence[int] | None
) -> tuple[int, ...]:
    if domains is None:
        return _probable(adapted, pool, pixels)
    if len(domains) != len(pixels):
        raise InputError(f"{len(domains)} domains do not fit {len(pixels)} images.")
    unknown = sorted(set(domains) - set(pool.domains))
    if unknown:
        known = ", ".join(map(str, pool.domains))
        raise InputError(f"There is no domain {unknown[0]}; known: {known}.")
    return tuple(int(d) for d in domains)


def _probable(adapted: Any, pool: ExpertPool, pixels: Tensor) -> tuple[int, ...]:
    """Each image's most probable domain among those that have experts."""
    from ostinato.methods.contract import Input

    finder = adapted.discriminator
    features = adapted._features(Input(pixels)) if finder.needs_features else None
    share = finder.posterior(finder.describe(pixels, features))
    kept = [place for place, d in enumerate(finder.domains) if d in pool.domains]
    best = share[:, kept].argmax(1).tolist()
    return tuple(int(finder.domains[kept[place]]) for place in best)


@contextmanager
def _selected(pool: ExpertPool, owners: Sequence[int]) -> Iterator[None]:
    """Activate a domain per image, and put everything back as it was."""
    before, order = pool.active, list(pool.used)
    try:
        pool.select(tuple(owners))
        yield
    finally:
        if before is None:
            pool.deselect()
        else:
            pool.select(before)
        pool.used[:] = order


@contextmanager
def _tokens(layer: DualBranch) -> Iterator[list[Tensor]]:
    """What the experts of a layer are fed: the FFN's output, or its input beside a parallel one."""
    seen: list[Tensor] = []

    def before(module: Any, args: tuple[Any, ...]) -> None:
        seen.append(args[0] if layer.entered is None else layer.entered)

    def after(module: Any, args: tuple[Any, ...], output: Tensor) -> None:
        seen.append(output)

    if layer.config.placement == "parallel":
        handle = layer.register_forward_pre_hook(before)
    else:
        handle = layer.base_layer.register_forward_hook(after)
    try:
        yield seen
    finally:
        handle.remove()


def _similarity(tokens: Tensor, adapted: Method, pixels: Tensor) -> Tensor:
    """(N, T, D) to (N, h, w): cosine of token 0 (or the mean) with every patch; 0 for zero."""
    from torch.nn.functional import cosine_similarity

    from ostinato.ops.blocks import has_class_token

    if tokens.ndim == 4:  # tokens that kept their places
        mean = tokens.flatten(1, 2).mean(1)[:, None, None]
        return cosine_similarity(mean, tokens, dim=-1)
    base = adapted.model.base
    classed = has_class_token(base)
    extra = int(getattr(base, "num_prefix_tokens", int(classed)))
    patches = tokens[:, extra:]
    centre = tokens[:, :1] if classed else patches.mean(1, keepdim=True)
    count, (height, width) = patches.shape[1], pixels.shape[-2:]
    rows = max(1, round((count * height / width) ** 0.5))
    if count % rows:
        raise InputError(f"{count} patch tokens do not form a grid on {height}×{width} images.")
    flat: Tensor = cosine_similarity(centre, patches, dim=-1)
    return flat.reshape(-1, rows, count // rows)
