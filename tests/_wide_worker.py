"""What one of several processes does in the tests: python _wide_worker.py RANK WORLD FOLDER.

`scenes` holds what can be done on any number of processes; its answers are compared with one's.
`refusals` holds what only several can get wrong.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import runpy
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from ostinato.api import adapt, collect_statistics, prepare
from ostinato.checks import small_batches, small_model
from ostinato.checks._small import clean_images, example_model, small_cnn
from ostinato.errors import OstinatoError
from ostinato.ops.processes import Processes
from ostinato.ops.statistics import SourceStatistics
from ostinato.registry import METHODS
from ostinato.speed._ways import trusting

bench = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "wide.py"))
Case, parts = bench["Case"], bench["parts"]
PEERS = [name for name in METHODS.names() if METHODS[name].wide and name != "ostinato"]
CASES = [
    Case("float32", "robust", 1, small=True),
    Case("float64", "robust", 10, small=True),
    Case("float64", "forward-only", 10, small=True),
]


def statistics() -> SourceStatistics:
    return collect_statistics(small_model(), clean_images(60, seed=9))


def ours(known: SourceStatistics, group: Any, **settings: Any) -> Any:
    return adapt(small_model(), statistics=known, group=group, **bench["SETTINGS"] | settings)


def scenes(known: SourceStatistics, group: Any, rank: int, world: int) -> dict[str, list[Tensor]]:
    """The answers of methods and ways to call them, each with its state's tensors behind them."""

    def own(batch: Tensor, at: int) -> Tensor:
        counts = [len(batch)] if world == 1 else [[5, 3], [8, 0], [1, 7]][at % 3]
        return batch.split(counts)[rank]

    found: dict[str, list[Tensor]] = {}
    batches = small_batches(6, seed=1)

    def keep(name: str, adapted: Any, answers: list[Tensor]) -> None:
        found[name] = answers
        found[f"{name} state"] = list(adapted.export_state().clone().tensors.values())

    for name in PEERS:
        kind = METHODS[name]
        model, settings = example_model(kind), dict(kind.example)
        if "prepared file" in kind.needs(kind.Config(**settings)):
            images, labels = torch.cat(small_batches(4, seed=9)), torch.arange(32) % 5
            settings["prepared"] = prepare(model, name, images, labels, **settings)
        adapted = adapt(model, name, group=group, **settings)
        keep(name, adapted, [adapted(own(batch, at)) for at, batch in enumerate(batches)])
    with trusting():
        adapted = ours(known, group)
        answers = []
        for at, batch in enumerate(batches):
            answers.append(adapted.predict(own(batch, at), source=True))
            answers.append(adapted.last.source_logits)
            adapted.learn()
        keep("predict and learn", adapted, answers)
        adapted = ours(known, group)
        classes = torch.tensor([4, 0, 2])
        few = [one[:1] for one in batches]  # fewer images than processes
        levels = [(one * 255).to(torch.uint8) for one in batches]
        answers = [adapted(own(batch, at), classes) for at, batch in enumerate(levels)]
        answers += [adapted(batch[:0] if rank else batch, classes) for batch in few]
        keep("levels, few images and classes", adapted, answers)
        found["distances"] = [torch.tensor(json.loads(json.dumps(numbers(adapted.diagnose()))))]
    return found


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    return [n for one in value for n in numbers(one)] if isinstance(value, list) else [value]


def refusals(known: SourceStatistics, group: Any, rank: int) -> dict[str, Any]:
    """What is said where something is wrong on one process; all of them are to say so."""
    adapted = ours(known, group)
    batch = small_batches(1)[0]
    broken = batch * 9 if rank else batch
    other = batch[..., :16] if rank else batch
    said: dict[str, Any] = {
        "method": message(lambda: adapt(small_model(), "cotta", group=group)),
        "norms": message(lambda: adapt(small_cnn(), "tent", group=group)),
        "settings": message(lambda: ours(known, group, lr=0.1 + rank)),
        "model": message(lambda: adapt(small_model(seed=rank), "tent", group=group)),
        "group": message(lambda: adapt(small_model(), "tent", group="world")),
        "values": message(lambda: adapted(broken)),
        "sizes": message(lambda: adapted(other)),
        "kind": message(lambda: adapted.step(None if rank else batch)),
        "none": message(lambda: adapted(batch[:0])),
    }
    said["then"] = [adapted(batch).shape[0], adapted.last.decision.evidence]
    said["copies"] = [copy.deepcopy(adapted).processes.size, pickled_size(adapted)]
    twin = copy.deepcopy(adapted)
    twin.processes = Processes(group)
    if rank:
        adapted.reset()  # without the other
    said["apart"] = message(lambda: adapted(batch))
    said["still"] = message(lambda: adapted(batch))
    said["otherwise"] = message(lambda: twin.learn() if rank else twin.predict(batch))[:10]
    return said


def pickled_size(adapted: Any) -> int:
    return int(pickle.loads(pickle.dumps(adapted.processes)).size)


def message(work: Callable[[], Any]) -> str:
    try:
        work()
    except OstinatoError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=world,
        timeout=timedelta(minutes=5),
    )
    group, known = distributed.group.WORLD, statistics()
    with trusting():
        for case in CASES:
            bench["work"](case, rank, world, folder)
    torch.save(scenes(known, group, rank, world), folder / f"scenes-{rank}.pt")
    said = refusals(known, group, rank)
    left = ours(known, group)
    if rank == 0:  # the other one ends meanwhile
        said["lost"] = message(lambda: left(small_batches(1)[0]))
    (folder / f"said-{rank}.json").write_text(json.dumps(said))
    if rank:
        distributed.destroy_process_group()
        return
    sys.stdout.flush()
    os._exit(0)  # its group has lost a process: taking gloo's threads down aborts now and then


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
