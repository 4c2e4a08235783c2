"""Settings that several methods have in common, each with its words said once."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ostinato.methods.contract import MethodConfig
from ostinato.ops.optim import OptimizerName


class SgdConfig(MethodConfig):
    """Settings of a method that is given with plain SGD."""

    optimizer: OptimizerName = Field("sgd", description="adam, adamw or sgd")


class EntropyConfig(SgdConfig):
    """Settings of a method of TENT's family: SGD, and a choice of the forward that predicts."""

    predict: Literal["before", "after"] = Field("before", description="prediction's time")


class TeacherConfig(SgdConfig):
    """Settings of a student that learns from a mean teacher."""

    nesterov: bool = Field(True, description="Nesterov's form of the momentum, for sgd")
    ema: float = Field(0.999, ge=0, le=1, description="share of itself the teacher keeps")


class WarmedConfig(MethodConfig):
    """Settings of parts beside a model that a preparation may warm."""

    warmed: bool = Field(True, description="start from parts warmed on source images")
    warm_steps: int = Field(200, ge=1, description="updates of the preparation")
    warm_lr: float = Field(1e-4, gt=0, description="learning rate of the preparation")
    warm_batch: int = Field(50, ge=1, description="images per update of the preparation")


class ShiftConfig(MethodConfig):
    """Settings of a method that looks out for new domains."""

    threshold: float = Field(0.1, gt=0, description="distance from which a batch is a new domain")
    least: int = Field(32, ge=1, description="images below which no batch is judged")


class VectorsConfig(ShiftConfig):
    """Settings of a bank of domain vectors and of their mix."""

    margin: float = Field(0.01, gt=0, description="mean length from which a new vector leads")
    mix_lr: float = Field(0.1, ge=0, description="learning rate of the mix")
    mix_decay: float = Field(0.1, ge=0, description="weight decay of the mix")
    rest_decay: float = Field(0.4, ge=0, description="weight decay of what is beside the mix")


class PromptsConfig(MethodConfig):
    """Settings of prompts that are learned long on a new domain and shortly on a known one."""

    optimizer: OptimizerName = Field("adamw", description="adam, adamw or sgd")
    lr: float = Field(0.1, ge=0, description="learning rate of the domain's prompt")
    weight_decay: float = Field(0.01, ge=0, description="weight decay")
    prompts: int = Field(8, ge=1, description="prompt tokens of a domain")
    steps: int = Field(1, ge=1, description="updates per batch of a known domain")
    new_steps: int = Field(50, ge=1, description="updates on the batch that opens a new domain")
