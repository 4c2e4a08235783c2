"""The frequency-aware domain discriminator: describe, score, decide, update."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ostinato.domains import _gaussian as gaussian
from ostinato.domains._pooling import BatchRouter
from ostinato.domains._store import DomainStore
from ostinato.domains.descriptor import Descriptor
from ostinato.domains.settings import DiscriminatorConfig, Evidence
from ostinato.errors import InputError, StateError
from ostinato.ops.expect import Expected, Kind
from ostinato.ops.snapshot import State
from ostinato.registry import DESCRIPTORS, DISCRIMINATORS
from ostinato.types import Decision

__all__ = ["Discriminator", "DiscriminatorConfig", "Evidence", "Router", "make_discriminator"]


class Router(Protocol):
    """How evidence becomes a decision, and how domains learn from it."""

    def decide(self, domains: DomainStore, evidence: Evidence) -> Decision:
        """Choose; read only."""
        ...

    def update(self, domains: DomainStore, evidence: Evidence, decision: Decision) -> None:
        """Learn from the batch as decided."""
        ...

    def forget(self, domain: int, into: int | None = None) -> None:
        """A domain was removed, or merged into another."""
        ...

    def export_state(self) -> State:
        """What changes."""
        ...

    def import_state(self, state: State) -> None:
        """Become what was exported."""
        ...


@DISCRIMINATORS.register("fdd")
class Discriminator:
    """Keeps a Gaussian per domain and tells which domain a batch comes from, or that it is new.

    `decide` changes nothing; `update` learns, and opens the domain where the decision was a new
    one. Ids are stable and never used again. Images of another size than the first have other
    spectra (magnitudes grow with the number of pixels), so spectral descriptors see them resized.

    >>> fdd = Discriminator(DiscriminatorConfig(descriptor="rgb-histogram"))
    >>> dark, light = torch.full((30, 3, 8, 8), 0.1), torch.full((30, 3, 8, 8), 0.9)
    >>> for images in (dark, light, dark):
    ...     evidence = Evidence(fdd.describe(images))
    ...     decision = fdd.decide(evidence)
    ...     fdd.update(evidence, decision)
    ...     print(decision.domain, decision.is_new)
    0 True
    1 True
    0 False
    """

    needs: frozenset[str] = frozenset()

    def __init__(self, config: DiscriminatorConfig | None = None) -> None:
        self.config = config or DiscriminatorConfig()
        self.descriptor: Descriptor = DESCRIPTORS[self.config.descriptor](self.config.radius)
        self.reset()

    def make_router(self) -> Router:
        """What decides; variants bring their own."""
        return BatchRouter(self.config)

    def reset(self) -> None:
        """Forget everything."""
        self._domains = DomainStore(self.config)
        self._router = self.make_router()
        self._size: tuple[int, int] | None = None

    # -- deciding ----------------------------------------------------------------------------

    @property
    def needs_features(self) -> bool:
        """Whether `describe` has to be given the model's CLS features."""
        return self.descriptor.needs_features

    def describe(self, images: Tensor, features: Tensor | None = None) -> Tensor:
        """(B, 3, H, W) in [0, 1] to (B, d); where sizes matter, in the size of the first images."""
        size = self._size if self.descriptor.size_matters and images.dim() == 4 else None
        if size is not None and tuple(images.shape[2:]) != size:
            images = F.interpolate(images.float(), size=size, mode="bilinear", antialias=True)
        return self.descriptor(images, features)

    @torch.no_grad()
    def score(self, z: Tensor) -> Tensor:
        """Distance of these images, taken together, to every known domain: (K,)."""
        self._check_descriptors(z)
        if not self._domains.ids:
            return z.new_empty(0)
        self._domains.follow(z.device)
        return self._domains.distances(z)

    @torch.no_grad()
    def decide(self, evidence: Evidence) -> Decision:
        """The domain of a batch. Reads only, and gives the same answer when asked again."""
        self._check_descriptors(evidence.descriptors)
        self._domains.follow(evidence.descriptors.device)
        return self._router.decide(self._domains, evidence)

    @torch.no_grad()
    def update(self, evidence: Evidence, decision: Decision) -> None:
        """Learn from a batch as decided; opens the domain where it is new."""
        self._check_descriptors(evidence.descriptors)
        self._domains.follow(evidence.descriptors.device)
        self._router.update(self._domains, evidence, decision)
        self._size = self._size or evidence.image_size

    @torch.no_grad()
    def posterior(self, z: Tensor) -> Tensor:
        """P(domain | z) of every image under a uniform prior: (B, K), in the order of `domains`."""
        self._check_descriptors(z)
        if not self._domains.ids:
            return z.new_empty(len(z), 0)
        self._domains.follow(z.device)
        return gaussian.posterior(z, self._domains.mean, self._domains.scale)

    # -- domains -----------------------------------------------------------------------------

    @property
    def domains(self) -> tuple[int, ...]:
        """Ids of the known domains, oldest first."""
        return self._domains.ids

    def remove(self, domain: int) -> None:
        """Forget one domain; its id is not used again."""
        self._domains.remove(domain)
        self._router.forget(domain)

    def merge(self, source: int, into: int) -> None:
        """Fold one domain into another, matching the moments of both together."""
        self._domains.merge(source, into)
        self._router.forget(source, into)

    def nearest_pair(self) -> tuple[int, int]:
        """The two domains that are most alike, as (source, into): the younger goes."""
        return self._domains.nearest_pair()

    def mean(self, domain: int) -> Tensor:
        """A domain's mean descriptor: (d,)."""
        return self._domains.mean[self._domains.row(domain)]

    def variance(self, domain: int) -> Tensor:
        """A domain's variance in each dimension: (d,)."""
        covariance = self._domains.covariance[self._domains.row(domain)]
        return covariance.diagonal() if covariance.dim() == 2 else covariance

    def count(self, domain: int) -> int:
        """Images a domain has learnt from."""
        return self._domains.images[self._domains.row(domain)]

    # -- state -------------------------------------------------------------------------------

    def export_state(self) -> State:
        """Everything that changes, images that wait for a decision included."""
        about = {"kind": self.config.kind, "descriptor": self.config.descriptor}
        return State.join(
            {
                "about": State({}, {**about, "size": self._size and list(self._size)}),
                "domains": self._domains.export_state(),
                "router": self._router.export_state(),
            }
        )

    def expected(self, state: State) -> Expected:
        """The same kind and descriptor, Gaussians that fit together, and the router's own."""
        size = Kind.optional(Kind.listed(Kind.count(low=1), 2))
        about = {name: Kind.exactly(getattr(self.config, name)) for name in ("kind", "descriptor")}
        domains, router = state.part("domains"), self.make_router()
        inner = Expected.of("router", router, state.part("router"))
        return Expected(
            parts={
                "about": Expected(values={**about, "size": size}),
                "domains": self._domains.expected(domains),
                "router": inner,
            }
        )

    def import_state(self, state: State) -> None:
        """Become what `export_state` described; nothing changes where it does not fit."""
        about = state.values.get("about", {})
        for name in ("kind", "descriptor"):
            if about.get(name) != getattr(self.config, name):
                raise StateError(
                    f"The saved discriminator has {name} {about.get(name)!r}, this one has "
                    f"{getattr(self.config, name)!r}: load with {name}={about.get(name)!r}."
                )
        domains, router = DomainStore(self.config), self.make_router()
        try:
            domains.import_state(state.part("domains"))
            router.import_state(state.part("router"))
        except KeyError as error:
            raise StateError(f"The saved discriminator lacks {error}: use another copy.") from None
        self._domains, self._router = domains, router
        self._size = tuple(about["size"]) if about.get("size") else None

    # -- checks ------------------------------------------------------------------------------

    def _check_descriptors(self, z: Tensor) -> None:
        known = self._domains.dimension
        wanted = f"(B, {known})" if known is not None else "(B, d)"
        if z.dim() != 2 or 0 in z.shape or (known is not None and z.shape[1] != known):
            raise InputError(f"Descriptors should be {wanted} with B ≥ 1, not {tuple(z.shape)}.")
        if z.dtype != torch.float32:
            raise InputError(f"Descriptors should be float32, not {z.dtype}: use describe().")
        bad = int((~torch.isfinite(z).all(1)).sum())
        if bad:
            raise InputError(
                f"{bad} of {len(z)} descriptors are not finite; check the images for NaN and Inf."
            )


def make_discriminator(config: DiscriminatorConfig | None = None) -> Discriminator:
    """The discriminator that a config names.

    >>> make_discriminator(DiscriminatorConfig(kind="single")).domains
    ()
    """
    config = config or DiscriminatorConfig()
    made: Discriminator = DISCRIMINATORS[config.kind](config)
    return made
