"""SVDP: learned values upon the few pixels that the model is most unsure of."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.methods.base import Input, Method, MethodConfig, MethodInfo, Objective
from ostinato.methods.svdp._dropout import dropout_spread
from ostinato.ops.heads import select_classes
from ostinato.ops.optim import OptimizerState, make_optimizer
from ostinato.ops.teacher import Substitute, Teacher, restore_
from ostinato.ops.trainable import Weights
from ostinato.ops.views import blend_labels, mean_probabilities
from ostinato.registry import METHODS
from ostinato.types import Decision


class _SparsePrompt(nn.Module):
    """A model that sees its input with learned values upon some pixels.

    Attributes:
        place: (B, 1, H, W), 1 where a pixel has a prompt; None for no prompt at all.
    """

    def __init__(self, model: nn.Module, height: int, width: int) -> None:
        super().__init__()
        self.model = model
        self.prompt = nn.Parameter(torch.zeros(3, height, width))
        self.place: Tensor | None = None

    def forward(self, pixels: Tensor) -> Tensor:
        """The model's logits for the decorated pixels."""
        if self.place is not None:
            size = pixels.shape[-2:]
            pixels = pixels + _fitted(self.prompt[None], size) * _fitted(self.place, size)
        logits: Tensor = self.model(pixels)
        return logits


def _fitted(values: Tensor, size: torch.Size) -> Tensor:
    """Resized by repeating or dropping pixels, where the size differs."""
    return values if values.shape[-2:] == size else F.interpolate(values, size=tuple(size))


def _placement(spread: Tensor, share: float) -> Tensor:
    """The share of an image's pixels that are most uncertain: (B, H, W) to ones and zeros.

    >>> _placement(torch.tensor([[[0.1, 0.9], [0.3, 0.2]]]), 0.25).tolist()
    [[[0.0, 1.0], [0.0, 0.0]]]
    """
    flat = spread.flatten(1)
    count = max(1, round(share * flat.shape[1]))
    return torch.zeros_like(flat).scatter(1, flat.topk(count, 1).indices, 1.0).view_as(spread)


def _prompt_momentum(ema: float, uncertainty: float, scale: float) -> float:
    """The less certain the model, the faster the teacher's prompt follows.

    >>> round(_prompt_momentum(0.999, 0.5, 0.1), 4)
    0.949
    """
    return min(1.0, max(0.0, ema - scale * uncertainty))


