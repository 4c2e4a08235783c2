"""What the benchmarks of `ostinato serve` share: a server of their own, callers, images."""

from __future__ import annotations

import ctypes
import http.client
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

COMMAND = "import sys; from ostinato.cli import main; main(sys.argv[1:])"
NURSERY = """
import os, signal, sys
import timm, torchvision
import ostinato.models.loading, ostinato.serve.running
from ostinato.serve import _routes_operate, _routes_page, _routes_predict, _routes_read
from ostinato.cli import main
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        main(["serve", line.strip()])
        os._exit(0)
    print(pid, flush=True)
"""
WEATHERS = ("clean", "gaussian_noise", "fog", "contrast", "pixelate")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def held_to_modes() -> None:
    """From the next exec on, let modes of files bind root as well: as any other user's process."""
    override, drop = 1, 24  # CAP_DAC_OVERRIDE, PR_CAPBSET_DROP
    ctypes.CDLL(None).prctl(drop, override, 0, 0, 0)


class Nursery:
    """A process that has imported everything and forks servers: they start in no time."""

    def __init__(self, log: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=log.open("ab"), text=True, preexec_fn=held_to_modes,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def start(self, config: Path) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{config}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@dataclass
class Server:
    """A server in a process of its own."""

    folder: Path
    settings: dict[str, Any]
    cores: int | None = None
    port: int = field(default_factory=free_port)
    nursery: Nursery | None = None
    flags: tuple[str, ...] = ()
    pid: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it; seconds until it is ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "serve.yaml"
        given = {"data": str(self.folder / "data"), "port": self.port, **self.settings}
        config.write_text(yaml.safe_dump(given))
        began = time.monotonic()
        if self.nursery is not None:
            self.pid = self.nursery.start(config)
        else:
            self._spawn(config)
        while not self.ready():
            if not self.alive():
                raise SystemExit((self.folder / "server.log").read_text()[-2000:])
            time.sleep(0.02)
        return time.monotonic() - began

    def _spawn(self, config: Path) -> None:
        log = (self.folder / "server.log").open("ab")
        before = os.sched_getaffinity(0)
        if self.cores is not None:  # what is started now inherits it
            os.sched_setaffinity(0, sorted(before)[: self.cores])
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "serve", *self.flags, str(config)],
            stdout=log,
            stderr=log,
        )
        os.sched_setaffinity(0, before)
        self.pid = self.process.pid

    def alive(self) -> bool:
        if self.process is not None:
            return self.process.poll() is None
        return Path(f"/proc/{self.pid}").exists()

    def ready(self) -> bool:
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def get(self, path: str) -> tuple[int, Any]:
        return self.call("GET", path)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        kind = answer.headers.get("content-type", "")
        return answer.status, json.loads(text) if text and "json" in kind else text

    def memory(self) -> float:
        """Megabytes that are resident."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self, paused: bool) -> None:
        os.kill(self.pid, signal.SIGSTOP if paused else signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        os.kill(self.pid, how)
        while self.alive():
            time.sleep(0.005)


@dataclass
class Note:
    """One answered request."""

    stream: str
    sequence: int
    body: int
    status: int
    seconds: float
    version: str = ""
    answer: Any = None
    said: str = ""
    ended: float = 0.0


class Caller(threading.Thread):
    """One connection that asks for its streams in turn, in weathers that come back.

    Args:
        port: of the server.
        streams: names.
        bodies: encoded requests, an equal share of each weather.
        until: when to stop, by the monotonic clock.
        pause: seconds between two requests, in the mean: each is drawn, or callers that one forward
            answered would ask together from then on.
        keep: every how many-th answer is kept whole.
        visit: requests of a stream under one weather.
        start: first sequence number; None sends none.
        turns: requests at most; None sends until it is time.
        top: guesses asked for; 0 asks for all.
    """

    def __init__(
        self,
        port: int,
        streams: list[str],
        bodies: list[bytes],
        until: float,
        *,
        kind: str,
        pause: float = 0.0,
        keep: int = 50,
        visit: int = 20,
        start: int | None = None,
        turns: int | None = None,
        top: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(daemon=True)
        self.port, self.streams, self.bodies, self.until = port, streams, bodies, until
        self.kind, self.pause, self.keep, self.visit, self.start_at = (
            kind,
            pause,
            keep,
            visit,
            start,
        )
        self.turns, self.top = turns, top
        self.random = random.Random(seed)
        self.notes: list[Note] = []
        self.broken = 0

    def run(self) -> None:
        share = len(self.bodies) // len(WEATHERS)
        counts = dict.fromkeys(self.streams, 0)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        turn = 0
        while time.monotonic() < self.until and turn != self.turns:
            name = self.streams[turn % len(self.streams)]
            turn += 1
            number = counts[name]
            counts[name] += 1
            weather = (number // self.visit + hash(name)) % len(WEATHERS)
            body = weather * share + self.random.randrange(share)
            query = f"top={self.top}"
            if self.start_at is not None:
                query += f"&sequence={self.start_at + number}"
            try:
                self.notes.append(self._ask(connection, name, number, body, query))
            except (OSError, http.client.HTTPException):
                self.broken += 1
                connection.close()
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
                time.sleep(0.05)
            if self.pause:
                time.sleep(self.random.uniform(0.0, 2 * self.pause))

    def _ask(
        self, connection: http.client.HTTPConnection, name: str, number: int, body: int, query: str
    ) -> Note:
        began = time.monotonic()
        path = f"/v1/streams/{name}/predict?{query}"
        connection.request("POST", path, self.bodies[body], {"content-type": self.kind})
        answer = connection.getresponse()
        text = answer.read()
        ended = time.monotonic()
        note = Note(name, number, body, answer.status, ended - began, ended=ended)
        if answer.status == 200:
            note.version = text[:400].split(b'"version":"', 1)[1].split(b'"', 1)[0].decode()
            if number % self.keep == 0:
                note.answer = json.loads(text)
        elif answer.status in (429, 503):
            time.sleep(min(float(answer.headers.get("retry-after", 1)), 1.0))
        else:
            note.said = text.decode(errors="replace")[:200]
        return note


def run_callers(
    port: int,
    groups: list[list[str]],
    bodies: list[bytes],
    seconds: float,
    options: dict[str, Any],
    seed: int,
) -> tuple[list[Note], int]:
    """One caller for each group of streams, for so long: what they noted, what broke."""
    until = time.monotonic() + seconds
    working = [
        Caller(port, names, bodies, until, seed=1000 * seed + at, **options)
        for at, names in enumerate(groups)
    ]
    for one in working:
        one.start()
    for one in working:
        one.join()
    return [note for one in working for note in one.notes], sum(one.broken for one in working)


def images(count: int) -> np.ndarray[Any, Any]:
    """The embedded test images under every weather: (weathers, count, 3, 32, 32)."""
    import torch

    from ostinato.data.corruptions import corrupt
    from ostinato.data.embedded import embedded_images

    clean = embedded_images("test")[0][:count]
    found = [clean]
    for weather in WEATHERS[1:]:
        changed = corrupt(clean, weather, 5, list(range(len(clean))), constants="cifar")
        if changed.dtype != torch.uint8:
            changed = (changed * 255).round().to(torch.uint8)
        found.append(changed)
    return torch.stack(found).numpy()


def as_npy(array: np.ndarray[Any, Any]) -> bytes:
    data = io.BytesIO()
    np.save(data, np.ascontiguousarray(array))
    return data.getvalue()


def paced(notes: list[Note], images: int, callers: int) -> float:
    """Images answered a second, over the time that callers were at it: the last answers come late.

    >>> notes = [Note(f"cam-{at}", 0, 0, 200, 0.5, ended=end) for at, end in ((0, 0.5), (1, 1.5))]
    >>> notes.append(Note("cam-0", 1, 0, 429, 1.0, ended=1.5))
    >>> paced(notes, images=8, callers=2)  # one was at it for 1.5 s, the other for 0.5 s
    16.0
    """
    spans = dict[int, tuple[float, float]]()
    for note in notes:
        who = int(note.stream.rpartition("-")[2]) % callers
        first, last = spans.get(who, (float("inf"), 0.0))
        spans[who] = (min(first, note.ended - note.seconds), max(last, note.ended))
    busy = sum(last - first for first, last in spans.values()) / max(len(spans), 1)
    return sum(note.status == 200 for note in notes) * images / max(busy, 1e-9)


def quantile(values: list[float], share: float) -> float:
    return (
        sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")
    )
