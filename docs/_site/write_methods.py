"""Write docs/methods.md from what methods declare and from what they cost.

    python docs/_site/write_methods.py docs/methods.md               # seconds
    python docs/_site/write_methods.py docs/methods.md tent eata     # count these again
    python docs/_site/write_methods.py docs/methods.md all           # every one: minutes

Costs that the page shows already are kept, since counting all of them takes four minutes of one
core; a slow test holds them to what is counted.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ostinato.api import adapt, collect_statistics, prepare
from ostinato.catalogue import first_line, needs_text
from ostinato.data.embedded import embedded_images
from ostinato.lines import markdown
from ostinato.methods.base import Method
from ostinato.methods.contract import resolve_config
from ostinato.registry import METHODS

BATCH = 32
SIDE = 64
FEWER = {"memo": 2}
"""Images a batch where each is treated by itself, so that a few tell what all cost."""
QUICK = {"warm_steps": 1, "fisher_images": BATCH}
"""Settings of the preparation, which the cost of a step does not depend on."""

HEAD = """# Methods

<!-- Made by `python docs/_site/write_methods.py docs/methods.md`; do not edit by hand. -->

Every method is one file or folder in `src/ostinato/methods`, registered by name; this page is made
from what they declare. `ostinato.adapt(model, NAME, preset=...)` and `ostinato run --method NAME`
take the names of the first column, `ostinato check NAME` runs the conformance suite on one.

"""
LEGEND = """
- **needs**: help beyond the unlabeled stream. *Source statistics* come from
  `ostinato prepare statistics --model ... --data ... --out FILE` (or `ostinato.collect_statistics`)
  and go into `adapt(..., statistics=FILE)`; a *prepared file* comes from
  `ostinato prepare NAME --model ... --data ... --out FILE` and goes into
  `adapt(..., prepared=FILE)`.
- **predicts**: which forward is scored: the one *before* the update, one *after* it, the *last* of
  several steps on the batch, or the *teacher*'s.
- **tasks**: C classification, S segmentation.
- **setting**: the data and architecture that the authors chose the usual settings for, where the
  method has a release; on another one, `ostinato search` tells what a rate is worth.

## Cost

Counted on a plain ViT-Tiny with random weights at {side} px (patches of 8), in batches of {batch}
images, default settings (`ostinato`: `robust`; `bn`: on a ResNet-18): the parameters that one
step moves, as a share of the source model's own, and the floating point operations of a step in
forwards of the source model, on a domain's first batch and on average over the next two. The first
differs where a new domain gets more steps, or where evidence or a memory bank is gathered before
anything moves. Filters and extra views depend on the data: CoTTA's 32 views come only where the
source model is unsure.
`ostinato speed` measures time and memory.

