"""Any order of adapt, call, predict, frozen, save, load, reset and unwrap does what each promises.

Two methods go side by side. One is also asked, frozen, saved and given what it must refuse; none
of that may show in its state, so the other one, which is spared all of it, stays the same.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ostinato.checks import example_model, small_batches
from ostinato.checks._building import Build, builder, same_state
from ostinato.errors import InputError, StateError
from ostinato.methods.base import Method
from ostinato.ops.snapshot import State
from ostinato.registry import METHODS

BATCHES = small_batches(12, size=8)
batches = st.integers(0, len(BATCHES) - 1)


class Life(RuleBasedStateMachine):
    """One method's life, and its spared twin's."""

    build: ClassVar[Build]
    one: Method
    twin: Method

    @initialize()
    def adapt(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "state.safetensors"
        self.one, self.twin = self.build(), self.build()
        self.saved: State | None = None
        self.first = self.state()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def state(self) -> State:
        return self.one.export_state().clone()

    def unchanged(self, before: State) -> None:
        assert same_state(before, self.state())

    @rule(number=batches)
    def call(self, number: int) -> None:
        images = BATCHES[number].clone()
        answers = [method(images) for method in (self.one, self.twin)]
        assert torch.equal(*answers)
        assert torch.equal(images, BATCHES[number])
        assert same_state(self.state(), self.twin.export_state().clone())

    @rule(number=batches, source=st.booleans())
    def predict(self, number: int, source: bool) -> None:
        before = self.state()
        answer = self.one.predict(BATCHES[number], source=source)
        assert torch.equal(answer, self.one.predict(BATCHES[number]))
        self.unchanged(before)

    @rule(number=batches)
    def frozen(self, number: int) -> None:
        before = self.state()
        with self.one.frozen(), self.one.frozen():
            self.one(BATCHES[number])
            self.one.predict(BATCHES[number])
        self.unchanged(before)
        assert not self.one._frozen

    @rule(value=st.sampled_from([float("nan"), float("inf"), 7.0, -7.0]))
    def refuse(self, value: float) -> None:
        before = self.state()
        bad = BATCHES[0].clone()
        bad[-1, -1, -1, -1] = value
        for call in (self.one, self.one.predict):
            with pytest.raises(InputError):
                call(bad)
        with pytest.raises(InputError):
            self.one(BATCHES[0], classes=torch.tensor([0, 0]))
        self.unchanged(before)

    @rule()
    def save(self) -> None:
        self.saved = self.state()
        self.one.save(self.path, buffers=True)
        self.unchanged(self.saved)

    @precondition(lambda self: self.saved is not None)
    @rule()
    def load(self) -> None:
        for method in (self.one, self.twin):
            method.load(self.path)
        assert self.saved is not None
        self.unchanged(self.saved)

    @precondition(lambda self: self.saved is not None)
    @rule(at=st.floats(0, 1, exclude_max=True))
    def load_damaged(self, at: float) -> None:
        before, whole = self.state(), self.path.read_bytes()
        self.path.write_bytes(whole[: int(at * len(whole))])
        with pytest.raises(StateError):
            self.one.load(self.path)
        self.path.write_bytes(whole)
        self.unchanged(before)

    @rule()
    def reset(self) -> None:
        for method in (self.one, self.twin):
            method.reset()
        self.unchanged(self.first)

    @rule()
    def unwrap(self) -> None:
        before = self.state()
        model, wanted = self.one.detach(), example_model(type(self.one)).state_dict()
        assert list(model.state_dict()) == list(wanted)
        assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())
        gone: tuple[Any, ...] = (self.one, self.one.predict, lambda _: self.one.reset())
        for call in gone:
            with pytest.raises(StateError):
                call(BATCHES[0])
        self.one = self.build()
        self.one.import_state(before)
        self.unchanged(before)


def live(name: str, examples: int, steps: int) -> None:
    """Many lives of one method."""

    class Named(Life):
        build = staticmethod(builder(name, METHODS[name], {}))

    Named.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    Named.TestCase("runTest").runTest()


@pytest.mark.parametrize("name", ["tent", "ostinato", "dual_expert"])
def test_any_order_of_calls(name: str) -> None:
    live(name, examples=4, steps=10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tent", "ostinato", "dual_expert", "cotta", "rotta", "reservoir"])
def test_any_order_of_many_calls(name: str) -> None:
    live(name, examples=60, steps=40)
