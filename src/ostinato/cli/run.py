"""`ostinato run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ostinato.cli._command import command
from ostinato.cli._engine import Address, Asked, Where, engine_of, run_elsewhere
from ostinato.cli._interrupts import gently
from ostinato.cli._words import (
    Count,
    Data,
    Folder,
    Name,
    Normalize,
    Number,
    Out,
    Precision,
    Seeds,
    Source,
    Spec,
    Weights,
    Words,
)
from ostinato.errors import ConfigError


@command("run", "SPEC | RUN: run a method on a stream, or go on with a run", "benchmark")
def run_command(
    spec: Spec = None,
    /,
    *,
    model: Name = None,
    weights: Weights = None,
    normalize: Normalize = None,
    stream: Name = None,
    data: Data = (),
    root: Folder = None,
    method: Name = None,
    preset: Name = None,
    settings: Words = (),
    statistics: Source = None,
    prepared: Source = None,
    clean: Name = None,
    seeds: Seeds = (),
    batch_size: Number = None,
    device: Name = None,
    precision: Precision = None,
    set: Words = (),
    out: Out = Path("runs"),
    again: bool = False,
    every: Count = 50,
    engine: Where = "local",
    address: Address = None,
    resources: Asked = (),
) -> None:
    """Run a method on a stream, or go on with a run that was interrupted.

    Under torchrun, all processes do one run together.

    Args:
        spec: a YAML file of settings, or the folder of a run to go on with.
        model: 'embedded', a timm name with its tag, or a Hugging Face name.
        weights: a checkpoint file, or 'random'.
        normalize: the input convention.
        stream: a registered stream.
        data: your own images (folder:DIR, a folder of class folders; several are several domains),
            a data set (NAME or NAME:SPLIT), and settings such as limit=500 domains=[fog,snow].
        root: the folder that holds the data sets, or 'embedded' for the package's own images.
        method: a registered method.
        preset: the method's named settings.
        settings: single settings of the method, such as lr=1e-3 discriminator.kind=oracle.
        statistics: a file, 'embedded', or a number of clean images.
        prepared: a file, or a number of clean images.
        clean: the data set that clean images come from.
        seeds: one run for each.
        batch_size: images a batch.
        device: cpu, cuda or auto.
        precision: fp32, tf32 or bf16.
        set: any other setting of the spec.
        out: where the runs' folders go.
        again: run even what is complete already.
        every: batches between checkpoints.
        engine: local, or ray: every seed a task of a Ray cluster (docs/scale.md).
        address: of that cluster; one of this machine alone is started unless given.
        resources: of one run there, as cpu=4 gpu=0.5 memory=16 (GiB).
    """
    from ostinato.running.results import RunFolder
    from ostinato.running.runner import as_asked, resume, run, together
    from ostinato.running.spec import parse_data, parse_pairs

    given: dict[str, Any] = {
        "model": model,
        "weights": weights,
        "normalize": normalize,
        "stream": stream,
        "data": parse_data(data) or None,
        "roots": root,
        "method": method,
        "preset": preset,
        "settings": parse_pairs(settings) or None,
        "statistics": _count_or_path(statistics),
        "prepared": _count_or_path(prepared),
        "clean": clean,
        "seeds": seeds or None,
        "batch_size": batch_size,
        "device": device,
        "precision": precision,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    changes |= parse_pairs(set)
    far = engine_of(engine, address, resources, every)

    def work(leader: Any) -> Any:
        if spec is None or not spec.is_dir():
            wanted = _spec(spec, changes)
            if far is not None:
                return run_elsewhere(far, wanted, out, again)
            return run(wanted, out=out, again=again, every=every, leader=leader)
        if changes:
            raise ConfigError(f"{spec} has its spec already; leave {', '.join(changes)} out.")
        if far is not None:
            return run_elsewhere(far, as_asked(RunFolder.open(spec).spec), spec.parent, False)
        return [resume(spec, every=every, leader=leader)]

    for folder in gently(lambda: together(work, device)):
        short = folder.summary()
        rf = "" if short.rf is None else f"  RF {short.rf:+.2f}"
        found = "" if short.domains_found is None else f"  domains {short.domains_found}"
        print(f"{folder.path}  {short.metric} {short.mean:.2f} %{rf}{found}")


def _spec(path: Path | None, changes: dict[str, Any]) -> Any:
    from ostinato.running.spec import Spec, merge

    if path is None:
        return Spec.parse(changes)
    if not path.is_file():
        raise ConfigError(f"There is no spec {path}: name a YAML file or a run's folder.")
    return Spec.parse(merge(Spec.from_yaml(path).model_dump(exclude_unset=True), changes))


def _count_or_path(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text
