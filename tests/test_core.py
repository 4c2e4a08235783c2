"""Config, registry and errors."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import Field

from ostinato.config import Config
from ostinato.errors import ConfigError, OstinatoError, UnknownName
from ostinato.registry import METHODS, Registry


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
