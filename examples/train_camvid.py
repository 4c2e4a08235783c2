"""Train a SegFormer on CamVid, for `ostinato run` and `ostinato table camvid` to adapt.

    python examples/train_camvid.py --root CAMVID --seconds 270     # weights/segformer-b0-camvid
    python examples/train_camvid.py --root CAMVID --out OUT --start nvidia/mit-b2
    ostinato table camvid --scale full --set roots.camvid=CAMVID

CAMVID holds train/images, train/labels and the same for val. The weights start at random, or from
`--start`: a folder or a Hugging Face name, of a whole SegFormer or of its encoder alone. What
does best on val is kept, in Hugging Face's format; the test frames are not looked at. Augmentation
flips, scales, crops, turns a little and shifts colours a little. It never adds fog, darkness, rain
or snow, so that the model meets those for the first time when it is tested on them.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ostinato.data.datasets.base import IGNORE
from ostinato.data.datasets.camvid import CamVid
from ostinato.models import IMAGENET
from ostinato.scoring.metrics import mean_iou

SIZES: dict[str, dict[str, Any]] = {
    "b0": {"hidden_sizes": [32, 64, 160, 256], "depths": [2, 2, 2, 2], "decoder_hidden_size": 256},
    "b1": {"hidden_sizes": [64, 128, 320, 512], "depths": [2, 2, 2, 2], "decoder_hidden_size": 256},
    "b2": {"hidden_sizes": [64, 128, 320, 512], "depths": [3, 4, 6, 3], "decoder_hidden_size": 768},
    "b3": {"hidden_sizes": [64, 128, 320, 512], "depths": [3, 4, 18, 3]},
    "b4": {"hidden_sizes": [64, 128, 320, 512], "depths": [3, 8, 27, 3]},
    "b5": {"hidden_sizes": [64, 128, 320, 512], "depths": [3, 6, 40, 3]},
}
OUT = Path("weights/segformer-b0-camvid")
"""Where `ostinato table camvid` looks."""
LOG = "train_log.json"


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights, beside the clock."""

    epochs: int = 400
    seconds: float = 0.0  # stop after so long, the rate decayed by then; 0 for by epochs alone
    every: int = 10  # epochs from check to check
    batch: int = 16
    height: int = 352
    width: int = 480
    lr: float = 6e-4
    weight_decay: float = 0.05
    warmup: float = 0.05  # share of the whole training
    drop_path: float = 0.1
    smallest: float = 0.65  # factor of scale
    largest: float = 2.0
    turn: float = 5.0  # degrees
    stretch: float = 0.1  # of the aspect
    colour: float = 0.2  # change of brightness, contrast and saturation
    balance: float = 0.5  # power of the class weights: 0 for none, 1 for median frequency
    cap: float = 4.0  # of the class weights
    dice: float = 0.5  # weight of the overlap term beside the cross entropy
    ema: float = 0.998
    seed: int = 2025


# ---------------------------------------------------------------------------------- images


def read_split(root: Path, split: str, device: str) -> tuple[Tensor, Tensor]:
    """All frames (N, 3, H, W) and label maps (N, H, W) of a split, uint8, decoded once."""
    items = list(CamVid(root, split))
    images = torch.stack([item.image for item in items])
    labels = torch.stack([torch.as_tensor(item.label, dtype=torch.uint8) for item in items])
    return images.to(device), labels.to(device)


def normalized(images: Tensor) -> Tensor:
    """As SegFormer takes images: by ImageNet's mean and standard deviation."""
    mean, std = (torch.tensor(v, device=images.device).view(1, 3, 1, 1) for v in IMAGENET)
    scale = 255.0 if images.dtype == torch.uint8 else 1.0
    return (images.float() / scale - mean) / std


