"""Put experts into a model in place, and take them out again without a trace."""

from __future__ import annotations

from typing import Any

from torch import nn

from ostinato.errors import TargetError
from ostinato.experts._targets import Targets, find_targets
from ostinato.experts.layers import DualBranch, ExpertConfig

_RECORD = "_ostinato_flags"


class _Capture:
    """A hook that hands the FFN's input to the branch; an object, so that models can be copied.

    It is set in both placements: a hook also keeps torch's own encoder layers from their
    inference path, which would read the linear layers' weights and pass the experts by.
    """

    def __init__(self, branch: DualBranch) -> None:
        self.branch = branch

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.branch.config.placement == "parallel":
            self.branch.entered = args[0] if args else next(iter(kwargs.values()), None)


def inject(
    model: nn.Module, config: ExpertConfig, targets: Targets = None, seed: int = 0
) -> dict[str, DualBranch]:
    """Wrap every FFN, in place; returns the wrapped layers by name.

    A module that is used in several places is wrapped once and keeps being one module. Nothing
    changes where an error is raised.

    >>> model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 32, batch_first=True))
    >>> list(inject(model, ExpertConfig())), list(inject(eject(model), ExpertConfig()))
    (['0.linear2'], ['0.linear2'])
    """
    if any(isinstance(module, DualBranch) for module in model.modules()):
        raise TargetError("The model holds experts already: eject(model) takes them out first.")
    found = find_targets(model, targets)
    for target in found:
        if config.placement == "parallel" and target.layout.usual:
            raise TargetError(
                f"{target.name} is a block of convolutions: experts stand after it, "
                "placement='post'."
            )
        given = getattr(target.module, "in_features", target.dim)
        if config.placement == "parallel" and target.entry is None and given != target.dim:
            raise TargetError(
                f"{target.name} takes {given} features and gives {target.dim}: placement="
                "'parallel' needs the whole FFN as target, or use placement='post'."
            )
    record = {
        "parameters": {n: p.requires_grad for n, p in model.named_parameters()},
        "modules": {n: m.training for n, m in model.named_modules()},
    }
    layers = {}
    for target in found:
        branch = DualBranch(
            target.module,
            target.dim,
            config,
            name=target.name,
            seed=seed,
            layout=target.layout,
        )
        _replace(model, target.module, branch)
        if target.entry is not None:
            branch.entry = _Entry(target.entry, branch)
        layers[target.name] = branch
    setattr(model, _RECORD, record)
    return layers


class _Entry:
    """Where the FFN's input is taken from; a plain object, so that it is no second parent."""

    def __init__(self, module: nn.Module, branch: DualBranch) -> None:
        self.handle = module.register_forward_pre_hook(_Capture(branch), with_kwargs=True)


def eject(model: nn.Module) -> nn.Module:
    """Put the original modules back, with `requires_grad` and train/eval as before `inject`.

    The original parameters are the same objects; adaptation never wrote to them. A model without
    experts is returned as it is.
    """
    for branch in [m for m in model.modules() if isinstance(m, DualBranch)]:
        if isinstance(branch.entry, _Entry):
            branch.entry.handle.remove()
        _replace(model, branch, branch.base_layer)
    record = getattr(model, _RECORD, None)
    if record is not None:
        for name, module in model.named_modules():
            module.training = record["modules"].get(name, module.training)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(record["parameters"].get(name, parameter.requires_grad))
        delattr(model, _RECORD)
    return model


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """In every place that holds the module, since models may tie modules together."""
    for parent in list(model.modules()):
        if parent is new or parent is old:
            continue
        for name, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, name, new)
