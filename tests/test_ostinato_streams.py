"""Many streams over one model: common forwards, each stream by itself."""

from __future__ import annotations

import gc
import runpy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ostinato.checks import small_model
from ostinato.methods.base import Method
from ostinato.methods.ostinato.common import _prepare, _Question
from ostinato.methods.ostinato.desk import InUse
from ostinato.methods.ostinato.settings import OstinatoConfig
from ostinato.methods.ostinato.streams import SharedModel, StreamMethod

small = runpy.run_path(str(Path(__file__).with_name("_ostinato_small.py")))
build, shifted, same_state = small["build"], small["shifted"], small["same_state"]
STATISTICS = small["clean_statistics"]()
CONFIG = OstinatoConfig.parse(small["SETTINGS"])


def levels(batch: Tensor) -> Tensor:
    return (batch * 255).round().to(torch.uint8)


pytestmark = pytest.mark.usefixtures("trusting_throughout")


@pytest.fixture(scope="module")
def shared() -> SharedModel:
    return SharedModel(small_model(), STATISTICS, CONFIG)


@pytest.fixture(scope="module")
def streams(shared: SharedModel) -> list[StreamMethod]:
    """Two streams that learned from different images, and one that is new."""
    made = [StreamMethod(shared, CONFIG) for _ in range(3)]
    for number, stream in enumerate(made[:2]):
        for batch in shifted(6, seed=number):
            stream.take(levels(batch))
    return made


@pytest.fixture(scope="module")
def alone() -> Method:
    method = build(STATISTICS)
    for batch in shifted(6, seed=0):
        method.predict(levels(batch))
        method.learn()
    return method


def test_a_stream_on_a_shared_model_learns_what_the_method_learns_alone(
    streams: list[StreamMethod], alone: Method
) -> None:
    ours, theirs = streams[0].export_state(), alone.export_state()
    assert same_state(ours, theirs)
    assert streams[0].bank.domains
    assert streams[0].bank.shared.updates > 0


def test_answers_do_not_depend_on_whose_images_share_the_forward(
    shared: SharedModel, streams: list[StreamMethod], alone: Method
) -> None:
    images = [levels(batch).float() / 255 for batch in shifted(3, size=5, seed=7)]
    questions = [
        _Question(InUse(stream.version, shared.ranks), batch, source=True)
        for stream, batch in zip(streams, images, strict=True)
    ]
    together = _prepare(shared, questions).run()
    for question, answer in zip(questions, together, strict=True):
        single = _prepare(shared, [question]).run()[0]
        assert answer.domains == single.domains
        torch.testing.assert_close(answer.logits, single.logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(answer.source, single.source, atol=1e-5, rtol=0)
    expected = alone.predict(images[0], source=True)
    assert together[0].domains == alone.last.domains  # type: ignore[union-attr]
    torch.testing.assert_close(together[0].logits, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        together[0].source,
        alone.last.source_logits,  # type: ignore[union-attr]
        atol=1e-5,
        rtol=0,
    )
    assert max(together[0].trust) > 0
    assert not torch.allclose(together[0].logits, together[0].source)  # type: ignore[arg-type]
    assert torch.equal(together[2].logits, together[2].source)  # type: ignore[arg-type]


def test_a_held_domain_keeps_its_expert_while_others_learn(shared: SharedModel) -> None:
    stream = StreamMethod(shared, CONFIG)
    batches = shifted(10, seed=0)
    for batch in batches[:6]:
        stream.take(levels(batch))
    domain = next(iter(stream.bank.domains))
    stream.held.add(domain)
    before = stream.version.experts[domain]
    seen = stream.bank.domains[domain].images
    for batch in batches[6:]:
        stream.take(levels(batch))
    after = stream.version.experts[domain]
    assert stream.bank.domains[domain].images > seen
    assert all(torch.equal(a.down, b.down) for a, b in zip(before.maps, after.maps, strict=True))
    pairs = zip(before.branches, after.branches, strict=True)
    assert all(torch.equal(a.up, b.up) for a, b in pairs)


def under(batch: Tensor, kind: int) -> Tensor:
    """A batch under one of three weathers."""
    if kind == 1:
        noise = torch.randn(batch.shape, generator=torch.Generator().manual_seed(1))
        return (batch + 0.4 * noise).clamp(0, 1)
    return 0.15 * batch[:, [2, 0, 1]] if kind == 2 else batch


@pytest.fixture(scope="module")
def unlike(shared: SharedModel) -> list[StreamMethod]:
    """Streams with no domain, with one and with several, all but the first with learned experts."""
    found = [StreamMethod(shared, CONFIG) for _ in range(4)]
    for number, stream in enumerate(found):
        for kind in range(number):
            for batch in shifted(6, seed=kind):
                stream.take(levels(under(batch, kind)))
    return found


def asked(shared: SharedModel, streams: list[StreamMethod]) -> list[_Question]:
    """Questions of several sizes, with images of every weather in each."""
    found = []
    for number, stream in enumerate(streams):
        parts = enumerate(shifted(3, size=2 + number, seed=20 + number))
        batch = torch.cat([levels(under(one, kind)).float() / 255 for kind, one in parts])
        source = number % 2 == 1
        found.append(_Question(InUse(stream.version, shared.ranks), batch, source=source))
    return found


def test_streams_with_other_numbers_of_domains_share_a_forward(
    shared: SharedModel, unlike: list[StreamMethod]
) -> None:
    counts = [len(stream.version.view.ids) for stream in unlike]
    assert counts[0] == 1
    assert len(set(counts)) > 2
    questions = asked(shared, unlike)
    for turn in range(2):  # the second time every expert has its row
        together = _prepare(shared, questions).run()
        assert any(max(answer.trust) > 0 for answer in together), turn
        for stream, question, answer in zip(unlike, questions, together, strict=True):
            with stream.frozen():
                expected = stream.predict(question.pixels, source=True)
            assert answer.domains == stream.last.domains  # type: ignore[union-attr]
            torch.testing.assert_close(answer.logits, expected, atol=1e-5, rtol=0)
            assert (answer.source is not None) == question.source
            if answer.source is not None:
                their = stream.last.source_logits  # type: ignore[union-attr]
                torch.testing.assert_close(answer.source, their, atol=1e-5, rtol=0)


def test_experts_that_find_no_room_are_written_again_when_they_are_wanted(
    shared: SharedModel, unlike: list[StreamMethod], monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = asked(shared, unlike)
    expected = [_prepare(shared, [question]).run()[0] for question in questions]
    held = sum(len(question.asked.rows) for question in questions)
    assert held > 2
    monkeypatch.setattr(shared.desk, "most", 1)
    questions = asked(shared, unlike)
    for _ in range(3):
        for question, answer in zip(questions, expected, strict=True):
            found = _prepare(shared, [question]).run()[0]
            torch.testing.assert_close(found.logits, answer.logits, atol=1e-5, rtol=0)
    assert sum(len(question.asked.rows) for question in questions) < held


def test_rows_and_slots_go_with_their_version(shared: SharedModel) -> None:
    stream = StreamMethod(shared, CONFIG)
    free = None
    for at, batch in enumerate(shifted(12, seed=3)):
        stream.take(levels(batch))
        question = _Question(InUse(stream.version, shared.ranks), levels(batch).float() / 255)
        _prepare(shared, [question]).run()
        del question
        gc.collect()
        left = (len(shared.stack._free), len(shared.desk.table._free))
        free = left if at == 8 else free
    assert left == free
