"""Callbacks that keep nobody alive, and follow copies."""

from __future__ import annotations

import copy
import pickle

import pytest

from ostinato.ops.borrowed import Borrowed


class Owner:
    def __init__(self, number: int) -> None:
        self.number = number
        self.call = Borrowed(self.plus)

    def plus(self, more: int) -> int:
        return self.number + more


def test_it_calls_back_while_there_is_somebody_and_says_when_there_is_not():
    owner = Owner(3)
    call = owner.call
    assert call(4) == 7
    del owner
    with pytest.raises(ReferenceError, match="gone"):
        call(4)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_calls_back_itself(copied):
    owner = Owner(3)
    other = copied(owner)
    other.number = 5
    assert (owner.call(1), other.call(1)) == (4, 6)
