"""The commands, called in process: what they print, what they write, how they end."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import ostinato
from ostinato import cli, registry
from ostinato.checks import small_model
from ostinato.cli._remembered import remembered
from ostinato.data.embedded import embedded_images, embedded_model
from ostinato.errors import ConfigError, DataError, MissingResource
from ostinato.models import fingerprint
from ostinato.ops.snapshot import load_state
from ostinato.running.source_images import _fitting_transform, load_source, open_source

METHODS_PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
PREPARE = ["--model", "embedded", "--data", "embedded-tune", "--device", "cpu"]


def run(*words: str) -> int:
    try:
        cli.main(words)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of 32 px pictures, bright and dark."""
    for label, level in (("cat", 40), ("dog", 200)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for n in range(3):
            picture = np.full((32, 32, 3), level + n, np.uint8)
            Image.fromarray(picture).save(tmp_path / "photos" / label / f"{n}.png")
    return tmp_path / "photos"


# Data sets.


def test_data_alone_shows_its_two_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data") == 0
    shown = capsys.readouterr().out
    assert "data check" in shown
    assert "data fetch" in shown
    assert "table" not in shown


def test_a_misspelt_second_word_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "chekc", "imagenet-a") == 2
    assert "Did you mean 'data check'?" in capsys.readouterr().err


def test_check_tells_whole_from_broken(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "check", "folder", "--root", str(photos)) == 0
    assert "complete, 6 images" in capsys.readouterr().out
    (photos / "dog" / "2.png").write_bytes(b"not a picture")
    assert run("data", "check", "folder", "--root", str(photos)) == 1
    shown = capsys.readouterr().out
    assert "problem:" in shown
    assert "2.png" in shown


