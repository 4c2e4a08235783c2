"""Which status an error of the library gets."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ostinato.errors import ConfigError, InputError, OstinatoError, StateError
from ostinato.serve._pixels import TooLarge
from ostinato.serve._record import SequenceConflict
from ostinato.serve.batching import Away, Busy
from ostinato.serve.fleet import NoStream, TooMany
from ostinato.serve.schema import Problem
from ostinato.serve.store import StorageError

_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (Away, 503),
    (Busy, 429),
    (NoStream, 404),
    (TooMany, 409),
    (SequenceConflict, 409),
    (TooLarge, 413),
    (InputError, 422),
    (ConfigError, 422),
    (StateError, 409),
    (StorageError, 503),
    (OSError, 503),
)
_TEXTS = {401: "no key, or none of this server's", 403: "the key's roles do not allow this"}
_TEXTS |= {404: "no such stream", 409: "not possible in this state", 413: "too large"}
_TEXTS |= {422: "cannot be used", 429: "busy: come back after Retry-After seconds"}


def responses(*codes: int) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of errors."""
    return {code: {"model": Problem, "description": _TEXTS[code]} for code in (401, 403, *codes)}


def add_handlers(app: FastAPI) -> None:
    """Answer every error with one sentence in JSON."""

    async def known(request: Request, error: Exception) -> JSONResponse:
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        headers = {}
        if isinstance(error, Busy):
            headers["retry-after"] = str(max(1, round(error.seconds)))
        text = "The data folder cannot be used." if isinstance(error, OSError) else str(error)
        return JSONResponse({"error": text}, status, headers)

    async def plain(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]  # what was given is not repeated: it may be anything
        where = ".".join(str(part) for part in first.get("loc", ()))
        return JSONResponse({"error": f"{where}: {first.get('msg')}"[:300]}, 422)

    app.add_exception_handler(OstinatoError, known)
    app.add_exception_handler(OSError, known)
    app.add_exception_handler(HTTPException, plain)
    app.add_exception_handler(RequestValidationError, invalid)
