"""The discriminator's settings, and the evidence that it decides on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator
from torch import Tensor

from ostinato.config import Config
from ostinato.domains._gaussian import Covariance
from ostinato.domains.descriptor import THRESHOLD
from ostinato.registry import DESCRIPTORS


class DiscriminatorConfig(Config):
    """How domains are recognised. `evidence=1, correction=False` is the plain rule of the paper.

    >>> DiscriminatorConfig().threshold, DiscriminatorConfig(descriptor="full").threshold
    (0.16, 0.4)
    """

    kind: str = Field("fdd", description="fdd, or oracle, confidence-jump, random, single")
    descriptor: str = Field(
        "low",
        description="low, high, full, rgb-histogram, style or cls-feature: what images look like",
    )
    radius: int | None = Field(
        None, ge=1, description="frequency radius; none scales 16 at 224 px with the image"
    )
    covariance: Covariance = Field("diag", description="diag, full, or none for Euclidean")
    threshold: float = Field(
        THRESHOLD,
        gt=0,
        description="distance above which a domain is new; the descriptor's own unless given",
    )
    initial_variance: float = Field(0.3, gt=0, description="variance a new domain starts with")
    shrinkage: float = Field(1e-3, ge=0, lt=1, description="share of the identity in a covariance")
    correction: bool = Field(True, description="subtract what sampling alone adds to a distance")
    update: Literal["weighted", "ema"] = Field("weighted", description="how a domain learns")
    momentum: float = Field(0.1, gt=0, le=1, description="rate of the ema update")
    evidence: int = Field(
        25, ge=1, description="images a new domain must rest on; smaller batches are pooled"
    )
    agreement: float = Field(
        2.0, gt=0, description="times the threshold by which halves of the evidence may differ"
    )
    hysteresis: float = Field(
        0.1, ge=0, description="by how much another domain must be nearer to win a small batch"
    )
    jump: float = Field(0.1, gt=0, description="confidence-jump: change that opens a domain")
    seed: int = Field(0, description="random: seeds the routing")

    @model_validator(mode="before")
    @classmethod
    def _own_threshold(cls, given: Any) -> Any:
        """Descriptors spread differently, so that each has a threshold of its own."""
        if isinstance(given, Mapping) and "threshold" not in given:
            name = str(given.get("descriptor", "low"))
            if name in DESCRIPTORS:
                return {**given, "threshold": getattr(DESCRIPTORS[name], "threshold", THRESHOLD)}
        return given


@dataclass(frozen=True)
class Evidence:
    """What is known of a batch when its domain is decided.

    Attributes:
        descriptors: (B, d), one per image.
        confidence: mean largest softmax of the current model; called only if it is needed.
        oracle: the true domain's name; given to the oracle variant alone.
        image_size: height and width of the images.

    >>> import torch
    >>> Evidence(torch.zeros(50, 289), image_size=(224, 224)).descriptors.shape
    torch.Size([50, 289])
    """

    descriptors: Tensor
    confidence: Callable[[], float] | None = None
    oracle: str | None = None
    image_size: tuple[int, int] | None = None
