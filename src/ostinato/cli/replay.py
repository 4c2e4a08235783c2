"""`ostinato replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from ostinato.cli._command import command
from ostinato.cli._serving import URL, Address, Key, check_extra
from ostinato.cli._words import Count, Hours


@command("replay", "FOLDER | VIDEO: feed images to a server's stream", "serving")
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
    check_extra()
    from ostinato.client.replay import replay

    replay(source, to, stream, batch=batch, rate=rate, loop=loop, key=key)
