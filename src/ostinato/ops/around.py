"""What users put around a model: `torch.compile`, `DataParallel`. Adaptation works inside of it.

What was compiled does not see hooks that come later, and replicas of a module have no place for
what an image carries through a forward. So both are set aside while a model is adapted, and put
back when it is given back.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel


def inside(model: nn.Module) -> nn.Module:
    """The module that others were put around; itself where there is nothing.

    >>> import torch
    >>> net = nn.Linear(2, 2)
    >>> inside(DataParallel(net)) is inside(torch.compile(net)) is net
    True
    """
    while True:
        parts: dict[str, Any] = getattr(model, "_modules", {})
        if isinstance(model, DataParallel | DistributedDataParallel):
            model = parts["module"]
        elif type(model).__module__.startswith("torch._dynamo") and "_orig_mod" in parts:
            model = parts["_orig_mod"]
        else:
            return model


class Around:
    """What stood around a model and its parts, taken off until `restore`.

    Args:
        given: the model as the user has it.

    Attributes:
        model: what is inside, without anything around any part of it.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> net[1] = torch.compile(net[1])
    >>> around = Around(torch.compile(net))
    >>> around.model is net, type(net[1]).__name__
    (True, 'Linear')
    >>> type(around.restore()).__name__, type(net[1]).__name__
    ('OptimizedModule', 'OptimizedModule')
    """

    def __init__(self, given: nn.Module) -> None:
        self.given, self.model = given, inside(given)
        self._parts: list[tuple[nn.Module, str, nn.Module]] = []
        self._calls: list[tuple[nn.Module, Any]] = []
        self._take_off(self.model)

    def _take_off(self, module: nn.Module) -> None:
        if getattr(module, "_compiled_call_impl", None) is not None:  # module.compile()
            self._calls.append((module, module._compiled_call_impl))
            module._compiled_call_impl = None
        for name, part in list(module._modules.items()):
            if part is not None:
                plain = inside(part)
                if plain is not part:
                    self._parts.append((module, name, part))
                    module._modules[name] = plain
                self._take_off(plain)

    def __enter__(self) -> nn.Module:
        return self.model

    def __exit__(self, *_: object) -> None:
        self.restore()

    def restore(self) -> nn.Module:
        """Put everything back; the model as it was given."""
        for module, name, part in self._parts:
            module._modules[name] = part
        for module, call in self._calls:
            module._compiled_call_impl = call
        self._parts, self._calls = [], []
        return self.given
