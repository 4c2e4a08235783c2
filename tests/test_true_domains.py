"""Being told each image's domain, as an upper bound for routing."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch

from ostinato.errors import ConfigError, InputError
from ostinato.running.runner import run
from ostinato.running.spec import Spec

kit = runpy.run_path(str(Path(__file__).with_name("_ostinato_small.py")))
build, shifted, clean = kit["build"], kit["shifted"], kit["clean"]


@pytest.fixture(scope="module")
def small():
    return kit["clean_statistics"]()


def test_domains_are_those_that_were_told(small, trusting):
    method = build(small, true_domains=True)
    assert "domain labels" in method.needs(method.config)
    for shift, plain in zip(shifted(6), clean(6), strict=True):
        names = ("bright",) * 6 + ("plain",) * 4
        output = method.step(torch.cat([shift[:6], plain[:4]]), oracle=names)
        assert output.domains == (1,) * 6 + (2,) * 4
    assert [one.images for one in method.bank.domains.values()] == [36, 24]
    assert method.bank.domains[1].maps
    assert method.bank.domains[1].branches is not None


def test_a_whole_batch_may_have_one_name_and_large_ones_are_split(small):
    method = build(small, true_domains=True)
    names = ("a",) * 10 + ("b",) * 14
    assert method.step(torch.cat(clean(3)), oracle=names).domains == (1,) * 10 + (2,) * 14
    assert method.step(clean(1)[0], oracle="b").domains == (2,) * 8


def test_names_travel_with_the_state(small, tmp_path):
    method = build(small, true_domains=True)
    method.step(clean(1)[0], oracle="a")
    method.save(tmp_path / "state.safetensors")
    other = build(small, true_domains=True)
    other.step(clean(1)[0], oracle="b")
    other.load(tmp_path / "state.safetensors")
    assert other.step(clean(1)[0], oracle="c").domains == (2,) * 8
    other.reset()
    assert other.told.names == []


def test_what_cannot_be_is_refused(small):
    with pytest.raises(ConfigError, match="count_in"):
        build(small, true_domains=True, count_in=False)
    with pytest.raises(InputError, match="names"):
        build(small, true_domains=True).step(clean(1)[0])
    assert build(small).step(clean(1)[0], oracle="a").domains == (0,) * 8  # never told otherwise


def test_a_run_over_mixed_batches_tells_every_image(tmp_path):
    spec = Spec.parse(
        {
            "method": "ostinato",
            "preset": "forward-only",
            "model": "embedded",
            "statistics": "embedded",
            "stream": "mixed",
            "batch_size": 30,
            "data": {"dataset": "embedded", "limit": 10, "domains": ["fog", "contrast", "frost"]},
            "settings": {"true_domains": True},
        }
    )
    run(spec, out=tmp_path, quiet=True)
    routing = json.loads(next(tmp_path.glob("*/summary.json")).read_text())["routing"]
    assert routing["ami"] == pytest.approx(1.0)
    assert routing["found"] == 3
