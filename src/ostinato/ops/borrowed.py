"""Calling back without keeping alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Borrowed(Generic[_P, _T]):
    """A bound method that does not keep its object alive.

    What a method owns calls it back: with a plain bound method both would hold each other, and all
    their tensors would stay in memory until the interpreter looks for such circles, which it does
    the more rarely the more objects there are. Copies and pickles call back the copy.

    Args:
        method: a bound method of an object that outlives this.

    >>> class Owner:
    ...     def double(self, number: int) -> int:
    ...         return 2 * number
    >>> owner = Owner()
    >>> double = Borrowed(owner.double)
    >>> double(4)
    8
    """

    def __init__(self, method: Callable[_P, _T]) -> None:
        self._method = weakref.WeakMethod(method)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call the method."""
        return self._here()(*args, **kwargs)

    def _here(self) -> Callable[_P, _T]:
        method: Callable[_P, _T] | None = self._method()
        if method is None:
            raise ReferenceError("What this would call back is gone.")
        return method

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._here(),)
