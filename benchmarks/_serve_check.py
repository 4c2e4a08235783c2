"""Whether a server's answers are the library's: made again from its event log."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import torch
from _serving import Note


def check(folder: Path, given: argparse.Namespace, bodies: list[bytes], notes: list[Note]) -> None:
    """Kept answers against the library at the version they name; snapshots to the bit."""
    from ostinato import adapt
    from ostinato.data.embedded import STATISTICS, asset_path, embedded_model
    from ostinato.serve.loading import load_served
    from ostinato.serve.replaying import _read_lives, _split_version, verify
    from ostinato.serve.settings import Settings
    from ostinato.serve.store import Store

    torch.set_num_threads(given.threads)
    chosen = Settings.from_yaml(folder / "serve.yaml")
    store = Store(chosen.data)
    served = load_served(chosen)
    worst, compared, same, snapshots = 0.0, 0, 0, 0
    for name in [f"cam-{at}" for at in range(given.checked)]:
        row = next(one for one in store.streams() if one.name == name)
        lives = _read_lives(store.events(row.id, most=10**9))
        wanted: dict[tuple[str, int], list[Note]] = {}
        for note in notes:
            if note.stream == name and note.answer is not None:
                wanted.setdefault(_split_version(note.version), []).append(note)
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
