"""What is released: one version everywhere, archives that are whole, a wheel that works alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import yaml

import ostinato

ROOT = Path(__file__).parents[1]
HEADING = re.compile(r"^## (Unreleased|\d+\.\d+\.\d+)$", re.M)


def test_the_version_stands_in_one_place() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in text
    assert not re.search(r"^version\s*=", text, re.M)
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(cited["version"]) == ostinato.__version__


def test_the_changelog_goes_by_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = HEADING.findall(text)
    assert len(found) == len(re.findall(r"^## ", text, re.M)), "a heading that is no version"
    numbers = [tuple(map(int, name.split("."))) for name in found if name != "Unreleased"]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[-1] == (0, 1, 0)


def call(*words: object, **more: object) -> str:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, **more
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_wheel_and_sdist_are_whole_and_work_in_an_empty_environment(tmp_path: Path) -> None:
    """Dependencies are lent by this environment; the package itself comes from the wheel alone."""
    pytest.importorskip("build")
    pytest.importorskip("twine")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT)
    wheel, sdist = next(tmp_path.glob("*.whl")), next(tmp_path.glob("*.tar.gz"))
    assert f"-{ostinato.__version__}-" in wheel.name
    assert "PASSED" in call(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    home = tmp_path / "empty"
    venv.create(home, with_pip=True)
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    alone = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    call(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, env=alone)
    own = call(python, "-c", "import site; print(site.getsitepackages()[0])", env=alone).strip()
    # A path file lends the packages here without their own path files, so not the editable one.
    Path(own, "lent.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    place = call(python, "-c", "import ostinato; print(ostinato.__file__)", env=alone, cwd=tmp_path)
    assert place.startswith(str(home))
    assert (Path(place.strip()).parent / "py.typed").is_file()
    command = python.with_name("ostinato")
    assert call(command, "--version", env=alone).strip() == f"ostinato {ostinato.__version__}"
    words = ("run", "--method", "source", "--data", "domains=[fog]", "limit=8", "--out", "runs")
    assert "error" in call(command, *words, env=alone, cwd=tmp_path)