def class_weights(labels: Tensor, classes: int, power: float, cap: float) -> Tensor:
    """Median frequency balancing to a power, between 1 / cap and cap."""
    counts = torch.stack([torch.bincount(one[one != IGNORE].long(), minlength=classes)
                          for one in labels.flatten(1)]).double()  # fmt: skip
    seen = counts > 0
    pixels = (counts.sum(1, keepdim=True) * seen).sum(0)
    frequency = counts.sum(0) / pixels.clamp(min=1)
    median = frequency[frequency > 0].median()
    weights = (median / frequency.clamp(min=1e-12)) ** power
    return weights.clamp(1 / cap, cap).float()


# ------------------------------------------------------------------------------ augmentation


def move(images: Tensor, labels: Tensor, recipe: Recipe, generator: torch.Generator) -> Any:
    """Scale, stretch, turn, flip and crop each image; what lies outside has no label."""
    count, device = len(images), images.device
    source = torch.tensor([images.shape[-1], images.shape[-2]], device=device).float()
    target = torch.tensor([recipe.width, recipe.height], device=device).float()
    zoom, stretch, turn, flip, *place = torch.rand(6, count, generator=generator, device=device)
    low, high = math.log(recipe.smallest), math.log(recipe.largest)
    scale = torch.exp(low + (high - low) * zoom)
    aspect = torch.exp(recipe.stretch * (2 * stretch - 1))
    turn = math.radians(recipe.turn) * (2 * turn - 1)
    # Half of what the crop shows, in pixels of the source image.
    half = target / 2 / torch.stack([scale * aspect, scale / aspect], 1)
    free = (source / 2 - half).abs()
    centre = free * (2 * torch.stack(place, 1) - 1) / (source / 2)
    sign = torch.where(flip < 0.5, -1.0, 1.0)
    cos, sin = turn.cos(), turn.sin()
    rows = [
        torch.stack([sign * cos * half[:, 0], -sin * half[:, 1]], 1) / (source[0] / 2),
        torch.stack([sign * sin * half[:, 0], cos * half[:, 1]], 1) / (source[1] / 2),
    ]
    matrix = torch.cat([torch.stack(rows, 1), centre[:, :, None]], 2)
    grid = F.affine_grid(matrix, [count, 3, recipe.height, recipe.width], align_corners=False)
    outside = (grid.abs() > 1).any(-1)
    seen = F.grid_sample(images.float() / 255, grid, padding_mode="border", align_corners=False)
    maps = labels.float()[:, None]
    truth = F.grid_sample(maps, grid, mode="nearest", padding_mode="border", align_corners=False)
    grey = torch.tensor(IMAGENET[0], device=device).view(1, 3, 1, 1)
    truth = truth[:, 0].round().long().masked_fill_(outside, IGNORE)
    return torch.where(outside[:, None], grey, seen), truth


def recolour(images: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Mild changes of brightness, contrast and saturation, other ones for each image."""
    shape = (3, len(images), 1, 1, 1)
    change = amount * (2 * torch.rand(shape, generator=generator, device=images.device) - 1)
    bright, contrast, saturation = 1 + change
    images = images * bright
    images = (images - images.mean((1, 2, 3), keepdim=True)) * contrast + images.mean(
        (1, 2, 3), keepdim=True
    )
    grey = images.mean(1, keepdim=True)
    return ((images - grey) * saturation + grey).clamp(0, 1)


# ------------------------------------------------------------------------------------- model


def build_model(size: str, start: str | None, drop_path: float) -> nn.Module:
    """A SegFormer for CamVid's classes; parts that `start` does not hold begin at random."""
    from transformers import AutoModelForSemanticSegmentation, SegformerConfig
    from transformers import SegformerForSemanticSegmentation as Segmenter
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    names = dict(enumerate(CamVid.class_names))
    ours: dict[str, Any] = {
        "id2label": names,
        "label2id": {name: number for number, name in names.items()},
        "semantic_loss_ignore_index": IGNORE,
    }
    if start is not None:
        return AutoModelForSemanticSegmentation.from_pretrained(  # type: ignore[no-any-return]
            start, ignore_mismatched_sizes=True, **ours
        )
    config = SegformerConfig(
        **{"decoder_hidden_size": 768, **SIZES[size]}, drop_path_rate=drop_path, **ours
    )
    return Segmenter(config)


def segment(model: nn.Module, images: Tensor, size: tuple[int, int]) -> Tensor:
    """Logits of normalised images at a label map's size."""
    logits: Tensor = model(pixel_values=images).logits.float()
    return F.interpolate(logits, size, mode="bilinear", align_corners=False)


def save(model: nn.Module, out: Path) -> None:
    """Write config and weights beside their places first, so that no half-written file remains."""
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out) as partial:
        model.save_pretrained(partial)
        for file in sorted(Path(partial).iterdir()):
            file.replace(out / file.name)


