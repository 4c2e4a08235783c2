"""Count the walk through the code: what one batch, one row of a table and the public names take.

    python benchmarks/walk.py

A call counts when it enters a function of the package; a change is a call into another module than
the call before it.
"""

from __future__ import annotations

import ast
import io
import itertools
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console

import ostinato
from ostinato.data.corruptions import corrupt
from ostinato.data.embedded import STATISTICS, asset_path, embedded_images, embedded_model

HOME = Path(ostinato.__file__).parent
BATCH, BEFORE = 50, 8


class Walk:
    """The functions of the package that were entered, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("ostinato") and frame.f_code.co_name[0] != "<":
            self.calls.append((module, frame.f_code.co_name))

    def of(self, work: Callable[[], object]) -> Walk:
        """Follow one piece of work."""
        sys.setprofile(self)
        try:
            work()
        finally:
            sys.setprofile(None)
        return self

    @property
    def modules(self) -> Counter[str]:
        """Calls into each module."""
        return Counter(module for module, _ in self.calls)

    @property
    def changes(self) -> int:
        """How often the module changes from one call to the next."""
        names = [module for module, _ in self.calls]
        return sum(a != b for a, b in itertools.pairwise(names))

    def times(self, *functions: str) -> int:
        """How often functions of these names were entered."""
        return sum(name in functions for _, name in self.calls)


def one_batch() -> Walk:
    """A batch of a known domain through `robust`."""
    images = embedded_images("test")[0]
    foggy = corrupt(images, "fog", 5, list(range(len(images))), constants="cifar")
    foggy = foggy.float() / 255 if foggy.dtype == torch.uint8 else foggy
    adapted = ostinato.adapt(
        embedded_model("cpu"), preset="robust", statistics=asset_path(STATISTICS)
    )
    for number in range(BEFORE):
        adapted(foggy[number * BATCH % 400 :][:BATCH])
    last = foggy[-BATCH:]
    return Walk().of(lambda: adapted(last))


def one_row() -> Walk:
    """One row of one table with one seed: planned, run, rendered."""
    from ostinato.tables.assemble import build_table
    from ostinato.tables.request import Request

    with tempfile.TemporaryDirectory() as folder:
        data = {"data": {"limit": 5, "domains": ["fog"]}}
        request = Request(methods=("tent",), seeds=(1,), changes=data, out=Path(folder))
        quiet = Console(file=io.StringIO())
        build_table("imagenet-c", request, quiet)  # what is made once for all is made
        again = Request(methods=("tent",), seeds=(1,), changes=data, out=Path(folder), again=True)
        return Walk().of(lambda: build_table("imagenet-c", again, quiet).render("markdown"))


def public_names() -> int:
    """Classes, functions and constants without an underscore, in modules without one."""
    total = 0
    for path in HOME.rglob("*.py"):
        inside = path.relative_to(HOME).parts
        if any(part.startswith("_") and part != "__init__.py" for part in inside):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names: list[str] = []
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.Assign):
                names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names = [node.target.id]
            total += sum(not name.startswith("_") for name in names)
    return total


def main() -> None:
    """Print every count."""
    torch.set_num_threads(1)
    batch = one_batch()
    print(
        f"one batch through robust: {len(batch.calls)} calls in {len(batch.modules)} modules, "
        f"{batch.changes} changes of module"
    )
    print(
        "  " + ", ".join(f"{name.partition('.')[2]} {n}" for name, n in batch.modules.most_common())
    )
    row = one_row()
    print(
        f"one row of one table: {len(row.modules)} modules, spec checked "
        f"{row.times('_look_up')} times, settings resolved {row.times('resolve_config')} times, "
        f"printed figures read {row.times('printed')} times"
    )
    print("  " + ", ".join(sorted(name.partition(".")[2] for name in row.modules)))
    print(f"public names: {public_names()}")


if __name__ == "__main__":
    main()
