"""The domains known so far: stable ids and stacked Gaussians."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.domains import _gaussian as gaussian
from ostinato.domains.settings import DiscriminatorConfig
from ostinato.errors import InputError, StateError
from ostinato.ops.expect import Expected, Kind, Like
from ostinato.ops.snapshot import State


class DomainStore:
    """Gaussians of all domains, stacked so that scoring is one expression.

    Ids count up and are never used again. Changes build new tensors: what was exported stays.

    >>> store = DomainStore(DiscriminatorConfig())
    >>> store.open(0, torch.zeros(30, 4))
    >>> store.ids, store.images, store.distances(torch.ones(1, 4), corrected=False) > 1
    ((0,), (30,), tensor([True]))
    """

    def __init__(self, config: DiscriminatorConfig) -> None:
        self.config = config
        self.clear()

    def clear(self) -> None:
        """Forget every domain; ids start at 0 again."""
        self.ids: tuple[int, ...] = ()
        self.weights: tuple[int, ...] = ()
        self.images: tuple[int, ...] = ()
        self.next_id = 0
        self.mean = self.covariance = self.scale = torch.empty(0)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def dimension(self) -> int | None:
        """Length of a descriptor, once there is a domain."""
        return int(self.mean.shape[1]) if self.ids else None

    def row(self, domain: int) -> int:
        """Where a domain lies in the stacks."""
        if domain not in self.ids:
            known = ", ".join(map(str, self.ids)) or "none"
            raise InputError(f"There is no domain {domain}. Known: {known}.")
        return self.ids.index(domain)

    def follow(self, device: torch.device) -> None:
        """Be where the descriptors are (a loaded state arrives on the CPU)."""
        if self.ids and self.mean.device != device:
            self.mean, self.covariance = self.mean.to(device), self.covariance.to(device)
            self.scale = self.scale.to(device)

    # -- reading -----------------------------------------------------------------------------

    def distances(self, z: Tensor, corrected: bool | None = None) -> Tensor:
        """Distance of the mean of z to every domain: (K,)."""
        if corrected if corrected is not None else self.config.correction:
            images = torch.tensor(self.images, dtype=z.dtype, device=z.device)
            return gaussian.corrected_distance(
                z, self.mean, self.covariance, self.scale, images, self.config.shrinkage
            )
        return gaussian.distance(z.mean(0, keepdim=True), self.mean, self.scale)[0]

    def nearest_pair(self) -> tuple[int, int]:
        """The two domains whose means lie closest, each measured under both scales.

        As (source, into): the younger is the one to go.
        """
        if len(self) < 2:
            raise InputError(f"A pair needs two domains, there are {len(self)}.")
        one_way = gaussian.distance(self.mean, self.mean, self.scale)
        apart = one_way + one_way.T
        apart.fill_diagonal_(float("inf"))
        first, second = divmod(int(apart.argmin()), len(self))
        return self.ids[max(first, second)], self.ids[min(first, second)]

    # -- changing ----------------------------------------------------------------------------

    def open(self, domain: int, z: Tensor) -> None:
        """A new domain: c = 1, the mean of z, and the initial variance."""
        if domain < self.next_id:
            raise InputError(f"Domain id {domain} was used before, the next is {self.next_id}.")
        mean, covariance = self._fresh(z)
        scale = self._scale(covariance)
        if self.ids:
            mean, covariance, scale = (
                torch.cat([old, new[None]])
                for old, new in (
                    (self.mean, mean),
                    (self.covariance, covariance),
                    (self.scale, scale),
                )
            )
        else:
            mean, covariance, scale = mean[None], covariance[None], scale[None]
        self.mean, self.covariance, self.scale = mean, covariance, scale
        self.ids, self.next_id = (*self.ids, domain), domain + 1
        self.weights, self.images = (*self.weights, 1), (*self.images, len(z))

    def restart(self, domain: int, z: Tensor) -> None:
        """Found a domain anew on z, keeping its id."""
        self._write(self.row(domain), *self._fresh(z), weight=1, images=len(z))

    def absorb(self, domain: int, z: Tensor) -> None:
        """Let a domain learn the images z."""
        k = self.row(domain)
        mean, covariance, weight = self.mean[k], self.covariance[k], self.weights[k]
        if self.config.update == "ema":
            new = gaussian.ema_update(mean, covariance, z, self.config.momentum)
        else:
            weights = gaussian.soft_weights(z, mean, self.scale[k])
            new = gaussian.weighted_update(mean, covariance, weight, z, weights)
        self._write(k, *new, weight=weight + 1, images=self.images[k] + len(z))

    def remove(self, domain: int) -> None:
        """Forget one domain."""
        k = self.row(domain)
        keep = [i for i in range(len(self)) if i != k]
        self.mean, self.covariance = self.mean[keep], self.covariance[keep]
        self.scale = self.scale[keep]
        self.ids = tuple(self.ids[i] for i in keep)
        self.weights = tuple(self.weights[i] for i in keep)
        self.images = tuple(self.images[i] for i in keep)

    def merge(self, source: int, into: int) -> None:
        """Fold one domain into another so that mean and covariance are those of both together."""
        if source == into:
            raise InputError(f"Domain {source} cannot be merged into itself.")
        a, b = self.row(into), self.row(source)
        mean, covariance = gaussian.merged(
            (self.mean[a], self.covariance[a], self.images[a]),
            (self.mean[b], self.covariance[b], self.images[b]),
        )
        images = self.images[a] + self.images[b]
        self._write(a, mean, covariance, weight=self.weights[a] + self.weights[b], images=images)
        self.remove(source)

    def _fresh(self, z: Tensor) -> tuple[Tensor, Tensor]:
        mean = z.mean(0)
        variance = torch.full_like(mean, self.config.initial_variance)
        return mean, torch.diag(variance) if self.config.covariance == "full" else variance

    def _scale(self, covariance: Tensor) -> Tensor:
        return gaussian.scale_of(covariance, self.config.covariance, self.config.shrinkage)

    def _write(self, k: int, mean: Tensor, covariance: Tensor, *, weight: int, images: int) -> None:
        self.mean = _replaced(self.mean, k, mean)
        self.covariance = _replaced(self.covariance, k, covariance)
        self.scale = _replaced(self.scale, k, self._scale(covariance))
        self.weights = (*self.weights[:k], weight, *self.weights[k + 1 :])
        self.images = (*self.images[:k], images, *self.images[k + 1 :])

    # -- state -------------------------------------------------------------------------------

    def export_state(self) -> State:
        """Means, covariances, counts and ids; scales follow from them."""
        values = {
            "ids": list(self.ids),
            "weights": list(self.weights),
            "images": list(self.images),
            "next_id": self.next_id,
        }
        tensors = {"mean": self.mean, "covariance": self.covariance} if self.ids else {}
        return State(tensors, values)

    def expected(self, state: State) -> Expected:
        """As many means, covariances and counts as there are ids, which count up."""
        known = state.values["ids"]
        many, full = len(known), self.config.covariance == "full"
        width = "width" if self.dimension is None else self.dimension
        covariance = Like((many, width, width)) if full else Like((many, width), low=0)
        tensors = {"mean": Like((many, width)), "covariance": covariance}
        counts = Kind.listed(Kind.count(1), many)
        values = {"ids": Kind.ids(), "weights": counts, "images": counts}
        return Expected(
            tensors if known else {}, values | {"next_id": Kind.count(max(known, default=-1) + 1)}
        )

    def import_state(self, state: State) -> None:
        """Become what `export_state` described; nothing changes where it does not fit."""
        ids = tuple(state.values["ids"])
        full = self.config.covariance == "full"
        if ids:
            mean, covariance = state.tensors["mean"].clone(), state.tensors["covariance"].clone()
            if covariance.dim() != (3 if full else 2) or len(mean) != len(ids):
                raise StateError(
                    "The saved domains do not have the covariance "
                    f"{self.config.covariance!r} of this discriminator: load with the same setting."
                )
            # One by one, as they were made: a batched factorisation may differ in the last bit.
            scale = torch.stack([self._scale(one) for one in covariance])
            self.mean, self.covariance, self.scale = mean, covariance, scale
        else:
            self.clear()
        self.ids, self.next_id = ids, int(state.values["next_id"])
        self.weights = tuple(state.values["weights"])
        self.images = tuple(state.values["images"])


def _replaced(stack: Tensor, k: int, row: Tensor) -> Tensor:
    stack = stack.clone()
    stack[k] = row
    return stack
