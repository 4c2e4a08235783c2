"""The documentation: its code runs, its words are the glossary's, scripts draw its pictures."""

from __future__ import annotations

import importlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ostinato import adapt
from ostinato.checks import small_batches, small_model
from ostinato.registry import METHODS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md") if "results" not in p.parts)
TUTORIALS = sorted((ROOT / "examples" / "tutorials").glob("*.py"))


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)


def prose(page: Path) -> str:
    """A page without its code."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    return re.sub(r"`[^`]*`", "", text)


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(
    script: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script))
    assert "%" in capsys.readouterr().out
    page = (DOCS / "tutorials" / f"{script.stem}.md").read_text(encoding="utf-8")
    assert f'--8<-- "examples/tutorials/{script.name}"' in page


def test_the_page_on_trust_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("trust.md")
    exec(code, {})
    shown = capsys.readouterr().out
    assert "'trust': " in shown
    assert "'after': " in shown


def test_the_example_of_a_method_is_one() -> None:
    (code,) = blocks("add-a-method.md")
    known: dict[str, object] = {"__name__": "example"}
    try:
        exec(code, known)
        model = small_model()
        adapted = adapt(model, "surest")
        before = adapted.export_state()
        assert adapted(small_batches(1)[0]).shape[1] == 5
        assert adapted.last.updated
        assert adapted.last.used == max(1, round(0.5 * len(small_batches(1)[0])))
        assert before.tensors
    finally:
        METHODS.remove("surest")


def terms() -> dict[str, str]:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| \*\*(.*?)\*\* \|.*\| `([\w.]+)` \|$", text, re.M))


def look_up(name: str) -> object:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            fields = getattr(found, "__dataclass_fields__", {})
            found = fields[part] if part in fields else getattr(found, part)
        return found
    raise AttributeError(name)


def test_every_word_of_the_glossary_is_in_the_code_and_in_use() -> None:
    assert len(terms()) > 20
    pages = {page: prose(page).lower() for page in PAGES if page.name != "glossary.md"}
    for word, name in terms().items():
        look_up(name)
        assert any(word.lower() in text for text in pages.values()), f"no page uses {word!r}"


def test_no_page_uses_another_word_for_the_same_thing() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    banned = re.findall(r"^\| ([\w -]+?) \| [\w -]+ \|$", text.split("not used")[1], re.M)[1:]
    assert len(banned) >= 8
    pages = [*(p for p in PAGES if p.name not in ("glossary.md", "methods.md")), ROOT / "README.md"]
    found = [
        f"{page.name}: {word}"
        for page in pages
        for word in banned
        if re.search(rf"\b{re.escape(word)}s?\b", prose(page), re.I)
    ]
    assert found == []


def test_pictures_and_lists_are_what_their_scripts_make() -> None:
    walk = runpy.run_path(str(ROOT / "docs" / "_site" / "draw_walk.py"))["draw"]()
    assert (DOCS / "images" / "walk.svg").read_text(encoding="utf-8") == walk
    made = runpy.run_path(str(ROOT / "docs" / "_site" / "write_printed.py"))["page"]()
    assert (DOCS / "printed.md").read_text(encoding="utf-8") == made


def listed(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    many = nav.values() if isinstance(nav, dict) else nav
    return [page for part in many for page in listed(part)]  # type: ignore[union-attr]


def test_every_page_is_in_the_table_of_contents() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    found = listed(site["nav"])
    wanted = {page.relative_to(DOCS).as_posix() for page in PAGES} - {"printed.md"}
    assert set(found) - {"results/README.md"} == wanted
    assert len(found) == len(set(found))


def test_no_page_has_the_name_of_a_report_beside_it() -> None:
    """`x.md` becomes x.html in the site: a report of that name is called x-report.html."""
    assert [p.name for p in DOCS.rglob("*.html") if p.with_suffix(".md").exists()] == []


@pytest.mark.slow
def test_the_site_builds_and_asks_no_address(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        outside = re.findall(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=.?(?:https?:)?//", text)
        assert outside == [], page
    for style in tmp_path.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"@import|url\([\"']?(?:https?:)?//", text), style
    assert "<h3" in (tmp_path / "api.html").read_text(encoding="utf-8")
