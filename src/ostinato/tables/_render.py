"""A finished table, and its five forms: terminal, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ostinato.config import Config
from ostinato.errors import ConfigError, did_you_mean
from ostinato.ops.files import make_folder, write_atomically

if TYPE_CHECKING:
    from rich.table import Table as RichTable

FACTS = ("Model", "Weights", "Input", "Images", "Seeds", "Help", "Predicts", "Reset", "Views")
"""What every row says about itself, in this order."""
_SUFFIXES = {"markdown": ".md", "latex": ".tex", "csv": ".csv", "json": ".json"}


class Value(Config):
    """One cell.

    >>> str(Value(value=40.25, spread=0.04)), str(Value(text="/")), str(Value())
    ('40.2 ± 0.0', '/', '')
    """

    value: float | None = None
    spread: float | None = None
    text: str = ""
    digits: int = 1
    note: str = ""

    def __str__(self) -> str:
        if self.text or self.value is None:
            return self.text
        shown = f"{self.value:.{self.digits}f}"
        return shown if self.spread is None else f"{shown} ± {self.spread:.{self.digits}f}"


class Heading(Config):
    """A column's name, the group of columns that it stands in, and whether it sums others up.

    >>> str(Heading(name="Mean", group="Round 1"))
    'Round 1 Mean'
    """

    name: str
    group: str = ""
    summary: bool = True

    def __str__(self) -> str:
        return f"{self.group} {self.name}".strip()


class TableRow(Config):
    """One row: measured here, or printed elsewhere.

    >>> row = TableRow(label="TENT", origin="measured", values=(Value(value=20.0),))
    >>> row.values[0].value
    20.0
    """

    label: str
    origin: Literal["measured", "printed"]
    values: tuple[Value, ...]
    facts: dict[str, str] = {}
    note: str = ""


class ClassBlock(Config):
    """IoU of every class for every measured row, below a segmentation table.

    >>> ClassBlock(names=("road", "sky"), rows=()).names
    ('road', 'sky')
    """

    names: tuple[str, ...]
    rows: tuple[TableRow, ...]


class TableResult(Config):
    """A whole table, ready to be written.

    >>> result = TableResult(
    ...     name="demo",
    ...     title="Demo",
    ...     scale="small",
    ...     command="ostinato table demo",
    ...     headings=(Heading(name="Mean"),),
    ...     rows=(TableRow(label="Source", origin="measured", values=(Value(value=50.0),)),),
    ... )
    >>> print(_to_csv(result).splitlines()[1])
    Source,measured,50.0,,,,,,,,,,
    """

    name: str
    title: str
    scale: str
    command: str
    metric: str = "error"
    headings: tuple[Heading, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    per_class: ClassBlock | None = None

    def footnotes(self) -> dict[str, int]:
        """Every note of a row or cell, numbered in order of appearance."""
        found = (n for row in self.rows for n in (row.note, *(v.note for v in row.values)))
        return {note: number for number, note in enumerate(dict.fromkeys(filter(None, found)), 1)}

    def render(self, form: str) -> str:
        """The table as text in one of the forms."""
        if form not in _FORMS:
            raise ConfigError(f"There is no form {form!r}. {did_you_mean(form, _FORMS)}")
        return _FORMS[form](self)

    def on_terminal(self, width: int | None = None) -> RichTable:
        """The table for a terminal that is so many characters wide."""
        from ostinato.tables._terminal import to_terminal

        return to_terminal(self, width)

    def save(self, folder: str | Path) -> list[Path]:
        """Write all forms that are files; the paths."""
        place = Path(folder)
        make_folder(place)
        written = []
        for form, suffix in _SUFFIXES.items():
            path = place / f"{self.name}-{self.scale}{suffix}"
            write_atomically(path, self.render(form).encode())
            written.append(path)
        return written


def to_json(result: TableResult) -> str:
    """Everything, machine-readable; `TableResult.parse` reads it back."""
    return result.model_dump_json(indent=1) + "\n"


def _to_csv(result: TableResult) -> str:
    """One line per row, numbers in full, with a spread beside every value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [str(h) for h in result.headings]
    spreads = [f"{name} ±" for name in names]
    pairs = [name for pair in zip(names, spreads, strict=True) for name in pair]
    reset = any(row.facts.get("Reset") for row in result.rows)  # a column for few tables
    told = [name for name in FACTS if reset or name != "Reset"]
    writer.writerow(["Method", "Origin", *pairs, *told, "Note"])
    for row in result.rows:
        cells: list[object] = []
        for value in row.values:
            cells += [value.text if value.value is None else value.value, value.spread]
        notes = "; ".join(filter(None, (row.note, *(v.note for v in row.values))))
        facts = [row.facts.get(name, "") for name in told]
        writer.writerow(
            [row.label, row.origin, *("" if c is None else c for c in cells), *facts, notes]
        )
    return text.getvalue()


