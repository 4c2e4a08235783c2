"""The method as a whole: exact start, states that continue to the bit, guards, routes, errors."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import ostinato
from ostinato.checks import SIZE, check_method, small_model
from ostinato.errors import ConfigError, InputError, StateError
from ostinato.methods.contract import resolve_config
from ostinato.registry import METHODS

PRESETS = ("paper", "source-free")
LEARNS = {"kappa": 5.0, "lr": 1e-3}
"""Every prediction counts: a small model with random weights is sure of nothing."""


def three_domains(count, size=32, seed=0):
    """Batches that pass through three clearly different looks, two at a time, again and again."""
    generator = torch.Generator().manual_seed(seed)
    looks = (lambda x: 0.7 + 0.3 * x, lambda x: 0.3 * x, lambda x: (x > 0.5).float())
    for index in range(count):
        fine = torch.rand(size, 3, SIZE, SIZE, generator=generator)
        coarse = torch.rand(size, 3, 4, 4, generator=generator)
        smooth = nn.functional.interpolate(coarse, SIZE, mode="bilinear")
        look = (index // 2) % 3
        yield looks[look](fine if look == 2 else smooth).clamp(0, 1)


@pytest.mark.parametrize("preset", PRESETS)
def test_first_prediction_is_the_sources(preset, batches):
    expected = small_model()((batches[0] - 0.5) / 0.5)
    adapted = ostinato.adapt(small_model(), preset=preset)
    assert torch.equal(adapted(batches[0]), expected)
    assert adapted.last.is_new
    assert adapted.last.domain == 0


VARIANTS = [
    {"preset": "paper"},
    {"max_domains": 2, "retire": "merge", "offload": True},
    {"predict": "after", "steps": 2},
    {"discriminator": {"kind": "oracle"}},
]
"""Each at the end of another way through the step; the default preset runs in test_checks.py."""
FURTHER = [
    {"preset": "source-free"},
    {"experts": {"fusion": "input", "placement": "parallel"}},
    {"max_domains": 2, "guard": False},
    {"discriminator": {"descriptor": "cls-feature"}, "max_domains": 3},
    {"discriminator": {"kind": "confidence-jump"}},
    {"discriminator": {"kind": "random"}},
]


@pytest.mark.parametrize(
    "settings",
    [*VARIANTS, *(pytest.param(one, marks=pytest.mark.slow) for one in FURTHER)],
    ids=str,
)
def test_presets_and_variants_conform(settings):
    report = check_method("dual_expert", **LEARNS, **settings)
    assert report.passed, str(report)


def test_defaults_are_source_free_and_paper_has_no_guard():
    kind = METHODS["dual_expert"]
    assert kind.Config() == resolve_config(kind, "source-free", {})
    assert ostinato.adapt(small_model()).config == kind.Config()
    paper = resolve_config(kind, "paper", {})
    assert (paper.guard, paper.lr, paper.discriminator.evidence) == (False, 1e-5, 1)
    assert (paper.max_domains, kind.Config().max_domains, kind.Config().retire) == (
        None, 32, "merge",
    )  # fmt: skip
    assert all(not kind.needs(resolve_config(kind, name, {})) for name in PRESETS)


def test_failed_start_leaves_the_model_untouched():
    model = small_model()
    before = list(model.state_dict())
    with pytest.raises(ConfigError, match="Did you mean 'lr'"):
        ostinato.adapt(model, lrr=1)
    with pytest.raises(ConfigError, match="no preset 'robsut'"):
        ostinato.adapt(model, preset="robsut")
    with pytest.raises(ConfigError, match="retire='merge' needs 2"):
        ostinato.adapt(model, "dual_expert", max_domains=1, retire="merge")
    assert list(model.state_dict()) == before
    assert all(p.requires_grad for p in model.parameters())


def test_adapting_twice_is_refused(model):
    adapted = ostinato.adapt(model)
    with pytest.raises(ConfigError, match="unwrap"):
        ostinato.adapt(adapted)


def test_only_shared_and_selected_experts_move():
    adapted = ostinato.adapt(small_model(), **LEARNS)
    stream = list(three_domains(6))
    for batch in stream:
        adapted(batch)
    assert len(adapted.pool.domains) == 3
    first = [p.detach().clone() for p in adapted.pool.parameters(adapted.pool.domains[0])]
    shared = [p.detach().clone() for p in adapted.pool.parameters("shared")]
    adapted(stream[-1])
    assert adapted.last.domain == adapted.pool.domains[-1]
    same = zip(first, adapted.pool.parameters(adapted.pool.domains[0]), strict=True)
    assert all(torch.equal(a, b) for a, b in same)
    moved = zip(shared, adapted.pool.parameters("shared"), strict=True)
    assert any(not torch.equal(a, b) for a, b in moved)


def test_returning_domains_are_recognised():
    adapted = ostinato.adapt(small_model(), **LEARNS)
    seen = []
    for batch in three_domains(18):
        adapted(batch)
        seen.append(adapted.last.domain)
    assert seen == [0, 0, 1, 1, 2, 2] * 3


def test_save_load_continue_at_every_step(tmp_path):
    stream = list(three_domains(18))
    adapted = ostinato.adapt(small_model(), **LEARNS)
    other = ostinato.adapt(small_model(), **LEARNS)
    path = tmp_path / "state.safetensors"
    for now, then in itertools.pairwise(stream):
        adapted(now)
        adapted.save(path)
        other.load(path)
        before = adapted.export_state().clone()
        assert torch.equal(adapted(then), other(then))
        after, twin = adapted.export_state(), other.export_state()
        assert after.tensors.keys() == twin.tensors.keys()
        assert all(torch.equal(after.tensors[k], twin.tensors[k]) for k in after.tensors)
        assert after.values == twin.values
        adapted.import_state(before)
    assert len(adapted.pool.domains) == 3


def test_loading_a_foreign_state_changes_nothing(tmp_path, batches):
    path = tmp_path / "state.safetensors"
    ostinato.adapt(small_model(), "tent").save(path)
    adapted = ostinato.adapt(small_model(), **LEARNS)
    adapted(batches[0])
    before = adapted.export_state().clone()
    with pytest.raises(StateError, match="another method"):
        adapted.load(path)
    ostinato.adapt(small_model(seed=1), **LEARNS).save(path)
    with pytest.raises(StateError, match="another source model"):
        adapted.load(path)
    ostinato.adapt(small_model(), kappa=5.0, lr=0.5).save(path)
    with pytest.raises(StateError, match=r"lr = 0\.5, here 0\.001"):
        adapted.load(path)
    after = adapted.export_state()
    assert all(torch.equal(v, after.tensors[k]) for k, v in before.tensors.items())


def test_size_change_is_refused_before_anything_changes(batches):
    adapted = ostinato.adapt(small_model())
    adapted(batches[0])
    before = adapted.export_state().clone()
    with pytest.raises(InputError, match="32"):
        adapted(torch.rand(4, 3, 64, 64))
    after = adapted.export_state()
    assert before.values == after.values
    assert all(torch.equal(v, after.tensors[k]) for k, v in before.tensors.items())


def test_wrong_size_at_the_start_leaves_no_domain_behind(batches):
    adapted = ostinato.adapt(small_model())
    with pytest.raises(Exception, match="height"):
        adapted(torch.rand(4, 3, 64, 64))
    assert adapted.pool.domains == ()
    adapted(batches[0])
    assert adapted.last.domain == 0


def test_guard_rolls_a_collapsing_expert_back_and_spares_the_others(batches):
    settings = {"preset": "source-free", "lr": 0.05, "guard_window": 16, "kappa": 10.0}
    wild = ostinato.adapt(small_model(), guard=False, **settings)
    held = ostinato.adapt(small_model(), **settings)
    stream = list(three_domains(120))
    events = []
    for batch in stream:
        wild(batch)
        held(batch)
        events += held.last.events
    assert any("rolled back" in event for event in events)
    source = small_model()

    def classes(method):
        return sum(method(b).argmax(1).unique().numel() for b in stream[:6])

    assert classes(wild) == 6  # one class per batch: collapsed
    assert classes(held) > classes(wild)
    assert ostinato.unwrap(held).state_dict().keys() == source.state_dict().keys()


def test_guard_that_never_fires_changes_no_bit():
    watched, free = (
        ostinato.adapt(small_model(), guard=g, guard_window=32, **LEARNS) for g in (True, False)
    )
    for batch in three_domains(12):
        assert torch.equal(watched(batch), free(batch))
    assert watched.pool.groups["shared"].kept is not None  # it did watch


def verdicts_in_place_of_the_guards(adapted, monkeypatch, verdicts):
    """Let the guard say what a test wants, and count as it does."""

    def observe(group, marginal, images):
        verdict = next(verdicts)
        if verdict == "good":
            adapted.guard._good[group] = adapted.guard.good(group) + 1
        return verdict

    monkeypatch.setattr(adapted.guard, "observe", observe)


def test_every_domain_gets_snapshots_by_its_own_good_batches(monkeypatch):
    """Six batches, two of each of three domains, over and over; every third good one is kept."""
    adapted = ostinato.adapt(small_model(), snapshot_every=3)
    verdicts_in_place_of_the_guards(adapted, monkeypatch, itertools.repeat("good"))
    kept = []
    monkeypatch.setattr(adapted.pool, "snapshot", kept.append)
    for batch in three_domains(24):
        adapted(batch)
    assert {d: kept.count(d) for d in adapted.pool.domains} == {0: 3, 1: 3, 2: 3}
    assert kept.count("shared") == 9
    assert adapted.guard.good(2) == 8


def test_a_strike_neither_slows_nor_erases_the_shared_branch(monkeypatch):
    said = itertools.chain(["good"], itertools.repeat("bad"))
    adapted = ostinato.adapt(small_model(), snapshot_every=1, **LEARNS)
    verdicts_in_place_of_the_guards(adapted, monkeypatch, said)
    pool = adapted.pool
    stream = list(three_domains(4))
    adapted(stream[0])
    good = [p.detach().clone() for p in pool.parameters("shared")]
    assert pool.norm("shared") > 0
    for batch in stream[1:]:  # domain 0 again, then a second domain: all of them go bad
        adapted(batch)
        assert adapted.last.updated
        assert all(torch.equal(a, b) for a, b in zip(good, pool.parameters("shared"), strict=True))
    rate = lambda group: pool.groups[group].optimizer.param_groups[0]["lr"]  # noqa: E731
    assert pool.domains == (0, 1)
    assert rate("shared") == 1e-3
    assert rate(1) == pytest.approx(0.3 * 1e-3)  # the update after its first strike
    assert pool.norm(1) == 0  # without a snapshot a domain starts anew


def test_no_snapshot_is_kept_of_a_domain_that_collapses_again_after_a_strike(monkeypatch):
    """After a strike the yardstick must stay: two diverse batches, then one class alone."""
    adapted = ostinato.adapt(small_model(), snapshot_every=1, guard_window=16, **LEARNS)
    even, one = torch.full((5,), 0.2), torch.tensor([0.96, 0.01, 0.01, 0.01, 0.01])
    said = itertools.chain([even, even], itertools.repeat(one))
    monkeypatch.setattr("ostinato.methods.dual_expert.marginal", lambda logits: next(said))
    kept = []
    monkeypatch.setattr(adapted.pool, "snapshot", kept.append)
    batch = next(iter(three_domains(1)))
    for _ in range(8):
        adapted(batch)
    assert kept == [0, "shared"]  # of the second batch
    assert adapted.guard.strikes(0) >= 2


def test_a_batch_of_several_updates_counts_its_images_once():
    adapted = ostinato.adapt(small_model(), steps=3, **LEARNS)
    for count, batch in enumerate(three_domains(2), 1):
        adapted(batch)
        assert adapted.guard._seen == {0: 32 * count}
        assert adapted.discriminator.count(0) == 32 * count
        assert adapted.last.used == 32


@pytest.mark.parametrize("retire", ["lru", "merge"])
def test_at_the_bound_the_least_used_or_the_younger_of_the_nearest_goes(retire, monkeypatch):
    adapted = ostinato.adapt(small_model(), max_domains=2, retire=retire)
    for batch in three_domains(4):
        adapted(batch)
    assert adapted.pool.domains == (0, 1)
    monkeypatch.setattr(adapted.guard, "forget", (forgotten := []).append)
    adapted(list(three_domains(5))[-1])
    kept = {"lru": (1, 2), "merge": (0, 2)}[retire]
    assert adapted.pool.domains == adapted.discriminator.domains == kept
    assert adapted.last.events == (f"retired domain {forgotten[0]}",)
    assert adapted.discriminator.count(kept[0]) == {"lru": 64, "merge": 128}[retire]


def test_new_styles_without_end_stay_within_the_default_bound():
    # Every batch is a domain of its own.
    strict = {"threshold": 1e-6, "evidence": 1, "correction": False}
    for preset, most in (("source-free", 32), ("paper", 40)):
        adapted = ostinato.adapt(small_model(), "dual_expert", preset=preset, discriminator=strict)
        for batch in three_domains(40, size=4):
            adapted(batch)
        assert len(adapted.pool.domains) == most
        assert adapted.pool.domains == adapted.discriminator.domains


def test_the_summary_states_domains_and_what_they_take():
    adapted = ostinato.adapt(small_model(), **LEARNS)
    for batch in three_domains(9):
        adapted(batch)
    text = adapted.summary()
    assert f"{len(adapted.pool.domains)} of at most 32" in text
    each = adapted.bytes_each()
    assert f"{each / 2**20:.2f} MB for each domain's experts" in text
    assert f"at most {32 * each / 2**20:.1f} MB in all" in text
    group = adapted.pool.groups[0]
    adapted.pool.snapshot(0)
    parts = [group.capture(), group.kept]
    held = sum(t.nbytes for part in parts for n, t in part.tensors.items() if "step" not in n)
    assert held == each  # a group that learned and was kept takes just that
    free = ostinato.adapt(small_model(), "dual_expert", preset="paper").summary()
    assert "without bound as in the paper" in free
    assert "in all" not in free


def test_label_subset_slices_logits_and_entropy(batches):
    adapted = ostinato.adapt(small_model())
    chosen = torch.tensor([3, 1])
    expected = small_model()((batches[0] - 0.5) / 0.5)[:, [3, 1]]
    assert torch.equal(adapted(batches[0], classes=chosen), expected)


def test_cosine_annealing_reaches_zero():
    adapted = ostinato.adapt(small_model(), total_steps=4, **LEARNS)
    rates = []
    for batch in itertools.islice(three_domains(6), 5):
        adapted(batch)
        rates.append(adapted.pool.optimizers()[0].param_groups[0]["lr"])
    assert rates == pytest.approx([1e-3, 8.536e-4, 5e-4, 1.464e-4, 0], rel=1e-3)


def test_summary_of_vit_base():
    import timm

    model = timm.create_model("vit_base_patch16_224", num_classes=1000)
    text = ostinato.adapt(model).summary()
    shares = {line.split("=")[0].split()[0]: line for line in text.splitlines() if "%" in line}
    trained = float(shares["trained"].split("=")[1].split("%")[0])
    domain = float(shares["each"].split("=")[1].split("%")[0])
    assert trained < 2.2
    assert round(domain, 1) == 0.7


@pytest.mark.parametrize("batch_size", [1, 3])
def test_small_batches_stay_finite(batch_size):
    adapted = ostinato.adapt(small_model(), **LEARNS)
    for batch in three_domains(40, size=batch_size):
        assert bool(adapted(batch).isfinite().all())
    assert len(adapted.pool.domains) <= 5


@pytest.mark.slow
def test_ten_thousand_batches_keep_memory_flat():
    import resource

    adapted = ostinato.adapt(small_model(), **LEARNS)
    stream = list(three_domains(60))
    sizes = []
    for index in range(10_000):
        assert bool(adapted(stream[index % 60]).isfinite().all())
        if index in (999, 9_999):
            sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert len(adapted.pool.domains) == 3
    assert sizes[1] - sizes[0] < 20_000  # KiB
