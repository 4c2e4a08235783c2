"""What is shown of streams, snapshots and events."""

from __future__ import annotations

from ostinato.serve._stream import Stream
from ostinato.serve.fleet import Fleet
from ostinato.serve.schema import (
    Alarm,
    DomainInfo,
    EventInfo,
    SnapshotInfo,
    StreamDetail,
    StreamInfo,
)
from ostinato.serve.store import SnapshotRow


def stream_info(stream: Stream) -> StreamInfo:
    """A stream at a glance."""
    summary = stream.watch.summary()
    return StreamInfo(
        name=stream.name,
        preset=stream.preset,
        frozen=stream.frozen,
        version=stream.current.version,
        domains=len(stream.method.bank.domains),
        answered=stream.watch.answered,
        learned=stream.learned,
        waiting=stream.waiting,
        skipped=stream.skipped,
        trust=summary["trust"] or 0.0,
        differing=summary["differing"],
        unknown=summary["unknown"] or 0.0,
        confidence=summary["confidence"],
        rollbacks=stream.rollbacks,
        lost=stream.lost,
        saved=stream.saved,
        alarms=[Alarm(kind=k, text=text, since=at) for k, text, at in stream.watch.alarms()],
    )


def stream_detail(stream: Stream) -> StreamDetail:
    """A stream with its domains."""
    method = stream.method
    details = [
        DomainInfo(
            domain=number,
            images=domain.images,
            trust=domain.share,
            learned=domain.branches.updates if domain.branches is not None else 0,
            frozen=number in method.held,
        )
        for number, domain in list(method.bank.domains.items())
    ]
    return StreamDetail(**stream_info(stream).model_dump(), details=details)


def snapshot_info(row: SnapshotRow) -> SnapshotInfo:
    """A state on disk."""
    return SnapshotInfo(
        id=row.id,
        name=row.name,
        version=row.version,
        learned=row.learned,
        domains=row.domains,
        bytes=row.bytes,
        made=row.made,
    )


def event_list(
    fleet: Fleet, stream: Stream | None, *, after: int, most: int, kind: str | None, latest: bool
) -> list[EventInfo]:
    """Events, oldest first."""
    names = {one.id: one.name for one in list(fleet.streams.values())}
    found = fleet.store.events(
        stream.id if stream is not None else None, after=after, most=most, kind=kind, latest=latest
    )
    return [
        EventInfo(id=i, at=at, stream=names.get(s or 0), kind=name, body=body)
        for i, s, at, name, body in found
    ]
