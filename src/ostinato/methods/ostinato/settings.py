"""The method's settings."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ostinato.methods.contract import MethodConfig

PRESETS: dict[str, dict[str, Any]] = {"robust": {"learn": True}, "forward-only": {"learn": False}}


class OstinatoConfig(MethodConfig):
    """Settings of the method; the presets differ in `learn` alone."""

    lr: float = Field(2e-3, gt=0, description="learning rate of a branch's first update")
    learn: bool = Field(True, description="refine experts by gradients, on top of their maps")
    count_in: bool = Field(True, description="let a batch's own images shape the answer to it")
    shares: tuple[float, ...] = Field(
        (0.2, 0.4, 0.6), min_length=1, description="shares that a map may move tokens by"
    )
    trust: bool = Field(True, description="let maps act only where they make answers surer")
    shared_rank: int = Field(64, ge=0, description="rank of the learned shared branch; 0: none")
    domain_rank: int = Field(32, ge=0, description="rank of a domain's learned branch; 0: none")
    alignment: float = Field(1.0, ge=0, description="weight of alignment with source features")
    entropy: float = Field(0.4, ge=0, description="weight of confident entropy beside alignment")
    kappa: float = Field(0.4, gt=0, description="entropy, in ln C, above which nothing is learned")
    settle: float = Field(10.0, gt=0, description="updates after which a rate has halved")
    keep: float = Field(
        0.7, ge=0, le=1, description="share of its maps' variety below which learning is forgotten"
    )
    temper: bool = Field(True, description="give learned answers as sure as the maps' alone are")
    micro: int = Field(50, ge=2, description="images of a domain that an update rests on")
    spare: int = Field(
        3, ge=0, description="micro-batches that a settled expert passes over between two updates"
    )
    enough: int = Field(20, ge=4, description="images of one piece that found a domain")
    apart: float = Field(5.5, gt=0, description="deviations between two domains")
    max_domains: int = Field(32, ge=1, description="domains that are kept, beside the source")
    buffer: int = Field(128, ge=8, description="latest images of a domain that maps are made from")
    true_domains: bool = Field(
        False, description="be told each image's domain: an upper bound for routing"
    )
    compile: bool | Literal["auto"] = Field(
        "auto",
        description="on a GPU, capture whole answers and updates where the model allows it; true "
        "also compiles the blocks that are captured, and warns where either cannot be",
    )
    resident: int = Field(
        64, ge=1, description="domains whose experts stay on a GPU; others wait in host memory"
    )
    buffer_mb: float = Field(256.0, gt=0, description="megabytes that all buffers may take")

    @property
    def middle(self) -> float:
        """The share that a new domain's maps begin with."""
        return sorted(self.shares)[(len(self.shares) - 1) // 2]
