"""Changing streams: declare, remove, checkpoints, rollback, reset, freeze, export, import."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from ostinato.errors import StateError
from ostinato.serve._views import snapshot_info, stream_detail
from ostinato.serve.app import Fleeted, Operated, needs
from ostinato.serve.errors import responses
from ostinato.serve.schema import (
    CheckpointRequest,
    DomainRequest,
    RollbackRequest,
    SnapshotInfo,
    StreamDetail,
    StreamRequest,
)
from ostinato.serve.settings import check_name

router = APIRouter(
    prefix="/v1",
    tags=["operate"],
    dependencies=[needs("operate")],
    responses=responses(404, 409, 413, 422),
)


@router.post("/streams", status_code=201)
def declare(fleet: Fleeted, operations: Operated, given: StreamRequest) -> StreamDetail:
    """Declare a stream; it may start from a copy of another one's domains."""
    source = None if given.start is None else fleet.get(given.start)
    preset = given.preset or (source.preset if source is not None else None)
    if source is not None and preset != source.preset:
        raise StateError(f"{source.name!r} has preset {source.preset}: leave the preset out.")
    stream = fleet.create(given.name, preset, frozen=given.frozen)
    if source is not None:
        operations.copy(stream, source)
    return stream_detail(stream)


@router.delete("/streams/{name}", status_code=204)
def remove(operations: Operated, name: str) -> Response:
    """Forget a stream with its states, answers and events."""
    operations.remove(name)
    return Response(status_code=204)


@router.post("/streams/{name}/checkpoints", status_code=201)
def checkpoint(
    fleet: Fleeted, operations: Operated, name: str, given: CheckpointRequest
) -> SnapshotInfo:
    """Keep the state as it is now, under a name."""
    return snapshot_info(operations.checkpoint(fleet.get(name), given.name))


@router.delete("/streams/{name}/checkpoints/{label}", status_code=204)
def remove_checkpoint(fleet: Fleeted, operations: Operated, name: str, label: str) -> Response:
    """Remove a named state."""
    check_name(label, "checkpoint")
    stream = fleet.get(name)
    row = operations.find(stream, label)
    if row.name != label:
        raise StateError(f"Stream {name!r} has no checkpoint {label!r}.")
    fleet.store.remove_snapshot(stream.id, row)
    return Response(status_code=204)


@router.post("/streams/{name}/rollback")
def rollback(
    fleet: Fleeted, operations: Operated, name: str, given: RollbackRequest
) -> StreamDetail:
    """Go back to a checkpoint or snapshot, as a whole or for one domain's expert."""
    stream = fleet.get(name)
    operations.rollback(stream, given.to, given.domain)
    return stream_detail(stream)


@router.post("/streams/{name}/reset")
def reset(fleet: Fleeted, operations: Operated, name: str, given: DomainRequest) -> StreamDetail:
    """Forget everything learned, or one domain."""
    stream = fleet.get(name)
    operations.reset(stream, given.domain)
    return stream_detail(stream)


@router.post("/streams/{name}/freeze")
def freeze(fleet: Fleeted, operations: Operated, name: str, given: DomainRequest) -> StreamDetail:
    """Answer on, and learn nothing; or keep one domain's expert as it is."""
    stream = fleet.get(name)
    operations.freeze(stream, given.domain, frozen=True)
    return stream_detail(stream)


@router.post("/streams/{name}/unfreeze")
def unfreeze(fleet: Fleeted, operations: Operated, name: str, given: DomainRequest) -> StreamDetail:
    """Learn again."""
    stream = fleet.get(name)
    operations.freeze(stream, given.domain, frozen=False)
    return stream_detail(stream)


@router.get(
    "/streams/{name}/export",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "a state"}},
)
def export(
    fleet: Fleeted,
    operations: Operated,
    name: str,
    domain: Annotated[int | None, Query(ge=1, le=2**31)] = None,
    images: Annotated[bool, Query(description="with the latest images")] = False,
) -> Response:
    """The state as a safetensors file: `adapted.load` and `import` read it."""
    data = operations.export(fleet.get(name), domain, images=images)
    return Response(data, media_type="application/octet-stream")


@router.post(
    "/streams/{name}/import",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
            },
        }
    },
)
async def take_in(
    request: Request, fleet: Fleeted, operations: Operated, name: str
) -> StreamDetail:
    """Become an exported state, or get one exported domain more."""
    stream = fleet.get(name)
    data = await request.body()
    await asyncio.to_thread(operations.take_in, stream, data)
    return stream_detail(stream)
