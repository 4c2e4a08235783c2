"""Asking a stream for answers."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import Future
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic_core import to_json

from ostinato.methods.ostinato.common import Answer
from ostinato.serve._answers import describe, label_png
from ostinato.serve._reading import RAW, read_images
from ostinato.serve._record import Recorded, check_digest
from ostinato.serve._sequences import LARGEST
from ostinato.serve._stream import Stream
from ostinato.serve.app import Fleeted, needs
from ostinato.serve.batching import Busy, Job
from ostinato.serve.errors import responses
from ostinato.serve.fleet import Fleet
from ostinato.serve.schema import Prediction
from ostinato.serve.settings import check_name
from ostinato.serve.store import StorageError

router = APIRouter(prefix="/v1", tags=["predict"])
LONGEST = 64 * 1024
"""Bytes of an answer that are kept for a sequence number; a label map may be longer."""
BINARY = {"type": "string", "format": "binary"}
BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"images": {"type": "array", "items": BINARY}},
                    "required": ["images"],
                }
            },
            **{kind: {"schema": BINARY} for kind in RAW[:-1]},
        },
    }
}


@router.post(
    "/streams/{name}/predict",
    response_model=Prediction,
    responses=responses(404, 409, 413, 422, 429),
    openapi_extra=BODY,
    dependencies=[needs("predict")],
)
async def predict(
    request: Request,
    fleet: Fleeted,
    name: str,
    top: Annotated[int, Query(ge=0, le=1000, description="guesses an image; 0: all")] = 5,
    source: Annotated[bool, Query(description="also the source model's own answer")] = False,
    sequence: Annotated[
        int | None,
        Query(ge=0, le=LARGEST, description="yours; a repeated one is not learned twice"),
    ] = None,
    deadline_ms: Annotated[int | None, Query(ge=1, le=600_000)] = None,
) -> Response:
    """Answer images of a stream, and let the stream learn from them behind the answer.

    One image as the body, or several as multipart files; JPEG, PNG, WebP, or a uint8 tensor
    (images, 3, height, width) as npy. A segmenter's single image is answered as a PNG of labels
    where `Accept: image/png` asks for it.
    """
    check_name(name)
    patience = fleet.settings.batching.deadline_s
    if deadline_ms is not None:
        patience = min(patience, deadline_ms / 1000)
    until = time.monotonic() + patience
    if fleet.batcher.waiting >= fleet.settings.batching.waiting:
        wait = fleet.batcher.waiting * fleet.batcher.pace
        raise Busy("Too many images are waiting.", wait)  # before anything is read
    levels, which = await read_images(request, fleet.served.fit, fleet.settings.limits)
    stream = fleet.streams.get(name)
    if stream is None:
        stream = await asyncio.to_thread(fleet.open, name)
    stream.asked += 1
    every = fleet.settings.compare
    compare = every > 0 and stream.asked % every == 0
    job = Job(stream, levels, source or compare, until, which, sequence, top)
    maps = "image/png" in request.headers.get("accept", "") and len(levels) == 1
    if sequence is not None:
        return await _numbered(fleet, job, source)
    version, answer = await _answered(fleet, job)
    if maps and answer.logits.ndim > 2:
        return _map(fleet, answer, version)
    return _json(_prediction(fleet, job, version, answer, source))


async def _answered(fleet: Fleet, job: Job) -> tuple[str, Answer]:
    fleet.batcher.submit(job)
    return await asyncio.wrap_future(job.done)


async def _numbered(fleet: Fleet, job: Job, source: bool) -> Response:
    """Answer a sequence number once; whoever comes with it again gets the same answer."""
    stream, sequence = job.stream, job.sequence
    assert sequence is not None
    recorded, mine = stream.record.claim(sequence, job.digest)
    if not mine:
        found = await asyncio.wrap_future(_shared(recorded))
        return _again(json.loads(found))
    try:
        kept = None
        if not stream.record.is_new(sequence):
            kept = await asyncio.to_thread(_on_disk, fleet, stream, sequence)
        if kept is not None:
            check_digest(sequence, kept[0], job.digest)
            recorded.body.set_result(json.dumps(kept[1]).encode())
            return _again(kept[1])
        known = sequence in stream.met
        version, answer = await _answered(fleet, job)
        prediction = _prediction(fleet, job, version, answer, source) | {"repeated": known}
    except BaseException as error:
        stream.record.release(sequence, error if isinstance(error, Exception) else Busy("", 1.0))
        raise
    return _kept(fleet, stream, recorded, job, prediction)


def _on_disk(fleet: Fleet, stream: Stream, sequence: int) -> tuple[str, dict[str, Any]] | None:
    """What was answered before; while the index cannot be read, the images are answered anew."""
    try:
        return fleet.store.answer(stream.id, sequence)
    except StorageError:
        return None


def _kept(
    fleet: Fleet, stream: Stream, recorded: Recorded, job: Job, prediction: dict[str, Any]
) -> Response:
    response = _json(prediction)
    body = bytes(response.body)
    recorded.body.set_result(body)
    assert job.sequence is not None
    if len(body) <= LONGEST:
        fleet.writer.answer(stream.id, job.sequence, job.digest, body.decode())
    else:
        stream.record.drop(job.sequence)
    return response


def _again(found: dict[str, Any]) -> Response:
    return _json(found | {"repeated": True})


def _shared(recorded: Recorded) -> Future[bytes]:
    """The same answer for one more; whose going away does not cancel it for the others."""
    mine: Future[bytes] = Future()

    def hand_on(done: Future[bytes]) -> None:
        if not mine.set_running_or_notify_cancel():
            return
        error = done.exception()
        if error is not None:
            mine.set_exception(error)
        else:
            mine.set_result(done.result())

    recorded.body.add_done_callback(hand_on)
    return mine


def _prediction(
    fleet: Fleet, job: Job, version: str, answer: Answer, source: bool
) -> dict[str, Any]:
    """What `Prediction` declares; made without it, since checking it takes longer than all else."""
    return {
        "stream": job.stream.name,
        "version": version,
        "model": fleet.served.fingerprint,
        "sequence": job.sequence,
        "repeated": False,
        "learning": job.learning,
        "images": describe(answer, fleet.served.names, job.top, job.ranked, source=source),
    }


def _json(prediction: dict[str, Any]) -> Response:
    return Response(to_json(prediction, inf_nan_mode="null"), media_type="application/json")


def _map(fleet: Fleet, answer: Answer, version: str) -> Response:
    headers = {
        "x-ostinato-version": version,
        "x-ostinato-model": fleet.served.fingerprint,
        "x-ostinato-domain": str(answer.domains[0]),
        "x-ostinato-new": str(answer.far[0]).lower(),
        "x-ostinato-trust": str(answer.trust[0]),
    }
    return Response(label_png(answer.logits[0]), media_type="image/png", headers=headers)