@METHODS.register("svdp")
class Svdp(Method):
    """A mean teacher over the model and over a sparse prompt placed by uncertainty.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("svdp").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="SVDP",
        paper="Yang et al., AAAI 2024",
        trains="all weights and biases, and a sparse prompt in the input",
        setting="Cityscapes to ACDC, SegFormer-B5",
        differences=(
            "the prompt starts at zero and is resized to other image sizes; the optimizer is "
            "never rebuilt, as no domain boundary is known; the rate's scale is not published, "
            "0.1 here; a classifier has one uncertainty per image, so its pixels are drawn at "
            "random, and its views are the image and its mirror image"
        ),
        predicts="teacher",
        tasks=frozenset({"classification", "segmentation"}),
    )

    class Config(MethodConfig):
        """Settings of SVDP.

        >>> Svdp.Config(sparsity=0.01).ema
        0.999
        """

        lr: float = Field(3e-4, ge=0, description="learning rate of the model")
        prompt_lr: float = Field(1e-2, ge=0, description="learning rate of the prompt")
        height: int = Field(540, ge=1, description="rows of the prompt, as learned")
        width: int = Field(960, ge=1, description="columns of the prompt, as learned")
        sparsity: float = Field(1e-3, gt=0, le=1, description="share of the pixels with a prompt")
        ema: float = Field(0.999, ge=0, le=1, description="share of itself the teacher keeps")
        prompt_scale: float = Field(
            0.1, ge=0, description="less of it per mean uncertainty, prompt's"
        )
        passes: int = Field(10, ge=2, description="dropout passes an uncertainty is taken from")
        dropout: float = Field(0.5, gt=0, lt=1, description="share of features dropped in them")
        confidence: float = Field(
            0.69, ge=0, lt=1, description="from which a single view is trusted"
        )
        scales: tuple[float, ...] = Field(
            (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0), description="of the views, each also flipped"
        )
        restore: float = Field(
            0.01, ge=0, le=1, description="probability to restore a source value"
        )

    presets = {"acdc": {"lr": 3e-4, "prompt_lr": 1e-2, "restore": 0.01}}
    rates = ("lr", "prompt_lr")

    def configure(self) -> None:
        """The prompt with its own optimizer, and teachers for model and prompt."""
        config = self.config
        self.student = _SparsePrompt(self.model, config.height, config.width)
        self.student.to(self.model.device)
        added = {"prompt": self.student.prompt}
        self.track("prompt", Weights(added))
        self.prompt_optimizer = make_optimizer(
            config.optimizer,
            [self.student.prompt],
            lr=config.prompt_lr,
            momentum=config.momentum,
        )
        self.track("prompt optimizer", OptimizerState(self.prompt_optimizer))
        mine = self.trainable()
        self.teacher = self.track("teacher", Teacher(self.student, mine, config.ema))
        self.prompt_teacher = self.track("prompt teacher", Teacher(self.student, added, config.ema))
        self.substitute = Substitute(self.student, {**mine, **added})
        self.untouched = Substitute(self.model, mine)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Weights and biases of the model."""
        named = self.model.base.named_parameters()
        return {n: p for n, p in named if n.rsplit(".", 1)[-1] in ("weight", "bias")}

    def objective(self, batch: Input) -> Objective:
        """Place the prompt, then follow the teacher's labels."""
        assert self.weights is not None
        self._place(batch)
        with torch.no_grad():
            taught = self._teach(batch, batch.pixels)
            single = taught.softmax(1)
            averaged = mean_probabilities(
                lambda pixels: self._teach(batch, pixels),
                batch.pixels,
                self.config.scales,
                together=len(batch) == 1,  # where the prompt's place holds for both views
                plain=taught,
            )
            source = self.untouched(self.weights.source, batch.pixels)
            anchor = select_classes(source, batch.classes).float().softmax(1)
            sure = anchor.amax(1) > self.config.confidence
            labels = blend_labels(sure, single, averaged)
        mine = select_classes(self.student(batch.pixels), batch.classes).float()
        loss = F.cross_entropy(mine, labels.argmax(1))
        return Objective(labels.clamp_min(1e-12).log(), loss)

    def update(self, batch: Input, objective: Objective) -> bool:
        """Model and prompt, each at its own rate."""
        assert self.optimizer is not None
        return self.descend(objective, [self.optimizer, self.prompt_optimizer])

    def after(self, batch: Input, objective: Objective, decision: Decision | None) -> None:
        """Both teachers, then restoration."""
        config = self.config
        self.teacher.update()
        keep = _prompt_momentum(config.ema, self.uncertainty, config.prompt_scale)
        self.prompt_teacher.update(keep)
        self.student.place = None
        if config.restore > 0 and self.weights is not None:
            source, generator = self.weights.source, self.random.generator
            restore_(self.weights.parameters, source, config.restore, generator)

    def trained(self) -> int:
        """Model and prompt."""
        return super().trained() + self.student.prompt.numel()

    @torch.no_grad()
    def _place(self, batch: Input) -> None:
        """Prompts where ten dropout passes of the unprompted teacher disagree most."""
        config, generator = self.config, self.random.generator
        self.student.place = None
        spread = dropout_spread(
            self.model.base,
            lambda: self._teach(batch, batch.pixels),
            config.passes,
            config.dropout,
            generator,
        )
        self.uncertainty = float(spread.mean())
        size = batch.pixels.shape[-2:]
        if spread.ndim == 1:
            spread = torch.rand(len(batch), *size, generator=generator).to(spread.device)
        dense = F.interpolate(spread[:, None], size=tuple(size), mode="bilinear")[:, 0]
        self.student.place = _placement(dense, config.sparsity)[:, None]

    def _teach(self, batch: Input, pixels: Tensor) -> Tensor:
        values = {**self.teacher.values, **self.prompt_teacher.values}
        with torch.no_grad():
            return select_classes(self.substitute(values, pixels), batch.classes).float()
