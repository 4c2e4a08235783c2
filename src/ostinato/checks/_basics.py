"""What every method does on an ordinary stream."""

from __future__ import annotations

import torch

from ostinato.checks._building import Build, run, same, taken_back
from ostinato.checks._small import CLASSES, small_batches


def check_learns(build: Build) -> str | None:
    """It learns from the suite's own stream, so that the other checks see it learn."""
    method = build()
    if not method.trained():
        return None
    before = {k: t.clone() for k, t in method.export_state().tensors.items() if _moves(k)}
    for batch in small_batches(9):
        run(method, [batch])
        if method.last is not None and method.last.updated:
            return None  # some start every batch afresh
    after = {k: t for k, t in method.export_state().tensors.items() if _moves(k)}
    if before.keys() == after.keys() and all(torch.equal(t, after[k]) for k, t in before.items()):
        return "nothing moved: give settings under which it does (`example` of its class)"
    return None


def _moves(name: str) -> bool:
    return name.partition("/")[0] not in ("counters", "random")


def check_inputs_unchanged(build: Build) -> str | None:
    """Images are left as they were."""
    batches = small_batches(2)
    before = [batch.clone() for batch in batches]
    run(build(), batches)
    return None if same(batches, before) else "the method wrote into its input"


def check_only_declared_move(build: Build) -> str | None:
    """Only declared parameters move."""
    method = build()
    declared = {id(p) for p in (method.weights.parameters.values() if method.weights else ())}
    watched = [
        (name, p, p.detach().clone())
        for name, p in method.model.base.named_parameters()
        if id(p) not in declared and any(p is known for known in method._flags.parameters())
    ]
    run(method, small_batches(4))
    moved = [name for name, p, old in watched if not torch.equal(p, old)]
    return f"undeclared parameters moved: {moved[:3]}" if moved else None


def check_labels_never_seen(build: Build) -> str | None:
    """A true domain name has no effect unless declared."""
    method = build()
    if "domain labels" in method.needs(method.config):
        return None
    plain = run(method, small_batches(4))
    told = build()
    hinted = [told.step(b, oracle=f"d{i}").logits for i, b in enumerate(small_batches(4))]
    return None if same(plain, hinted) else "the domain's name changed the result"


def check_reset(build: Build) -> str | None:
    """Reset is exact."""
    method, batches = build(), small_batches(7)
    first = run(method, batches)
    method.reset()
    return None if same(first, run(method, batches)) else "a reset run differs from a fresh one"


def check_repeatable(build: Build) -> str | None:
    """Seeded runs repeat."""
    batches = small_batches(7)
    return None if same(run(build(), batches), run(build(), batches)) else "two runs differ"


def check_batch_of_one(build: Build) -> str | None:
    """A batch of one image works."""
    outputs = run(build(), small_batches(8, size=1))
    good = all(o.shape == (1, CLASSES) and bool(o.isfinite().all()) for o in outputs)
    return None if good else "logits of a single image are not finite or of the wrong shape"


def check_bf16(build: Build) -> str | None:
    """bf16 agrees with fp32."""
    batch = small_batches(1)[0]
    full, half = (run(build(precision=p), [batch])[0] for p in ("fp32", "bf16"))
    gap = float((full - half).norm() / full.norm())
    return None if gap < 0.05 else f"relative difference of the first logits is {gap:.3f}"


def check_no_grad_callers(build: Build) -> str | None:
    """Callers under no_grad and inference_mode get the same result."""
    batches = small_batches(3)
    plain = run(build(), batches)
    with torch.no_grad():
        quiet = run(build(), batches)
    method = build()
    with torch.inference_mode():
        inference = run(method, [batch.clone() for batch in batches])
    agree = same(plain, quiet) and same(plain, [o.clone() for o in inference])
    return None if agree else "results depend on the caller's grad mode"


def check_unwrap(build: Build) -> str | None:
    """Unwrap gives the source model back, bit for bit."""
    method = build()
    run(method, small_batches(4))
    return taken_back(method)
