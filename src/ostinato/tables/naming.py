"""What tables call a spec's weights and views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ostinato.models.dense import usual_stride
from ostinato.models.loading import OWN
from ostinato.running.spec import Spec


def weights_name(spec: Spec) -> str:
    """How tables call the weights."""
    if spec.model in OWN:
        return "vit_cifar10"
    if spec.weights is None:
        return spec.model.partition(".")[2] or "default"
    return Path(spec.weights).name


def views_name(spec: Spec, config: Any = None) -> str:
    """How tables call what a per-pixel model sees of an image.

    Args:
        spec: its window and views.
        config: the method's settings, which may name views of its own (a teacher's).

    >>> views_name(Spec(window=(512, 512), scales=(0.5, 1.0), flip=True))
    'windows of 512×512 every 384×384, 4 views'
    """
    parts = []
    if spec.window is not None:
        stride = spec.stride or usual_stride(spec.window)
        size, step = ("×".join(map(str, pair)) for pair in (spec.window, stride))
        parts.append(f"windows of {size} every {step}")
    if spec.scales or spec.flip:
        parts.append(f"{len(spec.scales or (1.0,)) * (1 + spec.flip)} views")
    own = getattr(config, "scales", ())
    if own:
        parts.append(f"{2 * len(own)} of the method")
    return ", ".join(parts) or "1"
