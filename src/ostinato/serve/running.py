"""Running a server in this process until it is told to stop."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Protocol

import uvicorn
from fastapi import FastAPI

from ostinato.errors import ConfigError
from ostinato.serve._wire import choose_parser
from ostinato.serve.app import make_app
from ostinato.serve.fleet import Fleet
from ostinato.serve.keys import list_keys
from ostinato.serve.loading import load_served
from ostinato.serve.settings import Settings
from ostinato.serve.store import Store

_SWITCH = 0.0001
"""Seconds after which a thread that computes in Python lets another one in."""


def listen(settings: Settings) -> socket.socket:
    """The socket to serve on."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        found.close()
        raise ConfigError(
            f"Cannot listen on {settings.host}:{settings.port} ({error}): choose another port."
        ) from None
    return found


def check_closed(settings: Settings) -> None:
    """Refuse to be reached from elsewhere without keys."""
    if settings.loopback:
        return
    store = Store(settings.data)
    known = list_keys(store)
    store.close()
    if not known:
        raise ConfigError(
            f"Listening on {settings.host} needs keys: make one with 'ostinato keys add NAME "
            f"--role predict read operate --data {settings.data}', or stay on 127.0.0.1."
        )


def run(settings: Settings, begun: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; every state is written before it ends.

    Args:
        settings: of the server.
        begun: told the address once all streams are back.
    """
    check_closed(settings)
    taken = listen(settings)
    sys.setswitchinterval(_SWITCH)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    fleet = Fleet(settings, load_served(settings))
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{taken.getsockname()[1]}"

    def opened() -> None:
        lost = sum(stream.lost for stream in fleet.streams.values())
        said = f", {lost} updates since the last snapshots lost" if lost else ""
        print(f"serving {settings.model} on {address}", file=sys.stderr)
        print(
            f"{len(fleet.streams)} streams{said}; data in {settings.data}; "
            f"{'keys needed' if list_keys(fleet.store) else 'open to this machine'}",
            file=sys.stderr,
            flush=True,
        )
        if begun is not None:
            begun(address)

    until_told(make_app(fleet, opened), fleet, taken)


def until_told(app: FastAPI, known: _Leaves, taken: socket.socket) -> None:
    """Answer on a socket until a signal comes; live pages end by themselves then.

    Args:
        app: what answers.
        known: told when it is time to leave.
        taken: the socket, bound.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=3,
        **choose_parser(),
    )
    _Server(config, known).run(sockets=[taken])


class _Leaves(Protocol):
    """Something that is told when the server stops."""

    leaving: bool


class _Server(uvicorn.Server):
    """Tells of a signal before it stops."""

    def __init__(self, config: uvicorn.Config, known: _Leaves) -> None:
        super().__init__(config)
        self.known = known

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        self.known.leaving = True
        super().handle_exit(sig, frame)
