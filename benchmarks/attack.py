"""An attack on files, processes and inputs: what gets through, what breaks, what is left behind.

    python benchmarks/attack.py --mutations 500 --kills 20 --inputs 100

State files are damaged byte by byte, and changed and signed again; saves and runs are killed; the
command gets inputs that it has to refuse. The table at the end should hold noughts alone.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from attack_inputs import make_inputs
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import ostinato
from ostinato.bench.results import RunFolder
from ostinato.bench.runner import run
from ostinato.bench.spec import Spec
from ostinato.checks import small_batches, small_model
from ostinato.errors import OstinatoError, StateError
from ostinato.methods.base import Method
from ostinato.ops import snapshot
from ostinato.ops.snapshot import State, load_state, save_state

METHODS = ("tent", "cotta", "rotta", "sar")
TINY: dict[str, Any] = {
    "method": "tent", "stream": "recurring", "batch_size": 4, "device": "cpu",
    "data": {"domains": ["fog", "contrast"], "limit": 12, "rounds": 2},
}  # fmt: skip


@dataclass
class Count:
    """One row of the table."""

    name: str
    tried: int = 0
    accepted: int = 0
    tracebacks: int = 0
    leftovers: int = 0
    changed: int = 0


def state_attack(tries: int, draw: random.Random, place: Path) -> list[Count]:
    """Half of the files are damaged, half changed and signed again."""
    damaged, signed = Count("state files, damaged"), Count("state files, signed again")
    for number, name in enumerate(METHODS):
        method = ostinato.adapt(small_model(), name)
        for batch in small_batches(3):
            method(batch)
        path = place / f"{name}.safetensors"
        method.save(path)
        share = tries // len(METHODS) + (number < tries % len(METHODS))
        for turn in range(share):
            target = place / "attacked.safetensors"
            if turn % 2:
                _damage(path, target, draw)
                _try_state(method, target, damaged, path)
            else:
                _sign_again(path, target, draw)
                _try_state(method, target, signed, None)
    return [damaged, signed]


def _try_state(method: Method, target: Path, count: Count, original: Path | None) -> None:
    before = method.export_state().clone()
    count.tried += 1
    try:
        method.load(target)
    except StateError:
        count.changed += not _same(before, method.export_state())
    except Exception:
        count.tracebacks += 1
        traceback.print_exc()
    else:
        # Damage that leaves every name and number as it was (a blank in a header) is none.
        wrong = original is None or not _same(load_state(original)[0], method.export_state())
        count.accepted += wrong
        method.import_state(before)


def _same(one: State, other: State) -> bool:
    if one.tensors.keys() != other.tensors.keys() or one.values != other.clone().values:
        return False
    return all(_equal(t, other.tensors[n]) for n, t in one.tensors.items())


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def _damage(path: Path, target: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    way = draw.randrange(4)
    if way == 0:
        data = data[: draw.randrange(len(data))]
    elif way == 1:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif way == 2:
        data[draw.randrange(min(4000, len(data)))] ^= 1 << draw.randrange(8)
    else:
        start = draw.randrange(len(data))
        data[start : start + draw.randrange(1, 64)] = draw.randbytes(draw.randrange(64))
    target.write_bytes(bytes(data))


def _sign_again(path: Path, target: Path, draw: random.Random) -> None:
    with safe_open(str(path), framework="pt") as file:
        meta = file.metadata()
    tensors = load_file(path)
    draw.choice(CHANGES)(tensors, meta, draw)
    meta["digest"] = snapshot._digest(tensors, meta)
    save_file({k: t.contiguous() for k, t in tensors.items()}, target, metadata=meta)


def _some(tensors: dict[str, Tensor], draw: random.Random) -> str:
    return draw.choice([k for k, t in tensors.items() if t.is_floating_point() and t.numel()])


def _spoil(tensors: dict[str, Tensor], meta: dict[str, str], draw: random.Random) -> None:
    name = _some(tensors, draw)
    flat = tensors[name].clone().reshape(-1)
    flat[draw.randrange(len(flat))] = draw.choice([float("nan"), float("inf"), float("-inf")])
    tensors[name] = flat.reshape(tensors[name].shape)


def _reshape(tensors: dict[str, Tensor], meta: dict[str, str], draw: random.Random) -> None:
    name = draw.choice(list(tensors))
    one = tensors[name]
    tensors[name] = draw.choice([one[None], torch.cat([one.reshape(-1), one.reshape(-1)])])


def _retype(tensors: dict[str, Tensor], meta: dict[str, str], draw: random.Random) -> None:
    name = _some(tensors, draw)
    tensors[name] = tensors[name].to(draw.choice([torch.float64, torch.float16, torch.int32]))


def _drop(tensors: dict[str, Tensor], meta: dict[str, str], draw: random.Random) -> None:
    del tensors[draw.choice(list(tensors))]


def _add(tensors: dict[str, Tensor], meta: dict[str, str], draw: random.Random) -> None:
    part = draw.choice(list(tensors)).partition("/")[0]
    tensors[f"{draw.choice([part, 'more'])}/extra"] = torch.zeros(draw.randrange(1, 5))


def _word(tensors: dict[str, Tensor], meta: dict[str, str], draw: random.Random) -> None:
    """A wrong version, header or set of values, still a valid file."""
    key = draw.choice(["version", "values", "header"])
    words = ["1.0", "x", "", "2", "[]", "null", "{}", '{"counters": {"steps": -1}}', "[" * 9999]
    meta[key] = draw.choice(words)


CHANGES: tuple[Callable[[dict[str, Tensor], dict[str, str], random.Random], None], ...] = (
    _spoil, _reshape, _retype, _drop, _add, _word,
)  # fmt: skip


def kill_attack(kills: int, draw: random.Random, place: Path) -> list[Count]:
    """Half of the kills hit saves, half hit a run."""
    saves, runs = Count("kills during save"), Count("kills during run")
    path = place / "killed.safetensors"
    states = [State({"a": torch.full((200_000,), float(n))}, {"n": n}) for n in range(2)]
    for _ in range(kills - kills // 2):
        save_state(path, states[0], {})
        _killed(lambda: [save_state(path, states[n % 2], {}) for n in range(10_000)], draw, 0.05)
        saves.tried += 1
        try:
            found, _ = load_state(path)
            saves.accepted += not _same(found, states[int(found.values["n"])])
        except OstinatoError:
            saves.accepted += 1
        save_state(path, states[0], {})
        saves.leftovers += sum(p.suffix == ".tmp" for p in place.iterdir())
    spec = Spec.parse(TINY)
    (whole,) = run(spec, out=place / "whole", quiet=True)
    wanted = [record.content() for record in whole.records()]
    for number in range(kills // 2):
        out = place / f"run{number}"
        _killed(lambda: run(spec, out=out, every=2, quiet=True), draw, 1.5)  # noqa: B023
        runs.tried += 1
        try:
            (again,) = run(spec, out=out, every=2, quiet=True)
            runs.accepted += [r.content() for r in RunFolder.open(again.path).records()] != wanted
        except Exception:
            runs.tracebacks += 1
            traceback.print_exc()
        runs.leftovers += len(list(out.glob("**/*.tmp")))
    return [saves, runs]


def _killed(work: Callable[[], Any], draw: random.Random, most: float) -> None:
    child = os.fork()
    if child == 0:
        with contextlib.redirect_stderr(io.StringIO()):
            work()
        os._exit(0)
    time.sleep(draw.random() * most)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def cli_attack(tries: int, draw: random.Random, place: Path) -> list[Count]:
    """Each input in a process of its own, with a bound on memory."""
    count = Count("command inputs")
    prepared = make_inputs(place)
    for number in range(tries):
        arguments = prepared[number] if number < len(prepared) else _junk(prepared, draw, place)
        status, text = _call(arguments, place)
        count.tried += 1
        broken = "Traceback" in text or status not in (0, 1, 2)
        count.tracebacks += broken
        count.accepted += status == 0
        if broken or status == 0:
            print(f"status {status}: {' '.join(arguments)[:200]}\n{text[-600:]}", file=sys.stderr)
    return [count]


def _call(arguments: list[str], place: Path) -> tuple[int, str]:
    said = place / "said.txt"
    child = os.fork()
    if child == 0:
        import resource

        from ostinato.cli import main

        handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 30), used + (3 << 30)))
        status = 0
        try:
            main(arguments)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
            status = 3
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, said.read_text(errors="replace")


def _junk(known: list[list[str]], draw: random.Random, place: Path) -> list[str]:
    """A random file as a spec, a checkpoint or an image, or a known input with noise in it."""
    path = place / f"junk{draw.choice(['.yaml', '.pth', '.safetensors', ''])}"
    path.write_bytes(draw.randbytes(draw.randrange(1, 3000)))
    if path.suffix in (".pth", ".safetensors"):
        return [
            "run",
            "--model",
            "vit_tiny_patch16_224",
            "--weights",
            str(path),
            "--out",
            "/proc/x",
        ]
    if draw.random() < 0.5:
        return ["run", str(path)]
    words = list(draw.choice(known))
    words[draw.randrange(len(words))] += draw.choice(["\ud7ff", "=", "/", "[", "\u202e", "-1"])
    return [*words, "--no-such-flag"]


def show(rows: list[Count]) -> str:
    heads = ("", "tried", "wrong accepted", "tracebacks", "leftovers", "changed by a refusal")
    lines = [heads] + [
        (r.name, *map(str, (r.tried, r.accepted, r.tracebacks, r.leftovers, r.changed)))
        for r in rows
    ]
    widths = [max(len(line[n]) for line in lines) for n in range(len(heads))]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(x, widths, strict=True)) for x in lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("mutations", 500), ("kills", 20), ("inputs", 100), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    draw = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        rows = [*state_attack(given.mutations, draw, place), *kill_attack(given.kills, draw, place)]
        rows += cli_attack(given.inputs, draw, place)
    print(show(rows))
    return int(any(r.accepted or r.tracebacks or r.leftovers or r.changed for r in rows))


if __name__ == "__main__":
    sys.exit(main())