def test_check_passes_options_on(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = str(photos.parent)
    assert run("data", "check", "folder", "--root", home, "--option", "domains=[photos]") == 0
    assert "photos: 6" in capsys.readouterr().out
    assert run("data", "check", "folder", "--root", home, "--option", "domain=[photos]") == 2
    assert "Did you mean 'domains'?" in capsys.readouterr().err


def test_fetch_says_what_a_person_has_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("data", "fetch", "acdc", "--root", str(tmp_path)) == 1
    shown = capsys.readouterr().out
    assert "terms must be accepted by a person" in shown
    assert f"--root {tmp_path}" in shown
    assert run("data", "fetch", "folder", "--root", str(tmp_path)) == 2
    assert "nothing to fetch" in capsys.readouterr().err


# Lists.


@pytest.mark.parametrize(
    ("kind", "collection"),
    [
        ("methods", registry.METHODS),
        ("datasets", registry.DATASETS),
        ("streams", registry.STREAMS),
        ("tables", registry.TABLES),
        ("corruptions", registry.CORRUPTIONS),
        ("descriptors", registry.DESCRIPTORS),
        ("discriminators", registry.DISCRIMINATORS),
    ],
)
def test_every_registered_thing_has_a_line(
    kind: str, collection: registry.Registry[object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("list", kind) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[0] for line in lines) == collection.names()
    second = head.index(head.split("  ", 1)[1].lstrip())  # where the second column starts
    assert all(line[second - 1] == " " and line[second] != " " for line in lines)


def test_needs_follow_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    run("list", "methods")
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["ostinato"].endswith("source statistics")
    assert lines["dual_expert"].endswith("none")
    assert lines["vida"].endswith("prepared file")
    assert lines["tent"].endswith("none")


# The page of methods.

method_page = SimpleNamespace(**runpy.run_path(str(METHODS_PAGE.parent / "_site/write_methods.py")))


def test_the_page_of_methods_is_what_they_declare() -> None:
    text = METHODS_PAGE.read_text(encoding="utf-8")
    hint = "run: python docs/_site/write_methods.py docs/methods.md"
    assert set(method_page.shown_costs(text)) == set(registry.METHODS.names()), hint
    assert text == method_page.method_page(method_page.shown_costs(text)), hint


QUICK = ("tent",)
SLOW = [name for name in registry.METHODS if name not in QUICK]


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_the_page_shows_costs_as_counted(name: str) -> None:
    shown = method_page.shown_costs(METHODS_PAGE.read_text(encoding="utf-8"))[name]
    cost = method_page.method_cost(name)
    assert cost.moved == pytest.approx(shown.moved, abs=0.006)
    # Filters rest on thresholds, which an image may pass on one machine and miss on another.
    assert cost.first == pytest.approx(shown.first, rel=0.1, abs=0.06)
    assert cost.later == pytest.approx(shown.later, rel=0.1, abs=0.06)


# Preparation.


def test_a_prepared_file_is_what_adapt_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "eata.safetensors"
    assert run("prepare", "eata", *PREPARE, "--images", "12", "--out", str(out)) == 0
    assert f"prepared='{out}'" in capsys.readouterr().out
    state, header = load_state(out)
    assert header["method"] == "eata"
    assert header["images"] == 12
    assert header["fingerprint"] == fingerprint(embedded_model())
    assert header["settings"]["fisher_images"] == 2000
    source = load_source(open_source("embedded-tune"), embedded_model(), count=12)
    again = ostinato.prepare(embedded_model(), "eata", source.images, source.labels)
    assert all(torch.equal(again.tensors[name], state.tensors[name]) for name in state.tensors)
    adapted = ostinato.adapt(embedded_model(), "eata", prepared=out)
    assert adapted(embedded_images("test")[0][:8]).shape == (8, 10)


def test_a_file_prepared_for_something_else_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "eata.safetensors"
    assert run("prepare", "eata", *PREPARE, "--images", "4", "--out", str(out)) == 0
    with pytest.raises(MissingResource, match="another method"):
        ostinato.adapt(embedded_model(), "ecotta", prepared=out)
    other = embedded_model()
    with torch.no_grad():
        other.head.bias += 1
    with pytest.raises(MissingResource, match="another source model"):
        ostinato.adapt(other, "eata", prepared=out)


def test_settings_reach_the_preparation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "vida.safetensors"
    words = ["--settings", "warm_steps=1", "low_rank=2", "--images", "8", "--out", str(out)]
    assert run("prepare", "vida", *PREPARE, *words) == 0
    assert "loss on 1 held-out images" in capsys.readouterr().out
    assert load_state(out)[1]["settings"]["low_rank"] == 2
    ostinato.adapt(embedded_model(), "vida", prepared=out, low_rank=2)


def test_statistics_are_a_preparation_too(tmp_path: Path) -> None:
    out = tmp_path / "statistics.safetensors"
    assert run("prepare", "statistics", *PREPARE, "--images", "20", "--out", str(out)) == 0
    adapted = ostinato.adapt(embedded_model(), preset="robust", statistics=out)
    assert adapted.resources.statistics is not None
    assert adapted.resources.statistics.images == 20


def test_what_cannot_be_prepared_is_said_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "x")
    for words, text in (
        (["tent", *PREPARE, "--out", out], "tent needs no preparation"),
        (["ostinato", *PREPARE, "--out", out], "ostinato prepare statistics"),
        (["etaa", *PREPARE, "--out", out], "Did you mean 'eata'?"),
        (["eata", *PREPARE, "--out", "/nowhere/x"], "/nowhere does not exist"),
        (["eata", *PREPARE, "--out", out, "--images", "9999"], "so take 1 to "),
        (["eata", *PREPARE, "--out", out, "--settings", "lrr=1"], "Did you mean 'lr'?"),
        (["statistics", *PREPARE, "--out", out, "--settings", "lr=1"], "no settings"),
    ):
        assert run("prepare", *words) == 2
        assert text in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_labels_follow_the_names_that_a_model_has(photos: Path) -> None:
    dataset = open_source(str(photos))
    taken = load_source(dataset, embedded_model())
    assert taken.labels is not None
    assert set(taken.labels.tolist()) == {3, 5}  # the folders have names that the model knows
    assert len(taken.images) == 6
    two = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 2))
    fitting = load_source(open_source(str(photos)), two, normalize="none")
    assert fitting.labels is not None
    bright = fitting.images.float().mean((1, 2, 3)) > 100
    assert torch.equal(fitting.labels.bool(), bright)


def test_wordnet_folders_are_imagenet_classes(tmp_path: Path) -> None:
    for name in ("n01440764", "n01498041"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (32, 32)).save(tmp_path / name / "1.png")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 1000))
    taken = load_source(open_source(str(tmp_path)), model, normalize="none")
    assert taken.labels is not None
    assert sorted(taken.labels.tolist()) == [0, 6]


