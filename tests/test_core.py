"""Config, registry and errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import Field

import ostinato
import ostinato.methods
from ostinato.catalogue import catalogue
from ostinato.checks import small_model
from ostinato.config import Config
from ostinato.errors import ConfigError, OstinatoError, UnknownName
from ostinato.registry import METHODS, TABLES, Registry
from ostinato.tables._plan import plan_table
from ostinato.tables.request import Request


class Settings(Config):
    rate: float = Field(0.1, ge=0)
    name: str = "a"


def test_unknown_key_names_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'rate'"):
        Settings.parse({"rte": 1})


def test_wrong_value_names_field_and_value():
    with pytest.raises(ConfigError, match=r"rate = -1.*greater than or equal"):
        Settings.parse({"rate": -1})


def test_replace_checks_and_leaves_the_original():
    first = Settings()
    assert first.replace(rate=2).rate == 2
    assert first.rate == 0.1
    with pytest.raises(ConfigError):
        first.replace(rate="fast")


def test_yaml_round_trip(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("rate: 0.5\nname: b\n")
    assert Settings.from_yaml(path) == Settings(rate=0.5, name="b")


@pytest.mark.parametrize("text", ["- 1\n- 2\n", "rate: [", "just words"])
def test_yaml_that_is_no_mapping_is_refused(tmp_path, text):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"a\.yaml"):
        Settings.from_yaml(path)


def test_unknown_method_is_an_ostinato_error_with_a_hint():
    with pytest.raises(UnknownName, match="Did you mean 'tent'"):
        METHODS["tnet"]
    assert issubclass(UnknownName, OstinatoError)


def test_two_things_of_one_name_are_refused():
    things: Registry[type] = Registry("thing")
    things.register("x")(int)
    with pytest.raises(ValueError, match="two things are called 'x'"):
        things.register("x")(str)


def test_import_stays_light():
    heavy = "{'transformers', 'matplotlib', 'ray', 'timm', 'torchvision'}"
    code = f"import sys, ostinato, ostinato.cli; print(sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_nobody_asks_for_an_own_method_by_name() -> None:
    """What depends on a method is declared by it: no branch elsewhere compares its name."""
    home = Path(ostinato.__file__).parent
    asks = re.compile(r"""(==|!=|\bin)\s*\(?["'](dual_expert|ostinato)["']""")
    found = [
        f"{path.relative_to(home)}:{number}"
        for path in home.rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if asks.search(line)
    ]
    assert found == []


TAMER = """
from ostinato.methods.base import Input, Method, MethodInfo, Objective
from ostinato.ops.losses import softmax_entropy
from ostinato.ops.trainable import norm_parameters
from ostinato.registry import METHODS


@METHODS.register("{name}")
class Tamer(Method):
    \"\"\"Lowers the entropy, gently.\"\"\"

    info = MethodInfo(title="Tamer", paper="none", trains="norms")

    def trainable(self):
        \"\"\"Norms.\"\"\"
        return norm_parameters(self.model)

    def objective(self, batch: Input) -> Objective:
        \"\"\"Mean entropy.\"\"\"
        logits = self.logits(batch)
        return Objective(logits, softmax_entropy(logits).mean())
"""


def test_a_new_method_is_one_file_or_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is listed, passes for a row of a table, and adapts; nothing else mentions it."""
    (tmp_path / "tamer.py").write_text(TAMER.format(name="tamer"))
    (tmp_path / "tamest").mkdir()
    (tmp_path / "tamest" / "__init__.py").write_text(TAMER.format(name="tamest"))
    places = [*ostinato.methods.__path__, str(tmp_path)]
    monkeypatch.setattr(ostinato.methods, "__path__", places)
    monkeypatch.setattr(METHODS, "_filled", False)
    try:
        names = [row[0] for row in catalogue("methods")[1]]
        assert {"tamer", "tamest"} <= set(names)
        rows = plan_table(TABLES["imagenet-c"], Request(methods=("tamer", "tamest"))).variants
        assert [row.method for row in rows] == ["tamer", "tamest"]
        adapted = ostinato.adapt(small_model(), "tamest")
        assert adapted(torch.rand(2, 3, 32, 32)).isfinite().all()
        assert adapted.last.updated
    finally:
        for name in ("tamer", "tamest"):
            METHODS.remove(name)
            sys.modules.pop(f"ostinato.methods.{name}", None)
