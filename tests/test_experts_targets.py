"""What counts as an FFN, choosing by hand, and injection that can be undone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ostinato.errors import TargetError
from ostinato.experts._inject import eject, inject
from ostinato.experts._targets import find_targets
from ostinato.experts.layers import DualBranch, ExpertConfig

SMALL = ExpertConfig(shared_rank=4, domain_rank=2)


class Attention(nn.Module):
    """Shaped like a gated FFN (D→D, D→2D, D→D), but an attention all the same."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.kv, self.proj = (
            nn.Linear(dim, dim),
            nn.Linear(dim, 2 * dim),
            nn.Linear(dim, dim),
        )
        self.bias_mlp = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        key, value = self.kv(x).chunk(2, -1)
        return self.proj(nn.functional.scaled_dot_product_attention(self.q(x), key, value))


class Block(nn.Module):
    def __init__(self, dim: int = 8, mlp: nn.Module | None = None) -> None:
        super().__init__()
        self.attn = Attention(dim)
        self.mlp = mlp or nn.Sequential(nn.Linear(dim, 16), nn.GELU(), nn.Linear(16, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        return x + self.mlp(x)


class Model(nn.Module):
    """With everything that must not be taken for an FFN: embedding, merging, heads."""

    def __init__(self, depth: int = 2, mlp: nn.Module | None = None) -> None:
        super().__init__()
        self.patch_embed = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.blocks = nn.Sequential(*[Block(mlp=mlp) for _ in range(depth)])
        self.merging = nn.Linear(8, 8)
        self.head = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.merging(self.blocks(self.patch_embed(x))).mean(1))


def x(batch: int = 2) -> Tensor:
    return torch.randn(batch, 4, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("depth", [1, 3])
def test_heads_embeddings_and_attention_are_left_alone(depth: int) -> None:
    found = [target.name for target in find_targets(Model(depth))]
    assert found == [f"blocks.{i}.mlp" for i in range(depth)]


def test_gated_ffns_in_any_order() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w2, self.w3 = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))

    assert [t.dim for t in find_targets(Model(mlp=Gated()))] == [8]  # one module, tied twice


def test_bottlenecks_are_not_ffns() -> None:
    block = Block()
    block.adapter = nn.Sequential(nn.Linear(8, 2), nn.Linear(2, 8))
    assert [t.name for t in find_targets(nn.Sequential(block))] == ["0.mlp"]


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("blocks.1.mlp", ["blocks.1.mlp"]),
        ("mlp", ["blocks.0.mlp", "blocks.1.mlp"]),
        (r"blocks\.\d+\.mlp", ["blocks.0.mlp", "blocks.1.mlp"]),
        (["head", "blocks.0.mlp"], ["blocks.0.mlp", "head"]),
        (lambda name, module: name.startswith("m"), ["merging"]),
    ],
)
def test_targets_by_hand(targets: object, expected: list[str]) -> None:
    found = find_targets(Model(), targets)  # type: ignore[arg-type]
    assert [target.name for target in found] == expected
    assert all(target.dim == 8 for target in found)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("blocks.0.mpl", "Did you mean 'blocks.0.mlp'"),
        ([], "empty"),
        ("(", "no regular expression"),
        (lambda name, module: False, "accepted no module"),
        (["blocks.0", "blocks.0.mlp"], "inside it"),
        ("blocks.0.mlp.1", "no linear layer"),
    ],
)
def test_targets_that_cannot_be(targets: object, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        find_targets(Model(), targets)  # type: ignore[arg-type]


def test_nothing_matched_lists_what_looks_like_an_ffn() -> None:
    mlps = nn.Sequential(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8)), nn.Linear(8, 2))
    with pytest.raises(TargetError, match=r"look like FFNs: 0\. Pass some"):
        find_targets(mlps)
    with pytest.raises(TargetError, match=r"No module looks like one.*predicate"):
        find_targets(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(8, 2)))


def test_channels_first_is_refused() -> None:
    mlp = nn.Sequential(nn.Conv2d(8, 16, 1), nn.GELU(), nn.Conv2d(16, 8, 1))
    model = Model(mlp=mlp)
    with pytest.raises(TargetError, match=r"channels-first.*blocks\.0\.mlp"):
        find_targets(model)
    with pytest.raises(TargetError, match="features come first"):
        inject(model, SMALL, targets="blocks.0.mlp")
    assert not any(isinstance(module, DualBranch) for module in model.modules())


def test_half_an_ffn_cannot_be_parallel() -> None:
    model = Model()
    with pytest.raises(TargetError, match="takes 16 features and gives 8"):
        inject(model, SMALL.replace(placement="parallel"), targets=r"blocks\.\d\.mlp\.2")
    layers = inject(model, SMALL, targets=r"blocks\.\d\.mlp\.2")
    assert list(layers) == ["blocks.0.mlp.2", "blocks.1.mlp.2"]


def test_injecting_twice_is_refused() -> None:
    model = Model()
    inject(model, SMALL)
    with pytest.raises(TargetError, match="eject"):
        inject(model, SMALL)
    inject(eject(model), SMALL)


def test_eject_gives_flags_and_objects_back() -> None:
    model = Model()
    model.blocks[0].eval()
    model.blocks[1].mlp[0].weight.requires_grad_(False)
    parameters = dict(model.named_parameters())
    flags = {name: p.requires_grad for name, p in parameters.items()}
    training = {name: m.training for name, m in model.named_modules()}
    inject(model, SMALL)
    model.requires_grad_(False).eval()
    eject(model)
    after = dict(model.named_parameters())
    assert all(after[name] is parameters[name] for name in parameters)
    assert {name: p.requires_grad for name, p in after.items()} == flags
    assert {name: m.training for name, m in model.named_modules()} == training
    assert eject(model) is model


@pytest.mark.parametrize("placement", ["post", "parallel"])
def test_tied_ffns_stay_tied(placement: str) -> None:
    mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    model = Model(depth=3, mlp=mlp)
    source = model(x())
    layers = inject(model, SMALL.replace(placement=placement))
    assert list(layers) == ["blocks.0.mlp"]
    assert all(block.mlp is layers["blocks.0.mlp"] for block in model.blocks)
    assert torch.equal(model(x()), source)
    eject(model)
    assert all(block.mlp is mlp for block in model.blocks)


@pytest.mark.parametrize("placement", ["post", "parallel"])
def test_an_injected_model_can_be_copied(placement: str) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)).eval()

    model = build()
    source = model(x())
    (layer,) = inject(model, SMALL.replace(placement=placement)).values()
    other = copy.deepcopy(model)
    (copied,) = [m for m in other.modules() if isinstance(m, DualBranch)]
    assert copied.shared is not None
    copied.shared.up.data.normal_(generator=torch.Generator().manual_seed(0))
    assert (other(x()) - source).abs().max() > 1e-3
    torch.testing.assert_close(model(x()), source, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(eject(other)(x()), source, rtol=1e-5, atol=1e-6)
    assert all(not m._forward_pre_hooks for m in other.modules())
    assert layer.entered is None
    assert any(m._forward_pre_hooks for m in model.modules())


def test_layers_answer_for_their_base() -> None:
    linear = nn.Linear(8, 8)
    layer = DualBranch(linear, 8, SMALL)
    assert layer.weight is linear.weight
    assert layer.out_features == 8
    with pytest.raises(AttributeError):
        _ = layer.nothing
