"""Chromium without a window, driven over a pipe: pages, scripts, pictures."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--force-prefers-reduced-motion"),
    "--remote-debugging-pipe",
)


class Browser:
    """One page."""

    def __init__(self, folder: Path) -> None:
        found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
        if found is None:
            pytest.skip(f"no browser here: install one of {', '.join(BROWSERS)}")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()

        def pipes() -> None:  # the browser reads from 3 and writes to 4
            os.dup2(theirs_in, 63)
            os.dup2(theirs_out, 64)
            os.dup2(63, 3)
            os.dup2(64, 4)

        self._process = subprocess.Popen(
            [found, *QUIET, f"--user-data-dir={folder / 'me'}", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._left, self._number = b"", 0
        self.console: list[str] = []
        self.requests: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one for one in targets if one["type"] == "page")
        attach = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attach["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    _session: str | None = None

    def call(self, method: str, **given: Any) -> Any:
        """One command, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": given}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self._note(found)

    def _read(self) -> Any:
        while b"\0" not in self._left:
            part = os.read(self._in, 65536)
            assert part, "the browser has gone"
            self._left += part
        text, _, self._left = self._left.partition(b"\0")
        return json.loads(text)

    def _note(self, message: Any) -> None:
        given = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif message.get("method") == "Log.entryAdded":
            self.console.append(given["entry"]["text"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.console.append(str(given["exceptionDetails"]))

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str) -> Any:
        """Wait until an expression is true; a page that hangs shows itself."""
        for _ in range(1200):
            if found := self.run(f"!!({script})"):
                return found
            time.sleep(0.05)
        shown = self.run("document.body.innerText")
        raise AssertionError(f"never true: {script}\n{self.console}\n{shown}")

    def picture(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
