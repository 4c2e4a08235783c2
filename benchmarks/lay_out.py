"""Lay labelled ImageNet images out for the tables, in splits that nothing shares.

    python benchmarks/lay_out.py IMAGES.tar ROOT

IMAGES.tar holds `CLASSINDEX/NAME.jpg`. Below ROOT/imagenet-val come WordNet folders and three
lists: `clean` (statistics and preparation), `tune` (choosing settings) and `test` (reporting).
"""

from __future__ import annotations

import argparse
import tarfile
from pathlib import Path

import torch

from ostinato.data.datasets.labelled import wordnet_ids


def lay_out(archive: Path, root: Path, clean: int, tune: int, seed: int) -> dict[str, int]:
    """Write the folders and the lists; how many images each list names."""
    ids, place, names = wordnet_ids(), root / "imagenet-val", []
    with tarfile.open(archive) as tar:
        members = sorted((m for m in tar if m.name.endswith(".jpg")), key=lambda m: m.name)
        for member in members:
            index, name = Path(member.name).parts[-2:]
            target = place / ids[int(index)] / name
            target.parent.mkdir(parents=True, exist_ok=True)
            data = tar.extractfile(member)
            assert data is not None, member.name
            target.write_bytes(data.read())
            names.append(f"{target.parent.name}/{name}")
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed)).tolist()
    parts = {"clean": order[:clean], "tune": order[clean : clean + tune]}
    parts["test"] = order[clean + tune :]
    for split, chosen in parts.items():
        (place / f"{split}.txt").write_text("".join(f"{names[i]}\n" for i in chosen))
    return {split: len(chosen) for split, chosen in parts.items()}


def main() -> None:
    """Read the arguments and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("archive", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("--clean", type=int, default=300)
    parser.add_argument("--tune", type=int, default=500)
    parser.add_argument("--seed", type=int, default=2025)
    given = parser.parse_args()
    print(lay_out(given.archive, given.root, given.clean, given.tune, given.seed))


if __name__ == "__main__":
    main()
