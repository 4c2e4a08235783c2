"""Class features of every block as the next layer's norm sees them, and how far they are off."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ostinato.errors import ConfigError, StateError, TargetError
from ostinato.methods._anchor import Moments
from ostinato.ops.features import FeatureTaps
from ostinato.ops.heads import final_features
from ostinato.ops.snapshot import State


class Levels:
    """Reads (B, L·D): after each block but the last, normed; and the classifier's input.

    A block's feature goes through the first LayerNorm of the block behind it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._taps = FeatureTaps(model)
        self._norms = [_first_norm(block) for block in list(self._taps.blocks.values())[1:]]

    def read(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All levels, the last of them alone, and the model's logits."""
        with self._taps:
            final, logits = final_features(self.model, pixels)
        # The last has no block behind it.
        inner = list(zip(self._norms, self._taps.features, strict=False))
        for norm, feature in inner:
            if getattr(norm, "normalized_shape", feature.shape[1:]) != tuple(feature.shape[1:]):
                raise TargetError(
                    "The model's blocks change their width, so that their features cannot be "
                    "normed by the block behind; use a plain vision transformer or another method."
                )
        with torch.autocast(final.device.type, enabled=False):
            levels = [norm(feature) for norm, feature in inner]
        return torch.cat([*levels, final], 1), final, logits


@torch.no_grad()
def collect_levels(model: nn.Module, batches: Iterable[Tensor]) -> State:
    """Moments of all levels over batches of source pixels."""
    levels = Levels(model)
    found = torch.cat([levels.read(pixels)[0] for pixels in batches])
    if len(found) < 2:
        raise ConfigError(f"Source moments need at least 2 images (32 are good), not {len(found)}.")
    return State({"mean": found.mean(0), "std": found.std(0)}, {"images": len(found)})


def read_levels(state: State, model: nn.Module, device: torch.device) -> Moments:
    """The source's moments from a prepared file, checked against the model's blocks."""
    blocks = len(FeatureTaps(model).blocks)
    mean, std = state.tensors.get("mean"), state.tensors.get("std")
    if mean is None or std is None or "images" not in state.values or len(mean) % blocks:
        raise StateError(
            f"The prepared file does not hold the moments of {blocks} levels: it is of another "
            "method or model. Prepare again with this one."
        )
    return Moments(mean.to(device), std.to(device))


def _first_norm(block: nn.Module) -> nn.Module:
    found = (module for module in block.modules() if isinstance(module, nn.LayerNorm))
    return next(found, nn.Identity())
