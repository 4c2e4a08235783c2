"""`ostinato keys add`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from ostinato.cli._command import command
from ostinato.cli._serving import Folder, open_store
from ostinato.cli._words import Named


@command("keys add", "NAME: make an API key for a server", "serving")
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

    print(add_key(open_store(data, make=True), name, role))
