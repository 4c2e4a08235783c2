"""What users are used to: precisions, places, loaders, Hugging Face's calls, copies."""

from __future__ import annotations

import copy
import pickle
import runpy
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import ostinato
from ostinato.errors import ConfigError, InputError

kit = runpy.run_path(str(Path(__file__).with_name("_backbones.py")))
images, build = kit["images"], kit["build"]


def _adapted(model, **more):
    statistics = ostinato.collect_statistics(model, images(60))
    return ostinato.adapt(model, statistics=statistics, enough=8, micro=8, **more)


@pytest.mark.parametrize("kind", [torch.float16, torch.float64])
@pytest.mark.parametrize("family", ["timm vit", "timm efficientnet"])
def test_models_of_any_precision(family, kind):
    adapted = _adapted(build(family).to(kind))
    for seed in range(3):
        answers = adapted(images(12, seed, 2))
        assert answers.dtype == torch.float32
        assert answers.isfinite().all()
    assert adapted.bank.domains
    assert adapted.dtype == kind


def test_half_precision_agrees_with_single():
    model = build("timm vit")
    single, half = (_adapted(copy.deepcopy(model).to(k)) for k in (torch.float32, torch.bfloat16))
    found = [(single(images(20, s, 2)), half(images(20, s, 2))) for s in range(3)]
    same = torch.cat([(a.argmax(1) == b.argmax(1)).float() for a, b in found])
    assert float(same.mean()) >= 0.9  # random weights: many answers are near ties


def test_our_method_moves_with_its_model_and_peers_say_how():
    adapted = _adapted(build("timm efficientnet"))
    adapted(images(12, 1, 2))
    with adapted.frozen():
        before = adapted(images(6, 2, 2))
        adapted.double()
        torch.testing.assert_close(adapted(images(6, 2, 2)), before, atol=1e-4, rtol=1e-4)
    adapted.to(memory_format=torch.channels_last)
    assert adapted(images(6, 3, 2).to(memory_format=torch.channels_last)).shape == (6, 5)
    peer = ostinato.adapt(build("timm vit"), "tent")
    peer.to("cpu")
    with pytest.raises(ConfigError, match="unwrap the model, move it, and adapt it again"):
        peer.half()


@pytest.mark.parametrize("channels", [1, 5])
def test_any_number_of_channels(channels):
    model = timm.create_model("test_efficientnet", num_classes=5, in_chans=channels).eval()
    pictures = images(60)[:, :1].expand(-1, channels, -1, -1)
    adapted = ostinato.adapt(model, statistics=ostinato.collect_statistics(model, pictures))
    assert adapted(pictures[:4]).shape == (4, 5)
    with pytest.raises(InputError, match=f"takes {channels} channels"):
        adapted(images(4))


def test_statistics_from_loaders_iterators_and_data_sets():
    model, pictures = build("timm efficientnet"), images(20)
    pairs = TensorDataset(pictures, torch.zeros(20))
    whole = ostinato.collect_statistics(model, pictures, batch_size=5)
    forms = (DataLoader(pairs, batch_size=5), pairs, iter(pictures.split(5)), [{"image": pictures}])
    for form in forms:
        found = ostinato.collect_statistics(model, form, batch_size=5)
        torch.testing.assert_close(found.means[0], whole.means[0], atol=1e-5, rtol=1e-5)
    pictures = [(Image.new("RGB", (8, 8)), 0)]
    with pytest.raises(InputError, match=r"not Image\. Pictures become tensors by a transform"):
        ostinato.collect_statistics(model, pictures)
    with pytest.raises(InputError, match="not int"):
        ostinato.collect_statistics(model, [3])
    with pytest.raises(InputError, match="No images among label"):
        ostinato.collect_statistics(model, [{"label": 3}])


def test_progress_is_shown_where_asked_for(capsys):
    ostinato.collect_statistics(build("timm efficientnet"), images(20), progress=True)
    assert "source statistics" in capsys.readouterr().out


def test_hugging_face_calls_and_pipelines():
    transformers = pytest.importorskip("transformers")
    model = build("HF vit")
    model.config.id2label = {number: f"class {number}" for number in range(5)}
    size = {"height": kit["SIZE"], "width": kit["SIZE"]}
    processor = transformers.ViTImageProcessor(size=size)
    levels = (images(30).permute(0, 2, 3, 1).numpy() * 255).astype(np.uint8)
    pictures = [Image.fromarray(one) for one in levels]
    given = processor(pictures, return_tensors="pt")
    statistics = ostinato.collect_statistics(model, [given])
    expected = model(**given).logits[:4]
    adapted = ostinato.adapt(model, statistics=statistics)
    answer = adapted(**processor(pictures[:4], return_tensors="pt"))
    torch.testing.assert_close(answer.logits, expected, atol=1e-4, rtol=1e-4)
    assert answer[0] is answer["logits"]
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    pipe = transformers.pipeline("image-classification", model=adapted, image_processor=processor)
    best = pipe(pictures[0])[0]
    assert best["label"] == f"class {int(expected[0].argmax())}"
    assert adapted.config.lr == 2e-3  # its own settings are there as before


