"""Mean teachers and stochastic restoration: a second set of values for what a student moves.

No module is copied. A teacher keeps one value per moving parameter and lends them to the
student's own module for the length of a forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ostinato.errors import StateError, TargetError
from ostinato.ops.expect import Expected, Like
from ostinato.ops.snapshot import State


class Substitute:
    """Runs a model with other values in place of some of its parameters.

    Args:
        model: what is called.
        parameters: those of its parameters that get other values, by any name.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> doubled = Substitute(layer, {"w": layer.weight})
    >>> x = torch.ones(1, 2)
    >>> bool((doubled({"w": 2 * layer.weight}, x) == 2 * layer(x)).all())
    True
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        self.model = model
        places = {id(parameter): name for name, parameter in model.named_parameters()}
        lost = [name for name, parameter in parameters.items() if id(parameter) not in places]
        if lost:
            raise TargetError(f"These are not parameters of the model: {', '.join(lost[:3])}.")
        self.places = {name: places[id(parameter)] for name, parameter in parameters.items()}

    def __call__(self, values: Mapping[str, Tensor], *inputs: Any) -> Any:
        """The model's output under `values`; gradients reach them where they want any."""
        given = {place: values[name] for name, place in self.places.items()}
        return functional_call(self.model, given, inputs)


class Teacher:
    """An exponential moving average of the parameters that a student moves.

    Args:
        model: pixels to logits.
        parameters: what moves, by name; the teacher starts from the present values.
        momentum: share of itself a teacher keeps in an update.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> teacher = Teacher(layer, dict(layer.named_parameters()), momentum=0.5)
    >>> start = layer.weight.detach().clone()
    >>> layer.weight.data += 2
    >>> teacher.update()
    >>> bool(torch.allclose(teacher.values["weight"], start + 1))
    True
    """

    def __init__(
        self, model: nn.Module, parameters: dict[str, nn.Parameter], momentum: float
    ) -> None:
        self.parameters = parameters
        self.momentum = momentum
        self.values = {name: p.detach().clone() for name, p in parameters.items()}
        self._substitute = Substitute(model, parameters)

    def logits(self, pixels: Tensor) -> Tensor:
        """The teacher's logits, without gradient."""
        with torch.no_grad():
            return self._call(pixels)

    def _call(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self._substitute(self.values, pixels)
        return logits

    @torch.no_grad()
    def update(self, momentum: float | None = None) -> None:
        """Move towards the student: m · teacher + (1 − m) · student."""
        keep = self.momentum if momentum is None else momentum
        mine = list(self.values.values())
        theirs = [p.detach() for p in self.parameters.values()]
        torch._foreach_lerp_(mine, theirs, 1 - keep)

    def export_state(self) -> State:
        """The teacher's values."""
        return State(dict(self.values))

    def expected(self, state: State) -> Expected:
        """These values, in the shapes and types they have."""
        return Expected({name: Like.of(value) for name, value in self.values.items()})

    def import_state(self, state: State) -> None:
        """Take values over; checks names and shapes first."""
        for name, value in self.values.items():
            given = state.tensors.get(name)
            if given is None or given.shape != value.shape:
                raise StateError(f"The state has no fitting teacher values for {name!r}.")
        for name, value in self.values.items():
            value.copy_(state.tensors[name])


@torch.no_grad()
def restore_(
    parameters: Mapping[str, nn.Parameter],
    source: Mapping[str, Tensor],
    probability: float,
    generator: torch.Generator,
) -> int:
    """Put each single value back to its source with a probability; returns how many were.

    The drawing happens on the CPU, so that every device restores the same values, and costs as
    much as there is to restore: see `_bernoulli_positions`.
    """
    sizes = [parameter.numel() for parameter in parameters.values()]
    positions = _bernoulli_positions(sum(sizes), probability, generator)
    ends = torch.tensor(sizes).cumsum(0)
    counts = torch.searchsorted(positions, ends).diff(prepend=torch.zeros(1, dtype=torch.long))
    device = next(iter(parameters.values())).device
    starts = (ends - torch.tensor(sizes)).tolist()
    parts = positions.to(device).split(counts.tolist())
    for (name, parameter), start, part in zip(parameters.items(), starts, parts, strict=True):
        if len(part):
            back = torch.zeros(parameter.numel(), dtype=torch.bool, device=device)
            back[part - start] = True
            parameter.copy_(torch.where(back.view_as(parameter), source[name], parameter))
    return len(positions)


def _bernoulli_positions(total: int, probability: float, generator: torch.Generator) -> Tensor:
    """Sorted positions of the successes among `total` independent draws.

    The gaps between successes are geometric, so drawing the gaps is exact and costs one draw per
    success in place of one per position.

    >>> _bernoulli_positions(3, 1.0, torch.Generator()).tolist()
    [0, 1, 2]
    >>> _bernoulli_positions(3, 0.0, torch.Generator()).tolist()
    []
    """
    if probability <= 0:
        return torch.zeros(0, dtype=torch.long)
    if probability >= 1:
        return torch.arange(total)
    found: list[Tensor] = []
    last = -1
    expected = total * probability
    chunk = int(expected + 4 * math.sqrt(expected)) + 8
    while last < total:
        uniform = torch.rand(chunk, dtype=torch.float64, generator=generator)
        # log1p(-u) is finite since u < 1; clamped so that a vast gap stays an integer.
        gaps = (torch.log1p(-uniform) / math.log1p(-probability)).floor().clamp(max=total) + 1
        part = last + gaps.long().cumsum(0)
        last = int(part[-1])
        found.append(part)
    positions = torch.cat(found)
    return positions[positions < total]
