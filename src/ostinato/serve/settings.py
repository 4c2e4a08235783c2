"""What a server is told: by a YAML file, by flags, or not at all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from ostinato.config import Config
from ostinato.errors import ConfigError
from ostinato.models import Normalize
from ostinato.ops.precision import Precision
from ostinato.serve.schema import NAME

Preset = Literal["robust", "forward-only"]


def check_name(name: str, what: str = "stream") -> str:
    """The name, if it may be one.

    >>> check_name("gate-4")
    'gate-4'
    >>> check_name("../gate")
    Traceback (most recent call last):
        ...
    ostinato.errors.ConfigError: A stream's name has 1 to 64 letters, digits, '.', '_' or '-'...
    """
    if re.fullmatch(NAME, name) is None:
        raise ConfigError(
            f"A {what}'s name has 1 to 64 letters, digits, '.', '_' or '-' and begins with a "
            "letter or a digit."
        )
    return name


class StreamOptions(Config):
    """How one stream differs from the others.

    >>> StreamOptions(frozen=True).preset is None
    True
    """

    preset: Preset | None = Field(None, description="robust or forward-only; the server's if none")
    frozen: bool = Field(False, description="answers, and learns nothing")


class Limits(Config):
    """What a request may be; checked before anything is decoded.

    >>> Limits(images=8).body_mb
    32.0
    """

    body_mb: float = Field(32.0, gt=0, description="megabytes of a request's body")
    state_mb: float = Field(512.0, gt=0, description="megabytes of an imported state")
    images: int = Field(64, ge=1, description="images of a request")
    pixels: int = Field(16_000_000, ge=1, description="pixels of an image, by its header")
    rate: float = Field(1000.0, gt=0, description="requests a second of one key or address")
    streams: int = Field(1000, ge=1, description="streams there may be")
    undeclared: bool = Field(True, description="streams appear on first use")


class Batching(Config):
    """How requests are gathered into common forwards.

    >>> Batching(images=16).wait_ms
    3.0
    """

    images: int = Field(64, ge=1, description="images of a common forward")
    wait_ms: float = Field(3.0, ge=0, description="how long the first of them waits for others")
    waiting: int = Field(1024, ge=1, description="images that may wait; more are told to come back")
    deadline_s: float = Field(10.0, gt=0, description="seconds a request waits unless it says less")


class Learning(Config):
    """How much is learned behind the answers.

    >>> Learning(share=0.2).queue
    256
    """

    share: float = Field(0.5, gt=0, le=1, description="share of time, while requests are waiting")
    queue: int = Field(256, ge=1, description="images of a stream that wait to be learned from")


class Snapshots(Config):
    """When states are written, and how many are kept.

    >>> Snapshots(seconds=5).keep
    3
    """

    updates: int = Field(500, ge=1, description="learned requests after which a state is written")
    seconds: float = Field(60.0, gt=0, description="what is older than this is never lost")
    keep: int = Field(3, ge=1, description="latest ones kept of every stream")
    images: bool = Field(True, description="with the latest images, so as to go on to the bit")


class Settings(Config):
    """One server.

    >>> Settings.parse({"port": 9000}).batching.images
    64
    """

    data: Path = Field(Path("ostinato-serve"), description="folder for states, events and keys")
    host: str = Field("127.0.0.1", description="address to listen on; others than this need keys")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    names: tuple[str, ...] = Field((), description="host names that requests may address")
    model: str = Field("embedded", description="'embedded', a timm name, or a Hugging Face name")
    weights: str | None = Field(None, description="checkpoint file, or 'random'")
    num_classes: int | None = Field(None, ge=1, description="outputs of a timm model")
    statistics: Path | None = Field(None, description="source statistics of the model, a file")
    normalize: Normalize = Field("model", description="input convention")
    size: int | None = Field(None, ge=1, description="side that images are resized to")
    device: str = Field("auto", description="cpu, cuda, cuda:1; auto takes what there is")
    precision: Precision = Field("fp32", description="fp32, tf32 or bf16")
    threads: int | None = Field(None, ge=1, description="of every worker; half the cores if none")
    preset: Preset = Field("robust", description="of streams that name none")
    settings: dict[str, Any] = Field(default_factory=dict, description="of the method, for all")
    streams: dict[str, StreamOptions] = Field(default_factory=dict, description="declared ones")
    limits: Limits = Field(default_factory=Limits, description="of requests")
    batching: Batching = Field(default_factory=Batching, description="of requests")
    learning: Learning = Field(default_factory=Learning, description="behind the answers")
    snapshots: Snapshots = Field(default_factory=Snapshots, description="of states")
    compare: int = Field(16, ge=0, description="every how many-th request also asks the source")
    record: bool = Field(False, description="keep what was learned from, for replay")
    thumbnails: bool = Field(False, description="let the page show images of domains")
    log: str | None = Field(None, description="file that gets every event as JSON; '-': stdout")
    events: int = Field(50_000, ge=100, description="latest events kept of every stream")
    answers: int = Field(256, ge=1, description="latest answers kept of every stream, by sequence")

    @field_validator("streams")
    @classmethod
    def _named(cls, value: dict[str, StreamOptions]) -> dict[str, StreamOptions]:
        for name in value:
            check_name(name)
        return value

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in ("127.0.0.1", "::1", "localhost")
