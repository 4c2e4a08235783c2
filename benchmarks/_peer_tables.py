"""What `peer_tables.py` runs: the commands of every table, and what they wait for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinato.registry import TABLES
from ostinato.running.spec import parse_pairs
from ostinato.tables._plan import plan_table
from ostinato.tables.request import Request
from ostinato.tables.search import read_factors

MODEL = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
WEIGHTS = "weights/vit_tiny_patch16_224.safetensors"
SEEDS = (2025, 2026, 2027)
FACTORS = "results/search/imagenet-c-full-factors.json"
MAIN = "results/main/imagenet-c-full.json"

# Slowest first, so that nothing slow is left for the end.
SLOW = ("dpcore", "foa", "vida", "adma", "becotta", "imse")
FAST = (
    "reservoir", "spa", "svdp", "rmt", "kff", "m2a", "cotta", "rem", "come:sar", "cmf", "roid",
    "sar", "eata", "rotta", "vdp", "dual_expert:paper", "ecotta", "rdumb", "deyo", "come", "tent",
    "pseudo_label", "cola", "come:eta", "zoa",
)  # fmt: skip
STILL = ("pea", "lame", "t3a", "gain", "foa_shift", "neo", "source")
"""Those without a learning rate."""
OURS = ("ostinato:robust", "ostinato:forward-only")
ROUNDS = (
    "dpcore", *OURS, "imse:recurring", "reservoir", "kff", "roid", "eata", "rdumb", "cola",
    "source",
)  # fmt: skip
"""Over twenty rounds: those that are meant to remember, and what they compare with."""
TINY = ("ostinato:robust", "ostinato:forward-only", "eata", "tent", "neo", "source")
ORDER = (
    "source", "pseudo_label", "tent", "cotta", "vdp", "vida", "adma", "becotta", "cmf", "cola",
    "come", "come:eta", "come:sar", "deyo", "dpcore", "eata", "ecotta", "foa", "foa_shift", "gain",
    "imse", "imse:recurring", "kff", "lame", "m2a", "memo", "neo", "pea", "rdumb", "rem",
    "reservoir", "rmt", "roid", "rotta", "sar", "spa", "svdp", "t3a", "zoa", "dual_expert:paper",
    "ostinato:forward-only", "ostinato:robust",
)  # fmt: skip
"""Of the lines that are shown."""
PARTS = ("Mixed", "Alternating", "Correlated", "CDC", "Batch 50", "Batch 10", "Batch 1")
LATER = ("Batch 200", "Gradual")
"""All kinds of traffic but Recurring, whose runs are those of the main table."""
LANES = {
    "tables": ("search", "main", "seeds", "traffic-seeds", "traffic-seeds-later"),
    "traffic": ("traffic", "traffic-later"),
    "rounds": ("recurring-20",),
}
"""What runs side by side; each lane one step after the other."""
NEEDS = {
    "main": FACTORS, "traffic": FACTORS, "traffic-later": FACTORS,
    "seeds": MAIN, "traffic-seeds": MAIN, "traffic-seeds-later": MAIN,
}  # fmt: skip
"""The file without which a step cannot begin."""
SHOWN = ("search", "main", "recurring-20", "traffic", "seeds", "traffic-seeds")
"""The steps whose commands, with all streams and seeds, show what is complete."""
DOCS = {
    "search/imagenet-c-search-full": "imagenet-c-vit-tiny-search",
    "search/imagenet-c-full-factors": "imagenet-c-vit-tiny-factors",
    "main/imagenet-c-full": "imagenet-c-vit-tiny",
    "seeds/imagenet-c-full": "imagenet-c-vit-tiny-seeds",
    "traffic/traffic-full": "traffic-vit-tiny",
    "traffic-seeds/traffic-full": "traffic-vit-tiny-seeds",
    "recurring-20/recurring-20-full": "recurring-20-vit-tiny",
}
"""Files below results, and what docs/results calls them; all forms of each."""


@dataclass(frozen=True)
class Plan:
    """The commands, to be run inside a folder that holds `data`, `weights` and `results`.

    Attributes:
        folder: that one.
        device: where the runs compute.
        tiny: two corruptions, four images each.
        methods: of all, these alone.
    """

    folder: Path
    device: str = "cuda"
    tiny: bool = False
    methods: tuple[str, ...] = ()

    def words(self, step: str, shown: bool = False) -> list[str]:
        """A step's `ostinato` command without `--jobs`; to show it: all of it, in one order."""
        parts = () if shown else LATER if step.endswith("-later") else PARTS
        make: dict[str, Callable[[], list[str]]] = {
            "search": self._search,
            "main": self._main,
            "seeds": self._seeds,
            "recurring-20": self._rounds,
            "traffic": lambda: self._traffic(parts),
            "traffic-seeds": lambda: self._traffic_seeds(parts, SEEDS if shown else SEEDS[1:]),
        }
        words = make[step.removesuffix("-later")]()
        return in_order(words) if shown else words

    def key(self, step: str) -> dict[str, Any]:
        """What tells whether a step that was done is still the one to do."""
        factors = read_factors(self.folder / FACTORS) if step in NEEDS else None
        return {"command": self.words(step), "factors": factors}

    def best(self, count: int, without: Iterable[str] = ()) -> list[str]:
        """The methods of lowest mean error at the searched rate, from the main table."""
        made = json.loads((self.folder / MAIN).read_text())
        place = next(
            i for i, h in enumerate(made["headings"]) if h["name"] == "Mean" and not h.get("group")
        )
        means = {
            row["label"]: row["values"][place].get("value")
            for row in made["rows"]
            if row["origin"] == "measured"
        }
        names = [n for n in self._of((*SLOW, *OURS, *FAST, *STILL)) if n != "source"]
        # Planned as the table does it, but for the place of its files.
        changes = parse_pairs(self._settings("test", self._images("main")))
        request = Request(
            scale="full", methods=tuple(names), changes=changes, searched=True,
            factors=read_factors(self.folder / FACTORS),
        )  # fmt: skip
        rows = plan_table(TABLES["imagenet-c"], request).rows
        found = [
            (means[row.label], name)
            for name, row in zip(names, rows, strict=True)
            if means.get(row.label) is not None
        ]
        return [name for _, name in sorted(found) if name not in without][:count]

    def _of(self, methods: Iterable[str]) -> tuple[str, ...]:
        chosen = self.methods or (TINY if self.tiny else ())
        return tuple(m for m in methods if not chosen or m in chosen)

    def _images(self, table: str) -> int:
        return 4 if self.tiny else {"main": 200}.get(table, 100)

    def _settings(self, split: str, limit: int) -> list[str]:
        clean = 20 if self.tiny else 300
        return [
            f"device={self.device}", f"model={MODEL}", "normalize=model", "precision=tf32",
            "clean=imagenet-val:clean", f"statistics={clean}", f"prepared={clean}",
            "data.dataset=imagenet-val", f"data.options.split={split}", f"data.limit={limit}",
            *(["data.domains=[fog,contrast]"] if self.tiny else []),
        ]  # fmt: skip

    def _common(self, split: str, limit: int, *extra: str) -> list[str]:
        return [
            "--scale", "full", "--root", "data", "--memory", "8", "--weights", WEIGHTS,
            "--set", *self._settings(split, limit), *extra,
        ]  # fmt: skip

    def _only(self, *words: str) -> list[str]:
        """Settings of single rows; at tiny size none but our own full precision."""
        return ["--only", *(f"{m}:precision=fp32" for m in OURS), *(() if self.tiny else words)]

    def _search(self) -> list[str]:
        methods = self._of((*SLOW, OURS[0], *FAST, "source"))
        return [
            "search", "imagenet-c", "--methods", *methods,
            "--factors", "0.01", "0.1", "1", "10", "100", "--seeds", str(SEEDS[0]),
            *self._common("tune", self._images("search"), "stream=recurring", "data.rounds=2"),
            *self._only(*(f"{m}:data.limit=50" for m in SLOW)), "--save", "results/search",
        ]  # fmt: skip

    def _recurring(self) -> list[str]:
        few = ("memo:data.limit=20", "memo:data.rounds=1", *_limits(("foa", "dpcore"), 100))
        images = self._images("main")
        return [
            *self._common("test", images, "stream=recurring", "data.rounds=3"),
            *self._only(*few),
        ]

    def _main(self) -> list[str]:
        methods = self._of(("memo", *SLOW, *OURS, "imse:recurring", *FAST, *STILL))
        return [
            "table", "imagenet-c", "--methods", *methods, "--factors", FACTORS,
            "--seeds", str(SEEDS[0]), *self._recurring(), "--save", "results/main",
        ]  # fmt: skip

    def _seeds(self) -> list[str]:
        chosen = self.best(2 if self.tiny else 10)
        return [
            "table", "imagenet-c", "--methods", "source", *chosen, "--factors", FACTORS,
            "--searched", "--seeds", *map(str, SEEDS), *self._recurring(),
            "--save", "results/seeds",
        ]  # fmt: skip

    def _kinds(
        self, methods: Iterable[str], parts: tuple[str, ...], seeds: Iterable[int]
    ) -> list[str]:
        """A table of traffic. One image or ten at a time, and MEMO's 64 views, take long."""
        slow = (*SLOW, "pea")
        few = {"Recurring": 200, "Batch 10": 50, "Batch 1": 10, "Gradual": 20, "Batch 200": 200}
        fewer = {
            "Recurring": [  # as many as the main table has
                *_limits(("foa", "dpcore"), 100),
                *_limits([m for m in slow if m not in ("foa", "dpcore")], 200),
                *("memo:data.limit=20", "memo:data.rounds=1"),
            ],
            "Batch 10": _limits((*slow, "memo"), 10),
            "Batch 1": _limits((*slow, "memo"), 4),
            "Gradual": _limits(slow, 10),
            "Batch 200": _limits(slow, 200),  # fewer would be smaller batches
        }
        # Settings of streams that are not run would be refused.
        here = [part for part in few if not parts or part in parts]
        only = self._only(
            *(f"{part}:data.limit={few[part]}" for part in here),
            *_limits(slow, 50),
            "memo:data.limit=4",
            *(f"{part}/{word}" for part in here for word in fewer[part]),
        )
        chosen = ["--parts", *parts] if parts else []
        return [
            "table", "traffic", "--methods", *methods, "--factors", FACTORS, "--searched",
            *chosen, "--seeds", *map(str, seeds), *self._common("test", self._images("traffic")),
            *only,
        ]  # fmt: skip

    def _traffic(self, parts: tuple[str, ...]) -> list[str]:
        methods = self._of((*OURS, *FAST, *STILL, *SLOW, "memo"))
        return [*self._kinds(methods, parts, SEEDS[:1]), "--save", "results/traffic"]

    def _traffic_seeds(self, parts: tuple[str, ...], seeds: Iterable[int]) -> list[str]:
        chosen = self.best(2 if self.tiny else 6, without=SLOW)
        return [*self._kinds(chosen, parts, seeds), "--save", "results/traffic-seeds"]

    def _rounds(self) -> list[str]:
        # Runs that no other table has lie in a folder of their own, for `ostinato report`.
        return [
            "table", "recurring-20", "--methods", *self._of(ROUNDS), "--seeds", str(SEEDS[0]),
            *self._common("test", self._images("recurring-20")),
            *self._only("dpcore:data.limit=50"), "--out", "runs-20",
            "--save", "results/recurring-20",
        ]  # fmt: skip


def _limits(methods: Iterable[str], images: int) -> list[str]:
    return [f"{method}:data.limit={images}" for method in methods]


def in_order(words: list[str]) -> list[str]:
    """The same command with its rows as docs show them: the source first, ours last."""
    start = words.index("--methods") + 1
    end = next(i for i in range(start, len(words)) if words[i].startswith("--"))
    return [*words[:start], *sorted(words[start:end], key=ORDER.index), *words[end:]]
