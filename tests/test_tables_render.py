"""A table in all its forms: what goes in comes out, marked and noted."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from ostinato.errors import OstinatoError
from ostinato.tables._render import FACTS, Heading, TableResult, TableRow, Value
from ostinato.tables._terminal import to_terminal

FACT = dict.fromkeys(FACTS, "x") | {"Help": "none"}
RESULT = TableResult(
    name="tiny",
    title="Tiny_table: error in %",
    scale="small",
    command="ostinato table tiny",
    headings=(Heading(name="V2", group="R1"), Heading(name="Mean")),
    rows=(
        TableRow(
            label="Source",
            origin="measured",
            values=(Value(value=51.25, spread=0.1234), Value(value=50.0)),
            facts=FACT,
        ),
        TableRow(
            label="A|B & co",
            origin="measured",
            values=(Value(), Value(value=1 / 3)),
            facts={**FACT, "Help": "source statistics"},
        ),
        TableRow(
            label="Ours",
            origin="printed",
            values=(Value(value=8.8, text="+8.8", note="Its cells give 5."), Value(text="/")),
            note="Row note.",
        ),
    ),
    notes=("A general note.",),
)


def test_csv_holds_the_numbers_in_full() -> None:
    rows = list(csv.DictReader(io.StringIO(RESULT.render("csv"))))
    assert float(rows[0]["R1 V2"]) == 51.25
    assert float(rows[0]["R1 V2 ±"]) == 0.1234
    assert float(rows[1]["Mean"]) == 1 / 3
    assert rows[1]["Method"] == "A|B & co"
    assert rows[2]["Origin"] == "printed"
    assert rows[2]["Note"] == "Row note.; Its cells give 5."
    assert rows[2]["Mean"] == "/"
    assert [rows[0][name] for name in FACTS] == [FACT[name] for name in FACTS]


def test_json_reads_back_as_the_same_table() -> None:
    assert TableResult.parse(json.loads(RESULT.render("json"))) == RESULT


def test_markdown_keeps_its_shape_and_numbers_its_notes() -> None:
    text = RESULT.render("markdown")
    table = [line for line in text.splitlines() if line.startswith("|")]
    widths = {line.replace("\\|", "").count("|") for line in table}
    assert widths == {1 + 1 + len(RESULT.headings) + len(FACTS)}
    assert "| 51.2 ± 0.1 | 50.0 |" in table[2]
    assert table[4].startswith("| *Ours (printed)* [1] | +8.8 [2] | / |")
    assert "- [1] Row note.\n- [2] Its cells give 5." in text
    assert "    ostinato table tiny\n" in text


def test_latex_escapes_and_balances() -> None:
    text = RESULT.render("latex")
    assert "Tiny\\_table: error in \\%" in text
    assert "A|B \\& co" in text
    assert "51.2 $\\pm$ 0.1" in text
    assert "+8.8\\textsuperscript{2}" in text
    assert text.count("\\begin{") == text.count("\\end{") == 2
    body = text[text.index("\\toprule") : text.index("\\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith("\\\\")]
    # The one fact that differs among measured rows is a column, the others stand below.
    assert {line.replace("\\&", "").count("&") for line in rows} == {3}
    assert "Model: x, Weights: x" in text
    assert body.count("\\midrule") == 2


def test_the_terminal_shows_every_row_and_the_constant_facts_below() -> None:
    text = RESULT.render("terminal")
    for part in ("Source", "A|B & co", "Ours (printed) [1]", "source statistics", "Model: x"):
        assert part in text
    assert "\x1b" not in text


def test_save_writes_four_files(tmp_path: Path) -> None:
    written = RESULT.save(tmp_path / "results")
    assert sorted(p.name for p in written) == [
        "tiny-small.csv",
        "tiny-small.json",
        "tiny-small.md",
        "tiny-small.tex",
    ]
    assert all(
        p.read_text(encoding="utf-8") == RESULT.render(form)
        for p, form in zip(written, ("markdown", "latex", "csv", "json"), strict=True)
    )


def test_an_unknown_form_names_the_nearest() -> None:
    with pytest.raises(OstinatoError, match="Did you mean 'latex'"):
        RESULT.render("latx")


def lines_of(result: TableResult, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(to_terminal(result, width))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_a_narrow_terminal_loses_columns_and_never_digits() -> None:
    domains = tuple(Heading(name=f"Domain{n}", summary=False) for n in range(15))
    headings = (*domains, Heading(name="Mean"), Heading(name="ECE"), Heading(name="RF"))
    row = TableRow(
        label="A rather long name of a method",
        origin="measured",
        values=tuple(Value(value=10.0 + n, spread=0.5) for n in range(18)),
        facts={"Help": "source statistics"},
    )
    other = row.replace(label="Source", facts={"Help": "none"})
    wide = RESULT.replace(headings=headings, rows=(row, other), notes=())
    for width, there, gone in (
        (300, ["10.0 ± 0.5", "25.0 ± 0.5", "26.0 ± 0.5", "statistics"], []),
        (90, ["25.0 ± 0.5", "26.0 ± 0.5", "27.0 ± 0.5", "statistics"], ["10.0 ± 0.5"]),
        (76, ["25.0 ± 0.5", "26.0 ± 0.5", "27.0 ± 0.5"], ["10.0 ± 0.5", "statistics"]),
        (63, ["25.0 ± 0.5", "27.0 ± 0.5"], ["26.0 ± 0.5", "statistics"]),
    ):
        lines = lines_of(wide, width)
        text = "\n".join(lines)
        assert all(len(line) <= width for line in lines)
        assert "…" not in "\n".join(line for line in lines if "│" in line)
        assert all(word in text for word in there), (width, text)
        assert not any(word in text for word in gone), (width, text)
        assert ("Too narrow for" in text) == bool(gone)


def test_a_page_has_no_column_for_what_no_row_says() -> None:
    page = RESULT.render("markdown")
    assert "| Views |" in page
    bare = tuple(r.replace(facts={"Help": "none"}) for r in RESULT.rows)
    page = RESULT.replace(rows=bare).render("markdown")
    assert "| Help |" in page
    assert "Views" not in page
    head, rule, first = page.splitlines()[6:9]
    assert head.count("|") == rule.count("|") == first.count("|")
