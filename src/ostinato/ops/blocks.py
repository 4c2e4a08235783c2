"""What a block is, told by structure: members of a row that each hold several layers of weights.

Libraries name their blocks differently, but all of them keep blocks in rows (a list or a sequence).
A member is a *unit* when it has a forward of its own, at least two layers with weights, and no row
of units further inside: stages and whole networks are not units, single layers neither. A row
counts when it holds two units or nothing else. So the blocks of transformers, mixers and
residual networks are found by one rule. A model that keeps blocks as attributes of its own is
searched for modules with an attention beside other layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from ostinato.errors import TargetError, did_you_mean

Choice = str | Sequence[str] | Callable[[str, nn.Module], bool] | None
"""Modules by name, by the end of a name, by a regular expression, or by a predicate."""

_ROWS = (nn.Sequential, nn.ModuleList)
_CHOSEN = "_ostinato_blocks"
_CLASS_TOKENS = ("cls_token", "class_token", "class_embedding")


def find_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The repeated blocks of a network by name, in the model's order.

    Those that `choose_blocks` named come first in question.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16)
    >>> list(find_blocks(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)))
    ['layers.0', 'layers.1']
    """
    names = {id(module): name for name, module in model.named_modules()}
    for module in model.modules():
        chosen = module.__dict__.get(_CHOSEN)
        if chosen is not None:
            return {names[id(module.get_submodule(c))]: module.get_submodule(c) for c in chosen}
    found = _in_rows(model) or _with_attention(model)
    if not found:
        raise TargetError(
            "No block was found in the model: none of its lists holds modules of several layers "
            "each. Name the modules whose outputs are to be adapted, one after the other: "
            f"blocks=[...]. It has {_some(list(_weighty(model)))}."
        )
    return found


def has_class_token(model: nn.Module) -> bool:
    """Whether token 0 is a class token."""
    return any(name.rsplit(".", 1)[-1] in _CLASS_TOKENS for name, _ in model.named_parameters())


def choose_blocks(model: nn.Module, blocks: Choice) -> None:
    """Let `find_blocks` give these modules from now on; None lets it search again."""
    model.__dict__.pop(_CHOSEN, None)
    if blocks is not None:
        model.__dict__[_CHOSEN] = tuple(choose(model, blocks, "blocks"))


