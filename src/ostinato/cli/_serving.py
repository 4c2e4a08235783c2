"""What the commands around a server share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from ostinato.cli._words import called
from ostinato.errors import ConfigError

Folder = Annotated[Path, tyro.conf.arg(metavar="DIR")]
Address = Annotated[str, tyro.conf.arg(metavar="URL")]
Key = Annotated[str | None, called("KEY")]
URL = "http://127.0.0.1:8000"
EXTRA = "Serving needs more packages: pip install 'ostinato[serve]'."


def open_store(folder: Path, *, make: bool = False) -> Any:
    """The folder of a server that there is, or is to be."""
    from ostinato.serve.store import DATABASE, Store

    if not make and not (folder / DATABASE).is_file():
        raise ConfigError(f"There is no server's folder {folder}: name it with --data.")
    return Store(folder)


def check_extra() -> None:
    """Refuse to go on without the packages that serving needs."""
    from importlib.util import find_spec

    missing = [
        name
        for name in ("fastapi", "uvicorn", "prometheus_client", "httpx", "python_multipart")
        if find_spec(name) is None
    ]
    if missing:
        print(f"missing: {', '.join(missing)}", file=sys.stderr)
        raise ConfigError(EXTRA)
