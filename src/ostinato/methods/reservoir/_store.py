"""Memory of styles and of states: centroids fitted to a fair sample, and one state for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from ostinato.errors import StateError
from ostinato.ops.expect import Expected, Kind, Like
from ostinato.ops.losses import distribution_entropy, marginal, softmax_entropy
from ostinato.ops.optim import OptimizerState, make_optimizer
from ostinato.ops.snapshot import State, Stateful


def assignments(styles: Tensor, centroids: Tensor, temperature: float) -> Tensor:
    """softmax(−distance / temperature) of styles (..., d) over centroids (K, d).

    >>> assignments(torch.zeros(1), torch.tensor([[0.0], [5.0]]), 1.0).round().tolist()
    [1.0, 0.0]
    """
    return log_assignments(styles, centroids, temperature).exp()


def log_assignments(styles: Tensor, centroids: Tensor, temperature: float) -> Tensor:
    """The same as logarithms, which stay finite for styles far away."""
    apart = torch.linalg.vector_norm(styles.unsqueeze(-2) - centroids, dim=-1)
    scores: Tensor = (-apart / temperature).log_softmax(-1)
    return scores


def clustering_loss(log_shares: Tensor) -> Tensor:
    """Mean entropy of each style's assignment, less the entropy of the mean assignment."""
    shares = log_shares.exp()
    each = -(shares * log_shares).sum(1).mean()
    mean = shares.mean(0)
    # The floor keeps the gradient finite where no style at all belongs to a centroid.
    loss: Tensor = each + (mean * mean.clamp_min(1e-30).log()).sum()
    return loss


class Styles:
    """Centroids of styles, and a uniform sample (reservoir sampling) of all styles seen.

    Args:
        memory: how many past styles are kept.
        lr: learning rate of the centroids (AdamW).
        first: a centroid to start with, such as the source's style.
    """

    def __init__(self, memory: int, lr: float, first: Tensor | None) -> None:
        self.memory = memory
        self.lr = lr
        self.seen = 0
        self.sample: Tensor | None = None  # (memory, d), filled from the front
        self._set(torch.zeros(0, 0) if first is None else first.detach().clone()[None])

    @property
    def centroids(self) -> Tensor:
        """(K, d)."""
        return self._centroids.detach()

    def distances(self, style: Tensor) -> Tensor:
        """To every centroid."""
        if not self._centroids.numel():
            return style.new_zeros(0)
        apart: Tensor = torch.linalg.vector_norm(self.centroids - style, dim=1)
        return apart

    def add(self, style: Tensor) -> None:
        """A new centroid; the fitting's momentum starts anew."""
        known = self.centroids if self._centroids.numel() else style.new_zeros(0, len(style))
        self._set(torch.cat([known, style.detach()[None]]))

    def learn(self, style: Tensor, temperature: float, generator: torch.Generator) -> None:
        """Move the centroids one step by the sample and a style, then take the style in."""
        if len(self._centroids) > 1 and self.lr > 0:
            past = style.new_zeros(0, len(style)) if self.sample is None else self.sample
            seen = torch.cat([past[: self.seen], style[None]])
            with torch.enable_grad():
                loss = clustering_loss(log_assignments(seen, self._centroids, temperature))
                self._optimizer.zero_grad(set_to_none=True)
                loss.backward()
            self._optimizer.step()
        self._keep(style, generator)

    def export_state(self) -> State:
        """Centroids, their optimizer and the sample."""
        state = State.join({"optimizer": OptimizerState(self._optimizer).export_state()})
        state.tensors["centroids"] = self.centroids
        if self.sample is not None:
            state.tensors["sample"] = self.sample
        state.values["seen"] = self.seen
        return state

    def expected(self, state: State) -> Expected:
        """Centroids of one width, their optimizer's numbers, and a sample of that width."""
        known = self.centroids.shape[1]
        width: int | str = known or "width"
        parameter = nn.Parameter(state.tensors["centroids"].detach())
        fresh = make_optimizer("adamw", [parameter], lr=self.lr)
        tensors = {"centroids": Like(("styles", width))}
        if state.values["seen"]:
            tensors["sample"] = Like((self.memory, width))
        inner = OptimizerState(fresh).expected(state.part("optimizer"))
        return Expected(tensors, {"seen": Kind.count()}, {"optimizer": inner})

    def import_state(self, state: State) -> None:
        """Continue from there."""
        if "centroids" not in state.tensors:
            raise StateError("The state's reservoir has no centroids.")
        self._set(state.tensors["centroids"].detach().clone())
        OptimizerState(self._optimizer).import_state(state.part("optimizer"))
        sample = state.tensors.get("sample")
        self.sample = None if sample is None else sample.detach().clone()
        self.seen = state.values["seen"]

    def _keep(self, style: Tensor, generator: torch.Generator) -> None:
        if self.sample is None:
            self.sample = style.new_zeros(self.memory, len(style))
        place = self.seen
        self.seen += 1
        if place >= self.memory:  # kept with probability memory / seen, in a random one's place
            place = int(torch.randint(self.seen, (1,), generator=generator))
        if place < self.memory:
            self.sample[place] = style.detach()

    def _set(self, centroids: Tensor) -> None:
        self._centroids = nn.Parameter(centroids)
        self._optimizer = make_optimizer("adamw", [self._centroids], lr=self.lr)


