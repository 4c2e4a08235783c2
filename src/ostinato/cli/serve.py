"""`ostinato serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from ostinato.cli._command import command
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
    check_extra()
    from ostinato.serve.running import run
    from ostinato.serve.settings import Settings

    settings = Settings() if config is None else Settings.from_yaml(config)
    run(settings.replace(**{key: value for key, value in given.items() if value is not None}))
