"""Masking: class attention, kept and blanked tokens, REM's and ADMA's rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ostinato.api import adapt
from ostinato.checks import small_batches, small_model
from ostinato.errors import TargetError
from ostinato.methods._masking import ClassAttention, blanked, kept, least_attended, most_uncertain
from ostinato.methods.adma import _uncertainty
from ostinato.methods.adma._hog import oriented_gradients, patch_targets
from ostinato.methods.rem import _entropy_ranking, mask_consistency
from ostinato.models import logits_of
from ostinato.ops.features import prefix_tokens
from ostinato.ops.prompts import inserted
from ostinato.ops.tokens import entering, final_tokens, find_patches, leaving


def torchvision_vit() -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=5).eval()
    nn.init.normal_(model.heads.head.weight)  # torchvision starts it at zero
    return model


def hugging_face_vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        attn_implementation="eager",
    )
    return ViTForImageClassification(config).eval()


MODELS = [small_model, torchvision_vit, hugging_face_vit]


def softmax(values: np.ndarray) -> np.ndarray:
    raised = np.exp(values - values.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def test_class_attention_is_the_attention_timm_computes_unfused() -> None:
    model, images = small_model(), small_batches(1)[0]
    attention = model.blocks[-1].attn
    attention.fused_attn = False
    seen: list[Tensor] = []
    handle = attention.attn_drop.register_forward_hook(lambda m, i, o: seen.append(o))
    with torch.no_grad():
        model(images)
        handle.remove()
        attention.fused_attn = True
        taps = ClassAttention(model)
        with taps:
            model(images)
    assert taps.scores is not None
    torch.testing.assert_close(taps.scores, seen[0].mean(1)[:, 0, 1:])


def test_class_attention_is_the_one_hugging_face_returns() -> None:
    model, images = hugging_face_vit(), small_batches(1)[0]
    taps = ClassAttention(model)
    with torch.no_grad(), taps:
        output = model(images, output_attentions=True)
    torch.testing.assert_close(taps.scores, output.attentions[-1].mean(1)[:, 0, 1:])


def test_class_attention_is_the_one_torch_returns() -> None:
    model, images = torchvision_vit(), small_batches(1)[0]
    attention = model.encoder.layers[-1].self_attention
    seen: list[Tensor] = []
    handle = attention.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    taps = ClassAttention(model)
    with torch.no_grad(), taps:
        model(images)
    handle.remove()
    with torch.no_grad():
        _, weights = attention(*[seen[0]] * 3, need_weights=True)
    torch.testing.assert_close(taps.scores, weights[:, 0, 1:], rtol=1e-4, atol=1e-6)


def test_a_model_without_class_token_is_refused() -> None:
    from timm.models.vision_transformer import VisionTransformer

    pooled = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, class_token=False,
        global_pool="avg",
    )  # fmt: skip
    with pytest.raises(TargetError, match="class token"):
        ClassAttention(pooled)


@pytest.mark.parametrize("build", MODELS)
def test_kept_tokens_are_the_only_ones_that_enter(build: object) -> None:
    model = build()  # type: ignore[operator]
    images = small_batches(1, size=2)[0]
    whole: list[Tensor] = []
    part: list[Tensor] = []
    positions = torch.tensor([[3, 0, 7], [1, 2, 15]])

    def spy(store: list[Tensor]) -> object:
        return lambda tokens: store.append(tokens) or tokens

    with torch.no_grad():
        with entering(model, spy(whole)):  # type: ignore[arg-type]
            model(images)
        with kept(model, positions), entering(model, spy(part)):  # type: ignore[arg-type]
            model(images)
    assert prefix_tokens(model) == 1
    for image in range(2):
        expected = whole[0][image][[0, *(1 + positions[image]).tolist()]]
        assert torch.equal(part[0][image], expected)


@pytest.mark.parametrize("build", MODELS)
def test_prompts_stand_after_the_class_token_and_leave_after_the_last_block(build: object) -> None:
    model = build()  # type: ignore[operator]
    images = small_batches(1, size=2)[0]
    prompt = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    before: list[Tensor] = []
    after: list[Tensor] = []
    with torch.no_grad():
        plain = logits_of(model(images))
        with (
            inserted(model, prompt),
            entering(model, lambda t: before.append(t) or t),
            leaving(model, lambda t: after.append(t) or t),
        ):
            prompted = logits_of(model(images))
        again = logits_of(model(images))
    assert torch.equal(before[0][1, 1:4], prompt)
    assert before[0].shape[1] == 1 + 3 + 16
    assert after[0].shape[1] == 1 + 16
    assert not torch.allclose(plain, prompted)
    assert torch.equal(plain, again)  # nothing stays behind


def test_blanking_is_replacing_patch_embeddings_before_positions() -> None:
    model, images = small_model(), small_batches(1, size=2)[0]
    mask = torch.zeros(2, 16, dtype=torch.bool)
    mask[0, [2, 9]] = mask[1, 15] = True
    token = torch.randn(32)
    seen: list[Tensor] = []
    with torch.no_grad():
        with blanked(model, mask, token), entering(model, lambda t: seen.append(t) or t):
            model(images)
        patches = model.patch_embed(images)
        patches[mask] = token
        expected = model._pos_embed(patches)
    torch.testing.assert_close(seen[0], expected)
    assert not model.patch_embed.proj._forward_hooks  # nothing stays behind


def test_final_tokens_are_those_the_head_reads() -> None:
    model, images = small_model(), small_batches(1)[0]
    with torch.no_grad(), final_tokens(model) as tokens, leaving(model, lambda t: t):
        model(images)
    torch.testing.assert_close(tokens[0], model.forward_features(images))


def test_masks_take_the_most_attended_and_the_most_uncertain() -> None:
    scores = torch.rand(3, 20, generator=torch.Generator().manual_seed(0))
    for ratio, count in ((0.1, 18), (0.2, 16)):
        stays = least_attended(scores, ratio)
        assert stays.shape == (3, count)
        for row, places in zip(scores, stays, strict=True):
            gone = row[[p for p in range(20) if p not in places.tolist()]]
            assert row[places].max() < gone.min()
    hidden = most_uncertain(scores, 0.5)
    assert hidden.sum(1).tolist() == [10, 10, 10]
    assert (scores * hidden).amax(1).eq(scores.amax(1)).all()


def test_rem_losses_against_numpy() -> None:
    rng = np.random.default_rng(0)
    logits = [rng.normal(size=(6, 4)) for _ in range(3)]
    p = [softmax(z) for z in logits]
    entropy = [-(q * np.log(q)).sum(1) for q in p]
    consistency = sum(
        -(p[i] * np.log(p[j])).sum(1).mean() for j in range(3) for i in range(3) if i < j
    )
    margin = 0.1
    ranking = sum(
        np.maximum(entropy[i] - entropy[j] + margin, 0).mean() for i, j in ((0, 1), (0, 2), (1, 2))
    )
    views = [torch.tensor(z) for z in logits]
    assert float(mask_consistency(views)) == pytest.approx(consistency, rel=1e-5)
    assert float(_entropy_ranking(views, margin)) == pytest.approx(ranking, rel=1e-5)


def test_rem_moves_harder_views_towards_easier_ones_only() -> None:
    views = [torch.randn(4, 3, requires_grad=True) for _ in range(2)]
    easy, hard = torch.autograd.grad(mask_consistency(views), views, allow_unused=True)
    assert easy is None
    assert float(hard.abs().sum()) > 0
    easy, hard = torch.autograd.grad(_entropy_ranking(views, margin=10.0), views, allow_unused=True)
    assert hard is None
    assert float(easy.abs().sum()) > 0


def test_rem_masks_in_order_and_spares_the_last_blocks() -> None:
    method = adapt(small_model(), "rem", skip=1)
    method.predict(small_batches(1)[0])  # a first size is tried out beforehand
    counts: list[int] = []
    with leaving(method.model.base, lambda t: counts.append(t.shape[1]) or t):
        method(small_batches(1)[0])
    assert counts == [1 + 16, 1 + int(16 * 0.9), 1 + int(16 * 0.8)]
    names = method.weights.parameters  # type: ignore[union-attr]
    assert all(name.startswith("blocks.0.") for name in names)
    assert len(names) == 4


def naive_hog(image: np.ndarray, bins: int, cell: int) -> np.ndarray:
    """One channel, pixel by pixel."""
    padded = np.pad(image, 1, mode="reflect")
    height, width = image.shape
    cells = np.zeros((bins, height // cell, width // cell))
    for y in range(height // cell * cell):
        for x in range(width // cell * cell):
            window = padded[y : y + 3, x : x + 3]
            smooth = np.array([1.0, 2.0, 1.0])
            across = smooth @ (window[:, 0] - window[:, 2])
            down = smooth @ (window[0] - window[2])
            angle = math.atan2(across, down) % math.pi
            index = min(int(angle / math.pi * bins), bins - 1)
            cells[index, y // cell, x // cell] += math.hypot(across, down)
    return cells / np.maximum(np.linalg.norm(cells, axis=0), 1e-12)


def test_hog_against_a_pixel_by_pixel_count() -> None:
    pixels = torch.rand(1, 3, 16, 24, generator=torch.Generator().manual_seed(3)).double()
    found = oriented_gradients(pixels, bins=9, cell=8)[0].numpy()
    for channel in range(3):
        expected = naive_hog(pixels[0, channel].numpy(), 9, 8)
        np.testing.assert_allclose(found[channel], expected, atol=2e-5)


def test_patch_targets_lie_under_their_patches() -> None:
    pixels = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    targets = patch_targets(pixels, patch=16, bins=9, cell=8)
    assert targets.shape == (2, 4, 3 * 9 * 4)
    cells = oriented_gradients(pixels, 9, 8)  # (2, 3, 9, 4, 4)
    expected = cells[1, :, :, 0:2, 2:4].flatten()  # the patch at the top right
    assert torch.equal(targets[1, 1], expected)


def test_uncertainty_is_the_variance_of_token_means() -> None:
    views = torch.randn(5, 2, 3, 4, generator=torch.Generator().manual_seed(0))
    expected = np.var(views.numpy().mean(-1), axis=0, ddof=1)
    np.testing.assert_allclose(_uncertainty(views).numpy(), expected, rtol=1e-5)


def test_adma_predicts_with_the_whole_image_and_restores() -> None:
    images = small_batches(1)[0]
    method = adapt(small_model(), "adma", lr=0.0, restore=0.0)
    source = adapt(small_model(), "source")(images)
    assert torch.equal(method(images), source)
    full = adapt(small_model(), "adma", lr=1e-3, restore=1.0)
    full(images)
    clean = small_model().state_dict()
    for name, value in full.model.base.state_dict().items():
        assert torch.equal(value, clean[name])
    assert not torch.equal(full.head, adapt(small_model(), "adma").head)  # heads learn on


def test_targets_are_the_same_under_autocast() -> None:
    pixels = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    with torch.autocast("cpu", torch.bfloat16):
        rounded = patch_targets(pixels, patch=8)
    assert torch.equal(rounded, patch_targets(pixels, patch=8))


def test_only_a_convolution_of_pixels_is_a_patch_embedding() -> None:
    reduction = nn.Sequential(nn.Conv2d(3, 8, 7, stride=4), nn.Conv2d(8, 8, 4, stride=4))
    with pytest.raises(TargetError, match="no patch embedding"):
        find_patches(reduction)


def hybrid_vit(proj: bool) -> nn.Module:
    """A tiny ViT behind two convolutions, with or without a projection after them."""
    from functools import partial

    from timm.layers import HybridEmbed
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.GELU(), nn.Conv2d(16, 32, 3, 2, 1))
    embed = partial(HybridEmbed, backbone=stem, proj=proj)
    return VisionTransformer(
        img_size=32, patch_size=2 if proj else 1, num_classes=5, embed_dim=32, depth=2,
        num_heads=2, embed_layer=embed,
    ).eval()  # fmt: skip


@pytest.mark.parametrize(("proj", "side"), [(False, 4), (True, 8)])
def test_behind_a_stem_the_masked_tokens_alone_are_the_mask_token(proj: bool, side: int) -> None:
    model, images = hybrid_vit(proj), small_batches(1, size=2)[0]
    found = find_patches(model)
    assert found.size == (side, side)
    count = (32 // side) ** 2
    mask = torch.arange(2 * count).view(2, count) % 3 == 0
    token = torch.randn(32)
    seen: list[Tensor] = []
    with torch.no_grad():
        plain = model.patch_embed(images)
        with blanked(model, mask, token), entering(model, lambda t: seen.append(t) or t):
            model(images)
    expected = torch.where(mask[..., None], token, plain) + model.pos_embed[:, 1:]
    torch.testing.assert_close(seen[0][:, 1:], expected)
    assert not found.module._forward_hooks


@pytest.mark.parametrize("proj", [False, True])
def test_adma_rebuilds_the_edges_of_what_was_masked_behind_a_stem(proj: bool) -> None:
    method = adapt(hybrid_vit(proj), "adma", views=2, normalize="none", lr=1e-2)
    side = 8 if proj else 4
    assert method.head.shape == (3 * 9 * (side // side) ** 2, 32)  # a cell of the patch's size
    images = small_batches(1)[0]
    start = {name: p.detach().clone() for name, p in method.trainable().items()}
    losses = []
    for _ in range(3):
        method(images)
        losses.append(method.last.loss)
    assert all(math.isfinite(loss) for loss in losses)
    moved = {n for n, p in method.trainable().items() if not torch.equal(p, start[n])}
    assert {"mask token", "hog", "hog bias", "head.weight"} <= moved