def test_what_processors_give_is_taken_or_refused_with_what_to_do():
    transformers = pytest.importorskip("transformers")
    adapted = ostinato.adapt(build("HF mask2former"), "source")
    size = {"height": kit["SIZE"], "width": kit["SIZE"]}
    processor = transformers.Mask2FormerImageProcessor(size=size)
    pictures = [Image.new("RGB", (40, 30), (n, 90, 9)) for n in range(3)]
    given = processor(pictures, return_tensors="pt")
    assert set(given) == {"pixel_values", "pixel_mask"}
    assert adapted(**given).logits.shape[:2] == (3, kit["CLASSES"])
    padded = given["pixel_mask"].clone()
    padded[0, -1] = 0
    with pytest.raises(InputError, match="resize them instead of padding"):
        adapted(pixel_values=given["pixel_values"], pixel_mask=padded)
    with pytest.raises(InputError, match=r"as adapted\(\*\*processor"):
        adapted(given)
    with pytest.raises(InputError, match='not ndarray: ask the processor for return_tensors="pt"'):
        adapted(pixel_values=given["pixel_values"].numpy())


def test_a_pipeline_segments_with_it():
    transformers = pytest.importorskip("transformers")
    processor = transformers.SegformerImageProcessor(size={"height": 32, "width": 32})
    adapted = _adapted(build("HF segformer"))
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    pipe = transformers.pipeline("image-segmentation", model=adapted, image_processor=processor)
    found = pipe(Image.new("RGB", (40, 30)))
    assert sum(np.asarray(one["mask"]).astype(bool).sum() for one in found) == 40 * 30


def test_copies_go_on_alike():
    adapted = _adapted(build("timm efficientnet"))
    adapted(images(12, 1, 2))
    twins = (copy.deepcopy(adapted), pickle.loads(pickle.dumps(adapted)))
    expected = adapted(images(12, 2, 2))
    assert all(torch.equal(twin(images(12, 2, 2)), expected) for twin in twins)


class Holder(torch.nn.Module):
    """What Lightning and others make of a model: a part of a module that predicts loaders."""

    def __init__(self, adapted):
        super().__init__()
        self.adapted = adapted

    def predict_step(self, batch):
        return self.adapted(batch[0]).argmax(1)


@pytest.mark.parametrize("method", [None, "tent"])
def test_a_module_that_holds_it_predicts_loaders_and_switches_modes(method):
    model = build("timm efficientnet")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    adapted = _adapted(model) if method is None else ostinato.adapt(model, method)
    holder, shown = Holder(adapted).train(), images(36, 1, 2)
    twin = copy.deepcopy(adapted)
    with torch.inference_mode():
        found = [holder.predict_step(b) for b in DataLoader(TensorDataset(shown), batch_size=12)]
    assert torch.equal(torch.cat(found), torch.cat([twin(b).argmax(1) for b in shown.split(12)]))
    assert adapted.last.updated or adapted.bank.domains
    assert not any(module.training for module in model.modules())
    back = ostinato.unwrap(adapted)
    assert all(torch.equal(value, before[name]) for name, value in back.state_dict().items())


@pytest.mark.parametrize("preset", ["robust", "forward-only"])
def test_sizes_that_change_within_a_domain_make_maps_and_learn(preset):
    """Batches of three in two sizes by turns: fewer of one size than maps are made from."""
    adapted, sizes = _adapted(build("timm efficientnet"), preset=preset), (32, 48)
    twin = copy.deepcopy(adapted)
    with mock.patch("ostinato.methods.ostinato.maps.doubt", return_value=-1.0):
        for step in range(12):
            batch = F.interpolate(images(3, step, 2), size=sizes[step % 2])
            answers = adapted(batch)
            assert answers.shape == (3, 5)
            if not step:
                assert torch.equal(answers, twin(batch))
    domains = adapted.bank.domains.values()
    assert any(domain.share > 0 for domain in domains)
    assert any(len({one.shape for one in domain.recent}) == 1 for domain in domains)
    again = pickle.loads(pickle.dumps(adapted))
    with adapted.frozen(), again.frozen():
        for size in sizes:
            batch = F.interpolate(images(4, 50, 2), size=size)
            assert torch.equal(adapted(batch), again(batch))
            adapted.predict(batch, source=True)
            assert not torch.equal(adapted.last.logits, adapted.last.source_logits)


def test_the_papers_experts_take_sizes_that_change():
    adapted = ostinato.adapt(build("timm efficientnet"), preset="paper", lr=0.1, kappa=2.0)
    for step, size in enumerate((32, 48, 40, 32)):
        batch = F.interpolate(images(8, step, 2), size=size)
        assert adapted(batch).isfinite().all()
    assert adapted.last.updated
