"""What each part of a state has to hold, and the one check that keeps it to that.

A part that offers `expected` declares its names, shapes, types and ranges. One that does not is
held to finite numbers, and to giving back after the import what it was given.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ostinato.errors import StateError

if TYPE_CHECKING:
    from ostinato.ops.snapshot import State, Stateful

LARGEST = 1 << 53
"""Whole numbers above this are no counts: JSON readers differ on them."""
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Kind:
    """A kind of JSON value: in words, and as a test; those in use have a constructor each.

    >>> Kind("a name", lambda value: isinstance(value, str)).fits("fog")
    True
    >>> Kind.listed(Kind.count(), 2).fits([1, 2]), Kind.listed(Kind.count(), 2).fits([1])
    (True, False)
    """

    words: str
    fits: Callable[[Any], bool]

    @classmethod
    def count(cls, low: int = 0, high: int = LARGEST) -> Kind:
        """A whole number in a range.

        >>> [Kind.count().fits(value) for value in (3, True, -1, 1.0)]
        [True, False, False, False]
        """
        return cls(
            f"a whole number from {low} to {high}",
            lambda value: (
                isinstance(value, int) and type(value) is not bool and low <= value <= high
            ),
        )

    @classmethod
    def number(cls, low: float = -math.inf, high: float = math.inf) -> Kind:
        """A finite number in a range, whole or not."""
        return cls(
            f"a finite number from {low} to {high}",
            lambda value: (
                isinstance(value, int | float)
                and type(value) is not bool
                and low <= value <= high
                and abs(value) < math.inf
            ),
        )

    @classmethod
    def exactly(cls, wanted: Any) -> Kind:
        """One value, of the very type all through.

        >>> Kind.exactly([1]).fits([1]), Kind.exactly([1]).fits([True]), Kind.exactly(1).fits(1.0)
        (True, False, False)
        """
        text = json.dumps(wanted, sort_keys=True)
        return cls(repr(wanted), lambda value: json.dumps(value, sort_keys=True) == text)

    @classmethod
    def optional(cls, kind: Kind) -> Kind:
        """None, or a value of a kind."""
        return cls(f"none or {kind.words}", lambda value: value is None or kind.fits(value))

    @classmethod
    def listed(cls, kind: Kind, length: int | None = None) -> Kind:
        """A list of values of a kind."""
        return cls(
            f"a list of {'' if length is None else f'{length} '}{kind.words}",
            lambda value: (
                isinstance(value, list)
                and length in (None, len(value))
                and all(kind.fits(one) for one in value)
            ),
        )

    @classmethod
    def mapped(cls, kind: Kind, keys: Collection[str] | None = None) -> Kind:
        """Values of a kind by whole numbers (as words, for JSON has no other names), or by `keys`.

        >>> [Kind.mapped(Kind.count()).fits(value) for value in ({"0": 3}, {"a": 3}, [3])]
        [True, False, False]
        """
        return cls(
            f"{kind.words} for each of {'some numbers' if keys is None else sorted(keys)}",
            lambda value: (
                isinstance(value, dict)
                and (
                    all(_is_name(key) for key in value) if keys is None else set(keys) == set(value)
                )
                and all(kind.fits(one) for one in value.values())
            ),
        )

    @classmethod
    def one_of(cls, options: Collection[int]) -> Kind:
        """One of these whole numbers."""
        return cls(
            f"one of {sorted(options)}", lambda value: type(value) is int and value in options
        )

    @classmethod
    def ids(cls, low: int = 0) -> Kind:
        """A list of whole numbers, none of them twice."""
        many = cls.listed(cls.count(low))
        return cls(
            f"different whole numbers from {low}",
            lambda value: many.fits(value) and len(set(value)) == len(value),
        )

    @classmethod
    def flag(cls) -> Kind:
        """True or false."""
        return cls("true or false", lambda value: type(value) is bool)

    @classmethod
    def form(cls) -> Kind:
        """A tensor's type and sizes, as `Like.form` tells them."""
        return cls("a type and sizes", _is_form)

    @classmethod
    def like(cls, start: Any) -> Kind:
        """Whatever type a value starts with; None is a number or a size that comes later.

        >>> [Kind.like(0).fits(-1), Kind.like(None).fits(None)]
        [False, True]
        >>> [Kind.like(None).fits(value) for value in ([32, 32], [0])]
        [True, False]
        """
        if start is None or isinstance(start, list | tuple):
            either = (cls.optional(cls.number()), cls.listed(cls.count(low=1)))
            return cls("none, a number or a size", lambda v: any(k.fits(v) for k in either))
        if isinstance(start, bool | str):
            return cls(type(start).__name__, lambda value: type(value) is type(start))
        return cls.count() if isinstance(start, int) else cls.number()


