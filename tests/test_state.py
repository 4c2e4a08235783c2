"""State files: whole, checked, and never half written."""

from __future__ import annotations

import gc
import json
import tracemalloc

import pytest
import torch
from safetensors.torch import load_file, save_file

import ostinato
from ostinato.data.embedded import embedded_model
from ostinato.errors import StateError
from ostinato.ops import snapshot
from ostinato.ops.optim import export_optimizer, import_optimizer, make_optimizer
from ostinato.ops.snapshot import RandomState, State, load_state, save_state

STATE = State({"a": torch.arange(6.0)}, {"steps": 3})
HEADER = {"method": "x"}


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "s.safetensors"
    save_state(target, STATE, HEADER)
    return target


def test_round_trip(path):
    state, header = load_state(path)
    assert torch.equal(state.tensors["a"], STATE.tensors["a"])
    assert state.values == {"steps": 3}
    assert header == HEADER


def test_truncated_file(path):
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(StateError, match="truncated or damaged"):
        load_state(path)


@pytest.mark.parametrize("position", [-1, -9])
def test_flipped_bit(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(StateError, match="damaged"):
        load_state(path)


def test_changed_values_are_noticed(path, tmp_path):
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        meta = file.metadata()
    meta["values"] = json.dumps({"steps": 4})
    save_file(load_file(path), path, metadata=meta)
    with pytest.raises(StateError, match="checksum"):
        load_state(path)


def test_what_was_loaded_does_not_follow_its_file(path):
    state, _ = load_state(path)
    before = state.clone()
    path.write_bytes(bytes(path.stat().st_size))  # in place, as cp does
    assert all(torch.equal(tensor, before.tensors[name]) for name, tensor in state.tensors.items())


def test_reading_leaves_nothing_behind(tmp_path):
    path = tmp_path / "s.safetensors"
    names = [f"part {number}" for number in range(300)]
    save_state(path, State({name: torch.ones(1000) for name in names}), HEADER)
    load_state(path)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(10):
            load_state(path)
        gc.collect()
        left = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert left < 8000  # three bytes a tensor; mapped files left thirty


def test_foreign_file(tmp_path):
    target = tmp_path / "other.safetensors"
    save_file({"w": torch.zeros(1)}, target)
    with pytest.raises(StateError, match="not one that Ostinato saved"):
        load_state(target)


def test_newer_version(path, monkeypatch, tmp_path):
    monkeypatch.setattr(snapshot, "_VERSION", 99)
    save_state(path, STATE, HEADER)
    monkeypatch.undo()
    with pytest.raises(StateError, match="version 99"):
        load_state(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(StateError, match="no state file"):
        load_state(tmp_path / "none")
    with pytest.raises(StateError, match="does not exist"):
        save_state(tmp_path / "no" / "s", STATE, HEADER)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_optimizer_state_continues_to_the_bit(name):
    def build():
        weights = [torch.nn.Parameter(torch.linspace(-1, 1, 5)), torch.nn.Parameter(torch.ones(2))]
        return weights, make_optimizer(name, weights, lr=0.1, weight_decay=0.01, momentum=0.9)

    def advance(weights, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            sum((w**3).sum() for w in weights).backward()
            optimizer.step()

    weights, optimizer = build()
    advance(weights, optimizer, 3)
    saved = export_optimizer(optimizer).clone()
    copies, fresh = build()
    for copy, weight in zip(copies, weights, strict=True):
        copy.data.copy_(weight.data)
    import_optimizer(fresh, saved)
    advance(weights, optimizer, 3)
    advance(copies, fresh, 3)
    assert all(torch.equal(a, b) for a, b in zip(weights, copies, strict=True))


def test_a_state_from_a_file_goes_to_the_model_s_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kept:
        """Takes tensors over as they come, as pools and memories do."""

        seen = torch.zeros(2)

        def export_state(self) -> State:
            return State({"seen": torch.zeros(2)})

        def import_state(self, state: State) -> None:
            self.seen = state.tensors["seen"]

    adapted = ostinato.adapt(embedded_model(), "source")
    kept = adapted.track("kept", Kept())
    state = adapted.export_state()
    # Stands for a GPU: a device that is not the file's.
    monkeypatch.setattr(adapted.model, "device", torch.device("meta"))
    monkeypatch.setattr(RandomState, "import_state", lambda self, state: None)
    adapted.import_state(state)
    assert kept.seen.device.type == "meta"
