"""Values that cannot be right are refused where they are given, and nothing has changed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import ostinato
from ostinato.checks import small_batches, small_model
from ostinato.data.opening import DomainsConfig
from ostinato.data.streams import StreamConfig
from ostinato.errors import ConfigError, InputError, OstinatoError
from ostinato.methods.contract import Input
from ostinato.models import VisionModel, check_classes
from ostinato.ops.snapshot import State
from ostinato.ops.statistics import SourceStatistics
from ostinato.registry import METHODS
from ostinato.running.spec import Spec

INFINITE, NAN = float("inf"), float("nan")


def unchanged(model: nn.Module, before: nn.Module) -> bool:
    now, then = model.state_dict(), before.state_dict()
    flags = [p.requires_grad for p in model.parameters()]
    same = now.keys() == then.keys() and all(torch.equal(now[k], then[k]) for k in then)
    return same and flags == [p.requires_grad for p in before.parameters()]


@pytest.mark.parametrize("name", ["lr", "weight_decay", "momentum"])
@pytest.mark.parametrize("value", [INFINITE, NAN, -INFINITE])
def test_settings_are_finite(name, value):
    model = small_model()
    before = copy.deepcopy(model)
    with pytest.raises(ConfigError, match=name):
        ostinato.adapt(model, "tent", **{name: value})
    assert unchanged(model, before)


@pytest.mark.parametrize("seed", [2**63, 2**64, 10**30, -1])
def test_seeds_fit_a_generator(seed):
    with pytest.raises(ConfigError, match="seed"):
        ostinato.adapt(small_model(), "tent", seed=seed)
    with pytest.raises(ConfigError, match="seed"):
        Spec.parse({"seeds": [seed]})
    with pytest.raises(ConfigError, match="seed"):
        StreamConfig.parse({"seed": seed})


def test_the_largest_seed_works():
    ostinato.adapt(small_model(), "tent", seed=2**63 - 1)(small_batches(1)[0])


def test_an_empty_list_of_domains_is_refused():
    with pytest.raises(ConfigError, match="domains"):
        DomainsConfig.parse({"domains": []})
    # Kept as before, so that runs are found by their hash.
    assert DomainsConfig().model_dump(mode="json")["domains"] == []
    assert DomainsConfig().replace(severity=3).domains is None


@pytest.mark.parametrize("classes", [[0, 0], [1.0, 2.0], [True, False], [], [[0]], [-1], "ab", [9]])
def test_label_spaces_are_indices_each_once(classes):
    with pytest.raises(InputError, match="classes"):
        check_classes(classes, outputs=4)


@pytest.mark.parametrize("classes", [[0, 0], [-1, 2], []])
def test_a_batch_with_a_broken_label_space_changes_nothing(classes):
    method = ostinato.adapt(small_model(), "tent")
    batch = small_batches(1)[0]
    method(batch)
    before = method.export_state().clone()
    with pytest.raises(InputError, match="classes"):
        method(batch, classes=torch.tensor(classes, dtype=torch.long))
    after = method.export_state()
    assert before.values == after.clone().values
    assert all(torch.equal(t, after.tensors[n]) for n, t in before.tensors.items())
    with pytest.raises(InputError, match="twice"):
        Input(batch, torch.tensor([1, 1]))


def test_the_model_s_outputs_bound_the_label_space():
    vision = VisionModel(small_model(), normalize="none")
    vision.check(small_batches(1)[0])
    assert vision.outputs is not None
    assert vision.check_classes([0, vision.outputs - 1]).tolist() == [0, vision.outputs - 1]
    with pytest.raises(InputError, match="outputs"):
        vision.check_classes([vision.outputs])


def odd_tensors() -> dict[str, torch.Tensor]:
    good = small_batches(1)[0]
    return {
        "sparse": good.to_sparse(),
        "meta": good.to("meta"),
        "quantized": torch.quantize_per_tensor(good, 1 / 255, 0, torch.quint8),
        "nested": torch.nested.nested_tensor([good[0], good[1]]),
    }


@pytest.mark.parametrize("kind", ["sparse", "meta", "quantized", "nested"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_that_are_not_dense_are_refused(kind):
    method = ostinato.adapt(small_model(), "tent")
    method(small_batches(1)[0])
    before = method.export_state().clone()
    for call in (method, method.predict):
        with pytest.raises(InputError, match=kind):
            call(odd_tensors()[kind])
    assert before.values == method.export_state().clone().values


def test_a_first_batch_of_a_size_the_model_cannot_take():
    model = small_model()
    before = copy.deepcopy(model)
    method = ostinato.adapt(model, "tent")
    start = method.export_state().clone()
    good = small_batches(1)[0]
    with pytest.raises(InputError, match="does not take images of 17×"):
        method(good[:, :, :17])
    now = method.export_state()
    assert start.values == now.clone().values
    assert all(torch.equal(t, now.tensors[n]) for n, t in start.tensors.items())
    method(good)
    assert unchanged(ostinato.unwrap(method), before)


@pytest.mark.parametrize("thing", ["vit", None, 3, nn.Linear, lambda x: x])
def test_what_is_not_a_module_is_refused(thing):
    with pytest.raises(ConfigError, match=r"torch\.nn\.Module"):
        ostinato.adapt(thing, "tent")


def test_a_model_without_its_weights_is_refused():
    with pytest.raises(ConfigError, match="meta"):
        ostinato.adapt(small_model().to("meta"), "tent")


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ((0.5, 0.5, 0.5), (0.5, 0.0, 0.5)), ((0.5, NAN, 0.5), (0.5, 0.5, 0.5)),
        ((0.5, 0.5, 0.5), (0.5, 0.5)), ((0.5, 0.5, 0.5), None), ("abc", (1.0, 1.0, 1.0)),
    ],
)  # fmt: skip
def test_mean_and_std_are_numbers(mean, std):
    with pytest.raises(ConfigError, match=r"mean|std"):
        ostinato.adapt(small_model(), "tent", mean=mean, std=std)


def test_statistics_that_no_method_could_use(statistics):
    model = small_model()
    before = copy.deepcopy(model)
    wide = SourceStatistics(
        tuple(torch.zeros(999) for _ in statistics.means),
        tuple(torch.ones(999) for _ in statistics.stds), images=10,
    )  # fmt: skip
    spoiled = SourceStatistics(tuple(m * NAN for m in statistics.means), statistics.stds, images=10)
    for given, message in ((wide, "another model"), (spoiled, "NaN"), (3, "collect_statistics")):
        with pytest.raises(ConfigError, match=message):
            ostinato.adapt(model, "dual_expert", statistics=given)
        assert unchanged(model, before)


NEEDY = [n for n in METHODS if "prepared file" in METHODS[n].needs(METHODS[n].Config())]


@pytest.mark.parametrize("name", NEEDY)
def test_preparations_that_no_method_could_use(name):
    model = small_model()
    before = copy.deepcopy(model)
    spoiled = State({"x": torch.tensor(NAN)})
    for given in (State(), State({"x": torch.zeros(1)}, {"style": {}}), spoiled, 3):
        with pytest.raises(OstinatoError):
            ostinato.adapt(model, name, prepared=given)(small_batches(1)[0])
        assert unchanged(model, before)
