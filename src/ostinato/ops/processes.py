"""Processes that answer one stream together: everything that travels between them is here.

Every process holds the same state and sees the same whole batch; what costs time, the forwards, is
split. A process forwards its share of the images and gathers the others' results, so that whatever
follows (routing, moments, losses, decisions, random draws) is the same work on the same numbers
everywhere. Gradients are each process' own part of one loss, and are averaged. Alone, nothing
here does anything.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from ostinato.errors import ConfigError, GroupError, InputError

_Given = Literal["part", "whole"]
_T = TypeVar("_T")


class Processes:
    """This process among those that it works with.

    Args:
        group: a process group of `torch.distributed`; None stands for this process alone.
        given: whether every process is given its own "part" of a batch, in the order of ranks, or
            the "whole" batch, the same one everywhere.
        talk: whether a group of one process sends its messages too, to itself: that tries a backend
            on a machine with one device.

    Attributes:
        size: how many they are.
        rank: which of them this is.
        alone: whether there is nobody to send anything to.

    >>> alone = Processes()
    >>> alone.size, alone.share(torch.arange(3)).tolist(), alone.whole(torch.zeros(1), str)[1]
    (1, [0, 1, 2], None)
    """

    def __init__(self, group: Any = None, *, given: _Given = "part", talk: bool = False) -> None:
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise ConfigError(
                f"group is a process group of torch.distributed, not {type(group).__name__}: pass "
                "torch.distributed.group.WORLD after init_process_group."
            )
        self.group, self.given = group, given
        self.size = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)
        self.alone = self.size == 1 and not (talk and group is not None)
        self._lost: str | None = None
        self._device = torch.device("cpu")
        if group is not None and dist.get_backend(group) == "nccl":
            self._device = torch.device("cuda", torch.cuda.current_device())

    @classmethod
    def of(cls, group: Any) -> Processes:
        """Those of a process group, or the ones given."""
        return group if isinstance(group, Processes) else cls(group)

    def __deepcopy__(self, memo: Any) -> Processes:
        return self  # a copy of a method works with the same others

    def __reduce__(self) -> Any:
        return Processes, ()  # one that travels in a file works alone

    # Shares of rows.

    def counts(self, total: int) -> list[int]:
        """How many of so many rows each process takes; none has two more than another."""
        return [total // self.size + (rank < total % self.size) for rank in range(self.size)]

    def share(self, rows: Tensor) -> Tensor:
        """The rows that this process takes; the first one stands in where it has none."""
        if self.alone:
            return rows
        start, count = self.start(len(rows)), self.counts(len(rows))[self.rank]
        return rows[start : start + count] if count else rows[:1]

    def start(self, total: int) -> int:
        """The place of the first of them among so many rows."""
        return sum(self.counts(total)[: self.rank])

    def taken(self, total: int) -> int:
        """How many rows `share` gives of so many, a stand-in included."""
        return max(1, self.counts(total)[self.rank])

    def own(self, found: Tensor, total: int) -> Tensor:
        """What was found of a share of so many images, without a stand-in.

        A model that cuts its images up has several rows for each.
        """
        if self.alone:
            return found
        return found[: self.counts(total)[self.rank] * (len(found) // self.taken(total))]

    # What travels.

    def gathered(self, found: Tensor, total: int) -> Tensor:
        """What all found of their shares, in the images' order.

        Gradients flow to this process' own rows alone, times the number of processes: their mean
        over all (see `average`) is then the whole gradient, also of terms of a loss that every
        process has in full.
        """
        if self.alone:
            return found
        mine, pieces = self.own(found, total), len(found) // self.taken(total)
        parts = self._exchange(mine.detach(), [pieces * count for count in self.counts(total)])
        if mine.requires_grad:
            mine = mine.view_as(mine)
            mine.register_hook(lambda grad: grad * self.size)
        parts[self.rank] = mine
        return torch.cat(parts)

    def total(self, found: Tensor) -> Tensor:
        """The sum of what all found."""
        if self.alone:
            return found
        summed = found.detach().to(self._device, copy=True).contiguous()
        self._do(dist.all_reduce, summed)
        return summed.to(found.device)

    def average(self, grads: Sequence[Tensor]) -> list[Tensor]:
        """The mean over all processes of some gradients of one kind, in one message."""
        if self.alone or not grads:
            return list(grads)
        flat = self.total(torch.cat([grad.flatten() for grad in grads])) / self.size
        parts = flat.split([grad.numel() for grad in grads])
        return [part.view_as(grad) for part, grad in zip(parts, grads, strict=True)]

    def average_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Let every parameter's gradient be the mean over all processes."""
        if self.alone:
            return
        with_any = [one for one in parameters if one.grad is not None]  # the same ones everywhere
        for kind in dict.fromkeys(one.dtype for one in with_any):
            some = [one for one in with_any if one.dtype == kind]
            grads = [one.grad for one in some if one.grad is not None]
            for one, grad in zip(some, self.average(grads), strict=True):
                one.grad = grad

    def any(self, flag: bool) -> bool:
        """Whether it is so on any process."""
        return bool(self.total(torch.tensor(int(flag))))

    def told(self, text: str = "") -> str:
        """What the first process says to all."""
        return self.texts(text if self.rank == 0 else "")[0]

    def texts(self, text: str) -> list[str]:
        """What each process says, in the order of ranks."""
        return [said.decode() for said in self.messages(text.encode())]

    def messages(self, data: bytes) -> list[bytes]:
        """The same for bytes."""
        said = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0)
        sizes = self._exchange(torch.tensor([len(data)]), [1] * self.size)
        parts = self._exchange(said.to(torch.uint8), [int(one) for one in sizes])
        return [part.numpy().tobytes() for part in parts]

    def from_first(self, value: _T) -> _T:
        """A value whose tensors, inside what holds them, are the first process' to the bit.

        The others' have to have the same shapes.
        """
        if self.alone:
            return value
        if isinstance(value, Tensor):
            flat = value.reshape(-1)
            sizes = [len(flat) if rank == 0 else 0 for rank in range(self.size)]
            mine = flat if self.rank == 0 else flat[:0]
            return self._exchange(mine, sizes)[0].reshape(value.shape)  # type: ignore[return-value]
        if isinstance(value, dict):
            found = ((name, self.from_first(value[name])) for name in sorted(value))
            return dict(found)  # type: ignore[return-value]
        if isinstance(value, tuple):
            return tuple(self.from_first(one) for one in value)  # type: ignore[return-value]
        if is_dataclass(value) and not isinstance(value, type):
            held = {field.name: getattr(value, field.name) for field in fields(value)}
            return replace(value, **{name: self.from_first(one) for name, one in held.items()})
        return value

    def check_same(self, **facts: str) -> None:
        """Refuse to begin where processes were given different things; names what differs."""
        if self.alone:
            return
        for name, fact in facts.items():
            said = self.texts(fact)
            if len(set(said)) > 1:
                raise ConfigError(
                    f"Processes that answer one stream need the same {name}; they have "
                    f"{', '.join(f'{one:.60} ({rank})' for rank, one in enumerate(said))}."
                )

    # A batch.

    def whole(self, images: Any, standing: Callable[[], str]) -> tuple[Any, slice | None]:
        """The batch of all processes, and where in it this one's own images are.

        None stands for all of it. Whatever is wrong with any process' images is refused by all.

        Args:
            images: (B, 3, H, W) of this process; B may be 0 where others have some.
            standing: says what has to be the same everywhere before a batch.
        """
        if self.alone:
            return images, None
        heads = self._heads(images, standing())
        self._check_heads(heads)
        self._check_marks(heads)
        if self.given == "whole":
            return images, None
        counts = heads[:, 0].tolist()
        start = sum(counts[: self.rank])
        return torch.cat(self._exchange(images, counts)), slice(start, start + counts[self.rank])

    def agree(self, standing: Callable[[], str]) -> None:
        """Make sure that all are about to do the same, where no batch comes with it."""
        if not self.alone:
            self._check_marks(self._heads(None, standing()))

    def _heads(self, images: Any, standing: str) -> Tensor:
        return torch.stack(self._exchange(_head(images, standing)[None], [1] * self.size))[:, 0]

    def _check_heads(self, heads: Tensor) -> None:
        shapes = [tuple(row) for row in heads[:, 1:-1].tolist()]
        for rank, shape in enumerate(shapes):
            if shape[0] < 0:
                raise InputError(
                    f"Process {rank} was given no batch of images: every process passes a dense "
                    "tensor (count, 3, height, width), with a count of 0 where it has none."
                )
        if len(set(shapes)) > 1 or (self.given == "whole" and len(set(heads[:, 0].tolist())) > 1):
            shown = ", ".join(str(tuple(row[:1] + row[2:-1])) for row in heads.tolist())
            raise InputError(
                f"Processes were given images of different sizes or precisions ({shown}): resize "
                "them to one size, and pass uint8 or float32 everywhere."
            )

    def _check_marks(self, heads: Tensor) -> None:
        if len(set(heads[:, -1].tolist())) > 1:
            self._lost = (
                "Processes that answer one stream no longer agree on it: one was called without "
                "the others, otherwise than they, or with other classes. Adapt the model anew on "
                "all of them, and load a saved state."
            )
            raise GroupError(self._lost)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around what all do at once: who fails in it alone can no longer work with the others."""
        try:
            yield
        except BaseException as error:
            if not self.alone and self._lost is None:
                self._lost = f"This process failed in an earlier batch ({error}). {_AGAIN}"
            raise

    def _exchange(self, rows: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Everybody's rows, of which there are so many each; bytes travel, of any precision."""
        if self.alone:
            return [rows]
        shape = rows.shape[1:]
        width = rows.element_size() * math.prod(shape)
        sent = torch.zeros(max(sizes) * width, dtype=torch.uint8, device=self._device)
        mine = rows.detach().to(self._device).contiguous().reshape(-1).view(torch.uint8)
        sent[: len(mine)] = mine
        found = [torch.empty_like(sent) for _ in sizes]
        self._do(dist.all_gather, found, sent)
        return [
            part[: size * width].view(rows.dtype).reshape(size, *shape).to(rows.device)
            for part, size in zip(found, sizes, strict=True)
        ]

    def _do(self, work: Callable[..., Any], *arguments: Any) -> None:
        if self._lost is not None:
            raise GroupError(self._lost)
        try:
            work(*arguments, group=self.group)
        except RuntimeError as error:
            why = str(error).partition("\n")[0].rpartition("] ")[2] or type(error).__name__
            who = f"Process {self.rank} of {self.size}"
            self._lost = f"{who} had no answer from the others ({why[:160]}). {_AGAIN}"
            raise GroupError(self._lost) from error


ALONE = Processes()
_AGAIN = (
    "What it holds may be half of a batch: end all processes, start them again, and load the last "
    "saved state."
)


def _head(images: Any, standing: str) -> Tensor:
    """Count, precision, shape and standing as one row of numbers; -1 for what is no batch."""
    mark = _number(standing)
    dense = isinstance(images, Tensor) and not (images.is_nested or images.is_quantized)
    if not dense or images.layout != torch.strided or images.is_meta or images.ndim != 4:
        return torch.tensor([0, -1, 0, 0, 0, mark])
    return torch.tensor([len(images), _number(str(images.dtype)), *images.shape[1:], mark])


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
