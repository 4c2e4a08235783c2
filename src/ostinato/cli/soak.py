"""`ostinato soak`."""

from __future__ import annotations

import sys
from pathlib import Path

from ostinato.cli._command import command
from ostinato.cli._words import Count, Folders, Given, Hours, Name, Number, Out


@command("soak", "adapt for hours with reloads and kills; a page about what broke", "measuring")
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
    from ostinato.soak.command import check_amounts, write_page
    from ostinato.soak.pieces import run_pieces
    from ostinato.soak.plan import Plan

    if join:
        raise SystemExit(0 if write_page(join, out) else 1)
    check_amounts(hours, batches, jobs)
    plan = Plan.parse({"method": method, "preset": preset, "seed": seed})
    seconds = None if hours is None else 3600 * hours
    try:
        folders = run_pieces(out, plan, jobs, batches=batches, seconds=seconds, kills=kills)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on", file=sys.stderr)
        raise SystemExit(130) from None
    raise SystemExit(0 if write_page(folders, out) else 1)
