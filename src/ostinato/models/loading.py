"""Models by the name that a spec gives them, and their weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ostinato.data.mosaic import MOSAIC, mosaic_model
from ostinato.data.stand_ins import EMBEDDED
from ostinato.errors import ConfigError, DataError, did_you_mean
from ostinato.models.dense import MultiView, SlidingWindow
from ostinato.text import one_line

RANDOM = "random"
OWN = (EMBEDDED, MOSAIC)
"""Models inside the package."""
_TRAINED = {
    "weights/segformer-b0-camvid": "python examples/train_camvid.py --root DIR --seconds 270",
}
"""Models that nobody publishes, and what trains them."""


class _ModelSpec(Protocol):
    """What loading reads of a spec: a model, its weights, and the views it is shown."""

    @property
    def model(self) -> str:
        """A name: of the package's own model, of timm or of Hugging Face."""

    @property
    def weights(self) -> str | None:
        """A checkpoint file, 'random', or None for the model's own."""

    @property
    def num_classes(self) -> int | None:
        """Outputs, where not the model's usual number."""

    @property
    def device(self) -> str:
        """Where the model goes."""

    @property
    def window(self) -> tuple[int, int] | None:
        """Sliding windows of a per-pixel model."""

    @property
    def stride(self) -> tuple[int, int] | None:
        """Steps between windows."""

    @property
    def scales(self) -> tuple[float, ...]:
        """Sizes that a per-pixel model sees an image in."""

    @property
    def flip(self) -> bool:
        """Whether it also sees mirrored ones."""


def check_model(spec: _ModelSpec) -> None:
    """Refuse a model or a checkpoint that does not exist, before anything is built."""
    if spec.weights not in (None, RANDOM) and not Path(str(spec.weights)).exists():
        raise ConfigError(f"There is no checkpoint {spec.weights}. {_nearest(str(spec.weights))}")
    if spec.model in OWN:
        if spec.weights is not None:
            raise ConfigError("The embedded model has its own weights: leave weights out.")
        return
    if spec.weights is None and spec.model in _TRAINED and not Path(spec.model).is_dir():
        raise ConfigError(
            f"There is no model {spec.model} yet. Train it first: {_TRAINED[spec.model]}; or name "
            "another one with --weights DIR."
        )
    if "/" in spec.model:
        return  # a Hugging Face name, which only loading can tell
    import timm

    architecture = spec.model.partition(".")[0]
    if not timm.is_model(architecture):
        hint = did_you_mean(spec.model, [*OWN, *timm.list_models(f"{architecture[:3]}*")])
        raise ConfigError(f"There is no model {spec.model!r}. {hint[:400]}")
    tagged = timm.list_pretrained(f"{architecture}.*") if "." in spec.model else [spec.model]
    if spec.model not in tagged:
        raise ConfigError(f"There is no model {spec.model!r}. {did_you_mean(spec.model, tagged)}")
    if spec.num_classes is not None and spec.weights is None:
        raise ConfigError(
            f"{spec.model} would get a new, untrained head of {spec.num_classes} classes: pass "
            "weights=FILE of a model trained for them (or weights=random, to try things out)."
        )


def load_model(spec: _ModelSpec) -> nn.Module:
    """The source model in eval mode, on the spec's device, with the spec's window and views."""
    model = _load_plain(spec)
    if spec.window is not None:
        model = SlidingWindow(model, spec.window, spec.stride)
    if spec.scales or spec.flip:
        model = MultiView(model, spec.scales or (1.0,), spec.flip)
    return model


def _load_plain(spec: _ModelSpec) -> nn.Module:
    if spec.model == EMBEDDED:
        from ostinato.data.embedded import embedded_model

        return embedded_model(spec.device)
    if spec.model == MOSAIC:
        return mosaic_model(spec.device)
    model = _hugging_face(spec) if "/" in spec.model else _timm(spec)
    return model.eval().to(spec.device)


def _timm(spec: _ModelSpec) -> nn.Module:
    import timm

    more: dict[str, Any] = {} if spec.num_classes is None else {"num_classes": spec.num_classes}
    if spec.weights is None:
        try:
            model: nn.Module = timm.create_model(spec.model, pretrained=True, **more)
        except Exception as error:  # whatever the hub's client raises without a network
            raise DataError(
                f"The weights of {spec.model} could not be fetched ({one_line(error)}). Name a "
                "file that holds them (weights), or weights = 'random'."
            ) from None
        return model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # random weights are the same ones in every run
        model = timm.create_model(spec.model, pretrained=False, **more)
    if spec.weights != RANDOM:
        _load(model, Path(spec.weights))
    return model


@contextmanager
def _quietly(when: bool) -> Iterator[None]:
    """Without the bars that Transformers draws for weights it reads in no time."""
    from transformers.utils import logging

    if not (when and logging.is_progress_bar_enabled()):
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def _shape(name: str) -> Any:
    """The configuration of a model that is here or whose name tells it; no network is asked."""
    from transformers import AutoConfig, SegformerConfig

    from ostinato.models._shapes import shape_of

    try:
        return AutoConfig.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError):
        return SegformerConfig(**shape_of(name))


def _hugging_face(spec: _ModelSpec) -> nn.Module:
    from transformers import AutoModelForSemanticSegmentation

    if spec.weights == RANDOM:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model: nn.Module = AutoModelForSemanticSegmentation.from_config(_shape(spec.model))
        return model
    place = spec.model if spec.weights is None else str(spec.weights)
    try:
        with _quietly(when=Path(place).is_dir()):  # a download may show how far it is
            return AutoModelForSemanticSegmentation.from_pretrained(place)  # type: ignore[no-any-return]
    except Exception as error:  # a name that is none, no network, a folder of junk
        raise DataError(
            f"{place} could not be loaded ({one_line(error)}). Name a folder that holds it "
            "(weights)."
        ) from None


def _load(model: nn.Module, path: Path) -> None:
    """Take over a checkpoint, strictly: a benchmark with half-loaded weights is worth nothing."""
    weights = _read(path)
    if not all(isinstance(w, Tensor) for w in weights.values()):
        raise DataError(f"{path} holds more than weights by name: save the state_dict alone.")
    try:
        model.load_state_dict(weights, strict=True)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise DataError(f"{path} does not fit the model: {one_line(error, 300)}") from None


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise DataError(f"{path} is no file: name a checkpoint (.pth or .safetensors).")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(str(path)))
        # Weights alone: what else a pickle would run on being read is refused.
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # junk makes the readers raise whatever they stumble over
        raise DataError(
            f"{path} is no checkpoint that can be read safely ({one_line(error)}). Save the "
            "weights alone: torch.save(model.state_dict(), FILE), or as safetensors."
        ) from None
    for key in ("model", "state_dict"):
        if isinstance(stored, dict) and isinstance(stored.get(key), dict):
            stored = stored[key]
    if not isinstance(stored, dict):
        raise DataError(f"{path} holds no weights by name.")
    return {str(name).removeprefix("module."): tensor for name, tensor in stored.items()}


def _nearest(path: str) -> str:
    """The nearest file beside a path that is missing."""
    folder = Path(path).parent
    if not folder.is_dir():
        return f"There is no folder {folder} either."
    return did_you_mean(Path(path).name, [p.name for p in sorted(folder.iterdir())][:50])
