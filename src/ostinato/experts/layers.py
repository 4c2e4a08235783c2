"""The two branches of experts at one FFN; the experts themselves are in `mixture`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ostinato.errors import InputError, TargetError
from ostinato.experts._mixture import (
    ExpertConfig,
    LowRankExpert,
    Mixture,
    fused,
    gate_spread,
    seeded,
)
from ostinato.ops.layouts import FEATURES_LAST, Layout

__all__ = ["Assignment", "DualBranch", "ExpertConfig", "LowRankExpert", "Mixture"]


@dataclass(frozen=True)
class Assignment:
    """Which images belong to which domain; made once for all layers.

    >>> [(d, index.tolist()) for d, index in Assignment.of([7, 3, 7]).groups]
    [(3, [1]), (7, [0, 2])]
    """

    groups: tuple[tuple[int, Tensor], ...]
    order: Tensor
    count: int

    @classmethod
    def of(cls, domains: Sequence[int] | Tensor, device: torch.device | str = "cpu") -> Assignment:
        """From one domain id per image."""
        ids = torch.as_tensor(domains).flatten().cpu()
        groups = [(int(i), (ids == i).nonzero()[:, 0]) for i in ids.unique()]
        order = torch.cat([index for _, index in groups]).argsort()
        return cls(tuple((d, i.to(device)) for d, i in groups), order.to(device), len(ids))


class DualBranch(nn.Module):
    """An FFN with a shared mixture and one mixture per domain beside it.

    `Z + λ·Y_shared + (1 − λ)·Y_domain`, with Z the output of `base_layer`. Until an update the
    result equals `base_layer`'s bit for bit. Parameters are kept in at least fp32, whatever the
    backbone's dtype, so that small steps are not rounded away.

    With fusion "learned" λ is `balance + offset`, one scalar; with "input" it is
    `balance + offset + mean(gate · layer_norm(mean of the image's tokens))`. Both start at
    exactly `balance`, are cut to [0, 1], and belong to the shared group of parameters.

    >>> layer = DualBranch(nn.Linear(8, 8), 8, ExpertConfig(shared_rank=4, domain_rank=2))
    >>> layer.add_domain(0)
    >>> layer.select(0)
    >>> x = torch.randn(2, 5, 8)
    >>> torch.equal(layer(x), layer.base_layer(x))
    True
    """

    shared: Mixture | None
    spread: Tensor

    def __init__(
        self,
        base_layer: nn.Module,
        dim: int,
        config: ExpertConfig,
        *,
        name: str = "",
        seed: int = 0,
        layout: Layout = FEATURES_LAST,
    ) -> None:
        super().__init__()
        self.base_layer, self.layout = base_layer, layout
        self.dim, self.config, self.name, self.seed = dim, config, name, seed
        self.training = base_layer.training
        where = next(base_layer.parameters(), torch.empty(0))
        self.shared = self._make(config.shared_rank, "shared", where) if config.shared else None
        self.domains = nn.ModuleDict().train(self.training)
        self._add_fusion(where)
        self.register_buffer("spread", gate_spread(config).to(where.device), persistent=False)
        # Held in tuples: registered once in `domains`, and a change of domain is a change of
        # tensors under the same attribute, which costs a compiled model no new compilation.
        self.bypass = False  # the source model's own output, for those who need to see it
        self._current: tuple[Mixture, ...] = ()
        self._groups: tuple[tuple[Mixture, Tensor], ...] = ()
        self._order: Tensor | None = None
        self._count: int | None = None
        # Where the FFN is spread over several modules, a hook on the first leaves its input here.
        self.entry: object | None = None
        self.entered: Tensor | None = None

    def _make(self, rank: int, label: object, where: Tensor) -> Mixture:
        dtype = torch.float64 if where.dtype == torch.float64 else torch.float32
        generator = seeded(self.seed, label, self.name)
        experts = self.config.experts
        made = Mixture(
            self.dim, rank, experts, generator=generator, device=where.device, dtype=dtype
        )
        # In the layer's own mode: a model with a part that trains is not tried for sizes.
        return made.train(self.training)

    def _add_fusion(self, where: Tensor) -> None:
        self.offset = self.gate = None
        if self.config.fusion != "fixed":
            self.offset = nn.Parameter(torch.zeros((), device=where.device))
        if self.config.fusion == "input":
            self.gate = nn.Parameter(torch.zeros(self.dim, device=where.device))

    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """The shared group here, by name: the shared mixture and the fusion parameters."""
        found = {} if self.shared is None else dict(self.shared.named_parameters())
        extra = {"offset": self.offset, "gate": self.gate}
        return {**found, **{name: p for name, p in extra.items() if p is not None}}

    def domain_parameters(self, domain: int) -> dict[str, nn.Parameter]:
        """One domain's parameters here, by name; none where the domain branch is off."""
        return dict(self.mixture(domain).named_parameters()) if self.config.domain else {}

    def add_domain(self, domain: int) -> None:
        """Add a mixture without effect; its start depends on seed, id and layer name alone."""
        if self.config.domain:
            where = next(self.base_layer.parameters(), torch.empty(0))
            self.domains[str(domain)] = self._make(self.config.domain_rank, domain, where)

    def remove_domain(self, domain: int) -> None:
        """Forget a domain; where it was selected, no domain is selected any more."""
        if not self.config.domain:
            return
        gone = self.mixture(domain)
        if gone in self._current or any(gone is mixture for mixture, _ in self._groups):
            self.select(None)
        del self.domains[str(domain)]

    @torch.no_grad()
    def reset_group(self, group: int | Literal["shared"]) -> None:
        """Back to the group's start, which has no effect."""
        mixture = self.shared if group == "shared" else self._maybe(group)
        if mixture is not None:
            mixture.reset(seeded(self.seed, group, self.name))
        if group == "shared":
            for parameter in (self.offset, self.gate):
                if parameter is not None:
                    parameter.zero_()

    def select(self, domain: int | Sequence[int] | Tensor | Assignment | None) -> None:
        """Choose the domain of the next batches: one for all images, one per image, or none."""
        self._current, self._groups, self._order, self._count = (), (), None, None
        if domain is None or not self.config.domain:
            return
        if isinstance(domain, int):
            self._current = (self.mixture(domain),)
            return
        if not isinstance(domain, Assignment):
            domain = Assignment.of(domain, self.spread.device)
        self._groups = tuple((self.mixture(d), index) for d, index in domain.groups)
        self._order, self._count = domain.order, domain.count

    def mixture(self, domain: int) -> Mixture:
        """A domain's experts here."""
        mixture = self._maybe(domain)
        if mixture is None:
            known = ", ".join(self.domains) or "none"
            raise InputError(f"There is no domain {domain} here; known: {known}. Add it first.")
        return mixture

    def _maybe(self, domain: int) -> Mixture | None:
        key = str(domain)
        if key not in self.domains:
            return None
        found = self.domains[key]
        return found if isinstance(found, Mixture) else None

    def __getattr__(self, name: str) -> Any:
        # Code around the FFN may ask it for its weight's dtype or its width.
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base_layer":
                raise
            return getattr(super().__getattr__("base_layer"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """`base_layer` with the same arguments, plus the branches."""
        fed = self._fed(args, kwargs) if self.config.placement == "parallel" else None
        output: Any = self.base_layer(*args, **kwargs)
        if self.bypass:
            return output  # type: ignore[no-any-return]
        swapped = isinstance(output, Tensor) and self.layout.channels_first(output.shape)
        last = output.movedim(1, -1) if swapped else output
        z = last if fed is None else fed
        self._check(last, z)
        delta = self._delta(z)
        if delta is None:
            return output  # type: ignore[no-any-return]
        result: Tensor = output + (delta.movedim(-1, 1) if swapped else delta).to(output.dtype)
        return result

    def _fed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.entry is None:
            return args[0] if args else next(iter(kwargs.values()), None)
        fed, self.entered = self.entered, None
        return fed

    def _check(self, output: Any, z: Any) -> None:
        for value, what in ((output, "gave"), (z, "was fed")):
            if not isinstance(value, Tensor):
                raise TargetError(
                    f"{self.name or 'the layer'} {what} {type(value).__name__}, not a tensor: "
                    "choose with targets= a module that maps tokens to tokens."
                )
            if value.shape[-1] != self.dim:
                raise TargetError(
                    f"{self.name or 'the layer'} {what} shape {tuple(value.shape)}, but its "
                    f"{self.dim} features should come last: channels-first FFNs do not fit."
                )

    def _delta(self, z: Tensor) -> Tensor | None:
        if not self._groups:
            return self._branches(z, self._current)
        if z.shape[0] != self._count:
            raise InputError(
                f"{self._count} domains were selected, one per image, but the batch at "
                f"{self.name or 'this layer'} has {z.shape[0]}: select {z.shape[0]} domains."
            )
        if len(self._groups) == 1:
            return self._branches(z, (self._groups[0][0],))
        parts = [self._branches(z[index], (mixture,)) for mixture, index in self._groups]
        return torch.cat([part for part in parts if part is not None])[self._order]

    def _branches(self, z: Tensor, domain: tuple[Mixture, ...]) -> Tensor | None:
        mixtures = domain if self.shared is None else (self.shared, *domain)
        if not mixtures:
            return None
        weights = self._weights(z)
        first = 1 if self.shared is None else 0
        if self.config.form == "reference":
            parts = [w * m(z) for w, m in zip(weights[first:], mixtures, strict=False)]
            return torch.stack(parts).sum(0)
        spread = self._spread_of(len(mixtures), first)
        if isinstance(weights[0], float):
            return fused(z, mixtures, spread)
        used = [w for w in weights[first : first + len(mixtures)] if isinstance(w, Tensor)]
        return fused(z, mixtures, spread, torch.stack([w.squeeze(-1) for w in used], -1))

    def _spread_of(self, count: int, first: int) -> Tensor:
        """The rows and columns of `spread` for the branches in use."""
        if count == 2:
            return self.spread
        experts, width = self.config.experts, self.config.experts * self.config.shared_rank
        return self.spread[experts:, width:] if first else self.spread[:experts, :width]

    def _weights(self, z: Tensor) -> tuple[float, float] | tuple[Tensor, Tensor]:
        """(λ, 1 − λ): numbers, or tensors that broadcast against z."""
        if self.offset is None:
            return self.config.balance, 1.0 - self.config.balance
        offset = self.offset.to(z.dtype)
        if self.gate is not None:
            pooled = z.flatten(1, -2).mean(1) if z.dim() > 2 else z
            pooled = F.layer_norm(pooled, (self.dim,))
            offset = offset + (pooled * self.gate).mean(-1)
        share = (self.config.balance + offset).clamp(0, 1)
        share = share.view(-1, *[1] * (z.dim() - 1)).to(z.dtype)
        return share, 1 - share
