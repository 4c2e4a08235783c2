"""Captured common forwards: the same as plain ones, whatever comes together, in few captures."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ostinato.checks import small_model
from ostinato.methods.ostinato import _turns as turns
from ostinato.methods.ostinato import maps
from ostinato.methods.ostinato._whole import SEEN, Wholes, filled
from ostinato.methods.ostinato.common import _prepare, _Question
from ostinato.methods.ostinato.desk import InUse
from ostinato.methods.ostinato.settings import OstinatoConfig
from ostinato.methods.ostinato.streams import SharedModel, StreamMethod
from ostinato.ops.borrowed import Borrowed

here = Path(__file__)
small = runpy.run_path(str(here.with_name("_ostinato_small.py")))
recorded = runpy.run_path(str(here.with_name("test_capture.py")))["recorded"]
shifted = small["shifted"]
CONFIG = OstinatoConfig.parse(small["SETTINGS"])


@pytest.fixture(scope="module")
def streams() -> Iterator[list[StreamMethod]]:
    """A stream that learned, and a new one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maps, "TRUSTED", 10.0)
        shared = SharedModel(small_model(), small["clean_statistics"](), CONFIG)
        made = [StreamMethod(shared, CONFIG) for _ in range(2)]
        for batch in shifted(6):
            made[0].take((batch * 255).round().to(torch.uint8))
        yield made


@pytest.fixture
def shared(streams: list[StreamMethod], monkeypatch: pytest.MonkeyPatch) -> SharedModel:
    """Without a GPU, recorded operators stand in for real captures."""
    model = streams[0].model
    if not torch.cuda.is_available():
        monkeypatch.setattr(turns, "record", recorded)
    model.captures = Wholes(Borrowed(model._narrow))
    return model


def questions(streams: list[StreamMethod], sizes: tuple[int, int], seed: int) -> list[_Question]:
    ranks = streams[0].model.ranks
    return [
        _Question(
            InUse(one.version, ranks), shifted(1, size=size, seed=seed + size)[0], source=True
        )
        for one, size in zip(streams, sizes, strict=True)
    ]


def same(shared: SharedModel, asked: list[_Question]) -> None:
    captures, shared.captures = shared.captures, None
    expected = _prepare(shared, asked).run()
    shared.captures = captures
    found = _prepare(shared, asked).run()
    for mine, its in zip(found, expected, strict=True):
        assert mine.domains == its.domains
        torch.testing.assert_close(mine.logits, its.logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(mine.source, its.source, atol=1e-5, rtol=0)


def test_captured_forwards_answer_as_plain_ones(
    shared: SharedModel, streams: list[StreamMethod]
) -> None:
    made = []
    for seed in range(SEEN + 3):
        for sizes in ((3, 2), (4, 2), (3, 3)):  # the learned one's images are asked about twice
            same(shared, questions(streams, sizes, seed))
        assert shared.captures is not None
        made.append(shared.captures.made)
    assert made[-1] == made[-2] <= 2
    assert made[-1] > 0


def test_forwards_without_experts_are_captured_by_themselves(
    shared: SharedModel, streams: list[StreamMethod]
) -> None:
    for seed in range(SEEN + 2):
        same(shared, questions([streams[1], streams[1]], (2, 2), seed))
        same(shared, questions([streams[0], streams[0]], (1, 1), seed))
    assert shared.captures is not None
    assert shared.captures.made == 2


def test_rows_that_grow_are_captured_anew(shared: SharedModel, streams: list[StreamMethod]) -> None:
    for seed in range(SEEN + 1):
        same(shared, questions(streams, (2, 2), seed))
    assert shared.captures is not None
    before = shared.captures.made
    shared.stack.reserve(2 * len(shared.stack.now.matrices))
    same(shared, questions(streams, (2, 2), 9))
    assert shared.captures.made == before + 1


def test_a_model_that_cannot_be_captured_is_answered_plainly(
    shared: SharedModel, streams: list[StreamMethod], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(turns, "record", refused)
    for seed in range(SEEN + 2):
        same(shared, questions(streams, (2, 2), seed))
    assert shared.captures is not None
    assert "not permitted" in str(shared.captures.refused)


@pytest.mark.parametrize("count", [1, 2, 5, 31, 32, 33, 64, 200, 256, 257])
def test_forwards_are_filled_up_by_little(count: int) -> None:
    assert count <= filled(count) < max(2 * count, count + 32)
