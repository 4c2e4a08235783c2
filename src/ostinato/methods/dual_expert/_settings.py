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
    """Settings of the dual-expert method. The defaults are `source-free`; `paper` differs.

    >>> DualExpertConfig(lr=1e-4).optimizer
    'adam'
    """

    experts: ExpertConfig = Field(ExpertConfig(), description="the two branches")
    discriminator: DiscriminatorConfig = Field(
        DiscriminatorConfig(), description="how domains are recognised"
    )
    optimizer: OptimizerName = Field("adam", description="adam, adamw or sgd")
    lr: float = Field(3e-5, ge=0, description="learning rate")
    weight_decay: float = Field(0.05, ge=0, description="weight decay")
    kappa: float = Field(0.4, gt=0, description="entropy above which a prediction is left out")
    kappa_unit: EntropyUnit = Field("relative", description="kappa times ln C, or kappa in nats")
    predict: Literal["before", "after"] = Field("before", description="prediction's time")
    max_domains: int | None = Field(32, ge=1, description="bound on kept domains; none: no bound")
    retire: Literal["lru", "merge"] = Field(
        "merge", description="at the bound: merge the nearest two, or forget the least used"
    )
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
        "lr": 1e-5,
        "discriminator": {"correction": False, "threshold": 0.15, "evidence": 1},
        "guard": False,
        "max_domains": None,  # the paper has no bound
    },
    "source-free": {},  # the defaults
}
