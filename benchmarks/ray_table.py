"""A small table on a Ray cluster of several nodes against the plain one, and with a node killed.

    python benchmarks/ray_table.py --nodes 2 --limit 50 --seeds 2025 2026

prints how many cells differ (none should), where every row that was cut off went on, and how many
batches were run twice: those after the last checkpoint, and none of a row that was done. The node
is killed once some rows are done, and others are on their way on every node.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from _cluster import nodes
from rich.console import Console

from ostinato.running.results import RunFolder
from ostinato.scale.sweep import RayEngine
from ostinato.tables._render import TableResult
from ostinato.tables.assemble import build_table
from ostinato.tables.request import Request

TIMED = ("img/s",)
METHODS = ("source", "tent", "ostinato:forward-only", "ostinato:robust")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", default="imagenet-c")
    parser.add_argument("--methods", nargs="*", default=METHODS, help="'all' for the usual rows")
    parser.add_argument("--seeds", type=int, nargs="*", default=(2025,))
    parser.add_argument("--limit", type=int, default=50, help="images a corruption")
    parser.add_argument("--batch", type=int, default=10, help="images a batch")
    parser.add_argument("--every", type=int, default=10, help="batches between checkpoints")
    parser.add_argument("--nodes", type=int, default=2, help="fewer than rows")
    parser.add_argument("--carried", action="store_true", help="as if no folder were shared")
    parser.add_argument("--done", type=int, default=1, help="rows that are done before the kill")
    parser.add_argument("--after", type=int, default=12, help="batches of a row it cuts off")
    return parser.parse_args()


def cells(result: TableResult) -> dict[tuple[str, str], str]:
    """What a table says of its measured rows, but for times."""
    return {
        (row.label, f"{heading.group} {heading.name}"): str(value)
        for row in result.rows
        if row.origin == "measured"
        for heading, value in zip(result.headings, row.values, strict=True)
        if heading.name not in TIMED
    }


def records(folder: Path) -> dict[str, list[Any]]:
    """What every run below a folder recorded, but for time and memory."""
    found = [RunFolder.open(path.parent) for path in sorted(folder.glob("*/spec.json"))]
    return {one.hash: [record.content() for record in one.records()] for one in found}


class Killer(threading.Thread):
    """Kills a node once so many rows are done and those on their way have come so far.

    Attributes:
        done: when the summaries were written of rows that were done by then.
        batches: how many batches of every other row were recorded by then.
    """

    def __init__(self, cluster: Any, node: Any, out: Path, given: argparse.Namespace) -> None:
        super().__init__(daemon=True)
        self.cluster, self.node, self.out, self.given = cluster, node, out, given
        self.done: dict[Path, float] = {}
        self.batches: dict[str, int] = {}
        self.killed = threading.Event()

    def run(self) -> None:
        while not (len(self._done()) >= self.given.done and self._busy()):
            time.sleep(0.05)
        self.cluster.remove_node(self.node, allow_graceful=False)
        self.done = {path: path.stat().st_mtime for path in self._done()}
        self.batches = {RunFolder.open(path).hash: _lines(path) for path in self._begun()}
        self.killed.set()

    def _done(self) -> list[Path]:
        return list(self.out.glob("*/summary.json"))

    def _begun(self) -> list[Path]:
        found = [path.parent for path in self.out.glob("*/records.jsonl")]
        return [path for path in found if not (path / "summary.json").exists()]

    def _busy(self) -> bool:
        """Whether there are as many rows on their way as nodes, and all have come far enough."""
        far = [_lines(path) >= self.given.after for path in self._begun()]
        return len(far) >= self.given.nodes and all(far)


def _lines(folder: Path) -> int:
    return (folder / "records.jsonl").read_bytes().count(b"\n")


def main() -> None:
    given, quiet = parse(), Console(quiet=True)
    torch.set_num_threads(1)
    methods = () if given.methods == ["all"] else tuple(given.methods)
    changes = {"data": {"limit": given.limit}, "batch_size": given.batch, "device": "cpu"}
    with tempfile.TemporaryDirectory() as place:

        def request(name: str, engine: RayEngine | None) -> Request:
            return Request(
                methods=methods,
                seeds=tuple(given.seeds),
                changes=changes,
                out=Path(place) / name,
                engine=engine,
            )

        began = time.monotonic()
        plain = build_table(given.table, request("plain", None), quiet)
        print(
            f"plain: {len(records(Path(place) / 'plain'))} rows, {time.monotonic() - began:.0f} s"
        )
        for name, kill in (("cluster", False), ("one node killed", True)):
            with nodes(given.nodes) as (cluster, others):
                engine = RayEngine(every=given.every, carried=given.carried)
                out = Path(place) / name
                killer = Killer(cluster, others[0], out, given)
                if kill:
                    killer.start()
                began = time.monotonic()
                result = build_table(given.table, request(name, engine), quiet)
                seconds = time.monotonic() - began
            report(name, plain, result, Path(place), engine, seconds)
            if kill:
                assert killer.killed.is_set(), "the rows were done before the kill: ask for more"
                touched = sum(path.stat().st_mtime != at for path, at in killer.done.items())
                print(f"  rows done before the kill: {len(killer.done)}, of them run again: "
                      f"{touched}; {again(killer, engine)}")  # fmt: skip


def again(killer: Killer, engine: RayEngine) -> str:
    """How far the rows were that were cut off, and where they went on."""
    found = []
    for digest, done in killer.batches.items():
        starts = engine.rows[digest]["starts"]
        if len(starts) > 1:
            found.append(f"{done} batches done, went on after {starts[-1]}")
    return f"rows cut off: {found or 'none'}"


def report(
    name: str,
    plain: TableResult,
    result: TableResult,
    place: Path,
    engine: RayEngine,
    seconds: float,
) -> None:
    one, two = cells(plain), cells(result)
    differing = [key for key in one if one[key] != two.get(key)]
    mine, theirs = records(place / "plain"), records(place / name)
    same = sum(mine[key] == theirs.get(key) for key in mine)
    starts = [row["starts"] for row in engine.rows.values()]
    print(f"{name}: {len(one)} cells, {len(differing)} differ {differing[:3]}; "
          f"{same} of {len(mine)} rows record the same; {seconds:.0f} s")  # fmt: skip
    print(f"  rows tried more than once went on after batches: {[s for s in starts if len(s) > 1]}")


if __name__ == "__main__":
    main()
