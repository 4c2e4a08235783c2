"""The page, and whether the server is alive: open to everybody, and silent about streams."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from ostinato.serve.app import Fleeted

router = APIRouter(tags=["page"])
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


def _file(name: str) -> Response:
    text = (files("ostinato.serve") / "page" / name).read_bytes()
    kind = KINDS[name.rpartition(".")[2]]
    return Response(text, media_type=f"{kind}; charset=utf-8")


@router.get("/", include_in_schema=False)
def page() -> Response:
    """The live page; what it shows it asks for with the visitor's key."""
    return _file("index.html")


@router.get("/page.js", include_in_schema=False)
def script() -> Response:
    """The page's script."""
    return _file("page.js")


@router.get("/charts.js", include_in_schema=False)
def charts() -> Response:
    """The page's figures."""
    return _file("charts.js")


@router.get("/page.css", include_in_schema=False)
def style() -> Response:
    """The page's style."""
    return _file("page.css")


@router.get("/favicon.ico", include_in_schema=False)
def icon() -> Response:
    """A small picture."""
    return _file("icon.svg")


@router.get("/healthz", responses={503: {"description": "a part of it has died: restart it"}})
def healthz(fleet: Fleeted) -> JSONResponse:
    """Whether the server is alive, with all the threads that it needs."""
    dead = fleet.ready and not fleet.alive()
    return JSONResponse({"status": "dead" if dead else "alive"}, 503 if dead else 200)


@router.get("/readyz", responses={503: {"description": "not yet, or no longer"}})
def readyz(fleet: Fleeted) -> JSONResponse:
    """Whether every stream is back and requests are answered."""
    status = "ready" if fleet.ready else "not ready"
    return JSONResponse({"status": status}, 200 if fleet.ready else 503)
