"""The rows of a sweep as Ray tasks: every row, seed and factor one of them.

Ray decides where and when they run and tries again what died; the runs' folders say what is done.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console

from ostinato.data.streams import Stream
from ostinato.errors import OstinatoError
from ostinato.running.devices import name_device
from ostinato.running.job import open_stream, resolve
from ostinato.running.provenance import spec_hash
from ostinato.running.results import RunFolder
from ostinato.running.runner import EVERY, Interrupted, finished
from ostinato.running.spec import Spec
from ostinato.scale._batches import deal, make_hand
from ostinato.scale._desk import Desk
from ostinato.scale._display import Display, said_of
from ostinato.scale._rows import Task, clear_scratch, run_row
from ostinato.scale.cluster import connected, here, on_node
from ostinato.scale.resources import Resources
from ostinato.tables.request import Outcome, spec_key

_LOOK = 0.5
"""Seconds between two looks at how far rows have come."""
_STOPPING = 120.0
"""Seconds that rows get to finish their batch and write a checkpoint after Ctrl-C."""
_TOKEN = ".sweep-"
_Ended: TypeAlias = tuple[Outcome, Path]
"""What became of a row, and where its run lies."""


@dataclass
class _Group:
    """Rows that see one stream."""

    stream: Stream
    tasks: list[Task] = field(default_factory=list)


@dataclass
class RayEngine:
    """Runs specs on a Ray cluster.

    Args:
        address: of a cluster; one of this machine is started unless given.
        resources: of one row.
        every: batches between checkpoints.
        retries: how often a row is tried again that died with its worker or node.
        carried: bring results back as files even where the folder is shared.

    Attributes:
        rows: what the desk knew of every row in the end: its starts, by the batch it began at.
        folders: where the finished runs lie, by `spec_key`.

    >>> RayEngine(resources=Resources(cpu=2)).retries
    5
    """

    address: str | None = None
    resources: Resources = field(default_factory=Resources)
    every: int = EVERY
    retries: int = 5
    carried: bool = False
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)

    @property
    def said(self) -> str:
        """What a table says of where its rows ran."""
        cpu, gpu = self.resources.cpu, self.resources.gpu
        return f"img/s: rows ran side by side as Ray tasks of {cpu:g} cores and {gpu:g} GPUs each."

    def run(
        self, specs: Sequence[Spec], *, out: Path, again: bool, memory: float, console: Console
    ) -> dict[str, Outcome]:
        """Run specs of one seed each; what became of them, by `spec_key`.

        Args:
            specs: what to run; equal ones run once.
            out: where runs are kept.
            again: run even what is done.
            memory: GiB of made batches to keep in Ray's store, of all streams together.
            console: where progress goes.
        """
        found: dict[str, Outcome] = {}
        digests: dict[str, str] = {}
        token = _TOKEN + secrets.token_hex(6)
        groups: dict[str, _Group] = {}
        for spec in specs:
            if (key := spec_key(spec)) not in found and key not in digests:
                try:
                    task = self._task(spec, groups, found, out, again, token)
                except OstinatoError as error:
                    found[key] = error
                    continue
                if task is not None:
                    digests[key] = task.digest
        groups = {name: group for name, group in groups.items() if group.tasks}
        if groups:
            ended = self._everywhere(list(groups.values()), out, token, memory, console)
            found |= {key: ended[digest][0] for key, digest in digests.items()}
            self.folders |= {key: ended[digest][1] for key, digest in digests.items()}
        return found

    def _task(
        self,
        spec: Spec,
        groups: dict[str, _Group],
        found: dict[str, Outcome],
        out: Path,
        again: bool,
        token: str,
    ) -> Task | None:
        """What is left to do for a spec, in the group of its stream."""
        key = spec_key(spec)
        spec = spec.replace(device=self._device(spec))
        shown = {"stream", "data", "roots", "seeds", "batch_size", "device"}
        name = spec.model_dump_json(include=shown)
        if name not in groups:
            groups[name] = _Group(open_stream(spec))
        group = groups[name]
        resolved, _, _ = resolve(spec, group.stream)
        done = None if again else finished(spec, out, group.stream)
        if done is not None:
            found[key], self.folders[key] = done.summary(), done.path
            return None
        task = Task(
            digest=spec_hash(resolved.stored()),
            spec=spec,
            out=str(out.resolve()),
            token=token,
            again=again,
            every=self.every,
            threads=self.resources.threads,
        )
        if task.digest not in {one.digest for one in group.tasks}:
            group.tasks.append(task)
        return task

    def _device(self, spec: Spec) -> str:
        """Where Ray gives a share of a GPU, its number is Ray's affair."""
        if spec.device == "auto":
            return "cuda" if self.resources.gpu > 0 else name_device("auto")
        return "cuda" if spec.device.startswith("cuda") else spec.device

    def _everywhere(
        self, groups: list[_Group], out: Path, token: str, memory: float, console: Console
    ) -> dict[str, _Ended]:
        out.mkdir(parents=True, exist_ok=True)
        if not self.carried:
            (out / token).touch()
        try:
            with connected(self.address) as ray:
                desk = self._desk(ray, out)
                try:
                    return self._gather(ray, desk, groups, out, memory, console)
                finally:
                    self.rows = ray.get(desk.look.remote())
                    ray.kill(desk)
                    _clear(ray, token)
        finally:
            (out / token).unlink(missing_ok=True)

    def _desk(self, ray: Any, out: Path) -> Any:
        """On this machine, whose disk it writes to."""
        place = on_node(ray, here(ray))
        kind = ray.remote(Desk).options(num_cpus=0, scheduling_strategy=place)
        return kind.remote(str(out.resolve()))

    def _submit(self, ray: Any, desk: Any, group: _Group, memory: float) -> dict[Any, Task]:
        """A group's batches and rows, all at once: rows wait for their batches within Ray."""
        given = self.resources.for_device(group.tasks[0].spec.device)
        given.check_room(ray, 1, "rows", may_grow=self.address is not None)
        stream = ray.put(group.stream)
        options = given.options() | {"max_retries": self.retries}
        hands = max(1, 2 * int(ray.cluster_resources().get("CPU", 1) / given.cpu))
        dealt = deal(group.stream, memory, hands)
        maker = ray.remote(make_hand).options(num_returns=2, **options)
        made = [maker.remote(stream, indices, given.threads) for indices in dealt]
        worker = ray.remote(run_row).options(**options)
        ready, batches = [one[0] for one in made], [one[1] for one in made]
        return {
            worker.remote(task, stream, dealt, batches, desk, *ready): task for task in group.tasks
        }

    def _gather(
        self,
        ray: Any,
        desk: Any,
        groups: list[_Group],
        out: Path,
        memory: float,
        console: Console,
    ) -> dict[str, _Ended]:
        waiting: dict[Any, Task] = {}
        found: dict[str, _Ended] = {}
        try:
            for group in groups:
                waiting |= self._submit(ray, desk, group, memory / len(groups))
            with Display(len(waiting), console) as display:
                while waiting:
                    ended, _ = ray.wait(list(waiting), timeout=_LOOK)
                    display.show(ray.get(desk.look.remote()))
                    for one in ended:
                        task = waiting.pop(one)
                        found[task.digest] = self._outcome(ray, one, out)
                        outcome = found[task.digest][0]
                        said = (
                            str(outcome) if isinstance(outcome, OstinatoError) else said_of(outcome)
                        )
                        display.ended(task.title, said, task.digest)
        except KeyboardInterrupt:
            for one in waiting:
                ray.cancel(one)
            ray.wait(list(waiting), num_returns=len(waiting), timeout=_STOPPING)
            raise Interrupted(
                f"Stopped; what was done is in {out}. The same command goes on from there."
            ) from None
        return found

    def _outcome(self, ray: Any, ended: Any, out: Path) -> _Ended:
        try:
            reply = ray.get(ended)
        except ray.exceptions.RayError as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            return OstinatoError(f"died {self.retries + 1} times ({first[:160]})"), out
        if isinstance(reply, OstinatoError):
            return reply, out
        return RunFolder.open(out / reply).summary(), out / reply


def _clear(ray: Any, token: str) -> None:
    """Remove what rows left on disks of other machines."""
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    options = {"num_cpus": 0, "max_retries": 0}
    cleared = [
        ray.remote(clear_scratch)
        .options(scheduling_strategy=on_node(ray, node), **options)
        .remote(token)
        for node in nodes
    ]
    ray.wait(cleared, num_returns=len(cleared), timeout=_LOOK * 20)
