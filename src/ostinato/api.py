"""The few functions a user calls: adapt a model, take it back, collect source statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ostinato.domains.texture import Texture
from ostinato.errors import ConfigError, MissingResource, OstinatoError
from ostinato.methods.base import Method, MethodConfig, Resources
from ostinato.methods.contract import check_resources, choose_method, resolve_config
from ostinato.methods.sharing import check_sharing, share_work
from ostinato.models import Normalize, Triple, VisionModel, check_module, fingerprint
from ostinato.ops.around import Around, inside
from ostinato.ops.batches import Images, image_batches
from ostinato.ops.blocks import Choice, choose_blocks, find_blocks
from ostinato.ops.colours import three_colours
from ostinato.ops.processes import Processes
from ostinato.ops.snapshot import State, load_state
from ostinato.ops.statistics import SourceStatistics, collect
from ostinato.ops.trainable import Flags
from ostinato.registry import METHODS


def adapt(
    model: nn.Module,
    method: str | None = None,
    *,
    preset: str | None = None,
    statistics: SourceStatistics | str | Path | None = None,
    prepared: State | str | Path | None = None,
    targets: Any = None,
    blocks: Any = ...,
    normalize: Normalize = "model",
    mean: Triple | None = None,
    std: Triple | None = None,
    group: Any = None,
    **settings: Any,
) -> Method:
    """Wrap a model so that calling it predicts, recognises the domain and adapts.

    Args:
        model: any classifier or segmenter of blocks, transformer or convolutional, in any
            precision; changed in place, and given back by `unwrap`. What `torch.compile` or
            `DataParallel` put around it is set aside until then.
        method: a registered name; `ostinato list methods` shows them. None takes this project's
            own: `ostinato` where source statistics are given, `dual_expert` otherwise.
        preset: named settings of the method; without a method, `robust` and `forward-only` need
            statistics, `source-free` and `paper` do not.
        statistics: from `collect_statistics`, or the path of a saved file.
        prepared: what `ostinato prepare` wrote, or its path.
        targets: where experts go: names, a regex or a predicate; found by structure if None.
        blocks: the modules whose outputs are read and moved, likewise, for models whose blocks
            are not found. A number or None is the setting of that name of methods that have one.
        normalize: "model" (pixels in, the wrapper normalises), "none" or "input".
        mean: of the model's input convention, where the model does not tell.
        std: likewise.
        group: a process group of `torch.distributed` whose processes answer one stream together:
            each calls it with its own part of every batch, and all keep the same state.
        settings: single settings on top of the preset, such as ``lr=3e-4``.

    >>> import timm, torch
    >>> vit = timm.create_model("test_vit", num_classes=10)
    >>> adapted = adapt(vit)
    >>> adapted(torch.rand(4, 3, 160, 160)).shape
    torch.Size([4, 10])
    >>> adapted.last.domain, adapted.last.is_new
    (0, True)
    >>> unwrap(adapted) is vit
    True
    """
    if isinstance(inside(model), Method):
        raise ConfigError("This model is adapted already; call ostinato.unwrap on it first.")
    check_module(model)
    method, preset = choose_method(method, preset, statistics is not None)
    kind = METHODS[method]
    if isinstance(blocks, int) or (blocks is None and "blocks" in kind.Config.model_fields):
        settings["blocks"] = blocks
    config = resolve_config(kind, preset, settings)
    chosen = None if blocks is ... or "blocks" in settings else blocks
    convention = {"normalize": normalize, "mean": mean, "std": std}
    return adapt_by(
        model, kind, config, statistics, prepared, targets, chosen, group=group, **convention
    )


def adapt_by(
    model: nn.Module,
    kind: type[Method],
    config: MethodConfig,
    statistics: SourceStatistics | str | Path | None = None,
    prepared: State | str | Path | None = None,
    targets: Any = None,
    blocks: Choice = None,
    *,
    group: Any = None,
    **convention: Any,
) -> Method:
    """Wrap a model by a method whose settings are known; all else is as `adapt` has it."""
    around = Around(model)
    try:
        vision = VisionModel(around.model, **convention)
        resources = _resources(vision, statistics, prepared, kind.name)
        processes = Processes.of(group)
        resources = check_sharing(processes, kind, config, vision, resources)
        adapted = _built(kind, vision, config, resources, targets, blocks)
        share_work(adapted, processes)
    except BaseException:
        around.restore()
        raise
    adapted.around = around
    return adapted


def _resources(
    vision: VisionModel,
    statistics: SourceStatistics | str | Path | None,
    prepared: State | str | Path | None,
    method: str,
) -> Resources:
    """What helps a method, read where it is a file, if it was made for this model."""
    if isinstance(statistics, (str, Path)):
        statistics = SourceStatistics.load(statistics)
    if isinstance(prepared, (str, Path)):
        prepared = _read_prepared(prepared, method, vision.base)
    check_resources(vision.base, statistics, prepared)
    return Resources(statistics, prepared)


def _built(
    kind: Any,
    vision: VisionModel,
    config: Any,
    resources: Resources,
    targets: Any,
    blocks: Choice,
) -> Method:
    """The method on the model; a failure leaves the model as it was."""
    choose_blocks(vision.base, blocks)
    try:
        adapted: Method = kind(vision, config, resources, targets)
    except (LookupError, RuntimeError) as error:
        choose_blocks(vision.base, None)
        if resources.prepared is None or isinstance(error, OstinatoError):
            raise
        raise MissingResource(
            f"What was prepared does not fit {kind.name} on this model ({error}). Make it anew "
            f"with 'ostinato prepare {kind.name} --model ... --data ... --out FILE'."
        ) from error
    return adapted


def _read_prepared(path: str | Path, method: str, model: nn.Module) -> State:
    """What `ostinato prepare` wrote, if it was for this method and this model."""
    state, header = load_state(path)
    mine = {"method": method, "fingerprint": fingerprint(model)}
    for key, what in (("method", "another method"), ("fingerprint", "another source model")):
        if header.get(key, mine[key]) != mine[key]:
            raise MissingResource(
                f"{path} was prepared for {what} ({header[key]}, not {mine[key]}). Make one with "
                f"'ostinato prepare {method} --model ... --data ... --out FILE'."
            )
    return state


def unwrap(adapted: Method) -> nn.Module:
    """The original module with its original weights, bit for bit; `adapted` is used up."""
    if not isinstance(adapted, Method):
        raise ConfigError("unwrap takes what ostinato.adapt returned.")
    return adapted.detach()


def prepare(
    model: nn.Module,
    method: str,
    images: Tensor,
    labels: Tensor | None = None,
    *,
    preset: str | None = None,
    normalize: Normalize = "model",
    mean: Triple | None = None,
    std: Triple | None = None,
    **settings: Any,
) -> State:
    """What a method needs from source images before deployment, for `adapt(prepared=...)`."""
    kind = METHODS[method]
    config = resolve_config(kind, preset, settings)
    with Around(model) as plain:
        vision = VisionModel(plain, normalize=normalize, mean=mean, std=std)
        flags = Flags.freeze(plain)
        try:
            state: State = kind.prepare(vision, vision.check(images), labels, config)
        finally:
            flags.restore()
    return state


def collect_statistics(
    model: nn.Module,
    images: Images,
    *,
    batch_size: int = 50,
    blocks: Choice = None,
    normalize: Normalize = "model",
    mean: Triple | None = None,
    std: Triple | None = None,
    progress: bool = False,
) -> SourceStatistics:
    """Feature statistics of clean source images (about 300), taken once before deployment.

    Args:
        model: the source model, before it is adapted.
        images: a tensor as `adapt`'s models take them, or a DataLoader, iterator or data set that
            gives such images, labels beside them or not.
        batch_size: images of a tensor or a data set that are forwarded together.
        blocks: as for `adapt`; pass the same to both.
        normalize: as for `adapt`.
        mean: as for `adapt`.
        std: as for `adapt`.
        progress: show how many batches are done.
    """
    if isinstance(inside(model), Method):
        raise ConfigError("Collect statistics from the source model, before adapting it.")
    with Around(model) as plain:
        vision = VisionModel(plain, normalize=normalize, mean=mean, std=std)
        flags = Flags.freeze(plain)
        try:
            choose_blocks(plain, blocks)
            find_blocks(plain)  # refused by the user's own names, before any image is read
            parts: Iterable[Tensor] = (
                vision.check(_unprocessed(vision, batch) if processed else batch)
                for batch, processed in image_batches(images, batch_size)
            )
            if progress:
                from rich.progress import track

                parts = track(parts, "source statistics", total=_batches(images, batch_size))
            return collect(vision, parts, _describe, fingerprint(plain))
        finally:
            choose_blocks(plain, None)
            flags.restore()


def _describe(pixels: Tensor) -> Tensor:
    return Texture()(three_colours(pixels))


def _unprocessed(vision: VisionModel, images: Tensor) -> Tensor:
    """Images that a processor normalised, in the form that the model's convention asks for."""
    return vision.restored(images).clamp(0, 1) if vision.normalize == "model" else images


def _batches(images: Images, size: int) -> int | None:
    """How many batches are to come, where that is known."""
    if isinstance(images, Tensor):
        return -(-len(images) // size)
    return len(images) if isinstance(images, Sized) else None
