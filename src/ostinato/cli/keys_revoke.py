"""`ostinato keys revoke`."""

from __future__ import annotations

from pathlib import Path

from ostinato.cli._command import command
from ostinato.cli._serving import Folder, open_store
from ostinato.cli._words import Named


@command("keys revoke", "NAME: take an API key back", "serving")
def keys_revoke_command(name: Named, /, *, data: Folder = Path("ostinato-serve")) -> None:
    """Take a key back; a running server notices within seconds.

    Args:
        name: of the key.
        data: the server's folder.
    """
    from ostinato.serve.keys import revoke_key

    revoke_key(open_store(data), name)
