"""Sums over clean images from which source statistics follow."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ostinato.errors import TargetError
from ostinato.ops.features import FeatureTaps, open_tokens, prefix_tokens
from ostinato.ops.layouts import Layout
from ostinato.ops.losses import flatten_logits, softmax_entropy
from ostinato.ops.moments import BlockMoments


class Gatherer:
    """Runs a model over batches and sums up its features and tokens, block by block.

    Args:
        vision: maps pixels to logits.
    """

    def __init__(self, vision: nn.Module) -> None:
        self.vision = vision
        self.taps = FeatureTaps(vision)
        self._layouts = [Layout.of(block) for block in self.taps.blocks.values()]
        self.prefix = prefix_tokens(vision)
        self.images = self.rows = 0
        self._features: dict[int, list[Tensor]] = {}
        self._tokens: dict[int, list[Tensor]] = {}
        self._entropy: list[float] = []
        self._shapes: list[tuple[int, int]] = []  # rows and tokens of each block's last output

    def take(self, pixels: Tensor) -> None:
        """Take in one batch of pixels."""
        self._shapes = []
        hooks = [
            block.register_forward_hook(lambda module, _, out, at=index: self._add_tokens(at, out))
            for index, block in enumerate(self.taps.blocks.values())
        ]
        try:
            with self.taps:
                logits = self.vision(pixels)
        finally:
            for hook in hooks:
                hook.remove()
        self._check_rows(len(pixels))
        for index, feature in enumerate(self.taps.features):
            value = feature.double()
            _add(self._features, index, [value.sum(0), value.square().sum(0)])
        classes = flatten_logits(logits[:1]).shape[1]
        self._entropy.append(float(softmax_entropy(logits).mean()) / math.log(max(classes, 2)))
        self.images += len(pixels)
        self.rows += len(self.taps.features[0])  # a model that cuts its images up has more

    def _check_rows(self, images: int) -> None:
        """Refuse blocks that see places of an image as images: experts go with whole ones.

        A model that cuts its images up has more rows in every block, so the fewest count as one an
        image. Where the second axis is that long, it is the batch, as in decoders of queries.
        """
        names = [name.removeprefix("base.") for name in self.taps.blocks]  # as its owner has them
        fewest = min((rows for rows, _ in self._shapes if rows % images == 0), default=images)
        more = [a > fewest and a % fewest == 0 and b != fewest for a, b in self._shapes]
        if not any(more):
            return
        folding = [name for name, is_more in zip(names, more, strict=False) if is_more]
        raise TargetError(
            f"{folding[0]} has several rows for each image (its places stand in the batch), so "
            "that no expert can go with one image. Name modules that keep one row an image, such "
            "as those around it: blocks=[...]. Of the blocks that were found these do: "
            f"{', '.join(n for n in names if n not in folding)}."
        )

    def _add_tokens(self, index: int, output: object) -> None:
        opened = open_tokens(output, self._layouts[index])
        if opened is None:
            return
        tokens = opened[0].double()
        self._shapes.append((len(tokens), tokens.shape[1]))
        body = tokens[:, self.prefix :].flatten(0, 1)
        count = torch.tensor(float(len(body)), dtype=torch.double)
        rows = torch.tensor(float(len(tokens)), dtype=torch.double)
        prefix = tokens[:, : self.prefix].sum(0)
        _add(self._tokens, index, [count, body.sum(0), body.T @ body, rows, prefix])

    def features(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Per block, mean and unbiased standard deviation of the pooled feature."""
        total = self.rows
        means, stds = [], []
        for first, second in (self._features[i] for i in sorted(self._features)):
            mean = first / total
            variance = (second / total - mean.square()) * total / (total - 1)
            means.append(mean.float())
            stds.append(variance.clamp_min(0).sqrt().float())
        return tuple(means), tuple(stds)

    def tokens(self) -> tuple[BlockMoments, ...]:
        """Per block, moments of the tokens; empty where blocks give none."""
        if set(self._tokens) != set(range(len(self.taps.blocks))):
            return ()
        found = []
        for count, first, second, rows, prefix in (self._tokens[i] for i in sorted(self._tokens)):
            mean = first / count
            covariance = second / count - torch.outer(mean, mean)
            found.append(BlockMoments(mean.float(), covariance.float(), (prefix / rows).float()))
        return tuple(found)

    def entropy(self) -> float:
        """Mean entropy of the model's answers, as a share of ln C."""
        return sum(self._entropy) / len(self._entropy)


def _add(sums: dict[int, list[Tensor]], index: int, values: list[Tensor]) -> None:
    known = sums.get(index)
    sums[index] = values if known is None else [a + b for a, b in zip(known, values, strict=True)]
