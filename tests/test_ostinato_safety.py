"""What must not break the method: threads, copies, exceptions, unwrap and degenerate images."""

from __future__ import annotations

import copy
import pickle
import runpy
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ostinato.api import adapt, unwrap
from ostinato.checks import SIZE, small_batches, small_model
from ostinato.errors import ConfigError, StateError

kit = runpy.run_path(str(Path(__file__).with_name("_ostinato_small.py")))
SETTINGS, build, same_state = kit["SETTINGS"], kit["build"], kit["same_state"]
clean, shifted, clean_statistics = kit["clean"], kit["shifted"], kit["clean_statistics"]


@pytest.fixture(scope="module")
def small():
    return clean_statistics()


@pytest.fixture
def method(small, trusting):
    """A method that has founded a domain, trusts its maps and has learned."""
    method = build(small)
    for batch in shifted(4):
        method(batch)
    assert method.bank.shared.updates > 0
    return method


def hooks_of(net: torch.nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in net.modules())


# Threads.


def test_many_threads_predict_while_one_learns(method):
    hooks = hooks_of(method.model)
    problems: list[object] = []
    batches = [shifted(1, seed=seed) + clean(1, seed=seed) for seed in range(8)]
    start = threading.Barrier(9)

    def work(mine: list[Tensor]) -> None:
        start.wait()
        try:
            for batch in 3 * mine:
                if not bool(method.predict(batch).isfinite().all()):
                    problems.append("not finite")
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in batches]
    for thread in threads:
        thread.start()
    before = method.version.number
    start.wait()
    try:
        for batch in shifted(6, seed=50):
            assert bool(method(batch).isfinite().all())
    finally:
        for thread in threads:
            thread.join()
    method.learn()
    assert problems == []
    assert method.version.number > before
    assert hooks_of(method.model) == hooks
    with method.frozen():
        once = method.predict(shifted(5)[4])
        assert torch.equal(once, method.predict(shifted(5)[4]))


def test_learning_ends_though_predictions_keep_coming(method, monkeypatch):
    taken, take = [], method._take_in

    def busy(pixels: Tensor, described: Tensor, classes: Tensor | None) -> object:
        taken.append(len(pixels))
        if len(taken) < 50:  # another thread, faster than learning
            method.predict(shifted(1, seed=3)[0])
        return take(pixels, described, classes)

    monkeypatch.setattr(method, "_take_in", busy)
    for batch in shifted(2, seed=4):
        method.predict(batch)
    method.learn()
    assert len(taken) == 2
    assert len(method.queue) == 2


# Unwrap.


@pytest.mark.parametrize("name", ["tent", "cotta", "ostinato"])
def test_after_unwrap_every_call_refuses(name, small, tmp_path):
    net = small_model()
    settings = {"statistics": small, **SETTINGS} if name == "ostinato" else {}
    method = adapt(net, name, **settings)
    batch = small_batches(1)[0]
    method(batch)
    path = tmp_path / "state"
    method.save(path)
    state = method.export_state().clone()
    assert unwrap(method) is net
    weights = {key: value.clone() for key, value in net.state_dict().items()}
    calls = (
        lambda: method(batch),
        lambda: method.step(batch),
        lambda: method.predict(batch),
        lambda: method.learn(),
        lambda: method.reset(),
        lambda: method.load(path),
        lambda: method.import_state(state),
        lambda: method.export_state(),
        lambda: method.save(path),
        lambda: method.double(),
    )
    written = path.read_bytes()
    for call in calls:
        with pytest.raises(StateError, match="unwrap"):
            call()
    assert path.read_bytes() == written
    assert unwrap(method) is net  # once more does nothing
    assert hooks_of(net) == 0
    assert all(torch.equal(value, weights[key]) for key, value in net.state_dict().items())
    adapt(net, name, **settings)


def test_two_methods_on_one_model_are_refused(small):
    net = small_model()
    method = adapt(net, statistics=small, **SETTINGS)
    hooks = hooks_of(net)
    for name in ("ostinato", "tent"):
        with pytest.raises(ConfigError, match="adapted already"):
            adapt(net, name, **({"statistics": small} if name == "ostinato" else {}))
    assert hooks_of(net) == hooks
    assert method(clean(1)[0]).shape == (8, 5)


# Copies.


