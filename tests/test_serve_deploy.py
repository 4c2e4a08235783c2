"""What lies beside the package for those who deploy it says nothing that is not so."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ostinato.cli import COMMANDS
from ostinato.serve._metrics import PER_STREAM
from ostinato.serve.keys import add_key
from ostinato.serve.settings import Settings
from ostinato.serve.store import Store

DEPLOY = Path(__file__).parents[1] / "deploy"
KNOWN = {
    *("requests_total", "request_seconds_bucket", "answer_seconds_bucket", "storage_ok"),
    *("forward_images_sum", "forward_images_count", "waiting_images", "streams"),
    *("forward_requests_sum", "forward_requests_count", "forward_seconds_total"),
    *("learning_seconds_total", "dropped_rows_total"),
    *(f"stream_{name}{'_total' if counts else ''}" for name, _, counts in PER_STREAM),
}


def used(text: str) -> set[str]:
    return set(re.findall(r"\bostinato_([a-z_]+)", text))


def test_dashboard_and_alerts_ask_for_figures_that_there_are() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
    asked += [rule["expr"] for rule in rules]
    assert len(asked) > 20
    assert set().union(*map(used, asked)) <= KNOWN
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(places)) == len(places)


def test_the_example_settings_and_the_commands_of_unit_and_image_are_real() -> None:
    settings = Settings.from_yaml(DEPLOY / "serve.yaml")
    assert settings.streams["yard"].preset == "forward-only"
    unit = (DEPLOY / "ostinato.service").read_text()
    start = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    assert start.split()[0].endswith("/bin/ostinato")
    assert start.split()[1] in COMMANDS
    image = (DEPLOY / "Dockerfile").read_text()
    command = json.loads(image.split("\nCMD ")[-1])
    assert command[0] in COMMANDS
    assert "USER ostinato" in image


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze here")
    text = (DEPLOY / "ostinato.service").read_text()
    path = tmp_path / "ostinato.service"
    path.write_text(text.replace("/opt/ostinato/bin/ostinato", "/bin/true"))
    found = subprocess.run([tool, "verify", str(path)], capture_output=True, text=True, check=False)
    assert "ostinato.service" not in found.stderr, found.stderr


def started(words: list[str], folder: Path) -> tuple[subprocess.Popen[str], str]:
    """The command in a process of its own, on a free port; and the address that it tells."""
    command = [sys.executable, "-c", "from ostinato.cli import main; main()", *words]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder)
    assert server.stderr is not None
    said = server.stderr.readline()
    assert "serving embedded on http://" in said, said + server.stderr.read()
    return server, said.split()[-1]


def unit_words(folder: Path) -> list[str]:
    unit = (DEPLOY / "ostinato.service").read_text()
    start = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    config = folder / "serve.yaml"
    config.write_text((DEPLOY / "serve.yaml").read_text().replace("port: 8000", "port: 0"))
    swaps = {"/etc/ostinato/serve.yaml": str(config), "/var/lib/ostinato": str(folder / "data")}
    return [swaps.get(word, word) for word in start.split()[1:]]


def image_words(folder: Path) -> list[str]:
    image = (DEPLOY / "Dockerfile").read_text()
    words = json.loads(image.split("\nCMD ")[-1])
    store = Store(folder / "data")
    add_key(store, "page", ["read"])  # as its first lines say: this address needs one
    store.close()
    return [*(word.replace("/data", f"{folder}/data") for word in words), "--port", "0"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [unit_words, image_words])
def test_the_same_command_starts_is_healthy_and_ends(
    words: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    server, address = started(words(tmp_path), tmp_path)
    port = address.rpartition(":")[2]
    image = (DEPLOY / "Dockerfile").read_text()
    health = json.loads(image.split("    CMD ", 1)[1].split("\n", 1)[0])
    probe = [sys.executable, "-c", health[2].replace("8000", port)]
    assert subprocess.run(probe, check=False).returncode == 0
    server.terminate()
    server.communicate()
    assert server.returncode in (0, -signal.SIGTERM)  # uvicorn hands the signal on at its end
    store = Store(tmp_path / "data")
    assert store.events(None, kind="stopped")  # it was not the signal that ended it
    store.close()
