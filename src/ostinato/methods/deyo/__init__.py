"""DeYO: entropy is not enough; a sample must also depend on the shape of its object."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from ostinato.methods._settings import EntropyConfig
from ostinato.methods.base import Input, Method, MethodInfo, Objective
from ostinato.methods.deyo._shuffle import shuffle_patches
from ostinato.ops.consistency import masked_mean
from ostinato.ops.losses import entropy_threshold, softmax_entropy
from ostinato.ops.rates import scale_rate
from ostinato.ops.trainable import norm_parameters
from ostinato.registry import METHODS


@METHODS.register("deyo")
class Deyo(Method):
    """Adapt on samples that are sure and become unsure when their patches are shuffled.

    >>> from ostinato.checks import small_adapted
    >>> small_adapted("deyo").last.logits.shape
    torch.Size([8, 5])
    """

    info = MethodInfo(
        title="DeYO",
        paper="Lee et al., ICLR 2024",
        trains="affine parameters of the norms in blocks 0 to 8",
        setting="ImageNet-C, ViT-B/16",
        differences=(
            "first_blocks=None moves every norm; its own protocol starts afresh for every "
            "corruption, which a stream does with reset='domain'"
        ),
    )

    class Config(EntropyConfig):
        """Settings of DeYO.

        >>> Deyo.Config().predict
        'before'
        """

        lr: float = Field(1e-3, ge=0, description="learning rate for 64 images; follows the batch")
        kappa: float = Field(0.5, gt=0, description="entropy bound, times ln C")
        kappa_weight: float = Field(0.4, gt=0, description="entropy of weight one, times ln C")
        plpd: float = Field(
            0.2, description="smallest fall of the label's probability by shuffling"
        )
        grid: int = Field(4, ge=1, description="patches per side that are shuffled")
        first_blocks: int | None = Field(
            9, ge=1, description="blocks whose norms move; None: every norm"
        )

    presets = {"imagenet-c": {"lr": 1e-3}}
    wide = True
    example = {"plpd": -1.0}

    def trainable(self) -> dict[str, nn.Parameter]:
        """The norms' weights and biases, but those of the last blocks."""
        blocks = self.config.first_blocks
        return norm_parameters(self.model.base, blocks=None if blocks is None else range(blocks))

    def objective(self, batch: Input) -> Objective:
        """Entropy of samples that pass both filters, weighted by both criteria."""
        config = self.config
        logits = self.logits(batch)
        entropy = softmax_entropy(logits)
        keep = entropy.detach() < entropy_threshold(config.kappa, logits.shape[1])
        fall = self._fall(batch, logits, keep)
        keep = keep & (fall > config.plpd)
        one = entropy_threshold(config.kappa_weight, logits.shape[1])
        weight = _sample_weight(entropy.detach(), fall, one)
        return Objective(logits, masked_mean(weight * entropy, keep), keep.sum())

    def _fall(self, batch: Input, logits: Tensor, keep: Tensor) -> Tensor:
        """The label's fall by shuffling, for the images that are still in; zero for the others."""
        shuffled = shuffle_patches(batch.pixels, self.config.grid, self.random.generator)
        fall = torch.zeros(len(batch), device=logits.device)
        if bool(keep.any()):
            with torch.no_grad():
                fall[keep] = _label_fall(logits[keep], self.logits(batch, shuffled[keep]))
        return fall

    def update(self, batch: Input, objective: Objective) -> bool:
        """One step at a rate that follows the batch size."""
        assert self.optimizer is not None
        scale_rate(self.optimizer, self.config.lr, len(batch))
        return super().update(batch, objective)


def _label_fall(logits: Tensor, shuffled: Tensor) -> Tensor:
    """PLPD: how much probability the predicted label loses when the image is shuffled."""
    before, after = logits.detach().float().softmax(1), shuffled.detach().float().softmax(1)
    label = before.argmax(1, keepdim=True)
    return (before.gather(1, label) - after.gather(1, label)).squeeze(1)


def _sample_weight(entropy: Tensor, fall: Tensor, one: float) -> Tensor:
    """exp(one − entropy) + exp(fall): sure samples and shape-dependent ones count more."""
    return torch.exp(one - entropy) + torch.exp(fall)
