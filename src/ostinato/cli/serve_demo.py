"""`ostinato serve-demo`."""

from __future__ import annotations

import signal
import tempfile
import threading
from pathlib import Path
from typing import Annotated

import tyro

from ostinato.cli._command import command
from ostinato.cli._serving import check_extra
from ostinato.cli._words import Count, Hours, Place

_Seconds = Annotated[float, tyro.conf.arg(metavar="NUMBER")]


@command("serve-demo", "a server on the embedded model with three cameras", "serving", alone=True)
def serve_demo_command(
    *,
    port: Count = 8000,
    data: Place = None,
    visit: _Seconds = 30.0,
    pause: _Seconds = 0.5,
    seconds: Hours = None,
) -> None:
    """Serve the embedded model to three simulated cameras; Ctrl-C ends it.

    Args:
        port: of the page.
        data: folder for states; a temporary one unless given.
        visit: seconds that a camera stays with one weather.
        pause: seconds between two requests of a camera.
        seconds: end by itself after so long.
    """
    check_extra()
    from ostinato.client.cameras import CAMERAS, camera
    from ostinato.serve.running import run
    from ostinato.serve.settings import Settings

    stopping = threading.Event()
    with tempfile.TemporaryDirectory(prefix="ostinato-serve-") as folder:
        chosen = Settings.parse(
            {"port": port, "data": data or Path(folder), "thumbnails": True, "compare": 4}
        )

        def opened(address: str) -> None:
            print(f"the page: {address}/   (Ctrl-C ends the demo)", flush=True)
            for name, weathers in CAMERAS.items():
                work = (address, name, weathers, visit, pause, stopping)
                threading.Thread(target=camera, args=work, daemon=True).start()
            if seconds is not None:
                timer = threading.Timer(seconds, signal.raise_signal, (signal.SIGINT,))
                timer.daemon = True
                timer.start()

        try:
            run(chosen, opened)
        except KeyboardInterrupt:
            print("ended")
        finally:
            stopping.set()
