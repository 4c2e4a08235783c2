"""Inputs that the command has to refuse, each in a process of its own with a bound on memory."""

from __future__ import annotations

import os
import random
import sys
import traceback
from pathlib import Path

from attack_count import Count
from attack_inputs import make_inputs


def cli_attack(numbers: range, draw: random.Random, place: Path) -> list[Count]:
    """The prepared inputs by number, and random ones above them."""
    count = Count("command inputs")
    prepared = make_inputs(place)
    for number in numbers:
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
