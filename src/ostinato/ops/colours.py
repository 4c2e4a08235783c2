"""Images of any number of channels as the three colours that descriptors read."""

from __future__ import annotations

from torch import Tensor


def three_colours(images: Tensor) -> Tensor:
    """(B, C, H, W) as the three colours that descriptors read.

    One or two channels are repeated, of more than three the first three count.

    >>> import torch
    >>> three_colours(torch.rand(2, 1, 4, 4)).shape, three_colours(torch.rand(2, 6, 4, 4)).shape
    (torch.Size([2, 3, 4, 4]), torch.Size([2, 3, 4, 4]))
    """
    channels = images.shape[1]
    if channels >= 3:
        return images[:, :3]
    return images[:, [0, channels - 1, channels - 1]]
