"""The project's own method: what it answers, founds, learns, publishes, saves and refuses."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ostinato.api import adapt, collect_statistics
from ostinato.checks import check_method, small_batches, small_model
from ostinato.data.corruptions import corrupt
from ostinato.data.embedded import embedded_images, embedded_model
from ostinato.errors import ConfigError, MissingResource
from ostinato.ops.snapshot import load_state
from ostinato.ops.statistics import SourceStatistics

kit = runpy.run_path(str(Path(__file__).with_name("_ostinato_small.py")))
SETTINGS, build, same_state = kit["SETTINGS"], kit["build"], kit["same_state"]
clean, shifted, clean_statistics = kit["clean"], kit["shifted"], kit["clean_statistics"]

CORRUPTED = 100


@pytest.fixture(scope="module")
def small():
    return clean_statistics()


@pytest.fixture(scope="module")
def tune():
    images, labels, _ = embedded_images("tune")
    return images, labels, collect_statistics(embedded_model(), images[:200])


# The public suite, at rest and at work.


def test_the_suite_passes_without_gradients():
    # With them it runs beside every other method, in test_checks.py.
    report = check_method("ostinato", preset="forward-only")
    assert report.passed, str(report)


def test_that_run_founds_trusts_and_learns(small, trusting):
    method = build(small)
    outputs = [method.step(batch) for batch in small_batches(9)]
    assert any("founded domain 1" in out.events for out in outputs)
    assert any(out.updated for out in outputs)
    assert set(outputs[-1].trust) <= {0.2, 0.4, 0.6}
    assert outputs[-1].domains == (1,) * 8
    still = build(small, learn=False)
    assert not any(still.step(batch).updated for batch in small_batches(9))
    assert still.trained() == 0 < method.trained()


# Real images.


def test_clean_images_are_the_source_s(tune):
    images, _, statistics = tune
    source = embedded_model().eval()
    method = adapt(source, statistics=statistics)
    for part in images[200:400].split(50):
        logits = method(part)
        assert set(method.last.domains) == {0}
        assert set(method.last.trust) == {0.0}
        assert torch.allclose(logits, method.source_logits(method._receive(part, None, None)))
    assert method.router.domains == ()


def test_a_corruption_founds_a_domain_and_does_no_harm(tune):
    images, labels, statistics = tune
    part, truth = images[200 : 200 + CORRUPTED], labels[200 : 200 + CORRUPTED]
    bad = corrupt(part, "pixelate", 5, list(range(CORRUPTED)), constants="cifar")
    method = adapt(embedded_model(), statistics=statistics, preset="forward-only")
    answers, sources, events = [], [], []
    for batch in bad.split(50):
        answers.append(method(batch))
        events += method.last.events
        sources.append(method.source_logits(method._receive(batch, None, None)))
    assert "founded domain 1" in events
    assert method.router.domains == (1,)
    assert set(method.last.domains) == {1}
    assert set(method.last.trust) <= {0.2, 0.4, 0.6}
    wrong, before = (
        int((torch.cat(logits).argmax(1) != truth).sum()) for logits in (answers, sources)
    )
    assert wrong <= before
    with method.frozen():  # what is clean stays the source's
        logits = method.predict(images[300:350], source=True)
    assert torch.allclose(logits, method.last.source_logits, atol=1e-5)


# Answering and learning apart.


def test_predict_changes_nothing_but_the_queue(small, trusting):
    method = build(small)
    for batch in shifted(4):
        method(batch)
    before = method.export_state().clone()
    version = method.version
    first = method.predict(shifted(5)[4])
    assert torch.equal(first, method.predict(shifted(5)[4]))
    assert method.version is version
    assert same_state(before, method.export_state())
    assert len(method.queue) == 2
    with method.frozen():
        assert torch.equal(first, method.predict(shifted(5)[4]))
        assert torch.equal(first, method(shifted(5)[4]))
    assert len(method.queue) == 2
    assert same_state(before, method.export_state())


def test_learning_takes_the_queue_in(small, trusting):
    method = build(small)
    batches = shifted(8)
    for batch in batches[:2]:
        method.predict(batch, source=True)
        assert method.last.domains == (0,) * 8
        assert torch.equal(method.last.logits, method.last.source_logits)
        assert method.last.version == 0
    assert method.learn() is False  # maps alone, so far
    assert method.queue == []
    assert method.router.domains == (1,)
    moved = False
    for batch in batches[2:]:
        method.predict(batch, source=True)
        assert method.last.events == ()
        moved |= method.learn()
    assert moved
    assert method.last.domains == (1,) * 8
    assert min(method.last.trust) > 0
    assert method.last.version > 0
    assert not torch.allclose(method.last.logits, method.last.source_logits, atol=1e-4)
    assert method.learn() is False


def test_the_queue_is_bounded_and_forgotten_by_reset(small):
    method = build(small, buffer=8)
    for _ in range(12):
        method.predict(shifted(1)[0])
    assert len(method.queue) == 8
    method.reset()
    assert method.queue == []
    assert method.learn() is False


@pytest.mark.parametrize("count_in", [True, False])
def test_a_large_batch_is_its_parts_in_turn(small, trusting, count_in):
    images = torch.cat(shifted(4, size=50))
    whole, parts = (
        build(small, micro=50, count_in=count_in),
        build(small, micro=50, count_in=count_in),
    )
    together = whole(images)
    apart, events = [], []
    for part in images.split(50):
        apart.append(parts(part))
        events += parts.last.events
    assert torch.equal(together, torch.cat(apart))
    assert len(whole.last.domains) == len(whole.last.trust) == 200
    assert list(whole.last.events) == events
    assert events.count("founded domain 1") == 1


def test_a_large_batch_of_a_settled_domain_takes_one_forward(small, trusting):
    still, learning = (build(small, micro=50, learn=learn) for learn in (False, True))
    passed = {still: [], learning: []}
    for method, sizes in passed.items():
        for part in shifted(5, size=50):
            method(part)
        assert method.bank.domains[1].lasts(method.config.enough)
        method.model.base.register_forward_hook(lambda *now, to=sizes: to.append(len(now[2])))
        method(torch.cat(shifted(2, size=50, seed=1)))
        assert len(method.last.domains) == 100
    assert passed == {still: [100], learning: [50, 50]}  # an update rests on 50 images


def test_once_maps_are_there_the_rest_of_a_large_batch_takes_one_forward(small, trusting):
    method = build(small, micro=50, enough=20, learn=False)
    passed = []
    method.model.base.register_forward_hook(lambda *now: passed.append(len(now[2])))
    method(torch.cat(shifted(4, size=50)))
    # One image tells the model's sizes; the first fifty make maps, and are answered by doing so.
    assert passed == [1, 50, 50, 150]
    assert set(method.last.domains) == {1}


def test_images_of_another_size_are_kept_in_the_size_of_the_others(small, trusting):
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    net = VisionTransformer(
        *(32, 8), embed_dim=32, depth=2, num_heads=2, num_classes=5, dynamic_img_size=True
    )
    net.pretrained_cfg = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    statistics = collect_statistics(net, torch.cat(clean(3, size=40)))
    method = adapt(net, statistics=statistics, **SETTINGS)
    generator = torch.Generator().manual_seed(0)
    for size in (32, 48, 32, 48, 48, 48, 48):
        logits = method(0.5 * torch.rand(8, 3, size, size, generator=generator))
        assert bool(logits.isfinite().all())
    kept = method.export_state().tensors["bank/latest"]
    assert kept.shape == (56, 3, 48, 48)


def test_buffers_may_reach_farther_back_than_routing(small):
    method = build(small, buffer=64)
    method.router.memory = 24
    for batch in clean(5) + shifted(3):
        method(batch)
    assert method.router.domains == (1,)
    assert len(method.bank.domains[1].recent) <= 24


# Files.


def test_saved_files_leave_images_out_unless_asked(small, trusting, tmp_path):
    method = build(small)
    for batch in shifted(6):
        method(batch)
    sizes = {}
    for buffers in (False, True):
        path = tmp_path / f"{buffers}.safetensors"
        method.save(path, buffers=buffers)
        state, _ = load_state(path)
        sizes[buffers] = path.stat().st_size
        kept = [
            k for k in state.tensors if k.startswith("bank/") and k.endswith(("recent", "latest"))
        ]
        assert bool(kept) == buffers
        fresh = build(small)
        fresh.load(path)
        assert torch.equal(fresh.predict(shifted(7)[6]), method.predict(shifted(7)[6]))
        fresh.queue.clear()
        for batch in shifted(12, seed=2):
            assert bool(fresh(batch).isfinite().all())
    assert sizes[False] < sizes[True]


def test_going_on_from_a_file_with_images_is_the_same_to_the_bit(small, trusting, tmp_path):
    method = build(small)
    for batch in shifted(6):
        method(batch)
    method.save(tmp_path / "s", buffers=True)
    fresh = build(small)
    fresh.load(tmp_path / "s")
    assert fresh.bank.domains[1].variety == method.bank.domains[1].variety > 0
    for batch in small_batches(9, seed=3):
        assert torch.equal(method(batch), fresh(batch))
    assert same_state(method.export_state(), fresh.export_state())


def test_statistics_of_another_model_are_refused(small):
    with pytest.raises(ConfigError, match="of another model"):
        adapt(small_model(seed=1), statistics=small)
    net = small_model(seed=1)
    assert all(not module._forward_hooks for module in net.modules())


def test_statistics_of_version_0_1_load_and_are_refused_with_advice(tmp_path, small):
    tensors = {f"mean.{i}": t for i, t in enumerate(small.means)}
    tensors |= {f"std.{i}": t for i, t in enumerate(small.stds)}
    path = tmp_path / "old.safetensors"
    save_file(tensors, path, metadata={"format": "ostinato-statistics", "info": '{"images": 120}'})
    old = SourceStatistics.load(path)
    assert old.images == 120
    assert old.tokens == ()
    assert old.content is None
    net = small_model()
    with pytest.raises(MissingResource, match=r"0\.1.*collect_statistics\(model, clean_images\)"):
        adapt(net, statistics=path)
    assert all(p.requires_grad for p in net.parameters())
    adapt(net, statistics=small)  # nothing of the refused one is left on the model


# What it takes.


def test_the_summary_bounds_what_experts_take(small, trusting):
    method = build(small, max_domains=3)
    for batch in shifted(14):
        method(batch)
    assert method.bank.shared.updates  # it learned, so that nothing below is nought
    groups = [method.bank.shared, *(one.branches for one in method.bank.domains.values())]
    rows = method.publisher.stack.now
    tensors = [rows.matrices, rows.vectors]
    for group in [one for one in groups if one is not None]:
        tensors += [group.value, group.first, group.second, group.published()[0].down]
    maps = [one for domain in method.bank.domains.values() for one in domain.maps]
    tensors += [tensor for one in maps for tensor in one.tensors()]
    own, learned = sum(t.numel() for one in maps for t in one.tensors()), method.trained()
    assert method.added(count := len(method.bank.domains)) == own + (count + 2) * learned // 3
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    assert method.added() * 4 < sum(held.values()) <= method.bytes_held()
    assert f"at most {method.bytes_held() / 2**20:.0f} MB of experts" in method.summary()
