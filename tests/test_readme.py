"""What the README says is true: its commands exist, its code runs, its files are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from ostinato.checks import small_batches, small_model
from ostinato.cli import COMMANDS
from ostinato.demo._plan import Plan

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_screen_shows_the_demo_and_its_table():
    screen = TEXT.splitlines()[:25]
    assert any(line.startswith("$ make demo") for line in screen)
    for row in Plan.make().rows:
        assert any(line.strip().startswith(row.title) for line in screen), row.title


def test_every_command_exists():
    listed = re.findall(r"^ostinato (\w+)(?: (\w+)\|(\w+))?", TEXT, re.MULTILINE)
    names = set()
    for word, first, second in listed:
        names |= {f"{word} {first}", f"{word} {second}"} if first else {word}
    assert len(names) >= 10
    assert names <= set(COMMANDS)


def test_every_make_target_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(?:\$ )?make ([\w-]+)", TEXT, re.MULTILINE))
    assert {"demo", "test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_link_leads_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert len(links) > 5
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []


def test_the_code_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import timm

    source = small_model()
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: source)
    monkeypatch.chdir(tmp_path)
    batches = small_batches(4)
    known = {"clean_images": torch.cat(batches[1:]), "images": batches[0]}
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(code, known)
    assert known["logits"].shape == (len(batches[0]), 5)
    assert known["model"] is source
