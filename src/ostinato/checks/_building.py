"""How the suite builds a method and runs it, and how it compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ostinato.api import adapt, prepare
from ostinato.checks._small import CLASSES, example_model, example_statistics, small_batches
from ostinato.errors import StateError
from ostinato.methods.base import Method
from ostinato.methods.contract import resolve_config
from ostinato.ops.snapshot import State
from ostinato.registry import METHODS

Build = Callable[..., Method]
Check = Callable[[Build], str | None]


def builder(name: str, kind: type[Method], settings: dict[str, Any]) -> Build:
    """Builds the method on a small model, with whatever help it needs."""
    prepared: list[State] = []  # made once: warming adapters takes longer than a check
    settings = {**kind.example, **settings}

    def build(**more: Any) -> Method:
        model = example_model(kind)
        help_given: dict[str, Any] = {}
        if kind.info.norms == "any":  # they are read from transformer blocks
            help_given["statistics"] = example_statistics()
        config = resolve_config(kind, settings.get("preset"), _plain({**settings, **more}))
        if "prepared file" in kind.needs(config):
            if not prepared:
                images = torch.cat(small_batches(4, seed=9))
                labels = torch.arange(len(images)) % CLASSES
                own = {"preset": settings.get("preset"), **_plain(settings)}
                prepared.append(prepare(model, name, images, labels, **own))
            help_given["prepared"] = prepared[0]
        return adapt(model, name, **{**help_given, **settings, **more})

    return build


def small_adapted(name: str, **settings: Any) -> Method:
    """A registered method on a small model, with whatever help it needs, after a first batch.

    >>> small_adapted("tent").last.updated
    True
    """
    method = builder(name, METHODS[name], settings)()
    run(method, small_batches(1))
    return method


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of the method itself, without `adapt`'s own arguments."""
    own = ("preset", "statistics", "prepared", "targets", "normalize", "mean", "std", "group")
    return {key: value for key, value in settings.items() if key not in own}


def run(method: Method, batches: list[Tensor]) -> list[Tensor]:
    """The logits of batches, one after the other; who needs domain names is told them."""
    told = "domain labels" in method.needs(method.config)
    names = [f"domain {(index // 3) % 2}" if told else None for index in range(len(batches))]
    steps = zip(batches, names, strict=True)
    return [method.step(batch, oracle=name).logits for batch, name in steps]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    """Whether two lists of logits are the same to the bit."""
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def same_state(one: State, other: State) -> bool:
    """Whether two states are the same to the bit."""
    return (
        one.values == other.values
        and one.tensors.keys() == other.tensors.keys()
        and all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    )


def taken_back(method: Method) -> str | None:
    """Unwrap a method; what is wrong with the model that comes back, if anything."""
    source = example_model(type(method))
    back = method.detach()
    expected, given = source.state_dict(), back.state_dict()
    if list(expected) != list(given):
        return "the module has other parameters than before"
    if not all(torch.equal(expected[key], given[key]) for key in expected):
        return "weights differ from the source's"
    flags = {name: p.requires_grad for name, p in source.named_parameters()}
    if flags != {name: p.requires_grad for name, p in back.named_parameters()}:
        return "requires_grad flags differ"
    if any(_hooks(module) for module in back.modules()):
        return "hooks are left on the model"
    if (answered := _still_answers(method)) is not None:
        return f"{answered} is not refused once the model is its owner's again"
    if not all(torch.equal(expected[key], value) for key, value in back.state_dict().items()):
        return "what is called after unwrap writes into the model"
    return None if type(back) is type(source) else "it is another class"


def _still_answers(method: Method) -> str | None:
    """What a method that was taken out of its model does not refuse, if anything."""
    batch = small_batches(1)[0]
    calls: dict[str, Callable[[], Any]] = {
        "a call": lambda: method(batch),
        "predict": lambda: method.predict(batch),
        "learn": method.learn,
        "reset": method.reset,
        "export_state": method.export_state,
        "to": lambda: method.to(torch.float64),
    }
    for name, call in calls.items():
        try:
            call()
        except StateError:
            continue
        return name
    return None


def _hooks(module: nn.Module) -> int:
    """How many hooks a module carries."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for kind in kinds)
