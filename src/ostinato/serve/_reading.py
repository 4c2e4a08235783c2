"""The images of a predict request: its body read, decoded and named by what is in them."""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from torch import Tensor

from ostinato.errors import InputError
from ostinato.serve._pixels import Fit, Part, TooLarge, decode, digest, is_npy
from ostinato.serve._wire import SINK
from ostinato.serve.guard import TooMuch
from ostinato.serve.settings import Limits

RAW = ("image/jpeg", "image/png", "image/webp", "application/x-npy", "application/octet-stream")
SHORT = 64 * 1024
"""Bytes of a tensor that is read in less time than another thread takes to begin."""


async def read_images(request: Request, fit: Fit, limits: Limits) -> tuple[Tensor, str]:
    """(B, 3, H, W) in uint8, and which images these are."""
    parts = await _parts(request, limits.images)
    if len(parts) == 1 and len(parts[0]) <= SHORT and is_npy(parts[0]):
        return _opened(parts, fit, limits)
    return await asyncio.to_thread(_opened, parts, fit, limits)


def _opened(parts: list[Part], fit: Fit, limits: Limits) -> tuple[Tensor, str]:
    levels = decode(parts, fit, pixels=limits.pixels, images=limits.images)
    return levels, digest(levels)


async def _body(request: Request) -> Part:
    """All of a body, in memory that may be written to."""
    sink, length = request.scope.get(SINK), request.headers.get("content-length")
    if sink is None or length is None:
        whole = bytearray()
        async for piece in request.stream():
            whole += piece
        return whole
    body: memoryview = sink.begin(int(length))  # which was checked before it came here
    async for _ in request.stream():
        pass  # it goes past here
    return body


async def _parts(request: Request, most: int) -> list[Part]:
    """The files of a request, none of them opened yet."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in RAW:
        body = await _body(request)  # which a tensor can lie in, so that nobody copies it again
        return [body] if len(body) else []
    if kind != "multipart/form-data":
        raise HTTPException(415, f"Send multipart/form-data, or one of {', '.join(RAW)}.")
    try:
        async with request.form(max_files=most + 1, max_fields=16) as form:
            files = [part for part in form.getlist("images") if isinstance(part, UploadFile)]
            if len(files) > most:
                raise TooLarge(f"At most {most} images a request: send them in several.")
            return [await part.read() for part in files]
    except TooMuch:
        raise
    except (MultiPartException, HTTPException) as error:
        text = str(getattr(error, "message", None) or getattr(error, "detail", ""))
        if "Too many" in text:
            raise TooLarge(f"At most {most} images a request: send them in several.") from None
        raise InputError(f"The multipart body cannot be read ({text[:100]}).") from None
    except (ValueError, KeyError, AssertionError) as error:
        raise InputError(f"The multipart body cannot be read ({type(error).__name__}).") from None
