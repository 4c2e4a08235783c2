"""After unwrap the model is its owner's: whoever was waiting to use it is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.checks import small_batches
from ostinato.checks._building import builder
from ostinato.errors import StateError
from ostinato.registry import METHODS

BATCHES = small_batches(3)
CALLS: dict[str, Callable[[Any, Path], Any]] = {
    "call": lambda method, _: method(BATCHES[1]),
    "step": lambda method, _: method.step(BATCHES[1]),
    "reset": lambda method, _: method.reset(),
    "save": lambda method, path: method.save(path),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("name", ["tent", "cotta", "ostinato"])
def test_who_waits_while_it_is_unwrapped_is_refused(
    name: str, call: Callable[[Any, Path], Any], tmp_path: Path
) -> None:
    method, said = builder(name, METHODS[name], {})(), list[str]()
    method(BATCHES[0])
    held = threading.Event()

    def wait() -> None:
        held.wait()
        try:
            call(method, tmp_path / "state.safetensors")
        except StateError as error:
            said.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    with method._lock:
        held.set()
        waiting.join(0.2)  # long enough to be past whatever it asks before it waits
        model = method.detach()
        before = {key: value.clone() for key, value in model.state_dict().items()}
    waiting.join()
    assert len(said) == 1
    now = model.state_dict()
    assert all(torch.equal(value, now[key]) for key, value in before.items())
    assert not list(tmp_path.iterdir())
