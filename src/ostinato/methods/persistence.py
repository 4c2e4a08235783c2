"""State of a method: declared once with `track`; reset, save and load follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ostinato.errors import StateError
from ostinato.models import VisionModel
from ostinato.ops.allocator import give_back
from ostinato.ops.expect import Expected, check_state, check_taken
from ostinato.ops.snapshot import State, Stateful, load_state, save_state
from ostinato.ops.trainable import Weights
from ostinato.types import StepOutput

_S = TypeVar("_S", bound=Stateful)
_WAYS = {"compile", "resident"}
"""Settings that say how something is computed and not what: a state fits whatever they are."""


class Persistent:
    """Mixed into `Method`: everything that changes while adapting, as one `State`.

    >>> import ostinato
    >>> from ostinato.checks import small_batches, small_model
    >>> images = small_batches(1)[0]
    >>> adapted = ostinato.adapt(small_model(), "tent", lr=1e-2)
    >>> first = adapted(images)
    >>> adapted.reset()
    >>> bool((adapted(images) == first).all())
    True
    """

    name: ClassVar[str]
    config: Any
    fingerprint: str
    last: StepOutput | None
    model: VisionModel
    _tracked: dict[str, Stateful]
    _initial: State

    if TYPE_CHECKING:  # what `Answering` brings

        def _refuse_detached(self) -> None: ...
        @contextmanager
        def _at_work(self) -> Iterator[None]: ...

    def track(self, name: str, thing: _S) -> _S:
        """Declare something that changes: reset, save and load then include it."""
        self._tracked[name] = thing
        return thing

    def export_state(self) -> State:
        """Everything that changes while adapting."""
        self._refuse_detached()  # what the model holds now is the source's
        return State.join({name: thing.export_state() for name, thing in self._tracked.items()})

    def expected(self, state: State) -> Expected:
        """What every tracked part expects of a state that it is to take over."""
        return Expected.of_all(self._tracked, state)

    def import_state(self, state: State) -> None:
        """Become what `export_state` described, or stay as it was and raise."""
        with self._at_work():
            check_state(self, state)
            before = self.export_state().clone()
            try:
                # Files hold CPU tensors; what belongs there here (generators) goes back by itself.
                self._import(state)
                check_taken(state, self.export_state())
            except BaseException as error:
                self._import(before)
                if isinstance(error, StateError) or not isinstance(error, Exception):
                    raise
                raise StateError(f"The state does not fit this method: {error}") from error
            self.last = None

    def take_back(self, state: State) -> None:
        """Become what this very method exported a moment ago; nothing is checked."""
        self._import(state)

    def reset(self) -> None:
        """Forget everything learned: exactly the state after `adapt`."""
        with self._at_work():
            self._import(self._initial)
            self.last = None

    def save(self, path: str | Path, *, buffers: bool = False) -> None:
        """Write the state to one file, atomically.

        Args:
            path: where to.
            buffers: also write the latest images that experts are made from, where the method
                keeps any. Only then does what is loaded go on to the bit; without them it answers
                the same and gathers new images first.
        """
        parts = {}
        with self._at_work():  # what is exported may be what the next batch writes into
            for name, thing in self._tracked.items():
                state = thing.export_state()
                without = getattr(thing, "without_buffers", None)
                parts[name] = state if buffers or without is None else without(state)
            whole = State.join(parts).clone()
        save_state(path, whole, self._header())
        del whole, parts
        give_back()

    def load(self, path: str | Path) -> None:
        """Continue from a file; on any error nothing has changed."""
        state, header = load_state(path)
        mine = self._header()
        for key, what in (("method", "another method"), ("model", "another source model")):
            if header.get(key) != mine[key]:
                raise StateError(
                    f"{path} was saved for {what} ({header.get(key)}; this is {mine[key]})."
                )
        given, own = header.get("config"), mine["config"]
        if not isinstance(given, dict):
            raise StateError(f"{path} does not say which settings it was saved with.")
        different = sorted(k for k in {*given, *own} - _WAYS if given.get(k) != own.get(k))
        if different:
            shown = ", ".join(f"{k} = {given.get(k)!r}, here {own.get(k)!r}" for k in different)
            raise StateError(f"{path} was saved with other settings: {shown}.")
        self.import_state(state)
        del state
        give_back()

    def _first_state(self) -> State:
        parts = {}
        for name, thing in self._tracked.items():
            # The source values are kept once, by the weights themselves.
            if isinstance(thing, Weights):
                parts[name] = State(thing.source)
            else:
                parts[name] = thing.export_state().clone()
        return State.join(parts)

    def _import(self, state: State) -> None:
        for name, thing in self._tracked.items():
            part = state.part(name)
            # What keeps some of its own in host memory brings everything to its place itself.
            own = getattr(thing, "finds_places", False)
            thing.import_state(part if own else part.to(self.model.device))

    def _header(self) -> dict[str, Any]:
        return {
            "method": self.name,
            "model": self.fingerprint,
            "config": self.config.model_dump(mode="json"),
        }
