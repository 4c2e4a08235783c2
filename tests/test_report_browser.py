"""The page in a real browser: nothing is logged, nothing is requested, figures have a size."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ostinato.report.command import write_report

make_run = runpy.run_path(str(Path(__file__).with_name("_report_runs.py")))["make_run"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--force-prefers-reduced-motion"),
)
# Whatever asks for an address is told that there is none, and says so in the network's log.
NOWHERE = "--host-resolver-rules=MAP * ~NOTFOUND"
# Runs beside the page, which has no script of its own, to measure what became of it.
PROBE = """<script>
addEventListener("load", () => {
  const figures = [...document.querySelectorAll("figure svg")].map(svg => {
    const box = svg.getBoundingClientRect();
    return [Math.round(box.width), Math.round(box.height), svg.querySelectorAll("path").length];
  });
  const out = document.createElement("pre");
  out.id = "probe";
  out.textContent = JSON.stringify({
    figures, requests: performance.getEntriesByType("resource").map(entry => entry.name),
    wide: document.documentElement.scrollWidth > innerWidth,
  });
  document.body.append(out);
});
</script>"""

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser here: install one of {', '.join(BROWSERS)}")
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    runs = [
        make_run(root, "source", error=0.6),
        make_run(root, "dual_expert", preset="paper", error=0.3, decide=True),
    ]
    return write_report(runs, root / "page.html")


def browse(
    browser: str, page: Path, folder: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [browser, *QUIET, NOWHERE, f"--user-data-dir={folder / 'me'}", *options, page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip


def asked(log: Path) -> list[str]:
    """What the page asked of a network; what the browser asks for itself has no origin."""
    begun = [line for line in log.read_text().splitlines() if '"initiator":"' in line]
    own = [line for line in begun if '"initiator":"not an origin"' not in line]
    urls = [re.search(r'"url":"([^"]*)"', line) for line in own]
    return [url[1] for url in urls if url and not url[1].startswith(("file:", "data:"))]


def test_nothing_is_logged_and_nothing_is_requested(
    browser: str, page: Path, tmp_path: Path
) -> None:
    log = tmp_path / "net.json"
    done = browse(
        browser, page, tmp_path, "--enable-logging=stderr", "--v=0", f"--log-net-log={log}",
        "--dump-dom",
    )  # fmt: skip
    assert "</html>" in done.stdout
    assert "CONSOLE" not in done.stderr
    assert asked(log) == []


def test_a_request_would_have_been_seen(browser: str, page: Path, tmp_path: Path) -> None:
    """The checks above can fail: a page that asks for something is caught by both."""
    other = tmp_path / "asks.html"
    plain = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    other.write_text(
        plain.replace("</body>", '<img src="http://example.invalid/x.png"></body>')
        + "<script>console.error('seen')</script>"
    )
    log = tmp_path / "net.json"
    done = browse(
        browser, other, tmp_path, "--enable-logging=stderr", "--v=0", f"--log-net-log={log}",
        "--dump-dom",
    )  # fmt: skip
    assert "CONSOLE" in done.stderr
    assert asked(log) == ["http://example.invalid/x.png"]


@pytest.mark.parametrize("width", [1200, 500])
def test_figures_are_visible_and_the_page_fits(
    browser: str, page: Path, tmp_path: Path, width: int
) -> None:
    import json

    probed = tmp_path / "probed.html"
    text = page.read_text()
    allowed = text.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
    probed.write_text(allowed.replace("</head>", f"{PROBE}</head>"))
    done = browse(browser, probed, tmp_path, f"--window-size={width},2000", "--dump-dom")
    found = json.loads(re.search(r'<pre id="probe">(.*?)</pre>', done.stdout)[1])
    assert len(found["figures"]) == text.count("<figure ")
    assert all(w >= 400 and h >= 100 and paths > 3 for w, h, paths in found["figures"])
    assert found["requests"] == []
    assert not found["wide"]


def test_there_is_something_to_see(browser: str, page: Path, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    browse(browser, page, tmp_path, f"--screenshot={picture}", "--window-size=1000,3000")
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    colourful = (pixels.max(-1) - pixels.min(-1)) > 60
    assert colourful[600:].mean() > 0.005
