"""A model's blocks under `torch.compile`, for as long as a capture is recorded.

Between the products of a block stand operators that read and write whole tensors: norms, casts,
residual sums, activations, and all of them again on the way back. Compiled, several are one.
Hooks stay as they are: whatever is compiled ends before a hook and begins again behind it, so that
no expert is part of what was compiled and none of them makes it compile anew. A capture keeps what
ran while it was recorded, so nothing is looked up or compiled when it is replayed.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

_KINDS = 64
_ONE = threading.RLock()
"""One model at a time: its forwards are put back in the order in which they were replaced."""


class CompiledBlocks:
    """Blocks that can be run compiled.

    Args:
        blocks: of one model, alike or not; those that are alike share what is compiled.
        hooked: modules with hooks that are not to be compiled, and each one's hook's number.
        compile: makes a function faster; `torch.compile` unless a test says otherwise.

    >>> import timm
    >>> from ostinato.experts.routed import Hooks
    >>> model = timm.create_model("test_vit", num_classes=10)
    >>> hooks = Hooks(model)
    >>> compiled = hooks.compiled(compile=lambda function: function)
    >>> with compiled():
    ...     "forward" in vars(model.blocks[0])
    True
    >>> "forward" in vars(model.blocks[0])
    False
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        hooked: Sequence[tuple[nn.Module, int]] = (),
        compile: Callable[..., Any] | None = None,
    ) -> None:
        self._blocks, self._hooked = tuple(blocks), tuple(hooked)
        self._compile = compile or _compiled
        self._made: list[Callable[..., Any]] = []

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Inside, the blocks' forwards are compiled; the first time compiles them."""
        if not self._made:
            self._made = [self._compile(block.forward) for block in self._blocks]
        with _ONE, ExitStack() as after:
            after.enter_context(_room())
            after.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", r"The \.grad attribute")  # looked at by the compiler
            for module, number in self._hooked:
                _leave_alone(module, number, after)
            for block, made in zip(self._blocks, self._made, strict=True):
                _put(vars(block), "forward", made, after)
            yield


def _room() -> AbstractContextManager[None]:
    """Room for every batch size and both modes; torch goes on uncompiled beyond a few."""
    from torch import _dynamo  # loading it takes seconds

    config: Any = _dynamo.config
    patched: AbstractContextManager[None] = config.patch(recompile_limit=_KINDS)
    return patched


def _compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(forward, dynamic=False)
    return made


def _leave_alone(module: nn.Module, number: int, after: ExitStack) -> None:
    """Have a hook run as it is, in the middle of what is compiled."""
    disable: Any = torch.compiler.disable
    hooks = module._forward_hooks if number in module._forward_hooks else module._forward_pre_hooks
    _put(hooks, number, disable(hooks[number]), after)


def _put(held: Any, name: Any, value: Any, after: ExitStack) -> None:
    """Hold a value for now; what was there, or that nothing was, comes back at the end."""
    if name in held:
        after.callback(held.__setitem__, name, held[name])
    else:
        after.callback(held.pop, name, None)
    held[name] = value
