"""The pool: one shared group of experts and one group per domain, grown on demand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ostinato.errors import ConfigError, InputError, UnknownName
from ostinato.experts._group import Group, MakeOptimizer
from ostinato.experts._inject import eject, inject
from ostinato.experts._mixture import mixture_shapes, product_gap
from ostinato.experts._pool_state import expected_pool, export_pool, import_pool
from ostinato.experts._targets import Targets
from ostinato.experts.layers import Assignment, DualBranch, ExpertConfig
from ostinato.ops.expect import Expected
from ostinato.ops.snapshot import State

_GroupId = int | Literal["shared"]
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Retired:
    """A domain that had to make room, and the one it was merged into (None: removed).

    >>> Retired(domain=3, into=1).into
    1
    """

    domain: int
    into: int | None


class ExpertPool:
    """Experts in every FFN of a model: a shared group and a group per domain.

    Each group has its own optimizer, whose state travels with it. Parameters of domains that are
    not selected get no gradient and never move. The backbone is left as it is; freezing it is the
    caller's part.

    Args:
        model: is changed in place; `detach` undoes that.
        config: what the experts look like.
        optimizer: makes an optimizer for a list of parameters; called once per group.
        targets: where the experts go; None finds every FFN.
        seed: start of every expert, together with its domain id and layer name.
        max_domains: bound on the number of domains; None for none.
        retire: at the bound, "lru" removes the domain selected longest ago, "merge" merges the two
            nearest (averaging their parameters).
        offload: keep domains that are not selected, and all snapshots, on the CPU. Select before
            the forward pass and not again until after the step.

    >>> model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 32, batch_first=True))
    >>> pool = ExpertPool(model, ExpertConfig(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    >>> pool.add(0), pool.add(1), pool.select(1)
    (None, None, None)
    >>> pool.domains, pool.active, pool.count("shared"), pool.count(1)
    ((0, 1), 1, 1042, 530)
    """

    def __init__(
        self,
        model: nn.Module,
        config: ExpertConfig,
        *,
        optimizer: MakeOptimizer,
        targets: Targets = None,
        seed: int = 0,
        max_domains: int | None = None,
        retire: Literal["lru", "merge"] = "lru",
        offload: bool = False,
    ) -> None:
        least = 2 if retire == "merge" else 1
        if retire not in ("lru", "merge"):
            raise ConfigError(f"retire = {retire!r}: choose 'lru' or 'merge'.")
        if max_domains is not None and max_domains < least:
            raise ConfigError(f"max_domains = {max_domains}: retire={retire!r} needs {least}.")
        self.model, self.config, self.offload = model, config, offload
        self.max_domains, self.retire = max_domains, retire
        self.layers: dict[str, DualBranch] = inject(model, config, targets, seed)
        self.make_optimizer = optimizer
        self.groups: dict[_GroupId, Group] = {"shared": self.make_group("shared")}
        self.used: list[int] = []
        self.active: int | tuple[int, ...] | None = None

    # Domains.

    @property
    def domains(self) -> tuple[int, ...]:
        """The ids, in order of creation."""
        return tuple(group for group in self.groups if group != "shared")

    def add(
        self, domain: int, nearest: Callable[[], tuple[int, int]] | None = None
    ) -> Retired | None:
        """Add a domain without effect; at the bound another one is retired first.

        Args:
            domain: a new id.
            nearest: with retire="merge", gives the pair (source, into) to merge; by default the
                pair whose experts' linear parts, `W_down W_up`, differ least.
        """
        if domain in self.groups:
            raise InputError(f"Domain {domain} is in the pool already; select it.")
        full = self.max_domains is not None and len(self.domains) >= self.max_domains
        retired = self._retire(nearest) if full else None
        for layer in self.layers.values():
            layer.add_domain(domain)
        self.groups[domain] = self.make_group(domain)
        self.used.append(domain)
        if self.offload:
            self.groups[domain].move(_CPU)
        return retired

    def _retire(self, nearest: Callable[[], tuple[int, int]] | None) -> Retired:
        if self.retire == "lru":
            gone = self.used[0]
            self.remove(gone)
            return Retired(gone, None)
        source, into = (nearest or self.nearest)()
        self.merge(source, into)
        return Retired(source, into)

    def select(self, domain: int | Sequence[int] | Tensor) -> None:
        """Route the next batches to one domain, or each image of the batch to its own."""
        wanted = domain if isinstance(domain, int) else tuple(int(d) for d in domain)
        chosen = dict.fromkeys([wanted] if isinstance(wanted, int) else wanted)
        if not chosen:
            raise InputError("No domain was given: select one, or one per image.")
        for each in chosen:
            self._known(each)
        for other in self.domains:
            if other not in chosen:
                self.groups[other].zero_grad()
                if self.offload:
                    self.groups[other].move(_CPU)
        for each in chosen:
            self.groups[each].move(self.device)
            self.used.remove(each)
            self.used.append(each)
        routed = wanted if isinstance(wanted, int) else Assignment.of(wanted, self.device)
        for layer in self.layers.values():
            layer.select(routed)
        self.active = wanted

    def remove(self, domain: int) -> None:
        """Forget a domain; where it was selected, none is selected any more."""
        self._known(domain)
        if domain in self._selected():
            self.deselect()
        for layer in self.layers.values():
            layer.remove_domain(domain)
        del self.groups[domain]
        self.used.remove(domain)

    @torch.no_grad()
    def merge(self, source: int, into: int, weight: float = 0.5) -> None:
        """Move `into` towards `source` by `weight`, in parameters, and remove `source`.

        `into` keeps its snapshot; its optimizer starts anew, as its moments were another point's.
        """
        if source == into:
            raise InputError(f"Domain {source} cannot be merged with itself.")
        if not 0 <= weight <= 1:
            raise ConfigError(f"weight = {weight}: choose one from 0 (into) to 1 (source).")
        kept, gone = self._known(into), self._known(source)
        for name, parameter in kept.parameters.items():
            parameter.lerp_(gone.parameters[name].to(parameter.device), weight)
        kept.forget()
        active = self.active
        self.remove(source)
        if isinstance(active, tuple) and source in active:
            self.select(tuple(into if d == source else d for d in active))
        elif active == source:
            self.select(into)

    def nearest(self) -> tuple[int, int]:
        """The two domains with the most alike experts, as (source, into): the younger goes."""
        pairs = list(combinations(self.domains, 2))
        if not pairs:
            raise InputError("There is no pair of domains yet: add another one.")
        into, source = min(pairs, key=lambda pair: self.distance(*pair))
        return source, into

    @torch.no_grad()
    def distance(self, a: int, b: int) -> float:
        """How far apart two domains are: `‖W_down W_up − W'_down W'_up‖` over all layers."""
        self._known(a), self._known(b)
        total = 0.0
        for layer in self.layers.values():
            if self.config.domain:
                total += product_gap(layer.mixture(a), layer.mixture(b))
        return math.sqrt(max(total, 0.0))

    @contextmanager
    def bypass(self) -> Iterator[None]:
        """Inside, the model is its source: no expert takes part."""
        for layer in self.layers.values():
            layer.bypass = True
        try:
            yield
        finally:
            for layer in self.layers.values():
                layer.bypass = False

    # Parameters.

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(iter(self.layers.values())).spread.device

    def parameters(self, group: _GroupId) -> list[nn.Parameter]:
        """A group's parameters, layer by layer."""
        return list(self._known(group).parameters.values())

    def trainable(self) -> list[nn.Parameter]:
        """The shared group's parameters and those of every selected domain."""
        return [p for group in self._live() for p in group.parameters.values()]

    def optimizers(self) -> list[Optimizer]:
        """The optimizers of the shared group and of every selected domain."""
        return [group.optimizer for group in self._live() if group.optimizer is not None]

    def zero_grad(self) -> None:
        """Drop the gradients of everything that is trained now."""
        for group in self._live():
            group.zero_grad()

    def step(self) -> None:
        """One step of the shared group and of every selected domain."""
        for optimizer in self.optimizers():
            optimizer.step()

    def set_lr(self, lr: float, group: _GroupId) -> None:
        """Set a group's learning rate, and what annealing starts from."""
        optimizer = self._known(group).optimizer
        for settings in optimizer.param_groups if optimizer is not None else ():
            settings["lr"] = settings["initial_lr"] = lr

    def count(self, group: _GroupId | Literal["domain"]) -> int:
        """Number of parameters of a group; "domain" is what each domain has, or would have."""
        if group != "domain":
            return self._known(group).count()
        return sum(math.prod(shape) for shape in self.shapes(0).values())

    @torch.no_grad()
    def norm(self, group: _GroupId) -> float:
        """The L2 norm of a group's `W_up`; 0 exactly while the group has no effect."""
        ups = [p for name, p in self._known(group).parameters.items() if name.endswith("/up")]
        return float(torch.stack([p.norm() for p in ups]).norm()) if ups else 0.0

    def snapshot(self, group: _GroupId) -> None:
        """Keep the group's parameters and optimizer state as its last good ones."""
        self._known(group).keep(_CPU if self.offload else None)

    def restore(self, group: _GroupId) -> bool:
        """Back to the last snapshot, which is kept; without one nothing changes (False)."""
        found = self._known(group)
        if found.kept is not None:
            found.restore(found.kept)
        return found.kept is not None

    def rollback(self, group: _GroupId) -> bool:
        """Back to the last snapshot (True), or to the start without effect if there is none.

        A snapshot serves once: what went wrong from there is not trusted a second time.
        """
        found = self._known(group)
        if self.restore(group):
            found.kept = None
            return True
        for layer in self.layers.values():
            layer.reset_group(group)
        found.forget()
        found.zero_grad()
        return False

    def detach(self) -> nn.Module:
        """Take every expert out; returns the model as it was."""
        return eject(self.model)

    # State.

    def export_state(self) -> State:
        """Parameters, optimizers, snapshots, ids and use; tensors may be the live ones."""
        return export_pool(self)

    def expected(self, state: State) -> Expected:
        """Every listed domain's parameters and optimizer, and lists that fit together."""
        return expected_pool(self, state)

    def import_state(self, state: State) -> None:
        """Become what `export_state` described; a state that does not fit changes nothing."""
        import_pool(self, state)

    # The inner parts.

    def shapes(self, group: _GroupId) -> dict[str, tuple[int, ...]]:
        """What a group's parameters look like, whether the group exists or not."""
        if group == "shared":
            parameters = self.groups["shared"].parameters.items()
            return {name: tuple(p.shape) for name, p in parameters}
        if not self.config.domain:
            return {}
        rank, experts = self.config.domain_rank, self.config.experts
        return {
            f"{layer}/{name}": shape
            for layer, branch in self.layers.items()
            for name, shape in mixture_shapes(branch.dim, rank, experts).items()
        }

    def make_group(self, group: _GroupId) -> Group:
        """A group of the parameters that the layers have now."""
        found = {}
        for name, layer in self.layers.items():
            own = layer.shared_parameters() if group == "shared" else layer.domain_parameters(group)
            found.update({f"{name}/{key}": parameter for key, parameter in own.items()})
        return Group(found, self.make_optimizer)

    def _known(self, group: _GroupId) -> Group:
        if group not in self.groups:
            known = ", ".join(map(str, self.domains)) or "none"
            raise UnknownName(f"There is no domain {group}; known: {known}. Add it first.")
        return self.groups[group]

    def _selected(self) -> Iterable[int]:
        if self.active is None:
            return ()
        return (self.active,) if isinstance(self.active, int) else dict.fromkeys(self.active)

    def _live(self) -> list[Group]:
        return [self.groups["shared"], *(self.groups[d] for d in self._selected())]

    def deselect(self) -> None:
        """Select no domain; the shared branch alone has an effect."""
        self.active = None
        for layer in self.layers.values():
            layer.select(None)
