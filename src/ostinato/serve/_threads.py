"""A thread of the server: it works until it is told to stop, and ends what it has begun."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Working(ABC):
    """A thread that waits for work on `_ready`, until `_stopping`.

    Args:
        name: of the thread, as a debugger shows it.
    """

    def __init__(self, name: str) -> None:
        self._ready = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @abstractmethod
    def _work(self) -> None:
        """What the thread does."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def alive(self) -> bool:
        """Whether the thread works."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Finish what is under way, and end."""
        with self._ready:
            self._stopping = True
            self._ready.notify_all()
        self._thread.join()
