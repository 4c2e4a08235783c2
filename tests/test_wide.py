"""Several processes that answer one stream: the same answers and the same state as one alone."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.ops.processes import Processes
from ostinato.speed._ways import trusting
from ostinato.types import Decision, StepOutput

HERE = Path(__file__).parent
WORKER = HERE / "_wide_worker.py"
worker: Any = runpy.run_path(str(WORKER))
bench: Any = worker["bench"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes did, and one: a folder with their answers."""
    folder = tmp_path_factory.mktemp("wide")
    running = [
        subprocess.Popen([sys.executable, str(WORKER), str(rank), "2", str(folder)])
        for rank in range(2)
    ]
    try:
        with trusting():
            for case in worker["CASES"]:
                bench["work"](case, 0, 1, folder)
        torch.save(worker["scenes"](worker["statistics"](), None, 0, 1), folder / "scenes.pt")
    finally:
        codes = [one.wait() for one in running]
    assert codes == [0, 0]
    return folder


@pytest.mark.parametrize("case", worker["CASES"], ids=lambda case: case.name)
def test_two_processes_answer_and_learn_as_one(two: Path, case: Any) -> None:
    found = bench["difference"](case, 2, two)
    assert found.logits < 1e-5
    assert found.state < 1e-5
    assert found.alike
    assert found.same_events
    assert found.domains >= (2 if case.steps > 1 else 1)
    assert (found.updates > 3) == (case.preset == "robust" and case.steps > 1)


def test_every_way_of_calling_gives_what_one_process_gives(two: Path) -> None:
    one = torch.load(two / "scenes.pt")
    several = [torch.load(two / f"scenes-{rank}.pt") for rank in range(2)]
    for name, wanted in one.items():
        found = several[0][name]
        if not name.endswith(("state", "distances")):
            found = [torch.cat(pair) for pair in zip(found, several[1][name], strict=True)]
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            assert a.shape == b.shape, name
            assert torch.allclose(a.double(), b.double(), atol=2e-5), name
    for name in ("tent", "eata", "come", "deyo"):
        moved = zip(one[name], one["source"], strict=True)
        assert any(not torch.allclose(a, b, atol=1e-4) for a, b in moved), name


def test_a_state_that_two_processes_saved_goes_on_in_one(two: Path) -> None:
    case = worker["CASES"][1]
    adapted = worker["ours"](worker["statistics"](), None)
    twin = worker["ours"](worker["statistics"](), None)
    model, kind = adapted.model, torch.float64
    for one, name in ((adapted, "2-1"), (twin, "1-0")):
        one.to(kind)
        one.load(two / f"{case.name}-{name}.safetensors")
    assert model.dtype == kind
    with trusting():
        for batch in bench["small_stream"](3):
            assert torch.allclose(adapted(batch), twin(batch), atol=1e-5)


def test_what_is_wrong_on_one_process_is_refused_by_all(two: Path) -> None:
    first, second = (json.loads((two / f"said-{rank}.json").read_text()) for rank in range(2))
    lost = first.pop("lost")
    expected = {
        "method": ("ConfigError", "cotta cannot share its work", "lame, ostinato, pseudo_label"),
        "norms": ("ConfigError", "batch norms"),
        "settings": ("ConfigError", "the same settings"),
        "model": ("ConfigError", "the same model"),
        "group": ("ConfigError", "torch.distributed.group.WORLD"),
        "values": ("InputError", "must lie in [0, 1]"),
        "sizes": ("InputError", "(8, 3, 32, 32), (8, 3, 32, 16)"),
        "kind": ("InputError", "Process 1 was given no batch"),
        "none": ("InputError", "The batch is empty"),
        "apart": ("GroupError", "no longer agree"),
        "still": ("GroupError", "no longer agree"),
    }
    for name, words in expected.items():
        assert all(word in first[name] for word in words), (name, first[name])
    assert first["then"] == [8, 16]
    assert (first.pop("otherwise"), second.pop("otherwise")) == ("InputError", "GroupError")
    assert first == second
    assert first["copies"] == [2, 1]
    assert lost.startswith("GroupError: Process 0 of 2 had no answer from the others")
    assert "load the last saved state" in lost


@pytest.mark.parametrize("case", worker["CASES"][:2], ids=lambda case: case.name)
def test_a_process_that_talks_to_itself_answers_as_one_that_does_not(
    two: Path, case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    plain = Processes._do
    monkeypatch.setattr(Processes, "_do", lambda *given: (sent.append(given[1]), plain(*given)))
    with trusting():
        bench["process"]([replace(case, talk=True)], 0, 1, two)
    assert {torch.distributed.all_gather, torch.distributed.all_reduce} == set(sent)
    found = bench["difference"](replace(case, talk=True), 1, two, case)
    assert (found.logits, found.state, found.same_events) == (0, 0, True)


def test_rows_are_shared_evenly_and_a_stand_in_is_dropped() -> None:
    processes = Processes()
    processes.size, processes.rank, processes.alone = 4, 2, False
    assert processes.counts(10) == [3, 3, 2, 2]
    assert processes.share(torch.arange(10)).tolist() == [6, 7]
    assert processes.share(torch.arange(2)).tolist() == [0]
    assert (processes.taken(2), processes.taken(10)) == (1, 2)
    pieces = torch.arange(3)  # of the one image that stands in
    assert processes.own(pieces, 2).tolist() == []
    assert processes.own(torch.arange(6), 10).tolist() == [0, 1, 2, 3, 4, 5]


def test_an_output_is_cut_to_some_images() -> None:
    decision = Decision(1, False, 0.5, 5.0, per_sample=(0, 1, 2))
    whole = StepOutput(torch.arange(3.0)[:, None], decision, trust=(0.0, 0.1, 0.2), used=3)
    part = whole.part(slice(1, 3))
    assert (part.domains, part.trust, part.used) == ((1, 2), (0.1, 0.2), 3)
    assert part.logits.flatten().tolist() == [1.0, 2.0]
    assert whole.part(None) is whole
