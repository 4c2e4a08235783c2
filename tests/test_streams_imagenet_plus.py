"""ImageNet+ and ImageNet++: order, variants, thirds, split files and duplicates."""

from __future__ import annotations

import hashlib
import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ostinato.data.datasets.base import open_dataset
from ostinato.data.datasets.imagenet_v2 import VARIANTS
from ostinato.data.segments import find_duplicates
from ostinato.data.streams import Stream, build_stream
from ostinato.errors import ConfigError, DataError

trees = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("_trees.py"))))

V2, A, R, S = "imagenet-v2", "imagenet-a", "imagenet-r", "imagenet-sketch"


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("data")
    trees.v2_tree(home / V2, classes=(0, 2, 10, 999), shared=2)
    trees.wordnet_tree(home / A, trees.part_columns(1))
    trees.wordnet_tree(home / R, trees.part_columns(3))
    trees.wordnet_tree(home / S, [4, 8, 500, 999], each=8)
    return home


def keys_by_part(stream: Stream) -> dict[tuple[str, int], list[str]]:
    """Domain and round to the images' names, without decoding."""
    return {
        (s.name, s.round): [s.parts[0].dataset.key(int(i)) for i in s.where]
        for s in stream.segments
    }


def test_plus_shows_the_same_images_in_the_texts_order(roots: Path) -> None:
    stream = build_stream("imagenet-plus", {"batch_size": 16}, roots=roots)
    assert [s.name for s in stream.segments] == [V2, A, R, S] * 3
    parts = keys_by_part(stream)
    assert [len(parts[name, 0]) for name in (V2, A, R, S)] == [12, 200, 200, 32]
    for name in (V2, A, R, S):
        assert parts[name, 0] == parts[name, 1] == parts[name, 2]
    assert (stream.rounds, stream.num_classes) == (3, 1000)
    assert stream[0].images.shape == (12, 3, 224, 224)
    assert stream[0].classes is None
    assert stream[1].classes is not None
    assert len(stream[1].classes) == 200
    tables = build_stream("imagenet-plus", {"order": "tables", "rounds": 1}, roots=roots)
    assert [s.name for s in tables.segments] == [V2, A, S, R]
    with pytest.raises(ConfigError, match="order = 'paper'"):
        build_stream("imagenet-plus", {"order": "paper"}, roots=roots)


@pytest.mark.parametrize("seed", [0, 1])
def test_plus_plus_parts_are_disjoint_and_complete(roots: Path, seed: int) -> None:
    stream = build_stream("imagenet-plus-plus", {"seed": seed}, roots=roots)
    parts = keys_by_part(stream)
    for name in (R, S):
        data = open_dataset(name, roots / name)
        thirds = [set(parts[name, r]) for r in range(3)]
        assert set.union(*thirds) == {data.key(i) for i in range(len(data))}
        assert sum(map(len, thirds)) == len(data)
        assert max(map(len, thirds)) - min(map(len, thirds)) <= 1
    for number, variant in enumerate(VARIANTS):
        assert len(parts[V2, number]) == 4
        assert all(key.startswith(f"{V2}/{variant}/") for key in parts[V2, number])
    assert parts[A, 0] == parts[A, 1] == parts[A, 2]
    assert len(parts[A, 0]) == 200


def test_plus_plus_parts_follow_from_names_and_seed_alone(roots: Path, tmp_path: Path) -> None:
    """The thirds, computed here by hand from the file names."""
    stream = build_stream("imagenet-plus-plus", {"seed": 5}, roots=roots)
    parts = keys_by_part(stream)
    data = open_dataset(S, roots / S)

    def rank(key: str) -> int:
        digest = hashlib.blake2b(b"5\0" + key.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    order = sorted((data.key(i) for i in range(len(data))), key=rank)
    for number in range(3):
        assert set(parts[S, number]) == set(order[number::3])
    other = build_stream("imagenet-plus-plus", {"seed": 6}, roots=roots)
    assert keys_by_part(other)[S, 0] != parts[S, 0]


def test_split_files_are_written_and_hashed(roots: Path, tmp_path: Path) -> None:
    stream = build_stream("imagenet-plus-plus", roots=roots)
    hashes = stream.write_artifacts(tmp_path / "run")
    names = {f"split-{n}-round{r}.txt" for n in (V2, R, S) for r in (1, 2, 3)}
    assert set(hashes) == names | {"duplicates-imagenet-v2.json"}
    for name, value in hashes.items():
        assert hashlib.sha256((tmp_path / "run" / name).read_bytes()).hexdigest() == value
    text = (tmp_path / "run" / f"split-{R}-round2.txt").read_text()
    assert text.split() == keys_by_part(stream)[R, 1]
    again = build_stream("imagenet-plus-plus", roots=roots)
    assert again.write_artifacts(tmp_path / "again") == hashes
    assert again.fingerprint() == stream.fingerprint()


def test_duplicates_across_variants_are_found_and_dropped_on_demand(
    roots: Path, tmp_path: Path
) -> None:
    stream = build_stream("imagenet-plus-plus", roots=roots)
    found = json.loads(stream.artifacts()["duplicates-imagenet-v2.json"])["groups"]
    assert sorted(found) == [
        [f"{V2}/matched-frequency/{n}/0-{n}.png", f"{V2}/threshold-0.7/{n}/1-{n}.png"]
        for n in (0, 2)
    ]
    dropped = build_stream("imagenet-plus-plus", {"duplicates": "drop"}, roots=roots)
    parts = keys_by_part(dropped)
    assert [len(parts[V2, r]) for r in range(3)] == [4, 2, 4]
    ignored = build_stream("imagenet-plus-plus", {"duplicates": "ignore"}, roots=roots)
    assert "duplicates-imagenet-v2.json" not in ignored.artifacts()
    trees.v2_tree(tmp_path, shared=0)
    assert len(find_duplicates(open_dataset(V2, tmp_path), tuple(VARIANTS))) == 0


def test_plus_plus_seeks_like_it_walks(roots: Path) -> None:
    options = {"batch_size": 64, "limit": 9}
    walked = list(build_stream("imagenet-plus-plus", options, roots=roots))
    stream = build_stream("imagenet-plus-plus", {**options, "batch_size": 5}, roots=roots)
    assert stream.images == sum(len(b) for b in walked) == 3 * (4 + 9 + 9 + 9)
    fine = list(stream)
    for index in (len(stream) - 1, 3, 0):
        assert torch.equal(stream[index].images, fine[index].images)
    assert [k for b in fine for k in b.keys] == [k for b in walked for k in b.keys]
    assert torch.equal(torch.cat([b.images for b in fine]), torch.cat([b.images for b in walked]))


def test_what_is_missing_is_named(roots: Path, tmp_path: Path) -> None:
    trees.picture(tmp_path / "imagenetv2-top-images-format-val" / "3" / "a.png")
    mine = {V2: tmp_path, A: roots / A, R: roots / R, S: roots / S}
    with pytest.raises(DataError, match=r"lacks the variants matched-frequency, threshold-0\.7"):
        build_stream("imagenet-plus-plus", roots=mine)
    with pytest.raises(ConfigError, match="rounds = 4"):
        build_stream("imagenet-plus-plus", {"rounds": 4}, roots=roots)
