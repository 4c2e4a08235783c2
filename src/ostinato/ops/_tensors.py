"""Tensors in a file: what is read is a copy, nothing of the file stays behind, damage shows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import load
from torch import Tensor


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, and what is written beside them.

    All of it is read at once. The library's own way maps the file into memory: tensors would follow
    what is written into it later, hold all of it for as long as one of them lives, and leave some
    bytes behind for every tensor read. Damaged files raise what the library raises.
    """
    data = Path(path).read_bytes()
    tensors: dict[str, Tensor] = load(data)  # checks the header too
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return tensors, dict(header.get("__metadata__") or {})


def digest(tensors: dict[str, Tensor], text: str) -> str:
    """A SHA-256 of tensors on the CPU, their names, types and shapes, and a text beside them.

    >>> digest({"a": torch.zeros(2)}, "") == digest({"a": torch.zeros(1, 2)}, "")
    False
    """
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        total.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
