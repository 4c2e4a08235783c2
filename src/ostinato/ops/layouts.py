"""Which axis of a block's feature maps holds the features: the first after the batch, or the last.

Blocks of convolutions have channels first, others have features last; that is so nearly always.
Some turn their maps in between, though: attention over the windows of a network whose maps have
channels first, convolutions inside of a block whose maps have them last. Those are told by
their widths: features are as many as some layer of the block has, and places are not. Modules
without weights, such as pooling, have torch's own convention, channels first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from ostinato.ops.blocks import is_convolutional


class Layout(NamedTuple):
    """Where a block keeps its features.

    Attributes:
        usual: whether its kind has channels first.
        widths: how many features its layers have; empty where its kind tells alone.

    >>> Layout.of(nn.Conv2d(3, 8, 3)).channels_first((2, 8, 5, 5))
    True
    >>> Layout.of(nn.Linear(8, 8)).channels_first((2, 5, 5, 8))
    False
    >>> Layout.of(nn.Linear(8, 8)).channels_first((2, 8, 5, 5))
    True
    >>> Layout.of(nn.MaxPool2d(2)).channels_first((2, 8, 5, 5))
    True
    """

    usual: bool = False
    widths: frozenset[int] = frozenset()

    @classmethod
    def of(cls, block: nn.Module) -> Layout:
        """What a block's layers say."""
        usual = is_convolutional(block) or not any(True for _ in block.parameters())
        # Convolutions alone may join their outputs, and then no layer is as wide as the whole.
        if usual and not any(isinstance(module, nn.Linear) for module in block.modules()):
            return cls(usual)
        return cls(usual, frozenset(int(p.shape[0]) for p in block.parameters() if p.ndim))

    def channels_first(self, shape: Sequence[int]) -> bool:
        """Whether an output of this shape is (B, D, H, W)."""
        if len(shape) != 4:
            return False
        first, last = shape[1] in self.widths, shape[3] in self.widths
        return self.usual if first == last else first


FEATURES_LAST = Layout()