# ---------------------------------------------------------------------------------- training


def loss_of(logits: Tensor, labels: Tensor, weights: Tensor, dice: float) -> Tensor:
    """Weighted cross entropy and, of the classes that are there, one minus their soft overlap."""
    loss = F.cross_entropy(logits, labels, weights, ignore_index=IGNORE)
    if not dice:
        return loss
    counted = (labels != IGNORE)[:, None]
    truth = F.one_hot(labels.where(counted[:, 0], 0), logits.shape[1]).movedim(-1, 1) * counted
    share = logits.softmax(1) * counted
    both, sums = (share * truth).sum((0, 2, 3)), (share + truth).sum((0, 2, 3))
    there = truth.sum((0, 2, 3)) > 0
    overlap = (2 * both + 1) / (sums + 1)
    return loss + dice * ((1 - overlap) * there).sum() / there.sum().clamp(min=1)


def rate(progress: float, recipe: Recipe) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    if progress < recipe.warmup:
        return recipe.lr * (progress + 1e-3) / (recipe.warmup + 1e-3)
    rest = (progress - recipe.warmup) / (1 - recipe.warmup)
    return recipe.lr * 0.5 * (1 + math.cos(math.pi * min(rest, 1.0)))


def optimizer_for(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW; vectors are not decayed, a decoder at random learns as fast as the rest."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.lr, fused=others[0].is_cuda)


@torch.no_grad()
def follow(average: nn.Module, model: nn.Module, weight: float) -> None:
    """Move the average a part of the way; counters and running statistics are taken over."""
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), weight)
    for kept, new in zip(average.buffers(), model.buffers(), strict=True):
        kept.copy_(new)


@torch.no_grad()
def check(model: nn.Module, images: Tensor, labels: Tensor, batch: int = 8) -> float:
    """Mean IoU in percent over all pixels of the given frames, in fp32."""
    model.eval()
    classes = len(CamVid.class_names)
    counts = torch.zeros(classes * classes, dtype=torch.long, device=images.device)
    size = (int(labels.shape[-2]), int(labels.shape[-1]))
    for part, truth in zip(images.split(batch), labels.split(batch), strict=True):
        answer = segment(model, normalized(part), size).argmax(1)
        counted = truth != IGNORE
        pairs = truth[counted].long() * classes + answer[counted]
        counts += torch.bincount(pairs, minlength=classes * classes)
    return 100.0 * float(mean_iou(counts.view(classes, classes).cpu().numpy()))


