"""Simulated cameras: each sends images of one weather after another to a server."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

CAMERAS = {
    "gate": ("clean", "gaussian_noise", "clean", "fog"),
    "yard": ("fog", "contrast", "gaussian_noise"),
    "dock": ("clean", "pixelate", "frost"),
}
"""What each camera sees, again and again."""
_SEVERITY = 5
_IMAGES = 8
"""Of a request."""
_KEPT = 240
"""Different images of a camera."""


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

    images = embedded_images("test")[0][:_KEPT]
    if weather != "clean":
        seeds = list(range(len(images)))
        found = corrupt(images, weather, _SEVERITY, seeds, constants="cifar")
        images = found if found.dtype == torch.uint8 else (255 * found).round().to(torch.uint8)
    parts = itertools.cycle(images.split(_IMAGES))
    return lambda: next(parts).numpy()
