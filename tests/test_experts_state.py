"""A pool saved, loaded and moved goes on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ostinato.errors import StateError
from ostinato.experts._group import Group
from ostinato.experts.layers import ExpertConfig
from ostinato.experts.pool import ExpertPool
from ostinato.ops.snapshot import State, load_state, save_state

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
SMALL = ExpertConfig(shared_rank=3, domain_rank=2, fusion="input")
OPTIMIZERS: dict[str, Make] = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.05, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "plain": lambda p: torch.optim.SGD(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.001),
}
Step = tuple[int | list[int], bool]


def pool(make: str = "adam", device: str = "cpu", **options: object) -> ExpertPool:
    layers = [nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(2)]
    model = nn.Sequential(*layers).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    config = options.pop("config", SMALL)
    return ExpertPool(model.to(device), config, optimizer=OPTIMIZERS[make], **options)  # type: ignore[arg-type]


def go(found: ExpertPool, stream: list[Step], start: int = 0) -> list[Tensor]:
    outputs = []
    for index, (domain, good) in enumerate(stream, start):
        for each in [domain] if isinstance(domain, int) else domain:
            if each not in found.domains:
                found.add(each)
        found.select(domain)
        x = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(index)).to(found.device)
        found.zero_grad()
        output = found.model(x)
        output.square().mean().backward()
        found.step()
        if good:
            found.snapshot("shared")
            found.snapshot(found.domains[-1])
        elif index % 5 == 4:
            found.rollback("shared")
        outputs.append(output.detach().cpu())
    return outputs


STREAM: list[Step] = [
    (0, True), (0, False), (1, True), ([1, 0, 2], False), (2, False), (0, True), (3, False),
    ([3, 3, 0], True), (1, False), (2, False), (4, True), (0, False),
]  # fmt: skip


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_saved_and_loaded_goes_on_bit_for_bit(make: str, tmp_path: Path) -> None:
    whole = go(pool(make, max_domains=3), STREAM)
    for cut in (0, 1, 4, 8, len(STREAM)):
        first = pool(make, max_domains=3)
        go(first, STREAM[:cut])
        save_state(tmp_path / "pool.safetensors", first.export_state(), {})
        second = pool(make, max_domains=3)
        second.import_state(load_state(tmp_path / "pool.safetensors")[0])
        assert second.domains == first.domains
        assert second.active == first.active
        assert equal(go(second, STREAM[cut:], cut), whole[cut:])


def test_import_is_a_reset() -> None:
    found = pool(max_domains=3)
    empty = found.export_state().clone()
    one = go(found, STREAM)
    found.import_state(empty)
    assert found.domains == ()
    assert found.active is None
    assert equal(go(found, STREAM), one)
    found.import_state(found.export_state())  # its own live tensors
    assert found.domains != ()


def test_schedule_comes_back_too() -> None:
    first, second = pool(), pool()
    go(first, STREAM[:3])
    for name in first.groups:
        first.set_lr(0.125, name)
    second.import_state(first.export_state())
    for group in second.groups.values():
        assert group.optimizer is not None
        assert group.optimizer.param_groups[0]["lr"] == 0.125
        assert group.optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def drop_pool(state: State) -> None:
    del state.values["pool"]


def drop_tensor(state: State) -> None:
    del state.tensors["0/now/parameters/1.linear2/up"]


def bend_tensor(state: State) -> None:
    state.tensors["shared/kept/parameters/0.linear2/up"] = torch.zeros(2, 2)


def bend_use(state: State) -> None:
    state.values["pool"]["used"] = [7]


def bend_optimizer(state: State) -> None:
    state.tensors["0/now/optimizer/999/exp_avg"] = torch.zeros(1)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (drop_pool, "not the state of a pool"),
        (drop_tensor, "has no 1.linear2/up"),
        (bend_tensor, "shape"),
        (bend_use, "contradict"),
        (bend_optimizer, "does not fit"),
    ],
)
def test_spoilt_states_change_nothing(spoil: Callable[[State], None], message: str) -> None:
    first, second = pool(), pool()
    go(first, STREAM)
    go(second, STREAM[:4])
    state, before = first.export_state().clone(), second.export_state().clone()
    spoil(state)
    with pytest.raises(StateError, match=message):
        second.import_state(state)
    after = second.export_state()
    assert after.values == before.values
    assert list(after.tensors) == list(before.tensors)
    assert all(torch.equal(after.tensors[n], t) for n, t in before.tensors.items())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"config": SMALL.replace(domain_rank=5)}, "ranks"),
        ({"config": SMALL.replace(fusion="fixed")}, "not there here"),
        ({"make": "sgd"}, "optimizer"),
        ({"max_domains": 2}, "max_domains"),
        ({"targets": "0.linear2"}, "other layers"),
    ],
)
def test_foreign_states_are_refused(other: dict[str, object], message: str) -> None:
    first = pool()
    go(first, STREAM)
    with pytest.raises(StateError, match=message):
        pool(**other).import_state(first.export_state())  # type: ignore[arg-type]


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
def test_offload_changes_no_number(device: str) -> None:
    stays, moves = pool(device=device), pool(device=device, offload=True)
    assert equal(go(stays, STREAM), go(moves, STREAM))
    for domain in moves.domains:
        home = device if domain == moves.active else "cpu"
        assert {p.device.type for p in moves.parameters(domain)} == {home}
    state = moves.export_state().clone()
    again = pool(device=device, offload=True)
    again.import_state(state)
    assert equal(go(again, STREAM, 99), go(stays, STREAM, 99))


@pytest.mark.parametrize("device", DEVICES)
def test_moving_a_group_takes_its_optimizer_along(device: str) -> None:
    weight = nn.Parameter(torch.ones(3, device=device))
    group = Group({"w": weight}, OPTIMIZERS["adam"])
    weight.sum().backward()
    assert group.optimizer is not None
    group.optimizer.step()
    for where in ("cpu", device):
        group.move(torch.device(where))
        assert group.parameters["w"] is weight
        entry = group.optimizer.state[weight]
        assert {weight.device.type, entry["exp_avg"].device.type} == {where}
        assert entry["step"].device.type == "cpu"
    assert (weight.grad is None) == (device != "cpu")


@settings(max_examples=10, deadline=None)
@given(order=st.permutations([0, 1, 2]))
def test_domains_do_not_depend_on_their_order(order: list[int]) -> None:
    config = SMALL.replace(shared=False, fusion="fixed")
    straight, shuffled = pool(config=config), pool(config=config)
    for found, ids in ((straight, [0, 1, 2]), (shuffled, order)):
        for domain in ids:
            go(found, [(domain, False)] * 2)
    for domain in order:
        assert equal(
            [p.detach() for p in straight.parameters(domain)],
            [p.detach() for p in shuffled.parameters(domain)],
        )
