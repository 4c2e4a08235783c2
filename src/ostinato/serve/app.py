"""The HTTP application around a fleet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Security
from fastapi.security import HTTPBearer

from ostinato import __version__
from ostinato.serve._operations import Operations
from ostinato.serve.errors import add_handlers
from ostinato.serve.fleet import Fleet
from ostinato.serve.guard import Guard
from ostinato.serve.keys import Keys
from ostinato.serve.schema import Role

_DESCRIPTION = """One source model, and for every stream its own domains, experts, prior and trust.

Send `Authorization: Bearer KEY` where the server asks for keys. Every key has roles: `predict`
asks for answers, `read` looks at streams, `operate` changes them."""


_BEARER = HTTPBearer(auto_error=False, description="an API key of this server")


# What requests depend on is made on the event loop: a thread takes longer to begin.


async def _fleet_of(request: Request) -> Fleet:
    """The fleet behind a request."""
    fleet: Fleet = request.app.state.fleet
    return fleet


async def _operations_of(request: Request) -> Operations:
    """Operators' work on it."""
    return Operations(await _fleet_of(request))


def roles_of(request: Request) -> frozenset[Role]:
    """What the caller may do."""
    keys: Keys = request.app.state.keys
    return keys.roles(_key(request.headers.get("authorization", "")))[1]


def caller_of(keys: Keys, header: str) -> str | None:
    """Whose key a header shows; None where it is none of ours."""
    name, _ = keys.roles(_key(header))
    return f"key {name}" if name else None


def _key(header: str) -> str | None:
    kind, _, key = header.partition(" ")
    return key.strip() if kind.lower() == "bearer" else None


def needs(role: Role) -> Any:
    """A dependency: only who has this role comes further."""

    async def check(request: Request, shown: Annotated[Any, Security(_BEARER)]) -> None:
        roles = roles_of(request)
        if not roles:
            raise HTTPException(
                401, "A key of this server is needed.", {"www-authenticate": "Bearer"}
            )
        if role not in roles:
            raise HTTPException(403, f"This needs a key with the role {role!r}.")

    return Depends(check)


Fleeted = Annotated[Fleet, Depends(_fleet_of)]
After = Annotated[int, Query(ge=0, le=2**53, description="events after this id")]
Most = Annotated[int, Query(ge=1, le=10_000)]
PULSE = 1.0
"""Seconds between two messages of the live page."""
Operated = Annotated[Operations, Depends(_operations_of)]


def bare_app(
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]], description: str = ""
) -> FastAPI:
    """An application without routes; its pages of documentation are ours, not the framework's."""
    return FastAPI(
        title="Ostinato",
        version=__version__,
        description=description,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )


def add_page(app: FastAPI) -> None:
    """The live page, and whether the server is alive and ready."""
    from ostinato.serve import _routes_page

    app.include_router(_routes_page.router)


def make_app(fleet: Fleet, opened: Callable[[], None] | None = None) -> FastAPI:
    """The application; it starts the fleet with itself and stops it at its end.

    Args:
        fleet: not started yet.
        opened: called once all streams are back.
    """
    from ostinato.serve import _routes_operate, _routes_predict, _routes_read

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        fleet.start()
        if opened is not None:
            opened()
        try:
            yield
        finally:
            fleet.stop()

    app = bare_app(lifespan, _DESCRIPTION)
    keys = Keys(fleet.store)
    app.state.fleet, app.state.keys = fleet, keys
    for module in (_routes_predict, _routes_operate, _routes_read):
        app.include_router(module.router)
    add_page(app)
    add_handlers(app)

    def counted(scope: Any, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        fleet.metrics.requests.labels(route, str(status)).inc()
        fleet.metrics.latency.labels(route).observe(seconds)

    app.add_middleware(
        Guard, settings=fleet.settings, counted=counted, known=lambda h: caller_of(keys, h)
    )
    return app
