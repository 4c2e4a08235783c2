"""What a method keeps: refused input, files, copies, memory."""

from __future__ import annotations

import copy
import gc
import pickle
import tempfile
import weakref
from pathlib import Path

import torch
from torch import Tensor

from ostinato.checks._building import Build, run, same, same_state, taken_back
from ostinato.checks._small import CLASSES, SIZE, small_batches
from ostinato.errors import InputError
from ostinato.ops.snapshot import load_state


def check_bad_input(build: Build) -> str | None:
    """Bad input is refused and changes nothing, nor what unwrap gives back."""
    method = build()
    run(method, small_batches(2))
    before = method.export_state().clone()
    for bad in _bad_images():
        for use in (lambda: run(method, [bad]), lambda: method.predict(bad)):  # noqa: B023
            try:
                use()
            except InputError:
                continue
            return f"a batch of shape {tuple(bad.shape)} and type {bad.dtype} was accepted"
    for classes in ([0, 0], [CLASSES], [-1], [0.5], []):
        try:
            method(small_batches(1)[0], classes=torch.tensor(classes))
        except InputError:
            continue
        return f"classes {classes} were accepted"
    if not same_state(before, method.export_state().clone()):
        return "refused input changed the state"
    return taken_back(method)


def _bad_images() -> list[Tensor]:
    good = small_batches(1)[0]
    spoiled, infinite = good.clone(), good.clone()
    spoiled[0, 0, 0, 0], infinite[-1, -1, -1, -1] = float("nan"), float("inf")
    integers = torch.full((2, 3, SIZE, SIZE), 300)
    bad = [spoiled, infinite, good[:0], good[:, :2], good * 300, integers, good[0]]
    return [*bad, good.to_sparse(), good.to("meta"), good - 2]


def check_save_load(build: Build) -> str | None:
    """Save, load and go on gives the same bits as going on."""
    batches = small_batches(9)
    method = build()
    run(method, batches[:5])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        method.save(path, buffers=True)
        fresh = build()
        fresh.load(path)
    agree = same(run(method, batches[5:]), run(fresh, batches[5:]))
    return None if agree else "a loaded run continues differently"


def check_no_images_saved(build: Build) -> str | None:
    """A saved file holds no image buffers unless asked for."""
    method = build()
    declared = [n for n, thing in method._tracked.items() if hasattr(thing, "without_buffers")]
    if not declared:
        return None
    batches = small_batches(9)
    run(method, batches)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        method.save(path)
        fresh = build()
        fresh.load(path)
        state, _ = load_state(path)
    parts = (state.part(name).tensors.items() for name in declared)
    images = [key for part in parts for key, tensor in part if tensor.dtype == torch.uint8]
    if images:
        return f"the file holds images: {images[:3]}"
    answers = ([one.predict(batch) for batch in batches] for one in (method, fresh))
    return None if same(*answers) else "what was loaded without images answers differently"


def check_memory(build: Build) -> str | None:
    """Memory stays bounded when the same domains return."""
    method = build()
    batches = small_batches(6, size=64)  # enough images to fill every buffer in three rounds

    def size() -> int:
        return sum(t.numel() for t in method.export_state().tensors.values())

    sizes = list[int]()
    for _ in range(3):
        run(method, batches)
        sizes.append(size())
        if sizes[-2:] == [sizes[-1]] * 2:
            return None  # a whole round added nothing: what is kept of every batch would have
    settled = sizes[-1]
    for _ in range(2):
        run(method, batches)
    # Snapshots and buffers come and go; what is kept for every batch adds up to far more.
    return None if size() <= 1.25 * settled else f"state grew from {settled} to {size()} numbers"


def check_let_go(build: Build) -> str | None:
    """Once unwrapped and let go of, its memory is free at once."""
    method = build()
    run(method, small_batches(4))
    method.import_state(method.export_state().clone())
    seen, held = weakref.ref(method), gc.isenabled()
    gc.disable()  # which would look for circles, some time
    try:
        method.detach()
        del method
        alive = seen() is not None
    finally:
        if held:
            gc.enable()
    return "parts of it hold it: let them call back by ostinato.ops.borrowed" if alive else None


def check_copies(build: Build) -> str | None:
    """A deep copy and a pickled one go on alike and leave the original alone."""
    batches = small_batches(6)
    method = build()
    run(method, batches[:3])
    before = method.export_state().clone()
    copies = {"deep copy": copy.deepcopy(method)}
    if "<locals>" not in type(method).__qualname__:  # Python pickles no class of a function
        copies["pickle"] = pickle.loads(pickle.dumps(method))
    answers = {what: run(one, batches[3:]) for what, one in copies.items()}
    if not same_state(before, method.export_state().clone()):
        return "running a copy changed the original"
    own = run(method, batches[3:])
    for what, found in answers.items():
        if not same(own, found):
            return f"the {what} goes on differently"
        problem = taken_back(copies[what])
        if problem:
            return f"unwrapping the {what}: {problem}"
    return taken_back(method)
