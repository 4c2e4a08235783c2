"""What a soak does, kept in its folder so that it can go on where it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from ostinato.config import Config, Seed
from ostinato.data.corruptions import COMMON
from ostinato.errors import ConfigError, StateError
from ostinato.methods.contract import resolve_config
from ostinato.ops.files import write_atomically
from ostinato.registry import METHODS

PLAN, POOL, SOURCE = "plan.json", "pool.npy", "source.npy"
STATE, LOG, LOCK = "state.safetensors", "log.jsonl", "lock"
KINDS = ("returning", "mixed", "few classes", "hostile")


class Plan(Config):
    """The settings of one soak; the same plan shows the same batches.

    >>> Plan().kind(0), Plan().kind(50), Plan().lap
    ('returning', 'mixed', 200)
    """

    method: str = Field("ostinato", description="A registered method.")
    preset: str | None = Field(None, description="Its named settings.")
    settings: dict[str, Any] = Field({}, description="Single settings of the method.")
    seed: Seed = Field(0, description="Of the traffic, the kills and the method.")
    batch_size: int = Field(5, ge=1, description="Images a batch.")
    images: int = Field(400, ge=10, description="Images of every corruption to draw from.")
    corruptions: tuple[str, ...] = Field(COMMON, min_length=1, description="What comes back.")
    severities: tuple[int, ...] = Field((3, 5), min_length=1, description="How strong.")
    stretch: int = Field(50, ge=1, description="Batches of one kind of traffic in a row.")
    block: int = Field(25, ge=1, description="Batches that one line of the log sums up.")
    save: int = Field(100, ge=1, description="Batches between saves; a whole number of blocks.")

    @property
    def lap(self) -> int:
        """Batches until the first kind of traffic comes again."""
        return self.stretch * len(KINDS)

    def kind(self, position: int) -> str:
        """The kind of traffic at a position."""
        return KINDS[position // self.stretch % len(KINDS)]


def settle_plan(folder: Path, wanted: Plan) -> Plan:
    """The folder's plan: the one that is there, which must be the one wanted, or the new one."""
    _check(wanted)
    place = folder / PLAN
    if not place.is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"Cannot make {folder}: {error.strerror}. Name another.") from None
        write_atomically(place, wanted.model_dump_json(indent=1).encode())
        return wanted
    there = read_plan(folder)
    different = [key for key, value in there.model_dump().items() if value != getattr(wanted, key)]
    if different:
        raise ConfigError(
            f"{folder} holds a soak with another {', '.join(different)}: leave it as it is there, "
            "or name another folder with --out."
        )
    return there


def _check(plan: Plan) -> None:
    if plan.stretch % plan.block or plan.save % plan.block:
        raise ConfigError("Blocks must fit into stretches and saves: choose divisors.")
    kind = METHODS[plan.method]
    needs = kind.needs(resolve_config(kind, plan.preset, dict(plan.settings)))
    lacking = sorted(needs - {"source statistics"})
    if lacking:
        raise ConfigError(f"{plan.method} needs {lacking[0]}, which a soak does not have.")


def read_plan(folder: Path) -> Plan:
    """The plan of a folder that holds a soak."""
    if not (folder / PLAN).is_file():
        raise ConfigError(f"{folder} holds no soak: name the folder that --out named.")
    return Plan.from_yaml(folder / PLAN)  # JSON is YAML, and that reader has limits