"""


@dataclass(frozen=True)
class Cost:
    """Parameters moved, in percent; operations of the first and of a later step, in forwards."""

    moved: float
    first: float
    later: float


def plain_vit() -> nn.Module:
    """A ViT-Tiny with random weights; its head is steep, so that its predictions are firm."""
    import timm

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = timm.create_model(
            "vit_tiny_patch16_224", img_size=SIDE, num_classes=10, patch_size=SIDE // 8
        )
        head: Any = model.head
        nn.init.normal_(head.weight, std=1.0)
    return model.eval()


def plain_cnn() -> nn.Module:
    """A ResNet-18 with random weights, for methods that need batch norm."""
    import timm

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = timm.create_model("resnet18", num_classes=10)
    return model.eval()


def method_cost(name: str) -> Cost:
    """What a method costs on a plain ViT.

    >>> method_cost("source")
    Cost(moved=0.0, first=1.0, later=1.0)
    """
    count = FEWER.get(name, BATCH)
    images, labels, _ = embedded_images("tune")
    images = images[: 2 * count].repeat_interleave(SIDE // 32, 2).repeat_interleave(SIDE // 32, 3)
    model = plain_cnn() if METHODS[name].info.norms == "batch" else plain_vit()
    source = sum(p.numel() for p in model.parameters())
    with torch.no_grad():
        once = _operations(model, images[:count].float() / 255)
    method = _adapted(name, model, images[count:], labels[count : 2 * count])
    method.model.check(images[:1])  # a first size is tried out, which is no step's cost
    counts = [_operations(method, images[:count]) / once for _ in range(3)]
    return Cost(100 * method.trained() / source, counts[0], (counts[1] + counts[2]) / 2)


def method_page(costs: dict[str, Cost]) -> str:
    """The whole page as Markdown, with the costs of every method."""
    names = METHODS.names()
    head = ("name", "title", "paper", "trains", "needs", "predicts", "tasks", "presets", "setting")
    parts = [HEAD + markdown(head, [_declared(name) for name in names]), "\n", LEGEND]
    text = "".join(parts).format(batch=BATCH, side=SIDE)
    columns = ("name", "moves %", "first step", "later step")
    text += markdown(columns, [_cost_row(name, costs[name]) for name in names])
    text += "\n\n## What each does, and how it differs from its authors' release\n"
    for name in names:
        kind = METHODS[name]
        text += f"\n- **{name}**: {first_line(kind)} Differences: {kind.info.differences}."
        text += f" Published: {kind.info.published}." if kind.info.published else ""
        text += f" Here: {kind.info.measured}." if kind.info.measured else ""
    return text + "\n"


def _declared(name: str) -> tuple[str, ...]:
    kind = METHODS[name]
    info = kind.info
    tasks = ", ".join(sorted(task[0].upper() for task in info.tasks))
    presets = ", ".join(f"`{preset}`" for preset in kind.presets) or "-"
    needs = needs_text(kind)
    words = f"`{name}`", info.title, info.paper, info.trains, needs, info.predicts, tasks
    return *words, presets, info.setting


def _cost_row(name: str, cost: Cost) -> tuple[str, ...]:
    return f"`{name}`", f"{cost.moved:.2f}", f"{cost.first:.1f}", f"{cost.later:.1f}"


def _adapted(name: str, model: Any, images: Tensor, labels: Tensor) -> Method:
    kind = METHODS[name]
    preset = kind.default_preset
    quick: dict[str, Any] = {
        key: value for key, value in QUICK.items() if key in kind.Config.model_fields
    }
    needs = kind.needs(resolve_config(kind, preset, quick))
    given: dict[str, Any] = {}
    if "source statistics" in needs:
        given["statistics"] = collect_statistics(model, images)
    if "prepared file" in needs:
        given["prepared"] = prepare(model, name, images, labels, preset=preset, **quick)
    return adapt(model, name, preset=preset, **given, **quick)


def _operations(step: Any, batch: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        step(batch)
    return int(counter.get_total_flops())


def shown_costs(text: str) -> dict[str, Cost]:
    """The costs that a page shows, by method.

    >>> shown_costs("| `tent` | 0.14 | 3.0 | 2.9 |")
    {'tent': Cost(moved=0.14, first=3.0, later=2.9)}
    """
    cells = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", text, re.M)
    return {name: Cost(*map(float, rest)) for name, *rest in cells}


def main() -> None:
    """Count what the page lacks or what was named, and write it."""
    parser = argparse.ArgumentParser(description="Write the page of methods.")
    parser.add_argument("page", type=Path)
    parser.add_argument("again", nargs="*", help="methods whose costs are counted again, or all")
    given = parser.parse_args()
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine take far longer
    known = shown_costs(given.page.read_text(encoding="utf-8")) if given.page.is_file() else {}
    unknown = set(given.again) - {"all", *METHODS.names()}
    if unknown:
        parser.error(f"no method is called {', '.join(sorted(unknown))}")
    costs = {}
    for name in METHODS.names():
        if name in known and not {name, "all"} & set(given.again):
            costs[name] = known[name]
        else:
            print(f"counting {name}", flush=True)
            costs[name] = method_cost(name)
    given.page.write_text(method_page(costs), encoding="utf-8")


if __name__ == "__main__":
    main()
