"""What adaptation needs to know of a model: its input convention, its logits, its blocks.

Images travel through Ostinato as float32 pixels in [0, 1]; a model of another precision gets them
in its own. Normalisation belongs to the model:

- ``normalize="model"`` (default): the wrapper applies the model's own mean and std;
- ``normalize="none"``: pixels go in as they are, as the literature's tables have it;
- ``normalize="input"``: the caller normalises already; mean and std tell how to undo it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from ostinato.errors import ConfigError, InputError, OstinatoError
from ostinato.models._outputs import check_logits, logits_of
from ostinato.ops.views import innermost

Normalize = Literal["model", "none", "input"]

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
# Hugging Face keeps mean and std with the image processor, not with the model.
_HF_CONVENTIONS = {
    "vit": HALF,
    "beit": HALF,
    "deit": IMAGENET,
    "dinov2": IMAGENET,
    "dinov3_vit": IMAGENET,
    "swin": IMAGENET,
    "swinv2": IMAGENET,
    "segformer": IMAGENET,
    "mask2former": IMAGENET,
    "maskformer": IMAGENET,
    "clip": CLIP,
    "siglip": HALF,
}

_COMPARING = ("get_image_features", "encode_image")  # of CLIP-like models

Triple = tuple[float, ...]
"""One number a channel; most models have three."""


def input_convention(model: nn.Module) -> tuple[Triple, Triple] | None:
    """The mean and std a model was trained with, where the model tells."""
    model = innermost(model)
    for attribute in ("pretrained_cfg", "default_cfg"):
        cfg = getattr(model, attribute, None)
        if isinstance(cfg, dict) and cfg.get("mean") and cfg.get("std"):
            return tuple(cfg["mean"]), tuple(cfg["std"])
    if type(model).__module__.startswith("torchvision."):
        return IMAGENET
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return _HF_CONVENTIONS.get(str(kind))


def _input_channels(model: nn.Module) -> int | None:
    """How many channels a model's first convolution takes; None where there is none.

    >>> _input_channels(nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3)))
    1
    """
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    return None if first is None else int(first.in_channels)


def _for_channels(known: tuple[Triple, Triple] | None, channels: int | None) -> Any:
    """A convention for three colours, for a model that was made for other channels: their mean."""
    if known is None or channels is None or len(known[0]) == channels:
        return known
    return tuple((sum(part) / len(part),) * channels for part in known)


class VisionModel(nn.Module):
    """A model with its input convention: pixels in, logits out.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    >>> vision = VisionModel(net, normalize="none")
    >>> vision(vision.check(torch.zeros(2, 3, 2, 2, dtype=torch.uint8))).shape
    torch.Size([2, 5])
    """

    mean: Tensor
    std: Tensor
    device: torch.device
    """Where the model lives."""

    def __init__(
        self,
        model: nn.Module,
        *,
        normalize: Normalize = "model",
        mean: Triple | None = None,
        std: Triple | None = None,
    ) -> None:
        super().__init__()
        check_module(model)
        if normalize not in ("model", "none", "input"):
            raise ConfigError(f"normalize is 'model', 'none' or 'input', not {normalize!r}.")
        if not any(True for _ in model.parameters()):
            raise ConfigError("The model has no parameters, so there is nothing to adapt.")
        known = _given(mean, std) or _for_channels(input_convention(model), _input_channels(model))
        if normalize != "none" and known is None:
            raise ConfigError(
                f"{type(model).__name__} does not say how its input is normalised. Pass mean=(...) "
                "and std=(...), or normalize='none' if it takes pixels in [0, 1] as they are."
            )
        self.base = model
        self.normalize: Normalize = normalize
        self.device = device = next(model.parameters()).device
        for name, value in zip(("mean", "std"), known or HALF, strict=True):
            self.register_buffer(
                name, torch.tensor(value, device=device).view(1, -1, 1, 1), persistent=False
            )
        self._given: tuple[Tensor, Tensor] | None = None
        self._taken: set[tuple[int, int]] = set()
        self.outputs: int | None = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.device = self.mean.device
        return self

    @property
    def dtype(self) -> torch.dtype:
        """The type that the model's first layer computes in."""
        floating = (p.dtype for p in self.base.parameters() if p.is_floating_point())
        return next(floating, torch.float32)

    def check(self, images: Tensor) -> Tensor:
        """Pixels in [0, 1] on the model's device, or an InputError that says what is wrong."""
        _check_shape(images, channels=self.mean.shape[1])
        if images.dtype == torch.bool or images.is_complex():
            raise InputError(f"Images should be uint8 or float, not {images.dtype}.")
        images = images.detach().to(self.device)
        if images.dtype == torch.uint8:  # can hold nothing wrong, so nobody waits for a look
            return self._sized(images.float() / 255)
        low, high = (float(v) for v in torch.stack(torch.aminmax(images.float())).tolist())
        if not (low > -float("inf") and high < float("inf")):
            raise InputError("The images hold NaN or infinite pixels; drop or repair them first.")
        if not images.is_floating_point():
            if low < 0 or high > 255:
                raise InputError(
                    f"Integer images must lie in [0, 255]; these span {low:.0f} to {high:.0f}."
                )
            return self._sized(images.float() / 255)
        if self.normalize == "input":
            pixels = self._sized(self.restored(images))
            self._given = (pixels, images)
            return pixels
        if low < -1e-3 or high > 1 + 1e-3:
            raise InputError(
                f"Float images must lie in [0, 1]; these span {low:.2f} to {high:.2f}. If they "
                "are normalised already, adapt with normalize='input'; if they are in [0, 255], "
                "pass uint8 or divide by 255."
            )
        return self._sized(images.float())

    def knows(self, images: Tensor) -> bool:
        """Whether images of this size were taken before."""
        plain = isinstance(images, Tensor) and not images.is_nested
        return plain and tuple(images.shape[-2:]) in self._taken

    def _sized(self, pixels: Tensor) -> Tensor:
        """Refuse a size that the model cannot take: one image of each new size is tried first."""
        size = (int(pixels.shape[-2]), int(pixels.shape[-1]))
        if size in self._taken or any(module.training for module in self.base.modules()):
            return pixels  # a module that trains would learn from being tried
        try:
            with torch.no_grad():
                self.outputs = check_logits(self(pixels[:1]))
        except (RuntimeError, AssertionError, ValueError, IndexError, TypeError) as error:
            if isinstance(error, OstinatoError):
                raise
            raise InputError(
                f"The model does not take images of {size[0]}×{size[1]} pixels in float32 "
                f"({str(error)[:160]}). Resize them to the size it was trained with."
            ) from error
        self._taken.add(size)
        return pixels

    def check_classes(self, classes: Any) -> Tensor:
        """The label space as indices on the model's device, or an InputError; see `check` first."""
        return check_classes(classes, self.outputs).to(self.device)

    def prepare(self, pixels: Tensor) -> Tensor:
        """What the model itself takes. Normalised input comes back as it was given, to the bit."""
        if self._given is not None and self._given[0] is pixels:
            return self._given[1]
        if self.normalize == "none":
            return pixels
        return (pixels - self.mean.float()) / self.std.float()

    def restored(self, images: Tensor) -> Tensor:
        """Pixels in [0, 1] of images that were normalised with the model's mean and std."""
        return images.to(self.device).float() * self.std.float() + self.mean.float()

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits: (B, C), or (B, C, H, W) per pixel."""
        # Past what `base.compile()` made: compiled code does not see what adaptation adds.
        call = self.base if self.base._compiled_call_impl is None else self.base._call_impl
        output = call(self.prepare(pixels).to(self.dtype))
        return output if isinstance(output, Tensor) else logits_of(output)

    def example(self) -> Tensor:
        """An image of noise, (1, channels, side, side) in [0, 1], always the same one."""
        height, width = image_size(self.base)
        draw = torch.Generator().manual_seed(0)
        pixels = torch.rand(1, self.mean.shape[1], height, width, generator=draw)
        return pixels.to(self.device)

    def release(self) -> None:
        """Forget the last batch."""
        self._given = None


def image_size(model: nn.Module) -> tuple[int, int]:
    """Height and width of the images that a model was made for; 224 where it does not tell.

    >>> import timm
    >>> image_size(timm.create_model("vit_tiny_patch16_224", img_size=96))
    (96, 96)
    """
    model = innermost(model)
    config = getattr(model, "pretrained_cfg", None)
    known = (
        getattr(getattr(model, "patch_embed", None), "img_size", None),
        getattr(model, "image_size", None),
        getattr(getattr(model, "config", None), "image_size", None),
        config.get("input_size") if isinstance(config, dict) else None,
    )
    for size in known:
        if isinstance(size, int):
            return size, size
        if isinstance(size, tuple | list) and len(size) >= 2:
            return int(size[-2]), int(size[-1])
    return 224, 224


def output_names(model: nn.Module) -> tuple[str, ...]:
    """What a model calls its outputs, in order; empty where it does not tell."""
    model = innermost(model)
    for attribute in ("pretrained_cfg", "default_cfg"):
        cfg = getattr(model, attribute, None)
        if isinstance(cfg, dict) and cfg.get("label_names"):
            return tuple(str(name) for name in cfg["label_names"])
    known = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(known, dict) or any(str(n).startswith("LABEL_") for n in known.values()):
        return ()  # Hugging Face numbers what nobody has named
    return tuple(str(known[number]) for number in sorted(known))


def check_module(model: object) -> None:
    """Refuse what is not a module with weights that are there."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"A model is a torch.nn.Module, not {type(model).__name__}.")
    if any(callable(getattr(model, name, None)) for name in _COMPARING):
        raise ConfigError(
            f"{type(model).__name__} compares images with texts: make a classifier of it first, "
            "ostinato.zero_shot(model, [one text for each class])."
        )
    if any(p.is_meta for p in model.parameters()):
        raise ConfigError("The model has weights on the meta device: load them first.")


