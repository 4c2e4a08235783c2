"""Reaching the tokens of a vision transformer: where they come in, pass and leave.

Everything here is found by structure and works through hooks that live as long as a `with`
block, so nothing stays behind in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from ostinato.errors import TargetError
from ostinato.ops.blocks import find_blocks

_Change = Callable[[Tensor], Tensor]

# Looking for blocks walks through the whole model, too slow for every forward.
_ends: WeakKeyDictionary[nn.Module, tuple[nn.Module, nn.Module]] = WeakKeyDictionary()


def _end_blocks(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The first and the last block."""
    if model not in _ends:
        blocks = list(find_blocks(model).values())
        _ends[model] = blocks[0], blocks[-1]
    return _ends[model]


@dataclass(frozen=True)
class _Patches:
    """Where patch tokens come from.

    Attributes:
        module: gives all embeddings (B, D, h, w), before positions are added.
        size: height and width in pixels that one token stands for.
    """

    module: nn.Module
    size: tuple[int, int]


def find_patches(model: nn.Module) -> _Patches:
    """Where patches of pixels become tokens.

    That is a convolution whose kernel is its stride; where there is none, the last step of a
    convolutional stem (timm's `HybridEmbed`: a backbone and a projection, which may be none).

    >>> find_patches(nn.Sequential(nn.Conv2d(3, 8, 4, stride=4))).size
    (4, 4)
    """
    for module in model.modules():
        if not isinstance(module, nn.Conv2d) or module.in_channels > 4:
            continue  # convolutions of features may look the same, such as SegFormer's reductions
        if module.kernel_size == module.stride != (1, 1):
            return _Patches(module, (int(module.kernel_size[0]), int(module.kernel_size[1])))
    for module in model.modules():
        if (found := _behind_stem(module)) is not None:
            return found
    raise TargetError(
        "The model has no patch embedding (a convolution whose kernel is its stride, or a "
        "convolutional stem as in timm's hybrids), so its patch tokens cannot be reached; use a "
        "plain vision transformer or another method."
    )


def _behind_stem(module: nn.Module) -> _Patches | None:
    stem, last = getattr(module, "backbone", None), getattr(module, "proj", None)
    ratio: Any = getattr(module, "feat_ratio", None)
    if not (isinstance(stem, nn.Module) and isinstance(last, nn.Module) and callable(ratio)):
        return None
    height, width = ratio(as_scalar=False)
    return _Patches(last, (int(height), int(width)))


def token_width(model: nn.Module) -> int:
    """How many numbers a token has on its way into the first block."""
    for module in _end_blocks(model)[0].modules():
        if isinstance(module, nn.LayerNorm):
            return int(module.normalized_shape[-1])
    raise TargetError(
        "The first block has no LayerNorm that would tell the tokens' width; use a plain vision "
        "transformer or another method."
    )


@contextmanager
def entering(model: nn.Module, change: _Change) -> Iterator[None]:
    """Change the tokens (B, N, D) on their way into the first block."""
    block, _ = _end_blocks(model)

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (change(_sequence(args[0])), *args[1:]), kwargs
        name = next(iter(kwargs))
        return args, {**kwargs, name: change(_sequence(kwargs[name]))}

    handle = block.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def leaving(model: nn.Module, change: _Change) -> Iterator[None]:
    """Change the tokens on their way out of the last block."""
    _, block = _end_blocks(model)

    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output)

    handle = block.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def patches(model: nn.Module, change: _Change) -> Iterator[None]:
    """Change the patch embeddings (B, D, h, w), before positions are added."""

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return change(output)

    handle = find_patches(model).module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _find_final_norm(model: nn.Module) -> nn.LayerNorm | None:
    """The first LayerNorm after the last block, where there is one."""
    last = list(find_blocks(model))[-1]
    passed = False
    for name, module in model.named_modules():
        inside = name == last or name.startswith(f"{last}.")
        passed = passed or inside
        if passed and not inside and isinstance(module, nn.LayerNorm):
            return module
    return None


@contextmanager
def final_tokens(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collects one (B, N, D) tensor a forward: every token after the final norm.

    A model that norms after pooling gives the last block's output instead.
    """
    found: list[Tensor] = []
    norm = _find_final_norm(model)

    def normed(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if output.ndim == 3:
            found[-1] = output

    def keep(tokens: Tensor) -> Tensor:
        found.append(_sequence(tokens))
        return tokens

    handle = None if norm is None else norm.register_forward_hook(normed)
    try:
        with leaving(model, keep):
            yield found
    finally:
        if handle is not None:
            handle.remove()


def _sequence(tokens: Tensor) -> Tensor:
    if tokens.ndim != 3:
        raise TargetError(
            f"The model's blocks pass on {tuple(tokens.shape)}, not a sequence of tokens (batch, "
            "tokens, width); use a plain vision transformer or another method."
        )
    return tokens
