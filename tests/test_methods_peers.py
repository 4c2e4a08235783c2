"""What the peers share: label subsets, bf16 over a stream, segmentation, presets, live settings."""

from __future__ import annotations

import pytest
import torch

from ostinato import adapt
from ostinato.api import prepare
from ostinato.checks import check_method, small_batches, small_model
from ostinato.methods.contract import resolve_config
from ostinato.registry import METHODS

PEERS = (
    "pseudo_label",
    "cotta",
    "rmt",
    "eata",
    "sar",
    "deyo",
    "roid",
    "rotta",
    "rdumb",
    "lame",
)
# Settings under which small models of five classes really adapt: filters open, rates high.
LIVELY = {
    "pseudo_label": {"threshold": 0.3, "lr": 1e-2},
    "cotta": {"threshold": 1.0, "views": 2, "restore": 0.1, "lr": 1e-2},
    "rmt": {"prototypes": "source", "lr": 1e-2},
    "eata": {"kappa": 0.95, "redundancy": 0.9, "lr": 1e-2},
    "sar": {"kappa": 0.95, "lr": 1e-2},
    "deyo": {"kappa": 1.0, "plpd": 0.0, "lr": 1e-2},
    "roid": {"lr": 1e-2},
    "rotta": {"every": 8, "capacity": 8, "lr": 1e-2},
    "rdumb": {"kappa": 0.95, "redundancy": 0.9, "lr": 1e-2, "reset_every": 4},
    "lame": {"neighbours": 2},
}


def build(name, **settings):
    config = resolve_config(METHODS[name], None, settings)
    prepared = None
    if "prepared file" in METHODS[name].needs(config):
        prepared = prepare(small_model(), name, torch.cat(small_batches(4, seed=9)))
    return adapt(small_model(), name, prepared=prepared, **settings)


@pytest.mark.slow  # every method's own settings are checked in test_checks.py, and move it
@pytest.mark.parametrize("name", sorted(set(PEERS) - {"lame", "rmt", "roid"}))
def test_peers_conform_while_they_really_adapt(name):
    # Those left out adapt under their defaults too, where every method is checked anyway.
    report = check_method(name, **LIVELY[name])
    assert report.passed, str(report)


@pytest.mark.parametrize("name", PEERS)
def test_label_subsets_and_changes_of_label_space(name):
    method = build(name, **LIVELY[name])
    classes = torch.tensor([4, 1, 2])
    for index, batch in enumerate(small_batches(6)):
        given = method(batch, classes=classes if index % 2 else None)
        assert given.shape == (8, 3 if index % 2 else 5)
        assert bool(given.isfinite().all())
    if name != "lame":
        assert any(
            not torch.equal(p, method.weights.source[n])
            for n, p in method.weights.parameters.items()
        )


@pytest.mark.parametrize("name", ["cotta", "rmt", "sar", "roid", "rotta", "eata", "deyo"])
def test_bf16_adapts_and_keeps_weights_in_fp32(name):
    method = build(name, precision="bf16", **LIVELY[name])
    updates = [method.step(batch) for batch in small_batches(4)]
    assert any(out.updated for out in updates)
    assert all(out.logits.dtype == torch.float32 for out in updates)
    assert all(p.dtype == torch.float32 for p in method.weights.parameters.values())


@pytest.mark.parametrize("name", PEERS)
def test_presets_and_declarations(name):
    kind = METHODS[name]
    assert "imagenet-c" in kind.presets
    for preset in kind.presets:
        resolve_config(kind, preset, {})
    default = kind.Config().model_dump()
    authors = resolve_config(kind, "imagenet-c", {}).model_dump()
    assert default == authors  # the defaults are the ImageNet-C column
    assert kind.info.paper != "-"
    assert kind.info.differences
    assert kind.name == name


def segformer():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(0)
    config = SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
        num_labels=6,
    )
    return SegformerForSemanticSegmentation(config)


@pytest.mark.parametrize("name", ["tent", "pseudo_label", "cotta"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_segmentation_with_a_single_image(name, precision):
    settings = {"threshold": 0.0} if name == "pseudo_label" else {}
    method = adapt(segformer(), name, preset="acdc", precision=precision, **settings)
    for batch in small_batches(2, size=1):
        out = method.step(torch.nn.functional.interpolate(batch, (48, 64)))
        assert out.logits.shape[:2] == (1, 6)
        assert out.updated
        assert bool(out.logits.isfinite().all())
    moved = [
        n
        for n, p in method.weights.parameters.items()
        if not torch.equal(p, method.weights.source[n])
    ]
    assert len(moved) > 0.5 * len(method.weights.parameters)
