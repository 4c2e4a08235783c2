"""Methods that learn tokens beside the image's: DPCore and KFF."""

from __future__ import annotations

import torch

from ostinato import adapt
from ostinato.api import prepare
from ostinato.checks import small_batches, small_model

BOUND = (6 / (3 * 8 * 8 + 32)) ** 0.5
"""Fresh prompts are uniform within it: patches of 8 by 8 pixels in three colours, width 32."""


def anchors(rule, kappa=None):
    """Mean and spread of the source's features, and the prepared state that holds them."""
    images = torch.cat(small_batches(4, seed=9))
    settings = {} if kappa is None else {"source_kappa": kappa}
    given = prepare(small_model(), "dpcore" if kappa else "kff", images, **settings)
    features = rule.features({}, images)
    if kappa is not None:
        bound = kappa * torch.tensor(5.0).double().log()
        keep = rule.entropy(rule.classify({}, features)) < bound
        assert 1 < int(keep.sum()) < len(images)
        features = features[keep]
    return moments(features), given


def moments(features):
    return features.mean(0), features.std(0)


def gap(one, other):
    return (one[0] - other[0]).norm() + (one[1] - other[1]).norm()


def beside(prompt):
    """Puts prompt tokens, (P, D) or (B, P, D), behind the class token."""
    return lambda x: torch.cat([x[:, :1], prompt.expand(len(x), -1, -1), x[:, 1:]], 1)


def test_dpcore(rule):
    """A batch is known where the coreset's prompts, blended by softmax(−gap / τ), leave less
    than ρ of its gap to the source; then one AdamW step and all pairs follow by their weight,
    else many steps from the start and a new pair, stored whatever it is worth.
    """
    source, given = anchors(rule, kappa=0.87)
    settings = {"lr": 0.02, "new_steps": 6, "ratio": 0.9, "temperature": 0.5}
    method = adapt(small_model(), "dpcore", prepared=given, **settings)
    start = method.start.double()
    coreset, kinds = [], []
    for pixels in small_batches(8):
        plain = moments(rule.features({}, pixels))
        prompt, share = start, 1.0
        if coreset:
            apart = torch.stack([gap(plain, pair) for pair in coreset])
            w = (-apart / 0.5).softmax(0)
            blend = sum(share * pair[2] for share, pair in zip(w, coreset, strict=True))
            after = moments(rule.features({}, pixels, beside(blend)))
            share = float(gap(after, source) / gap(plain, source))
        kinds.append(share >= 0.9)
        prompt = start if kinds[-1] else blend
        named, step = {"prompt": prompt.clone().requires_grad_()}, rule.adam(0.02, decay=0.01)
        for _ in range(6 if kinds[-1] else 1):
            features = rule.features({}, pixels, beside(named["prompt"]))
            logits = rule.classify({}, features)
            named = step(named, gap(moments(features), source))
        out = method.step(pixels)
        assert out.is_new == kinds[-1]
        rule.same(out.logits, logits)
        learned = (*plain, named["prompt"].detach())
        if kinds[-1]:
            coreset.append(learned)
        else:
            coreset = [
                tuple(
                    old + 0.999 * share * (new - old)
                    for old, new in zip(pair, learned, strict=True)
                )
                for share, pair in zip(w, coreset, strict=True)
            ]
    assert set(kinds) == {True, False}
    keys, prompts = method.coreset.both()
    rule.same(keys, torch.stack([torch.cat(pair[:2]) for pair in coreset]))
    rule.same(prompts, torch.stack([pair[2] for pair in coreset]))


def class_start(rule, known, p, draws):
    """Each image's class prompt: a blend by softmax(cosine / τ), or a fresh one."""
    fresh = BOUND * (2 * torch.rand(len(p), 1, 32, generator=draws).double() - 1)
    prompts, shares = [], []
    for image, new in zip(p, fresh, strict=True):
        alike = [(image @ key) / (image.norm() * key.norm()) for key, _ in known]
        raised = [float(a.exp()) if a > 0.97 else 0.0 for a in alike]
        share = [r / sum(raised) for r in raised] if any(raised) else []
        mixed = sum(s * prompt for s, (_, prompt) in zip(share, known, strict=False))
        prompts.append(mixed if share else new)
        shares.append(share)
    return torch.stack(prompts), shares


def test_kff(rule):
    """Domain prompts within a radius are blended by softmax(−distance / τ), class prompts by
    cosine; gap plus 3 · entropy moves the domain prompt at each step and class prompts at the
    last; pools follow by their weights, and only images of low entropy leave a class prompt.
    """
    source, given = anchors(rule)
    settings = {"lr": 0.02, "class_lr": 0.01, "new_steps": 4, "domain_radius": 2.0}
    settings |= {"class_similarity": 0.97, "max_entropy": 1.3, "domain_temperature": 0.5}
    method = adapt(small_model(), "kff", prepared=given, seed=2, **settings)
    draws = rule.draws(2)
    start = BOUND * (2 * torch.rand(8, 32, generator=draws).double() - 1)
    domains, classes, news, kept = [], [], [], 0
    for pixels in small_batches(7):
        features = rule.features({}, pixels)
        key = torch.cat(moments(features))
        apart = torch.tensor([float((key - k).norm()) for k, _ in domains])
        w = torch.where(apart <= 2.0, (-apart / 0.5).exp(), 0.0).double()
        news.append(not bool(w.any()))
        w = w / w.sum()
        prompt = start if news[-1] else sum(s * p for s, (_, p) in zip(w, domains, strict=True))
        p = rule.classify({}, features).softmax(1)
        each, shares = class_start(rule, classes, p, draws)
        mine = {"prompt": prompt.detach().clone().requires_grad_()}
        own = {"each": each.detach().clone().requires_grad_()}
        step, last = rule.adam(0.02, decay=0.01), rule.adam(0.01, decay=0.01)
        count = 4 if news[-1] else 1
        for number in range(count):
            tokens = torch.cat([mine["prompt"].expand(8, -1, -1), own["each"]], 1)
            features = rule.features({}, pixels, beside(tokens))
            logits = rule.classify({}, features)
            loss = gap(moments(features), source) + 3 * rule.entropy(logits).mean()
            grads = torch.autograd.grad(loss, [mine["prompt"], own["each"]])
            mine = step.along(mine, {"prompt": grads[0]})
            if number == count - 1:
                own = last.along(own, {"each": grads[1]})
        out = method.step(pixels)
        assert out.is_new == news[-1]
        rule.same(out.logits, logits)
        learned = mine["prompt"].detach()
        if news[-1]:
            domains.append((key, learned))
        else:
            domains = [
                (k + 0.1 * s * (key - k), v + s * (learned - v))
                for s, (k, v) in zip(w, domains, strict=True)
            ]
        sure = (rule.entropy(logits) <= 1.3).tolist()
        rows = zip(logits.detach().softmax(1), own["each"].detach(), shares, sure, strict=True)
        rows = [row[:3] for row in rows if row[3]]
        kept += len(rows)
        for image, learned, share in rows:
            for n, s in enumerate(share):
                k, v = classes[n]
                classes[n] = (k + 0.1 * s * (image - k), v + s * (learned - v))
        classes += [(image, learned) for image, learned, share in rows if not share]
    assert set(news) == {True, False}
    assert 0 < kept < 56
    for pool, expected in ((method.domains, domains), (method.classes, classes)):
        keys, prompts = pool.both()
        assert len(keys) == len(expected) > 1
        rule.same(keys, torch.stack([k for k, _ in expected]))
        rule.same(prompts, torch.stack([v.reshape(prompts[0].shape) for _, v in expected]))
