"""Names to things: a decorator, a look-up that helps, and entry points for outside packages.

A new method, data set or descriptor is one file: the registry imports every module of its home
package the first time it is asked, so nothing else has to mention the file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from ostinato.errors import UnknownName, did_you_mean

_T = TypeVar("_T")


class Registry(Generic[_T]):
    """A named collection that fills itself from a package and from entry points.

    Args:
        kind: what its items are called in messages.
        home: the package whose modules register them, and the group of entry points.
        named: whether an item is told its name, as its attribute `name`, unless it has its own.

    >>> shapes: Registry[type] = Registry("shape")
    >>> @shapes.register("square")
    ... class Square: ...
    >>> shapes.names(), shapes["square"].__name__
    (['square'], 'Square')
    >>> shapes["sqare"]
    Traceback (most recent call last):
        ...
    ostinato.errors.UnknownName: There is no shape 'sqare'. Did you mean 'square'? ...
    """

    def __init__(self, kind: str, home: str | None = None, *, named: bool = False) -> None:
        self.kind = kind
        self.home = home
        self.named = named
        self._items: dict[str, _T] = {}
        self._filled = home is None

    def register(self, name: str) -> Callable[[_T], _T]:
        """Decorator: give the thing below a name."""

        def add(item: _T) -> _T:
            known = self._items.get(name)
            if known is not None and _origin(known) != _origin(item):
                raise ValueError(f"two {self.kind}s are called {name!r}: {known!r} and {item!r}")
            self._items[name] = item
            if self.named and "name" not in vars(item):
                item.name = name  # type: ignore[attr-defined]
            return item

        return add

    def __getitem__(self, name: str) -> _T:
        self._fill()
        if name not in self._items:
            hint = did_you_mean(name, self._items)
            raise UnknownName(f"There is no {self.kind} {name!r}. {hint}")
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        self._fill()
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> list[str]:
        """Every registered name, sorted."""
        self._fill()
        return sorted(self._items)

    def remove(self, name: str) -> None:
        """Forget a name (for tests and notebooks that redefine things)."""
        self._items.pop(name, None)

    def _fill(self) -> None:
        if self._filled or self.home is None:
            return
        self._filled = True  # set first: the modules below may look names up while they load
        try:
            package = importlib.import_module(self.home)
            for module in pkgutil.iter_modules(package.__path__):
                if not module.name.startswith("_"):
                    importlib.import_module(f"{self.home}.{module.name}")
            for point in entry_points(group=self.home):
                point.load()
        except BaseException:
            self._filled = False  # half a collection must not pass for the whole
            raise


def _origin(item: Any) -> tuple[str, str]:
    return getattr(item, "__module__", ""), getattr(item, "__qualname__", repr(item))


METHODS: Registry[Any] = Registry("method", "ostinato.methods", named=True)
DESCRIPTORS: Registry[Any] = Registry("descriptor", "ostinato.domains")
DISCRIMINATORS: Registry[Any] = Registry("discriminator", "ostinato.domains")
CORRUPTIONS: Registry[Any] = Registry("corruption", "ostinato.data.corruptions")
DATASETS: Registry[Any] = Registry("data set", "ostinato.data.datasets", named=True)
STREAMS: Registry[Any] = Registry("stream", "ostinato.data", named=True)
TABLES: Registry[Any] = Registry("table", "ostinato.tables")
