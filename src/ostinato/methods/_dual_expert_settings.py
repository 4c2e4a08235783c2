"""Settings of the dual-expert method and its presets, which `dual_expert` explains."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ostinato.domains.settings import DiscriminatorConfig
from ostinato.experts.layers import ExpertConfig
from ostinato.methods.contract import MethodConfig
from ostinato.ops.losses import EntropyUnit
from ostinato.ops.optim import OptimizerName


class DualExpertConfig(MethodConfig):
    """Settings of the dual-expert method; presets set what they do differently."""

    experts: ExpertConfig = Field(ExpertConfig(), description="the two branches")
    discriminator: DiscriminatorConfig = Field(
        DiscriminatorConfig(), description="how domains are recognised"
    )
    optimizer: OptimizerName = Field("adamw", description="adam, adamw or sgd")
    weight_decay: float = Field(0.05, ge=0, description="weight decay")
    settle: float | None = Field(
        None, gt=0, description="updates after which an expert learns half as fast"
    )
    alignment: float = Field(1.0, ge=0, description="weight of source-statistics alignment")
    tolerance: float = Field(
        3.0,
        ge=0,
        description="segmentation: source deviations that features may be off without alignment",
    )
    entropy: float = Field(0.2, ge=0, description="weight of confident entropy")
    pixel_entropy: float = Field(
        0.0, ge=0, description="the same beside alignment where pixels are predicted"
    )
    kappa: float = Field(0.4, gt=0, description="entropy above which a prediction is left out")
    kappa_unit: EntropyUnit = Field("relative", description="kappa times ln C, or kappa in nats")
    weighted: bool = Field(False, description="let the surest predictions lead the entropy")
    leash: float | None = Field(
        0.15,
        gt=0,
        description="share by which alignment may get worse before entropy has faded out",
    )
    fill: int = Field(32, ge=2, description="images that alignment's moments should rest on")
    predict: Literal["before", "after"] = Field("before", description="prediction's time")
    max_domains: int | None = Field(None, ge=1, description="bound on kept domains")
    retire: Literal["lru", "merge"] = Field("lru", description="how the bound is kept")
    offload: bool = Field(False, description="keep inactive domains on the CPU")
    guard: bool = Field(True, description="roll collapsing experts back")
    guard_window: int = Field(256, ge=1, description="images a diversity estimate rests on")
    guard_tolerance: float = Field(0.85, gt=0, lt=1, description="share of diversity to keep")
    guard_backoff: float = Field(
        0.3, gt=0, le=1, description="factor on an expert's learning rate after each rollback"
    )
    snapshot_every: int = Field(5, ge=1, description="good batches of a domain between snapshots")


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "optimizer": "adam",
        "lr": 1e-5,
        "alignment": 0.0,
        "entropy": 1.0,
        "discriminator": {"correction": False, "threshold": 0.15, "evidence": 1},
    },
    "robust": {
        "optimizer": "adamw",
        "lr": 2e-3,
        "settle": 10,
        "alignment": 1.0,
        "entropy": 0.2,
        "weighted": True,
        "discriminator": {"descriptor": "style"},
    },
    "source-free": {"optimizer": "adam", "lr": 3e-5, "alignment": 0.0, "entropy": 1.0},
}
