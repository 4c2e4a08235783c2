"""VDP: learned pixels upon the input, one set for the domain at hand and one for all domains."""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.ops.augment import cotta_view
from ostinato.ops.expect import Expected, Like
from ostinato.ops.heads import select_classes
from ostinato.ops.prompts import paste
from ostinato.ops.snapshot import Scalars, State
from ostinato.ops.teacher import Teacher
from ostinato.registry import METHODS
from ostinato.types import Decision


class _PromptedInput(nn.Module):
    """Pixels with both prompts upon them, into a frozen model.

    The two squares lie in opposite corners of a diagonal that the seed chooses.
    """

    def __init__(self, model: nn.Module, size: int, share: float, mirrored: bool) -> None:
        super().__init__()
        self.model = model
        self.share = share
        self.places = ((0.0, float(mirrored)), (1.0, float(not mirrored)))
        self.specific = nn.Parameter(torch.zeros(3, size, size))
        self.agnostic = nn.Parameter(torch.zeros(3, size, size))

    def forward(self, pixels: Tensor) -> Tensor:
        """The model's logits for the decorated pixels."""
        decorated = paste(pixels, self.specific, self.share, self.places[0])
        logits: Tensor = self.model(paste(decorated, self.agnostic, self.share, self.places[1]))
        return logits


class _Homeostasis:
    """How sensitive each value of a prompt was in past domains, and where it stood.

    Within a domain it gathers −gradient · change, what each value contributed to the loss's fall.
    At the domain's end that is divided by the squared total change and added to the weights.

    >>> memory = _Homeostasis(torch.zeros(1), damping=0.0)
    >>> memory.record(gradient=torch.tensor([-2.0]), change=torch.tensor([0.5]))
    >>> memory.close(torch.tensor([0.5]))
    >>> float(memory.pull(torch.tensor([1.5])))  # sensitivity 1 / 0.25, one away
    4.0
    """

    def __init__(self, values: Tensor, damping: float) -> None:
        self.damping = damping
        zero = torch.zeros_like(values)
        self.kept = {n: zero.clone() for n in ("gathered", "weight")}
        self.kept |= {"anchor": values.detach().clone(), "start": values.detach().clone()}

    @torch.no_grad()
    def record(self, gradient: Tensor, change: Tensor) -> None:
        """Take in one step."""
        self.kept["gathered"] -= gradient * change

    @torch.no_grad()
    def close(self, values: Tensor) -> None:
        """A domain ends here."""
        kept = self.kept
        moved = (values - kept["start"]).square() + self.damping
        kept["weight"] += (kept["gathered"] / moved).clamp_min(0).nan_to_num(0, 0, 0)
        kept["gathered"].zero_()
        kept["anchor"].copy_(values)
        kept["start"].copy_(values)

    def pull(self, values: Tensor) -> Tensor:
        """Σ weight · (value − anchor)²."""
        return (self.kept["weight"] * (values - self.kept["anchor"]).square()).sum()

    def export_state(self) -> State:
        """All four tensors."""
        return State(dict(self.kept))

    def expected(self, state: State) -> Expected:
        """The four tensors, in the prompt's shape; a weight is never negative."""
        lows = {"weight": 0.0}
        kept = self.kept.items()
        return Expected({n: Like.of(t, lows.get(n, -math.inf)) for n, t in kept})

    def import_state(self, state: State) -> None:
        """Continue from there."""
        for name, tensor in self.kept.items():
            tensor.copy_(state.tensors[name])


@METHODS.register("vdp")
class Vdp(Method):
    """Train the two prompts on a teacher's predictions; the model itself never moves.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("vdp").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="VDP",
        paper="Gan et al., AAAI 2023",
        trains="two square prompts in the input",
        setting="none by its authors: ours",
        differences=(
            "no public release; our reading: additive squares in two opposite corners, a quarter "
            "of the side each, starting at zero; the student sees an augmented view, the teacher "
            "the image; cross-entropy between them; a value's sensitivity is its share of the "
            "loss's fall over its squared change, summed over past domains; a new domain is a "
            "fall of mean confidence by 0.1; Adam at 1e-3; Hugging Face and torchvision work too"
        ),
        predicts="teacher",
    )

    class Config(MethodConfig):
        """Settings of VDP.

        >>> Vdp.Config().damping
        0.001
        """

        lr: float = Field(1e-3, ge=0, description="learning rate")
        size: int = Field(56, ge=1, description="pixels along a prompt's side, as learned")
        share: float = Field(0.25, gt=0, le=1, description="share of the image's side it covers")
        ema: float = Field(0.999, ge=0, le=1, description="share of itself the teacher keeps")
        homeostasis: float = Field(
            1.0, ge=0, description="weight of the domain-agnostic prompt's pull"
        )
        jump: float = Field(
            0.1, gt=0, description="fall of mean confidence that means a new domain"
        )
        damping: float = Field(1e-3, gt=0, description="keeps sensitivities finite")

    presets = {"imagenet-c": {"lr": 1e-3}, "cifar100-c": {"lr": 1e-3}}

    def configure(self) -> None:
        """Prompts, their teacher, and the memory of sensitivities."""
        config = self.config
        mirrored = bool(torch.randint(2, (1,), generator=self.random.generator))
        self.student = _PromptedInput(self.model, config.size, config.share, mirrored)
        self.student.to(self.model.device)
        self.teacher = self.track("teacher", Teacher(self.student, self.trainable(), config.ema))
        agnostic = self.student.agnostic
        self.memory = self.track("memory", _Homeostasis(agnostic, config.damping))
        self.seen = self.track("seen", Scalars(confidence=None))

    def trainable(self) -> dict[str, nn.Parameter]:
        """Both prompts."""
        return {"specific": self.student.specific, "agnostic": self.student.agnostic}

    def objective(self, batch: Input) -> Objective:
        """Follow the teacher, and leave the agnostic prompt's sensitive values in place."""
        wanted = select_classes(self.teacher.logits(batch.pixels), batch.classes).float()
        view = cotta_view(batch.pixels, self.random.generator)
        mine = select_classes(self.student(view), batch.classes).float()
        loss = -(wanted.softmax(1) * mine.log_softmax(1)).sum(1).mean()
        loss = loss + self.config.homeostasis * self.memory.pull(self.student.agnostic)
        return Objective(wanted, loss)

    def update(self, batch: Input, objective: Objective) -> bool:
        """One step, and what the agnostic prompt's values did in it."""
        agnostic = self.student.agnostic
        before = agnostic.detach().clone()
        moved = super().update(batch, objective)
        if moved and agnostic.grad is not None:
            self.memory.record(agnostic.grad, agnostic.detach() - before)
        return moved

    def after(self, batch: Input, objective: Objective, decision: Decision | None) -> None:
        """Teacher, and the end of a domain where confidence falls."""
        self.teacher.update()
        confidence: Any = float(objective.logits.softmax(1).amax(1).mean())
        known = self.seen["confidence"]
        if known is not None and known - confidence > self.config.jump:
            self.memory.close(self.student.agnostic)
            self.events.append("confidence fell: the domain changed")
        self.seen["confidence"] = confidence
