"""The pool: who is trained, who is retired, snapshots, and sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ostinato.errors import ConfigError, InputError, UnknownName
from ostinato.experts.layers import DualBranch, ExpertConfig
from ostinato.experts.pool import ExpertPool, Retired

SMALL = ExpertConfig(shared_rank=3, domain_rank=2)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, weight_decay=0.05)


def model() -> nn.Module:
    layers = [nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(2)]
    found = nn.Sequential(*layers).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in found.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return found


def pool(domains: int = 3, config: ExpertConfig = SMALL, **options: object) -> ExpertPool:
    made = ExpertPool(model(), config, optimizer=adam, **options)  # type: ignore[arg-type]
    for domain in range(domains):
        made.add(domain)
    return made


def images(seed: int, batch: int = 4) -> Tensor:
    return torch.randn(batch, 5, 8, generator=torch.Generator().manual_seed(seed))


def train(found: ExpertPool, domain: int | list[int], steps: int = 3) -> None:
    found.select(domain)
    for step in range(steps):
        found.zero_grad()
        found.model(images(step)).square().sum().backward()
        found.step()


def values(found: ExpertPool, group: object) -> list[Tensor]:
    return [p.detach().clone() for p in found.parameters(group)]  # type: ignore[arg-type]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_only_shared_and_selected_move() -> None:
    found = pool()
    before = {group: values(found, group) for group in ("shared", 0, 1, 2)}
    train(found, 1)
    assert found.active == 1
    for group, old in before.items():
        assert same(values(found, group), old) == (group in (0, 2))
    assert all(p.grad is None for group in (0, 2) for p in found.parameters(group))
    assert {id(p) for p in found.trainable()} == {
        id(p) for group in ("shared", 1) for p in found.parameters(group)
    }


def test_selecting_another_domain_drops_gradients() -> None:
    found = pool()
    found.select(0)
    found.model(images(0)).sum().backward()
    found.select(1)
    assert all(p.grad is None for p in found.parameters(0))
    before = values(found, 0)
    found.step()
    assert same(values(found, 0), before)


def test_per_image_selection_trains_each_image_s_domain() -> None:
    found = pool()
    before = {group: values(found, group) for group in (0, 1, 2)}
    train(found, [2, 0, 0, 2])
    assert found.active == (2, 0, 0, 2)
    for group, old in before.items():
        assert same(values(found, group), old) == (group == 1)
    assert len(found.optimizers()) == 3
    with pytest.raises(InputError, match="select 3 domains"):
        found.model(images(0, batch=3))


def test_each_domain_has_its_own_optimizer_state() -> None:
    alone, mixed = (
        pool(config=SMALL.replace(shared=False)),
        pool(config=SMALL.replace(shared=False)),
    )
    for found, others in ((alone, 0), (mixed, 3)):
        train(found, 0, steps=2)
        train(found, 1, steps=others)
        train(found, 0, steps=2)
    assert same(values(alone, 0), values(mixed, 0))
    counts = {d: mixed.groups[d].optimizer.state_dict()["state"] for d in (0, 1, 2)}  # type: ignore[union-attr]
    assert {int(entry["step"]) for entry in counts[0].values()} == {4}
    assert {int(entry["step"]) for entry in counts[1].values()} == {3}
    assert counts[2] == {}


def test_new_domains_have_no_effect() -> None:
    found = pool(1)
    source = found.model(images(0))
    train(found, 0)
    assert found.norm(0) > 0
    found.add(7)
    assert found.norm(7) == 0.0
    found.rollback("shared")
    found.select(7)
    assert torch.equal(found.model(images(0)), source)


def test_least_recently_selected_goes() -> None:
    found = pool(3, max_domains=3)
    found.select(0)
    found.select([2, 2])
    assert found.add(3) == Retired(1, None)
    assert found.domains == (0, 2, 3)
    assert all(list(layer.domains) == ["0", "2", "3"] for layer in found.layers.values())
    with pytest.raises(UnknownName, match="known: 0, 2, 3"):
        found.select(1)


def test_nearest_are_merged() -> None:
    found = pool(3, max_domains=3, retire="merge")
    for domain, size in ((0, 1.0), (1, -1.0), (2, 0.1)):
        for layer in found.layers.values():
            generator = torch.Generator().manual_seed(3)
            layer.mixture(domain).down.data = torch.randn(8, 4, generator=generator)
            layer.mixture(domain).up.data = size * torch.randn(4, 8, generator=generator)
    gap = 0.0
    for layer in found.layers.values():
        one, other = layer.mixture(0), layer.mixture(1)
        gap += (one.down @ one.up - other.down @ other.up).detach().square().sum().item()
    assert found.distance(0, 1) == pytest.approx(gap**0.5, rel=1e-5)
    mean = [(a + b) / 2 for a, b in zip(values(found, 0), values(found, 2), strict=True)]
    found.select(2)
    assert found.add(3) == Retired(2, 0)
    assert found.domains == (0, 1, 3)
    assert found.active == 0
    for one, other in zip(values(found, 0), mean, strict=True):
        torch.testing.assert_close(one, other)
    assert found.add(4, nearest=lambda: (0, 3)) == Retired(0, 3)


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_merge_weighs(weight: float) -> None:
    found = pool(2)
    train(found, 0)
    train(found, 1, steps=2)
    into, source = values(found, 0), values(found, 1)
    found.merge(1, 0, weight)
    for now, a, b in zip(values(found, 0), into, source, strict=True):
        torch.testing.assert_close(now, (1 - weight) * a + weight * b)
    assert found.domains == (0,)
    assert found.active == 0


@pytest.mark.parametrize("group", ["shared", 0])
def test_rollback(group: object) -> None:
    found = pool(1)
    start = values(found, group)
    train(found, 0)
    assert found.rollback(group) is False  # type: ignore[arg-type]
    assert same(values(found, group), start)
    train(found, 0)
    found.snapshot(group)  # type: ignore[arg-type]
    good, optimizer = values(found, group), found.groups[group].capture().clone()  # type: ignore[index]
    train(found, 0)
    assert not same(values(found, group), good)
    found.set_lr(0.5, group)  # type: ignore[arg-type]
    assert found.rollback(group) is True  # type: ignore[arg-type]
    assert same(values(found, group), good)
    back = found.groups[group].capture()  # type: ignore[index]
    assert all(torch.equal(back.tensors[n], t) for n, t in optimizer.tensors.items())
    assert back.values["settings"][0]["lr"] == 0.5


def test_rollback_clears_optimizer_without_snapshot() -> None:
    found = pool(1, SMALL.replace(fusion="input"))
    once = pool(1, SMALL.replace(fusion="input"))
    train(found, 0)
    found.rollback(0)
    found.rollback("shared")
    train(found, 0)
    train(once, 0)
    assert same(values(found, 0), values(once, 0))
    assert same(values(found, "shared"), values(once, "shared"))


def test_learning_rate_is_a_groups_own() -> None:
    found = pool(2)
    first, second = found.domains
    before = found.groups[first].optimizer.param_groups[0]["lr"]  # type: ignore[union-attr]
    found.set_lr(0.25, second)
    rates = [g.optimizer.param_groups[0]["lr"] for g in found.groups.values()]  # type: ignore[union-attr]
    assert before != 0.25
    assert rates == [before, before, 0.25]


@pytest.mark.parametrize("off", ["shared", "domain"])
def test_a_branch_can_be_off(off: str) -> None:
    found = pool(2, SMALL.replace(**{off: False}))
    assert found.count("shared" if off == "shared" else 1) == 0
    assert found.count("domain") == (0 if off == "domain" else found.count(0))
    train(found, 1)
    assert len(found.optimizers()) == 1
    found.snapshot(1)
    assert found.rollback(1)
    found.remove(1)
    assert found.active is None


def test_detach_gives_the_model_back() -> None:
    original = model()
    source = original(images(0))
    found = ExpertPool(original, SMALL, optimizer=adam)
    found.add(0)
    train(found, 0)
    assert found.detach() is original
    assert torch.equal(original(images(0)), source)
    assert not any(isinstance(m, DualBranch) for m in original.modules())


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda p: p.add(0), InputError, "already"),
        (lambda p: p.select(8), UnknownName, "no domain 8"),
        (lambda p: p.select([]), InputError, "No domain"),
        (lambda p: p.merge(0, 0), InputError, "itself"),
        (lambda p: p.merge(0, 1, 2.0), ConfigError, "from 0"),
        (lambda p: p.parameters(8), UnknownName, "no domain 8"),
        (lambda p: pool(max_domains=0), ConfigError, "max_domains = 0"),
        (lambda p: pool(max_domains=1, retire="merge"), ConfigError, "needs 2"),
        (lambda p: pool(retire="fifo"), ConfigError, "choose 'lru'"),
    ],
)
def test_mistakes_are_named(
    act: Callable[[ExpertPool], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        act(pool(2))


def test_sizes_on_vit_base() -> None:
    import timm

    with torch.device("meta"):
        vit = timm.create_model("vit_base_patch16_224")
        total = sum(p.numel() for p in vit.parameters())
        found = ExpertPool(vit, ExpertConfig(), optimizer=adam)
        found.add(0)
    shared, domain = found.count("shared"), found.count(0)
    assert (shared, domain) == (1_198_104, 608_280)
    assert found.count("domain") == domain
    assert round(100 * domain / total, 1) == 0.7
    assert (shared + domain) / total < 0.022
