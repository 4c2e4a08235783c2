"""The peers' tables: their commands, what runs beside what, and taking packed runs up again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

from ostinato.cli import main as ostinato
from ostinato.data.datasets.labelled import wordnet_ids
from ostinato.registry import METHODS, TABLES
from ostinato.running.job import resolve
from ostinato.running.results import RunFolder
from ostinato.running.spec import Spec, parse_pairs, split_label
from ostinato.scoring.record import Record
from ostinato.scoring.summary import summarise
from ostinato.tables._plan import Plan as TablePlan
from ostinato.tables._plan import plan_table
from ostinato.tables.request import Request, parse_only

FOLDER = Path(__file__).parents[1] / "benchmarks"
WORDS = ["tables", "--root", "data", "--weights", "w.safetensors"]
Parse = Callable[..., Any]


@pytest.fixture(scope="module")
def modules() -> Iterator[tuple[ModuleType, ModuleType]]:
    """The plan and the driver, which find each other as scripts of one folder do."""
    import importlib

    names = ("_peer_tables", "_peer_tables_files", "peer_tables")
    sys.path.insert(0, str(FOLDER))
    try:
        loaded = {name: importlib.import_module(name) for name in names}
        yield loaded["_peer_tables"], loaded["peer_tables"]
    finally:
        sys.path.remove(str(FOLDER))
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture
def plans(modules: tuple[ModuleType, ModuleType]) -> ModuleType:
    return modules[0]


@pytest.fixture
def script(modules: tuple[ModuleType, ModuleType]) -> ModuleType:
    return modules[1]


@pytest.fixture
def parse(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Parse:
    def parsed(*words: str) -> Any:
        monkeypatch.setattr(sys, "argv", [*WORDS, "--out", str(tmp_path / "out"), *words])
        return script.parse()

    return parsed


def after(words: list[str], option: str) -> list[str]:
    """The words of one option."""
    if option not in words:
        return []
    rest = words[words.index(option) + 1 :]
    return rest[: next((i for i, word in enumerate(rest) if word.startswith("--")), len(rest))]


def planned(words: list[str]) -> TablePlan:
    """What `ostinato table` makes of a command, but for where its files are."""
    table = TABLES[words[1]]
    table = table.of_parts(after(words, "--parts")) if "--parts" in words else table
    request = Request(
        scale="full",
        methods=tuple(after(words, "--methods")),
        seeds=tuple(map(int, after(words, "--seeds"))),
        changes=parse_pairs(after(words, "--set")),
        only=parse_only(after(words, "--only")),
    )
    return plan_table(table, request)


def searched(plans: ModuleType, folder: Path, errors: dict[str, float], factor: float = 1) -> Any:
    """A plan whose search and main table have been made."""
    for file in (plans.FACTORS, plans.MAIN):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
    factors = {"tent:imagenet-c": factor}
    (folder / plans.FACTORS).write_text(json.dumps({"factors": factors}))
    headings = [{"name": "Mean", "group": "R1"}, {"name": "Mean", "group": ""}]
    rows = [
        {"label": label, "origin": "measured", "values": [{"value": 0.0}, {"value": error}]}
        for label, error in errors.items()
    ]
    printed = {"label": "SAR", "origin": "printed", "values": [{"value": 0.0}] * 2}
    content = {"headings": headings, "rows": [*rows, printed]}
    (folder / plans.MAIN).write_text(json.dumps(content))
    return plans.Plan(folder)


def test_every_command_plans_rows_that_exist(plans: ModuleType, tmp_path: Path) -> None:
    plan = searched(plans, tmp_path, {"EATA": 70.0})
    for lane in plans.LANES.values():
        for step in lane:
            words = plan.words(step)
            names = after(words, "--methods")
            assert len(names) == len(set(names)) > 0
            assert {split_label(name)[0] for name in names} <= set(METHODS.names())
            made = planned(words)
            assert not made.skipped
            assert len(made.rows) == len(names)
            split = "tune" if step == "search" else "test"
            assert f"data.options.split={split}" in words
    every = {*plans.SLOW, *plans.FAST, *plans.STILL, *plans.OURS, *plans.ROUNDS, "memo"}
    assert every == set(plans.ORDER)


def test_slow_methods_come_first_and_see_fewer_images(plans: ModuleType, tmp_path: Path) -> None:
    plan = plans.Plan(tmp_path)
    assert after(plan.words("search"), "--methods")[: len(plans.SLOW)] == list(plans.SLOW)
    assert after(plan.words("main"), "--methods")[0] == "memo"

    def limits(step: str) -> dict[tuple[str, str], int]:
        made = planned(plan.words(step))
        return {
            (row.variant.method, part): spec.data["limit"]
            for row in made.rows
            for part, spec in row.specs.items()
        }

    search = limits("search")
    assert all(search[name, "ImageNet-C"] == 50 for name in plans.SLOW)
    assert search["tent", "ImageNet-C"] == 100
    main = limits("main")
    assert [main[n, "ImageNet-C"] for n in ("memo", "foa", "dpcore", "tent")] == [20, 100, 100, 200]
    traffic = limits("traffic") | limits("traffic-later")
    assert {part for _, part in traffic} == {*plans.PARTS, *plans.LATER}
    for name in (*plans.SLOW, "pea", "memo"):
        for part in (*plans.PARTS, "Gradual"):
            assert traffic[name, part] < traffic["tent", part], (name, part)
    precision = {row.variant.method: row.specs for row in planned(plan.words("main")).rows}
    assert precision["ostinato"]["ImageNet-C"].precision == "fp32"
    assert precision["tent"]["ImageNet-C"].precision == "tf32"


def test_the_main_tables_runs_are_those_of_recurring_traffic(
    plans: ModuleType, tmp_path: Path
) -> None:
    plan = plans.Plan(tmp_path)
    main = {row.label: row.specs["ImageNet-C"] for row in planned(plan.words("main")).rows}
    shown = planned(plan.words("traffic", shown=True))
    for row in shown.rows:
        assert row.specs["Recurring"].stored() == main[row.label].stored(), row.label


def test_the_best_are_those_of_lowest_error_at_the_searched_rate(
    plans: ModuleType, tmp_path: Path
) -> None:
    errors = {
        "Source": 1.0,
        "EATA": 70.0,
        "TENT (continual)": 2.0,
        "TENT (continual), rate × 10": 72.0,
        "FOA": 69.0,
    }
    plan = searched(plans, tmp_path, errors, factor=10)
    assert plan.best(10) == ["foa", "eata", "tent"]
    assert plan.best(1, without=plans.SLOW) == ["eata"]
    assert after(plan.words("seeds"), "--methods") == ["source", "foa", "eata", "tent"]
    assert after(plan.words("seeds", shown=True), "--methods") == ["source", "tent", "eata", "foa"]
    assert after(plan.words("traffic-seeds"), "--seeds") == ["2026", "2027"]
    assert after(plan.words("traffic-seeds", shown=True), "--seeds") == ["2025", "2026", "2027"]
    key = plan.key("main")
    assert searched(plans, tmp_path, errors, factor=100).key("main") != key


class Ended:
    """A command that has ended at once."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.pid = 0

    def poll(self) -> int:
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        return self.code


