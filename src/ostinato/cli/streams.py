"""`ostinato streams`."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import tyro

from ostinato.cli._command import command
from ostinato.cli._serving import URL, Address, Key, check_extra
from ostinato.cli._words import File, Name, Number, called


@command("streams", "WHAT [NAME]: look at a server's streams, and change them", "serving")
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
            unfreeze, move, export or import.
        name: of the stream.
        to: rollback: a checkpoint's name or a snapshot's id; the one before now unless given.
            move: the number of a shard.
        domain: rollback, reset, freeze, export: this domain alone.
        label: checkpoint: its name.
        file: export, import: the file.
        images: export: with the latest images, so that learning goes on to the bit.
        preset: declare: of the stream.
        start: declare: copy this stream's domains.
        url: of the server.
        key: an API key; OSTINATO_KEY unless given.
    """
    check_extra()
    from ostinato.client.operator import operate

    given = {"to": to, "domain": domain, "label": label, "file": file, "images": images}
    found = operate(url, key, what, name, given | {"preset": preset, "start": start})
    if found is not None:
        print(json.dumps(found, indent=1, ensure_ascii=False))
