"""All streams of a server, and the three threads that serve them.

`Batcher` answers, `Learner` changes states, `Writer` writes; nobody else does any of it. A request
reads a stream's published version and never waits for learning or for the disk.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
import time
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from ostinato.errors import OstinatoError, StateError, did_you_mean
from ostinato.methods.ostinato.common import Answer
from ostinato.methods.ostinato.streams import StreamMethod
from ostinato.ops.blocks import find_blocks
from ostinato.ops.snapshot import State
from ostinato.serve._answers import seen
from ostinato.serve._forwards import Forwards
from ostinato.serve._learning import Learner
from ostinato.serve._metrics import Metrics
from ostinato.serve._stream import Entry, Stream
from ostinato.serve._unwritten import Promise
from ostinato.serve._watch import UNDONE
from ostinato.serve.batching import Batcher, Job
from ostinato.serve.loading import Served, method_config
from ostinato.serve.settings import Settings, check_name
from ostinato.serve.snapshots import sweep, whole_states
from ostinato.serve.store import SnapshotRow, StorageError, Store, StreamRow
from ostinato.serve.writer import SnapshotJob, Writer

_AT_HAND = 64
"""Answers of a stream that are kept in memory; older ones are looked up on disk."""
_COPIES = 2
"""States that wait to be written at most: each is a copy, and all may be due at once."""
_SOON = 0.005
"""Seconds between two looks at whether fewer wait."""
_AGAIN = 5.0
"""Seconds after which a snapshot that failed is tried again."""


class NoStream(OstinatoError):
    """There is no such stream."""


class TooMany(OstinatoError):
    """There are as many streams as there may be."""


class Fleet:
    """Everything behind the HTTP interface.

    Args:
        settings: of the server.
        served: the model.
        store, writer: the index and what writes to it; of the settings' folder unless given.
    """

    def __init__(
        self,
        settings: Settings,
        served: Served,
        store: Store | None = None,
        writer: Writer | None = None,
    ) -> None:
        self.settings, self.served = settings, served
        self.threads = settings.threads or max(1, (os.cpu_count() or 2) // 2)
        self.store = store or Store(settings.data)
        self.metrics = Metrics(self)
        self.promise = Promise(settings.snapshots.seconds)
        self.writer = writer or Writer(
            self.store,
            keep=settings.snapshots.keep,
            events=settings.events,
            answers=settings.answers,
            log=settings.log,
        )
        batching = settings.batching
        self.batcher = Batcher(
            Forwards(served.model, self._answered, self.metrics.ran),
            images=batching.images,
            wait=batching.wait_ms / 1000,
            most=batching.waiting,
            threads=self.threads,
        )
        self.learner = Learner(
            share=settings.learning.share,
            busy=self.batcher.busy,
            learned=self._learned,
            failed=self._failed,
            tick=self._tick,
            hold=self._writing_lags,
            threads=self.threads,
            device=served.model.device,
        )
        self._points = [
            block.register_forward_pre_hook(self.learner.give_way)
            for block in find_blocks(served.model.base).values()
        ]
        self.streams: dict[str, Stream] = {}
        self.ready = self.leaving = False
        self._starts: dict[str, State] = {}
        self._lock = threading.RLock()
        self._retry: dict[int, float] = {}
        self._unrecorded: str | None = None

    # Beginning and end.

    def start(self) -> None:
        """Take the folder, bring every stream back, declare those of the settings."""
        self.store.take()
        torch.set_num_threads(self.threads)
        self.writer.start()
        self.store.remove_orphans()
        for row in self.store.streams():
            self.streams[row.name] = self.restore(row)
        for name, options in self.settings.streams.items():
            if name not in self.streams:
                self.create(name, options.preset, frozen=options.frozen)
        self.batcher.start()
        self.learner.start()
        self.writer.event(None, "started", streams=len(self.streams), threads=self.threads)
        self.ready = True

    def stop(self) -> None:
        """Answer what waits, write every state that changed, and let go of the folder."""
        self.ready, self.leaving = False, True
        self.batcher.stop()
        self.learner.stop()
        for point in self._points:
            point.remove()
        for stream in self.streams.values():
            while self._crowded():
                time.sleep(_SOON)
            if stream.dirty:
                self.snapshot(stream)
        self.writer.event(None, "stopped", streams=len(self.streams))
        self.writer.stop()
        self.store.close()

    # Streams.

    def get(self, name: str) -> Stream:
        """A stream that there is."""
        stream = self.streams.get(name)
        if stream is None:
            hint = did_you_mean(name, self.streams) if len(self.streams) < 50 else ""
            raise NoStream(f"There is no stream {name!r}. {hint}".strip())
        return stream

    def open(self, name: str) -> Stream:
        """A stream, made on first use where that is allowed."""
        stream = self.streams.get(name)
        if stream is None:
            check_name(name)
            if not self.settings.limits.undeclared:
                return self.get(name)
            stream = self.create(name, None, exist_ok=True)
        return stream

    def create(
        self, name: str, preset: str | None, *, frozen: bool = False, exist_ok: bool = False
    ) -> Stream:
        """A new stream at the source."""
        check_name(name)
        with self._lock:
            if name in self.streams:
                if exist_ok:
                    return self.streams[name]
                raise StateError(f"There is a stream {name!r} already.")
            most = self.settings.limits.streams
            if len(self.streams) >= most:
                raise TooMany(f"There are {most} streams already: remove one, or raise the limit.")
            row = self.store.add_stream(name, preset or self.settings.preset, frozen=frozen)
            stream = self._build(row)
            self.began(stream, None, "created")
            self.streams[name] = stream
        return stream

    def remove(self, name: str) -> None:
        """Forget a stream with everything of it; between two updates."""
        stream = self.get(name)
        with self._lock:
            self.store.remove_stream(stream.id)
            self.streams.pop(name, None)
        stream.frozen = True  # what is on its way teaches nobody
        self.writer.forget(stream.id)
        shutil.rmtree(self.store.place(stream.id), ignore_errors=True)
        self.writer.event(None, "removed", name=name)

    def _build(self, row: StreamRow) -> Stream:
        method = StreamMethod(self.served.model, method_config(self.settings, row.preset))
        # What a reset goes back to is the same for all of a preset, and kept once.
        method._initial = self._starts.setdefault(row.preset, method._initial)
        answers = min(self.settings.answers, _AT_HAND)
        made = Stream(row, method, most=self.settings.learning.queue, answers=answers)
        made.unwritten.clear()  # the start can be made again: a thousand of them need no room
        return made

    def restore(self, row: StreamRow) -> Stream:
        """A stream as its newest whole snapshot has it; says what was lost."""
        stream = self._build(row)
        stream.record.highest = self.store.highest_answered(row.id)
        sweep(self.store, row.id)
        parent = None
        for found, state, header, trouble in whole_states(self.store, row.id):
            if state is None:
                self.writer.event(row.id, "damaged", snapshot=found.id, why=trouble)
                continue
            try:
                stream.adopt(state, header["stream"])
            except (StateError, KeyError, TypeError) as error:
                self.writer.event(row.id, "damaged", snapshot=found.id, why=str(error))
                continue
            stream.met = type(stream.met)(header["stream"]["sequences"])
            stream.learned, parent = int(header["stream"]["learned"]), found.version
            stream.saved = found.made
            break
        last = self.store.rows(
            "SELECT body FROM events WHERE stream = ? AND kind = 'learned' "
            "ORDER BY id DESC LIMIT 1",
            (row.id,),
        )
        if last:
            stream.lost = max(0, int(json.loads(last[0][0])["learned"]) - stream.learned)
        stream.unwritten.clear()  # it is as the disk has it
        self.began(stream, parent, "restarted", lost=stream.lost)
        return stream

    def began(self, stream: Stream, parent: str | None, why: str, **more: Any) -> None:
        """Note that a stream lives anew, and from which state."""
        self.writer.event(
            stream.id,
            "began",
            version=stream.version,
            parent=parent,
            why=why,
            preset=stream.preset,
            threads=self.threads,
            **more,
        )

    # What the threads report.

    def _answered(self, job: Job, answer: Answer) -> None:
        stream, looked = job.stream, seen(answer, job.ranked)
        stream.watch.note(
            domains=answer.domains,
            trust=answer.trust,
            far=answer.far,
            distance=answer.distance,
            labels=looked.labels,
            confidence=looked.confidence,
            source=looked.source,
        )
        self.metrics.waited(time.monotonic() - job.arrived)
        job.learning = stream.offer(Entry(job.levels, job.digest, job.sequence))
        if job.learning:
            self.learner.wake(stream)

    def _learned(
        self, stream: Stream, entry: Entry, events: tuple[str, ...], seconds: float
    ) -> None:
        self.promise.learned(seconds)
        if self.settings.record:
            self._keep_input(stream, entry)
        self.writer.event(
            stream.id,
            "learned",
            version=stream.version,
            learned=stream.learned,
            digest=entry.digest,
            sequence=entry.sequence,
            images=len(entry.levels),
            seconds=round(seconds, 4),
        )
        for event in events:
            self.writer.event(stream.id, "domain", version=stream.version, text=event)
        stream.watch.note_events(events)
        stream.rollbacks += sum(event.startswith(UNDONE) for event in events)
        if stream.dirty >= self.settings.snapshots.updates:
            self._tick(None)

    def _keep_input(self, stream: Stream, entry: Entry) -> None:
        """Keep what was learned from; a part that a kill or a full disk left is written anew."""
        place = self.store.place(stream.id) / "inputs"
        path, content = place / f"{entry.digest}.npy", io.BytesIO()
        np.save(content, entry.levels.numpy(), allow_pickle=False)
        try:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not path.exists() or path.stat().st_size != content.tell():
                path.write_bytes(content.getvalue())
            self._unrecorded = None
        except OSError as error:
            self._unrecorded = f"inputs cannot be recorded ({error})"

    def _failed(self, stream: Stream, error: Exception) -> None:
        """Learning broke off: back to the newest whole state, or to the source."""
        self.writer.event(stream.id, "failed", why=f"{type(error).__name__}: {error}"[:300])
        stream.rollbacks += 1
        try:
            version = self._go_back(stream)
        except StorageError:  # not even the index can be read
            version = None
        if version is None:
            stream.method.reset()
            stream.begin()
        self.began(stream, version, "learning failed")

    def _go_back(self, stream: Stream) -> str | None:
        """Become the newest whole state on disk; its version, or None where there is none."""
        for row, state, header, _ in whole_states(self.store, stream.id):
            if state is not None:
                try:
                    stream.adopt(state, header["stream"])
                except StateError:
                    continue
                return row.version
        return None

    def _tick(self, learning: Stream | None) -> None:
        """Write what is due, the oldest first, a few at a time: each that waits is a copy.

        The stream that is learning is not in one piece at this moment.
        """
        early, most = self.promise.early(self._unwritten()), self.settings.snapshots.updates
        for stream in sorted(self._pending(), key=lambda one: -one.unwritten.waits()):
            if self.writer.waiting >= _COPIES:
                return
            due = stream.unwritten.waits() >= early or stream.dirty >= most
            if due and stream is not learning:
                self.snapshot(stream)

    def _crowded(self) -> bool:
        """Whether enough states wait to be written, by a writer that gets on with it."""
        working = self.writer.alive() and self.writer.trouble is None
        return working and self.writer.waiting >= _COPIES

    def _pending(self) -> list[Stream]:
        """Streams with updates that nobody has handed to the writer, but could."""
        return [one for one in list(self.streams.values()) if one.dirty and self._may_write(one)]

    def _may_write(self, stream: Stream) -> bool:
        """Whether no failed snapshot of a stream waits its turn."""
        return self._retry.get(stream.id, 0.0) <= time.monotonic()

    def _unwritten(self) -> int:
        """Streams with updates that are not on disk, but could be."""
        streams = list(self.streams.values())
        return sum(bool(one.unwritten) and self._may_write(one) for one in streams)

    def _writing_lags(self) -> bool:
        """Whether learning waits for the writer: an update may make something too old otherwise.

        What could get too old has to be handed over first, and there is room for a few copies.
        It does not wait where nothing can be written: that may take long.
        """
        if self.writer.trouble is not None:
            return False
        count = self._unwritten()
        latest = self.promise.latest(count)
        if any(stream.unwritten.waits() >= latest for stream in self._pending()):
            return True
        return self.promise.lags(count, self.writer.oldest())

    def snapshot(self, stream: Stream, name: str | None = None) -> Future[SnapshotRow] | None:
        """Hand the state as it is now to the writer; None while a failed one waits its turn."""
        if name is None and self.ready and not self._may_write(stream):
            return None
        state, header = stream.capture(images=self.settings.snapshots.images)
        handed, unwritten = stream.unwritten.hand(), stream.unwritten
        job = SnapshotJob(stream.id, state, header, name, since=handed.since)

        def finished(row: SnapshotRow, began: float) -> None:
            stream.saved = row.made
            unwritten.written(handed)
            self.promise.wrote(self.promise.clock() - began)

        def done(future: Future[SnapshotRow]) -> None:
            if not future.cancelled() and future.exception() is not None:
                unwritten.failed(handed)
                self._retry[stream.id] = time.monotonic() + _AGAIN

        job.finished = finished
        job.done.add_done_callback(done)
        self.writer.snapshot(job)
        return job.done

    def storage(self) -> str:
        """'whole', or what is wrong with the data folder."""
        return self.writer.trouble or self._unrecorded or "whole"

    def alive(self) -> bool:
        """Whether the threads that answer, learn and write all work."""
        return self.batcher.alive() and self.learner.alive() and self.writer.alive()
