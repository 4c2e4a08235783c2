"""States made again from an event log, to show that the log says everything.

A stream's log tells, life by life, where a life began and what was learned in it, in order. Where
the server kept what it learned from (`record`), any state follows from that alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ostinato.errors import StateError
from ostinato.methods.ostinato.streams import StreamMethod
from ostinato.ops.snapshot import State, load_state
from ostinato.serve._pixels import digest
from ostinato.serve.loading import Served, method_config
from ostinato.serve.settings import Settings
from ostinato.serve.store import Store


@dataclass
class _Life:
    """One life in the log: how it began, and the digests learned in it."""

    began: dict[str, Any]
    learned: list[str] = field(default_factory=list)


def _read_lives(
    events: list[tuple[int, int | None, float, str, dict[str, Any]]],
) -> dict[str, _Life]:
    """Lives by name, from a stream's events."""
    lives: dict[str, _Life] = {}
    for *_, kind, body in events:
        if kind not in ("began", "learned"):
            continue
        name, number = _split_version(body["version"])
        if kind == "began":
            lives[name] = _Life(body)
            continue
        life = lives.get(name)
        if life is None or len(life.learned) != number - 1:
            raise StateError("The log has a gap: older events were not kept.")
        life.learned.append(body["digest"])
    return lives


def _split_version(version: str) -> tuple[str, int]:
    """A version's life and number.

    >>> _split_version("mi3x0k2a.120")
    ('mi3x0k2a', 120)
    """
    life, _, number = version.rpartition(".")
    return life, int(number)


def _steps_to(lives: dict[str, _Life], version: str) -> list[tuple[str, Any]]:
    """What has to be done, from the source on, to come to a version."""
    life, number = _split_version(version)
    if life not in lives:
        raise StateError(f"The log does not know version {version}.")
    known = lives[life]
    began, learned = known.began, known.learned[:number]
    if began.get("foreign"):
        raise StateError(f"Version {version} goes back to a state from outside the log.")
    steps = [] if began["parent"] is None else _steps_to(lives, began["parent"])
    if began["why"] in ("reset", "freeze") and began["parent"] is not None:
        steps.append((began["why"], began))
    return [*steps, *(("learn", digest) for digest in learned)]


class Replay:
    """A stream's states, made again from its log.

    Args:
        store: of the server, which has been stopped.
        settings: it ran with.
        served: the model.
        name: of the stream.
    """

    def __init__(self, store: Store, settings: Settings, served: Served, name: str) -> None:
        row = next((one for one in store.streams() if one.name == name), None)
        if row is None:
            raise StateError(f"There is no stream {name!r} in {store.folder}.")
        self.row, self.settings, self.served = row, settings, served
        self.inputs = store.place(row.id) / "inputs"
        self.lives = _read_lives(store.events(row.id, most=10**9))
        self._begin()

    def _begin(self) -> None:
        config = method_config(self.settings, self.row.preset)
        self.method, self.done = StreamMethod(self.served.model, config), list[tuple[str, Any]]()

    def to(self, version: str) -> StreamMethod:
        """The method as it was at a version; goes on from the last one where it can."""
        steps = _steps_to(self.lives, version)
        began = self.lives[_split_version(version)[0]].began
        torch.set_num_threads(int(began["threads"]))  # sums depend on how they are split
        if steps[: len(self.done)] != self.done:
            self._begin()
        for kind, what in steps[len(self.done) :]:
            self._apply(kind, what)
            self.done.append((kind, what))
        return self.method

    def _apply(self, kind: str, what: Any) -> None:
        if kind == "learn":
            path = self.inputs / f"{what}.npy"
            self.method.take(_kept_images(path, what))
        elif kind == "reset":
            self.method.forget(int(what["domain"]))
        else:
            held = self.method.held
            (held.add if what["frozen"] else held.discard)(int(what["domain"]))


def _kept_images(path: Path, wanted: str) -> torch.Tensor:
    if not path.is_file():
        raise StateError(f"The images {wanted} were not kept: serve with --record.")
    try:
        levels = torch.from_numpy(np.load(path, allow_pickle=False))
        whole = digest(levels) == wanted
    except (ValueError, EOFError, OSError, TypeError):
        whole = False
    if not whole:
        raise StateError(f"{path} does not hold the images {wanted}: it was cut or changed.")
    return levels


def verify(store: Store, settings: Settings, served: Served, name: str) -> list[tuple[str, bool]]:
    """For each snapshot of a stream, oldest first, whether the log leads to the same state."""
    again, found = Replay(store, settings, served, name), []
    for snapshot in reversed(store.snapshots(again.row.id)):
        kept, _ = load_state(store.place(again.row.id) / snapshot.file)
        state = again.to(snapshot.version).export_state()
        found.append((snapshot.version, _same(kept, state)))
    return found


def _same(a: State, b: State) -> bool:
    """Equal to the bit."""
    return (
        a.values == b.values
        and a.tensors.keys() == b.tensors.keys()
        and all(torch.equal(tensor, b.tensors[key].cpu()) for key, tensor in a.tensors.items())
    )
