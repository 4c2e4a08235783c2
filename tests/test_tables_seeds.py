"""What a seed changes in each table, and whether the notes say so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ostinato.registry import DATASETS, TABLES
from ostinato.running.job import open_stream
from ostinato.running.spec import Spec
from ostinato.tables._cells import seed_note
from ostinato.tables._plan import spec_of
from ostinato.tables._table import Table, Variant
from ostinato.tables.assemble import build_table
from ostinato.tables.request import Request

SAME = "; the images and their order are the same for all."
DRAWN = "the corruptions, which are made on the way"


APART = ("parameters", "traffic", "ablation-objective")
"""Tables without streams, and those whose streams blend domains by the seed."""


def spec(**data: object) -> Spec:
    return Spec.parse(
        {
            "model": "embedded",
            "roots": "embedded",
            "stream": "continual",
            "seeds": [2025, 2026],
            "data": {"dataset": "imagenet-c", "limit": 4, **data},
        }
    )


@pytest.mark.parametrize("name", [name for name in TABLES.names() if name not in APART])
def test_seeds_change_what_the_note_says(name: str) -> None:
    table: Table = TABLES[name]
    source = Variant("Source", "source")
    parts = {
        part.name: spec_of(table, part, source, Request(seeds=(2025, 2026))) for part in table.parts
    }
    fresh = []
    for part, two_seeds in parts.items():
        one, two = (open_stream(each) for each in two_seeds.runs())
        changed = False
        for place in range(0, len(one), max(1, len(one) // 5)):
            a, b = one[place], two[place]
            assert a.keys == b.keys
            assert torch.equal(a.labels, b.labels)
            changed = changed or not torch.equal(a.images, b.images)
        fresh += [part] if changed else []
    note = seed_note(parts)
    assert note is not None
    assert note.endswith(SAME)
    assert ("corruptions" in note) == bool(fresh)
    assert all((part in note) == (len(fresh) < len(parts)) for part in fresh)


def test_the_note_follows_the_data() -> None:
    assert seed_note({"A": spec().replace(seeds=(2025,))}) is None
    assert f"in the method and {DRAWN}{SAME}" in str(seed_note({"A": spec()}))
    fixed = str(seed_note({"A": spec(seed=3)}))
    assert fixed.endswith(f"sets what is random in the method{SAME}")
    mixed = str(seed_note({"A": spec(shuffle=True)}))
    assert mixed.endswith(f"in the method, which images come when and {DRAWN}.")
    some = str(seed_note({"A": spec(shuffle=True), "B": spec(seed=3)}))
    assert "which images of A come when and the corruptions of A, which are" in some


@pytest.mark.parametrize(("seeds", "told"), [((2025,), False), ((2025, 2026), True)])
def test_a_table_tells_it_where_there_are_several(
    seeds: tuple[int, ...], told: bool, tmp_path: Path
) -> None:
    request = Request(
        methods=("source",), seeds=seeds, changes={"data": {"limit": 2}}, out=tmp_path
    )
    notes = build_table("imagenet-c", request).notes
    assert any(DRAWN in note for note in notes) == told
    assert any("±" in note for note in notes) == told


@pytest.mark.parametrize("name", TABLES.names())
def test_at_full_scale_data_come_in_an_order_of_their_own(name: str) -> None:
    table: Table = TABLES[name]
    for data in (part.full["data"] for part in table.parts):
        if "dataset" not in data:
            assert data["seed"] == 0
            continue
        assert DATASETS[data["dataset"]].ordered
        assert not {"shuffle", "domains"} & set(data)
