"""A model with one domain's expert built in, or with experts as inputs: what can be exported.

Nothing here learns or routes. A frozen model is a copy of the source model with a map after every
second block and a branch at each place of learning, as plain submodules, so that tracers see them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ostinato.experts._targets import Targets, has_targets, inner_targets
from ostinato.experts.routed import EVERY, SCALE, BlockMap, Branch, Expert, Hooks
from ostinato.ops.blocks import find_blocks
from ostinato.ops.features import open_tokens, prefix_tokens
from ostinato.ops.layouts import FEATURES_LAST, Layout

_PARTS = ("scale", "down", "up", "shift", "prefix")
_Maps = tuple[tuple[Tensor, ...], ...]
"""Per map the five tensors of its kind, each with a first dimension for the domain."""


class _Act(nn.Module):
    """One place's map and branch; tokens in, tokens out."""

    def __init__(self, move: BlockMap | None, branches: Sequence[Branch]) -> None:
        super().__init__()
        self.moves, self.count = move is not None, len(branches)
        if move is not None:
            for name, tensor in zip(_PARTS, move.tensors(), strict=True):
                self.register_buffer(name, tensor.detach().clone())
        for number, branch in enumerate(branches):
            self.register_buffer(f"down{number}", branch.down.detach().clone())
            self.register_buffer(f"up{number}", branch.up.detach().clone())

    def forward(self, tokens: Tensor) -> Tensor:
        if self.moves:
            tokens = BlockMap(*(getattr(self, name) for name in _PARTS))(tokens)
        if self.count:
            down = torch.cat([getattr(self, f"down{n}") for n in range(self.count)], 1)
            up = torch.cat([getattr(self, f"up{n}") for n in range(self.count)], 0)
            tokens = tokens + (SCALE * Branch(down, up)(tokens)).to(tokens.dtype)
        return tokens


class _Hook:
    """Lets an act change a module's output; an object, so that models can be copied."""

    def __init__(self, act: _Act, layout: Layout) -> None:
        self.act, self.layout = act, layout

    def __call__(self, module: Any, inputs: Any, output: Any) -> Any:
        opened = open_tokens(output, self.layout)
        assert opened is not None
        return opened[1](self.act(opened[0]))


def bare_copy(model: nn.Module) -> nn.Module:
    """A copy of a model without the hooks of a method that adapts it."""
    copied = copy.deepcopy(model)
    for module in copied.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key, hook in list(hooks.items()):
                called = getattr(hook, "func", hook)
                if isinstance(getattr(called, "__self__", None), Hooks):
                    del hooks[key]
    return copied


def with_expert(
    model: nn.Module, expert: Expert, shared: Sequence[Branch] = (), targets: Targets = None
) -> tuple[nn.Module, nn.ModuleList]:
    """A copy of the model that answers as it does under this expert, and what acts in it."""
    frozen = bare_copy(model)
    blocks = find_blocks(frozen)
    after_blocks = targets is None and not has_targets(frozen)
    groups = [group for group in (tuple(shared), expert.branches) if group]
    feeds = [] if after_blocks or not groups else inner_targets(frozen, blocks, targets)
    acts = nn.ModuleList()  # kept apart: a child of a sequence would be run as a step
    for number, block in enumerate(blocks.values()):
        mapped = bool(expert.maps) and number % EVERY == 0
        move = expert.maps[number // EVERY] if mapped else None
        branches = [group[number] for group in groups] if after_blocks else []
        acts.append(_let_act(block, _Act(move, branches), Layout.of(block)))
    for number, target in enumerate(feeds):
        act = _Act(None, [group[number] for group in groups])
        acts.append(_let_act(target.module, act, FEATURES_LAST))
    return frozen.eval().requires_grad_(False), acts


def _let_act(module: nn.Module, act: _Act, layout: Layout) -> _Act:
    if act.moves or act.count:
        module.register_forward_hook(_Hook(act, layout))
    return act


class _Passing:
    """What belongs to the present forward; an object, since tracers copy a module's containers."""

    maps: _Maps
    index: Tensor
    sums: list[tuple[Tensor, Tensor, Tensor]]


class MapsAsInputs(nn.Module):
    """`(images, maps, index) → (logits, sums)`: experts come in, what they are made from goes out.

    Of each block that has a map, and each domain among the rows of the maps, the sums are of the
    tokens as they leave the block, before the map: how many, their sum, and the sum of their outer
    products.

    Args:
        vision: pixels to logits.
    """

    def __init__(self, vision: nn.Module) -> None:
        super().__init__()
        self.vision = bare_copy(vision)
        self.vision.eval().requires_grad_(False)
        self._now = _Passing()
        self.prefix = prefix_tokens(self.vision)
        mapped = list(find_blocks(self.vision).values())[::EVERY]
        for number, block in enumerate(mapped):
            block.register_forward_hook(_Routed(number, self._now, self.prefix, block))

    def forward(
        self, images: Tensor, maps: _Maps, index: Tensor
    ) -> tuple[Tensor, tuple[tuple[Tensor, Tensor, Tensor], ...]]:
        """Logits, and per map (domains,), (domains, D) and (domains, D, D) sums.

        Args:
            images: pixels in [0, 1].
            maps: see `stack_maps`; row 0 is the source's.
            index: per image, its row.
        """
        self._now.maps, self._now.index, self._now.sums = maps, index, []
        logits = self.vision(images)
        return logits, tuple(self._now.sums)


class _Routed:
    """The hook of `MapsAsInputs`."""

    def __init__(self, number: int, now: _Passing, prefix: int, block: nn.Module) -> None:
        self.number, self.now, self.prefix = number, now, prefix
        self.layout = Layout.of(block)

    def __call__(self, module: Any, inputs: Any, output: Any) -> Any:
        maps, index, sums = self.now.maps, self.now.index, self.now.sums
        opened = open_tokens(output, self.layout)
        assert opened is not None
        tokens, put_back = opened
        mine = maps[self.number]
        rows = torch.nn.functional.one_hot(index, mine[0].shape[0]).to(tokens.dtype)
        body = tokens[:, self.prefix :]
        first = torch.einsum("bk,bnd->kd", rows, body)
        second = torch.einsum("bk,bnd,bne->kde", rows, body, body)
        sums.append((rows.sum(0) * body.shape[1], first, second))
        return put_back(BlockMap(*(part[index] for part in mine))(tokens))


def stack_maps(experts: Sequence[Expert]) -> _Maps:
    """The maps of some domains as `MapsAsInputs` takes them; row 0, the source's, does nothing."""
    known = next(expert.maps for expert in experts if expert.maps)
    stacked = []
    for number, like in enumerate(known):
        found = [expert.maps[number].tensors() if expert.maps else None for expert in experts]
        rows = [None, *found]
        parts = [
            torch.stack([torch.zeros_like(zero) if row is None else row[part] for row in rows])
            for part, zero in enumerate(like.tensors())
        ]
        stacked.append(tuple(parts))
    return tuple(stacked)
