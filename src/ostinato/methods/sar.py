"""SAR: sharpness-aware entropy of reliable samples, with recovery from collapse."""

from __future__ import annotations

from pydantic import Field
from torch import nn

from ostinato.methods._restart import restart
from ostinato.methods._settings import EntropyConfig
from ostinato.methods.base import Input, Method, MethodInfo, Objective
from ostinato.ops.consistency import masked_mean
from ostinato.ops.heads import select_classes
from ostinato.ops.losses import entropy_threshold, softmax_entropy
from ostinato.ops.rates import scale_rate
from ostinato.ops.sam import climbed
from ostinato.ops.snapshot import Scalars
from ostinato.ops.teacher import Substitute
from ostinato.ops.trainable import norm_parameters
from ostinato.registry import METHODS


@METHODS.register("sar")
class Sar(Method):
    """Minimise reliable entropy where the loss is flat; start over when it gets too low.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("sar").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="SAR",
        paper="Niu et al., ICLR 2023",
        trains="affine parameters of the norms in blocks 0 to 8",
        setting="ImageNet-C, ViT-B/16",
        differences=(
            "the average loss starts anew after a recovery, as the paper has it (the release "
            "carries the old average on, so that recoveries repeat); the climb is lent to the "
            "model for one forward in place of being added and taken off; its own protocol "
            "starts afresh for every corruption, which a stream does with reset='domain'"
        ),
    )

    class Config(EntropyConfig):
        """Settings of SAR.

        >>> Sar.Config().predict
        'before'
        """

        lr: float = Field(1e-3, ge=0, description="learning rate for 64 images; follows the batch")
        kappa: float = Field(0.4, gt=0, description="entropy bound, times ln C")
        radius: float = Field(0.05, ge=0, description="how far the climb goes")
        recover_below: float = Field(0.2, description="average loss at which the model starts over")
        first_blocks: int | None = Field(
            9, ge=1, description="blocks whose norms move; None: every norm"
        )

    presets = {"imagenet-c": {"lr": 1e-3}}

    def configure(self) -> None:
        """The moving average of the loss."""
        self.average = self.track("average", Scalars(loss=None))
        self._substitute = Substitute(self.model, self.trainable())

    def trainable(self) -> dict[str, nn.Parameter]:
        """The norms' weights and biases, but those of the last blocks."""
        blocks = self.config.first_blocks
        return norm_parameters(self.model.base, blocks=None if blocks is None else range(blocks))

    def objective(self, batch: Input) -> Objective:
        """Entropy of the reliable samples."""
        logits = self.logits(batch)
        entropy = softmax_entropy(logits)
        keep = entropy.detach() < entropy_threshold(self.config.kappa, logits.shape[1])
        return Objective(logits, masked_mean(entropy, keep), keep.sum(), {"keep": keep})

    def update(self, batch: Input, objective: Objective) -> bool:
        """Climb, take the gradient up there, step from where the climb began.

        Where no sample is reliable there is no slope, and the step is momentum's alone.
        """
        assert self.weights is not None
        assert self.optimizer is not None
        assert objective.loss is not None
        keep = objective.extra["keep"]
        values = climbed(self.weights.parameters, objective.loss, self.config.radius)
        if values is None:
            self.events.append("left out a non-finite update")
            return False
        with self.autocast():
            logits = select_classes(self._substitute(values, batch.pixels), batch.classes)
        entropy = softmax_entropy(logits)
        keep = keep & (entropy.detach() < entropy_threshold(self.config.kappa, logits.shape[1]))
        second = Objective(logits, masked_mean(entropy, keep))
        scale_rate(self.optimizer, self.config.lr, len(batch))
        stepped, used = bool(self.optimizer.state), int(keep.sum())
        moved = self.descend(second, [self.optimizer])
        objective.extra |= second.extra | {"used": used}
        if moved and used:
            self._watch(second.extra["loss"])
        return moved and (used > 0 or stepped)

    def _watch(self, loss: float) -> None:
        past = self.average["loss"]
        self.average["loss"] = loss if past is None else 0.9 * past + 0.1 * loss
        if self.average["loss"] < self.config.recover_below:
            restart(self, "weights", "optimizer", "average")
            self.events.append("recovered the source model")