def _is_name(key: object) -> bool:
    return isinstance(key, str) and key.isascii() and key.isdecimal() and str(int(key)) == key


def _is_form(value: Any) -> bool:
    names = [str(dtype).removeprefix("torch.") for dtype in _FLOATS]
    return isinstance(value, list) and value[:1] in [[n] for n in names] and _SIZES.fits(value[1:])


_SIZES = Kind.listed(Kind.count(low=1))


@dataclass(frozen=True)
class Like:
    """What one tensor has to be.

    Attributes:
        shape: sizes; a word stands for any size that is the same wherever the word is.
        dtype: None for any floating point that models compute in.
        low: the least value allowed.
        high: the largest.
        optional: whether it may be missing.

    >>> Like.of(torch.zeros(2, 3), low=0).shape
    (2, 3)
    """

    shape: tuple[int | str, ...]
    dtype: torch.dtype | None = torch.float32
    low: float = -math.inf
    high: float = math.inf
    optional: bool = False

    @classmethod
    def of(cls, tensor: Tensor, low: float = -math.inf) -> Like:
        """Of the same shape and type as one that is there."""
        return cls(tuple(tensor.shape), tensor.dtype, low)

    @classmethod
    def told(cls, told: Any, low: float = -math.inf, high: float = math.inf) -> Like:
        """Of the form that the state itself tells.

        >>> Like.told(["float32", 2, 3]).shape
        (2, 3)
        """
        if not Kind.form().fits(told):
            raise ValueError(f"{told!r:.40} is no form of a tensor")
        return cls(tuple(told[1:]), getattr(torch, told[0]), low, high)

    @staticmethod
    def form(tensor: Tensor) -> list[Any]:
        """A tensor's type and sizes, for a state to tell where they are not the same in all states.

        >>> Like.form(torch.zeros(2, 3))
        ['float32', 2, 3]
        """
        return [str(tensor.dtype).removeprefix("torch."), *tensor.shape]


@dataclass(frozen=True)
class Expected:
    """What a part has to hold: these tensors, these values and these parts, no others.

    >>> from ostinato.ops.snapshot import State
    >>> wanted = Expected({"mean": Like(("classes",), low=0, high=1)})
    >>> _check_part("mean", State({"mean": torch.tensor([0.5, 2.0])}), wanted)
    Traceback (most recent call last):
        ...
    ostinato.errors.StateError: The state does not fit: mean/mean lies outside 0 to 1.
    """

    tensors: Mapping[str, Like] = field(default_factory=dict)
    values: Mapping[str, Kind] = field(default_factory=dict)
    parts: Mapping[str, Expected] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, thing: Stateful, part: State) -> Expected:
        """What one part expects; anything finite, where it does not say."""
        if not isinstance(thing, _Declares):
            return ANYTHING
        if not isinstance(part.values, dict):
            raise StateError(f"The state does not fit: {name} has no values by name.")
        try:
            return thing.expected(part)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise StateError(f"The state does not fit: {name} cannot be read ({error}).") from None

    @classmethod
    def of_all(cls, things: Mapping[str, Stateful], state: State) -> Expected:
        """What all parts together expect."""
        missing = [name for name in things if name not in state.values]
        if missing:
            raise StateError(f"The state lacks {', '.join(missing)}.")
        return cls(
            parts={name: cls.of(name, thing, state.part(name)) for name, thing in things.items()}
        )


ANYTHING = Expected()
"""Of parts that declare nothing."""


@runtime_checkable
class _Declares(Protocol):
    """A part that says what it expects of a state that it is to take over."""

    def expected(self, state: State) -> Expected:
        """The declaration; it may depend on counts that the state itself tells."""
        ...


def check_state(thing: Stateful, state: State) -> None:
    """Hold a whole state to what is declared of it, before anything takes it over."""
    check_finite(state)
    _check_part("", state, Expected.of("it", thing, state))