def duplicate(method, way: str):
    return copy.deepcopy(method) if way == "deepcopy" else pickle.loads(pickle.dumps(method))


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copy_answers_the_same_and_goes_its_own_way(method, way):
    other = duplicate(method, way)
    batch = shifted(5)[4]
    assert torch.equal(other.predict(batch), method.predict(batch))
    for one in (method, other):
        one.queue.clear()
    before = method.export_state().clone()
    answers = [other(one) for one in small_batches(6, seed=7)]
    assert same_state(before, method.export_state())
    assert all(
        torch.equal(method(one), answer)
        for one, answer in zip(small_batches(6, seed=7), answers, strict=True)
    )
    net = unwrap(method)  # the copy keeps its hooks, and they are its own
    assert hooks_of(net) == 0
    assert hooks_of(other.model) > 0
    assert bool(other(batch).isfinite().all())
    other.reset()
    assert other.router.domains == ()


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
@pytest.mark.parametrize("name", ["tent", "cotta", "reservoir"])
def test_copies_of_other_methods(name, way):
    settings = {"threshold": 1.0} if name == "reservoir" else {}
    method = adapt(small_model(), name, **settings)
    batches = small_batches(4)
    for batch in batches[:2]:
        method(batch)
    other = duplicate(method, way)
    for batch in batches[2:]:
        assert torch.equal(method(batch), other(batch))


def test_a_copy_s_model_is_claimed(method):
    other = copy.deepcopy(method)
    with pytest.raises(ConfigError, match="adapted already"):
        adapt(other.model.base, "tent")
    net = unwrap(other)
    adapt(net, "tent")
    assert bool(method(shifted(1)[0]).isfinite().all())


# Exceptions.


class Stop(Exception):
    """What a test throws into a forward."""


def stopping(net: torch.nn.Module, after: int):
    """A hook that raises at one block's (after + 1)th forward."""
    count = iter(range(100))

    def hook(*_: object) -> None:
        if next(count) >= after:
            raise Stop

    return net.blocks[1].register_forward_hook(hook)


def _run(method, stream: list[Tensor]) -> None:
    for batch in stream:
        method(batch)


@pytest.mark.parametrize("after", range(6))
def test_an_exception_leaves_the_method_usable_and_reset_exact(small, trusting, after):
    method, fresh = build(small), build(small)
    stream = small_batches(9)
    expected = [fresh(batch) for batch in stream]
    for batch in stream[: after // 2]:
        method(batch)
    handle = stopping(method.model.base, after % 4)
    with pytest.raises(Stop):
        _run(method, stream)
    handle.remove()
    for batch in stream:
        assert bool(method(batch).isfinite().all())
    with method.frozen():
        answer = method.predict(clean(1)[0], source=True)
    assert torch.allclose(answer, method.last.source_logits, atol=1e-5)
    method.reset()
    assert all(
        torch.equal(method(batch), answer) for batch, answer in zip(stream, expected, strict=True)
    )


def test_an_exception_while_learning_a_queue(method):
    for batch in shifted(10, seed=5):  # enough for maps to be made anew
        method.predict(batch)
    handle = stopping(method.model.base, 0)
    with pytest.raises(Stop):
        method.learn()
    handle.remove()
    method.learn()
    assert bool(method(shifted(7)[6]).isfinite().all())


# Degenerate images.


def degenerate(kind: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    if kind == "noise":
        return list(torch.rand(30, 8, 3, SIZE, SIZE, generator=generator))
    if kind == "identical":
        return [clean(1)[0][:1].expand(8, -1, -1, -1)] * 30
    levels = torch.rand(30, 8, 3, 1, 1, generator=generator)
    levels = torch.zeros_like(levels) if kind == "black" else levels
    return list(levels.expand(-1, -1, -1, SIZE, SIZE))


@pytest.mark.parametrize("kind", ["black", "constant", "identical", "noise"])
@pytest.mark.parametrize("preset", ["robust", "forward-only"])
def test_degenerate_images_do_no_lasting_harm(small, kind, preset):
    method = build(small, preset=preset, max_domains=3)
    for batch in degenerate(kind):
        assert bool(method(batch).isfinite().all())
        assert len(method.router.domains) <= 3
        assert set(method.bank.domains) == set(method.router.domains)
    if kind in ("black", "identical"):
        assert method.router.domains == ()
    assert all(bool(t.isfinite().all()) for t in method.export_state().tensors.values())
    for batch in clean(6, seed=3):
        method(batch)
    with method.frozen():
        answers = method.predict(clean(1, size=50, seed=4)[0], source=True)
    assert set(method.last.domains) == {0}
    assert torch.allclose(answers, method.last.source_logits, atol=1e-5)
