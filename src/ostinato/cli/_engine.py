"""Where a command's work is done: on this machine, or as tasks and actors of a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from ostinato.cli._words import Words, called
from ostinato.errors import ConfigError, OstinatoError

Where = Annotated[Literal["local", "ray"], called("{local,ray}")]
Address = Annotated[str | None, called("auto|HOST:PORT")]
Asked = Annotated[tuple[str, ...], called("[cpu=N gpu=N memory=GIB]")]


def check_flags(
    engine: str, address: str | None, resources: Words, shards: int | None = None
) -> None:
    """Refuse what only Ray would make something of."""
    given = {"address": address, "resources": resources, "shards": shards}
    idle = [f"--{name}" for name, value in given.items() if value not in (None, ())]
    if engine != "ray" and idle:
        raise ConfigError(f"{' and '.join(idle)} need --engine ray: add it, or leave them out.")


def engine_of(engine: str, address: str | None, resources: Words, every: int = 50) -> Any:
    """What runs rows elsewhere; None for this machine's own processes."""
    check_flags(engine, address, resources)
    if engine != "ray":
        return None
    from ostinato.scale.cluster import check_ray
    from ostinato.scale.resources import Resources
    from ostinato.scale.sweep import RayEngine

    check_ray()
    return RayEngine(address=address, resources=Resources.read(resources), every=every)


def run_elsewhere(engine: Any, spec: Any, out: Path, again: bool) -> list[Any]:
    """Every seed of a spec, run by an engine; the runs' folders."""
    from rich.console import Console

    from ostinato.running.results import RunFolder
    from ostinato.tables.request import spec_key

    specs = spec.runs()
    found = engine.run(specs, out=out, again=again, memory=1.0, console=Console(stderr=True))
    for outcome in found.values():
        if isinstance(outcome, OstinatoError):
            raise outcome
    return [RunFolder.open(engine.folders[spec_key(one)]) for one in specs]
