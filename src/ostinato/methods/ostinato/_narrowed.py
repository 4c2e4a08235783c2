"""Weights that enter products in half precision, rounded once and not in every forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_ROUNDED = (F.linear, F.conv2d, F.multi_head_attention_forward)
"""What autocast takes in half precision, of that which models do with weights."""


class Narrowed(TorchFunctionMode):
    """Inside, and under autocast, linear layers and convolutions get weights that are kept rounded.

    Autocast rounds them anew in every forward, to the same numbers. Meant for captures: what looks
    at every call costs the host more than rounding costs a GPU, and a capture runs no Python. The
    kept ones stay where they are; `refresh` makes them follow weights that have changed since.

    >>> layer, narrowed = nn.Linear(2, 2), Narrowed()
    >>> with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
    ...     plain = layer(torch.ones(1, 2))
    ...     with narrowed:
    ...         same = layer(torch.ones(1, 2))
    >>> torch.equal(plain, same), len(narrowed.kept)
    (True, 2)
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, tuple[nn.Parameter, Tensor]] = {}
        self._versions = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        if func in _ROUNDED:
            args = tuple(self._rounded(one) for one in args)
            given = {name: self._rounded(one) for name, one in given.items()}
        return func(*args, **given)

    @contextmanager
    def in_layers(self, model: nn.Module) -> Iterator[None]:
        """Inside, a model's own layers ask for kept weights: what is compiled passes no mode by.

        To be entered under autocast. Other threads may use the model meanwhile, with or without.

        >>> model = nn.Sequential(nn.Linear(2, 2))
        >>> with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        ...     with Narrowed().in_layers(model):
        ...         inside = "forward" in vars(model[0])
        >>> inside, "forward" in vars(model[0])
        (True, False)
        """
        changed = [one for one in model.modules() if self._is_plain(one)]
        for one in changed:
            vars(one)["forward"] = _with_weights(
                one, one.forward, self._rounded(one.weight), self._rounded(one.bias)
            )
        try:
            yield
        finally:
            for one in changed:
                vars(one).pop("forward", None)

    def _is_plain(self, module: nn.Module) -> bool:
        """Whether a layer is of a kind whose weights are rounded here, and nobody's own."""
        known = type(module) in (nn.Linear, nn.Conv2d) and "forward" not in vars(module)
        return known and self._rounded(module.weight) is not module.weight

    def _rounded(self, value: Any) -> Any:
        if not isinstance(value, nn.Parameter) or value.dtype != torch.float:
            return value
        device = value.device.type
        if not torch.is_autocast_enabled(device):
            return value
        if id(value) not in self.kept:
            with torch.inference_mode(False), torch.no_grad():
                self.kept[id(value)] = (value, value.to(torch.get_autocast_dtype(device)))
            self._versions += value._version
        return self.kept[id(value)][1]

    def refresh(self) -> None:
        """Round weights anew where any has changed."""
        versions = sum(value._version for value, _ in self.kept.values())
        if versions != self._versions:
            self._versions = versions
            with torch.inference_mode(False), torch.no_grad():
                for value, rounded in self.kept.values():
                    rounded.copy_(value)


def _with_weights(
    layer: nn.Module, plain: Callable[[Tensor], Tensor], weight: Tensor, bias: Tensor | None
) -> Callable[[Tensor], Tensor]:
    """A layer's forward with other weights under autocast, and its own without."""

    def forward(input: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(input.device.type):
            return plain(input)
        if isinstance(layer, nn.Conv2d):
            found: Tensor = layer._conv_forward(input, weight, bias)
            return found
        return F.linear(input, weight, bias)

    return forward
