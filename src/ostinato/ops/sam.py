"""Sharpness-aware minimisation: the gradient at the worst point nearby.

The climb is not written into the model. The second forward runs with `parameter + climb` lent to
the module, so its gradient with respect to the parameters is the gradient at the climbed point.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def _climb(gradients: Mapping[str, Tensor], radius: float) -> dict[str, Tensor]:
    """The step of length `radius` along the gradient of all parameters together.

    >>> step = _climb({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, radius=0.5)
    >>> round(float(step["a"]), 4), round(float(step["b"]), 4)
    (0.3, 0.4)
    """
    norms = torch._foreach_norm(list(gradients.values()))
    scale = radius / (torch.linalg.vector_norm(torch.stack(list(norms))) + 1e-12)
    return {name: gradient * scale for name, gradient in gradients.items()}


def _gradients(loss: Tensor, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Gradients by name, zero where a parameter takes no part; `.grad` stays untouched."""
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    pairs = zip(parameters.items(), found, strict=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in pairs}


def climbed(
    parameters: Mapping[str, nn.Parameter], loss: Tensor, radius: float
) -> dict[str, Tensor] | None:
    """The parameters' values at the climbed point, tied to them; None without a finite slope."""
    step = _climb(_gradients(loss, parameters), radius)
    largest = torch.stack([part.abs().amax() for part in step.values()]).amax()
    if not bool(largest.isfinite()):
        return None
    return {name: parameter + step[name] for name, parameter in parameters.items()}
