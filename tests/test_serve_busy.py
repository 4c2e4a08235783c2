"""A busy server answers first and learns less, and says so; the demo ends by itself."""

from __future__ import annotations

import runpy
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ostinato.serve import _learning as learning
from ostinato.serve._learning import Learner

small = runpy.run_path(str(Path(__file__).with_name("_serve_small.py")))
ask, batches, serving, teach = (small[n] for n in ("ask", "batches", "serving", "teach"))


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5])
def test_learning_gives_way_until_it_has_waited_for_its_share(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(perf_counter=lambda: now[0], monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(learning, "time", clock)
    nothing: Any = lambda *_: None  # noqa: E731
    learner = Learner(
        share=share, busy=lambda: True, learned=nothing, failed=nothing, tick=nothing,
        hold=lambda: False, threads=1, device=torch.device("cpu"),
    )  # fmt: skip
    learner._thread = threading.current_thread()
    worked = 0.0
    for _ in range(400):  # pieces of updates between two places where it may give way
        learner._since, began = now[0], now[0]
        sleep(0.02)
        worked += now[0] - began
        learner.give_way()
    assert worked / now[0] == pytest.approx(share, rel=0.15)


def test_what_waits_too_long_is_not_learned_from_and_counted(tmp_path: Path) -> None:
    with serving(tmp_path, learning={"queue": 16}) as (client, fleet):
        ask(client, "gate", batches(1)[0])
        small["wait_for"](lambda: not fleet.streams["gate"].waiting)
        held = threading.Event()
        done = fleet.learner.ask(lambda: held.wait(60))  # it is busy elsewhere
        for images in batches(6)[1:]:
            assert ask(client, "gate", images).json()["learning"]
        said = client.get("/metrics").text
        held.set()
        done.result()
        assert 'ostinato_stream_skipped_requests_total{stream="gate"} 3.0' in said
        assert 'ostinato_stream_waiting_requests{stream="gate"} 2.0' in said
        assert client.get("/v1/streams/gate").json()["skipped"] == 3


def test_pictures_of_domains_are_shown_only_where_that_was_asked_for(tmp_path: Path) -> None:
    for shown in (False, True):
        given = {"thumbnails": True} if shown else {}
        with serving(tmp_path / str(shown), **given) as (client, fleet):
            teach(client, fleet, "gate", batches(4))
            domain = next(iter(fleet.streams["gate"].method.bank.domains))
            answer = client.get(f"/v1/streams/gate/domains/{domain}/thumbnails/0")
            assert answer.status_code == (200 if shown else 404)


def test_the_demo_says_where_its_page_is_and_ends_by_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ostinato", "serve-demo", "--seconds", "3"]
    command += ["--port", "0", "--data", str(tmp_path / "data"), "--visit", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "the page: http://127.0.0.1:" in done.stdout
    assert "Traceback" not in done.stderr
