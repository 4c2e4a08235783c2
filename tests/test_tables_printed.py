from __future__ import annotations

import subprocess
import sys

import pytest

from ostinato.errors import UnknownName
from ostinato.registry import TABLES
from ostinato.tables._recomputed import disagreements, recompute
from ostinato.tables.printed import PRINTED, Cell, printed

# What the paper's own cells contradict; everything else in it adds up.
MISPRINTS = {
    ("imagenet-c", "Pseudo-label", "Mean"): 66.8,
    ("imagenet-plus", "CoTTA", "Mean"): 50.5,
    ("imagenet-plus", "ViDA", "RF"): 8.8,
    ("imagenet-plus-plus", "Ours", "RF"): -5.7,
    ("ablation-fdd", "FDD w/o discriminator", "Diff"): 6.9,
    ("acdc", "TENT", "Mean"): 55.9,
}
# Gains that only repeat a misprinted mean.
FOLLOWING = {
    ("imagenet-c", "Pseudo-label", "Gain"): -11.0,
    ("imagenet-plus", "CoTTA", "Gain"): 0.7,
    ("acdc", "TENT", "Gain"): -0.9,
}


@pytest.mark.parametrize("name", ["imagenet-plus", "imagenet-plus-plus", "acdc"])
def test_every_printed_round_mean_follows_from_its_cells(name: str) -> None:
    table = printed(name)
    checked = 0
    for row in table.rows:
        computed = recompute(table, row)
        for column, cell in zip(table.columns, row.cells, strict=True):
            if column.kind == "round mean":
                assert cell.value == pytest.approx(computed[column], abs=0.1)
                checked += 1
    assert checked == 3 * len(table.rows)


def test_weights_matter() -> None:
    table = printed("imagenet-plus")
    row = table.row("ViDA")
    plain = sum(table.cell("ViDA", h, 2).value or 0 for h in ("V2", "A", "S", "R")) / 4
    last = next(c for c in table.columns if c.kind == "round mean" and c.round == 2)
    assert abs(plain - recompute(table, row)[last]) > 2


def test_the_known_misprints_are_the_only_disagreements() -> None:
    found = {
        (d.table, d.method, d.column.heading): d.computed
        for table in PRINTED.values()
        for d in disagreements(table)
    }
    expected = {**MISPRINTS, **FOLLOWING}
    assert found.keys() == expected.keys()
    for where, value in expected.items():
        assert found[where] == pytest.approx(value, abs=0.1)


def test_misprints_stay_as_printed_and_carry_a_note() -> None:
    for table, method, heading in [*MISPRINTS, *FOLLOWING]:
        assert printed(table).cell(method, heading).note
    assert printed("imagenet-c").cell("Pseudo-label", "Mean").text == "61.2"
    assert printed("imagenet-plus").cell("ViDA", "RF").text == "+5.0"
    assert printed("imagenet-plus-plus").cell("Source", "Gain") == Cell("/")
    assert "44.8" in printed("imagenet-plus").cell("Source", "V2", 1).note


def test_notes_stand_on_cells_that_exist() -> None:
    from ostinato.tables import _printed_rows as rows

    for (table, method, heading, number), note in rows.NOTES.items():
        assert printed(table).cell(method, heading, number).note == note
    methods = {row.method for table in PRINTED.values() for row in table.rows}
    assert {*rows.NEEDS, *rows.PREDICTS, *rows.ROW_NOTES} <= methods


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("imagenet-c", 8, 17),
        ("cifar100-c", 8, 17),
        ("imagenet-plus", 4, 18),
        ("imagenet-plus-plus", 4, 18),
        ("acdc", 7, 18),
        ("ablation-experts", 4, 3),
        ("ablation-fdd", 6, 3),
        ("ablation-descriptor", 0, 0),
        ("parameters", 1, 2),
    ],
)
def test_every_table_is_whole(name: str, rows: int, columns: int) -> None:
    table = printed(name)
    own = [row for row in table.rows if row.origin == "paper"]
    assert (len(own), len(table.columns)) == (rows, columns)
    assert all(len(row.cells) == columns for row in table.rows)
    assert all(cell.text for row in own for cell in row.cells)
    assert len(set(table.columns)) == columns


def test_headline_figures() -> None:
    for name, mean in (("imagenet-c", 40.2), ("imagenet-plus", 44.5), ("acdc", 62.7)):
        assert printed(name).cell("Ours", "Mean").value == mean
    assert printed("cifar100-c").cell("Ours", "Gain").text == "+11.6"
    assert printed("ablation-fdd").cell("FDD (ours)", "K").value == 7


def test_stronger_figures_declare_their_help() -> None:
    table = printed("imagenet-c")
    stronger = {row.method: row for row in table.rows if row.origin == "elsewhere"}
    means = {n: table.cell(n, "Mean").value for n, r in stronger.items() if r.protocol == "raw"}
    raw = {"KFF": 34.8, "GAIN": 38.1, "M2A": 39.2, "REM": 39.2, "DPCore": 39.9, "NEO": 44.0}
    assert means == raw
    assert stronger["KFF"].needs == stronger["DPCore"].needs == ("source statistics",)
    assert stronger["KFF"].predicts == "last"
    assert "50 steps" in stronger["KFF"].note
    assert stronger["REM"].predicts == "before"
    assert recompute(table, stronger["KFF"]) == {}
    assert printed("cifar100-c").cell("M2A", "Mean").value == 19.8


def test_protocols_are_kept_apart() -> None:
    from ostinato.tables._cells import printed_row

    paper, often = printed("imagenet-c"), printed("recurring-20")
    assert paper.cell("Source", "Mean").value == 55.8
    assert paper.cell("Source, normalised", "Mean").value == 44.5
    inputs = {
        name: {row.method: printed_row(TABLES[name], known, row) for row in known.rows}
        for name, known in (("imagenet-c", paper), ("recurring-20", often))
    }
    assert inputs["imagenet-c"]["Source"].facts["Input"] == "raw [0, 1]"
    assert inputs["imagenet-c"]["FOA"].facts["Input"] == "normalised"
    assert "44.5, not 55.8" in inputs["imagenet-c"]["FOA"].note
    assert all("48.8" in row.note for row in inputs["recurring-20"].values())
    assert {row.protocol for row in often.rows} == {"reservoir"}
    assert often.cell("ETA + ReservoirTTA", "R20", 19).value == 31.9


def test_the_parameter_note_is_arithmetic() -> None:
    dim, blocks, experts, total = 768, 12, 2, 86.6e6
    router = blocks * (experts * dim + experts)
    shared = blocks * experts * 2 * dim * 32 + router
    domain = blocks * experts * 2 * dim * 16 + router
    assert (round(shared / 1e6, 2), round(domain / 1e6, 2)) == (1.20, 0.61)
    share = [100 * n / total for n in (shared + 7 * domain, domain, shared + domain)]
    notes = [printed("parameters").cell("Ours", h).note for h in ("Added", "Trained")]
    for value, note in zip(share, (notes[0], notes[1], notes[1]), strict=True):
        assert f"{value:.1f} %" in note


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'imagenet-plus'"):
        printed("imagenet-pluss")
    with pytest.raises(UnknownName, match="Did you mean 'CoTTA'"):
        printed("acdc").row("CoTA")
    with pytest.raises(UnknownName, match="no column"):
        printed("acdc").cell("CoTTA", "Hail")


def test_reading_results_does_not_load_torch() -> None:
    code = (
        "import sys, ostinato.tables.printed, ostinato.scoring.compare, ostinato.running.results;"
        "import ostinato.scoring.forgetting, ostinato.scoring._routing;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
