"""`ostinato soak`: run, go on, join pieces; a page and its numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ostinato.cli_words import Count, Folders, Given, Hours, Name, Number, Out
from ostinato.errors import ConfigError

PAGE, NUMBERS = "soak.html", "soak.json"


def soak_command(
    *,
    hours: Hours = None,
    batches: Number = None,
    out: Out = Path("ostinato-soak"),
    method: Given = "ostinato",
    preset: Name = None,
    seed: Count = 0,
    kills: Count = 10,
    jobs: Count = 1,
    join: Folders = (),
) -> None:
    """Adapt the embedded model for hours, with reloads and kills; write a page about it.

    The same command goes on where it was stopped.

    Args:
        hours: how long this call may take.
        batches: how many batches in all; what comes first, hours or batches, ends it.
        out: folder for state, log, page (soak.html) and numbers (soak.json).
        method: a registered method.
        preset: its named settings.
        seed: of traffic, kills and method.
        kills: how often a piece's process is killed (every 1,000 batches without --batches).
        jobs: pieces that run side by side with a seed each and share the batches; the first of
            several is never killed, so that its memory is watched from beginning to end.
        join: folders of pieces from elsewhere; runs nothing, writes one page about all of them.
    """
    from ostinato.soak.pieces import run_pieces
    from ostinato.soak.plan import Plan

    if join:
        raise SystemExit(0 if write_page(join, out) else 1)
    _check(hours, batches, jobs)
    plan = Plan.parse({"method": method, "preset": preset, "seed": seed})
    seconds = None if hours is None else 3600 * hours
    try:
        folders = run_pieces(out, plan, jobs, batches=batches, seconds=seconds, kills=kills)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on", file=sys.stderr)
        raise SystemExit(130) from None
    raise SystemExit(0 if write_page(folders, out) else 1)


def _check(hours: float | None, batches: int | None, jobs: int) -> None:
    if hours is None and batches is None:
        raise ConfigError("Say how long: --hours 1, --batches 10000, or both.")
    if (hours is not None and not 0 < hours < 1e6) or (batches is not None and batches < 1):
        raise ConfigError("--hours and --batches take numbers above 0.")
    if not 1 <= jobs <= 256 or (batches is not None and batches < jobs):
        raise ConfigError("--jobs takes 1 to 256, and no more than there are batches.")


def write_page(folders: tuple[Path, ...], out: Path) -> bool:
    """The page and the numbers of one or more pieces; whether everything holds."""
    from ostinato.ops.files import write_atomically
    from ostinato.soak.page import render
    from ostinato.soak.tenths import as_json, read_piece, verdicts

    pieces = [read_piece(folder) for folder in folders]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError(f"{out} is a file: name a folder with --out.") from None
    write_atomically(out / NUMBERS, json.dumps(as_json(pieces), indent=1).encode())
    write_atomically(out / PAGE, render(pieces).encode())
    found = verdicts(pieces)
    for name, (holds, text) in found.items():
        print(f"{'ok  ' if holds else 'FAIL'} {name}: {text}")
    print(out / PAGE)
    return all(holds for holds, _ in found.values())
