"""Methods that change what the model sees: ADMA's masks, SVDP's and VDP's prompts; and BECoTTA."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn import functional as F

from ostinato import adapt
from ostinato.api import prepare
from ostinato.checks import small_batches, small_model
from ostinato.ops.augment import cotta_view

SIDE, PATCH, BINS = 32, 8, 9


def edges(pixels):
    """Per patch and colour, nine directions' shares of gradient strength, of unit length."""
    image = pixels.double().numpy()
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="reflect")
    at = lambda y, x: padded[:, :, 1 + y : 1 + y + SIDE, 1 + x : 1 + x + SIDE]  # noqa: E731
    across = sum(w * (at(y, -1) - at(y, 1)) for y, w in ((-1, 1), (0, 2), (1, 1)))
    down = sum(w * (at(-1, x) - at(1, x)) for x, w in ((-1, 1), (0, 2), (1, 1)))
    turn = np.floor(np.arctan2(across, down) / math.pi * BINS).astype(int) % BINS
    counts = np.zeros((len(image), (SIDE // PATCH) ** 2, 3, BINS))
    for place in np.ndindex(*across.shape):
        n, colour, y, x = place
        cell = y // PATCH * (SIDE // PATCH) + x // PATCH
        counts[n, cell, colour, turn[place]] += np.hypot(across[place], down[place])
    counts /= np.maximum(np.linalg.norm(counts, axis=-1, keepdims=True), 1e-12)
    return torch.from_numpy(counts).flatten(2)


def last_tokens(rule, weights, pixels, mask=None, token=None):
    """Every token after the final norm; masked patches are one token, before positions."""
    w = {**rule.source, **weights}
    x = rule.tokens(weights, pixels)
    if mask is not None:
        positions = w["pos_embed"][:, 1:]
        x = torch.cat([x[:, :1], torch.where(mask[:, :, None], token + positions, x[:, 1:])], 1)
    for number in range(2):
        x = rule.block(weights, number, x)
    centred = x - x.mean(-1, keepdim=True)
    spread = (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return centred / spread * w["norm.weight"] + w["norm.bias"]


def lively(rule):
    """The tiny model with a final norm that scales: else every token's mean would be the same."""
    model = small_model()
    drawn = torch.Generator().manual_seed(5)
    with torch.no_grad():
        model.norm.weight.copy_(1 + 0.3 * torch.randn(32, generator=drawn))
    rule.source["norm.weight"] = model.norm.weight.detach().double()
    return model


def learning(rule):
    """Weights and biases, without class token and positions."""
    every = rule.every()
    return {n: v for n, v in every.items() if n.endswith(("weight", "bias"))}


def test_adma(rule):
    """Half of the patches, those whose mean value varies most over views, become a mask token;
    cross-entropy with the whole image's prediction, plus half the error of rebuilt gradients.
    """
    method = adapt(lively(rule), "adma", lr=1e-3, views=3, restore=0.0, seed=7)
    draws = rule.draws(7)
    drawn = torch.randn(3 * BINS + 1, 32, generator=draws).double() * 0.02
    weights = learning(rule)
    added = {"token": drawn[0].clone(), "head": drawn[1:].clone(), "bias": torch.zeros(27).double()}
    added = {n: v.requires_grad_() for n, v in added.items()}
    step = rule.adam(1e-3)
    for pixels in small_batches(6)[3:]:  # the noisy ones, whose edges have no ties
        whole = rule.logits(weights, pixels).detach()
        rule.same(method(pixels), whole)
        seen = [last_tokens(rule, weights, cotta_view(pixels, draws)) for _ in range(3)]
        spread = torch.stack(seen)[:, :, 1:].mean(-1).var(0).detach()
        mask = spread >= spread.sort(1).values[:, 8:9]
        tokens = last_tokens(rule, weights, pixels, mask, added["token"])
        guess = rule.classify(weights, tokens[:, 0])
        rebuilt = tokens[:, 1:][mask] @ added["head"].T + added["bias"]
        loss = rule.cross(guess, whole).mean()
        loss = loss + 0.5 * (rebuilt - edges(pixels)[mask]).square().mean()
        moved = step({**weights, **added}, loss)
        weights = {n: moved[n] for n in weights}
        added = {n: moved[n] for n in added}
    alike(method, {**weights, "mask token": added["token"], "hog": added["head"]})


def alike(method, expected):
    """The method's weights are these. A key's bias shifts all scores of a query alike: it has no
    gradient but rounding, which Adam makes as large as any other, so it is left out.
    """
    for name, value in expected.items():
        both = [method.weights.parameters[name].detach().double(), value.detach()]
        if name.endswith("qkv.bias"):
            both = [torch.cat([v[:32], v[64:]]) for v in both]
        torch.testing.assert_close(*both, rtol=2e-3, atol=2e-4)


def prompted(pixels, prompt, place):
    return pixels.double() + prompt * place


def test_svdp(rule):
    """A prompt upon a few pixels, a teacher of the model at a fixed rate and one of the prompt
    that follows the faster the less certain it is; where the source model is sure the teacher's
    label counts, elsewhere that of the image and its mirror image; Adam at two rates.
    """
    settings = {"height": SIDE, "width": SIDE, "sparsity": 0.05, "passes": 3, "restore": 0.0}
    settings |= {"lr": 1e-3, "prompt_lr": 0.05, "ema": 0.9, "prompt_scale": 2.0, "confidence": 0.45}
    method = adapt(small_model(), "svdp", seed=8, **settings)
    draws = rule.draws(8)
    weights, teacher = learning(rule), dict(rule.source)
    prompt = {"prompt": torch.zeros(3, SIDE, SIDE).double().requires_grad_()}
    taught = prompt["prompt"].detach().clone()
    step, lift = rule.adam(1e-3), rule.adam(0.05)
    mixed = set()
    for pixels in small_batches(4):
        seed = int(torch.randint(2**31, (1,), generator=draws))
        local = torch.Generator().manual_seed(seed)
        features = rule.features(teacher, pixels).detach()
        kept = [torch.rand(8, 32, generator=local) >= 0.5 for _ in range(3)]
        passes = [rule.classify(teacher, 2 * features * k).softmax(1) for k in kept]
        unsure = torch.stack(passes).var(0, correction=0).sum(1).mean()
        noise = torch.rand(8, SIDE, SIDE, generator=draws).flatten(1)
        count = round(0.05 * SIDE * SIDE)
        least = noise.sort(1, descending=True).values[:, count - 1 : count]
        place = (noise >= least).double().view(8, 1, SIDE, SIDE)
        single = rule.logits(teacher, prompted(pixels, taught, place)).softmax(1)
        mirror = rule.logits(teacher, prompted(pixels.flip(-1), taught, place)).softmax(1)
        sure = rule.logits({}, pixels).softmax(1).amax(1) > 0.45
        mixed |= set(sure.tolist())
        labels = torch.where(sure[:, None], single, (single + mirror) / 2).detach()
        rule.same(method(pixels), labels.log())
        mine = rule.logits(weights, prompted(pixels, prompt["prompt"], place))
        loss = F.cross_entropy(mine, labels.argmax(1))
        grads = torch.autograd.grad(loss, [*weights.values(), prompt["prompt"]], allow_unused=True)
        still = {n: torch.zeros_like(v) for n, v in weights.items()}
        found = {n: g for n, g in zip(weights, grads, strict=False) if g is not None}
        weights = step.along(weights, {**still, **found})
        prompt = lift.along(prompt, {"prompt": grads[-1]})
        teacher = {**teacher, **rule.follow({n: teacher[n] for n in weights}, weights, 0.9)}
        keep = max(0.0, 0.9 - 2.0 * float(unsure))
        taught = keep * taught + (1 - keep) * prompt["prompt"].detach()
    assert mixed == {True, False}
    alike(method, weights)
    rule.same(method.prompt_teacher.values["prompt"], taught)


def test_vdp(rule):
    """Two squares in opposite corners learn a teacher's predictions of an augmented view; the
    shared one is held where past domains were sensitive: Σ −g·Δ over its squared way.
    """
    settings = {"size": 8, "share": 0.25, "ema": 0.9, "jump": 0.02, "homeostasis": 3.0}
    method = adapt(small_model(), "vdp", lr=0.02, seed=9, **settings)
    draws = rule.draws(9)
    right = bool(torch.randint(2, (1,), generator=draws))
    corners = [(0, 24 if right else 0), (24, 0 if right else 24)]

    def dressed(pixels, squares):
        sides = [
            F.pad(square, (left, 24 - left, top, 24 - top))
            for square, (top, left) in zip(squares.values(), corners, strict=True)
        ]
        return pixels.double() + sides[0] + sides[1]

    empty = torch.zeros(3, 8, 8).double()
    mine = {n: empty.clone().requires_grad_() for n in ("specific", "agnostic")}
    teacher, step = dict.fromkeys(mine, empty), rule.adam(0.02)
    weight, gathered, anchor, sure, ends = empty, empty, empty, None, 0
    for pixels in small_batches(8):
        wanted = rule.logits({}, dressed(pixels, teacher)).detach()
        rule.same(method(pixels), wanted)
        view = rule.logits({}, dressed(cotta_view(pixels, draws), mine))
        pull = (weight * (mine["agnostic"] - anchor).square()).sum()
        loss = rule.cross(view, wanted).mean() + 3.0 * pull
        grad = torch.autograd.grad(loss, list(mine.values()))
        before = mine["agnostic"].detach()
        mine = step.along(mine, dict(zip(mine, grad, strict=True)))
        now = mine["agnostic"].detach()
        gathered = gathered - grad[1] * (now - before)
        teacher = rule.follow(teacher, mine, 0.9)
        confidence = float(wanted.softmax(1).amax(1).mean())
        if sure is not None and sure - confidence > 0.02:
            weight = weight + (gathered / ((now - anchor).square() + 1e-3)).clamp(min=0)
            gathered, anchor, ends = empty, now, ends + 1
        sure = confidence
    assert ends > 0
    rule.same(method.student.specific.detach(), mine["specific"])
    rule.same(method.student.agnostic.detach(), mine["agnostic"])


def experts_after(rule, named, number, x, domains):
    """What the two experts of largest gate add after a block, per image's domain."""
    router, down, up = (named[f"{number}.{part}"] for part in ("router", "down", "up"))
    added = []
    for tokens, domain in zip(x, domains, strict=True):
        gates = router[domain] @ tokens.mean(0)
        best = gates.sort(descending=True).indices[:2]
        share = gates[best].softmax(0)
        added.append(
            sum(s * F.gelu(tokens @ down[e].T) @ up[e].T for s, e in zip(share, best, strict=True))
        )
    return torch.stack(added)


def test_becotta(rule):
    """Experts beside frozen blocks learn hard labels: of the image itself where that is sure, and
    no less than the warmed start is; else of the image and its mirror image.
    """
    images = torch.cat(small_batches(4, seed=3))
    settings = {"experts": 4, "chosen": 2, "rank": 3, "confidence": 0.5, "restore": 0.0}
    given = prepare(small_model(), "becotta", images, warm_steps=20, warm_lr=0.01, **settings)
    method = adapt(small_model(), "becotta", prepared=given, lr=5e-3, seed=1, **settings)
    found = {n: p.detach().double().clone() for n, p in method.trainable().items()}
    names = {n: f"{n.split('blocks')[1][1]}.{n.rsplit('.', 1)[-1]}" for n in found}
    named = {names[n]: v.requires_grad_() for n, v in found.items()}
    start, step = {n: v.detach().clone() for n, v in named.items()}, rule.adam(5e-3)

    def logits(values, pixels, domains):
        x = rule.tokens({}, pixels)
        for number in range(2):
            x = rule.block({}, number, x)
            x = x + experts_after(rule, values, number, x, domains)
        centred = x[:, 0] - x[:, 0].mean(-1, keepdim=True)
        spread = (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        kept = centred / spread * rule.source["norm.weight"] + rule.source["norm.bias"]
        return rule.classify({}, kept)

    mixed = set()
    for pixels in small_batches(4):
        shown = method(pixels)
        domains = method.domains.tolist()  # recognised by style, which has its own tests
        mine = logits(named, pixels, domains)
        single = mine.detach().softmax(1)
        mirror = logits(named, pixels.flip(-1), domains).detach().softmax(1)
        before = logits(start, pixels, domains).softmax(1)
        sure = (single.amax(1) > 0.5) & (single.amax(1) >= before.amax(1) - 1e-9)
        mixed |= set(sure.tolist())
        labels = torch.where(sure[:, None], single, (single + mirror) / 2)
        rule.same(shown, labels.log())
        named = step(named, F.cross_entropy(mine, labels.argmax(1)))
    assert mixed == {True, False}
    for name, value in method.trainable().items():
        torch.testing.assert_close(
            value.detach().double(), named[names[name]].detach(), rtol=2e-3, atol=2e-4
        )
