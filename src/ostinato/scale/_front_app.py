"""The HTTP side of a sharded server: the interface of a plain one, and what is said of shards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from ostinato.scale._calls import Call, Reply
from ostinato.scale._front import Front
from ostinato.scale._front_metrics import merged
from ostinato.serve.app import PULSE, After, Most, add_page, bare_app, caller_of, needs, roles_of
from ostinato.serve.errors import add_handlers
from ostinato.serve.guard import Guard
from ostinato.serve.keys import Keys
from ostinato.serve.schema import StreamRequest
from ostinato.serve.settings import check_name
from ostinato.serve.store import Store

router = APIRouter()
_ALL = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def _front_of(request: Request) -> Front:
    """The front behind a request."""
    front: Front = request.app.state.fleet
    return front


_Fronted = Annotated[Front, Depends(_front_of)]


async def _call_of(request: Request) -> Call:
    """A request with its body, which the guard has held to its limit."""
    scope = request.scope
    return Call(
        scope["method"],
        scope["path"],
        scope["query_string"],
        tuple(scope["headers"]),
        await request.body(),
        tuple(scope.get("client") or ("?", 0)),
    )


def _response_of(reply: Reply) -> Response:
    """An answer as a shard gave it."""
    response = Response(reply.body, reply.status)
    response.raw_headers = [one for one in reply.headers if one[0] != b"content-length"]
    response.raw_headers.append((b"content-length", b"%d" % len(reply.body)))
    return response


# What is said of all shards together.


@router.get("/v1/streams", dependencies=[needs("read")])
async def streams(request: Request, front: _Fronted) -> Response:
    """All streams at a glance."""
    found = await front.everywhere(await _call_of(request))
    return JSONResponse([info for _, reply in found for info in json.loads(reply.body)])


@router.get("/v1/server", dependencies=[needs("read")])
async def server(request: Request, front: _Fronted) -> Response:
    """What is served, and what the asking key may do."""
    found = [json.loads(r.body) for _, r in await front.everywhere(await _call_of(request))]
    trouble = [one["storage"] for one in found if one["storage"] != "whole"]
    count = sum(one["streams"] for one in found)
    roles = sorted(roles_of(request))
    return JSONResponse(
        found[0] | {"streams": count, "storage": (trouble or ["whole"])[0], "roles": roles}
    )


@router.get("/v1/shards", dependencies=[needs("read")])
async def shards(front: _Fronted) -> Response:
    """Every shard: whether it answers, its epoch, process and streams."""
    return JSONResponse(
        [
            {
                "shard": seat.number,
                "up": seat.up.is_set(),
                "lost": seat.lost,
                "starts": seat.starts,
                **{key: seat.facts.get(key) for key in ("epoch", "pid", "seconds")},
                "streams": sorted(n for n, at in front.places.items() if at == seat.number),
            }
            for seat in front.seats
        ]
    )


@router.get("/v1/events", dependencies=[needs("read")])
def events(
    request: Request,
    after: After = 0,
    most: Most = 1000,
    kind: str | None = None,
    latest: bool = False,
) -> Response:
    """What happened to all streams, oldest first."""
    store: Store = request.app.state.store
    names = {row.id: row.name for row in store.streams()}
    found = store.events(None, after=after, most=most, kind=kind, latest=latest)
    return JSONResponse(
        [
            {"id": i, "at": at, "stream": names.get(stream or 0), "kind": name, "body": body}
            for i, stream, at, name, body in found
        ]
    )


@router.get("/metrics", dependencies=[needs("read")])
async def metrics(request: Request, front: _Fronted) -> Response:
    """For Prometheus; every figure says its shard."""
    found = await front.everywhere(await _call_of(request), wait=False)
    text = merged({seat.number: reply.body.decode() for seat, reply in found}, front)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/live", dependencies=[needs("read")])
async def live(request: Request, front: _Fronted, stream: str | None = None) -> Response:
    """Server-sent events: all streams that changed, once a second; one in full where named."""
    call = await _call_of(request)
    return StreamingResponse(_pulses(request, front, call, stream), media_type="text/event-stream")


async def _pulses(
    request: Request, front: Front, call: Call, chosen: str | None
) -> AsyncIterator[str]:
    sent: dict[str, Any] = {}

    def get(path: str) -> Call:
        return Call("GET", path, b"", call.headers, b"", call.client)

    while not front.leaving and not await request.is_disconnected():
        replies = await front.everywhere(get("/v1/streams"), wait=False)
        infos = [info for _, reply in replies for info in json.loads(reply.body)]
        found = {info["name"]: info for info in infos}
        body: dict[str, Any] = {
            "streams": [info for name, info in found.items() if sent.get(name) != info],
            "gone": [name for name in sent if name not in front.places],
            "storage": "whole",
            "waiting": sum(front.flying.values()),
        }
        sent |= found
        if chosen is not None and chosen in found:
            for key, path in (("detail", ""), ("timeline", "/timeline")):
                reply = await front.forward(chosen, get(f"/v1/streams/{chosen}{path}"))
                body[key] = json.loads(reply.body)
        yield f"data: {json.dumps(body)}\n\n"
        await asyncio.sleep(PULSE)


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request, front: _Fronted) -> Response:
    """The interface of one stream's server, which the front hands on."""
    return _response_of(await front.forward("openapi", await _call_of(request)))


# What belongs to one stream.


@router.post("/v1/streams", dependencies=[needs("operate")])
async def declare(request: Request, front: _Fronted, given: StreamRequest) -> Response:
    """Declare a stream; a copy begins on the shard of what it copies."""
    check_name(given.name)
    if given.start is not None and given.name not in front.places and given.start in front.places:
        front.places[given.name] = front.places[given.start]
        reply = await front.forward(given.name, await _call_of(request))
        if reply.status >= 400:
            front.places.pop(given.name, None)
        return _response_of(reply)
    return _response_of(await front.forward(given.name, await _call_of(request)))


@router.post("/v1/streams/{name}/move", dependencies=[needs("operate")])
async def move(front: _Fronted, name: str, to: Annotated[int, Query(ge=0, le=100_000)]) -> Response:
    """Move a stream to another shard: what waits is learned, the state written and loaded."""
    await front.move(name, to)
    return JSONResponse({"stream": name, "shard": to})


@router.api_route("/v1/streams/{name}", methods=_ALL)
@router.api_route("/v1/streams/{name}/{rest:path}", methods=_ALL)
async def forward(request: Request, front: _Fronted, name: str) -> Response:
    """Whatever else is asked of a stream; its shard sees whether the key allows it."""
    if not roles_of(request):
        raise HTTPException(401, "A key of this server is needed.", {"www-authenticate": "Bearer"})
    check_name(name)
    return _response_of(await front.forward(name, await _call_of(request)))


def make_front_app(front: Front, store: Store, opened: Callable[[], Any] | None = None) -> FastAPI:
    """The application.

    Args:
        front: not started yet.
        store: the index, to read.
        opened: awaited once all shards answer.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await front.start()
        if opened is not None:
            await opened()
        yield
        front.ready, front.leaving = False, True

    app = bare_app(lifespan)
    keys = Keys(store)
    app.state.fleet, app.state.keys, app.state.store = front, keys, store
    app.include_router(router)
    add_page(app)
    add_handlers(app)

    def counted(scope: Any, status: int, seconds: float) -> None:
        route = str(getattr(scope.get("route"), "path", "other"))
        front.counts[route, status] = front.counts.get((route, status), 0) + 1

    app.add_middleware(
        Guard, settings=front.settings, counted=counted, known=lambda h: caller_of(keys, h)
    )
    return app
