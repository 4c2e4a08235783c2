"""`ostinato speed`: what is measured, shown and refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from ostinato import cli
from ostinato.checks import small_model
from ostinato.data.embedded import embedded_model
from ostinato.errors import ConfigError
from ostinato.speed._traffic import Traffic
from ostinato.speed.measure import LiveTensors, measure_routing, measure_stream


def run(*words: str) -> int:
    try:
        cli.main(words)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_speed_compares_steps_with_the_forward(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--model", "embedded", "--batch-size", "2", "--steps", "2", "--device", "cpu"]
    plot, profile = tmp_path / "plot.svg", tmp_path / "profile.txt"
    words += ["--ways", "tent", "predict", "--no-routing"]
    words += ["--plot", str(plot), "--profile", str(profile)]
    assert run("speed", *words) == 0
    printed = capsys.readouterr().out.splitlines()
    start = next(at for at, line in enumerate(printed) if line.startswith("forward"))
    lines = [line.split() for line in printed[start : start + 3]]
    assert [line[0] for line in lines] == ["forward", "tent", "predict"]
    images, milliseconds, ratio = (float(text) for text in lines[0][1:4])
    assert [line[6] for line in lines] == ["0%", "100%", "0%"]
    assert [line[7] for line in lines] == ["–", "–", "100%"]
    memory = float(lines[0][8])
    assert ratio == 1.0
    assert images * milliseconds == pytest.approx(2000, rel=0.02)
    source = sum(p.numel() * 4 for p in embedded_model().parameters()) / 1e6
    assert source - 1 < memory < float(lines[1][8])
    assert plot.read_text().count("<rect") == 3
    assert profile.read_text().count("Self CPU time total") == 3


def test_speed_measures_routing_and_a_stream() -> None:
    shared = {"batch_size": 20, "size": (3, 32, 32)}
    routing = measure_routing(small_model, steps=1, **shared)
    assert [one.name for one in routing] == ["forward", "describe", "decide", "observe"]
    found = measure_stream(small_model, domains=1, images=60, rounds=1, **shared)
    ours = ["forward-only, stream", "robust, stream", "robust:spare=0, stream"]
    assert [one.name for one in found] == ["forward", *ours]
    assert found[1].learned == 0.0
    with pytest.raises(ConfigError, match="forward-only"):
        measure_stream(small_model, ways=["forward_only"], domains=1, images=60, rounds=1, **shared)
    assert all(0 < one.p50 <= one.p99 for one in found)


def test_speed_refuses_what_it_cannot_measure(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--ways", "tnet"], ["--ways", "eata"], ["--domains", "0"]):
        assert run("speed", "--model", "embedded", "--no-routing", *words) == 2
    printed = capsys.readouterr().err
    assert "Did you mean 'tent'" in printed
    assert "needs prepared file" in printed
    assert "at least 1" in printed


def test_live_tensors_see_what_backward_keeps() -> None:
    weight = torch.ones(1000, requires_grad=True)
    with LiveTensors() as live:
        loss = (weight.exp() * 2).sum()  # exp's result stays for the backward
    assert 4000 <= live.now < 8000
    del loss
    assert live.now == 0


def test_batches_are_parts_of_the_photographs_in_a_folder(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}").mkdir()
        whole = Image.new("RGB", (60 + number, 48), (80 * number, 100, 200))
        whole.save(tmp_path / f"{number}" / "one.png")
    traffic = Traffic((3, 32, 32), "cpu", images=tmp_path)
    first, second = traffic.clean(20), traffic.clean(20)
    assert first.shape == (20, 3, 32, 32)
    assert {round(float(image[0].mean()) * 255) for image in first} == {0, 80, 160}
    assert not torch.equal(first, second)
    assert traffic.shifted(0, 4).shape == (4, 3, 32, 32)


def test_a_folder_without_photographs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("speed", "--model", "embedded", "--images", str(tmp_path)) == 2
    assert "no photographs (.jpg" in capsys.readouterr().err
