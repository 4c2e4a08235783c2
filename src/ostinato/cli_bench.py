"""The commands of the benchmark: run, table, compare. Heavy imports happen when one runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, Literal

from ostinato.cli_words import (
    Amount,
    Count,
    Data,
    Factors,
    File,
    Folder,
    Metric,
    Name,
    Named,
    Names,
    Normalize,
    Number,
    Out,
    Place,
    Precision,
    Runs,
    Seeds,
    Source,
    Spec,
    Weights,
    Words,
)
from ostinato.errors import ConfigError, DataError

Form = Literal["terminal", "markdown", "latex", "csv", "json"]


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
    """
    from ostinato.bench.runner import resume, run, together
    from ostinato.bench.spec import parse_data, parse_pairs

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

    def work(leader: Any) -> Any:
        if spec is None or not spec.is_dir():
            return run(_spec(spec, changes), out=out, again=again, every=every, leader=leader)
        if changes:
            raise ConfigError(f"{spec} has its spec already; leave {', '.join(changes)} out.")
        return [resume(spec, every=every, leader=leader)]

    for folder in _gently(lambda: together(work, device)):
        short = folder.summary()
        rf = "" if short.rf is None else f"  RF {short.rf:+.2f}"
        found = "" if short.domains_found is None else f"  domains {short.domains_found}"
        print(f"{folder.path}  {short.metric} {short.mean:.2f} %{rf}{found}")


def table_command(
    name: Named,
    /,
    *,
    scale: Literal["small", "full"] = "small",
    methods: Names = (),
    preset: Name = None,
    seeds: Seeds = (),
    root: Folder = None,
    weights: Weights = None,
    set: Words = (),
    only: Words = (),
    format: Form = "terminal",
    save: Place = None,
    out: Out = Path("runs"),
    again: bool = False,
    finished: bool = False,
    memory: Amount = 1.0,
    jobs: Count = 1,
    factors: File = None,
) -> None:
    """Make one of the paper's tables: run what is missing, print it beside the printed figures.

    Args:
        name: a table; a wrong one lists them.
        scale: small runs on the package's own model and images, full is the paper's setting.
        methods: name or name:preset each; all for every registered one.
        preset: of an ablation's rows (small: source-free, full: paper, unless given).
        seeds: in place of 2025 2026 2027.
        root: the folder that holds the data sets (full scale).
        weights: the model's checkpoint (full scale).
        set: any setting of the runs' spec, such as device=cuda data.limit=500.
        only: such settings of one method or one of the table's streams, as foa:data.limit=100.
        format: what is printed.
        save: a folder that gets the table as Markdown, LaTeX, CSV and JSON.
        out: where the runs' folders go.
        again: run even what is complete already.
        finished: run nothing, show what is complete and leave out the rest.
        memory: GiB of made batches to keep for the rows that follow.
        jobs: rows that run side by side, each in a process of its own.
        factors: a file from 'ostinato search'; adds a row at the chosen rate to each method.
    """
    from ostinato.bench.assemble import build_table
    from ostinato.bench.request import Request, parse_only
    from ostinato.bench.search import read_factors

    request = Request(
        scale=scale,
        methods=methods,
        preset=preset,
        seeds=seeds,
        changes=_changes(root, weights, set),
        only=parse_only(only),
        out=out,
        again=again,
        finished=finished,
        memory=memory,
        jobs=jobs,
        factors=None if factors is None else read_factors(factors),
        command=_command(),
    )
    _show(_gently(lambda: build_table(name, request)), format, save)


