"""Inverse square roots of covariances by products alone, for devices that are slow at eigenvalues.

Polynomials p(t) ≈ t^-½ are composed, each the best of its degree on the interval that the one
before has left: then √t · p(t) comes near one within a few products, whatever the spread of the
eigenvalues was.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

_Quadratic = tuple[float, float, float]
_CLOSE = 1e-3
"""Largest error of a root, as a share of it. Maps move tokens by a fifth of what it gives."""


def _best_quadratic(low: float, high: float) -> tuple[_Quadratic, float]:
    """(a, b, c) with the least largest |1 − x (a + b x² + c x⁴)| on [low, high], and that error.

    The exchange algorithm of Remez: the error of the best one has four equal, alternating peaks.

    >>> (a, b, c), error = _best_quadratic(0.5, 1.0)
    >>> error < 0.025, abs(1 - 0.7 * (a + b * 0.7**2 + c * 0.7**4)) <= error + 1e-12
    (True, True)
    """
    points = [low, low + 0.3 * (high - low), low + 0.75 * (high - low), high]
    for _ in range(50):
        rows = [[x, x**3, x**5, (-1.0) ** k] for k, x in enumerate(points)]
        system = torch.tensor(rows, dtype=torch.double)
        a, b, c, error = torch.linalg.solve(system, torch.ones(4, dtype=torch.double)).tolist()
        root = math.sqrt(max(9 * b * b - 20 * a * c, 0.0))
        inner = sorted(((-3 * b - root) / (10 * c), (-3 * b + root) / (10 * c)))
        moved = [low, math.sqrt(max(inner[0], 0.0)), math.sqrt(max(inner[1], 0.0)), high]
        if max(abs(x - y) for x, y in zip(points, moved, strict=True)) < 1e-13 * high:
            break
        points = moved
    return (a, b, c), abs(error)


@lru_cache(maxsize=32)
def _quadratics(least: float) -> tuple[_Quadratic, ...]:
    """The polynomials that take [least, 1] near one, in the order they are applied.

    >>> len(_quadratics(1e-4)) <= 8
    True
    """
    low, high = math.sqrt(least), 1.0
    found = []
    while True:
        one, error = _best_quadratic(low, high)
        found.append(one)
        if error < _CLOSE:
            return tuple(found)
        low, high = 1 - error, 1 + error


def inverse_root(matrix: Tensor, least: float) -> Tensor:
    """The power −½ of symmetric matrices (..., D, D) whose eigenvalues are all positive.

    Args:
        matrix: one or several of them.
        least: no eigenvalue is below this share of the Frobenius norm.

    >>> found = inverse_root(torch.diag(torch.tensor([4.0, 0.01])), least=1e-3)
    >>> [round(float(v), 3) for v in found.diagonal()]
    [0.5, 10.0]
    """
    size = torch.linalg.matrix_norm(matrix, keepdim=True)
    forward = matrix / size
    back = forward  # until the first polynomial is there
    steps = _quadratics(least)
    for place, (a, b, c) in enumerate(steps):
        both = forward if place == 0 else back @ forward
        factor = _polynomial(both, a, b, c)
        back = factor @ back if place else factor
        if place + 1 < len(steps):
            forward = forward @ factor
    result: Tensor = 0.5 * (back + back.mT) / size.sqrt()
    return result


def _polynomial(matrix: Tensor, a: float, b: float, c: float) -> Tensor:
    """`a I + b X + c X²` in few operators: a GPU that is quick at products waits for launches."""
    flat = matrix.reshape(-1, *matrix.shape[-2:])
    found = torch.baddbmm(flat, flat, flat, beta=b, alpha=c)
    found.diagonal(dim1=-2, dim2=-1).add_(a)
    return found.view_as(matrix)
