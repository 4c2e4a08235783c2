"""A trial: from a model and a folder of images to advice that follows from what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from ostinato import cli
from ostinato.data.embedded import CLASSES, embedded_images, embedded_model
from ostinato.errors import ConfigError, DataError
from ostinato.scoring.compare import Interval
from ostinato.trial._advice import Outcome, advise
from ostinato.trial._images import ORDINARY, Pictures, answers, corrupted, split, take_images
from ostinato.trial._plan import FEW, all_traffic, few_classes
from ostinato.trial.command import trial
from ostinato.trial.setting import Request, read_question


def write_folder(root: Path, dim: float = 1.0, count: int = 14, flat: bool = False) -> Path:
    """Pictures of four classes, darkened; in class folders, or all in one."""
    images, labels, *_ = embedded_images("test")
    for name in ("cat", "dog", "ship", "truck"):
        place = root if flat else root / name
        place.mkdir(parents=True, exist_ok=True)
        for number in (labels == CLASSES.index(name)).nonzero().flatten()[:count].tolist():
            picture = (images[number].float() * dim).byte().permute(1, 2, 0).numpy()
            Image.fromarray(picture).save(place / f"{name}{number}.png")
    return root


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("pictures") / "day")


@pytest.fixture(scope="module")
def done(day: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Request, Path, Path]:
    """A whole trial at the smallest size."""
    night = write_folder(day.parent / "night", dim=0.15, count=4)
    home = tmp_path_factory.mktemp("trial") / "out"
    request = Request(
        images=str(day), domains={"night": str(night)}, peers=("tent",), limit=12, device="cpu"
    )
    page = trial(request, home)
    assert page is not None
    return request, home, page


def test_the_page_says_what_was_found_and_what_to_write(done: tuple[Request, Path, Path]) -> None:
    _, home, page = done
    text = page.read_text(encoding="utf-8")
    assert re.search(r'<section class="verdict (yes|unclear|no)"', text)
    for words in ("Domains that return", "All at once", "One by one", "Ordinary images", "TENT"):
        assert words in text
    for anchor in ("gain", "cost", "code", "how", "gain-by-traffic", "gain-by-domain"):
        assert f'id="{anchor}"' in text
    assert "Labels are yours" in text
    assert not re.search(r"https?:|<script|<link", text)
    assert (home / "report.html").is_file()
    assert (home / "statistics.safetensors").is_file()


def test_its_code_runs(done: tuple[Request, Path, Path]) -> None:
    import ostinato
    from ostinato.trial._advice import Advice
    from ostinato.trial._page import code

    lines = code(done[0], Advice("yes", "", "forward-only", ()))
    assert len(lines.splitlines()) == 3
    images = embedded_images("test")[0][:24]
    known = {"ostinato": ostinato, "model": embedded_model(), "clean_images": images}
    known["images"] = images[:4]
    exec(lines, known)
    assert known["logits"].shape == (4, 10)


def test_the_same_command_goes_on_and_another_is_refused(done: tuple[Request, Path, Path]) -> None:
    request, home, page = done
    records = sorted(home.glob("runs/*/*/records.jsonl"))
    before = [path.stat().st_mtime_ns for path in records]
    page.unlink()
    assert trial(request, home) == page
    assert page.is_file()
    assert [path.stat().st_mtime_ns for path in records] == before
    kept = json.loads((home / "trial.json").read_text())
    assert kept["limit"] == 12
    with pytest.raises(ConfigError, match="other settings"):
        trial(Request(**{**vars(request), "severity": 2}), home)


def test_an_estimate_leaves_a_folder_that_the_trial_goes_on_with(
    day: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ostinato.trial import command

    monkeypatch.setattr(command, "measure_pace", lambda *_: {("Source", 25): 0.5})
    monkeypatch.setattr(command, "corrupted", lambda *_: _two_domains())
    request = Request(images=str(day), minutes=0.01, device="cpu")
    home = tmp_path / "out"
    assert trial(request, home, estimate_only=True) is None
    assert "25 images a domain" in capsys.readouterr().err
    assert read_question(home)["limit"] is None
    assert trial(request, home, estimate_only=True) is None
    with pytest.raises(ConfigError, match=r"other settings \(severity\)"):
        trial(Request(**{**vars(request), "severity": 2}), home, estimate_only=True)


def test_a_folder_with_other_files_is_left_alone(day: Path) -> None:
    with pytest.raises(ConfigError, match="holds other files"):
        trial(Request(images=str(day), limit=4, device="cpu"), day)


def test_without_labels_the_model_s_own_answers_count(tmp_path: Path) -> None:
    place = write_folder(tmp_path / "flat", count=11, flat=True)
    model = embedded_model()
    taken = take_images(str(place), model, "model")
    assert not taken.labelled
    assert torch.equal(taken.labels, answers(model, taken.images, "model"))
    clean, shown = split(taken)
    assert len(clean) + len(shown) == 44
    assert not set(clean.names) & set(shown.names)
    with pytest.raises(ConfigError, match="needs 40 or more"):
        split(taken.part(0, 39))
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="holds no image"):
        take_images(str(tmp_path / "none"), model, "model")


def test_domains_without_labels_are_refused_with_the_ways_out(day: Path, tmp_path: Path) -> None:
    flat = write_folder(tmp_path / "flat", count=3, flat=True)
    request = Request(images=str(day), domains={"fog": str(flat)}, limit=4, device="cpu")
    with pytest.raises(ConfigError, match="class folders, or leave --domains out"):
        trial(request, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_corrupted_copies_keep_their_picture_s_name() -> None:
    images, labels, *_ = embedded_images("test")
    from ostinato.trial._images import Taken

    taken = Taken(images[:3], labels[:3], True, ("a", "b", "c"))
    made = corrupted(taken, limit=2, severity=3, outputs=10)
    assert len(made.domains()) == 16
    assert made.domains()[0] == ORDINARY
    fog = made.domain("fog")
    assert [made.key(int(i)) for i in fog.indices] == ["a", "b"]
    assert not torch.equal(made.image(int(fog.indices[0])), images[0])
    assert torch.equal(made.image(0), images[0])


def test_few_classes_are_as_few_as_give_enough_images() -> None:
    labels = torch.tensor([0] * 25 + [1] * 10 + [2, 3, 4, 5, 6])
    images = torch.zeros(len(labels), 3, 8, 8, dtype=torch.uint8)
    names = [str(n) for n in range(len(labels))]
    made = Pictures(images, labels, ["fog"] * len(labels), names, 7)
    found = few_classes(made, [made.domain("fog")])
    assert found is not None
    (domain,), count = found
    assert (len(domain), count) == (25, 1)
    assert len(domain) >= FEW
    spread = Pictures(images, torch.arange(len(labels)), ["fog"] * len(labels), names, 99)
    assert few_classes(spread, [spread.domain("fog")]) is None
    kinds = [kind.name for kind in all_traffic(_two_domains())]
    assert kinds == ["returning", "mixed", "single", "ordinary"]


def _two_domains() -> Pictures:
    images = torch.zeros(8, 3, 8, 8, dtype=torch.uint8)
    domains = [ORDINARY] * 4 + ["fog"] * 4
    return Pictures(images, torch.arange(8) % 4, domains, [f"{n % 4}" for n in range(8)], 4)


def outcome(traffic: str, low: float, high: float) -> Outcome:
    middle = (low + high) / 2
    gain = Interval(middle, low, high)
    return Outcome(traffic, "ours", 50.0 - middle, gain, {}, 1.0, None, 0, None)


@pytest.mark.parametrize(
    ("low", "high", "verdict", "preset"),
    [(2, 6, "yes", "robust"), (-1, 3, "unclear", "robust"), (-6, -2, "no", None)],
)
def test_advice_follows_from_the_interval(
    low: float, high: float, verdict: str, preset: str | None
) -> None:
    found = advise([outcome("returning", low, high)], "ours", Interval(1, 0.5, 2), "error")
    assert (found.verdict, found.preset) == (verdict, preset)
    assert f"from 50.0 to {50 - (low + high) / 2:.1f} %" in found.headline


def test_a_loss_elsewhere_is_said() -> None:
    many = [outcome("returning", 2, 6), outcome("ordinary", -5, -1)]
    found = advise(many, "ours", None, "error")
    assert "Beware: 3.0 points are lost on ordinary images." in found.reasons
    harmless = advise(many[:1], "ours", None, "error")
    assert any("nothing" in r or "anything lost" in r for r in harmless.reasons)


def test_the_command_names_what_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for words, text in (
        (["--model", "test_vit"], "--images DIR"),
        (["--domains", "night"], "NAME=DIR"),
        (["--domains", "a=x", "a=y"], "name of its own"),
        (["--severity", "7", "--out", str(tmp_path / "x")], "severity = 7"),
        (["--peers", "tnet", "--out", str(tmp_path / "x")], "Did you mean 'tent'?"),
    ):
        with pytest.raises(SystemExit) as end:
            cli.main(["trial", *words])
        assert end.value.code == 2
        assert text in capsys.readouterr().err
