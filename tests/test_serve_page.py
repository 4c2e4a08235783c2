"""The live page in a real browser: streams appear, domains appear, buttons work."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ostinato.client import Client
from ostinato.serve.fleet import Fleet
from ostinato.serve.keys import add_key
from ostinato.serve.store import Store

small = runpy.run_path(str(Path(__file__).with_name("_serve_small.py")))
Browser = runpy.run_path(str(Path(__file__).with_name("_browser.py")))["Browser"]
batches, listening, wait_for = (small[name] for name in ("batches", "listening", "wait_for"))
pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("trusting")]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    found = Browser(tmp_path)
    yield found
    found.close()


def learn(fleet: Fleet, client: Client, start: int, stop: int) -> None:
    for number, images in enumerate(batches(stop)[start:], start):
        client.predict("gate", images.numpy(), sequence=number)
        wait_for(lambda: not fleet.streams["gate"].waiting)
    fleet.learner.ask(lambda: None).result()


def text(name: str) -> str:
    return f"document.getElementById({name!r}).textContent"


def click(name: str) -> str:
    return f"document.getElementById({name!r}).click()"


def test_a_visitor_sees_a_stream_learn_freezes_it_and_takes_it_back(
    browser: Any, tmp_path: Path
) -> None:
    with listening(tmp_path / "data", thumbnails=True) as (url, fleet), Client(url) as client:
        browser.size(1400, 900)
        browser.open(url)
        browser.until("document.readyState === 'complete'")
        browser.until(f"{text('facts')}.includes('may operate')")
        assert browser.run("document.getElementById('none').hidden") is False
        learn(fleet, client, 0, 4)
        browser.until("document.querySelector('[data-stream=gate]')")
        browser.run("document.querySelector('[data-stream=gate]').click()")
        browser.until(f"{text('domains')}.includes('domain 1')")
        browser.until("document.querySelectorAll('#strip rect').length > 0")
        browser.until("document.querySelectorAll('#domains img').length > 0")
        browser.until(f"{text('events')}.includes('founded domain 1')")

        browser.run(click("checkpoint"))
        browser.run("document.getElementById('answer').value = 'good'")
        browser.run(click("yes"))
        browser.until("[...document.getElementById('snapshots').options].length > 0")
        browser.until(f"{text('snapshots')}.includes('good')")
        kept = fleet.streams["gate"].version

        browser.run(click("freeze"))
        browser.until(f"{text('freeze')} === 'Unfreeze'")
        assert fleet.streams["gate"].frozen
        browser.run(click("freeze"))
        browser.until(f"{text('freeze')} === 'Freeze'")

        learn(fleet, client, 4, 6)
        assert fleet.streams["gate"].version != kept
        browser.run("document.getElementById('snapshots').value = 'good'")
        browser.run(click("rollback"))
        assert "undone" in browser.run(text("question"))
        browser.run(click("yes"))
        browser.until(f"{text('said')} === 'rollback: done'")
        assert fleet.streams["gate"].rollbacks == 1
        assert fleet.streams["gate"].number == 0
        browser.until(f"{text('events')}.includes('rollback')")

        own = [one for one in browser.requests if not one.startswith(("blob:", "data:", "about:"))]
        assert own
        assert all(one.startswith(url) for one in own)
        assert browser.console == []
        _fits(browser, tmp_path)


def _fits(browser: Any, folder: Path) -> None:
    """Nothing is wider than the window, and light and dark differ."""
    shades = {}
    for width, dark in ((390, False), (390, True), (900, False), (1400, True)):
        browser.size(width, 900, dark=dark)
        browser.until(f"innerWidth === {width}")
        assert not browser.run("document.documentElement.scrollWidth > innerWidth"), width
        path = folder / f"{width}-{dark}.png"
        browser.picture(path)
        shades[path.name] = float(np.asarray(Image.open(path).convert("L")).mean())
    assert shades["390-False.png"] > 180 > 80 > shades["390-True.png"]


def test_a_closed_server_asks_for_a_key_and_readers_cannot_press_buttons(
    browser: Any, tmp_path: Path
) -> None:
    store = Store(tmp_path / "data")
    reader = add_key(store, "looker", ["read"])
    store.close()
    with listening(tmp_path / "data", streams={"gate": {}}) as (url, _):
        browser.size(800, 700)
        browser.open(f"{url}/#gate")
        browser.until("document.getElementById('ask')?.open")
        assert "gate" not in browser.run(text("streams"))
        browser.run(f"document.getElementById('answer').value = {reader!r}")
        browser.run(click("yes"))
        browser.until(f"{text('facts')}.includes('looking only')")
        browser.until(f"{text('name')} === 'gate'")
        assert browser.run("document.getElementById('reset').disabled") is True
