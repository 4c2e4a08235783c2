"""Which parameters move: choosing, freezing, tracking and giving them back."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor, nn

from ostinato.errors import ConfigError, StateError, TargetError
from ostinato.ops.blocks import find_blocks, is_convolutional, last_stage
from ostinato.ops.expect import Expected, Like
from ostinato.ops.snapshot import State

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)


def norm_parameters(model: nn.Module, *, blocks: range | None = None) -> dict[str, nn.Parameter]:
    """Affine parameters of every normalisation layer, by name.

    Args:
        model: where to look.
        blocks: keep those inside blocks of these numbers alone (and drop the ones outside any
            block), as methods do that leave the last blocks untouched. Of a network of
            convolutions, whose blocks are counted otherwise, all but the last stage's are kept.

    >>> sorted(norm_parameters(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))))
    ['1.bias', '1.weight']
    """
    found: dict[str, nn.Parameter] = {}
    chosen = None if blocks is None else _norms_of(model, blocks)
    for name, module in model.named_modules():
        if not _is_norm(module) or (chosen is not None and name not in chosen):
            continue
        for key, parameter in module.named_parameters(recurse=False):
            found[f"{name}.{key}" if name else key] = parameter
    if not found:
        raise TargetError(
            "The model has no normalisation layer with trainable affine parameters"
            + (f" in blocks {blocks.start} to {blocks.stop - 1}." if blocks is not None else ".")
            + " Choose a method that trains something else: 'ostinato list methods' tells."
        )
    return found


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, _NORMS) or type(module).__name__.endswith("Norm")


def _norms_of(model: nn.Module, blocks: range) -> set[str]:
    """Names of the norms in blocks of these numbers, or before a network's last stage."""
    known = find_blocks(model)
    norms = [name for name, module in model.named_modules() if _is_norm(module)]
    if all(is_convolutional(block) for block in known.values()):
        order = [name for name, _ in model.named_modules()]
        end = order.index(last_stage(model)[0])
        return {name for name in norms if order.index(name) < end}
    inside = tuple(f"{name}." for number, name in enumerate(known) if number in blocks)
    return {name for name in norms if name.startswith(inside)}


class Flags:
    """Remembers `requires_grad` and train/eval of a model, freezes it, and can put them back.

    >>> layer = nn.Linear(2, 2)
    >>> flags = Flags.freeze(layer)
    >>> layer.weight.requires_grad, layer.training
    (False, False)
    >>> flags.restore()
    >>> layer.weight.requires_grad, layer.training
    (True, True)
    """

    def __init__(self, model: nn.Module) -> None:
        self._grads = [(p, p.requires_grad) for p in model.parameters()]
        self._modes = [(m, m.training) for m in model.modules()]

    @classmethod
    def freeze(cls, model: nn.Module) -> Flags:
        """Remember, then freeze every parameter and switch to eval."""
        flags = cls(model)
        model.eval()
        for parameter in model.parameters():
            parameter.requires_grad_(False)
            parameter.grad = None
        return flags

    def parameters(self) -> list[nn.Parameter]:
        """The parameters that were there when it froze them."""
        return [parameter for parameter, _ in self._grads]

    def restore(self) -> None:
        """Put everything back as it was."""
        for parameter, flag in self._grads:
            parameter.requires_grad_(flag)
            parameter.grad = None
        for module, mode in self._modes:
            module.training = mode


class Weights:
    """The parameters of the source model that a method moves, with their source values.

    >>> layer = nn.Linear(2, 2, bias=False)
    >>> weights = Weights(dict(layer.named_parameters()))
    >>> source = layer.weight.detach().clone()
    >>> layer.weight.data += 1
    >>> weights.restore()
    >>> bool((layer.weight == source).all())
    True
    """

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self.parameters = parameters
        self.source: dict[str, Tensor] = {k: p.detach().clone() for k, p in parameters.items()}
        for parameter in parameters.values():
            parameter.requires_grad_(True)

    def restore(self) -> None:
        """Every value back to the source's, bit for bit."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(self.source[name])

    def export_state(self) -> State:
        """The current values."""
        return State({name: p.detach() for name, p in self.parameters.items()})

    def expected(self, state: State) -> Expected:
        """These parameters, in the shapes and types they have."""
        return Expected({name: Like.of(source) for name, source in self.source.items()})

    def import_state(self, state: State) -> None:
        """Take values over; checks names and shapes first."""
        for name, parameter in self.parameters.items():
            given = state.tensors.get(name)
            if given is None or given.shape != parameter.shape:
                raise StateError(f"The state has no fitting values for parameter {name!r}.")
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(state.tensors[name])


_OWNERS: weakref.WeakKeyDictionary[nn.Module, weakref.ref[object]] = weakref.WeakKeyDictionary()


def claim(model: nn.Module, owner: object) -> None:
    """Note that `owner` adapts the model; a second one at the same time is refused.

    A method that another one makes for itself while it is being set up belongs to that one.
    """
    for module in model.modules():
        known = _OWNERS.get(module)
        other = None if known is None else known()
        if getattr(other, "building", False):
            return
        if other is not None and other is not owner:
            raise ConfigError(
                "This model, or a part of it, is adapted already; call ostinato.unwrap on what "
                "adapts it first, or adapt a copy."
            )
    _OWNERS[model] = weakref.ref(owner)


def is_claimed(model: nn.Module) -> bool:
    """Whether something adapts the model."""
    known = _OWNERS.get(model)
    return known is not None and known() is not None


def disclaim(model: nn.Module, owner: object) -> None:
    """The owner adapts the model no longer."""
    known = _OWNERS.get(model)
    if known is not None and known() is owner:
        del _OWNERS[model]
