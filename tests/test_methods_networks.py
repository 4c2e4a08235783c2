"""Every method on networks with batch, group and layer norms: it works, or says what else would."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

import ostinato
from ostinato.api import prepare
from ostinato.errors import ConfigError, TargetError
from ostinato.registry import METHODS

kit = runpy.run_path(str(Path(__file__).with_name("_backbones.py")))
images = kit["images"]

NORMS = {"batch": "timm efficientnet", "group": "timm resnet50-gn", "layer": "torchvision convnext"}
EVERYWHERE = ("tent", "eata", "sar", "roid", "rotta", "cotta", "rdumb", "deyo", "rmt", "pea")
"""Those that do not rest on tokens, prompts or attention."""


def _adapted(name, family):
    model, kind = kit["build"](family), METHODS[name]
    quick = {"warm_steps": 2} if "warm_steps" in kind.Config.model_fields else {}
    more, needs = kit["_convention"](model) | quick, kind.needs(kind.Config())
    if "source statistics" in needs:
        more["statistics"] = kit["statistics_of"](family)
    if "prepared file" in needs:
        more["prepared"] = prepare(model, name, images(24), torch.zeros(24).long(), **more)
    return ostinato.adapt(model, name, **more)


@pytest.mark.parametrize("name", METHODS.names())
@pytest.mark.parametrize("norm", NORMS)
def test_a_method_works_or_refuses_plainly(norm, name):
    try:
        adapted = _adapted(name, NORMS[norm])
        answers = [adapted(images(8, seed, 2)) for seed in range(2)]
    except (TargetError, ConfigError):
        assert name not in EVERYWHERE
        return
    assert all(one.isfinite().all() for one in answers)
    back = ostinato.unwrap(adapted).state_dict()
    source = kit["build"](NORMS[norm]).state_dict()
    assert all(torch.equal(back[key], source[key]) for key in source)
