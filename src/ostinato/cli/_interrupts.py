"""Ending well when a run is interrupted."""

from __future__ import annotations

import sys
from typing import Any


def gently(work: Any) -> Any:
    """Ctrl-C ends with the command that goes on, and the exit status of an interrupt."""
    from ostinato.running.runner import Interrupted

    try:
        return work()
    except Interrupted as stop:
        print(f"\n{stop}", file=sys.stderr)
        raise SystemExit(130) from None
