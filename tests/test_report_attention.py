"""Attention maps of experts: the formula, no side effects, and the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ostinato
from ostinato.errors import DataError, InputError
from ostinato.report._attention_figure import draw_attention
from ostinato.report.attention import ExpertAttention, _expert_attention, write_attention


@pytest.fixture
def adapted(model: nn.Module, batches: list[Tensor]) -> ostinato.methods.base.Method:
    method = ostinato.adapt(model, preset="source-free", lr=0.05, discriminator={"evidence": 1})
    for images in batches:
        method(images)
    assert len(method.pool.domains) > 1
    return method


def test_maps_are_cosines_of_each_branch(adapted, batches: list[Tensor]) -> None:
    images = batches[0][:3]
    domain, layer = adapted.pool.domains[0], next(iter(adapted.pool.layers.values()))
    branches = [layer.shared, *(layer.mixture(d) for d in adapted.pool.domains)]
    for place, mixture in enumerate(branches):  # experts with an effect, whatever was learned
        nn.init.normal_(mixture.up, generator=torch.Generator().manual_seed(place))
    maps = _expert_attention(adapted, images, domains=[domain] * 3, layer=0)
    seen: list[Tensor] = []
    handle = layer.base_layer.register_forward_hook(lambda m, i, o: seen.append(o))
    adapted.pool.select(domain)
    with torch.no_grad():
        adapted.model(adapted.model.check(images))
        for place, mixture in enumerate(branches):
            tokens = mixture(seen[0]).double().numpy()
            first, patches = tokens[:, :1], tokens[:, 1:]
            norms = np.linalg.norm(first, axis=-1) * np.linalg.norm(patches, axis=-1)
            expected = (first * patches).sum(-1) / norms
            np.testing.assert_allclose(maps.maps[:, place].reshape(3, -1), expected, atol=1e-4)
    handle.remove()
    assert maps.experts == ("shared", *(f"domain {d}" for d in adapted.pool.domains))
    assert maps.active.tolist() == [1, 1, 1]
    assert maps.maps.shape[2:] == (4, 4)


def test_experts_without_effect_have_empty_maps(adapted, batches: list[Tensor]) -> None:
    layer = list(adapted.pool.layers.values())[-1]
    nn.init.zeros_(layer.shared.up)
    maps = _expert_attention(adapted, batches[0][:2], layer=-1)
    assert not maps.maps[:, maps.experts.index("shared")].any()


@pytest.mark.parametrize("placement", ["post", "parallel"])
def test_looking_changes_nothing(model: nn.Module, batches: list[Tensor], placement: str) -> None:
    method = ostinato.adapt(model, preset="source-free", experts={"placement": placement})
    for images in batches[:3]:
        method(images)
    before, active, used = method.export_state().clone(), method.pool.active, [*method.pool.used]
    _expert_attention(method, batches[0][:2])
    after = method.export_state()
    assert after.values == before.values
    assert all(torch.equal(after.tensors[k], t) for k, t in before.tensors.items())
    assert (method.pool.active, method.pool.used) == (active, used)


def test_the_file_comes_back_and_is_drawn(adapted, batches: list[Tensor], tmp_path: Path) -> None:
    path = write_attention(adapted, batches[0][:2], tmp_path, titles=["fog", "night_rain"])
    assert path == tmp_path / "attention.npz"
    maps = ExpertAttention.load(path)
    figure = draw_attention(maps, "ours")
    values = [row[-1] for row in figure.data.rows]
    np.testing.assert_allclose(values, maps.maps.reshape(-1), atol=6e-4)
    assert figure.svg.count("<image") == 2 * (1 + len(maps.experts))
    assert "night" in figure.svg
    frames = sum(row[3] for row in figure.data.rows)
    assert frames == 2 * 16


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "attention.npz"
    path.write_bytes(b"PK nothing")
    with pytest.raises(DataError, match=r"attention\.npz"):
        ExpertAttention.load(path)
    np.savez(path, images=np.zeros((1, 2, 2, 3), np.uint8))
    with pytest.raises(DataError, match="not one that Ostinato wrote"):
        ExpertAttention.load(path)


def test_wrong_questions_are_refused(adapted, model: nn.Module, batches: list[Tensor]) -> None:
    images = batches[0][:2]
    with pytest.raises(InputError, match="There is no domain 99"):
        _expert_attention(adapted, images, domains=[99, 99])
    with pytest.raises(InputError, match="1 titles do not fit 2 images"):
        _expert_attention(adapted, images, titles=["a"])
    with pytest.raises(InputError, match="there are 2 layers"):
        _expert_attention(adapted, images, layer=7)
    adapted.detach()
    with pytest.raises(InputError, match="has no experts"):
        _expert_attention(ostinato.adapt(model, "source"), images)
    with pytest.raises(InputError, match="No domain was met"):
        _expert_attention(ostinato.adapt(model, preset="source-free"), images)
