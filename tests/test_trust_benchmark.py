"""What `benchmarks/trust.py` shows: mixes of classes, and a line of errors."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

import pytest
import torch

from ostinato.errors import DataError

script = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "trust.py"))


def test_mixes_hold_as_many_classes_as_they_say():
    labels = torch.arange(10).repeat(100)
    found = list(script["mixes"](labels, True, random.Random(0)))
    classes = {name: len(labels[places].unique()) for name, places in found}
    assert [classes[f"{count} class{end}"] for count, end in (("one", ""), ("two", "es"))] == [1, 2]
    assert (classes["three classes"], classes["all classes"]) == (3, 10)
    tail = dict(found)["long tail"]
    assert labels[tail].bincount().max() > 2.5 * 200 / 10  # one class is far ahead
    assert [name for name, _ in script["mixes"](labels, False, random.Random(0))] == ["all classes"]


def test_a_line_tells_what_the_choice_did_at_worst():
    rows = [([50.0, 40.0, 30.0], 2), ([20.0, 30.0, 25.0], 1)]  # the second choice does harm
    *means, harm, worst = script["summed"](rows).split()
    assert [float(mean) for mean in means] == [35.0, 35.0, 27.5, 30.0, 25.0]
    assert (harm, worst) == ("50%", "+10.0")


def test_more_images_than_there_are_cannot_be_judged():
    with pytest.raises(DataError, match="judge fewer"):
        script["main"](script["Args"](judged=1000))
