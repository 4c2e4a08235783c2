"""`ostinato prepare`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

from ostinato.cli._command import command
from ostinato.cli._words import (
    Count,
    Given,
    Name,
    Named,
    Number,
    Origin,
    Place,
    Weights,
    Words,
    Written,
)
from ostinato.errors import ConfigError

_STATISTICS = "statistics"
"""What to prepare for methods that need source statistics."""


@command("prepare", "METHOD: make what it needs from source images; a file", "methods")
def prepare_command(
    method: Named,
    /,
    *,
    model: Given,
    data: Origin,
    out: Written,
    weights: Weights = None,
    num_classes: Number = None,
    root: Place = None,
    images: Number = None,
    normalize: Literal["model", "none", "input"] = "model",
    transform: Name = None,
    preset: Name = None,
    settings: Words = (),
    seed: Count = 0,
    device: Given = "auto",
) -> None:
    """Make what a method needs from source images before deployment, and write it to a file.

    Args:
        method: a registered method, or 'statistics' for source statistics.
        model: 'embedded', a timm name with its tag, or a Hugging Face name.
        data: a folder of class folders, a data set, DATASET:SPLIT, or an npz file.
        out: the file to write, for ostinato.adapt(model, METHOD, prepared=FILE).
        weights: a checkpoint file, or 'random'.
        num_classes: outputs of a timm model, where not its usual number.
        root: the folder that holds the data set; OSTINATO_DATA unless given.
        images: how many to take; 500 unless given, or all where there are fewer.
        normalize: the input convention.
        transform: resizing by name; chosen by the model's input size unless given.
        preset: the method's named settings.
        settings: single settings of the method, such as warm_steps=500.
        seed: of the choice of images, and of the method.
        device: cpu, cuda or auto.
    """
    from ostinato.methods.contract import choose_method
    from ostinato.models.loading import check_model, load_model
    from ostinato.running.devices import resolve_device
    from ostinato.running.source_images import load_source, open_source
    from ostinato.running.spec import Spec, parse_pairs

    given = {"seed": seed, **parse_pairs(settings)}
    config = _check_preparation(method, preset, given, out)
    wanted = {"model": model, "weights": weights, "num_classes": num_classes}
    spec = Spec.parse({**wanted, "normalize": normalize, "device": resolve_device(device)})
    check_model(spec)
    dataset = open_source(data, root)
    source = load_model(spec)
    taken = load_source(
        dataset, source, count=images, transform=transform, normalize=normalize, seed=seed
    )
    if taken.note and method != _STATISTICS:
        print(f"note: {taken.note}", file=sys.stderr)
    facts: dict[str, Any] = {
        "model": model,
        "weights": weights,
        "normalize": normalize,
        "data": data,
    }
    facts |= {"transform": taken.transform, "images": len(taken.images), "seed": seed}
    _write(method, source, taken, config, facts, out)
    key = "statistics" if method == _STATISTICS else "prepared"
    name = choose_method(None, None, statistics=True)[0] if method == _STATISTICS else method
    print(f"{out}: {key} from {len(taken.images)} images, transform {taken.transform}")
    print(f"use it with ostinato.adapt(model, {name!r}, {key}={str(out)!r})")


def _check_preparation(method: str, preset: str | None, settings: dict[str, Any], out: Path) -> Any:
    """The method's config; refuse what cannot work before anything is loaded."""
    from ostinato.methods.base import Method
    from ostinato.methods.contract import resolve_config
    from ostinato.ops.files import check_writable
    from ostinato.registry import METHODS

    check_writable(out)
    if method == _STATISTICS:
        if preset is not None or set(settings) > {"seed"}:
            raise ConfigError("Source statistics have no preset and no settings: leave them out.")
        return None
    kind = METHODS[method]
    config = resolve_config(kind, preset, settings)
    if getattr(kind.prepare, "__func__", None) is getattr(Method.prepare, "__func__", None):
        able = [n for n in kind.presets if _wants_statistics(kind, n)]
        hint = f" Its preset {able[0]} takes 'ostinato prepare statistics'." if able else ""
        raise ConfigError(f"{method} needs no preparation.{hint}")
    return config


def _wants_statistics(kind: Any, preset: str) -> bool:
    from ostinato.methods.contract import resolve_config

    return "source statistics" in kind.needs(resolve_config(kind, preset, {}))


def _write(
    method: str, model: Any, taken: Any, config: Any, facts: dict[str, Any], out: Path
) -> None:
    from ostinato.api import collect_statistics, prepare
    from ostinato.models import fingerprint
    from ostinato.ops.snapshot import save_state

    normalize = facts["normalize"]
    if method == _STATISTICS:
        collect_statistics(model, taken.images, normalize=normalize).save(out)
        return
    plain = config.model_dump(mode="json")
    header = {"kind": "prepared", "method": method, "settings": plain, **facts}
    header["fingerprint"] = fingerprint(model)
    labels = taken.labels
    if labels is not None:
        labels = labels.to(next(model.parameters()).device)
    try:
        state = prepare(model, method, taken.images, labels, normalize=normalize, **plain)
    except RuntimeError as error:  # shapes that the method does not expect of a model
        raise ConfigError(
            f"{method} cannot be prepared on {facts['model']}: {str(error)[:160]}"
        ) from error
    save_state(out, state, header)
    _tell_gain(state)


def _tell_gain(state: Any) -> None:
    """Whether a warm-up helped images it was not trained on."""
    gain = state.values.get("held out")
    if gain is None:
        return
    line = f"loss on {gain['images']} held-out images: {gain['before']:.3f}"
    if gain["after"] < gain["before"]:
        print(f"{line} before the warm-up, {gain['after']:.3f} after")
    else:
        print(f"{line}; the warm-up made it no better, so the start without effect is kept")
