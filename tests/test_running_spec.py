"""A spec that cannot work fails before anything starts, and names the nearest choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ostinato import cli
from ostinato.errors import OstinatoError
from ostinato.ops.snapshot import load_state
from ostinato.running.job import open_job
from ostinato.running.results import RunFolder
from ostinato.running.runner import run
from ostinato.running.spec import Spec, merge, parse_pairs

TINY: dict[str, Any] = {
    "method": "source",
    "batch_size": 4,
    "device": "cpu",
    "data": {"domains": ["fog"], "limit": 4},
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metod": "tent"}, "no setting 'metod'. Did you mean 'method'"),
        ({"method": "tnet"}, "no method 'tnet'. Did you mean 'tent'"),
        ({"model": "test_vit", "num_classes": 100}, "untrained head of 100 classes"),
        ({"method": "tent", "preset": "imagenet"}, "no preset 'imagenet'. Did you mean"),
        ({"method": "tent", "settings": {"rl": 1}}, "Tent.Config has no setting 'rl'"),
        ({"method": "tent", "settings": {"lr": -1}}, "lr = -1"),
        ({"settings": {"seed": 3}}, "write seeds beside it"),
        ({"data": {"batch_size": 3}}, "write batch_size beside data"),
        ({"stream": "recuring"}, "no stream 'recuring'. Did you mean 'recurring'"),
        ({"data": {"limt": 3}}, "no setting 'limt'. Did you mean 'limit'"),
        ({"data": {"domains": ["fgo"]}}, "Did you mean 'fog'"),
        ({"data": {"transform": "resize"}}, "no transform 'resize'"),
        ({"model": "vit_tiny_patch16_225"}, "Did you mean 'vit_tiny_patch16_224'"),
        ({"model": "test_vit.r161_in1k"}, "Did you mean 'test_vit.r160_in1k'"),
        ({"model": "test_vit", "weights": "missing.pth"}, "no checkpoint missing.pth"),
        ({"weights": "random"}, "embedded model has its own weights"),
        ({"method": "dual_expert", "preset": "robust"}, "or choose preset = source-free"),
        ({"method": "vida"}, "has to be prepared on clean images: set prepared"),
        ({"statistics": "nowhere.safetensors"}, "there is no such file"),
        ({"model": "test_vit", "weights": "random", "statistics": "embedded"}, "count images"),
        ({"device": "gpu"}, "no device 'gpu'. Did you mean"),
        ({"device": "cuda:99"}, "no GPU"),
        ({"task": "segmentation"}, "streams classification data"),
        ({"seeds": [1, 1]}, "each seed once"),
        ({"roots": "embedded", "data": {"dataset": "imagenet-d"}}, "Did you mean 'imagenet-"),
        ({"roots": "embedded", "stream": "imagenet-plus", "data": {}}, "does not take 224×224"),
        (
            {
                "method": "dual_expert",
                "stream": "mixed",
                "settings": {"discriminator": {"kind": "oracle"}},
                "data": {"domains": ["fog", "snow"], "limit": 4},
            },
            "is told the true domain, but batches of mixed mix several",
        ),
    ],
)
def test_what_cannot_work_fails_before_it_starts(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    if "cuda" in str(changes.get("device")):
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("this machine has a GPU")
    with pytest.raises(OstinatoError) as caught:
        run(Spec.parse({**TINY, **changes}), out=tmp_path, quiet=True)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_root_names_the_folder_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "imagenet").mkdir()
    spec = {**TINY, "roots": str(tmp_path / "imagent"), "data": {"dataset": "imagenet-c"}}
    with pytest.raises(OstinatoError, match=r"does not exist\. Did you mean \S*/imagenet\?"):
        open_job(Spec.parse(spec))


def test_a_segmentation_stream_refuses_a_classification_method(tmp_path: Path) -> None:
    import numpy as np

    file = tmp_path / "array"
    with file.open("wb") as out:
        np.savez(
            out,
            images=np.zeros((4, 3, 32, 32), np.uint8),
            labels=np.zeros((4, 32, 32), np.int64),
        )
    spec = {**TINY, "roots": str(tmp_path), "data": {"dataset": "array", "domains": ["array"]}}
    with pytest.raises(OstinatoError, match="rdumb does not do segmentation"):
        open_job(Spec.parse({**spec, "method": "rdumb"}))


def test_too_few_outputs_are_named(tmp_path: Path) -> None:
    import numpy as np

    with (tmp_path / "array").open("wb") as out:
        np.savez(out, images=np.zeros((12, 3, 32, 32), np.uint8), labels=np.arange(12))
    spec = {**TINY, "roots": str(tmp_path), "data": {"dataset": "array", "domains": ["array"]}}
    with pytest.raises(OstinatoError, match="has 10 outputs, continual needs 12"):
        open_job(Spec.parse(spec))


def test_yaml_and_flags_are_the_same_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump({**TINY, "method": "tent", "settings": {"lr": 1e-4}}))
    cli.main(["run", str(file), "--out", str(tmp_path / "a")])
    flags = ["--method", "tent", "--settings", "lr=1e-4", "--batch-size", "4", "--device", "cpu"]
    data = ["--data", "limit=4", "domains=[fog]"]
    cli.main(["run", *flags, *data, "--out", str(tmp_path / "b")])
    first, second = (next((tmp_path / name).iterdir()) for name in "ab")
    assert RunFolder.open(first).hash == RunFolder.open(second).hash
    assert "error" in capsys.readouterr().out


def test_the_stored_spec_holds_every_default_and_reproduces_itself() -> None:
    job = open_job(Spec.parse({**TINY, "method": "tent"}))
    stored = job.spec.stored()
    assert stored["settings"]["lr"] == 1e-4
    assert stored["data"]["severity"] == 5
    assert stored["task"] == "classification"
    assert open_job(Spec.parse(stored)).spec.stored() == stored


def test_the_command_line_reports_errors_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", "--method", "tnet"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("error: There is no method 'tnet'.")


def test_cosine_takes_the_length_of_the_stream() -> None:
    job = open_job(Spec.parse({**TINY, "method": "tent", "cosine": True}))
    assert job.config.total_steps == len(job.stream) == 1


def test_clean_images_are_none_of_the_stream() -> None:
    spec = {**TINY, "clean": "embedded", "model": "embedded", "statistics": 1996}
    spec |= {"method": "dual_expert", "preset": "robust"}
    job = open_job(Spec.parse(spec))
    assert job._clean(1996)[0].shape == (1996, 3, 32, 32)
    with pytest.raises(OstinatoError, match="has 1996 images that the stream does not show"):
        job._clean(1997)


@pytest.mark.parametrize("text", ["lr", "=3", "lr=[", "a=1 a.b=2"])
def test_settings_that_cannot_be_read_are_errors(text: str) -> None:
    with pytest.raises(OstinatoError):
        parse_pairs(text.split(" "))


def test_merge_leaves_its_inputs_alone() -> None:
    base = {"a": {"x": 1}}
    assert merge(base, {"a": {"y": 2}, "b": 3}) == {"a": {"x": 1, "y": 2}, "b": 3}
    assert base == {"a": {"x": 1}}


def test_runs_share_a_preparation_and_keep_their_own_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ostinato.running import job

    calls: list[str] = []
    original = job.prepare

    def counted(model: Any, method: str, *rest: Any, **more: Any) -> Any:
        calls.append(method)
        return original(model, method, *rest, **more)

    monkeypatch.setattr(job, "prepare", counted)
    spec = {**TINY, "method": "vida", "prepared": 8, "settings": {"warm_steps": 1, "views": 2}}
    for domain in ("fog", "snow"):
        run(
            Spec.parse({**spec, "data": {"domains": [domain], "limit": 4}}),
            out=tmp_path,
            quiet=True,
        )
    assert calls == ["vida"]
    first, second = (load_state(p)[0].tensors for p in tmp_path.glob("vida-*/prepared.safetensors"))
    assert first.keys() == second.keys()
    assert all(bool((first[name] == second[name]).all()) for name in first)
    # Another seed or online rate is another run of what was prepared once.
    faster = {**spec["settings"], "lr": 1e-3, "adapter_lr": 1e-3}
    run(Spec.parse({**spec, "seeds": [7], "settings": faster}), out=tmp_path, quiet=True)
    assert calls == ["vida"]
    other = {**spec, "settings": {"warm_steps": 2, "views": 2}}
    run(Spec.parse(other), out=tmp_path, quiet=True)
    assert calls == ["vida", "vida"]
