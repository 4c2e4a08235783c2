"""CLIP-like models as classifiers: an image's logits are its agreement with texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.errors import ConfigError
from ostinato.ops.blocks import choose_blocks, find_blocks


class _Images(nn.Module):
    """A CLIP-like model of which the image side's blocks count alone."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole
        for tower in ("vision_model", "visual"):
            side = getattr(whole, tower, None)
            if isinstance(side, nn.Module):
                choose_blocks(self, [f"whole.{tower}.{name}" for name in find_blocks(side)])
                break


class _ZeroShot(nn.Module):
    """The image side of a CLIP-like model with fixed text embeddings: pixels in, logits out.

    Args:
        clip: a Hugging Face CLIP or SigLIP (anything with `get_image_features` or, as OpenCLIP's
            models, `encode_image`).
        embeddings: (C, D) text embeddings; normalised here.
    """

    embeddings: Tensor

    def __init__(self, clip: nn.Module, embeddings: Tensor) -> None:
        super().__init__()
        self.clip = _Images(clip)
        self.config = getattr(clip, "config", None)
        self.register_buffer("embeddings", F.normalize(embeddings.detach().float(), dim=1))

    def forward(self, pixel_values: Tensor) -> Tensor:
        """(B, C): scaled cosine of each image with each text, plus the model's bias if any."""
        clip = self.clip.whole
        features = _features(clip, ("get_image_features", "encode_image"), pixel_values)
        if features.shape[1] != self.embeddings.shape[1]:
            raise ConfigError(
                f"The model's images have {features.shape[1]} features, the texts' embeddings "
                f"{self.embeddings.shape[1]}: make them with the same model."
            )
        cosine = F.normalize(features.float(), dim=1) @ self.embeddings.T.to(features.device)
        scale = getattr(clip, "logit_scale", None)
        bias = getattr(clip, "logit_bias", None)
        logits = cosine if scale is None else cosine * scale.detach().float().exp()
        return logits if bias is None else logits + bias.detach().float()


def zero_shot(
    clip: nn.Module,
    texts: Sequence[str] | Tensor,
    *,
    template: str = "a photo of a {}.",
    tokenizer: Any = None,
) -> _ZeroShot:
    """A classifier from a CLIP-like model and one text (or one embedding) a class.

    Args:
        clip: the model; its text side is used once, here.
        texts: class names, put into the template, or (C, D) embeddings of your own.
        template: where a name goes.
        tokenizer: called with a list of texts; None loads the one of the model's name.
    """
    if isinstance(texts, Tensor):
        if texts.ndim != 2:
            raise ConfigError(f"Text embeddings are (classes, features), not {tuple(texts.shape)}.")
        return _ZeroShot(clip, texts)
    names = [template.format(text) for text in texts]
    if not names or isinstance(texts, str):
        raise ConfigError("zero_shot needs a list with one text for each class.")
    tokens = _tokenized(clip, names, tokenizer)
    with torch.no_grad():
        if isinstance(tokens, Tensor):
            embeddings = _features(clip, ("encode_text", "get_text_features"), tokens)
        else:
            device = next(clip.parameters()).device
            given = {key: value.to(device) for key, value in tokens.items()}
            embeddings = _features(clip, ("get_text_features", "encode_text"), **given)
    return _ZeroShot(clip, embeddings)


def _tokenized(clip: nn.Module, names: list[str], tokenizer: Any) -> Any:
    if tokenizer is None:
        from transformers import AutoTokenizer

        place = getattr(getattr(clip, "config", None), "_name_or_path", "")
        if not place:
            raise ConfigError("The model does not say where its tokenizer is: pass tokenizer=.")
        tokenizer = AutoTokenizer.from_pretrained(place)
    try:
        return tokenizer(names, padding="max_length", truncation=True, return_tensors="pt")
    except TypeError:
        return tokenizer(names)  # OpenCLIP's take texts alone


def _features(clip: nn.Module, names: Sequence[str], *args: Any, **kwargs: Any) -> Tensor:
    for name in names:
        call = getattr(clip, name, None)
        if callable(call):
            found = call(*args, **kwargs)
            pooled = getattr(found, "pooler_output", found)
            if isinstance(pooled, Tensor):
                return pooled
    raise ConfigError(
        f"{type(clip).__name__} has no {' or '.join(names)}: pass a CLIP-like model, or wrap yours "
        "in a module that returns logits."
    )
