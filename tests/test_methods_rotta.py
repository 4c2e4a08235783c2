"""RoTTA: the bank's balance, its scores and timeliness, and when it learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato import adapt
from ostinato.checks import small_batches, small_model
from ostinato.errors import StateError
from ostinato.methods.rotta._bank import BalancedBank, Entry

IMAGE = torch.zeros(3, 2, 2)


def numbered(value):
    return torch.full((3, 2, 2), float(value))


class Reference:
    """The same rule over class lists, written as the paper tells it."""

    def __init__(self, capacity, classes):
        self.capacity, self.classes = capacity, classes
        self.lists = {c: [] for c in range(classes)}

    def score(self, item):
        _, age, entropy = item
        return 1 / (1 + math.exp(-age / self.capacity)) + entropy / math.log(self.classes)

    def add(self, number, label, entropy):
        if self.make_room(label, self.score((number, 0, entropy))):
            self.lists[label].append([number, 0, entropy])
        for items in self.lists.values():
            for item in items:
                item[1] += 1

    def make_room(self, label, score):
        if len(self.lists[label]) < self.capacity / self.classes:
            if sum(map(len, self.lists.values())) < self.capacity:
                return True
            most = max(map(len, self.lists.values()))
            rivals = [c for c, items in self.lists.items() if len(items) == most]
        else:
            rivals = [label]
        owner, worst = max(
            ((c, item) for c in rivals for item in self.lists[c]), key=lambda x: self.score(x[1])
        )
        if self.score(worst) <= score:
            return False
        self.lists[owner].remove(worst)
        return True

    def contents(self):
        return sorted((n, label, age) for label, items in self.lists.items() for n, age, _ in items)


@given(
    st.integers(1, 12),
    st.integers(2, 6),
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1.5)), min_size=1, max_size=60),
)
@settings(max_examples=80, deadline=None)
def test_bank_against_the_rule_over_class_lists(capacity, classes, offers):
    bank, reference = BalancedBank(capacity, classes), Reference(capacity, classes)
    for number, (label, entropy) in enumerate(offers):
        entropy += number * 1e-6  # no ties, so that both have one worst entry
        bank.add(numbered(number), label % classes, entropy)
        reference.add(number, label % classes, entropy)
        counts = np.bincount([e.label for e in bank.entries], minlength=classes)
        assert len(bank) <= capacity
        assert counts.max() <= math.ceil(capacity / classes)
    kept = [int(image[0, 0, 0]) for image in bank.images()]
    mine = sorted((n, e.label, e.age) for n, e in zip(kept, bank.entries, strict=True))
    assert mine == reference.contents()


def test_a_stream_of_one_class_leaves_room_for_the_others():
    bank = BalancedBank(capacity=8, classes=4)
    for _ in range(50):
        bank.add(IMAGE, 0, 0.1)
    assert len(bank) == 2
    for label in (1, 2, 3):
        for _ in range(5):
            bank.add(IMAGE, label, 0.1)
    assert np.bincount([e.label for e in bank.entries]).tolist() == [2, 2, 2, 2]


def test_fresh_and_certain_images_stay():
    bank = BalancedBank(capacity=2, classes=2)
    bank.add(numbered(1), 0, 0.5)
    assert not bank.add(numbered(2), 0, 5.0)  # far less certain than what is there
    assert bank.images()[0, 0, 0, 0] == 1
    assert bank.add(numbered(3), 0, 0.4)
    assert bank.images()[0, 0, 0, 0] == 3
    old, new = Entry(0, 0.5, age=9), Entry(0, 0.5, age=1)
    assert bank.score(old) > bank.score(new)
    assert bank.score(Entry(0, 0.9, 1)) > bank.score(new)


def test_timeliness_formula():
    bank = BalancedBank(capacity=4, classes=2)
    for label in (0, 1, 0):
        bank.add(IMAGE, label, 0.1)
    ages = np.array([e.age for e in bank.entries]) / 4
    assert ages.tolist() == [0.75, 0.5, 0.25]
    expected = np.exp(-ages) / (1 + np.exp(-ages))
    np.testing.assert_allclose(bank.timeliness().numpy(), expected, rtol=1e-6)


def test_bank_state_round_trip_other_sizes_and_refusal():
    bank = BalancedBank(capacity=4, classes=2)
    for number in range(4):
        bank.add(numbered(number), number % 2, 0.1)
    other = BalancedBank(capacity=4, classes=2)
    other.import_state(bank.export_state().clone())
    assert other.entries == bank.entries
    assert torch.equal(other.images(), bank.images())
    bank.add(torch.ones(3, 8, 8), 0, 0.0)
    assert bank.images().shape == (4, 3, 2, 2)
    with pytest.raises(StateError, match="4 images"):
        BalancedBank(capacity=2, classes=2).import_state(other.export_state())


def test_learns_each_time_enough_images_have_passed():
    method = adapt(small_model(), "rotta", every=12, capacity=8, lr=1e-2)
    start = {n: v.clone() for n, v in method.teacher.values.items()}
    updated = [method.step(batch).updated for batch in small_batches(6)]
    assert updated == [(8 * i + 8) // 12 > 8 * i // 12 for i in range(6)]
    assert any(not torch.equal(v, start[n]) for n, v in method.teacher.values.items())
    assert method.seen["images"] == 48


def test_predicts_with_the_teacher_and_moves_it_by_its_rate():
    method = adapt(small_model(), "rotta", every=8, rate=0.1, lr=1e-2)
    batches = small_batches(2)
    method(batches[0])
    for name, parameter in method.weights.parameters.items():
        expected = 0.9 * method.weights.source[name] + 0.1 * parameter.detach()
        torch.testing.assert_close(method.teacher.values[name], expected)
    taught = method.teacher.logits(batches[1])
    assert torch.equal(method(batches[1]), taught)


def test_loss_is_weighted_by_timeliness():
    method = adapt(small_model(), "rotta", every=8, capacity=8, lr=0.0)
    batch = small_batches(1)[0]
    view = {}
    lesson = method._lesson

    def spy(given, images):
        view["state"] = method.random.generator.get_state()
        view["images"] = images.clone()
        return lesson(given, images)

    method._lesson = spy
    out = method.step(batch)
    from ostinato.ops.augment import cotta_view

    generator = torch.Generator()
    generator.set_state(view["state"])
    with torch.no_grad():
        student = method.model(cotta_view(view["images"], generator)).double().log_softmax(1)
        teacher = method.model(view["images"]).double().softmax(1)
    loss = -(teacher * student).sum(1) * method.bank.timeliness().double()
    assert out.loss == pytest.approx(float(loss.mean()), rel=1e-4)


def test_label_subset_keeps_whole_labels_in_the_bank():
    method = adapt(small_model(), "rotta")
    method(small_batches(1)[0], classes=torch.tensor([3, 4]))
    assert {entry.label for entry in method.bank.entries} <= {3, 4}
