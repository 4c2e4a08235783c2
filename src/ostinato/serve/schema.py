"""What travels over HTTP: the same types for server, client and OpenAPI. Needs no torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["predict", "operate", "read"]
ROLES: tuple[Role, ...] = ("predict", "operate", "read")

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Names of streams, checkpoints and keys."""


class Body(BaseModel):
    """Base of everything below: unknown fields of a request are errors."""

    model_config = ConfigDict(extra="forbid")


class Guess(Body):
    """One label with its probability.

    >>> Guess(label=3, probability=0.94).name is None
    True
    """

    label: int = Field(description="index of the model's output", examples=[3])
    name: str | None = Field(None, description="what the model calls it", examples=["cat"])
    probability: float = Field(examples=[0.94])


class ImageAnswer(Body):
    """What was said of one image."""

    guesses: list[Guess] = Field(default_factory=list, description="most probable first")
    label_map: str | None = Field(None, description="segmentation: a PNG of labels, base64")
    domain: int = Field(description="the domain it belongs to; 0 is the source", examples=[2])
    new: bool = Field(description="no known domain explains it", examples=[False])
    distance: float = Field(description="to its domain; 1 is usual", examples=[0.9])
    trust: float = Field(description="how far its expert acted; 0: the source answered")
    source: list[Guess] | None = Field(None, description="the source model's own answer, if asked")
    source_map: str | None = Field(None, description="the source's label map, if asked")


class Prediction(Body):
    """Answer to a predict request."""

    stream: str = Field(examples=["gate-4"])
    version: str = Field(
        description="state that answered: the stream's present life, and what it has learned in it",
        examples=["mi3x0k2a.120"],
    )
    model: str = Field(description="fingerprint of the source model", examples=["0123456789abcdef"])
    sequence: int | None = Field(None, examples=[17])
    repeated: bool = Field(False, description="answered from the record; not learned again")
    learning: bool = Field(description="whether the images were queued to be learned from")
    images: list[ImageAnswer]


class StreamRequest(Body):
    """A stream to be declared."""

    name: str = Field(examples=["gate-4"])
    preset: Literal["robust", "forward-only"] | None = None
    frozen: bool = False
    start: str | None = Field(None, description="copy this stream's domains", examples=["gate-3"])


class DomainInfo(Body):
    """One domain of a stream."""

    domain: int
    images: int = Field(description="distinct images seen")
    trust: float
    learned: int = Field(description="updates of its branches")
    frozen: bool = False


class Alarm(Body):
    """Something that a person should look at."""

    kind: str = Field(examples=["unknown domain"])
    text: str
    since: float


class StreamInfo(Body):
    """A stream at a glance."""

    name: str
    preset: str
    frozen: bool
    version: str
    domains: int
    answered: int = Field(description="images answered since the server started")
    learned: int = Field(description="requests learned from, over all lives")
    waiting: int = Field(description="requests that wait to be learned from")
    skipped: int = Field(description="requests that were not learned from, for lack of time")
    trust: float = Field(description="mean of the latest minutes")
    differing: float | None = Field(description="share of answers that differ from the source's")
    unknown: float = Field(description="share of images that no domain explains")
    confidence: float | None = Field(description="mean top probability: a guess at the accuracy")
    rollbacks: int = 0
    lost: int = Field(0, description="learned requests that the last restart lost")
    saved: float | None = Field(None, description="when its state was last written")
    alarms: list[Alarm] = Field(default_factory=list)


class StreamDetail(StreamInfo):
    """A stream with its domains."""

    details: list[DomainInfo]


class SnapshotInfo(Body):
    """A state on disk."""

    id: int
    name: str | None = Field(None, description="of a checkpoint")
    version: str
    learned: int
    domains: int
    bytes: int
    made: float


class CheckpointRequest(Body):
    """A checkpoint to be made.

    >>> CheckpointRequest(name="before-winter").name
    'before-winter'
    """

    name: str = Field(pattern=f"^{NAME}$", examples=["before-winter"])


class RollbackRequest(Body):
    """Where to go back to."""

    to: str | int | None = Field(
        None, description="a checkpoint's name or a snapshot's id; the one before now if none"
    )
    domain: int | None = Field(None, ge=1, description="this domain's expert alone")


class DomainRequest(Body):
    """A whole stream, or one of its domains."""

    domain: int | None = Field(None, ge=1, description="this domain alone")


class EventInfo(Body):
    """One line of the event log."""

    id: int
    at: float
    stream: str | None
    kind: str
    body: dict[str, Any]


class ServerInfo(Body):
    """What is served."""

    ostinato: str
    model: str
    fingerprint: str
    task: Literal["classification", "segmentation"]
    classes: list[str]
    outputs: int | None
    size: int | None
    streams: int
    limits: dict[str, Any]
    thumbnails: bool
    roles: list[Role] = Field(description="of the key that asks")
    storage: str = Field(description="'whole', or what is wrong with it")


class Problem(Body):
    """What every error says."""

    error: str = Field(examples=["There is no stream 'gate-5'."])
