"""What a seed changes in each table, and whether the notes say so."""

from __future__ import annotations

import pytest
import torch

from ostinato.bench.assemble import Request, spec_of
from ostinato.bench.job import open_stream
from ostinato.bench.tables import Table, Variant
from ostinato.registry import DATASETS, TABLES


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
    assert fresh == any("drawn anew with every seed" in note for note in table.small_notes)


def test_at_full_scale_no_stream_follows_the_seed() -> None:
    for part in {p.name: p for name in TABLES.names() for p in TABLES[name].parts}.values():
        data = part.full["data"]
        if "dataset" in data:  # stored as it is shown, in an order of its own
            kind = DATASETS[data["dataset"]]
            assert kind.ordered
            assert not {"shuffle", "domains"} & set(data)
        else:
            assert data["seed"] == 0
