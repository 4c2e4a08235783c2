"""Precision is a method's own: it holds during a step and nowhere else."""

from __future__ import annotations

import pytest
import torch

import ostinato
from ostinato.data.embedded import embedded_images, embedded_model
from ostinato.errors import ConfigError, InputError
from ostinato.methods.base import Input, Objective
from ostinato.methods.tent import Tent
from ostinato.running.spec import Spec


def test_tf32_holds_during_a_step_and_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    objective, update = Tent.objective, Tent.update

    def watched(self: Tent, batch: Input) -> Objective:
        seen.append(torch.get_float32_matmul_precision())
        return objective(self, batch)

    def moved(self: Tent, batch: Input, given: Objective) -> bool:
        seen.append(torch.get_float32_matmul_precision())  # the backward's products as well
        return update(self, batch, given)

    monkeypatch.setattr(Tent, "objective", watched)
    monkeypatch.setattr(Tent, "update", moved)
    images = embedded_images("test")[0][:4]
    ostinato.adapt(embedded_model(), "tent", precision="tf32")(images)
    assert seen == ["high", "high"]
    assert torch.get_float32_matmul_precision() == "highest"
    ostinato.adapt(embedded_model(), "tent")(images)
    assert seen[2:] == ["highest", "highest"]


def test_a_failing_step_puts_it_back_too() -> None:
    adapted = ostinato.adapt(embedded_model(), "tent", precision="tf32")
    with pytest.raises(InputError):
        adapted(torch.full((1, 3, 32, 32), float("nan")))
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_spec_names_the_precisions() -> None:
    assert Spec.parse({"precision": "tf32"}).precision == "tf32"
    with pytest.raises(ConfigError, match="tf32"):
        Spec.parse({"precision": "tf"})
