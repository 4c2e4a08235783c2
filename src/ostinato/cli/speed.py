"""`ostinato speed`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from ostinato.cli._command import command
from ostinato.cli._words import Count, Counts, File, Folder, Given, Names, Weights
from ostinato.errors import ConfigError
from ostinato.lines import columns

_HEAD = ("", "images/s", "ms a batch", "× forward", "p50 ms", "p99 ms", "learned", "expert", "MB")


@command(
    "speed",
    "images per second and memory of a step, beside the forward alone",
    "measuring",
    alone=True,
)
def speed_command(
    *,
    model: Given = "vit_tiny_patch16_224",
    weights: Weights = None,
    batch_size: Counts = (50,),
    steps: Count = 10,
    ways: Names = (),
    domains: Counts = (1,),
    mixed: bool = False,
    stream: Count = 0,
    stream_images: Count = 1200,
    streamed: Names = (),
    routing: bool = True,
    compile: bool = True,
    images: Folder = None,
    device: Given = "auto",
    precision: Literal["fp32", "tf32", "bf16"] = "fp32",
    normalize: Literal["model", "none"] = "model",
    profile: File = None,
    plot: File = None,
) -> None:
    """Time and memory of a batch beside the forward alone: TENT, our predict, learn, both.

    Args:
        model: 'embedded' or a timm name.
        weights: a checkpoint file; random ones unless given, which are as fast.
        batch_size: images a batch; several are measured one after the other.
        steps: timed batches of each; their median counts.
        ways: forward, compiled, tent, predict, learn, both, forward-only, new, new robust, or any
            method by name; the usual ones unless given, 'none' for none.
        domains: how many domains ours knows; several are measured one after the other.
        mixed: let every batch hold images of up to 15 domains.
        stream: domains of a recurring stream, three rounds of which are measured in the mean.
        stream_images: images of a domain and round of that stream.
        streamed: what is measured on it: forward-only, robust, robust:spare=0; all unless given.
        routing: also measure what routing alone costs.
        compile: let ours compile blocks on a GPU, as adapt(..., compile=True) does.
        images: photographs to make batches of, in any folders below DIR; drawn scenes unless given.
        device: cpu, cuda or auto.
        precision: fp32, tf32 or bf16.
        normalize: the input convention.
        profile: write which operators take the time, of every way.
        plot: write the ratios as a picture (SVG).
    """
    import torch

    from ostinato.ops.files import check_writable
    from ostinato.running.devices import resolve_device
    from ostinato.speed.measure import measure_routing, measure_speed, measure_stream, stream_ways
    from ostinato.speed.operators import profiler

    stream_ways(streamed)
    for path in (profile, plot):
        if path is not None:
            check_writable(path)
    place = resolve_device(device)
    make_model, size = _maker(model, weights, place)
    shared: dict[str, Any] = {
        "size": size,
        "precision": precision,
        "normalize": normalize,
        "compile": compile,
        "images_from": None if images is None else Path(images),
    }
    where = torch.cuda.get_device_name(place) if place.startswith("cuda") else place
    threads = f", {torch.get_num_threads()} threads" if place == "cpu" else ""
    print(f"{model}, {size[1]} px, {precision}, {where}{threads}, torch {torch.__version__}")
    if images is not None:
        print(f"images are parts of the photographs below {images}")
    print(f"each batch is new images; medians of {steps} batches each, taken in turns; new: means")
    chosen = None if not ways else () if ways == ("none",) else ways
    drawn: dict[str, list[Any]] = {}
    for count in batch_size:
        more = shared | {"batch_size": count}
        for known in domains if chosen != () else ():
            write = profiler(profile, f"batch {count}, {known} domains") if profile else None
            found = measure_speed(
                make_model, **more, steps=steps, ways=chosen, domains=known, mixed=mixed,
                profile=write,
            )  # fmt: skip
            title = f"batch {count}, {known} domain{'s' * (known > 1)}{', mixed' * mixed}"
            drawn[title] = found
            _show(title, found)
        if routing:
            found = measure_routing(make_model, **more, steps=steps, domains=max(domains))
            _show(f"batch {count}: routing alone", found)
        if stream:
            found = measure_stream(
                make_model, **more, ways=streamed, domains=stream, images=stream_images
            )
            drawn[f"batch {count}, recurring stream"] = found
            _show(f"batch {count}: three rounds of {stream} domains × {stream_images}", found)
    if plot is not None:
        from ostinato.speed.plot import speed_figure

        plot.write_text(speed_figure(drawn), encoding="utf-8")


def _maker(
    model: str, weights: str | None, place: str
) -> tuple[Callable[[], Any], tuple[int, int, int]]:
    from ostinato.models.loading import OWN, RANDOM, check_model, load_model
    from ostinato.running.spec import Spec

    chosen = weights or (None if model in OWN else RANDOM)
    spec = Spec.parse({"model": model, "weights": chosen, "device": place})
    check_model(spec)
    config = getattr(load_model(spec), "pretrained_cfg", {})
    size = tuple(config.get("input_size", (3, 224, 224)))
    if len(size) != 3:
        raise ConfigError(f"{model} says that it takes inputs of shape {size}, not (3, H, W).")
    return lambda: load_model(spec), (int(size[0]), int(size[1]), int(size[2]))


def _show(title: str, found: Sequence[Any]) -> None:
    rows = [_HEAD]
    for one in found:
        time = (f"{one.images:.1f}", f"{one.milliseconds:.2f}", f"{one.ratio:.2f}")
        spread = (f"{one.p50:.2f}", f"{one.p99:.2f}", f"{one.learned:.0%}")
        routed = "–" if one.routed is None else f"{one.routed:.0%}"
        memory = f"{one.memory / 1e6:.0f}" if one.memory else "–"
        rows.append((one.name, *time, *spread, routed, memory))
    print(f"\n{title}")
    for line in columns(rows):
        print(line, flush=True)
