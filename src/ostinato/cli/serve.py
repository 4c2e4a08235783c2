"""`ostinato serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from ostinato.cli._command import command
from ostinato.cli._engine import Address, Asked, Where, check_flags
from ostinato.cli._serving import check_extra
from ostinato.cli._words import File, Name, Number, Place, Weights, called


@command("serve", "[CONFIG]: one model behind HTTP, a state for every camera", "serving")
def serve_command(
    config: Annotated[Path | None, tyro.conf.Positional, called("FILE")] = None,
    /,
    *,
    data: Place = None,
    host: Annotated[str | None, called("ADDRESS")] = None,
    port: Number = None,
    model: Name = None,
    weights: Weights = None,
    statistics: File = None,
    preset: Annotated[Literal["robust", "forward-only"] | None, called("NAME")] = None,
    device: Name = None,
    thumbnails: bool = False,
    record: bool = False,
    log: Annotated[str | None, called("FILE")] = None,
    engine: Where = "local",
    shards: Number = None,
    address: Address = None,
    resources: Asked = (),
) -> None:
    """Serve a model over HTTP: every stream adapts by itself. docs/serve.md has all settings.

    Args:
        config: a YAML file of settings; flags go before it.
        data: folder for states, events and keys; ./ostinato-serve unless given.
        host: address to listen on; any other than 127.0.0.1 needs keys ('ostinato keys add').
        port: port to listen on; 0 takes a free one.
        model: 'embedded', a timm name with its tag, or a Hugging Face name.
        weights: a checkpoint file, or 'random'.
        statistics: source statistics, made by 'ostinato prepare statistics'.
        preset: of streams that name none.
        device: cpu, cuda or auto.
        thumbnails: let the page show images of domains.
        record: keep what was learned from, so that states can be made again from the log.
        log: file that gets every event as a line of JSON; '-' is standard output.
        engine: local, or ray: streams spread over actors of a Ray cluster (docs/scale.md).
        shards: how many actors; 2 unless given.
        address: of that cluster; one of this machine alone is started unless given.
        resources: of one shard there, as cpu=4 gpu=1 memory=16 (GiB).
    """
    given = {
        "data": data,
        "host": host,
        "port": port,
        "model": model,
        "weights": weights,
        "statistics": statistics,
        "preset": preset,
        "device": device,
        "log": log,
        "thumbnails": thumbnails or None,
        "record": record or None,
    }
    check_flags(engine, address, resources, shards)
    check_extra()
    from ostinato.serve.running import run
    from ostinato.serve.settings import Settings

    settings = Settings() if config is None else Settings.from_yaml(config)
    settings = settings.replace(**{k: value for k, value in given.items() if value is not None})
    if engine == "ray":
        from ostinato.scale.cluster import check_ray
        from ostinato.scale.resources import Resources
        from ostinato.scale.serving import run_sharded

        check_ray()
        given_to_each = Resources.read(resources)
        count = 2 if shards is None else shards
        run_sharded(settings, shards=count, address=address, resources=given_to_each)
        return
    run(settings)