def test_steps_wait_for_what_they_need_and_are_not_done_twice(
    plans: ModuleType,
    script: ModuleType,
    parse: Parse,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = parse("--jobs", "9", "4", "3", "2")
    plan = plans.Plan(given.out)
    (given.out / "logs").mkdir(parents=True)
    begun: list[tuple[str, list[str]]] = []
    broken = {"recurring-20"}

    def start(words: list[str], folder: Path, log: Any) -> Ended:
        name = Path(after(words, "--save")[0]).name
        begun.append((name, after(words, "--jobs")))
        if name == "search":
            searched(plans, folder, {"EATA": 70.0})
            (folder / plans.MAIN).unlink()
        if name == "main":
            searched(plans, folder, {"EATA": 70.0})
        return Ended(name in broken)

    monkeypatch.setattr(script, "start", start)
    monkeypatch.setattr(script.time, "sleep", lambda _: None)
    script.Driver(plan, given).work()
    names = [name for name, _ in begun]
    assert names[:2] == ["search", "recurring-20"]
    assert names.index("search") < names.index("main") < names.index("seeds")
    assert names.index("search") < names.index("traffic")
    assert names.count("recurring-20") == 2  # what breaks is tried again
    jobs = dict(begun)
    assert [jobs[n] for n in ("search", "main", "traffic", "recurring-20")] == [
        ["9"], ["4"], ["3"], ["2"],
    ]  # fmt: skip
    assert "| recurring-20 | failed |" in script.table(plan)
    begun.clear()
    broken.clear()
    script.Driver(plan, given).work()
    assert [name for name, _ in begun] == ["recurring-20"]
    assert "main is complete" in capsys.readouterr().out


def test_a_search_whose_time_is_spent_chooses_among_what_it_has(
    plans: ModuleType, script: ModuleType, parse: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = parse("--search", "100")
    plan = plans.Plan(given.out)
    (given.out / "logs").mkdir(parents=True)
    begun: list[list[str]] = []

    def start(words: list[str], folder: Path, log: Any) -> Ended:
        begun.append(words)
        return Ended(0)

    monkeypatch.setattr(script, "start", start)
    driver = script.Driver(plan, given)
    driver.known["search"] = {"key": plan.key("search"), "state": "cut off", "seconds": 90.0}
    driver.begin("tables", "search")
    assert begun[0][-1] == "--finished"
    begun.clear()
    driver.known["search"]["seconds"] = 10.0
    driver.begin("tables", "search")
    assert begun[0][-2] == "--jobs"
    assert driver.busy["tables"].until < driver.began + 95


def finish(spec: Spec, folder: Path) -> None:
    """A complete run of one batch."""
    resolved, _, _ = resolve(spec)
    run = RunFolder.create(folder, resolved.stored())
    record = Record(
        run=run.hash, index=0, domain="fog", images=4, correct=3, counted=4, hits="1110",
        confidence=(0.5,) * 4,
    )  # fmt: skip
    run.append(record)
    run.complete(summarise([record]))


def test_packed_runs_are_found_elsewhere_whatever_the_paths_are(
    plans: ModuleType,
    script: ModuleType,
    parse: Parse,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = tmp_path / "images" / "imagenet-val"
    for number, name in enumerate(wordnet_ids()[:4]):
        (images / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), (40 * number, 0, 0)).save(images / name / "a.jpg")
    for split in ("clean", "tune", "test"):
        (images / f"{split}.txt").write_text("".join(f"{n}/a.jpg\n" for n in wordnet_ids()[:4]))
    weights = tmp_path / "some.safetensors"
    weights.touch()
    here, there = tmp_path / "here", tmp_path / "there"
    script.set_up(here, images.parent, weights)
    plan = plans.Plan(here, tiny=True)
    monkeypatch.chdir(here)
    row = next(r for r in planned(plan.words("recurring-20")).rows if r.variant.method == "source")
    given = {"roots": "data", "weights": plans.WEIGHTS}
    finish(Spec.parse({**row.specs["Recurring"].model_dump(), **given}), here / "runs-20" / "a")
    RunFolder.create(here / "runs-20" / "b", {"method": "begun"})
    monkeypatch.chdir(tmp_path)
    archive = tmp_path / "sent" / "peers.tar.xz"
    assert script.pack(here, archive) == 1

    def start(words: list[str], folder: Path, log: Any) -> Ended:
        """In this process, which is quicker; only the twenty rounds have a row."""
        if words[1] != "recurring-20":
            return Ended(1)
        with monkeypatch.context() as inside:
            inside.chdir(folder)
            ostinato(words)
        return Ended(0)

    monkeypatch.setattr(script, "start", start)
    asked = parse("--tiny", "--finished", "--unpack", str(archive), "--docs", str(tmp_path))
    asked.root, asked.weights, asked.out = images.parent, weights, there
    monkeypatch.setattr(script, "parse", lambda: asked)
    assert script.main() == 1  # the search has no rows, which is said
    assert not (there / "runs-20" / "b").exists()
    assert (there / "runs-20" / "a" / "records.jsonl").is_file()
    made = json.loads((tmp_path / "recurring-20-vit-tiny.json").read_text())
    assert [r["label"] for r in made["rows"] if r["origin"] == "measured"] == ["Source"]
