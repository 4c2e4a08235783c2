"""The commands around a server: serve, keys, streams, replay."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ostinato.cli_words import Count, File, Hours, Name, Named, Number, Place, Weights, called
from ostinato.errors import ConfigError

Folder = Annotated[Path, tyro.conf.arg(metavar="DIR")]
Address = Annotated[str, tyro.conf.arg(metavar="URL")]
Key = Annotated[str | None, called("KEY")]
URL = "http://127.0.0.1:8000"
EXTRA = "Serving needs more packages: pip install 'ostinato[serve]'."


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
    _check_extra()
    from ostinato.serve.running import run
    from ostinato.serve.settings import Settings

    settings = Settings() if config is None else Settings.from_yaml(config)
    run(settings.replace(**{key: value for key, value in given.items() if value is not None}))


def keys_add_command(
    name: Named,
    /,
    *,
    role: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ROLE...")],
    data: Folder = Path("ostinato-serve"),
) -> None:
    """Make an API key and print it, once; the server keeps a hash of it.

    Args:
        name: what the key is called.
        role: one or more of predict, operate, read.
        data: the server's folder.
    """
    from ostinato.serve.keys import add_key

    print(add_key(_store(data, make=True), name, role))


def keys_list_command(*, data: Folder = Path("ostinato-serve")) -> None:
    """Show which keys there are.

    Args:
        data: the server's folder.
    """
    from ostinato.serve.keys import list_keys

    for name, roles, made in list_keys(_store(data)):
        print(f"{name:20} {roles:24} {time.strftime('%Y-%m-%d', time.localtime(made))}")


def keys_revoke_command(name: Named, /, *, data: Folder = Path("ostinato-serve")) -> None:
    """Take a key back; a running server notices within seconds.

    Args:
        name: of the key.
        data: the server's folder.
    """
    from ostinato.serve.keys import revoke_key

    revoke_key(_store(data), name)


def replay_command(
    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE|DIR")],
    /,
    *,
    stream: Annotated[str, tyro.conf.arg(metavar="NAME")],
    to: Address = URL,
    batch: Count = 1,
    rate: Hours = None,
    loop: bool = False,
    key: Key = None,
) -> None:
    """Feed a folder of images or a video to a stream, and show what comes back.

    Args:
        source: a folder, an image, or a video (videos other than GIF and WebP need PyAV).
        stream: name of the stream.
        to: address of the server.
        batch: images a request.
        rate: images a second; as fast as they are answered unless given.
        loop: begin again at the end, until interrupted.
        key: an API key; OSTINATO_KEY unless given.
    """
    _check_extra()
    from ostinato.client.replay import replay

    replay(source, to, stream, batch=batch, rate=rate, loop=loop, key=key)


def streams_command(
    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WHAT")],
    name: Annotated[str | None, tyro.conf.Positional, called("NAME")] = None,
    /,
    *,
    to: Name = None,
    domain: Number = None,
    label: Name = None,
    file: File = None,
    images: bool = False,
    preset: Annotated[Literal["robust", "forward-only"] | None, called("NAME")] = None,
    start: Name = None,
    url: Address = URL,
    key: Key = None,
) -> None:
    """Look at a server's streams and change them; prints JSON.

    Args:
        what: list, show, snapshots, events, declare, remove, checkpoint, rollback, reset, freeze,
            unfreeze, export or import.
        name: of the stream.
        to: rollback: a checkpoint's name or a snapshot's id; the one before now unless given.
        domain: rollback, reset, freeze, export: this domain alone.
        label: checkpoint: its name.
        file: export, import: the file.
        images: export: with the latest images, so that learning goes on to the bit.
        preset: declare: of the stream.
        start: declare: copy this stream's domains.
        url: of the server.
        key: an API key; OSTINATO_KEY unless given.
    """
    _check_extra()
    from ostinato.client.operator import operate

    given = {"to": to, "domain": domain, "label": label, "file": file, "images": images}
    found = operate(url, key, what, name, given | {"preset": preset, "start": start})
    if found is not None:
        print(json.dumps(found, indent=1, ensure_ascii=False))


def verify_command(name: Named, /, *, config: File = None, data: Place = None) -> None:
    """Make a stream's states again from its event log, and compare them with its snapshots.

    Needs a server that ran with --record and has been stopped.

    Args:
        name: of the stream.
        config: the settings that the server ran with.
        data: its folder, where it is not in them.
    """
    _check_extra()
    from ostinato.serve.loading import load_served
    from ostinato.serve.replaying import verify
    from ostinato.serve.settings import Settings

    settings = Settings() if config is None else Settings.from_yaml(config)
    if data is not None:
        settings = settings.replace(data=data)
    store = _store(settings.data)
    found = verify(store, settings, load_served(settings), name)
    for version, same in found:
        print(f"{version:24} {'the same' if same else 'DIFFERENT'}")
    if not all(same for _, same in found):
        raise SystemExit(1)


def _store(folder: Path, *, make: bool = False) -> Any:
    from ostinato.serve.store import DATABASE, Store

    if not make and not (folder / DATABASE).is_file():
        raise ConfigError(f"There is no server's folder {folder}: name it with --data.")
    return Store(folder)


def _check_extra() -> None:
    from importlib.util import find_spec

    missing = [
        name
        for name in ("fastapi", "uvicorn", "prometheus_client", "httpx", "python_multipart")
        if find_spec(name) is None
    ]
    if missing:
        print(f"missing: {', '.join(missing)}", file=sys.stderr)
        raise ConfigError(EXTRA)
