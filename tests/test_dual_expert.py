"""The method as a whole: exact start, states that continue to the bit, guards, routes, errors."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import ostinato
from ostinato.checks import SIZE, check_method, small_model
from ostinato.errors import ConfigError, InputError, MissingResource, StateError

PRESETS = ("paper", "robust", "source-free")


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
def test_first_prediction_is_the_sources(preset, statistics, batches):
    expected = small_model()((batches[0] - 0.5) / 0.5)
    given = statistics if preset == "robust" else None
    adapted = ostinato.adapt(small_model(), preset=preset, statistics=given)
    assert torch.equal(adapted(batches[0]), expected)
    assert adapted.last.is_new
    assert adapted.last.domain == 0


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_conforms(preset):
    report = check_method("dual_expert", preset=preset)
    assert report.passed, str(report)


@pytest.mark.parametrize(
    "settings",
    [
        {"experts": {"fusion": "input", "placement": "parallel"}},
        {"discriminator": {"route": "sample"}, "max_domains": 2, "guard": False},
        {"max_domains": 2, "retire": "merge", "offload": True},
        {"predict": "after", "steps": 2},
        {"discriminator": {"descriptor": "cls-feature"}, "max_domains": 3},
        {"discriminator": {"kind": "confidence-jump"}},
        {"discriminator": {"kind": "random"}},
        {"discriminator": {"kind": "oracle"}},
    ],
    ids=str,
)
def test_variants_conform(settings):
    report = check_method("dual_expert", preset="robust", **settings)
    assert report.passed, str(report)


def test_defaults_follow_the_help_given(statistics):
    assert ostinato.adapt(small_model()).config.alignment == 0
    assert ostinato.adapt(small_model(), statistics=statistics).config.alignment == 1
    with pytest.raises(MissingResource, match="collect_statistics"):
        ostinato.adapt(small_model(), preset="robust")


def test_failed_start_leaves_the_model_untouched():
    model = small_model()
    before = list(model.state_dict())
    with pytest.raises(ConfigError, match="Did you mean 'lr'"):
        ostinato.adapt(model, lrr=1)
    with pytest.raises(ConfigError, match="no preset 'robsut'"):
        ostinato.adapt(model, preset="robsut")
    other = ostinato.collect_statistics(small_model(), torch.rand(4, 3, SIZE, SIZE))
    shorter = type(other)(other.means[:1], other.stds[:1], other.images)
    with pytest.raises(ConfigError, match="another model"):
        ostinato.adapt(model, statistics=shorter)
    assert list(model.state_dict()) == before
    assert all(p.requires_grad for p in model.parameters())


def test_adapting_twice_is_refused(model):
    adapted = ostinato.adapt(model)
    with pytest.raises(ConfigError, match="unwrap"):
        ostinato.adapt(adapted)


def test_only_shared_and_selected_experts_move(statistics):
    adapted = ostinato.adapt(small_model(), statistics=statistics)
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


def test_returning_domains_are_recognised(statistics):
    adapted = ostinato.adapt(small_model(), statistics=statistics)
    seen = []
    for batch in three_domains(18):
        adapted(batch)
        seen.append(adapted.last.domain)
    assert seen == [0, 0, 1, 1, 2, 2] * 3


def test_save_load_continue_at_every_one_of_50_steps(statistics, tmp_path):
    stream = list(three_domains(51))
    adapted = ostinato.adapt(small_model(), statistics=statistics)
    other = ostinato.adapt(small_model(), statistics=statistics)
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


def test_loading_a_foreign_state_changes_nothing(statistics, tmp_path, batches):
    path = tmp_path / "state.safetensors"
    ostinato.adapt(small_model(), "tent").save(path)
    adapted = ostinato.adapt(small_model(), statistics=statistics)
    adapted(batches[0])
    before = adapted.export_state().clone()
    with pytest.raises(StateError, match="another method"):
        adapted.load(path)
    ostinato.adapt(small_model(seed=1), statistics=statistics).save(path)
    with pytest.raises(StateError, match="another source model"):
        adapted.load(path)
    ostinato.adapt(small_model(), statistics=statistics, lr=0.5).save(path)
    with pytest.raises(StateError, match=r"lr = 0\.5, here 0\.002"):
        adapted.load(path)
    after = adapted.export_state()
    assert all(torch.equal(v, after.tensors[k]) for k, v in before.tensors.items())


def test_size_change_is_refused_before_anything_changes(statistics, batches):
    adapted = ostinato.adapt(small_model(), statistics=statistics)
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


def test_guard_that_never_fires_changes_no_bit(statistics, batches):
    outputs = [
        [ostinato.adapt(small_model(), statistics=statistics, guard=guard)(b) for b in batches]
        for guard in (True, False)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


def test_experts_learn_less_as_they_settle(statistics):
    """Each at its own pace: the shared branch has had every update, a new domain none."""
    adapted = ostinato.adapt(small_model(), statistics=statistics, lr=0.01, settle=2)
    for batch in three_domains(3):
        adapted(batch)
    rate = lambda group: adapted.pool.groups[group].optimizer.param_groups[0]["lr"]  # noqa: E731
    assert adapted.pool.domains == (0, 1)
    assert rate("shared") == pytest.approx(0.01 / (1 + 2 / 2))  # its third update
    assert rate(0) == pytest.approx(0.01 / (1 + 1 / 2))
    assert rate(1) == 0.01
    adapted.reset()
    adapted(next(three_domains(1)))
    assert rate("shared") == 0.01


def test_a_bound_below_the_domains_of_one_batch(statistics):
    """Each image still has experts: those of a domain that had to go are the most usual one's."""
    adapted = ostinato.adapt(
        small_model(),
        statistics=statistics,
        max_domains=1,
        discriminator={"route": "sample", "separation": 0.1},
    )
    stream = list(three_domains(6))
    mixed = torch.cat([stream[0][:16], stream[2][:16], stream[4][:16]])
    for _ in range(4):
        assert adapted(mixed).isfinite().all()
    assert len(adapted.pool.domains) == 1


def test_label_subset_slices_logits_and_entropy(batches):
    adapted = ostinato.adapt(small_model())
    chosen = torch.tensor([3, 1])
    expected = small_model()((batches[0] - 0.5) / 0.5)[:, [3, 1]]
    assert torch.equal(adapted(batches[0], classes=chosen), expected)


def test_cosine_annealing_reaches_zero(statistics):
    adapted = ostinato.adapt(
        small_model(), statistics=statistics, total_steps=4, lr=1e-3, settle=None
    )
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
def test_small_batches_stay_finite(statistics, batch_size):
    adapted = ostinato.adapt(small_model(), statistics=statistics)
    for batch in three_domains(40, size=batch_size):
        assert bool(adapted(batch).isfinite().all())
    assert len(adapted.pool.domains) <= 5


@pytest.mark.slow
def test_ten_thousand_batches_keep_memory_flat(statistics):
    import resource

    adapted = ostinato.adapt(small_model(), statistics=statistics)
    stream = list(three_domains(60))
    sizes = []
    for index in range(10_000):
        assert bool(adapted(stream[index % 60]).isfinite().all())
        if index in (999, 9_999):
            sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert len(adapted.pool.domains) == 3
    assert sizes[1] - sizes[0] < 20_000  # KiB
