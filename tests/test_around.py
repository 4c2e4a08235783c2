"""Compiled models and DataParallel: adapted inside of it, and given back with it around."""

from __future__ import annotations

import copy
import pickle
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

import ostinato
from ostinato.errors import ConfigError

kit = runpy.run_path(str(Path(__file__).with_name("_backbones.py")))
images, build = kit["images"], kit["build"]
COMPILED = {"backend": "eager"}


def _adapted(model, **more):
    statistics = ostinato.collect_statistics(model, images(60))
    return ostinato.adapt(model, statistics=statistics, enough=8, micro=8, trust=False, **more)


def _answers(adapted, count=3):
    return torch.cat([adapted(images(12, seed, 2)) for seed in range(count)])


@pytest.fixture(scope="module")
def expected():
    return _answers(_adapted(build("timm vit")))


def _whole(model):
    return torch.compile(model, **COMPILED)


def _in_place(model):
    model.compile(**COMPILED)
    return model


def _blocks(model):
    for number, block in enumerate(model.blocks):
        model.blocks[number] = torch.compile(block, **COMPILED)
    return model


@pytest.mark.parametrize("put", [_whole, _in_place, _blocks, nn.DataParallel])
def test_what_is_around_a_model_is_set_aside_and_put_back(put, expected):
    around = put(build("timm vit"))
    with torch.no_grad():
        before = around(images(4))  # compiled now, so that what comes later would not be seen
    names = list(around.state_dict())
    adapted = _adapted(around)
    torch.testing.assert_close(_answers(adapted), expected)
    assert adapted.bank.shared.updates
    assert ostinato.unwrap(adapted) is around
    assert list(around.state_dict()) == names
    with torch.no_grad():
        assert torch.equal(around(images(4)), before)


def test_a_model_that_is_compiled_while_it_is_adapted(expected):
    model = build("timm vit")
    adapted = _adapted(model)
    model.compile(**COMPILED)
    torch.testing.assert_close(_answers(adapted), expected)


def test_an_adapted_model_is_compiled_and_runs_as_it_is(expected):
    compiled = torch.compile(_adapted(build("timm vit")), **COMPILED)
    torch.testing.assert_close(_answers(compiled), expected)

    @torch.compile(**COMPILED)
    def most_likely(model, batch):
        return (2 * model(batch)).argmax(1)

    adapted = _adapted(build("timm vit"))
    found = torch.cat([most_likely(adapted, images(12, seed, 2)) for seed in range(3)])
    assert torch.equal(found, expected.argmax(1))


def test_a_copy_has_nothing_around_it():
    adapted = _adapted(_whole(build("timm vit")))
    adapted(images(12, 1, 2))
    twins = (copy.deepcopy(adapted), pickle.loads(pickle.dumps(adapted)))
    following = adapted(images(12, 2, 2))
    assert all(torch.equal(twin(images(12, 2, 2)), following) for twin in twins)
    assert type(ostinato.unwrap(twins[0])) is type(build("timm vit"))


def test_a_refusal_leaves_everything_around():
    model = _blocks(build("timm vit"))
    with pytest.raises(ConfigError, match="lr"):
        ostinato.adapt(model, "tent", lr=-1)
    with pytest.raises(ConfigError, match="std"):
        ostinato.collect_statistics(model, images(4), mean=(0.5,))
    assert all("_orig_mod" in block._modules for block in model.blocks)
    with pytest.raises(ConfigError, match="adapted already"):
        ostinato.adapt(torch.compile(ostinato.adapt(build("timm vit"), "tent")), "tent")


def test_copies_on_several_gpus_are_refused():
    adapted = ostinato.adapt(build("timm vit"), "tent")
    assert nn.DataParallel(adapted)(images(4)).shape == (4, 5)
    with pytest.raises(ConfigError, match="group="):
        adapted._replicate_for_data_parallel()
