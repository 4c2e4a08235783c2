"""The process that a soak kills: it goes on from the last save, batch by batch.

python -m ostinato.soak._worker FOLDER END PARENT
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ostinato.api import adapt, unwrap
from ostinato.data.embedded import STATISTICS, asset_path, embedded_model
from ostinato.errors import InputError
from ostinato.methods.base import Method
from ostinato.methods.contract import resolve_config
from ostinato.ops.snapshot import State
from ostinato.registry import METHODS
from ostinato.soak import _log as log
from ostinato.soak._memory import memory
from ostinato.soak._traffic import open_traffic, told
from ostinato.soak.plan import LOG, STATE, Plan, read_plan


class Worker:
    """A method on the embedded model, beside the source model itself."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.plan = folder, read_plan(folder)
        self.source = embedded_model()
        self.traffic = open_traffic(self.plan, folder, self.source)
        self.method = build(self.plan, embedded_model())
        log.cut_off(folder / LOG)
        self.life = 1 + max((b.life for b in log.read(folder / LOG)), default=-1)
        if (folder / STATE).is_file():
            self.method.load(folder / STATE)
        else:
            self.save()

    @property
    def position(self) -> int:
        """Batches taken in so far: the method's own count, which is saved with its state."""
        return int(self.method.counters["steps"])

    def run(self, end: int, parent: int) -> None:
        """Go on until a position, or until whoever started this is gone."""
        while self.position < end and os.getppid() == parent:
            self.block(min(end, self.position + self.plan.block))

    def block(self, end: int) -> None:
        """Some batches of one kind, a line in the log, and what is due after them."""
        start, began = self.position, time.perf_counter()
        images = wrong = alone = updates = 0
        digest, faults = hashlib.sha256(), list[str]()
        for position in range(start, end):
            shown = self.traffic[position]
            if shown.refused is not None:
                faults += self.refuse(shown.refused)
            logits = self.method(shown.images)
            digest.update(logits.numpy().tobytes())
            if not bool(logits.isfinite().all()):
                faults.append(f"batch {position}: logits that are not finite")
            updates += self.method.last is not None and self.method.last.updated
            if shown.labels is not None:
                images += len(shown.labels)
                source = shown.source
                says = told(self.source, shown.images) if source is None else source
                wrong += _mistakes(logits.argmax(1), shown.labels)
                alone += _mistakes(says, shown.labels)
        faults += self.reload() if end % self.plan.lap == 0 else []
        held = memory()
        line = log.Block(
            start=start,
            end=end,
            kind=self.plan.kind(start),
            images=images,
            wrong=wrong,
            source_wrong=alone,
            answers=digest.hexdigest()[:16],
            memory=held.total,
            mapped=held.files,
            allocated=held.used,
            idle=held.idle,
            state=(self.folder / STATE).stat().st_size,
            files=_open_files(),
            domains=domains(self.method),
            updates=updates,
            faults=tuple(faults),
            seconds=round(time.perf_counter() - began, 3),
            life=self.life,
        )
        log.append(self.folder / LOG, line)
        if end % self.plan.save == 0:
            self.save()

    def refuse(self, images: Tensor) -> list[str]:
        """Give the method what it must refuse; once a lap, its whole state is compared."""
        closely = self.position % self.plan.lap >= self.plan.lap - self.plan.block
        before = _fingerprint(self.method.export_state()) if closely else ""
        try:
            self.method(images)
        except InputError:
            if closely and _fingerprint(self.method.export_state()) != before:
                return [f"batch {self.position}: a refused input changed the state"]
            return []
        return [f"batch {self.position}: accepted {tuple(images.shape)} {images.dtype}"]

    def save(self) -> None:
        """Keep everything that going on needs, in one file."""
        self.method.save(self.folder / STATE, buffers=True)

    def reload(self) -> list[str]:
        """Save, take the method out of its model, adapt it anew and load; in turn without images.

        What comes back is checked: the source's own weights, and the same answers.
        """
        path = self.folder / f"reload-{STATE}"
        lap = self.position // self.plan.lap
        probe = self.traffic[self.position].images
        self.method.save(path, buffers=lap % 2 == 0)
        with self.method.frozen():
            before = self.method.predict(probe)
        model = unwrap(self.method)
        faults = []
        if not _same_weights(model, self.source):
            faults.append(f"batch {self.position}: unwrap gave other weights back")
            model = embedded_model()
        self.method = build(self.plan, model)
        self.method.load(path)
        with self.method.frozen():
            after = self.method.predict(probe)
        if not torch.equal(before, after):
            faults.append(f"batch {self.position}: other answers after save and load")
        return faults


def build(plan: Plan, model: nn.Module) -> Method:
    """The plan's method on a model, with the embedded statistics where it takes any."""
    kind = METHODS[plan.method]
    given: dict[str, Any] = {"seed": plan.seed, **plan.settings}
    needs = kind.needs(resolve_config(kind, plan.preset, given))
    statistics = asset_path(STATISTICS) if "source statistics" in needs else None
    return adapt(model, plan.method, preset=plan.preset, statistics=statistics, **given)


def _mistakes(classes: Tensor, labels: Tensor) -> int:
    """How many images are not what they were told to be."""
    return int((classes != labels).sum())


def _fingerprint(state: State) -> str:
    """A hash of a state's values and tensors."""
    digest = hashlib.sha256(repr(sorted(state.values.items(), key=str)).encode())
    for name in sorted(state.tensors):
        digest.update(name.encode())
        digest.update(state.tensors[name].detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models hold the same numbers under the same names."""
    a, b = one.state_dict(), other.state_dict()
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def domains(method: Method) -> int:
    """How many domains a method holds; 0 for one that knows none."""
    holder = getattr(method, "bank", None) or getattr(method, "pool", None)
    return len(getattr(holder, "domains", ()))


def _open_files() -> int:
    """Files, pipes and sockets that this process holds."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def main(folder: str, end: str, parent: str) -> None:
    """Entry point of the process."""
    torch.set_num_threads(1)
    Worker(Path(folder)).run(int(end), int(parent))


if __name__ == "__main__":
    main(*sys.argv[1:])
