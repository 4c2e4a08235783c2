"""What the demo runs: rows, domains and seeds.

The settings were chosen on the embedded *tune* images, a held-out part of CIFAR-10's training
images. The demo shows the embedded *test* images, which chose nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ostinato.running.spec import SEEDS, Spec

DOMAINS = ("gaussian_noise", "fog", "contrast", "pixelate", "frost")
ROUNDS = 3
BATCH = 25
# Among 32 pixels low frequencies alone tell few domains apart: not at the default radius of 2.
_SPECTRUM = {"radius": 12}


@dataclass(frozen=True)
class Row:
    """One line of the table.

    >>> Row("TENT", "tent", settings={"lr": 1e-3}).preset is None
    True
    """

    title: str
    method: str
    preset: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


ROWS = (
    Row("Source", "source"),
    Row("TENT", "tent", None, {"lr": 1e-3}),
    Row("CoTTA", "cotta"),
    Row("Ostinato paper", "dual_expert", "paper", {"discriminator": _SPECTRUM}),
    Row("Ostinato forward-only", "ostinato", "forward-only"),
    Row("Ostinato robust", "ostinato", "robust"),
)


_QUICK = ("Source", "TENT", "Ostinato robust")


@dataclass(frozen=True)
class Plan:
    """Rows, seeds and images of one demo.

    >>> Plan.make(quick=True).images, len(Plan.make().specs())
    (50, 18)
    """

    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    images: int

    @classmethod
    def make(cls, quick: bool = False) -> Plan:
        """The whole demo, or the short one that shows that everything works."""
        if quick:
            return cls(tuple(row for row in ROWS if row.title in _QUICK), SEEDS[:1], 50)
        return cls(ROWS, SEEDS, 125)

    @property
    def page(self) -> str:
        """The report's file; the short demo does not replace the whole one's."""
        return "report.html" if self == Plan.make() else "report-quick.html"

    @property
    def batches(self) -> int:
        """Batches of one run."""
        return -(-self.images // BATCH) * len(DOMAINS) * ROUNDS

    def specs(self) -> list[tuple[Row, Spec]]:
        """One spec per row and seed; every row of a seed before the next seed."""
        return [(row, self._spec(row, seed)) for seed in self.seeds for row in self.rows]

    def describe(self) -> str:
        """One line above the table."""
        names = ", ".join(name.replace("_", " ") for name in DOMAINS)
        seeds = ", ".join(map(str, self.seeds))
        return (
            f"{len(DOMAINS)} domains ({names}) of {self.images} images, {ROUNDS} rounds, "
            f"batch {BATCH}, seeds {seeds}"
        )

    def _spec(self, row: Row, seed: int) -> Spec:
        return Spec(
            stream="recurring",
            roots="embedded",
            data={
                "dataset": "embedded",
                "domains": list(DOMAINS),
                "rounds": ROUNDS,
                "limit": self.images,
                "seed": seed,
            },
            method=row.method,
            preset=row.preset,
            settings=row.settings,
            statistics="embedded",
            seeds=(seed,),
            batch_size=BATCH,
            device="cpu",
        )