def to_markdown(result: TableResult) -> str:
    """A page with the command, the table and its notes."""
    marks = result.footnotes()
    told = [name for name in FACTS if any(row.facts.get(name) for row in result.rows)]
    heads = ["Method", *(str(h) for h in result.headings), *told]
    lines = [
        f"# {result.title}",
        "",
        f"Scale: {result.scale}. Made by:",
        "",
        f"    {result.command}",
        "",
        _pipes(heads),
        "|---|" + "---:|" * len(result.headings) + "---|" * len(told),
    ]
    for row in result.rows:
        label = f"*{row.label} (printed)*" if row.origin == "printed" else row.label
        values = [f"{v}{mark(v.note, marks)}" for v in row.values]
        facts = [row.facts.get(name, "") for name in told]
        lines.append(_pipes([label + mark(row.note, marks), *values, *facts]))
    notes = note_lines(result, marks, "- ")
    return "\n".join([*lines, "", *notes, *_class_lines(result.per_class)]) + "\n"


def _class_lines(block: ClassBlock | None) -> list[str]:
    if block is None:
        return []
    rows = [_pipes([row.label, *map(str, row.values)]) for row in block.rows]
    heads = [_pipes(["Method", *block.names]), "|---|" + "---:|" * len(block.names)]
    words = "Intersection over union in percent, over all pixels of all rounds."
    return ["", "## Per class", "", words, "", *heads, *rows]


def _to_latex(result: TableResult) -> str:
    """A booktabs table; needs \\usepackage{booktabs,graphicx}."""
    marks = result.footnotes()
    shown = varying(result)
    width = "l" + "r" * len(result.headings) + "l" * len(shown)
    heads = ["Method", *(str(h) for h in result.headings), *shown]
    lines = [
        f"% {result.command}",
        "\\begin{table*}[t]",
        "\\centering",
        f"\\caption{{{_escape(result.title)} ({_escape(result.scale)} scale)}}",
        f"\\label{{tab:{result.name}}}",
        "\\resizebox{\\textwidth}{!}{%",
        f"\\begin{{tabular}}{{{width}}}",
        "\\toprule",
        " & ".join(_escape(h) for h in heads) + " \\\\",
        "\\midrule",
    ]
    before = ""
    for row in result.rows:
        if before and row.origin != before:
            lines.append("\\midrule")
        before = row.origin
        lines.append(" & ".join(_latex_cells(row, marks, shown)) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}}", "\\par\\smallskip\\footnotesize"]
    lines += [_escape(note) + "\\par" for note in note_lines(result, marks, "", shown)]
    return "\n".join([*lines, "\\end{table*}"]) + "\n"


def _latex_cells(row: TableRow, marks: dict[str, int], shown: list[str]) -> list[str]:
    def marked(text: str, note: str) -> str:
        body = _escape(text).replace("±", "$\\pm$")
        return body + (f"\\textsuperscript{{{marks[note]}}}" if note else "")

    label = f"{row.label} (printed)" if row.origin == "printed" else row.label
    facts = [_escape(row.facts.get(name, "")) for name in shown]
    return [marked(label, row.note), *(marked(str(v), v.note) for v in row.values), *facts]


def varying(result: TableResult) -> list[str]:
    """The facts that differ among the measured rows."""
    measured = [row.facts for row in result.rows if row.origin == "measured"]
    return [name for name in FACTS if len({facts.get(name, "") for facts in measured}) > 1]


def note_lines(
    result: TableResult, marks: dict[str, int], bullet: str, shown: list[str] | None = None
) -> list[str]:
    """What stands below a table; facts that no column shows among them."""
    lines = []
    measured = [row.facts for row in result.rows if row.origin == "measured"]
    if shown is not None and measured:
        constant = [n for n in FACTS if n not in shown and measured[0].get(n)]
        lines.append(", ".join(f"{name}: {measured[0][name]}" for name in constant))
    lines += [*result.notes, *(f"[{number}] {note}" for note, number in marks.items())]
    return [f"{bullet}{line}" for line in lines if line]


def mark(note: str, marks: dict[str, int]) -> str:
    """The number of a cell's note."""
    return f" [{marks[note]}]" if note else ""


def _pipes(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _escape(text: str) -> str:
    for sign in "&%#_{}":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("~", "\\textasciitilde{}").replace("²", "$^2$").replace("−", "$-$")


def _console(result: TableResult) -> str:
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=240, color_system=None).print(result.on_terminal())
    return text.getvalue()


_FORMS: dict[str, Callable[[TableResult], str]] = {
    "terminal": _console,
    "markdown": to_markdown,
    "latex": _to_latex,
    "csv": _to_csv,
    "json": to_json,
}
