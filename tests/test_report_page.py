"""The page: self-contained, repeatable, complete about what it leaves out, clear when it fails."""

from __future__ import annotations

import re
import runpy
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest

from ostinato.cli import main
from ostinato.errors import DataError, MissingResource, OstinatoError
from ostinato.report._overview import summarise_variants, warnings
from ostinato.report._runs import Variant, read_variants
from ostinato.report.attention import ExpertAttention
from ostinato.report.command import write_report
from ostinato.report.figure import Data, Figure
from ostinato.report.page import _content_hash, _draw_all, render
from ostinato.report.style import INK, PALETTE, _clean_svg

make_run = runpy.run_path(str(Path(__file__).with_name("_report_runs.py")))["make_run"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_run(root, "source", error=0.6)
    for descriptor in ("low", "high"):
        settings = {"discriminator": {"descriptor": descriptor}}
        path = make_run(
            root, "dual_expert", preset="paper", settings=settings, error=0.3, decide=True
        )
    draw = np.random.default_rng(0)
    ExpertAttention(
        draw.integers(0, 255, (2, 8, 8, 3)).astype(np.uint8),
        draw.uniform(-1, 1, (2, 3, 4, 4)).astype(np.float32),
        ("shared", "domain 0", "domain 1"),
        np.array([1, 2]),
        ("fog", "snow"),
        "blocks.1.mlp",
    ).save(path / "attention.npz")
    return root


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return render(read_variants([folder]))


class Reader(HTMLParser):
    """Collects what a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.files: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        self.links += [str(values[k]) for k in ("href", "src", "srcset", "data") if k in values]
        self.ids += [str(values["id"])] if "id" in values else []
        if "download" in values:
            self.files[str(values["download"])] = str(values["href"])


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def test_the_page_is_self_contained(page: str) -> None:
    found = read(page)
    assert not {"link", "iframe", "object", "embed", "base"} & set(found.tags)
    assert all(link.startswith(("#", "data:")) for link in found.links)
    assert not re.search(r"https?:|[\"'(= ]//|@import", page)
    assert all(u.startswith("#") for u in re.findall(r"url\(([^)]*)\)", page))
    assert len(page) < 2_000_000


def test_one_script_may_run_and_no_other(page: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert f"script-src '{_content_hash(script)}'" in page
    assert "unsafe-inline'; img-src" in page  # of styles; a script needs the hash
    assert not re.search(r" on\w+=", page)


def test_anchors_exist_once(page: str) -> None:
    found = read(page)
    assert len(found.ids) == len(set(found.ids))
    assert {link[1:] for link in found.links if link.startswith("#")} <= set(found.ids)


def test_every_figure_is_there_with_its_data_and_words(page: str, folder: Path) -> None:
    figures = [part for part in _draw_all(read_variants([folder])) if isinstance(part, Figure)]
    names = {re.sub(r"-\d+$", "", figure.name) for figure in figures}
    assert names == {
        "error-over-time", "error-by-round", "error-per-domain", "discriminator", "pool",
        "descriptors", "descriptor-ablation", "attention", "reliability", "cost",
        "trust", "distance",
    }  # fmt: skip
    found = read(page)
    for figure in figures:
        head, _, body = found.files[f"{figure.name}.csv"].partition(",")
        assert head == "data:text/csv;charset=utf-8"
        assert unquote(body) == figure.data.csv()
        assert len(figure.data.rows) > 1
        assert len(figure.alt) > 20
        assert figure.svg in page
        root = ElementTree.fromstring(figure.svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == figure.alt
    assert "Left out" not in page


def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    run = make_run(tmp_path, "source", rounds=1)
    assert render(read_variants([run])) == render(read_variants([run]))


def test_drawings_follow_the_theme(page: str) -> None:
    assert INK not in page
    assert "var(--ink)" in page
    body = re.sub(r"<style>.*?</style>", "", page, flags=re.S)
    assert not any(colour in body for colour in PALETTE)
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_runs_say_how_they_were_made(page: str) -> None:
    for words in ("model's mean and std", "embedded", "own (wwwwwwww)", "before", "recurring"):
        assert words in unescape(page)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    page = render(read_variants([make_run(tmp_path, "source")]))
    left = page[page.index("Left out") :]
    assert "No run keeps attention.npz" in left
    assert "None of these runs recognises domains" in left
    assert "No two of these runs differ in the descriptor alone" in left
    assert "has experts that are trusted or not" in left
    assert "methods without maps have none" in left
    undescribed = make_run(tmp_path, "dual_expert", preset="paper", decide=True, described=False)
    assert "keep no descriptors" in render(read_variants([undescribed]))


def test_an_unfinished_run_is_shown_as_such(tmp_path: Path) -> None:
    path = make_run(tmp_path, "source", complete=False)
    page = render(read_variants([path]))
    assert f"{path.name} is not finished: 18 batches so far." in page


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    paths = [make_run(tmp_path, "source"), make_run(tmp_path, "tent", normalize="none")]
    assert warnings(read_variants(paths)) == [
        "These runs differ in their input convention (model, none)."
    ]


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    page = render(read_variants([make_run(tmp_path, "<b>&x", domains=('<i>"', "b"))]))
    assert "<b>&x" not in page
    assert "<i>" not in page
    assert "&lt;b&gt;&amp;x" in page


def test_the_summary_is_that_of_the_runs(folder: Path) -> None:
    variants: list[Variant] = read_variants([folder])
    table = summarise_variants(variants)
    means = [cells[table.headings.index("error %")] for _, cells in table.rows]
    assert means == [f"{score:.1f}" for score in sorted(v.score for v in variants)]
    assert table.best[table.headings.index("error %")] == 0


def test_damage_is_named(tmp_path: Path) -> None:
    path = make_run(tmp_path, "source")
    lines = (path / "records.jsonl").read_bytes().splitlines(keepends=True)
    (path / "records.jsonl").write_bytes(b"".join([lines[0], b'{"run": 3}\n', *lines[2:]]))
    with pytest.raises(DataError, match=r"records\.jsonl, line 2"):
        read_variants([path])
    (path / "spec.json").write_text("{")
    with pytest.raises(DataError, match=r"spec\.json cannot be read"):
        read_variants([path])
    (path / "spec.json").unlink()
    with pytest.raises(DataError, match="not a run's folder"):
        read_variants([path])


def test_a_run_without_records_is_refused(tmp_path: Path) -> None:
    path = make_run(tmp_path, "source", rounds=0, complete=False)
    with pytest.raises(DataError, match="holds no record yet"):
        read_variants([path])


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, "source", rounds=1, batches=1)
    main(["report", str(run), "--out", str(tmp_path), "--title", "Mine"])
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert "<h1>Mine</h1>" in (tmp_path / "report.html").read_text()
    with pytest.raises(SystemExit) as stopped:
        main(["report", str(tmp_path / "none")])
    assert stopped.value.code == 2
    assert "There is no folder" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path, "source", rounds=1, batches=1)
    with pytest.raises(OstinatoError, match="does not exist"):
        write_report([run], tmp_path / "no" / "page.html")


@pytest.mark.parametrize("library", ["matplotlib.figure", "jinja2"])
def test_a_missing_library_says_how_to_get_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    variants = read_variants([folder])
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingResource, match=r"pip install 'ostinato\[report\]'"):
        render(variants)


def test_cleaning_keeps_numbers_and_drops_the_rest() -> None:
    raw = (
        '<?xml version="1.0"?><!DOCTYPE svg><svg xmlns:xlink="http://w" viewBox="0 0 9 9">\n'
        '<metadata>x</metadata><g id="patch_1"><path d="M 1.23456 2" style="stroke: #010203"/>'
        '<use xlink:href="#m"/></g></svg>\n'
    )
    assert _clean_svg(raw, 'a "b" & c') == (
        '<svg role="img" aria-label="a &quot;b&quot; &amp; c" viewBox="0 0 9 9">\n'
        '<g><path d="M 1.23 2" style="stroke: var(--ink)"/><use href="#m"/></g></svg>'
    )


def test_empty_cells_stay_empty() -> None:
    assert Data(("a", "b"), ((None, "x,y"),)).csv() == 'a,b\n,"x,y"\n'
