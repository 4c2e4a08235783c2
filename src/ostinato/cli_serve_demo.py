"""`ostinato serve-demo`: a server on the embedded model, and three cameras that talk to it."""

from __future__ import annotations

import itertools
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from ostinato.cli_words import Count, Hours, Place

CAMERAS = {
    "gate": ("clean", "gaussian_noise", "clean", "fog"),
    "yard": ("fog", "contrast", "gaussian_noise"),
    "dock": ("clean", "pixelate", "frost"),
}
"""What each camera sees, again and again."""
SEVERITY = 5
IMAGES = 8
"""Of a request."""
KEPT = 240
"""Different images of a camera."""


Seconds = Annotated[float, tyro.conf.arg(metavar="NUMBER")]


def serve_demo_command(
    *,
    port: Count = 8000,
    data: Place = None,
    visit: Seconds = 30.0,
    pause: Seconds = 0.5,
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
    from ostinato.cli_serve import _check_extra

    _check_extra()
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


def camera(
    address: str,
    name: str,
    weathers: tuple[str, ...],
    visit: float,
    pause: float,
    stopping: threading.Event,
) -> None:
    """Send images under one weather after another, until it is told to stop."""
    import torch

    from ostinato.client import Client
    from ostinato.errors import OstinatoError

    torch.set_num_threads(1)
    pictures = {weather: _pictures(weather) for weather in dict.fromkeys(weathers)}
    sequence = itertools.count()
    with Client(address) as client:
        for weather in itertools.cycle(weathers):
            until = time.monotonic() + visit
            while time.monotonic() < until:
                if stopping.wait(pause):
                    return
                try:
                    client.predict(name, pictures[weather](), top=1, sequence=next(sequence))
                except OstinatoError:
                    return  # the server has gone


def _pictures(weather: str) -> Callable[[], object]:
    """Gives the next images under a weather, each time it is called."""
    import torch

    from ostinato.data.corruptions import corrupt
    from ostinato.data.embedded import embedded_images

    images = embedded_images("test")[0][:KEPT]
    if weather != "clean":
        seeds = list(range(len(images)))
        found = corrupt(images, weather, SEVERITY, seeds, constants="cifar")
        images = found if found.dtype == torch.uint8 else (255 * found).round().to(torch.uint8)
    parts = itertools.cycle(images.split(IMAGES))
    return lambda: next(parts).numpy()