def choose(
    model: nn.Module, wanted: Choice, what: str, hint: str = "", likely: Sequence[str] = ()
) -> list[str]:
    """The names that a choice picks, in the model's order.

    Args:
        model: any module.
        wanted: a name or the end of one, a regular expression, a list of these, or a predicate.
        what: names the argument in errors.
        hint: what to pass instead, for errors.
        likely: names that a mistyped one probably meant; all unless given.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    if callable(wanted):
        chosen = [name for name, module in modules.items() if wanted(name, module)]
        if not chosen:
            raise TargetError(f"The {what}= predicate accepted no module. {hint}".strip())
    else:
        patterns = [wanted] if isinstance(wanted, str) else list(wanted or ())
        if not patterns:
            raise TargetError(f"{what}= is empty. {hint}".strip())
        matched: set[str] = set()
        for pattern in patterns:
            found = _matching(pattern, list(modules), what)
            if not found:
                near = did_you_mean(pattern, list(likely) or list(modules)[:200])
                raise TargetError(f"{what}= {pattern!r} matches no module. {near} {hint}".strip())
            matched.update(found)
        chosen = [name for name in modules if name in matched]
    for outer in chosen:
        for inner in chosen:
            if inner.startswith(f"{outer}."):
                raise TargetError(f"{what}= chose {outer} and, inside it, {inner}: choose one.")
    return chosen


def _matching(pattern: str, names: list[str], what: str) -> list[str]:
    if pattern in names:
        return [pattern]
    ends = [name for name in names if name.endswith(f".{pattern}")]
    if ends:
        return ends
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise TargetError(
            f"{what}= {pattern!r} is no module's name and no regular expression ({error})."
        ) from None
    return [name for name in names if expression.fullmatch(name)]


def is_convolutional(block: nn.Module) -> bool:
    """Whether a block is of convolutions, so that a 4-D output has its channels first."""
    return any(isinstance(module, _ConvNd) for module in block.modules())


def last_stage(model: nn.Module) -> tuple[str, ...]:
    """Names of the blocks of the last stage: the last row, or a quarter where all are one row.

    >>> unit = nn.TransformerEncoderLayer(4, 2, 8)
    >>> last_stage(nn.TransformerEncoder(unit, 4, enable_nested_tensor=False))
    ('layers.3',)
    """
    names = list(find_blocks(model))
    stages = [name.rpartition(".")[0] for name in names]
    if stages[0] == stages[-1]:
        return tuple(names[len(names) - max(1, len(names) // 4) :])
    return tuple(name for name, stage in zip(names, stages, strict=True) if stage == stages[-1])


def _in_rows(model: nn.Module) -> dict[str, nn.Module]:
    units: dict[str, nn.Module] = {}
    _search(model, "", units)
    if has_class_token(model):
        units = {name: unit for name, unit in units.items() if not _is_stem(unit)}
    return {name: module for name, module in model.named_modules() if name in units}


def _search(module: nn.Module, name: str, units: dict[str, nn.Module]) -> bool:
    """Whether units are inside; those of rows that count are noted."""
    inside = False
    members: dict[str, nn.Module] = {}
    children = dict(module.named_children())
    for child, part in children.items():
        path = f"{name}.{child}" if name else child
        if _search(part, path, units):
            inside = True
        elif _is_unit(part):
            members[path] = part
    if _is_row(module):
        counts = len(members) >= 2 or (bool(members) and len(children) == 1)
    else:  # a stage may keep its blocks as children, and nothing beside them
        alike = len({type(part) for part in members.values()}) == 1
        counts = alike and len(members) == len(children) >= 2
    if counts:
        units.update(members)
    return inside or counts


def _is_row(module: nn.Module) -> bool:
    """Whether its members follow one another; those of a dictionary do where it has a forward."""
    follows = isinstance(module, nn.ModuleDict) and type(module).forward is not nn.Module.forward
    return isinstance(module, _ROWS) or follows


def _is_stem(unit: nn.Module) -> bool:
    return not any(isinstance(module, nn.Linear) for module in unit.modules())


def _is_unit(module: nn.Module) -> bool:
    """A module with a forward of its own and at least two layers of weights."""
    kind = type(module)
    plain = isinstance(module, _ROWS) and kind.forward in (nn.Sequential.forward, nn.Module.forward)
    attention = kind.__name__.endswith(("Attention", "Attn"))  # a part of a block, in a row of such
    return not (plain or attention) and _heavy(module, 2)


def _heavy(module: nn.Module, least: int) -> bool:
    """Whether it holds so many layers whose weight is a matrix or a kernel."""
    count = 0
    for part in module.modules():
        own = part.parameters(recurse=False)
        count += any(p.ndim >= 2 for p in own) and not isinstance(part, _BatchNorm)
        if count >= least:
            return True
    return False


def _weighty(model: nn.Module) -> dict[str, nn.Module]:
    return {name: part for name, part in model.named_modules() if name and _heavy(part, 1)}


def _with_attention(model: nn.Module) -> dict[str, nn.Module]:
    """Modules with an attention child and, beside it, other layers."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if name and not _inside(name, found) and _holds_attention(module):
            found[name] = module
    return found


def _holds_attention(module: nn.Module) -> bool:
    children = dict(module.named_children())
    attention = [name for name, child in children.items() if _attends(name, child)]
    rest = [child for name, child in children.items() if name not in attention]
    return bool(attention) and any(_heavy(child, 1) for child in rest)


def _attends(name: str, module: nn.Module) -> bool:
    # As a word of its own: "flatten" and "attention pooling" are heads, not attentions.
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", f"{name}_{type(module).__name__}").lower()
    parts = re.split(r"[^a-z]+", words)
    return not any("pool" in part for part in parts) and any(
        part in ("att", "attn", "attention") or part.endswith("attention") for part in parts
    )


def _inside(name: str, found: Iterable[str]) -> bool:
    return any(name == outer or name.startswith(f"{outer}.") for outer in found)


def _some(names: list[str], most: int = 12) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