def test_images_are_sized_for_the_model(photos: Path) -> None:
    dataset = open_source(str(photos))
    model = small_model()
    for size, expected in ((32, "none"), (224, "resize256-crop224")):
        model.pretrained_cfg = {"input_size": (3, size, size)}  # type: ignore[assignment]
        assert _fitting_transform(model, dataset, [0, 1]) == expected
    with pytest.raises(ConfigError, match="resize224"):
        load_source(dataset, embedded_model(), transform="resize224")


def test_sources_by_name(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="Did you mean 'embedded-tune'"):
        open_source("embedded-tun")
    monkeypatch.setenv("OSTINATO_DATA", "/nowhere")
    with pytest.raises(DataError, match="/nowhere/cifar10"):
        open_source("cifar10:train")
    assert len(open_source("photos", photos.parent)) == 6


# Listing without torch, and readers that leave.


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    command = [sys.executable, "-c", "from ostinato.cli import main; main(['list', 'corruptions'])"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as done:
        assert done.stdout is not None
        assert done.stderr is not None
        done.stdout.close()
        assert b"Traceback" not in done.stderr.read()
    assert done.returncode == 141


def test_a_list_is_remembered_until_a_file_changes(tmp_path: Path, monkeypatch) -> None:
    asked = []

    def make() -> list[list[str]]:
        asked.append(1)
        return [["name"], [f"answer {len(asked)}"]]

    for _ in range(3):
        assert remembered("things", make, tmp_path) == [["name"], ["answer 1"]]
    (kept,) = tmp_path.iterdir()
    for junk in ("", "[1, 2]", '{"a": 1}', "[]"):
        kept.write_text(junk)
        assert remembered("things", make, tmp_path)[1] == [f"answer {len(asked)}"]
    monkeypatch.setattr("ostinato.cli._remembered._key", lambda: "another")
    count = len(asked)
    assert remembered("things", make, tmp_path)[1] == [f"answer {count + 1}"]
    assert len(list(tmp_path.iterdir())) == 1  # the older one is gone
    nowhere = kept.parent / "things-another.json" / "below"  # a file is no folder
    assert remembered("things", make, nowhere)[1] == [f"answer {count + 2}"]


def test_a_remembered_list_needs_no_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run("list", "streams") == 0
    code = (
        "import sys\nfrom ostinato.cli import main\nmain(['list', 'streams'])\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout == capsys.readouterr().out
    assert done.stderr.split()[-1] == "False"


# Help.

NOISE = re.compile(r"\{None|\bSTR\b|\bINT\b|\bPATH\b|\bFLOAT\b|default: (None)?\)")


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_help_says_what_is_wanted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*name.split(), "--help") == 0
    shown = capsys.readouterr().out
    assert "usage" in shown
    assert not NOISE.search(shown)


def test_a_bare_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run") == 0
    shown = capsys.readouterr().out
    assert "--data [folder:DIR | NAME | KEY=VALUE ...]" in shown


def test_a_new_command_is_one_file(tmp_path: Path) -> None:
    """A file beside the others is all it takes to be listed, explained and run."""
    (tmp_path / "greet.py").write_text(
        "from ostinato.cli._command import command\n"
        "from ostinato.cli._words import Named\n\n"
        '@command("greet", "NAME: say hello", "start")\n'
        "def greet_command(name: Named, /, *, loud: bool = False) -> None:\n"
        '    """Say hello.\n\n    Args:\n        name: of whom.\n        loud: louder.\n    """\n'
        "    print(f'hello {name}' + '!' * loud)\n"
    )
    code = (
        "import sys, ostinato.cli\n"
        f"ostinato.cli.__path__.append({str(tmp_path)!r})\n"
        "ostinato.cli.main(sys.argv[1:])"
    )

    def said(*words: str) -> str:
        line = [sys.executable, "-c", code, *words]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout

    assert "  greet        NAME: say hello\n" in said("--help")
    assert "of whom" in said("greet")
    assert said("greet", "Ada", "--loud") == "hello Ada!\n"


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"ostinato {ostinato.__version__}\n"
