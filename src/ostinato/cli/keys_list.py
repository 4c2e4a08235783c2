"""`ostinato keys list`."""

from __future__ import annotations

import time
from pathlib import Path

from ostinato.cli._command import command
from ostinato.cli._serving import Folder, open_store


@command("keys list", "show a server's API keys", "serving", alone=True)
def keys_list_command(*, data: Folder = Path("ostinato-serve")) -> None:
    """Show which keys there are.

    Args:
        data: the server's folder.
    """
    from ostinato.serve.keys import list_keys

    for name, roles, made in list_keys(open_store(data)):
        print(f"{name:20} {roles:24} {time.strftime('%Y-%m-%d', time.localtime(made))}")
