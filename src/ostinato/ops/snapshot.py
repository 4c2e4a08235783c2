"""State in memory and on disk: what it is, how it is copied, saved whole and loaded safely.

A `State` is a flat set of tensors plus JSON values. Everything that changes during adaptation
exports one and imports one; reset, clone, save and load are made of these two alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from safetensors.torch import save
from torch import Tensor

from ostinato.errors import StateError
from ostinato.ops._tensors import digest, read_tensors
from ostinato.ops.expect import Expected, Kind, Like, check_finite
from ostinato.ops.files import write_atomically

_FORMAT = "ostinato-state"
_VERSION = 1


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
    """What the step loop can save, load and reset.

    >>> class Count:
    ...     number = 0
    ...
    ...     def export_state(self) -> State:
    ...         return State({}, {"number": self.number})
    ...
    ...     def import_state(self, state: State) -> None:
    ...         self.number = state.values["number"]
    >>> count = Count()
    >>> count.import_state(State({}, {"number": 3}))
    >>> count.number
    3
    """

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

    def __init__(self, **start: Any) -> None:
        super().__init__(start)
        self._start = start
        self._sizes: tuple[str, ...] = ()

    def export_state(self) -> State:
        """The values."""
        return State(values=dict(self))

    def expected(self, state: State) -> Expected:
        """The names it started with, each with the type it had then."""
        kinds = {name: Kind.like(value) for name, value in self._start.items()}
        size = Kind.optional(Kind.listed(Kind.count(low=1), 2))
        return Expected(values=kinds | dict.fromkeys(self._sizes, size))

    def with_sizes(self, *names: str) -> Self:
        """Say which values are none or an image's height and width."""
        self._sizes = names
        return self

    def import_state(self, state: State) -> None:
        """Take values over."""
        self.clear()
        self.update(state.values)


class RandomState:
    """A CPU random generator whose position is part of the state.

    >>> first, again = RandomState(3), RandomState(3)
    >>> torch.equal(
    ...     torch.rand(2, generator=first.generator), torch.rand(2, generator=again.generator)
    ... )
    True
    """

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def export_state(self) -> State:
        """The generator's position."""
        return State({"position": self.generator.get_state()})

    def expected(self, state: State) -> Expected:
        """A position of a generator of this kind."""
        return Expected({"position": Like.of(self.generator.get_state())})

    def import_state(self, state: State) -> None:
        """Continue from a position."""
        self.generator.set_state(state.tensors["position"].cpu())


def save_state(path: str | Path, state: State, header: dict[str, Any]) -> None:
    """Write atomically: a crash leaves the old file, or none, never half a one."""
    write_atomically(path, encode_state(state, header))


def encode_state(state: State, header: dict[str, Any]) -> bytes:
    """A state as the bytes of its file."""
    check_finite(state)
    tensors = {k: t.detach().cpu().contiguous().clone() for k, t in state.tensors.items()}
    meta = {
        "format": _FORMAT,
        "version": str(_VERSION),
        "header": json.dumps(header, sort_keys=True),
        "values": json.dumps(state.values, sort_keys=True),
    }
    meta["digest"] = _digest(tensors, meta)
    return bytes(save(tensors, metadata=meta))


def load_state(path: str | Path) -> tuple[State, dict[str, Any]]:
    """Read and verify a file; returns the state and its header. Nothing is unpickled."""
    path = Path(path)
    if not path.is_file():
        raise StateError(f"There is no state file {path}.")
    try:
        tensors, meta = read_tensors(path)
        found = _digest(tensors, meta)
    except Exception as error:  # whatever a foreign or damaged file makes the reader raise
        raise StateError(f"{path} is truncated or damaged ({error}); use another copy.") from None
    if meta.get("format") != _FORMAT:
        raise StateError(f"{path} is a safetensors file, but not one that Ostinato saved.")
    _check_version(path, meta.get("version"))
    if meta.get("digest") != found:
        raise StateError(f"{path} is damaged: its contents do not match their checksum.")
    state = State(tensors, _parse(path, "values", meta))
    header = _parse(path, "header", meta)
    check_finite(state, str(path))
    return state, header


def _check_version(path: Path, text: str | None) -> None:
    if text is None or not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise StateError(f"{path} has no state version that can be read ({text!r:.20}).")
    if not 1 <= int(text) <= _VERSION:
        raise StateError(
            f"{path} has state version {text}, this Ostinato reads up to {_VERSION}: update it."
        )


def _parse(path: Path, key: str, meta: dict[str, str]) -> dict[str, Any]:
    try:
        found = json.loads(meta[key])
    except (KeyError, ValueError, RecursionError):
        raise StateError(f"{path} is damaged: its {key} cannot be read.") from None
    if not isinstance(found, dict):
        raise StateError(f"{path} is damaged: its {key} have no names.")
    return found


def _digest(tensors: dict[str, Tensor], meta: dict[str, str]) -> str:
    return digest(tensors, f"{meta.get('header')}{meta.get('values')}")
