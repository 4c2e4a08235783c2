"""Load on `ostinato serve`: throughput, latency, memory, and whether answers are the library's.

    python benchmarks/serve_load.py --streams 50 --seconds 1800 --cores 2

starts a server on so many cores, loads it from the others (or from the same, where there are no
others), stops it, and then checks in the library what it said: every kept answer against the state
that it names, made again from the event log, and the newest snapshots to the bit. A second, short
run at a part of that load tells what learning costs the answers.

    python benchmarks/serve_load.py --model vit_base_patch16_224 --weights random --device cuda \
        --streams 1000 --speaking 100 --seconds 120
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from _serving import WEATHERS, Caller, Note, Server, as_npy, images, quantile, run_callers

NPY = "application/x-npy"
EDGE = "ostinato-edge"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--speaking", type=int, help="streams that speak; all unless given")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--callers", type=int, default=16, help="connections")
    parser.add_argument("--processes", type=int, default=1, help="that the callers run in")
    parser.add_argument("--share", type=float, default=0.5, help="of learning, while busy")
    parser.add_argument("--images", type=int, default=8, help="of a request")
    parser.add_argument("--warm", type=int, default=0, help="requests of a stream learned before")
    parser.add_argument("--visit", type=int, default=20, help="requests under one weather in a row")
    parser.add_argument("--batch", type=int, default=64, help="images of a common forward")
    parser.add_argument("--cores", type=int, help="cores of the server; all unless given")
    parser.add_argument("--threads", type=int, default=1, help="of each of its workers")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--checked", type=int, default=3, help="streams that are made again")
    parser.add_argument("--compare", type=float, default=60, help="seconds of each learning phase")
    parser.add_argument("--turns", type=int, default=5, help="of server and library, for the ratio")
    parser.add_argument("--turn", type=float, default=10, help="seconds of each")
    parser.add_argument("--pace", type=float, default=0.3, help="share of the load in that phase")
    return parser.parse_args()


def prepared(given: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[bytes], str]:
    """Settings of the server, bodies of requests, and their type."""
    settings: dict[str, Any] = {
        "model": given.model,
        "device": given.device,
        "precision": given.precision,
        "threads": given.threads,
        "record": True,
        "learning": {"share": given.share},
        "batching": {"images": given.batch, "waiting": 16 * given.batch},
        "limits": {"rate": 1e6, "streams": given.streams + 1},
        "events": 1_000_000,
    }
    kept = images(40 * given.images if given.model == "embedded" else 5 * given.images)
    if given.model != "embedded":
        settings |= {"weights": given.weights, "statistics": str(_statistics(given, folder))}
        return settings, _pictures(kept, given.images), f"multipart/form-data; boundary={EDGE}"
    shape = (len(WEATHERS), -1, given.images, 3, 32, 32)
    return settings, [as_npy(part) for part in kept.reshape(shape).reshape(-1, *shape[2:])], NPY


def _statistics(given: argparse.Namespace, folder: Path) -> Path:
    from ostinato.api import collect_statistics
    from ostinato.models.loading import load_model
    from ostinato.running.spec import Spec

    spec = Spec.parse({"model": given.model, "weights": given.weights, "device": given.device})
    clean = torch.from_numpy(images(200)[0]).float() / 255
    large = torch.nn.functional.interpolate(clean, 224, mode="bicubic").clamp(0, 1)
    path = folder / "statistics.safetensors"
    collect_statistics(load_model(spec), large).save(path)
    return path


def _pictures(kept: np.ndarray[Any, Any], count: int) -> list[bytes]:
    """So many JPEGs a request."""
    import io

    from PIL import Image

    bodies = []
    head = f'--{EDGE}\r\ncontent-disposition: form-data; name="images"; filename="x.jpg"\r\n\r\n'
    for weather in kept:
        parts = []
        for one in weather:
            picture = Image.fromarray(one.transpose(1, 2, 0)).resize((256, 256))
            data = io.BytesIO()
            picture.save(data, format="JPEG", quality=90)
            parts.append(head.encode() + data.getvalue() + b"\r\n")
        end = f"--{EDGE}--\r\n".encode()
        for at in range(0, len(parts) - count + 1, count):
            bodies.append(b"".join(parts[at : at + count]) + end)
    return bodies


def load(
    server: Server, given: argparse.Namespace, bodies: list[bytes], kind: str, seconds: float,
    *, pause: float = 0.0, callers: int | None = None, start: int | None = 0,
) -> tuple[list[Note], list[float], int]:  # fmt: skip
    """Load the server; answers, memory every few seconds, broken connections."""
    half = time.monotonic() + seconds / 2
    names = [f"cam-{at}" for at in range(given.speaking or given.streams)]
    count = min(callers or given.callers, len(names))
    processes = min(given.processes, count)
    options = {"kind": kind, "pause": pause, "start": start, "keep": 9, "visit": given.visit}
    groups = [[names[at::count] for at in range(one, count, processes)] for one in range(processes)]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        work = [
            pool.submit(run_callers, server.port, group, bodies, seconds, options, seed)
            for seed, group in enumerate(groups)
        ]
        memory = []
        while not all(one.done() for one in work):
            memory.append(server.memory())
            time.sleep(min(2.0, seconds / 20))
            if seconds > 120 and half and time.monotonic() > half:
                half = 0.0
                summary(server, "at half time")
        found = [one.result() for one in work]
    return [note for notes, _ in found for note in notes], memory, sum(n for _, n in found)


def main() -> None:
    given = parse()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        settings, bodies, kind = prepared(given, folder)
        server = Server(folder, settings, given.cores)
        print(f"ready after {server.start():.1f} s", flush=True)
        for at in range(given.streams):
            server.call("POST", "/v1/streams", {"name": f"cam-{at}"})
        per = given.images
        warm_up(server, given, bodies, kind)
        notes, memory, broken = load(server, given, bodies, kind, given.seconds)
        pace = report(notes, memory, broken, per, given)
        summary(server, "at the end")
        costs(server, given, bodies, kind, per, pace)
        ratio(server, given, bodies, kind, folder)
        server.stop()
        _, *said = (folder / "server.log").read_text(errors="replace").split("Traceback")
        print(f"tracebacks in the server's log: {len(said)}", *(one[-900:] for one in said[-1:]))
        if given.device == "cpu":
            check(folder, settings, given, bodies, notes)


def warm_up(server: Server, given: argparse.Namespace, bodies: list[bytes], kind: str) -> None:
    """Let every stream learn from so many requests first: it meets its domains."""
    names, step = [f"cam-{at}" for at in range(given.speaking or given.streams)], 20
    for first in range(0, given.warm, step):
        count, until = min(step, given.warm - first), time.monotonic() + 1e6
        callers = [
            Caller(server.port, [name], bodies, until, kind=kind, visit=given.visit, turns=count,
                   start=40_000_000 + first, seed=first)
            for name in names
        ]  # fmt: skip
        for at in range(0, len(callers), given.callers):
            for one in callers[at : at + given.callers]:
                one.start()
            for one in callers[at : at + given.callers]:
                one.join()
                for note in [n for n in one.notes if n.status != 200]:
                    print(f"{note.stream}, request {note.sequence}: {note.status} {note.said}")
        while any(one["waiting"] for one in server.get("/v1/streams")[1]):
            time.sleep(0.5)
    if given.warm:
        summary(server, f"after {given.warm} requests of each stream")


def report(
    notes: list[Note], memory: list[float], broken: int, per: int, given: argparse.Namespace
) -> float:
    good = [note for note in notes if note.status == 200]
    others = Counter((n.status, n.said) for n in notes if n.status not in (200, 429))
    pace = len(good) * per / given.seconds
    waits = [note.seconds for note in good]
    half = memory[len(memory) // 2 :]
    print(
        f"{len(good)} answers ({pace:.0f} images/s), {sum(n.status == 429 for n in notes)} × 429, "
        f"other statuses: {dict(others) or 'none'}, broken connections: {broken}"
    )
    print(
        f"latency p50 {1e3 * quantile(waits, 0.5):.1f} ms, "
        f"p99 {1e3 * quantile(waits, 0.99):.1f} ms; "
        f"answers without a version: {sum(not note.version for note in good)}"
    )
    middle = (max(half) + min(half)) / 2
    print(
        f"memory in the second half {min(half):.0f} to {max(half):.0f} MB "
        f"(± {100 * (max(half) - middle) / middle:.1f} %), at first {memory[0]:.0f} MB",
        flush=True,
    )
    return pace


def summary(server: Server, when: str) -> None:
    streams = server.get("/v1/streams")[1]
    learned, skipped = (sum(one[key] for one in streams) for key in ("learned", "skipped"))
    domains = sum(one["domains"] for one in streams)
    print(
        f"{when}: requests learned from {learned}, not for lack of time {skipped}; "
        f"domains {domains}, memory {server.memory():.0f} MB",
        flush=True,
    )


def costs(
    server: Server, given: argparse.Namespace, bodies: list[bytes], kind: str, per: int, pace: float
) -> None:
    """p50 with learning and without, in turns, at a part of the load."""
    if given.compare <= 0:
        return
    callers = min(4, given.callers)
    pause = callers * per / max(given.pace * pace, 1e-6)
    found: dict[str, list[float]] = {"freeze": [], "unfreeze": []}
    start = 10_000_000
    for what in ("freeze", "unfreeze") * 2:
        for at in range(given.streams):
            server.call("POST", f"/v1/streams/cam-{at}/{what}", {})
        start += 1_000_000
        notes, _, _ = load(
            server, given, bodies, kind, given.compare / 2,
            pause=pause, callers=callers, start=start,
        )  # fmt: skip
        found[what] += [note.seconds for note in notes if note.status == 200]
    off, on = (quantile(found[key], 0.5) for key in ("freeze", "unfreeze"))
    print(
        f"p50 at {100 * given.pace:.0f} % of that load: {1e3 * off:.1f} ms without learning, "
        f"{1e3 * on:.1f} ms with it: × {on / off:.2f}",
        flush=True,
    )


def ratio(
    server: Server, given: argparse.Namespace, bodies: list[bytes], kind: str, folder: Path
) -> None:
    """Images a second, served and by the library, in turns: others may use the machine too."""
    if given.turns < 1:
        return
    work = plain(given, folder)
    served, alone = list[float](), list[float]()
    for turn in range(given.turns):
        start = 20_000_000 + 1_000_000 * turn
        notes, _, _ = load(server, given, bodies, kind, given.turn, start=start)
        served.append(sum(note.status == 200 for note in notes) * given.images / given.turn)
        server.pause(True)  # what it still learns would take the library's time
        alone.append(_pace(work, given))
        server.pause(False)
    shares = sorted(mine / its for mine, its in zip(served, alone, strict=True))
    what = "the library's predict" if given.device == "cpu" else "the plain forward"
    print(
        f"{what} of {given.batch} images, {given.threads} threads: {median(alone):.0f} images/s; "
        f"served: {median(served):.0f}; share of it in {given.turns} turns "
        f"{median(shares):.2f} ({shares[0]:.2f} to {shares[-1]:.2f})",
        flush=True,
    )


def _pace(work: Callable[[], Any], given: argparse.Namespace) -> float:
    cores = os.sched_getaffinity(0)
    if given.cores is not None:
        os.sched_setaffinity(0, sorted(cores)[: given.cores])
    work()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < given.turn:
        work()
        count += given.batch
    os.sched_setaffinity(0, cores)
    return count / (time.perf_counter() - began)


def plain(given: argparse.Namespace, folder: Path) -> Callable[[], Any]:
    """One batch of the library's `predict` (CPU) or of a plain forward (GPU)."""
    from ostinato.serve.loading import load_served
    from ostinato.serve.settings import Settings

    if given.device != "cpu":
        config = Settings.from_yaml(folder / "serve.yaml")
        model = load_served(config).model
        batch = torch.rand(given.batch, 3, 224, 224, device=given.device)

        def work() -> Any:
            half = given.precision == "bf16"
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=half):
                return model(batch).float().cpu()
    else:
        from ostinato import adapt
        from ostinato.data.embedded import STATISTICS, asset_path, embedded_model

        adapted = adapt(embedded_model(), statistics=asset_path(STATISTICS))
        batch = torch.from_numpy(images(given.batch)[1][: given.batch])

        def work() -> Any:
            with adapted.frozen():
                return adapted.predict(batch)

    return work


