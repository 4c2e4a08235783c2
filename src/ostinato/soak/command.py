"""What ends a soak: its page and its numbers; and what one may ask for."""

from __future__ import annotations

import json
from pathlib import Path

from ostinato.errors import ConfigError

PAGE, NUMBERS = "soak.html", "soak.json"


def check_amounts(hours: float | None, batches: int | None, jobs: int) -> None:
    """Refuse what is no length of a soak, or no number of pieces."""
    if hours is None and batches is None:
        raise ConfigError("Say how long: --hours 1, --batches 10000, or both.")
    if (hours is not None and not 0 < hours < 1e6) or (batches is not None and batches < 1):
        raise ConfigError("--hours and --batches take numbers above 0.")
    if not 1 <= jobs <= 256 or (batches is not None and batches < jobs):
        raise ConfigError("--jobs takes 1 to 256, and no more than there are batches.")


def write_page(folders: tuple[Path, ...], out: Path) -> bool:
    """The page and the numbers of one or more pieces; whether everything holds."""
    from ostinato.ops.files import write_atomically
    from ostinato.soak._page import render
    from ostinato.soak._tenths import as_json, check_alike, read_piece, verdicts

    pieces = [read_piece(folder) for folder in folders]
    check_alike(pieces)
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
