"""The layers: formulas, the two forms, per-image routing, starts, dtypes and compilation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ostinato.errors import ConfigError, InputError, TargetError
from ostinato.experts.layers import DualBranch, ExpertConfig, LowRankExpert, Mixture

FUSIONS = ("fixed", "learned", "input")


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randomise(module: nn.Module, seed: int = 1, scale: float = 0.3) -> None:
    generator = gen(seed)
    for parameter in module.parameters():
        parameter.data = scale * torch.randn(parameter.shape, generator=generator)


def branch(dim: int = 8, base: nn.Module | None = None, **settings: object) -> DualBranch:
    config = ExpertConfig.parse({"shared_rank": 4, "domain_rank": 2, **settings})
    layer = DualBranch(base or nn.Linear(dim, dim), dim, config)
    for domain in (0, 1, 5):
        layer.add_domain(domain)
    return layer


def numpy_gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def numpy_mixture(z: np.ndarray, mixture: Mixture) -> np.ndarray:
    down, up, router, bias = (p.detach().double().numpy() for p in mixture.parameters())
    scores = np.exp(z @ router + bias)
    gates = scores / scores.sum(-1, keepdims=True)
    rank, total = mixture.rank, np.zeros_like(z)
    for i in range(mixture.experts):
        part = slice(i * rank, (i + 1) * rank)
        total += gates[..., i : i + 1] * (numpy_gelu(z @ down[:, part]) @ up[part])
    return total


@pytest.mark.parametrize("form", ["fused", "reference"])
def test_output_is_the_formula(form: str) -> None:
    layer = branch(form=form, balance=0.3, experts=3, base=nn.Identity())
    randomise(layer)
    layer.select(5)
    z = torch.randn(2, 3, 8, generator=gen())
    plain = z.double().numpy()
    assert layer.shared is not None
    expected = plain + 0.3 * numpy_mixture(plain, layer.shared)
    expected += 0.7 * numpy_mixture(plain, layer.mixture(5))
    np.testing.assert_allclose(layer(z).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_one_expert_is_a_mixture_of_one() -> None:
    expert, mixture = LowRankExpert(8, 3), Mixture(8, 3, experts=1)
    torch.testing.assert_close(expert.down, mixture.down, rtol=0, atol=0)
    expert.up.data = mixture.up.data = torch.randn(3, 8, generator=gen())
    z = torch.randn(2, 8, generator=gen())
    torch.testing.assert_close(expert(z), mixture(z))


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    dim=st.integers(1, 9),
    ranks=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    experts=st.integers(1, 3),
    balance=st.floats(0, 1),
    fusion=st.sampled_from(FUSIONS),
    placement=st.sampled_from(["post", "parallel"]),
    branches=st.sampled_from([(True, True), (True, False), (False, True)]),
)
def test_fused_equals_reference(
    shape: list[int],
    dim: int,
    ranks: tuple[int, int],
    experts: int,
    balance: float,
    fusion: str,
    placement: str,
    branches: tuple[bool, bool],
) -> None:
    config = ExpertConfig.parse(
        {
            "shared_rank": ranks[0],
            "domain_rank": ranks[1],
            "experts": experts,
            "balance": balance,
            "fusion": fusion,
            "placement": placement,
            "shared": branches[0],
            "domain": branches[1],
        }
    )
    results = []
    for form in ("fused", "reference"):
        layer = DualBranch(nn.Linear(dim, dim), dim, config.replace(form=form))
        layer.add_domain(3)
        randomise(layer, scale=0.2)
        layer.select(3)
        z = torch.randn(*shape, dim, generator=gen(2), requires_grad=True)
        output = layer(z)
        weights = torch.randn(output.shape, generator=gen(3))
        names, parameters = zip(*layer.named_parameters(), strict=True)
        grads = torch.autograd.grad((output * weights).sum(), (z, *parameters), allow_unused=True)
        results.append((output, grads, names))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-6)
    for one, other in zip(results[0][1], results[1][1], strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            scale = float(other.abs().max())
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * scale + 1e-7)


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("form", ["fused", "reference"])
@pytest.mark.parametrize("shape", [(6, 4, 8), (6, 2, 3, 8)])
def test_per_image_selection_equals_grouping(
    fusion: str, form: str, shape: tuple[int, ...]
) -> None:
    layer = branch(fusion=fusion, form=form)
    randomise(layer)
    x = torch.randn(shape, generator=gen())
    ids = [5, 0, 1, 0, 5, 5]
    layer.select(torch.tensor(ids))
    together = layer(x)
    for domain in set(ids):
        index = torch.tensor([i for i, d in enumerate(ids) if d == domain])
        layer.select(domain)
        torch.testing.assert_close(together[index], layer(x[index]), rtol=1e-6, atol=1e-6)
    layer.select([0] * 6)
    same = layer(x)
    layer.select(0)
    assert torch.equal(same, layer(x))


def test_per_image_selection_needs_one_domain_per_image() -> None:
    layer = branch()
    layer.select([0, 1])
    with pytest.raises(InputError, match="select 3 domains"):
        layer(torch.zeros(3, 4, 8))
    with pytest.raises(InputError, match="no domain 9"):
        layer.select([0, 9])


@pytest.mark.parametrize("fusion", ["learned", "input"])
def test_fusion_starts_at_balance_and_learns(fusion: str) -> None:
    layer, fixed = branch(fusion=fusion, balance=0.3), branch(balance=0.3)
    for one in (layer, fixed):
        for mixture in (one.shared, one.mixture(0)):
            assert mixture is not None
            mixture.up.data = torch.randn(mixture.up.shape, generator=gen())
        one.base_layer = nn.Identity()
        one.select(0)
    x = torch.randn(2, 4, 8, generator=gen())
    torch.testing.assert_close(layer(x), fixed(x), rtol=1e-6, atol=1e-6)
    layer(x).square().sum().backward()
    learned = [p for n, p in layer.shared_parameters().items() if n in ("offset", "gate")]
    assert len(learned) == (2 if fusion == "input" else 1)
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in learned)


def test_a_branch_alone_keeps_its_coefficient() -> None:
    x = torch.randn(2, 3, 8, generator=gen())
    for form in ("fused", "reference"):
        for off, weight in (("domain", 0.3), ("shared", 0.7)):
            layer = branch(form=form, balance=0.3, base=nn.Identity(), **{off: False})
            randomise(layer)
            layer.select(0)
            mixture = layer.mixture(0) if layer.shared is None else layer.shared
            torch.testing.assert_close(layer(x), x + weight * mixture(x), rtol=1e-5, atol=1e-5)
    nothing = branch(shared=False)
    assert torch.equal(nothing(x), nothing.base_layer(x))
    with pytest.raises(ConfigError, match="both off"):
        ExpertConfig.parse({"shared": False, "domain": False})


def test_starts_depend_on_seed_domain_and_layer_alone() -> None:
    config = ExpertConfig(shared_rank=4, domain_rank=2)

    def start(order: list[int], name: str = "a", seed: int = 0) -> torch.Tensor:
        layer = DualBranch(nn.Linear(8, 8), 8, config, name=name, seed=seed)
        for domain in order:
            layer.add_domain(domain)
        return layer.mixture(1).down.detach()

    assert torch.equal(start([0, 1, 2]), start([2, 1]))
    for other in (start([1], name="b"), start([1], seed=1)):
        assert not torch.equal(start([1]), other)
    assert float(start([1]).abs().max()) <= 8**-0.5


def test_low_precision() -> None:
    x = torch.randn(4, 6, 8, generator=gen())
    for fusion in FUSIONS:
        layer = branch(fusion=fusion)
        randomise(layer)
        layer.select(0)
        exact = layer(x)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = layer(x)
        assert mixed.dtype == torch.bfloat16
        torch.testing.assert_close(mixed.float(), exact, rtol=0.05, atol=0.05)
        half = branch(fusion=fusion, base=nn.Linear(8, 8).bfloat16())
        half.select(0)
        result = half(x.bfloat16())
        assert result.dtype == torch.bfloat16
        assert half.mixture(0).down.dtype == torch.float32
        result.sum().backward()
        grad = half.mixture(0).up.grad
        assert grad is not None
        assert grad.dtype == torch.float32


def test_compiled_once_for_all_domains() -> None:
    from torch._dynamo.testing import CompileCounter

    layer = branch()
    randomise(layer)
    counter = CompileCounter()
    compiled = torch.compile(layer, backend=counter)
    x = torch.randn(2, 3, 8, generator=gen())
    for domain in (0, 1, 5, 0):
        layer.select(domain)
        torch.testing.assert_close(compiled(x), layer(x))
    assert counter.frame_count == 1


def test_unfit_outputs_are_refused() -> None:
    channels_first = DualBranch(nn.Conv2d(8, 8, 1), 8, ExpertConfig())
    with pytest.raises(TargetError, match="channels-first"):
        channels_first(torch.zeros(1, 8, 3, 3))

    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
            return x, None

    with pytest.raises(TargetError, match="not a tensor"):
        DualBranch(Pair(), 8, ExpertConfig())(torch.zeros(1, 8))


@pytest.mark.parametrize("wrong", [{"balance": 1.5}, {"experts": 0}, {"fusion": "none"}])
def test_settings_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ExpertConfig.parse(wrong)
