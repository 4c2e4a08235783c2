"""The fixed orders in which the literature streams the 15 common corruptions."""

from __future__ import annotations

from ostinato.data.corruptions import COMMON
from ostinato.errors import ConfigError

# The ten permutations that CoTTA published for ImageNet-C (its cfgs/10orders, files 0 to 9),
# which later papers average over; numbers are positions in COMMON.
_TEN = (
    (10, 13, 0, 5, 6, 4, 2, 14, 3, 12, 1, 8, 7, 9, 11),
    (14, 1, 6, 8, 11, 9, 3, 12, 0, 10, 4, 2, 13, 7, 5),
    (11, 3, 0, 1, 7, 8, 4, 6, 12, 14, 13, 10, 2, 5, 9),
    (1, 9, 4, 13, 7, 12, 10, 2, 3, 8, 11, 0, 5, 14, 6),
    (13, 4, 6, 7, 9, 2, 10, 5, 8, 14, 0, 1, 11, 3, 12),
    (5, 7, 9, 1, 3, 11, 6, 10, 8, 12, 4, 0, 13, 14, 2),
    (8, 2, 14, 11, 6, 4, 13, 7, 3, 5, 10, 12, 1, 9, 0),
    (4, 6, 2, 9, 7, 14, 0, 8, 1, 10, 11, 5, 13, 3, 12),
    (3, 5, 6, 1, 0, 4, 14, 9, 11, 13, 8, 7, 10, 12, 2),
    (11, 0, 3, 6, 8, 4, 14, 9, 13, 12, 1, 2, 7, 5, 10),
)


def corruption_order(order: int) -> tuple[str, ...]:
    """The common corruptions in a fixed order: 0 is the usual one, 1 to 10 the literature's ten.

    >>> corruption_order(0)[:2], corruption_order(1)[:2]
    (('gaussian_noise', 'shot_noise'), ('brightness', 'pixelate'))
    """
    if order == 0:
        return COMMON
    if not 1 <= order <= len(_TEN):
        raise ConfigError(f"order = {order}: choose 0 (usual) or 1 to {len(_TEN)} (fixed orders).")
    return tuple(COMMON[position] for position in _TEN[order - 1])
