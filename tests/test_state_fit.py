"""A whole, well-signed state that does not fit is refused, and nothing has changed."""

from __future__ import annotations

import itertools
import json
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import ostinato
from ostinato.checks import small_batches, small_model
from ostinato.errors import StateError
from ostinato.methods._pools import PromptPool
from ostinato.methods.base import Method
from ostinato.ops import snapshot
from ostinato.ops.classmean import ClassMean
from ostinato.ops.expect import Kind, Like, _check_part, check_state
from ostinato.ops.snapshot import State, load_state, save_state

METHODS = {"tent": {}, "cotta": {}, "rotta": {"capacity": 4}, "vdp": {"size": 4}, "sar": {}}
METHODS |= {"dual_expert": {}, "t3a": {}, "neo": {}, "spa": {}}
LOOSE = ("latest", "recent", "pending")
"""What a state may have more of, or none: images, and descriptors that wait."""
RESERVOIR = {"threshold": 1.0, "memory": 8}


small = runpy.run_path(str(Path(__file__).with_name("_ostinato_small.py")))


def adapted(name: str) -> Method:
    if name == "ostinato":
        own: Method = small["build"](small["clean_statistics"]())
        for batch in small["shifted"](4):
            own(batch)
        assert len(own.bank.domains) == 1
        return own
    given = RESERVOIR if name == "reservoir" else METHODS[name]
    method = ostinato.adapt(small_model(), name, **given)
    for batch in small_batches(2):
        method(batch)
    return method


@pytest.fixture(scope="module", params=[*METHODS, "reservoir", "ostinato"])
def method(request: pytest.FixtureRequest) -> Method:
    return adapted(request.param)


def bits(method: Method) -> dict[str, Tensor]:
    return method.export_state().clone().tensors


def refused(method: Method, state: State, what: object) -> None:
    before, values = bits(method), method.export_state().clone().values
    try:
        method.import_state(state)
    except StateError:
        pass
    else:
        pytest.fail(f"{what} is taken")
    after = bits(method)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert values == method.export_state().clone().values


def spoil(value: float) -> Callable[[Tensor], Tensor | None]:
    def change(tensor: Tensor) -> Tensor | None:
        if not tensor.is_floating_point() or not tensor.numel():
            return None
        changed = tensor.clone()
        changed.view(-1)[-1] = value
        return changed

    return change


CHANGES: dict[str, Callable[[Tensor], Tensor | None]] = {
    "nan": spoil(float("nan")),
    "infinite": spoil(float("-inf")),
    "one row more": lambda t: torch.cat([t, t[:1]]) if t.ndim and len(t) else t[None],
    "one size more": lambda t: t[None],
    "another type": lambda t: t.double() if t.dtype == torch.float32 else t.float(),
}


def test_no_changed_tensor_is_taken(method):
    state = method.export_state().clone()
    for change, (name, tensor) in itertools.product(CHANGES, state.tensors.items()):
        changed = CHANGES[change](tensor)
        more = change == "one row more" and name.endswith(LOOSE)
        if changed is not None and not more:
            given = State({**state.tensors, name: changed}, state.values)
            refused(method, given, f"{name}, {change}")


def test_no_missing_and_no_extra_tensor_is_taken(method):
    state = method.export_state().clone()
    for name in (name for name in state.tensors if not name.endswith(LOOSE)):
        rest = {key: tensor for key, tensor in state.tensors.items() if key != name}
        refused(method, State(rest, state.values), f"no {name}")
    parts = {name.partition("/")[0] for name in state.tensors}
    for name in (*(f"{part}/more" for part in sorted(parts)), "foreign/a", "plain"):
        refused(method, State({**state.tensors, name: torch.zeros(1)}, state.values), name)


