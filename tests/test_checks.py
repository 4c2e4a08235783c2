"""Every registered method passes the public conformance suite; the suite itself can fail."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ostinato.checks import check_method, small_batches
from ostinato.checks._building import builder
from ostinato.methods.base import Input, Method, MethodInfo, Objective
from ostinato.ops.snapshot import Scalars, State
from ostinato.registry import METHODS

# The same code with fewer repetitions, where the defaults repeat a step many times.
SHORT = {
    "adma": {"views": 2},
    "memo": {"views": 2},
    "foa": {"population": 6},
    "vida": {"views": 2, "high_rank": 8},
    "svdp": {"height": 54, "width": 96, "passes": 2},
}


@pytest.mark.parametrize("name", METHODS.names())
def test_registered_method_conforms(name):
    report = check_method(name, **SHORT.get(name, {}))
    assert report.passed, str(report)


@pytest.fixture
def broken():
    """Registers throw-away methods and forgets them again."""
    names = []

    def register(kind):
        names.append(kind.name)
        METHODS.register(kind.name)(kind)
        return kind.name

    yield register
    for name in names:
        METHODS.remove(name)


INFO = MethodInfo(title="x", paper="-", trains="x")


def failed(name):
    return [result.name for result in check_method(name).results if result.problem]


def test_suite_notices_a_method_that_writes_into_its_input(broken):
    class Writer(Method):
        name = "writer"
        info = INFO

        def objective(self, batch: Input) -> Objective:
            batch.pixels.mul_(0.5)
            return super().objective(batch)

    assert "Images are left as they were" in failed(broken(Writer))


def test_suite_notices_undeclared_movement_and_unseeded_noise(broken):
    class Sneaky(Method):
        name = "sneaky"
        info = INFO

        def objective(self, batch: Input) -> Objective:
            with torch.no_grad():
                next(self.model.base.parameters()).add_(0.1 * torch.rand(()))
            return super().objective(batch)

    problems = failed(broken(Sneaky))
    assert "Only declared parameters move" in problems
    assert "Seeded runs repeat" in problems
    assert "Reset is exact" in problems
    assert "Unwrap gives the source model back, bit for bit" in problems


def test_suite_notices_untracked_state(broken):
    class Forgetful(Method):
        name = "forgetful"
        info = INFO

        def configure(self) -> None:
            self.scale = 1.0

        def objective(self, batch: Input) -> Objective:
            self.scale *= 1.1
            return Objective(self.logits(batch) * self.scale)

    problems = failed(broken(Forgetful))
    assert "Reset is exact" in problems
    assert "Save, load and go on gives the same bits as going on" in problems


def test_suite_notices_state_that_grows_with_every_batch(broken):
    class Hoarder(Method):
        name = "hoarder"
        info = INFO

        def configure(self) -> None:
            self.seen = self.track("seen", Hoard())

        def objective(self, batch: Input) -> Objective:
            self.seen.tensors[str(len(self.seen.tensors))] = batch.pixels[0].clone()
            return super().objective(batch)

    class Hoard(State):
        def export_state(self) -> State:
            return State(dict(self.tensors))

        def import_state(self, state: State) -> None:
            self.tensors = dict(state.tensors)

    assert failed(broken(Hoarder)) == ["Memory stays bounded when the same domains return"]


def test_suite_notices_a_method_that_learns_nothing_from_its_stream(broken):
    class Idle(Method):
        name = "idle"
        info = INFO

        def trainable(self) -> dict[str, nn.Parameter]:
            return {f"head.{k}": p for k, p in self.model.base.head.named_parameters()}

    assert failed(broken(Idle)) == [
        "It learns from the suite's own stream, so that the other checks see it learn"
    ]


def test_suite_notices_what_exceptions_threads_and_copies_break(broken):
    class Fragile(Method):
        name = "fragile"
        info = INFO

        def configure(self) -> None:
            self.busy = False
            count = self.track("count", Scalars(batches=0))
            self.bump = lambda: count.update(batches=count["batches"] + 1)  # a copy bumps it too

        def objective(self, batch: Input) -> Objective:
            self.bump()
            block = self.model.base.blocks[0]
            handle = block.register_forward_hook(lambda module, inputs, output: output * 2)
            logits = self.logits(batch)
            handle.remove()  # not after an exception
            return Objective(logits)

        def preview(self, batch: Input) -> torch.Tensor:
            if self.busy:
                raise RuntimeError("not twice")
            self.busy = True
            return self.logits(batch)

    problems = failed(broken(Fragile))
    assert problems == [
        "A deep copy and a pickled one go on alike and leave the original alone",
        "Threads may call, predict and learn at once",
        "After an exception at any hook it can be reset and unwrapped as if nothing had been",
    ]


def test_suite_notices_a_save_that_a_full_disk_spoils(broken):
    class Rash(Method):
        name = "rash"
        info = INFO

        def save(self, path, *, buffers=False) -> None:
            with open(path, "wb") as file:  # noqa: PTH123
                file.write(b"half")
            super().save(path, buffers=buffers)

    assert failed(broken(Rash)) == [
        "A disk that fails leaves the old file and the state; a cut file is refused, a whole taken"
    ]


def test_suite_notices_a_load_that_forgets(broken):
    class Absent(Method):
        name = "absent"
        info = INFO

        def configure(self) -> None:
            self.count = self.track("count", Scalars(batches=0))

        def objective(self, batch: Input) -> Objective:
            self.count["batches"] += 1
            return super().objective(batch)

        def load(self, path) -> None:
            super().load(path)
            self.count["batches"] = 0

    assert failed(broken(Absent)) == [
        "A disk that fails leaves the old file and the state; a cut file is refused, a whole taken"
    ]


def test_suite_notices_answers_that_break_off_and_leave_something(broken):
    class Untidy(Method):
        name = "untidy"
        info = INFO

        def configure(self) -> None:
            self.count = self.track("count", Scalars(asked=0))

        def preview(self, batch: Input) -> torch.Tensor:
            self.count["asked"] += 1
            logits = self.logits(batch)
            self.count["asked"] -= 1  # not after an exception
            return logits

    assert failed(broken(Untidy)) == [
        "After an exception at any hook it can be reset and unwrapped as if nothing had been"
    ]


def test_suite_notices_what_refused_input_leaves_on_the_model(broken):
    class Hasty(Method):
        name = "hasty"
        info = INFO

        def step(self, images, **given):
            block = self.model.base.blocks[0]
            handle = block.register_forward_hook(lambda module, inputs, output: None)
            output = super().step(images, **given)
            handle.remove()  # not where the images are refused
            return output

    assert "Bad input is refused and changes nothing, nor what unwrap gives back" in failed(
        broken(Hasty)
    )


def test_our_own_method_founds_a_domain_and_learns_in_the_suite():
    build = builder("ostinato", METHODS["ostinato"], {})
    method = build()
    updated = [method.step(batch).updated for batch in small_batches(9)]
    assert any(updated)
    assert len(method.bank.domains) >= 1
    assert any(domain.share > 0 for domain in method.bank.domains.values())


def test_a_new_method_is_one_class(broken):
    class HeadOnly(Method):
        name = "head-only"
        info = INFO

        def trainable(self) -> dict[str, nn.Parameter]:
            return {f"head.{k}": p for k, p in self.model.base.head.named_parameters()}

        def objective(self, batch: Input) -> Objective:
            logits = self.logits(batch)
            return Objective(logits, logits.square().mean())

    report = check_method(broken(HeadOnly))
    assert report.passed, str(report)
    assert "FAIL" not in str(report)


def test_suite_notices_a_method_that_its_parts_keep_alive(broken):
    class Circle(Method):
        name = "circle"
        info = INFO

        def configure(self) -> None:
            self.again = self.logits

    assert failed(broken(Circle)) == ["Once unwrapped and let go of, its memory is free at once"]
