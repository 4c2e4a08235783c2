"""Feeding a folder or a video to a stream, with its progress shown."""

from __future__ import annotations

import io
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from PIL import Image, ImageSequence, UnidentifiedImageError

from ostinato.client._sync import Client
from ostinato.errors import DataError

_PICTURES = {".jpg", ".jpeg", ".png", ".webp", ".npy"}
_MOVING = {".gif", ".webp", ".png", ".apng", ".tif", ".tiff"}


def _frames(source: Path) -> Iterator[bytes]:
    """Encoded images, in order: a folder's by name, a video's by time."""
    if source.is_dir():
        found = sorted(path for path in source.rglob("*") if path.suffix.lower() in _PICTURES)
        if not found:
            raise DataError(f"{source} holds no images ({', '.join(sorted(_PICTURES))}).")
        yield from (path.read_bytes() for path in found)
    elif not source.is_file():
        raise DataError(f"There is no folder or file {source}.")
    elif source.suffix.lower() in _PICTURES | _MOVING:
        yield from _pillow(source)
    else:
        yield from _video(source)


def _pillow(source: Path) -> Iterator[bytes]:
    if source.suffix.lower() == ".npy":
        yield source.read_bytes()
        return
    try:
        with Image.open(source) as picture:
            if getattr(picture, "n_frames", 1) == 1:
                yield source.read_bytes()
                return
            for frame in ImageSequence.Iterator(picture):
                yield _png(frame)
    except UnidentifiedImageError:
        raise DataError(f"{source} is no image that can be read.") from None


def _video(source: Path) -> Iterator[bytes]:
    if find_spec("av") is None:
        raise DataError(f"Reading {source} needs PyAV: pip install av, or give a folder of frames.")
    import av

    try:
        with av.open(str(source)) as container:
            for frame in container.decode(video=0):
                yield _png(frame.to_image())
    except (av.FFmpegError, IndexError) as error:
        raise DataError(f"{source} is no video that can be read ({error}).") from None


def _png(picture: Image.Image) -> bytes:
    data = io.BytesIO()
    picture.convert("RGB").save(data, format="PNG", compress_level=1)
    return data.getvalue()


def replay(
    source: Path,
    url: str,
    stream: str,
    *,
    batch: int = 1,
    rate: float | None = None,
    loop: bool = False,
    key: str | None = None,
) -> Counter[int]:
    """Send everything to a stream; how many images went to which domain."""
    domains: Counter[int] = Counter()
    started, version = time.monotonic(), ""
    with Client(url, key, patience=600.0) as client:
        every = itertools.chain.from_iterable(
            _frames(source) for _ in (itertools.count() if loop else range(1))
        )
        while part := list(itertools.islice(every, batch)):
            answer = client.predict(stream, part, top=1)
            version = answer.version
            domains.update(one.domain for one in answer.images)
            _show(domains, version, started)
            if rate is not None:
                due = started + sum(domains.values()) / rate
                time.sleep(max(0.0, due - time.monotonic()))
    if sys.stderr.isatty():
        print(file=sys.stderr)
    total, seconds = sum(domains.values()), time.monotonic() - started
    shown = ", ".join(f"{domain}: {count}" for domain, count in sorted(domains.items()))
    print(f"{total} images in {seconds:.1f} s; domains {shown}; version {version}")
    return domains


def _show(domains: Counter[int], version: str, started: float) -> None:
    if not sys.stderr.isatty():
        return
    total = sum(domains.values())
    pace = total / max(time.monotonic() - started, 1e-3)
    shown = " ".join(f"{domain}:{count}" for domain, count in sorted(domains.items()))
    print(f"\r{total} images, {pace:.0f}/s, version {version}, {shown}   ", end="", file=sys.stderr)
