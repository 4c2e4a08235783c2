"""Files on disk: where a data set's folder is, what is in its images, and errors that help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ostinato.data.datasets.listing import leftovers
from ostinato.errors import DataError
from ostinato.text import one_line

MOST_PIXELS = 64_000_000
OWN = frozenset({"folder", "array"})
"""Data sets of a user's own, which nobody can fetch."""


def decode_rgb(path: Path) -> Tensor:
    """Read an image as uint8 (3, H, W); a broken file is a DataError that names it."""
    return torch.from_numpy(_decode(path, "RGB")).permute(2, 0, 1).contiguous()


def decode_map(path: Path) -> Tensor:
    """Read a label picture as uint8 (H, W), its pixel values as they are."""
    array = _decode(path, None)
    if array.ndim != 2:
        raise DataError(
            f"{path} should be a one-channel picture of class numbers, but has shape "
            f"{array.shape}. Colour label pictures have to be turned into class numbers first."
        )
    if array.size and not 0 <= array.min() <= array.max() <= 255:
        raise DataError(
            f"{path} has values from {array.min()} to {array.max()}; class numbers lie in 0 to "
            "254, and 255 is for pixels that do not count."
        )
    return torch.from_numpy(array.astype(np.uint8))


def _decode(path: Path, mode: str | None) -> np.ndarray:
    try:
        with Image.open(path) as picture:
            _check_pixels(picture)
            picture.load()
            return np.array(picture.convert(mode) if mode else picture)
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing. Fetch or unpack the data set again; 'ostinato data check' tells "
            f"what else is."
        ) from None
    except DataError as error:
        raise DataError(f"{path} {error}") from None
    except Exception as error:  # decoders meet broken files with whatever they stumble over
        raise DataError(
            f"{path} cannot be decoded ({one_line(error)}): the file is truncated or no image. "
            f"Delete it and fetch or unpack the data set again."
        ) from None


def _check_pixels(picture: Image.Image) -> None:
    """Refuse before decoding: a few kilobytes can say that they are gigabytes of pixels."""
    width, height = picture.size
    if width * height > MOST_PIXELS:
        raise DataError(
            f"has {width}×{height} pixels, more than {MOST_PIXELS:,}: resize it, or leave it out."
        )


def locate(root: str | Path, inner: Sequence[str], probe: Iterable[str]) -> Path | None:
    """The first of root, root/inner[0], ... that holds one of the probed paths (globs allowed)."""
    probes = tuple(probe)
    for name in ("", *inner):
        folder = Path(root) / name
        if folder.is_dir() and any(next(folder.glob(p), None) is not None for p in probes):
            return folder
    return None


def wrong_layout(name: str, root: str | Path, layout: str, missing: str) -> DataError:
    """The error for a root that does not hold a data set, with the likely reason and the remedy."""
    root = Path(root)
    fetch = f"ostinato data fetch {name} --root {root}"
    own = name in OWN
    if not root.exists():
        how = "" if own else f"Create it with '{fetch}', or name"
        return DataError(
            f"The root {root} of {name} does not exist. {how or 'Name'} the folder that holds: "
            f"{layout}."
        )
    unfinished = [] if own else leftovers(root)
    if unfinished:
        found = ", ".join(unfinished)
        return DataError(
            f"{root} holds no unpacked {name}, but a download that is not finished or not "
            f"unpacked ({found}). Run '{fetch}' to go on with it."
        )
    remedy = "Put the images into such folders, or name" if own else f"Run '{fetch}', or name"
    return DataError(
        f"{root} is not a root of {name}: {missing} is missing. Expected layout: {layout}. "
        f"{remedy} another root."
    )
