"""What every stream promises: seekable, sized, lazy, the same images in any batch size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ostinato.data.blends import CdcStream, CorrelatedStream, MixedStream, _dirichlet_cut
from ostinato.data.datasets.array import ArrayDataset
from ostinato.data.segments import Domain, parts
from ostinato.data.sequences import ContinualStream, GradualStream, RecurringStream
from ostinato.data.streams import Stream, build_stream
from ostinato.errors import ConfigError, DataError, UnknownName
from ostinato.registry import STREAMS
from ostinato.types import Batch


def stand_in(
    images: Tensor, name: str, severity: int, seeds: Sequence[int], *, constants: str
) -> Tensor:
    """A corruption that depends on everything it is given, image by image."""
    shift = torch.tensor([(s + severity * 7 + len(name)) % 251 for s in seeds], dtype=torch.uint8)
    return images + shift[:, None, None, None]


def small_set(count: int = 23, classes: int = 4, ordered: bool = True) -> ArrayDataset:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8)
    data = ArrayDataset(images, np.arange(count) % classes)
    data.ordered = ordered
    return data


def corrupted(count: int = 23, names: Sequence[str] = ("fog", "snow", "frost")) -> list[Domain]:
    data = small_set(count)
    return [Domain(n, data, data.indices("array"), corruption=n) for n in names]


KINDS = {
    "continual": (ContinualStream, {}),
    "recurring": (RecurringStream, {"rounds": 3}),
    "disjoint": (RecurringStream, {"rounds": 3, "disjoint": True}),
    "gradual": (GradualStream, {"severities": (1, 3, 1)}),
    "mixed": (MixedStream, {}),
    "sorted": (CorrelatedStream, {}),
    "dirichlet": (CorrelatedStream, {"concentration": 0.3}),
    "cdc": (CdcStream, {"slots": 4}),
}


def make(kind: str, count: int = 23, **options: object) -> Stream:
    cls, fixed = KINDS[kind]
    return cls(corrupted(count), corrupt=stand_in, **{**fixed, **options})


def same(a: Batch, b: Batch) -> bool:
    return (
        torch.equal(a.images, b.images)
        and torch.equal(a.labels, b.labels)
        and (a.domain, a.index, a.round, a.keys, a.image_domains)
        == (b.domain, b.index, b.round, b.keys, b.image_domains)
    )


def pixels(stream: Stream) -> Counter[tuple[str, str, bytes]]:
    """Every image that a stream shows, with its name and domain."""
    found: Counter[tuple[str, str, bytes]] = Counter()
    for batch in stream:
        names = batch.image_domains or (batch.domain,) * len(batch)
        for key, name, image in zip(batch.keys, names, batch.images, strict=True):
            found[key, name, image.numpy().tobytes()] += 1
    return found


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=15)
@given(batch_size=st.integers(1, 30), count=st.integers(6, 25), seed=st.integers(0, 3))
def test_seeking_equals_iterating(kind: str, batch_size: int, count: int, seed: int) -> None:
    options = {"batch_size": batch_size, "seed": seed}
    walked = list(make(kind, count, **options))
    stream = make(kind, count, **options)
    assert len(walked) == len(stream)
    assert sum(len(b) for b in walked) == stream.images
    assert [b.index for b in walked] == list(range(len(stream)))
    for index in reversed(range(len(stream))):
        assert same(stream[index], walked[index])
    assert same(stream[-1], walked[-1])


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=10)
@given(sizes=st.tuples(st.integers(1, 30), st.integers(1, 30)), count=st.integers(6, 25))
def test_the_same_images_in_any_batch_size(kind: str, sizes: tuple[int, int], count: int) -> None:
    one, other = (make(kind, count, batch_size=size) for size in sizes)
    assert pixels(one) == pixels(other)
    if kind != "cdc":  # whose units are batches, unless told
        assert one.fingerprint() == other.fingerprint()


@pytest.mark.parametrize("kind", KINDS)
def test_batches_stay_within_a_domain_and_only_its_last_is_short(kind: str) -> None:
    stream = make(kind, batch_size=5, **({"unit": 5} if kind == "cdc" else {}))
    batches = list(stream)
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        assert 1 <= len(batch) <= 5
        ends = following is None or (following.domain, following.round) != (
            batch.domain,
            batch.round,
        )
        assert len(batch) == 5 or ends
        assert batch.labels.dtype == torch.int64
        assert len(batch.keys) == len(batch)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_change_nothing(kind: str) -> None:
    plain, threaded = make(kind, batch_size=7), make(kind, batch_size=7, workers=3)
    assert all(same(a, b) for a, b in zip(plain, threaded, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_lazy(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = ArrayDataset.image
    monkeypatch.setattr(ArrayDataset, "image", lambda self, i: (seen.append(i), real(self, i))[1])
    stream = make(kind, batch_size=5)
    stream.describe()
    stream.fingerprint()
    assert seen == []
    batch = stream[len(stream) // 2]
    assert len(seen) == len(batch)


def test_fingerprints_follow_what_is_streamed() -> None:
    base = make("continual")
    assert base.fingerprint() == make("continual").fingerprint()
    others = [
        make("continual", seed=1),
        make("continual", transform="resize224"),
        make("continual", shuffle=True),
        make("continual", limit=5),
        make("continual", count=22),
        ContinualStream(corrupted(names=("snow", "fog", "frost")), corrupt=stand_in),
        ContinualStream(corrupted(names=("fog", "snow")), corrupt=stand_in),
        make("recurring"),
    ]
    prints = [base.fingerprint(), *(other.fingerprint() for other in others)]
    assert len(set(prints)) == len(prints)


def test_recurring_rounds_and_disjoint_parts() -> None:
    stream = make("disjoint", batch_size=4)
    shown: dict[tuple[str, int], list[str]] = {}
    for batch in stream:
        shown.setdefault((batch.domain, batch.round), []).extend(batch.keys)
    assert stream.rounds == 3
    assert stream.domains == ("fog", "snow", "frost")
    for name in stream.domains:
        rounds = [shown[name, r] for r in range(3)]
        assert sorted(k for r in rounds for k in r) == sorted(small_set().key(i) for i in range(23))
        assert max(map(len, rounds)) - min(map(len, rounds)) <= 1
    # The same pictures in every domain's part, which makes rounds of domains comparable.
    assert set(shown["fog", 1]) == set(shown["snow", 1])
    texts = stream.artifacts()
    assert len(texts) == 9
    assert texts["split-fog-round2.txt"].split() == shown["fog", 1]
    plain = make("recurring", batch_size=23)
    assert [b.round for b in plain] == [0] * 3 + [1] * 3 + [2] * 3
    assert plain[0].keys == plain[3].keys
    assert plain.artifacts() == {}


@settings(deadline=None, max_examples=40)
@given(total=st.integers(6, 200), count=st.integers(1, 6), seed=st.integers(0, 9))
def test_parts_are_disjoint_complete_and_even(total: int, count: int, seed: int) -> None:
    data = small_set(total)
    cut = parts(data, data.indices("array"), count, seed)
    assert sorted(int(i) for part in cut for i in part) == list(range(total))
    assert max(map(len, cut)) - min(map(len, cut)) <= 1
    assert all(list(part) == sorted(part) for part in cut)


def test_recurring_refuses_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="cannot be cut into 3 parts"):
        make("disjoint", count=2)
    with pytest.raises(ConfigError, match="'fog' is listed twice"):
        RecurringStream(corrupted(names=("fog", "fog")))
    with pytest.raises(ConfigError, match="at least one domain"):
        ContinualStream([])


def test_gradual_rises_and_falls_with_the_same_pictures() -> None:
    stream = GradualStream(corrupted(6, ("fog",)), corrupt=stand_in, batch_size=6)
    levels = [int(b.domain.split("@")[1]) for b in stream]
    assert levels == [1, 2, 3, 4, 5, 4, 3, 2, 1]
    assert [b.round for b in stream] == [0] * 5 + [1] * 4
    assert torch.equal(stream[3].images, stream[5].images)
    assert not torch.equal(stream[3].images, stream[4].images)
    assert len({b.keys for b in stream}) == 1


def test_gradual_needs_severities() -> None:
    data = small_set()
    with pytest.raises(ConfigError, match="has no severities"):
        GradualStream([Domain("array", data, data.indices("array"))])


def test_mixed_batches_hold_their_share_of_every_domain() -> None:
    big, small = small_set(40), small_set(20)
    domains = [
        Domain("a", big, big.indices("array"), corruption="fog"),
        Domain("b", small, small.indices("array"), corruption="snow"),
    ]
    stream = MixedStream(domains, batch_size=6, corrupt=stand_in)
    for batch in stream:
        count = Counter(batch.image_domains)
        assert abs(count["a"] - 4) <= 1
        assert batch.domain == "mixed"
    assert stream.domains == ("a", "b")
    assert Counter(n for b in stream for n in b.image_domains) == {"a": 40, "b": 20}


def test_mixed_batches_hold_many_pictures_not_one_under_every_corruption() -> None:
    data = ArrayDataset(np.zeros((60, 3, 8, 8), np.uint8), [0] * 60)
    names = ("fog", "snow", "frost", "contrast", "brightness")
    domains = [Domain(n, data, data.indices("array"), corruption=n) for n in names]
    stream = MixedStream(domains, batch_size=20, seed=3)
    (segment,) = stream.segments
    pictures = [len(set(segment.where[at : at + 20].tolist())) for at in range(0, 300, 20)]
    assert min(pictures) > 12  # of 20; with one order for all domains there would be four
    for part in range(len(names)):
        assert sorted(segment.where[segment.which == part].tolist()) == list(range(60))


def test_mixed_refuses_other_label_spaces() -> None:
    one = ArrayDataset(np.zeros((4, 3, 8, 8), np.uint8), [0, 1, 0, 1], classes=[3, 5])
    two = ArrayDataset(np.zeros((4, 3, 8, 8), np.uint8), [0, 1, 0, 1])
    domains = [Domain("a", one, one.indices("array")), Domain("b", two, two.indices("array"))]
    with pytest.raises(ConfigError, match="cannot share"):
        MixedStream(domains)


def test_correlated_sorted_runs_and_dirichlet_in_between() -> None:
    def changes(stream: Stream) -> int:
        labels = [int(v) for b in stream for v in b.labels]
        return sum(a != b for a, b in pairwise(labels))

    data = small_set(200, classes=4)
    domain = [Domain("a", data, data.indices("array"))]
    assert changes(CorrelatedStream(domain)) == 3
    clustered = changes(CorrelatedStream(domain, concentration=0.1))
    loose = changes(CorrelatedStream(domain, concentration=1000.0))
    assert 3 <= clustered < loose
    assert loose > 100  # close to the 150 changes of a random order


@settings(deadline=None)
@given(
    count=st.integers(0, 300),
    slots=st.integers(1, 20),
    concentration=st.floats(0.01, 100),
    seed=st.integers(0, 100),
)
def test_dirichlet_cuts_lose_nothing(
    count: int, slots: int, concentration: float, seed: int
) -> None:
    cut = _dirichlet_cut(np.random.default_rng(seed), count, slots, concentration)
    assert len(cut) == slots + 1
    assert (cut[0], cut[-1]) == (0, count)
    assert (np.diff(cut) >= 0).all()


def test_cdc_domains_return_for_different_lengths() -> None:
    stream = CdcStream(corrupted(120), batch_size=4, slots=6, corrupt=stand_in)
    assert stream.rounds > 1
    lengths = {len(s) for s in stream.segments}
    assert len(lengths) > 2
    for a, b in pairwise(stream.segments):
        assert a.name != b.name
    assert stream.images == 360


def test_class_sorted_data_is_shuffled_unless_told() -> None:
    data = small_set(ordered=False)
    domain = [Domain("a", data, data.indices("array"))]
    stored = [data.key(i) for i in range(23)]
    keys = [k for b in ContinualStream(domain) for k in b.keys]
    assert keys != stored
    assert sorted(keys) == stored
    assert [k for b in ContinualStream(domain, shuffle=False) for k in b.keys] == stored
    assert [k for b in ContinualStream(domain, seed=1) for k in b.keys] != keys


def test_every_stream_is_registered_and_unknown_settings_are_answered() -> None:
    names = {"continual", "recurring", "gradual", "mixed", "correlated", "cdc"}
    assert {*names, "imagenet-plus", "imagenet-plus-plus"} <= set(STREAMS.names())
    with pytest.raises(UnknownName, match="Did you mean 'recurring'"):
        build_stream("recuring")
    with pytest.raises(ConfigError, match="Did you mean 'rounds'"):
        build_stream("recurring", {"round": 3})
    with pytest.raises(ConfigError, match="no transform 'resize256'"):
        build_stream("continual", {"transform": "resize256"})
    with pytest.raises(ConfigError, match="batch_size = 0"):
        build_stream("continual", {"batch_size": 0})


def test_sizes_that_differ_within_a_batch_are_explained() -> None:
    one = ArrayDataset(np.zeros((2, 3, 8, 8), np.uint8), [0, 1], name="one")
    two = ArrayDataset(np.zeros((2, 3, 9, 9), np.uint8), [0, 1], name="two")
    domains = [Domain("one", one, one.indices("one")), Domain("two", two, two.indices("two"))]
    with pytest.raises(DataError, match=r"Choose a transform .*resize256-crop224"):
        MixedStream(domains)[0]
    assert MixedStream(domains, transform="resize224")[0].images.shape == (4, 3, 224, 224)


def test_beyond_the_end_is_an_index_error() -> None:
    stream = make("continual")
    with pytest.raises(IndexError, match="there is no batch"):
        stream[len(stream)]