def batches(
    images: Tensor, labels: Tensor, recipe: Recipe, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of augmented batches; the last one is left out where it would be short."""
    order = torch.randperm(len(images), generator=generator, device=images.device)
    batch = min(recipe.batch, len(images))
    for chosen in order.split(batch):
        if len(chosen) == batch:
            moved, truth = move(images[chosen], labels[chosen], recipe, generator)
            yield normalized(recolour(moved, recipe.colour, generator)), truth


class Trainer:
    """A model, its running average, and the best that was checked."""

    def __init__(self, model: nn.Module, recipe: Recipe, weights: Tensor, out: Path) -> None:
        self.model, self.recipe, self.weights, self.out = model, recipe, weights, out
        self.average = deepcopy(model).requires_grad_(False)
        self.optimizer = optimizer_for(model, recipe)
        self.device = weights.device
        self.steps, self.best, self.log = 0, -1.0, list[dict[str, float]]()
        self.started = time.monotonic()

    def step(self, images: Tensor, labels: Tensor, progress: float) -> Tensor:
        """One update; the loss stays on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate(progress, self.recipe)
        size = (int(labels.shape[-2]), int(labels.shape[-1]))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = segment(self.model, images, size)
        loss = loss_of(logits.float(), labels, self.weights, self.recipe.dice)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.steps += 1
        follow(self.average, self.model, 1 - min(self.recipe.ema, self.steps / (self.steps + 10)))
        return loss.detach()

    def progress(self, epoch: float) -> float:
        """Share of the training that is done, by epochs or by the clock, whichever is further."""
        by_epochs = epoch / self.recipe.epochs
        if not self.recipe.seconds:
            return by_epochs
        return max(by_epochs, (time.monotonic() - self.started) / self.recipe.seconds)

    def report(self, epoch: int, loss: float, val: tuple[Tensor, Tensor]) -> None:
        """Check the average, print a line, and save what is the best so far."""
        score = check(self.average, *val)
        if score > self.best:
            self.best = score
            save(self.average, self.out)
        entry = {"epoch": epoch, "steps": self.steps, "loss": round(loss, 4),
                 "val_miou": round(score, 2), "best": round(self.best, 2),
                 "seconds": round(time.monotonic() - self.started, 1)}  # fmt: skip
        self.log.append(entry)
        print(json.dumps(entry), flush=True)

    def train(self, images: Tensor, labels: Tensor, val: tuple[Tensor, Tensor]) -> None:
        """All epochs, or as many as the clock leaves; Ctrl-C ends it with the best so far."""
        generator = torch.Generator(self.device).manual_seed(self.recipe.seed)
        per_epoch = max(1, len(images) // self.recipe.batch)
        epoch, loss = 0, math.nan
        try:
            while self.progress(epoch) < 1:
                self.model.train()
                losses = []
                for number, batch in enumerate(batches(images, labels, self.recipe, generator)):
                    done = self.progress(epoch + number / per_epoch)
                    if done >= 1:
                        break
                    losses.append(self.step(*batch, done))
                epoch += 1
                loss = float(torch.stack(losses).mean()) if losses else loss
                if epoch % self.recipe.every == 0 and self.progress(epoch) < 1:
                    self.report(epoch, loss, val)
        except KeyboardInterrupt:
            print("interrupted: the best so far is kept", flush=True)
        self.report(epoch, loss, val)


def main(arguments: list[str] | None = None) -> None:
    """Read the flags, train, and leave the best weights and a log in the folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="the folder that holds CamVid")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the weights")
    parser.add_argument("--size", choices=SIZES, default="b0", help="of a model from scratch")
    parser.add_argument("--start", help="folder or Hugging Face name of weights to start from")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, value in asdict(Recipe()).items():
        parser.add_argument(f"--{name}".replace("_", "-"), type=type(value), default=value)
    flags = parser.parse_args(arguments)
    recipe = Recipe(**{name: getattr(flags, name) for name in asdict(Recipe())})
    torch.manual_seed(recipe.seed)  # initial weights, dropout and stochastic depth
    model = build_model(flags.size, flags.start, recipe.drop_path).to(flags.device)
    images, labels = read_split(flags.root, "train", flags.device)
    val = read_split(flags.root, "val", flags.device)
    weights = class_weights(labels, len(CamVid.class_names), recipe.balance, recipe.cap)
    trainer = Trainer(model, recipe, weights, flags.out)
    trainer.train(images, labels, val)
    result = {"size": flags.size, "start": flags.start, "recipe": asdict(recipe),
              "torch": torch.__version__, "val_miou": round(trainer.best, 2),
              "checks": trainer.log}  # fmt: skip
    (flags.out / LOG).write_text(json.dumps(result, indent=1) + "\n")
    print(f"{flags.out}: {trainer.best:.2f} % mIoU on val", flush=True)


if __name__ == "__main__":
    main()
