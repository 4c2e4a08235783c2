"""State in memory and on disk: what it is, how it is copied, saved whole and loaded safely.

A `State` is a flat set of tensors plus JSON values. Everything that changes during adaptation
exports one and imports one; reset, clone, save and load are made of these two alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ostinato.errors import StateError

FORMAT = "ostinato-state"
VERSION = 1


@dataclass
class State:
    """Tensors by name, and JSON-able values by name.

    >>> inner = State({"w": torch.ones(2)}, {"steps": 3})
    >>> outer = State.join({"pool": inner})
    >>> sorted(outer.tensors), outer.part("pool").values
    (['pool/w'], {'steps': 3})
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def join(cls, parts: dict[str, State]) -> State:
        """Put named states into one."""
        tensors = {f"{n}/{k}": t for n, part in parts.items() for k, t in part.tensors.items()}
        return cls(tensors, {name: part.values for name, part in parts.items()})

    def part(self, name: str) -> State:
        """Take one named state back out."""
        start = f"{name}/"
        tensors = {k[len(start) :]: t for k, t in self.tensors.items() if k.startswith(start)}
        return State(tensors, self.values.get(name, {}))

    def to(self, device: torch.device) -> State:
        """The same on another device; what lies there already is shared, not copied."""
        return State({k: t.to(device) for k, t in self.tensors.items()}, self.values)

    def clone(self) -> State:
        """An independent copy."""
        tensors = {k: t.detach().clone() for k, t in self.tensors.items()}
        return State(tensors, json.loads(json.dumps(self.values)))


class Stateful(Protocol):
    """What the step loop can save, load and reset."""

    def export_state(self) -> State:
        """Everything that changes while adapting. The tensors may alias live ones."""
        ...

    def import_state(self, state: State) -> None:
        """Become what `export_state` described."""
        ...


class Scalars(dict[str, Any]):
    """A few JSON-able values that can be saved and reset with the rest.

    >>> counters = Scalars(steps=0)
    >>> counters["steps"] += 1
    >>> counters.export_state().values
    {'steps': 1}
    """

    def export_state(self) -> State:
        """The values."""
        return State(values=dict(self))

    def import_state(self, state: State) -> None:
        """Take values over."""
        self.clear()
        self.update(state.values)


class RandomState:
    """A CPU random generator whose position is part of the state."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def export_state(self) -> State:
        """The generator's position."""
        return State({"position": self.generator.get_state()})

    def import_state(self, state: State) -> None:
        """Continue from a position."""
        self.generator.set_state(state.tensors["position"].cpu())


def save_state(path: str | Path, state: State, header: dict[str, Any]) -> None:
    """Write atomically: a crash leaves the old file, or none, never half a one."""
    path = Path(path)
    if not path.parent.is_dir():
        raise StateError(f"Cannot save to {path}: the folder {path.parent} does not exist.")
    tensors = {k: t.detach().cpu().contiguous().clone() for k, t in state.tensors.items()}
    meta = {
        "format": FORMAT,
        "version": str(VERSION),
        "header": json.dumps(header, sort_keys=True),
        "values": json.dumps(state.values, sort_keys=True),
    }
    meta["digest"] = _digest(tensors, meta)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    try:
        save_file(tensors, name, metadata=meta)
        with Path(name).open("rb+") as file:
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def load_state(path: str | Path) -> tuple[State, dict[str, Any]]:
    """Read and verify a file; returns the state and its header. Nothing is unpickled."""
    path = Path(path)
    if not path.is_file():
        raise StateError(f"There is no state file {path}.")
    try:
        with safe_open(str(path), framework="pt") as file:
            meta = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise StateError(f"{path} is truncated or damaged ({error}); use another copy.") from None
    if meta.get("format") != FORMAT:
        raise StateError(f"{path} is a safetensors file, but not one that Ostinato saved.")
    version = int(meta.get("version", "0"))
    if version > VERSION:
        raise StateError(
            f"{path} has state version {version}, this Ostinato reads up to {VERSION}: update it."
        )
    if meta.get("digest") != _digest(tensors, meta):
        raise StateError(f"{path} is damaged: its contents do not match their checksum.")
    return State(tensors, json.loads(meta["values"])), json.loads(meta["header"])


def _digest(tensors: dict[str, Tensor], meta: dict[str, str]) -> str:
    total = hashlib.sha256(f"{meta.get('header')}{meta.get('values')}".encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        total.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