def prediction_information(logits: Tensor) -> float:
    """Mutual information of image and class: sure of each image, diverse over all."""
    return float(distribution_entropy(marginal(logits)) - softmax_entropy(logits).mean())


class _Swappable(Stateful, Protocol):
    """Something whose whole state can be exchanged for another of its own."""

    def take_back(self, state: State) -> None:
        """Become what it exported itself; nothing is checked."""
        ...


class Slots:
    """One state of the inner method per style, the active one living in the method itself.

    A state is swapped in and out whole: parameters, optimizer, teachers, random numbers.
    """

    def __init__(self, inner: _Swappable) -> None:
        self.inner = inner
        self.states = [inner.export_state().clone()]
        self.active = 0

    def __len__(self) -> int:
        return len(self.states)

    def park(self) -> None:
        """Write the active state back to its slot."""
        self.states[self.active] = self.inner.export_state().clone()

    def select(self, index: int) -> None:
        """Make another slot the active one."""
        if index != self.active:
            self.park()
            self.inner.take_back(self.states[index])
            self.active = index

    def add(self, origin: int) -> None:
        """One more slot, starting as a copy of another."""
        self.park()
        self.states.append(self.states[origin].clone())

    @contextmanager
    def lent(self, weights: Stateful) -> Iterator[None]:
        """The inner method's weights may take any values meanwhile; the active slot's come back."""
        self.park()
        try:
            yield
        finally:
            weights.import_state(self.states[self.active].part("weights"))

    def best(self, weights: Stateful, score: Callable[[], float]) -> int:
        """The slot with whose weights a score is highest."""
        found = []
        with self.lent(weights):
            for state in self.states:
                weights.import_state(state.part("weights"))
                found.append(score())
        return max(range(len(found)), key=found.__getitem__)

    def mean(self, names: Collection[str], shares: Tensor) -> State:
        """These weights, averaged over the slots; parked before."""
        mean: dict[str, Tensor] = {}
        for share, state in zip(shares.tolist(), self.states, strict=True):
            for name in names:
                part = share * state.tensors[f"weights/{name}"]
                mean[name] = mean[name] + part if name in mean else part
        return State(mean)

    def export_state(self) -> State:
        """All slots, the active one included."""
        self.park()
        parts = {f"slot{n}": state for n, state in enumerate(self.states)}
        joined = State.join(parts)
        joined.values["active"] = self.active
        return joined

    def expected(self, state: State) -> Expected:
        """Slots from 0 on, each a whole state of the inner method, and which one is active."""
        names = [f"slot{number}" for number in range(len(state.values) - 1)]
        parts = {name: Expected.of(name, self.inner, state.part(name)) for name in names}
        return Expected({}, {"active": Kind.count(high=len(names) - 1)}, parts)

    def import_state(self, state: State) -> None:
        """Continue from there."""
        count = sum(name.startswith("slot") for name in state.values)
        if not 0 <= state.values.get("active", -1) < count:
            raise StateError("The state's reservoir has no active slot.")
        self.states = [state.part(f"slot{n}").clone() for n in range(count)]
        self.active = state.values["active"]
        self.inner.take_back(self.states[self.active])
