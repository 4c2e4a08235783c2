"""What must not break a method: threads, exceptions on the way, disks that fail."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from torch import Tensor, nn

from ostinato.checks._building import Build, run, same, same_state, taken_back
from ostinato.checks._small import small_batches
from ostinato.errors import StateError
from ostinato.methods.base import Method
from ostinato.ops.snapshot import load_state

_HOOKS = ("route", "steps", "objective", "update", "answer", "after", "advance")
"""What the loop calls on a method, in the order of a batch."""
_ANSWERS = ("respond", "preview", "source_logits")
"""What `predict` calls."""
THREADS, CALLS = 4, 3


class _Injected(Exception):
    """What the suite throws into a method."""


def check_threads(build: Build) -> str | None:
    """Threads may call, predict and learn at once."""
    method, problems = build(), list[str]()
    batches = small_batches(CALLS, size=4)
    told = "domain labels" in method.needs(method.config)

    def work(number: int) -> None:
        try:
            for batch in batches:
                if number % 2:
                    method.predict(batch)
                else:
                    method.step(batch, oracle="a" if told else None)
            method.learn()
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        return f"{len(problems)} of {THREADS} threads failed: {problems[0]}"
    return _as_new(method, build)


def check_exceptions(build: Build) -> str | None:
    """After an exception at any hook it can be reset and unwrapped as if nothing had been."""
    method = build()
    batch = small_batches(1, size=4)[0]
    for place in _places(method):
        for late in (False, True):
            try:
                with _broken(method, place, late):
                    run(method, [batch])
            except _Injected:
                method.reset()
            except Exception as error:
                return f"an exception in {place} became {type(error).__name__}: {error}"
    run(method, [batch])
    return _keeps_state(method, batch) or _as_new(method, build)


def _keeps_state(method: Method, batch: Tensor) -> str | None:
    """What an exception on the way to an answer changes, if anything: it learns nothing there."""
    before = method.export_state().clone()
    for place in (*_ANSWERS, *_blocks(method)):
        for late in (False, True):
            try:
                with _broken(method, place, late):
                    method.predict(batch, source=True)
            except _Injected:
                pass
            except Exception as error:
                return f"an exception in {place} became {type(error).__name__}: {error}"
            if not same_state(before, method.export_state().clone()):
                return f"an exception in {place} changed the state though it only answered"
    return None


def _places(method: Method) -> list[str]:
    """Where an exception can be thrown in: hooks, blocks of the model, the optimizer's step."""
    return [*_HOOKS, *_blocks(method), "optimizer"]


def _blocks(method: Method) -> list[str]:
    """Three modules of the model, from its beginning to its end."""
    inner = [name for name, module in method.model.base.named_modules() if name.count(".") == 1]
    return [f"model.{name}" for name in inner[:: max(1, len(inner) // 3)][:3]]


@contextmanager
def _broken(method: Method, place: str, late: bool) -> Iterator[None]:
    """Something that throws, before it does its work or after."""
    if place in (*_HOOKS, *_ANSWERS):
        with mock.patch.object(method, place, _throwing(getattr(method, place), late)):
            yield
        return
    if place == "optimizer":
        optimizer = method.optimizer
        if optimizer is None:
            yield
            return
        with mock.patch.object(optimizer, "step", _throwing(optimizer.step, late)):
            yield
        return
    module = method.model.base.get_submodule(place.removeprefix("model."))
    handle = module.register_forward_hook(_throw) if late else _before(module)
    try:
        yield
    finally:
        handle.remove()


def _throwing(work: Callable[..., Any], late: bool) -> Callable[..., Any]:
    def instead(*given: Any, **named: Any) -> Any:
        if late:
            work(*given, **named)
        raise _Injected

    return instead


def _throw(module: nn.Module, inputs: Any, output: Any) -> None:
    raise _Injected


def _before(module: nn.Module) -> Any:
    def throw(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        raise _Injected

    return module.register_forward_pre_hook(throw)


def _as_new(method: Method, build: Build) -> str | None:
    """Whether a reset makes it as it was at first, and unwrap gives the source back."""
    method.reset()
    batches = small_batches(3, size=4)
    if not same(run(method, batches), run(build(), batches)):
        return "a reset afterwards does not make it as new"
    return taken_back(method)


def check_disk(build: Build) -> str | None:
    """A disk that fails leaves the old file and the state; a cut file is refused, a whole taken."""
    method = build()
    run(method, small_batches(2))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        method.save(path)
        whole = path.read_bytes()
        run(method, small_batches(1))
        after = method.export_state().clone()
        for name in ("replace", "fsync", "write"):
            full = OSError(errno.ENOSPC, "No space left on device")
            try:
                with mock.patch.object(os, name, side_effect=full):
                    method.save(path)
                return f"a save succeeded though os.{name} failed"
            except StateError:
                pass
            if path.read_bytes() != whole or len(list(Path(folder).iterdir())) > 1:
                return f"os.{name} failed, and the old file was changed or a part was left"
        for size in (0, 7, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            try:
                method.load(path)
                return f"a file cut at {size} bytes was loaded"
            except StateError:
                pass
        if not same_state(after, method.export_state().clone()):
            return "a failed save or load changed the state"
        path.write_bytes(whole)
        method.load(path)
        method.save(again := Path(folder) / "again.safetensors")
        if not same_state(load_state(path)[0], load_state(again)[0]):
            return "what it loads is not what it had saved"
    return taken_back(method)
