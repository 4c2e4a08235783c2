"""What operators ask for: checkpoints, rollback, reset, freeze, export, import, copies.

Everything that changes a state is done by the learner thread, between two updates; a stream that
was changed from outside begins a new life.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import torch

from ostinato.errors import StateError
from ostinato.experts.routed import Pass
from ostinato.methods.ostinato.desk import joined
from ostinato.ops.snapshot import State, load_state, save_state
from ostinato.serve import _domains as domains
from ostinato.serve._stream import Stream
from ostinato.serve.fleet import Fleet
from ostinato.serve.settings import check_name
from ostinato.serve.store import SnapshotRow

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds that an operator waits for the learner."""
DOMAIN = "domain"


class Operations:
    """Operators' work on a fleet's streams; every call waits until it is done."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def _do(self, work: Callable[[], T]) -> T:
        return self.fleet.learner.ask(work).result(PATIENCE)

    # States on disk.

    def checkpoint(self, stream: Stream, name: str) -> SnapshotRow:
        """Write the state as it is now, under a name, and keep it until it is removed."""
        check_name(name, "checkpoint")
        done: Future[SnapshotRow] | None = self._do(lambda: self.fleet.snapshot(stream, name))
        assert done is not None
        row = done.result(PATIENCE)
        self.fleet.writer.event(stream.id, "checkpoint", name=name, version=row.version)
        return row

    def find(self, stream: Stream, to: str | int | None) -> SnapshotRow:
        """A state on disk by name or id; without either, the newest that is not the present one."""
        rows = self.fleet.store.snapshots(stream.id)
        if to is None:
            rows = [row for row in rows if row.version != stream.version]
        else:
            rows = [row for row in rows if to in (row.name, row.id, str(row.id))]
        if not rows:
            what = "no earlier state" if to is None else f"no snapshot or checkpoint {to!r}"
            raise StateError(f"Stream {stream.name!r} has {what}.")
        return rows[0]

    def rollback(self, stream: Stream, to: str | int | None, domain: int | None) -> SnapshotRow:
        """Go back to a state on disk, as a whole or for one domain's expert."""
        row = self.find(stream, to)
        state, header = self.fleet.store.load(stream.id, row.file)
        facts = header["stream"]

        def work() -> None:
            if domain is None:
                stream.adopt(state, facts)
                self.fleet.began(stream, row.version, "rollback")
            else:
                now, mine = stream.capture(images=True)
                stream.adopt(domains.restored(now, domains.cut(state, domain), domain), mine)
                self.fleet.began(
                    stream, None, "rollback", domain=domain, to=row.version, foreign=True
                )
            stream.rollbacks += 1

        self._do(work)
        return row

    # Changes.

    def reset(self, stream: Stream, domain: int | None) -> None:
        """Forget everything learned, or one domain."""

        def work() -> None:
            method, before = stream.method, None
            if domain is None:
                method.reset()
                method.held.clear()
            else:
                self._known(stream, domain)
                before = stream.version
                method.forget(domain)
            stream.begin()
            self.fleet.began(stream, before, "reset", domain=domain)

        self._do(work)

    def freeze(self, stream: Stream, domain: int | None, *, frozen: bool) -> None:
        """Let a stream, or one domain's expert, stay as it is; or let it learn again."""

        def work() -> None:
            if domain is None:
                self.fleet.store.set_frozen(stream.id, frozen)
                stream.frozen = frozen
                stream.drop_waiting()
            else:
                self._known(stream, domain)
                held, before = stream.method.held, stream.version
                (held.add if frozen else held.discard)(domain)
                stream.begin()  # what follows is learned by another rule
                self.fleet.began(stream, before, "freeze", domain=domain, frozen=frozen)
            what = "frozen" if frozen else "unfrozen"
            self.fleet.writer.event(stream.id, what, domain=domain)

        self._do(work)

    def remove(self, name: str) -> None:
        """Forget a stream with everything of it."""
        self._do(lambda: self.fleet.remove(name))

    def copy(self, stream: Stream, source: Stream) -> None:
        """Start a stream from another one's domains; from then on each goes its own way."""
        if stream.preset != source.preset:
            raise StateError(
                f"{source.name!r} has preset {source.preset}: declare the copy with the same."
            )

        def work() -> None:
            state, facts = source.capture(images=True)
            stream.adopt(state, facts["stream"])
            self.fleet.began(stream, None, "copied", source=source.version, foreign=True)

        self._do(work)

    def _known(self, stream: Stream, domain: int) -> None:
        if domain not in stream.method.bank.domains:
            known = ", ".join(str(one) for one in stream.method.bank.domains) or "none"
            raise StateError(f"There is no domain {domain}. Domains: {known}.")

    # In and out.

    def export(self, stream: Stream, domain: int | None, *, images: bool) -> bytes:
        """A state as a file that `adapted.load` reads, or one domain that `take_in` reads."""
        state, header = self._do(lambda: stream.capture(images=images))
        plain = {key: value for key, value in header.items() if key != "stream"}
        if domain is not None:
            state, plain = domains.cut(state, domain), plain | {"kind": DOMAIN}
        path = self._incoming()
        try:
            save_state(path, state, plain)
            return path.read_bytes()
        finally:
            path.unlink(missing_ok=True)

    def take_in(self, stream: Stream, data: bytes) -> int | None:
        """Become an exported state, or get one domain more; its id, in the second case."""
        path = self._incoming()
        try:
            path.write_bytes(data)
            state, header = load_state(path)
            self._check_header(stream, header)
            return self._do(lambda: self._import(stream, state, header))
        finally:
            path.unlink(missing_ok=True)

    def _check_header(self, stream: Stream, header: dict[str, object]) -> None:
        mine = stream.method._header()
        for key, what in (("method", "another method"), ("model", "another source model")):
            if header.get(key) != mine[key]:
                raise StateError(f"The state was saved for {what}.")
        if header.get("config") != mine["config"]:
            raise StateError("The state was saved with other settings or another preset.")

    def _import(self, stream: Stream, state: State, header: dict[str, object]) -> int | None:
        before, _ = stream.capture(images=True)
        number = None
        try:
            if header.get("kind") == DOMAIN:
                state, number = domains.added(before, state)
                stream.method.import_state(state)
            else:
                stream.method.import_state(state)
                stream.method.held.clear()
            self._try_out(stream)
        except Exception as error:
            stream.method.import_state(before)
            if isinstance(error, StateError):
                raise
            raise StateError(f"The state does not fit: {str(error)[:200]}") from None
        stream.begin()
        self.fleet.began(stream, None, "imported", domain=number, foreign=True)
        return number

    def _try_out(self, stream: Stream) -> None:
        """Numbers of the wrong shape would harm whoever shares a forward: try every expert."""
        model, version = self.fleet.served.model, stream.method.version
        side = self.fleet.served.fit.side or 64
        pixels = torch.zeros(1, 3, side, side, device=model.device)
        for domain, expert in version.experts.items():
            now = Pass([0], [joined(expert, version.shared, model.ranks)])
            with torch.no_grad(), model.hooks.open(now):
                if not bool(model(pixels).isfinite().all()):
                    raise StateError(f"Answers under domain {domain} would not be finite.")

    def _incoming(self) -> Path:
        folder = self.fleet.store.incoming
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / f"{secrets.token_hex(8)}.safetensors"