def paths(values: object, start: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    found = [start] if start else []
    items = values.items() if isinstance(values, dict) else ()
    items = enumerate(values) if isinstance(values, list) else items
    for key, value in items:
        found += paths(value, (*start, key))
    return found


def put(values: dict, path: tuple, value: object) -> dict:
    changed = json.loads(json.dumps(values))
    place = changed
    for key in path[:-1]:
        place = place[key]
    if value is put:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return changed


def test_no_value_of_another_kind_is_taken(method):
    state = method.export_state().clone()
    kinds = ("word", {"a": 1}, float("inf"), -5, True)
    for value, path in itertools.product(kinds, paths(state.values)):
        old = state.values
        for key in path:
            old = old[key]
        # What starts as None may be any number later.
        later = value == -5 and path[-1] in ("loss", "confidence")
        if not later and not type(old) is type(value) is bool:
            given = State(state.tensors, put(state.values, path, value))
            refused(method, given, (path, value))


def test_no_missing_and_no_extra_value_is_taken(method):
    state = method.export_state().clone()
    for path in paths(state.values):
        if isinstance(path[-1], str):  # a shorter list may be a state as well
            refused(method, State(state.tensors, put(state.values, path, put)), path)
    for name, part in state.values.items():
        if isinstance(part, dict):
            refused(method, State(state.tensors, put(state.values, (name, "more"), 1)), name)
    refused(method, State(state.tensors, {**state.values, "more": {}}), "a part more")


def test_a_mean_prediction_is_there_or_not_and_of_the_size_it_says():
    mean = ClassMean()
    check_state(mean, mean.export_state())
    mean.update(torch.full((2, 5), 0.2))
    state = mean.export_state().clone()
    check_state(mean, state)
    value = state.tensors["mean"]
    for tensors in ({}, {"mean": torch.cat([value, value])}, {"mean": value[:0]}):
        with pytest.raises(StateError, match="does not fit"):
            check_state(mean, State(tensors, state.values))
    for classes in (0, 4, -1, "five", True):
        with pytest.raises(StateError, match="does not fit"):
            check_state(mean, State(state.tensors, {"classes": classes}))


def test_a_pool_of_prompts_is_of_the_types_and_sizes_it_says():
    pool = PromptPool()
    check_state(pool, pool.export_state())
    pool.add(torch.zeros(3), torch.zeros(2, 4))
    state = pool.export_state().clone()
    check_state(PromptPool(), state)
    for name, tensor in state.tensors.items():
        for changed in (tensor.half(), tensor[0], torch.cat([tensor, tensor]), tensor.double()):
            with pytest.raises(StateError, match="does not fit"):
                check_state(PromptPool(), State({**state.tensors, name: changed}, state.values))
    for tensors in ({}, {"keys": state.tensors["keys"]}):
        with pytest.raises(StateError, match="does not fit"):
            check_state(PromptPool(), State(tensors, state.values))
    for forms in ({}, [], {"keys": ["float32", 1, 3]}, {"keys": ["int64", 1, 3]}, None, "x"):
        with pytest.raises(StateError, match="does not fit"):
            check_state(PromptPool(), State(state.tensors, {"forms": forms}))
    pool.drop(0)
    pool.add(torch.zeros(5), torch.zeros(2, 4))
    with pytest.raises(StateError, match="keys are"):
        check_state(pool, state)


def test_what_fits_is_taken(method):
    state = method.export_state().clone()
    method.import_state(state)
    assert all(torch.equal(tensor, bits(method)[name]) for name, tensor in state.tensors.items())


def test_a_part_that_declares_nothing_must_give_back_what_it_took():
    class Careless:
        """Takes a tensor over in another type."""

        kept = torch.zeros(2)

        def export_state(self) -> State:
            return State({"kept": self.kept})

        def import_state(self, state: State) -> None:
            self.kept = state.tensors["kept"].half()

    method = ostinato.adapt(small_model(), "source")
    careless = method.track("careless", Careless())
    state = method.export_state().clone()
    with pytest.raises(StateError, match="another shape or type"):
        method.import_state(state)
    assert torch.equal(careless.kept, torch.zeros(2))


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "s"
    save_state(place, State({"a": torch.ones(2)}, {"steps": 3}), {"method": "x"})
    return place


def sign_again(path, change: Callable[[dict, dict], None]) -> None:
    with safe_open(str(path), framework="pt") as file:
        meta = file.metadata()
    tensors = load_file(path)
    change(tensors, meta)
    meta["digest"] = snapshot._digest(tensors, meta)
    save_file(tensors, path, metadata=meta)


@pytest.mark.parametrize("version", ["1.0", "x", "", "0", "-1", "١", "1e0", " 1", None])
def test_versions_that_are_none(path, version):
    def change(_: dict, meta: dict) -> None:
        if version is None:
            del meta["version"]
        else:
            meta["version"] = version

    sign_again(path, change)
    with pytest.raises(StateError, match="version"):
        load_state(path)


@pytest.mark.parametrize("key", ["values", "header"])
@pytest.mark.parametrize("text", ["[]", "1", "null", "{", "[" * 100_000, '{"a": 1} 2', None])
def test_values_and_header_must_be_objects(path, key, text):
    def change(_: dict, meta: dict) -> None:
        if text is None:
            del meta[key]
        else:
            meta[key] = text

    sign_again(path, change)
    with pytest.raises(StateError, match="damaged"):
        load_state(path)


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": [1e999]}', '{"a": {"b": -Infinity}}'])
def test_values_in_a_file_are_finite(path, text):
    sign_again(path, lambda _, meta: meta.update(values=text))
    with pytest.raises(StateError, match="infinite"):
        load_state(path)


def test_tensors_in_a_file_are_finite(path):
    sign_again(path, lambda tensors, _: tensors.update(a=torch.tensor([1.0, float("nan")])))
    with pytest.raises(StateError, match="NaN"):
        load_state(path)


def test_a_state_that_could_not_be_loaded_is_not_saved(path):
    before = path.read_bytes()
    with pytest.raises(StateError, match="NaN"):
        save_state(path, State({"a": torch.tensor(float("nan"))}), {})
    assert path.read_bytes() == before


@pytest.mark.parametrize("config", [None, [], "x", 3])
def test_a_header_whose_settings_are_none(tmp_path, config):
    method = ostinato.adapt(small_model(), "source")
    place = tmp_path / "s"
    header = {**method._header(), "config": config}
    save_state(place, method.export_state(), header)
    with pytest.raises(StateError, match="settings"):
        method.load(place)


def test_kinds():
    assert Kind.optional(Kind.number()).fits(None)
    assert not Kind.number().fits(True)
    assert not Kind.exactly(1).fits(1.0)
    assert not Kind.exactly(1).fits(True)
    assert Kind.listed(Kind.number()).fits([])
    assert not Kind.listed(Kind.number()).fits((1,))


def test_a_named_size_is_the_same_everywhere():
    from ostinato.ops.expect import Expected

    wanted = Expected({"a": Like(("n",)), "b": Like(("n", 2))})
    _check_part("x", State({"a": torch.zeros(3), "b": torch.zeros(3, 2)}), wanted)
    with pytest.raises(StateError, match="shape"):
        _check_part("x", State({"a": torch.zeros(3), "b": torch.zeros(4, 2)}), wanted)
