"""What the load on a server is made of: its settings, and requests under several weathers."""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _serving import as_npy, images

NPY = "application/x-npy"
EDGE = "ostinato-edge"
SIDE = 224


def prepared(given: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[bytes], str]:
    """Settings of the server, bodies of requests, and their type."""
    settings: dict[str, Any] = {
        "model": given.model,
        "device": given.device,
        "precision": given.precision,
        "threads": given.threads,
        "record": given.checked > 0,
        "learning": {"share": given.share},
        "batching": {"images": given.batch, "waiting": 16 * given.batch},
        "limits": {"rate": 1e6, "streams": given.streams + 1, "body_mb": 64},
        "events": 1_000_000,
    }
    if given.trusting:  # random weights are surer of nothing
        settings["settings"] = {"trust": False}
    if given.model == "embedded":
        kept = images(40 * given.images).reshape(-1, given.images, 3, 32, 32)
        return settings, [as_npy(part) for part in kept], NPY
    settings |= {"weights": given.weights, "statistics": str(_statistics(given, folder))}
    kept = np.stack([_large(weather) for weather in images(given.images)])
    if given.sent == "jpeg":
        return settings, [_pictures(part) for part in kept], f"multipart/form-data; boundary={EDGE}"
    return settings, [as_npy(part) for part in kept], NPY


def _large(small: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The images of one weather in the size of larger models, as uint8."""
    grown = torch.nn.functional.interpolate(
        torch.from_numpy(small).float(), SIDE, mode="bicubic", align_corners=False
    )
    found: np.ndarray[Any, Any] = grown.clamp(0, 255).round().to(torch.uint8).numpy()
    return found


def _statistics(given: argparse.Namespace, folder: Path) -> Path:
    """Of clean images that are drawn here: nothing has to be there, or to be fetched."""
    from ostinato.api import collect_statistics
    from ostinato.models.loading import load_model
    from ostinato.running.spec import Spec

    spec = Spec.parse({"model": given.model, "weights": given.weights, "device": given.device})
    path = folder / "statistics.safetensors"
    clean = torch.from_numpy(_large(images(given.clean)[0]))
    collect_statistics(load_model(spec), clean).save(path)
    return path


def _pictures(kept: np.ndarray[Any, Any]) -> bytes:
    """Some JPEGs as one request."""
    from PIL import Image

    head = f'--{EDGE}\r\ncontent-disposition: form-data; name="images"; filename="x.jpg"\r\n\r\n'
    parts = []
    for one in kept:
        data = io.BytesIO()
        Image.fromarray(one.transpose(1, 2, 0)).save(data, format="JPEG", quality=90)
        parts.append(head.encode() + data.getvalue() + b"\r\n")
    return b"".join(parts) + f"--{EDGE}--\r\n".encode()
