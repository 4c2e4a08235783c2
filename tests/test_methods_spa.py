"""SPA: its first step by hand, the noise's ascent, and the spectrum of the weak view."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ostinato import adapt
from ostinato.checks import small_batches, small_model
from ostinato.methods.spa._weakened import PatchNoise, drop_low_frequencies, surer_divergence
from ostinato.models import VisionModel


def divergence(weak, clean):
    """Row by row, in the paper's words: KL(clean ‖ weak) where max p(clean) > max p(weak)."""
    rows = []
    for w, c in zip(weak, clean.detach(), strict=True):
        p, q = c.softmax(0), w.softmax(0)
        if float(p.max()) > float(q.detach().max()):
            rows.append((p * (p / q).log()).sum())
    return torch.stack(rows).mean()


def test_first_step_against_autograd():
    batch = small_batches(1)[0]
    method = adapt(small_model(), "spa", momentum=0.0)
    net = small_model()
    vision = VisionModel(net)
    draws = torch.Generator().manual_seed(0)
    low = drop_low_frequencies(batch, 0.2, draws)
    field = torch.randn(3, 32, 32, generator=draws)
    alpha = torch.full((4, 4), math.sqrt(0.4), requires_grad=True)
    amount = (alpha**2)[:, None, :, None].expand(4, 8, 4, 8).reshape(32, 32)
    noisy = (((1 - amount) * (2 * batch - 1) + amount * field).clamp(-1, 1) + 1) / 2
    predictor = torch.eye(32, requires_grad=True)

    def weak(pixels):
        z = net.forward_features(vision.prepare(pixels))[:, 0]
        return net.head(z @ predictor.T)

    clean = vision(batch)
    loss = divergence(weak(low), clean) + divergence(weak(noisy), clean)
    norms = {n: p for n, p in net.named_parameters() if "norm" in n}
    slopes = torch.autograd.grad(loss, [*norms.values(), predictor, alpha])
    out = method.step(batch)
    assert out.loss == pytest.approx(float(loss.detach()), rel=1e-4)
    for (name, parameter), slope in zip(norms.items(), slopes, strict=False):
        moved = method.weights.parameters[name].detach() - parameter.detach()
        torch.testing.assert_close(moved, -0.01 * slope, atol=1e-5, rtol=1e-2)
    moved = method.predictor.detach() - torch.eye(32)
    torch.testing.assert_close(moved, -0.05 * slopes[-2], atol=1e-5, rtol=1e-2)
    wanted = alpha.detach() + slopes[-1]
    wanted = (wanted * torch.sqrt(0.4 / wanted.square().mean())).clamp(-1, 1)
    torch.testing.assert_close(method.noise.alpha, wanted, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("size", [(8, 8), (9, 12)])
def test_only_low_amplitudes_go_and_images_stay_real(size):
    generator = torch.Generator().manual_seed(3)
    pixels = torch.rand(2, 3, *size, generator=generator)
    out = drop_low_frequencies(pixels, 0.5, torch.Generator().manual_seed(0), side=0.5)
    before = np.fft.fftshift(np.fft.fft2(2 * pixels.double().numpy() - 1), axes=(2, 3))
    after = np.fft.fftshift(np.fft.fft2(2 * out.double().numpy() - 1), axes=(2, 3))
    share = np.abs(after) / np.abs(before)
    kept = np.isclose(share, 1, atol=1e-3)
    assert bool((kept | np.isclose(share, 0, atol=1e-3)).all())
    assert not kept.all()
    rows, columns = size[0] // 2, size[1] // 2
    reach = [int(0.5 * edge) // 2 + 1 for edge in size]
    row, column = np.indices(size)
    outside = (np.abs(row - rows) > reach[0]) | (np.abs(column - columns) > reach[1])
    assert bool(kept[..., outside].all())


def test_noise_keeps_its_mean_and_goes_where_the_loss_rises():
    noise = PatchNoise((4, 4), mean=0.3, lr=1e-3)
    pixels = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    view = noise.view(pixels, torch.Generator().manual_seed(1))
    view[..., :4, :4].sub(pixels[..., :4, :4]).square().sum().backward()
    noise.ascend()
    assert float(noise.alpha.square().mean()) == pytest.approx(0.3, abs=1e-5)
    assert int(noise.alpha.flatten().argmax()) == 0


def test_unsure_clean_images_teach_nothing():
    sure, unsure = torch.tensor([[4.0, 0.0]]), torch.tensor([[0.5, 0.0]])
    loss, used = surer_divergence(sure, unsure)
    assert float(loss) == 0
    assert int(used) == 0