def search_command(
    name: Named,
    /,
    *,
    factors: Factors = (),
    scale: Literal["small", "full"] = "small",
    methods: Names = (),
    seeds: Seeds = (),
    root: Folder = None,
    weights: Weights = None,
    set: Words = (),
    only: Words = (),
    format: Form = "terminal",
    save: Place = None,
    out: Out = Path("runs"),
    finished: bool = False,
    memory: Amount = 1.0,
    jobs: Count = 1,
) -> None:
    """Search each method's learning rate on a table's stream; the same factors for all of them.

    Args:
        name: a table whose rows are methods.
        factors: what every method's own rate is multiplied by, in place of
            0.01 0.1 0.3 1 3 10 100.
        scale: small runs on the package's own model and images, full is the paper's setting.
        methods: name or name:preset each; all for every registered one.
        seeds: in place of 2025 2026 2027.
        root: the folder that holds the data sets (full scale).
        weights: the model's checkpoint (full scale).
        set: any setting of the runs' spec; choose images that the table does not report.
        only: such settings of one method alone, as foa:data.limit=100.
        format: what is printed.
        save: a folder that gets the errors, and the chosen factors for 'ostinato table --factors'.
        out: where the runs' folders go.
        finished: run nothing, choose among what is complete.
        memory: GiB of made batches to keep for the rows that follow.
        jobs: rows that run side by side, each in a process of its own.
    """
    from ostinato.bench.request import Request, parse_only
    from ostinato.bench.search import FACTORS, SUFFIX, search, write_factors

    request = Request(
        scale=scale,
        methods=methods,
        seeds=seeds,
        changes=_changes(root, weights, set),
        only=parse_only(only),
        out=out,
        finished=finished,
        memory=memory,
        jobs=jobs,
        command=_command(),
    )
    result, chosen = _gently(lambda: search(name, request, factors or FACTORS))
    _show(result, format, save)
    if save is not None:
        path = save / f"{name}-{scale}{SUFFIX}"
        write_factors(path, chosen, request.command)
        print(f"wrote {path}", file=sys.stderr)


def _changes(root: str | None, weights: str | None, pairs: Words) -> dict[str, Any]:
    from ostinato.bench.spec import merge, parse_pairs

    given = {"roots": root, "weights": weights}
    return merge({k: v for k, v in given.items() if v is not None}, parse_pairs(pairs))


def _show(result: Any, form: str, save: Path | None) -> None:
    from rich.console import Console

    from ostinato.bench.render import render
    from ostinato.bench.terminal import to_terminal

    if form == "terminal":
        console = Console()
        console.print(to_terminal(result, console.width))
    else:
        print(render(result, form), end="")
    if save is not None:
        for path in result.save(save):
            print(f"wrote {path}", file=sys.stderr)


def compare_command(
    runs: Runs,
    /,
    *,
    baseline: Folder = None,
    metric: Metric = None,
    resamples: Count = 10_000,
    confidence: Amount = 0.95,
    parts: bool = True,
) -> None:
    """Compare runs of one stream with the first: paired, with bootstrap confidence intervals.

    Args:
        runs: two or more run folders.
        baseline: the folder name to compare with, in place of the first.
        metric: error, accuracy or miou; the task's own unless given.
        resamples: bootstrap draws over images.
        confidence: of the intervals.
        parts: also show every domain and round.
    """
    from rich.console import Console

    from ostinato.bench.compare import compare
    from ostinato.bench.comparison import comparison_table
    from ostinato.bench.results import RunFolder

    records = {}
    for path in runs:
        name = path.name if path.name not in records else str(path)
        records[name] = RunFolder.open(path).records()
        if not records[name]:
            raise DataError(f"{path} has no finished batch; go on with: ostinato run {path}")
    if baseline is not None:
        baseline = Path(baseline).name
    found = compare(
        records, baseline=baseline, metric=metric, resamples=resamples, confidence=confidence
    )
    console = Console()
    for one in found:
        console.print(comparison_table(one, parts=parts))


def _spec(path: Path | None, changes: dict[str, Any]) -> Any:
    from ostinato.bench.spec import Spec, merge

    if path is None:
        return Spec.parse(changes)
    if not path.is_file():
        raise ConfigError(f"There is no spec {path}: name a YAML file or a run's folder.")
    return Spec.parse(merge(Spec.from_yaml(path).model_dump(exclude_unset=True), changes))


def _count_or_path(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


def _command() -> str:
    return "ostinato " + " ".join(shlex.quote(word) for word in sys.argv[1:])


def _gently(work: Any) -> Any:
    """Ctrl-C ends with the command that goes on, and the exit status of an interrupt."""
    from ostinato.bench.runner import Interrupted

    try:
        return work()
    except Interrupted as stop:
        print(f"\n{stop}", file=sys.stderr)
        raise SystemExit(130) from None
