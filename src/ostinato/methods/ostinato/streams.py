"""Many streams over one frozen model: each learns for itself, and common forwards answer them.

`SharedModel` owns the source model, the hooks and one stack of experts; every `StreamMethod` on it
has its own domains, experts, prior and trust. `methods.ostinato.common` answers their questions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ostinato.domains.table import Array
from ostinato.domains.texture import Texture
from ostinato.experts.maps import map_rank
from ostinato.experts.routed import EVERY, Hooks
from ostinato.experts.stack import Layout, Rows, Stack, StackPass
from ostinato.experts.unread import leave_out_unread
from ostinato.methods.base import Resources
from ostinato.methods.ostinato import Ostinato
from ostinato.methods.ostinato._bank import Domain
from ostinato.methods.ostinato._narrowed import Narrowed
from ostinato.methods.ostinato._published import Publisher
from ostinato.methods.ostinato._whole import Wholes
from ostinato.methods.ostinato.desk import Desk
from ostinato.methods.ostinato.settings import OstinatoConfig
from ostinato.models import Normalize, VisionModel, fingerprint
from ostinato.ops.borrowed import Borrowed
from ostinato.ops.precision import Precision, products
from ostinato.ops.statistics import SourceStatistics, check_fits
from ostinato.ops.trainable import Flags, claim
from ostinato.ops.views import Viewed

_RESERVED = 1024
"""Experts that a GPU has rows for from the start: captured forwards hold until there are more."""


class SharedModel(VisionModel):
    """The one frozen source model of all streams, with the places where their experts act.

    Args:
        model: gets hooks and is frozen.
        statistics: of clean images.
        config: ranks and precision, which all streams share.
        normalize: the input convention.
        targets: feed-forward networks for learned branches; None finds them.
    """

    def __init__(
        self,
        model: nn.Module,
        statistics: SourceStatistics,
        config: OstinatoConfig | None = None,
        *,
        normalize: Normalize = "model",
        targets: Any = None,
    ) -> None:
        super().__init__(model, normalize=normalize)
        chosen = config or OstinatoConfig()
        self.building = True  # methods made on it belong to it
        claim(model, self)
        Flags.freeze(model)
        blocks = [(block.mean.numel(), block.prefix.shape[0]) for block in statistics.tokens]
        self.hooks = Hooks(model, targets, [width for width, _ in blocks])
        check_fits(statistics, self.hooks.blocks, fingerprint(model))
        leave_out_unread(self.hooks, self, self.example())
        self.statistics = statistics.to(self.device)
        content = statistics.content
        self.content = None if content is None else content.to(self.device)
        self.describe = Texture()
        self.precision: Precision = chosen.precision
        self.ranks = (chosen.shared_rank, chosen.domain_rank)
        layout = Layout(
            tuple((width, map_rank(width), prefix) for width, prefix in blocks[::EVERY]),
            tuple((width, sum(self.ranks)) for _, width in self.hooks.widths),
        )
        own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float)
        kind = torch.bfloat16 if self.precision == "bf16" else own
        self.stack = Stack(layout, self.device, kind)
        self.desk = Desk(self.stack, self.device)
        self.publisher: Publisher | None = None
        self.narrowed = Narrowed()
        self.captures: Wholes | None = None
        viewed = any(isinstance(module, Viewed) for module in self.modules())
        # Input that came normalised goes to the model as it came, in a tensor of its own.
        may = bool(chosen.compile) and normalize != "input" and not viewed
        if self.device.type == "cuda" and may:
            self.captures = Wholes(Borrowed(self._narrow))
            self.stack.reserve(min(self.desk.most // 4, _RESERVED))

    def answer(self, pixels: Tensor, index: Array, rows: Rows, *, learned: bool) -> Tensor:
        """Logits of images, each under the expert in its row; on a GPU they are under way.

        Args:
            pixels: (B, 3, H, W) in [0, 1], on the model's device.
            index: (B,) rows; 0 is the source's.
            rows: the stack's.
            learned: whether any of these experts has learned branches.
        """
        acting = bool((index > 0).any())
        if self.captures is not None:
            found = self.captures(pixels, index, rows, maps=acting, branches=acting and learned)
            if found is not None:
                return found
        single = int(index[0]) if (index == index[0]).all() else None
        where = torch.from_numpy(index).to(self.device)
        now = StackPass(where, rows, single=single, maps=acting, branches=acting and learned)
        return self._under(pixels, now)

    def _under(self, pixels: Tensor, now: StackPass) -> Tensor:
        kind, half = self.device.type, self.precision == "bf16"
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            products(self.precision),
            torch.autocast(kind, torch.bfloat16, enabled=half),
            self.hooks.open(now),
        ):
            return self(pixels).float()  # type: ignore[no-any-return]

    def _narrow(self, pixels: Tensor, now: StackPass) -> Tensor:
        with self.narrowed:
            return self._under(pixels, now)


class StreamMethod(Ostinato):
    """The method for one of many streams on a shared model.

    Attributes:
        held: domains whose experts stay as they are.
    """

    model: SharedModel

    def __init__(self, model: SharedModel, config: OstinatoConfig) -> None:
        super().__init__(model, config, Resources(model.statistics))
        self.held: set[int] = set()

    def open_hooks(self) -> Hooks:
        """Those of the shared model."""
        return self.model.hooks

    def release(self) -> None:
        """The hooks stay: other streams act at them."""

    def _publisher(self) -> Publisher:
        """One for all streams: experts answer from the shared stack, not from one each."""
        if self.model.publisher is None:
            self.model.publisher = super()._publisher()
        return self.model.publisher

    def _may_capture(self) -> bool:
        return False  # a graph would be captured for each stream, while others compute

    def take(self, levels: Tensor) -> tuple[str, ...]:
        """Learn from one question's images (uint8); what happened to domains, in order.

        The same images in the same order give the same state, whatever was answered meanwhile.
        """
        with self._at_work(), torch.inference_mode(False), torch.enable_grad(), self._exactness():
            pixels = levels.to(self.model.device).float() / 255
            self._take_in(pixels, self._described(pixels), None)
            self._learn_waiting(None)
            self.held &= set(self.bank.domains)
            return tuple(self.events)

    def forget(self, domain: int) -> None:
        """Take one domain out: its images are the source's again."""
        with self._lock:
            self.router.remove(domain)
            self.bank.domains.pop(domain)
            self.held.discard(domain)
            self._republish()

    def _window(self, number: int) -> int:
        return 0 if number in self.held else super()._window(number)

    def _may_learn(self, domain: Domain) -> bool:
        return self.bank.number(domain) not in self.held and super()._may_learn(domain)
