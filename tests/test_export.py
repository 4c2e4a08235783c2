"""Out of Ostinato: modules, torch.export, ONNX and the Hub, each checked against the live model."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import onnxruntime
import pytest
import torch
import transformers

import ostinato
from ostinato.errors import ConfigError, MissingResource, StateError
from ostinato.exporting import input_maps
from ostinato.hub import save_pretrained
from ostinato.methods.ostinato._answers import tempered
from ostinato.ops.features import FeatureTaps

kit = runpy.run_path(str(Path(__file__).with_name("_backbones.py")))
images = kit["images"]


def _met(family, preset):
    case = kit["Case"](family)
    return case._met(case._adapted(preset=preset))


def _live(adapted, batch, domains):
    placed = adapted.publisher.placed(adapted.version)
    received = adapted._receive(batch, None, None)
    logits = adapted._forward(received, placed, placed.index(domains))
    return tempered(logits, domains, adapted.version.temperatures)


def _trusted(adapted):
    return [number for number, share in adapted.version.shares.items() if share > 0]


def _domains(adapted, family):
    """The source's and all trusted ones; where the test is to be quick, one of them."""
    trusted = _trusted(adapted)
    return [0, *(trusted[-1:] if family == QUICK else trusted)]


QUICK = "timm vit"
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("timm efficientnet", "timm swin")]


