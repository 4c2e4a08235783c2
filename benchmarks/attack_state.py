"""State files, damaged byte by byte, or changed and signed again."""

from __future__ import annotations

import json
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from attack_count import Count
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ostinato.checks import small_batches
from ostinato.checks._building import builder
from ostinato.errors import StateError
from ostinato.methods.base import Method
from ostinato.ops import snapshot
from ostinato.ops.snapshot import State, load_state
from ostinato.registry import METHODS as REGISTERED

METHODS = (
    "ostinato", "dual_expert", "tent", "cotta", "rotta", "sar", "t3a", "neo", "cola", "reservoir",
    "dpcore", "kff", "eata", "roid",
)  # fmt: skip
LOOSE = ("latest", "recent", "pending")
"""Tensors that a state may have or not have: files without images have none."""


def state_attack(tries: int, draw: random.Random, place: Path) -> list[Count]:
    """Half of the files are damaged, half changed and signed again."""
    damaged, signed = Count("state files, damaged"), Count("state files, signed again")
    for number, name in enumerate(METHODS):
        method = builder(name, REGISTERED[name], {})()
        for batch in small_batches(6):
            method(batch)
        path = place / f"{name}.safetensors"
        method.save(path, buffers=number % 2 == 0)
        share = tries // len(METHODS) + (number < tries % len(METHODS))
        for turn in range(share):
            target = place / "attacked.safetensors"
            if turn % 2:
                _damage(path, target, draw)
                _try_state(method, target, damaged, path)
            else:
                told = _sign_again(path, target, draw)
                _try_state(method, target, signed, None, told)
    return [damaged, signed]


def _try_state(
    method: Method, target: Path, count: Count, original: Path | None, told: str = ""
) -> None:
    before = method.export_state().clone()
    count.tried += 1
    try:
        method.load(target)
    except StateError:
        count.changed += not same(before, method.export_state())
    except Exception:
        count.tracebacks += 1
        traceback.print_exc()
    else:
        # Damage that leaves every name and number as it was (a blank in a header) is none.
        wrong = original is None or not same(load_state(original)[0], method.export_state())
        count.accepted += wrong
        if wrong:
            print(f"accepted: {method.name}, {told}", file=sys.stderr)
        method.import_state(before)


def same(one: State, other: State) -> bool:
    """Whether two states are the same to the bit."""
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


def _sign_again(path: Path, target: Path, draw: random.Random) -> str:
    """Change something, sign the file again, and say what was changed."""
    with safe_open(str(path), framework="pt") as file:
        meta = file.metadata()
    tensors = load_file(path)
    told = draw.choice(CHANGES)(tensors, meta, draw)
    meta["digest"] = snapshot._digest(tensors, meta)
    save_file({k: t.contiguous() for k, t in tensors.items()}, target, metadata=meta)
    return told


def _some(tensors: dict[str, Tensor], draw: random.Random) -> str:
    return draw.choice([k for k, t in tensors.items() if t.is_floating_point() and t.numel()])


def _spoil(tensors: dict[str, Tensor], meta: dict[str, str], draw: random.Random) -> str:
    name = _some(tensors, draw)
    flat = tensors[name].clone().reshape(-1)
    flat[draw.randrange(len(flat))] = draw.choice([float("nan"), float("inf"), float("-inf")])
    tensors[name] = flat.reshape(tensors[name].shape)
    return f"a number of {name}"


def _reshape(tensors: dict[str, Tensor], meta: dict[str, str], draw: random.Random) -> str:
    name = draw.choice(list(tensors))
    one = tensors[name]
    tensors[name] = draw.choice([one[None], torch.cat([one.reshape(-1), one.reshape(-1)])])
    return f"the shape of {name}, {tuple(one.shape)} to {tuple(tensors[name].shape)}"


def _retype(tensors: dict[str, Tensor], meta: dict[str, str], draw: random.Random) -> str:
    name = _some(tensors, draw)
    was = tensors[name].dtype
    others = [kind for kind in (torch.float64, torch.float16, torch.int32) if kind != was]
    tensors[name] = tensors[name].to(draw.choice(others))
    return f"the type of {name}"


def _drop(tensors: dict[str, Tensor], meta: dict[str, str], draw: random.Random) -> str:
    name = draw.choice([name for name in tensors if not name.endswith(LOOSE)])
    del tensors[name]
    return f"{name} was dropped"


def _add(tensors: dict[str, Tensor], meta: dict[str, str], draw: random.Random) -> str:
    part = draw.choice(list(tensors)).partition("/")[0]
    name = f"{draw.choice([part, 'more'])}/extra"
    tensors[name] = torch.zeros(draw.randrange(1, 5))
    return f"{name} was added"


def _word(tensors: dict[str, Tensor], meta: dict[str, str], draw: random.Random) -> str:
    """A wrong version, header or set of values, still a valid file."""
    key = draw.choice(["version", "values", "header"])
    words = ["1.0", "x", "", "2", "[]", "null", "{}", '{"counters": {"steps": -1}}', "[" * 9999]
    meta[key] = draw.choice([word for word in words if word != meta[key]])
    return f"{key} became {meta[key][:40]}"


def _value(tensors: dict[str, Tensor], meta: dict[str, str], draw: random.Random) -> str:
    """One value of another kind, anywhere in the state."""
    values = json.loads(meta["values"])
    places = list(_places(values))
    holder, key = draw.choice(places)
    was = holder[key]
    wrong = [word for word in ("x", {"a": 1}, [[]], -7.5) if type(word) is not type(was)]
    holder[key] = draw.choice(wrong)
    meta["values"] = json.dumps(values)
    return f"the value {key}, {was!r:.40} to {holder[key]!r}"


def _places(values: Any) -> Iterator[tuple[Any, Any]]:
    items = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in items:
        yield values, key
        if isinstance(value, dict | list):
            yield from _places(value)


CHANGES: tuple[Callable[[dict[str, Tensor], dict[str, str], random.Random], str], ...] = (
    _spoil, _reshape, _retype, _drop, _add, _word, _value,
)  # fmt: skip