def check_classes(classes: Any, outputs: int | None = None) -> Tensor:
    """A label space: whole numbers, each once, among the model's outputs.

    >>> check_classes([3, 1], outputs=4).tolist()
    [3, 1]
    """
    try:
        found = torch.as_tensor(classes)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"classes should be indices of outputs ({error}).") from None
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise InputError(f"classes are indices, not {found.dtype}: pass whole numbers.")
    if found.ndim != 1 or not found.numel():
        raise InputError(f"classes should be one list of indices, not shape {_shape(found)}.")
    given = found.tolist()
    if len(set(given)) < len(given):
        raise InputError("classes names an output twice: pass each once.")
    if min(given) < 0 or (outputs is not None and max(given) >= outputs):
        has = "" if outputs is None else f", the model has {outputs} outputs"
        raise InputError(f"classes run from {min(given)} to {max(given)}{has}: count from 0.")
    return found.long()


def fingerprint(model: nn.Module) -> str:
    """A short hash of names, shapes and a sample of every weight: which model is this?

    Windows, scales and flips around a model do not make it another one.
    """
    total = hashlib.sha256()
    samples = []
    for name, tensor in sorted(innermost(model).state_dict().items()):
        total.update(f"{name}{tuple(tensor.shape)}".encode())
        flat = tensor.detach().reshape(-1)
        samples.append(flat[:: max(1, flat.numel() // 64)][:64].double())
    if samples:
        total.update(torch.cat(samples).cpu().numpy().tobytes())
    return total.hexdigest()[:16]


def _check_shape(images: Tensor, channels: int) -> None:
    if not isinstance(images, Tensor):
        raise InputError(f"Images should be a torch tensor, not {type(images).__name__}.")
    kinds = {"nested": images.is_nested, "quantized": images.is_quantized, "meta": images.is_meta}
    kinds["sparse"] = not images.is_nested and images.layout != torch.strided
    for kind, found in kinds.items():
        if found:
            raise InputError(f"Images should be a plain dense tensor, not a {kind} one.")
    if images.ndim != 4:
        hint = " Add a batch dimension: images[None]." if images.ndim == 3 else ""
        raise InputError(f"Images should be (batch, 3, height, width), not {_shape(images)}.{hint}")
    if 0 in images.shape:
        raise InputError(f"The batch is empty: {_shape(images)}.")
    if images.shape[1] != channels:
        last = " Move the channels first: images.permute(0, 3, 1, 2)." * (images.shape[-1] == 3)
        raise InputError(
            f"The model takes {channels} channels, the images have {images.shape[1]}.{last}"
        )


def _given(mean: Triple | None, std: Triple | None) -> tuple[Triple, Triple] | None:
    """Mean and std that were passed, if both are what they have to be."""
    if mean is None and std is None:
        return None
    pairs = {"mean": mean, "std": std}
    for name, value in pairs.items():
        parts = list(value) if isinstance(value, tuple | list) else [None]
        if not parts or not all(isinstance(v, int | float) and math.isfinite(v) for v in parts):
            raise ConfigError(f"{name} = {value!r}: pass one finite number per channel, of both.")
    assert mean is not None
    assert std is not None
    if len(mean) != len(std) or min(std) <= 0:
        raise ConfigError(f"std = {std!r}: pass as many numbers as in mean, all above 0.")
    return mean, std


def _shape(images: Tensor) -> str:
    return str(tuple(images.shape))
