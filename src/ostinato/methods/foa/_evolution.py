"""CMA-ES: minimising by sampling, ranking and moving a normal distribution; forwards alone.

The constants and the update with negative weights for bad samples are those that the strategy's
author recommends (Hansen 2016).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ostinato.ops.expect import Expected, Kind, Like
from ostinato.ops.snapshot import State

_TENSORS = ("mean", "covariance", "axes", "lengths", "path", "long_path")


class Evolution:
    """A normal distribution that follows what scored best.

    Args:
        size: dimensions.
        population: samples a generation.
        sigma: standard deviation at the start; the mean starts at the origin.
        device: where the distribution lives.

    >>> search = Evolution(3, population=8, sigma=1.0)
    >>> draws = torch.Generator().manual_seed(0)
    >>> for _ in range(120):
    ...     found = search.ask(draws)
    ...     search.tell(found, [float((x - 2).square().sum()) for x in found])
    >>> bool((search.mean - 2).abs().max() < 1e-2)
    True
    """

    def __init__(
        self, size: int, population: int, sigma: float, device: torch.device | None = None
    ) -> None:
        self.size, self.population = size, population
        self.sigma = sigma
        self.generation = self.decomposed = 0
        zeros = torch.zeros(size, dtype=torch.float64, device=device)
        eye = torch.eye(size, dtype=torch.float64, device=device)
        self.mean, self.path, self.long_path = zeros.clone(), zeros.clone(), zeros.clone()
        self.covariance, self.axes = eye, eye.clone()
        self.lengths = torch.ones_like(zeros)
        self._set_constants()

    def _set_constants(self) -> None:
        n = self.size
        raw = torch.tensor(
            [math.log((self.population + 1) / 2) - math.log(i + 1) for i in range(self.population)],
            dtype=torch.float64,
        )
        good, bad = raw[: self.population // 2], raw[self.population // 2 :]
        self.effective = m = float(good.sum() ** 2 / good.square().sum())
        self.rank_one = 2 / ((n + 1.3) ** 2 + m)
        rank_many = 2 * (0.25 + m + 1 / m - 2) / ((n + 2) ** 2 + m)
        self.rank_many = min(1 - self.rank_one, rank_many)
        self.follow = (4 + m / n) / (n + 4 + 2 * m / n)
        self.step = (m + 2) / (n + m + 5)
        self.damping = 1 + 2 * max(0.0, math.sqrt((m - 1) / (n + 1)) - 1) + self.step
        self.usual_length = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))
        against = float(bad.sum() ** 2 / bad.square().sum())
        most = min(
            1 + self.rank_one / self.rank_many,
            1 + 2 * against / (m + 2),
            (1 - self.rank_one - self.rank_many) / (n * self.rank_many),
        )
        self.weights = torch.cat([good / good.sum(), most * bad / bad.abs().sum()])
        self.rest = max(1, math.floor(1 / (10 * n * (self.rank_one + self.rank_many))))

    def ask(self, generator: torch.Generator) -> Tensor:
        """(population, size) samples."""
        drawn = torch.randn(self.population, self.size, generator=generator, dtype=torch.float64)
        shaped = (drawn.to(self.mean.device) * self.lengths) @ self.axes.T
        return self.mean + self.sigma * shaped

    def tell(self, samples: Tensor, scores: list[float]) -> None:
        """Move towards what scored low; of more samples than asked for, the best count."""
        if not all(math.isfinite(score) for score in scores):
            return
        order = sorted(range(len(scores)), key=scores.__getitem__)[: self.population]
        moves = (samples[order].double() - self.mean) / self.sigma
        moves = self._shortened(moves)
        weights = self.weights.to(moves.device)
        half = self.population // 2
        move = weights[:half] @ moves[:half]
        self.mean = self.mean + self.sigma * move
        self.generation += 1
        self._paths(move)
        self._reshape(moves, weights)
        if self.generation - self.decomposed >= self.rest:
            self._decompose()

    def _shortened(self, moves: Tensor) -> Tensor:
        """A sample from elsewhere counts as no longer than one that could have been drawn."""
        longest = math.sqrt(self.size) + 2 * self.size / (self.size + 2)
        length = self._whitened(moves).norm(dim=1, keepdim=True)
        short: Tensor = moves * (longest / length.clamp_min(1e-300)).clamp(max=1)
        return short

    def _whitened(self, moves: Tensor) -> Tensor:
        return (moves @ self.axes / self.lengths) @ self.axes.T

    def _paths(self, move: Tensor) -> None:
        keep, size = 1 - self.step, math.sqrt(self.step * (2 - self.step) * self.effective)
        self.path = keep * self.path + size * self._whitened(move[None])[0]
        length = float(self.path.norm())
        settled = math.sqrt(1 - keep ** (2 * self.generation))
        self.steady = length / settled < (1.4 + 2 / (self.size + 1)) * self.usual_length
        size = math.sqrt(self.follow * (2 - self.follow) * self.effective)
        self.long_path = (1 - self.follow) * self.long_path + self.steady * size * move
        self.sigma *= math.exp(
            min(1.0, self.step / self.damping * (length / self.usual_length - 1))
        )

    def _reshape(self, moves: Tensor, weights: Tensor) -> None:
        lengths = self._whitened(moves).square().sum(1).clamp_min(1e-300)
        scaled = torch.where(weights < 0, weights * self.size / lengths, weights)
        lost = (1 - self.steady) * self.rank_one * self.follow * (2 - self.follow)
        keep = 1 + lost - self.rank_one - self.rank_many * float(weights.sum())
        self.covariance = (
            keep * self.covariance
            + self.rank_one * torch.outer(self.long_path, self.long_path)
            + self.rank_many * (moves.T * scaled) @ moves
        )

    def _decompose(self) -> None:
        self.covariance = 0.5 * (self.covariance + self.covariance.T)
        values, axes = torch.linalg.eigh(self.covariance)
        self.axes = axes.contiguous()  # as a file keeps it, so that products agree to the bit
        self.lengths = values.clamp_min(1e-20).sqrt()
        self.decomposed = self.generation

    def export_state(self) -> State:
        """The whole distribution."""
        values = {"sigma": self.sigma, "generation": self.generation, "at": self.decomposed}
        return State({name: getattr(self, name) for name in _TENSORS}, values)

    def expected(self, state: State) -> Expected:
        """Everything in the shapes that the dimension gives, in double precision."""
        lows = {"lengths": 0.0}
        tensors = {n: Like.of(getattr(self, n), lows.get(n, -math.inf)) for n in _TENSORS}
        generations = state.values["generation"]
        values = {"sigma": Kind.number(low=1e-300), "generation": Kind.count()}
        return Expected(tensors, values | {"at": Kind.count(high=generations)})

    def import_state(self, state: State) -> None:
        """Continue from there."""
        for name in _TENSORS:
            setattr(self, name, state.tensors[name].detach().clone())
        self.sigma, self.generation = state.values["sigma"], state.values["generation"]
        self.decomposed = state.values["at"]