@pytest.mark.parametrize("family", [QUICK, SLOW[0]])
def test_every_domain_as_a_torch_program(family):
    adapted = _met(family, "robust")
    batch = images(5, 7, 2)
    assert len(_trusted(adapted)) > 1
    for domain in _domains(adapted, family):
        program = ostinato.export(adapted, domain=domain, to="torch", example=batch[:3])
        got = program.module()(batch)
        torch.testing.assert_close(got, _live(adapted, batch, [domain] * 5), atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", [QUICK, *SLOW])
def test_every_domain_in_onnx_runtime(family, tmp_path):
    adapted = _met(family, "robust")
    batch = images(5, 7, 2)
    for domain in _domains(adapted, family):
        path = tmp_path / f"{domain}.onnx"
        ostinato.export(adapted, domain=domain, to="onnx", example=batch[:3], path=path)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        got = session.run(None, {session.get_inputs()[0].name: batch.numpy()})[0]
        live = _live(adapted, batch, [domain] * 5).numpy()
        np.testing.assert_allclose(got, live, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["timm vit", "timm efficientnet"])
def test_maps_as_inputs_serve_any_mix_and_give_the_sums(family):
    adapted = _met(family, "forward-only")
    module = ostinato.export(adapted, domain="maps")
    maps, rows = input_maps(adapted)
    domains = [0, *_trusted(adapted)[:2], 0]
    batch = images(len(domains), 7, 2)
    index = torch.tensor([rows[domain] for domain in domains])
    logits, sums = module(batch, maps, index)
    torch.testing.assert_close(logits, _live(adapted, batch, domains), atol=1e-4, rtol=0)
    source = adapted.statistics.tokens[0]
    count, first, second = sums[0]
    assert first.shape == (len(maps[0][0]), source.mean.numel())
    assert second.shape[1:] == source.covariance.shape
    assert int(count[0]) == 2 * int(count[rows[domains[1]]])
    adapted.predict(batch[:1], source=True)
    taps = FeatureTaps(adapted.model.base)
    with taps, torch.no_grad():
        adapted.model(batch[:1])
    _, alone = module(batch[:1], maps, torch.tensor([0]))
    if not taps.class_token:  # the source's tokens are those of the model itself
        torch.testing.assert_close(alone[0][1][0] / alone[0][0][0], taps.features[0][0])


@pytest.mark.slow
def test_maps_as_inputs_leave_as_programs_too(tmp_path):
    adapted = _met("timm vit", "forward-only")
    maps, rows = input_maps(adapted)
    domains = [0, *_trusted(adapted)[:2], 0, 0]
    batch, index = images(5, 7, 2), torch.tensor([rows[domain] for domain in domains])
    live = _live(adapted, batch, domains)
    _, sums = ostinato.export(adapted, domain="maps")(batch, maps, index)
    settings = {"domain": "maps", "example": batch[:3]}
    program = ostinato.export(adapted, to="torch", **settings)
    torch.testing.assert_close(program.module()(batch, maps, index)[0], live, atol=1e-4, rtol=0)
    ostinato.export(adapted, to="onnx", path=tmp_path / "maps.onnx", **settings)
    session = onnxruntime.InferenceSession(str(tmp_path / "maps.onnx"))
    flat, _ = torch.utils._pytree.tree_flatten((batch, maps, index))
    names = [one.name for one in session.get_inputs()]
    found = session.run(None, {n: t.numpy() for n, t in zip(names, flat, strict=True)})
    np.testing.assert_allclose(found[0], live.numpy(), atol=1e-4, rtol=0)
    for one, other in zip(found[1:4], sums[0], strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-3, atol=1e-3)


def test_what_cannot_be_exported_says_why(tmp_path):
    adapted = _met("timm efficientnet", "robust")
    with pytest.raises(StateError, match="no domain 99: there are 0"):
        ostinato.export(adapted, domain=99)
    with pytest.raises(ConfigError, match="forward-only"):
        ostinato.export(adapted, domain="maps")
    with pytest.raises(ConfigError, match="example="):
        ostinato.export(adapted, to="torch")
    with pytest.raises(ConfigError, match="path="):
        ostinato.export(adapted, to="onnx", example=images(2))
    with pytest.raises(ConfigError, match="leave domain out"):
        ostinato.export(ostinato.adapt(kit["build"]("timm vit"), "tent"), domain=1)
    with mock.patch("ostinato.exporting._CLOSE", -1.0), pytest.raises(StateError, match="off the"):
        ostinato.export(adapted, to="torch", example=images(2))


class Stand:
    """A Hub that is a folder."""

    def __init__(self, place: Path) -> None:
        self.place, self.private = place, None

    def create_repo(self, repo: str, *, private: bool, exist_ok: bool) -> str:
        self.private = private
        return f"hub/{repo}"

    def upload_folder(self, *, repo_id: str, folder_path: str) -> None:
        shutil.copytree(folder_path, self.place / repo_id)

    def snapshot_download(self, *, repo_id: str) -> str:
        return str(self.place / repo_id)


def test_a_pool_of_experts_goes_to_the_hub_and_back(tmp_path):
    adapted = _met("timm efficientnet", "robust")
    hub = Stand(tmp_path)
    assert (
        ostinato.push_to_hub(adapted, "me/pool", base="test_efficientnet", api=hub) == "hub/me/pool"
    )
    assert hub.private
    card = (tmp_path / "me/pool/README.md").read_text()
    assert "base_model: test_efficientnet" in card
    assert adapted.fingerprint in card
    again = ostinato.from_pretrained(kit["build"]("timm efficientnet"), "me/pool", api=hub)
    batch = images(6, 7, 2)
    with adapted.frozen(), again.frozen():
        assert torch.equal(adapted(batch), again(batch))
    with pytest.raises(StateError, match="another base model"):
        ostinato.from_pretrained(kit["build"]("timm vit"), tmp_path / "me/pool")
    with pytest.raises(MissingResource, match="holds nothing"):
        ostinato.from_pretrained(kit["build"]("timm vit"), tmp_path)


class Away:
    """A Hub that nobody reaches."""

    def __getattr__(self, name: str):
        raise ConnectionError("no route")


def test_a_hub_that_does_not_answer_says_what_else_works(tmp_path):
    adapted = _met("timm efficientnet", "robust")
    with pytest.raises(MissingResource, match=r"no route.*keep it in a folder"):
        ostinato.push_to_hub(adapted, "me/pool", api=Away())
    with pytest.raises(MissingResource, match=r"no route.*pass a folder"):
        ostinato.from_pretrained(kit["build"]("timm efficientnet"), "me/pool", api=Away())


def test_blocks_that_were_named_are_named_again_for_a_shared_state(tmp_path):
    model, blocks = kit["build"]("timm vit"), ["blocks.1"]
    statistics = ostinato.collect_statistics(model, images(60), blocks=blocks)
    adapted = ostinato.adapt(model, statistics=statistics, blocks=blocks)
    save_pretrained(adapted, tmp_path)
    again = ostinato.from_pretrained(kit["build"]("timm vit"), tmp_path, blocks=blocks)
    assert again.hooks.blocks == 1
    assert torch.equal(again(images(4)), adapted(images(4)))


def _comparing(kind):
    """A small model that compares images with texts."""
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    small |= {"intermediate_size": 64}
    vision = small | {"image_size": kit["SIZE"], "patch_size": 8}
    text = small | {"vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 1}
    more = {"projection_dim": 16} if kind == "CLIP" else {}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision, **more)
    return getattr(transformers, f"{kind}Model")(config).eval()


def _tokenizer(texts, **_):
    rows = [[1, *(3 + ord(c) % 90 for c in one[-6:]), 2] for one in texts]
    return {"input_ids": torch.tensor(rows)}


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_models_that_compare_with_texts_classify_and_are_adapted(kind):
    clip, names = _comparing(kind), ["cat", "dog", "owl"]
    model = ostinato.zero_shot(clip, names, tokenizer=_tokenizer).eval()
    processor = getattr(transformers, f"{kind}ImageProcessor")()  # whose values are known
    mean, std = (
        torch.tensor(value).view(3, 1, 1) for value in (processor.image_mean, processor.image_std)
    )
    tokens = _tokenizer([f"a photo of a {name}." for name in names])
    pixels = images(4)
    with torch.no_grad():
        whole = clip(pixel_values=(pixels - mean) / std, **tokens).logits_per_image
    adapted = ostinato.adapt(model, statistics=ostinato.collect_statistics(model, images(60)))
    torch.testing.assert_close(adapted(pixels), whole, atol=1e-3, rtol=1e-3)
    with pytest.raises(ConfigError, match="list with one text"):
        ostinato.zero_shot(clip, "cat", tokenizer=_tokenizer)
    with pytest.raises(ConfigError, match="make them with the same model"):
        ostinato.zero_shot(clip, torch.ones(2, 7))(pixels)
    with pytest.raises(ConfigError, match="zero_shot"):
        ostinato.adapt(clip)
    with pytest.raises(ConfigError, match="has no get_image_features"):
        ostinato.zero_shot(torch.nn.Linear(2, 2), torch.ones(2, 3))(pixels)