def check(
    folder: Path, settings: dict[str, Any], given: argparse.Namespace, bodies: list[bytes],
    notes: list[Note],
) -> None:  # fmt: skip
    """Kept answers against the library at the version they name; snapshots to the bit."""
    import io

    from ostinato import adapt
    from ostinato.data.embedded import STATISTICS, asset_path, embedded_model
    from ostinato.serve.loading import load_served
    from ostinato.serve.replaying import read_lives, split_version, verify
    from ostinato.serve.settings import Settings
    from ostinato.serve.store import Store

    torch.set_num_threads(given.threads)
    chosen = Settings.from_yaml(folder / "serve.yaml")
    store = Store(chosen.data)
    served = load_served(chosen)
    worst, compared, same, snapshots = 0.0, 0, 0, 0
    for name in [f"cam-{at}" for at in range(given.checked)]:
        row = next(one for one in store.streams() if one.name == name)
        lives = read_lives(store.events(row.id, most=10**9))
        wanted: dict[tuple[str, int], list[Note]] = {}
        for note in notes:
            if note.stream == name and note.answer is not None:
                wanted.setdefault(split_version(note.version), []).append(note)
        adapted = adapt(embedded_model(), statistics=asset_path(STATISTICS))
        life = min(life for life, _ in wanted)
        for number in range(max(n for at, n in wanted if at == life) + 1):
            for note in wanted.get((life, number), []):
                pixels = torch.from_numpy(np.load(io.BytesIO(bodies[note.body])))
                with adapted.frozen():
                    expected = adapted.predict(pixels).softmax(1)
                for at, image in enumerate(note.answer["images"]):
                    said = {g["label"]: g["probability"] for g in image["guesses"]}
                    gap = max(abs(said[k] - float(expected[at, k])) for k in said)
                    worst, compared = max(worst, gap), compared + 1
            if number < len(lives[life].learned):
                path = store.place(row.id) / "inputs" / f"{lives[life].learned[number]}.npy"
                adapted.predict(torch.from_numpy(np.load(path)))
                adapted.learn()
        found = verify(store, chosen, served, name)
        same, snapshots = same + sum(good for _, good in found), snapshots + len(found)
    print(f"{compared} answers against the library at their version: largest gap {worst:.1e}")
    print(f"snapshots made again from the log: {same} of {snapshots} the same to the bit")


if __name__ == "__main__":
    main()
