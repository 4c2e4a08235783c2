from __future__ import annotations

import numpy as np
import pytest

from ostinato.errors import ConfigError, DataError
from ostinato.scoring import _bootstrap
from ostinato.scoring.compare import compare
from ostinato.scoring.record import Record
from ostinato.scoring.summary import summarise


def run(hits: np.ndarray, prefix: str = "k", size: int = 25) -> list[Record]:
    """Records of hits[round, domain, image]."""
    records = []
    for number, by_domain in enumerate(hits):
        for domain, row in enumerate(by_domain):
            for start in range(0, len(row), size):
                part = row[start : start + size]
                records.append(
                    Record(
                        run="r",
                        index=len(records),
                        round=number,
                        domain=f"d{domain}",
                        images=len(part),
                        correct=int(part.sum()),
                        counted=len(part),
                        keys=tuple(f"{prefix}{start + i}" for i in range(len(part))),
                        hits="".join("1" if hit else "0" for hit in part),
                    )
                )
    return records


def coins(share: float, shape: tuple[int, int, int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(shape) < share


def test_the_interval_matches_the_normal_approximation() -> None:
    a, b = coins(0.5, (1, 1, 800), 0), coins(0.6, (1, 1, 800), 1)
    (result,) = compare({"a": run(a), "b": run(b)}, resamples=4000)
    gap = 100.0 * (a.ravel().astype(float) - b.ravel())  # error of b − error of a
    overall = result.overall
    assert overall.difference.estimate == pytest.approx(gap.mean())
    half = 1.96 * gap.std() / np.sqrt(800)
    assert overall.difference.low == pytest.approx(gap.mean() - half, abs=0.06 * half)
    assert overall.difference.high == pytest.approx(gap.mean() + half, abs=0.06 * half)
    assert overall.images == 800
    assert result.verdict == "better"
    assert overall.p_value < 0.01


def test_pairing_cancels_what_is_common() -> None:
    a = coins(0.5, (1, 1, 400), 0)
    b = a.copy()
    b[0, 0, :8] = ~b[0, 0, :8]
    (result,) = compare({"a": run(a), "b": run(b)}, resamples=1000)
    overall = result.overall
    width = overall.difference.high - overall.difference.low
    assert width < 0.4 * (overall.other.high - overall.other.low)


def test_answers_about_one_image_are_drawn_together() -> None:
    one = coins(0.5, (1, 1, 200), 0)
    many = np.repeat(one, 10, axis=1)  # ten domains that ask the same of the same images
    other = np.ones_like(many)
    (clustered,) = compare({"a": run(many), "b": run(other)}, resamples=2000)
    (single,) = compare({"a": run(one), "b": run(np.ones_like(one))}, resamples=2000)
    assert clustered.overall.difference.low == pytest.approx(single.overall.difference.low)
    assert clustered.overall.difference.high == pytest.approx(single.overall.difference.high)


def test_parts_and_whole_agree_with_the_summary() -> None:
    a, b = run(coins(0.5, (2, 3, 60), 0)), run(coins(0.55, (2, 3, 60), 1))
    (result,) = compare({"a": a, "b": b}, resamples=200)
    for records, pick in ((a, "baseline"), (b, "other")):
        summary = summarise(records)
        assert getattr(result.overall, pick).estimate == pytest.approx(summary.mean)
        for number, contrast in result.rounds.items():
            expected = summary.rounds[number].by_images
            assert getattr(contrast, pick).estimate == pytest.approx(expected)
        for domain, contrast in result.domains.items():
            mine = [c for c in summary.cells if c.domain == domain]
            expected = np.average([c.value for c in mine], weights=[c.images for c in mine])
            assert getattr(contrast, pick).estimate == pytest.approx(expected)
    assert [c.images for c in result.domains.values()] == [120] * 3


def test_coverage() -> None:
    truth, covered = 10.0, 0
    for seed in range(100):
        a, b = coins(0.5, (1, 1, 150), 2 * seed), coins(0.6, (1, 1, 150), 2 * seed + 1)
        (result,) = compare({"b": run(b), "a": run(a)}, resamples=400, seed=seed)
        covered += result.overall.difference.low <= truth <= result.overall.difference.high
    assert 88 <= covered <= 100


def test_seeds_repeat_and_chunks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"a": run(coins(0.5, (1, 2, 50), 0)), "b": run(coins(0.5, (1, 2, 50), 1))}
    first = compare(runs, resamples=300, seed=7)
    assert compare(runs, resamples=300, seed=7) == first
    assert compare(runs, resamples=300, seed=8) != first
    monkeypatch.setattr(_bootstrap, "CHUNK", 50 * 7)
    assert compare(runs, resamples=300, seed=7) == first


def test_draws_are_multinomial() -> None:
    weights = np.concatenate(list(_bootstrap.draws(20, 5000, 0)))
    assert weights.shape == (5000, 20)
    assert (weights.sum(1) == 20).all()
    assert weights.mean(0) == pytest.approx(np.ones(20), abs=0.06)
    assert weights.var() == pytest.approx(1 - 1 / 20, abs=0.03)


def test_more_runs_share_one_baseline() -> None:
    runs = {
        "source": run(coins(0.4, (1, 1, 300), 0)),
        "same": run(coins(0.4, (1, 1, 300), 0)),
        "bad": run(coins(0.1, (1, 1, 300), 2)),
    }
    same, bad = compare(runs, resamples=300)
    assert (same.verdict, same.overall.p_value) == ("undecided", 1.0)
    assert (bad.baseline, bad.other, bad.verdict) == ("source", "bad", "worse")
    (_, source) = compare({k: runs[k] for k in ("bad", "same", "source")}, resamples=300)[:2]
    assert source.verdict == "better"
    accuracy = compare(runs, resamples=300, metric="accuracy")[1]
    assert accuracy.verdict == "worse"
    assert accuracy.overall.difference.estimate == pytest.approx(-bad.overall.difference.estimate)


def test_order_does_not_matter_for_pairing() -> None:
    a, b = run(coins(0.5, (1, 1, 100), 0)), run(coins(0.5, (1, 1, 100), 1))
    shuffled = [r.replace(index=i) for i, r in enumerate(reversed(b))]
    assert compare({"a": a, "b": shuffled}, resamples=50) == compare({"a": a, "b": b}, resamples=50)


def test_an_image_that_repeats_is_paired_by_its_turn() -> None:
    twice = run(coins(0.5, (1, 1, 10), 0)) * 2
    (result,) = compare({"a": twice, "b": twice}, resamples=20)
    assert result.overall.images == 20


def test_runs_that_do_not_pair_are_refused() -> None:
    a, b = run(coins(0.5, (1, 1, 30), 0)), run(coins(0.5, (1, 1, 30), 1), prefix="x")
    with pytest.raises(DataError, match="60 stand in one alone, such as 'k0' \\(d0, round 0\\)"):
        compare({"a": a, "b": b})
    with pytest.raises(DataError, match=r"5 stand in one alone, such as 'k25' .* in a"):
        compare({"a": a, "b": a[:1]})
    with pytest.raises(DataError, match="no image keys"):
        compare({"a": a, "b": [r.replace(keys=()) for r in a]})
    with pytest.raises(DataError, match="has not begun"):
        compare({"a": a, "b": []})
    with pytest.raises(ConfigError, match="two runs or more"):
        compare({"a": a})
    with pytest.raises(ConfigError, match="Did you mean 'tent'"):
        compare({"tent": a, "b": a}, baseline="tnet")
    with pytest.raises(ConfigError, match="confidence = 95"):
        compare({"a": a, "b": a}, confidence=95)


def scenes(seed: int, good: float, images: int = 40) -> list[Record]:
    generator = np.random.default_rng(seed)
    records = []
    for index in range(images):
        right = generator.binomial(100, good, 3)
        confusion = np.diag(right)
        confusion[[0, 1, 2], [1, 2, 0]] = 100 - right
        records.append(
            Record(
                run="r", index=index, domain="night" if index % 2 else "fog", images=1,
                correct=int(right.sum()), counted=300, keys=(f"k{index}",), classes=3,
                confusion=(tuple(int(v) for v in confusion.ravel()),),
            )
        )  # fmt: skip
    return records


def test_segmentation_draws_images_of_confusions() -> None:
    a, b = scenes(0, 0.6), scenes(1, 0.7)
    (result,) = compare({"a": a, "b": b}, resamples=500, seed=3)
    assert result.metric == "miou"
    assert result.verdict == "better"
    assert result.overall.other.estimate == pytest.approx(summarise(b).mean)
    weights = np.concatenate(list(_bootstrap.draws(40, 500, 3)))
    by_hand = []
    for draw in weights:
        value = count = 0.0
        for domain in ("fog", "night"):
            total, images = np.zeros((3, 3)), 0.0
            for times, record in zip(draw, b, strict=True):
                if record.domain == domain:
                    total += times * np.array(record.confusion[0]).reshape(3, 3)
                    images += times
            iou = np.diag(total) / (total.sum(0) + total.sum(1) - np.diag(total))
            value, count = value + images * 100 * iou.mean(), count + images
        by_hand.append(value / count)
    low, high = np.quantile(by_hand, [0.025, 0.975])
    assert (result.overall.other.low, result.overall.other.high) == pytest.approx((low, high))


def test_tasks_do_not_mix() -> None:
    with pytest.raises(DataError, match="is classification; miou is for segmentation"):
        compare({"a": scenes(0, 0.6), "b": run(coins(0.5, (1, 1, 40), 0))})
