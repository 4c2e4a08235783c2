"""What a seed changes in each table, and whether the notes say so."""

from __future__ import annotations

import pytest
import torch

from ostinato.bench.assemble import Request, spec_of
from ostinato.bench.job import open_stream
from ostinato.bench.table import Table, Variant
from ostinato.registry import DATASETS, TABLES


def says_drawn(*notes: str) -> bool:
    return any("drawn anew with every seed" in note for note in notes)


@pytest.mark.parametrize("name", TABLES.names())
def test_seeds_change_what_the_notes_say(name: str) -> None:
    table: Table = TABLES[name]
    if not any("± is" in note for note in table.notes):
        assert name == "parameters"
        return
    source = Variant("Source", "source")
    fresh = False
    for part in table.parts:
        spec = spec_of(table, part, source, Request())
        one, two = (open_stream(spec.replace(seeds=(seed,))) for seed in (2025, 2026))
        places = range(0, len(one), max(1, len(one) // 5))
        for a, b in ((one[n], two[n]) for n in places):
            assert a.keys == b.keys
            assert torch.equal(a.labels, b.labels)
            fresh = fresh or not torch.equal(a.images, b.images)
    assert fresh == says_drawn(*table.notes, *table.small_notes)


@pytest.mark.parametrize("name", TABLES.names())
def test_at_full_scale_the_seed_draws_what_is_not_stored(name: str) -> None:
    table: Table = TABLES[name]
    drawn = False
    for data in (part.full["data"] for part in table.parts):
        if "dataset" not in data:
            assert data["seed"] == 0
            continue
        kind = DATASETS[data["dataset"]]
        assert kind.ordered  # shown in an order of its own, unless told to shuffle
        assert not {"shuffle", "domains"} & set(data)
        drawn = drawn or not (kind.stored_severities or kind.name == "acdc")
    assert drawn == says_drawn(*table.notes)
