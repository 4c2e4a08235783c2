"""Looking at streams; nothing here changes anything."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response, StreamingResponse
from PIL import Image

from ostinato import __version__
from ostinato.serve._views import event_list, snapshot_info, stream_detail, stream_info
from ostinato.serve.app import PULSE, After, Fleeted, Most, needs, roles_of
from ostinato.serve.errors import responses
from ostinato.serve.fleet import Fleet
from ostinato.serve.schema import EventInfo, ServerInfo, SnapshotInfo, StreamDetail, StreamInfo

router = APIRouter(tags=["read"], dependencies=[needs("read")], responses=responses())


@router.get("/v1/server")
def server(request: Request, fleet: Fleeted) -> ServerInfo:
    """What is served, and what the asking key may do."""
    served, settings = fleet.served, fleet.settings
    return ServerInfo(
        ostinato=__version__,
        model=served.name,
        fingerprint=served.fingerprint,
        task=served.task,
        classes=list(served.names),
        outputs=served.outputs,
        size=served.fit.side,
        streams=len(fleet.streams),
        limits=settings.limits.model_dump(),
        thumbnails=settings.thumbnails,
        roles=sorted(roles_of(request)),
        storage=fleet.storage(),
    )


@router.get("/v1/streams")
def streams(fleet: Fleeted) -> list[StreamInfo]:
    """All streams at a glance."""
    return [stream_info(stream) for stream in list(fleet.streams.values())]


@router.get("/v1/streams/{name}", responses=responses(404))
def stream(fleet: Fleeted, name: str) -> StreamDetail:
    """One stream with its domains."""
    return stream_detail(fleet.get(name))


@router.get("/v1/streams/{name}/timeline", responses=responses(404))
def timeline(fleet: Fleeted, name: str) -> list[dict[str, Any]]:
    """The last quarter of an hour: images, domains, trust, disagreement."""
    return fleet.get(name).watch.timeline()


@router.get("/v1/streams/{name}/snapshots", responses=responses(404))
def snapshots(fleet: Fleeted, name: str) -> list[SnapshotInfo]:
    """States on disk, newest first; named ones are checkpoints."""
    return [snapshot_info(row) for row in fleet.store.snapshots(fleet.get(name).id)]


@router.get("/v1/streams/{name}/events", responses=responses(404))
def stream_events(
    fleet: Fleeted,
    name: str,
    after: After = 0,
    most: Most = 1000,
    kind: str | None = None,
    latest: bool = False,
) -> list[EventInfo]:
    """What happened to a stream, oldest first."""
    return event_list(fleet, fleet.get(name), after=after, most=most, kind=kind, latest=latest)


@router.get("/v1/events")
def events(
    fleet: Fleeted,
    after: After = 0,
    most: Most = 1000,
    kind: str | None = None,
    latest: bool = False,
) -> list[EventInfo]:
    """What happened to all streams, oldest first."""
    return event_list(fleet, None, after=after, most=most, kind=kind, latest=latest)


@router.get(
    "/v1/streams/{name}/domains/{domain}/thumbnails/{number}",
    response_class=Response,
    responses={200: {"content": {"image/png": {}}, "description": "a picture"}, **responses(404)},
)
def thumbnail(fleet: Fleeted, name: str, domain: int, number: int) -> Response:
    """One of a domain's latest images; only where the server was told to show them."""
    stream = fleet.get(name)
    known = stream.method.bank.domains.get(domain)
    recent = [] if known is None or not fleet.settings.thumbnails else list(known.recent)
    if not 0 <= number < len(recent):
        raise HTTPException(404, "There is no such picture, or pictures are not shown here.")
    picture = Image.fromarray(np.ascontiguousarray(recent[-1 - number].permute(1, 2, 0).cpu()))
    picture.thumbnail((96, 96))
    data = io.BytesIO()
    picture.save(data, format="PNG")
    return Response(data.getvalue(), media_type="image/png")


@router.get("/v1/live", response_class=StreamingResponse)
async def live(request: Request, fleet: Fleeted, stream: str | None = None) -> StreamingResponse:
    """Server-sent events: all streams that changed, once a second; one in full where named."""
    if stream is not None:
        fleet.get(stream)
    return StreamingResponse(_pulses(request, fleet, stream), media_type="text/event-stream")


async def _pulses(request: Request, fleet: Fleet, chosen: str | None) -> AsyncIterator[str]:
    sent: dict[str, dict[str, Any]] = {}
    while not fleet.leaving and not await request.is_disconnected():
        now = {one.name: one for one in list(fleet.streams.values())}
        found = {name: stream_info(one).model_dump() for name, one in now.items()}
        body: dict[str, Any] = {
            "streams": [info for name, info in found.items() if sent.get(name) != info],
            "gone": [name for name in sent if name not in found],
            "storage": fleet.storage(),
            "waiting": fleet.batcher.waiting,
        }
        sent = found
        if chosen in now:
            body["detail"] = stream_detail(now[chosen]).model_dump()
            body["timeline"] = now[chosen].watch.timeline()
        yield f"data: {json.dumps(body)}\n\n"
        await asyncio.sleep(PULSE)


@router.get("/metrics", response_class=Response)
def metrics(fleet: Fleeted) -> Response:
    """For Prometheus."""
    return Response(fleet.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request) -> dict[str, Any]:
    """This interface."""
    found: dict[str, Any] = request.app.openapi()
    return found