def _check_part(name: str, state: State, wanted: Expected) -> None:
    """Refuse a part that is not what was declared."""
    if wanted is ANYTHING:
        return
    where = f"{name}/" if name else ""
    inner = tuple(f"{part}/" for part in wanted.parts)
    own = {k: t for k, t in state.tensors.items() if not (inner and k.startswith(inner))}
    required = {k for k, one in wanted.tensors.items() if not one.optional}
    _names(name or "it", set(own), required, set(wanted.tensors))
    plain = set(wanted.values) | set(wanted.parts)
    _names(name or "it", set(state.values), plain, plain)
    sizes: dict[str, int] = {}
    for key, tensor in own.items():
        _check_tensor(f"{where}{key}", tensor, wanted.tensors[key], sizes)
    for key, kind in wanted.values.items():
        if not kind.fits(state.values[key]):
            raise StateError(
                f"The state does not fit: {where}{key} should be {kind.words}, not "
                f"{state.values[key]!r:.40}."
            )
    for key, one in wanted.parts.items():
        part = state.part(key)
        if not isinstance(part.values, dict):
            raise StateError(f"The state does not fit: {where}{key} has no values by name.")
        _check_part(f"{where}{key}", part, one)


def _names(name: str, given: set[str], required: set[str], known: set[str]) -> None:
    for key in sorted(required - given):
        raise StateError(f"The state does not fit: {name} lacks {key}.")
    for key in sorted(given - known):
        raise StateError(f"The state does not fit: {name} has no {key:.60}.")


def _check_tensor(name: str, tensor: Tensor, wanted: Like, sizes: dict[str, int]) -> None:
    types = _FLOATS if wanted.dtype is None else (wanted.dtype,)
    if tensor.dtype not in types:
        raise StateError(f"The state does not fit: {name} is {tensor.dtype}, not {wanted.dtype}.")
    shape = tuple(tensor.shape)
    fits = len(shape) == len(wanted.shape) and all(
        size == (sizes.setdefault(want, size) if isinstance(want, str) else want)
        for size, want in zip(shape, wanted.shape, strict=True)
    )
    if not fits:
        raise StateError(f"The state does not fit: {name} has shape {shape}, not {wanted.shape}.")
    if tensor.numel() and (wanted.low > -math.inf or wanted.high < math.inf):
        low, high = (float(end) for end in tensor.aminmax())
        if not wanted.low <= low <= high <= wanted.high:
            raise StateError(
                f"The state does not fit: {name} lies outside {wanted.low} to {wanted.high}."
            )


def check_taken(given: State, taken: State) -> None:
    """After an import: the parts say the very names, shapes, types and values they were given."""
    forms = [{k: (t.shape, t.dtype) for k, t in s.tensors.items()} for s in (given, taken)]
    for name in sorted(forms[0].keys() | forms[1].keys()):
        if forms[0].get(name) != forms[1].get(name):
            raise StateError(f"The state does not fit: {name} is of another shape or type here.")
    if _text(given.values) != _text(taken.values):
        raise StateError("The state does not fit: its values are not read as they were written.")


def _text(values: dict[str, Any]) -> str:
    """As a file has them: JSON knows no tuples and no names but words, and tells True from 1."""
    return json.dumps(json.loads(json.dumps(values)), sort_keys=True)


def check_finite(state: State, where: str = "The state") -> None:
    """Refuse NaN and infinite numbers, in tensors and in values."""
    floats = {k: t for k, t in state.tensors.items() if t.is_floating_point() or t.is_complex()}
    # One answer a device is waited for, not one a tensor.
    verdicts = {k: t.isfinite().all() for k, t in floats.items()}
    for device in {flag.device for flag in verdicts.values()}:
        here = [k for k, flag in verdicts.items() if flag.device == device]
        good = torch.stack([verdicts[k] for k in here]).tolist()
        for name, fine in zip(here, good, strict=True):
            if not fine:
                raise StateError(_not_finite(where, name))
    for name, value in state.values.items():
        if not _is_finite(value):
            raise StateError(_not_finite(where, name))


def _not_finite(where: str, name: str) -> str:
    return f"{where} holds NaN or infinite numbers ({name}): reset, or use an earlier file."


def _is_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_finite(part) for part in value.values())
    if isinstance(value, list | tuple):
        return all(_is_finite(part) for part in value)
    return not isinstance(value, float) or math.isfinite(value)
