"""What every method adds and moves, against sizes counted by hand from widths and ranks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from ostinato.api import adapt, collect_statistics, prepare
from ostinato.checks import small_model
from ostinato.data.embedded import build_embedded
from ostinato.methods.base import Method
from ostinato.methods.contract import resolve_config
from ostinato.registry import METHODS
from ostinato.tables.assemble import build_table
from ostinato.tables.request import Request

K = 7
ON_TRANSFORMERS = [name for name in METHODS.names() if METHODS[name].info.norms == "any"]
STILL = ("source", "lame", "neo", "foa_shift", "pea", "t3a", "gain")
RANKS = (32, 16)  # of the paper's shared and domain experts
MODELS = {
    "plain": {"width": 32, "depth": 2, "mlp": 128, "patch": 8, "tokens": 16, "classes": 5},
    "stem": {"width": 64, "depth": 3, "mlp": 128, "patch": 4, "tokens": 64, "classes": 10},
}


def build(kind: str) -> nn.Module:
    if kind == "plain":
        return small_model()
    torch.manual_seed(0)
    return build_embedded(width=64, depth=3).eval()


def adapted(name: str, model: nn.Module) -> Method:
    kind = METHODS[name]
    quick: dict[str, Any] = {"warm_steps": 1} if "warm_steps" in kind.Config.model_fields else {}
    images = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    needs = kind.needs(resolve_config(kind, None, quick))
    given: dict[str, Any] = {}
    if "source statistics" in needs:
        given["statistics"] = collect_statistics(model, images)
    if "prepared file" in needs:
        given["prepared"] = prepare(model, name, images, torch.arange(8) % 5, **quick)
    return adapt(model, name, **given, **quick)


def sizes(kind: str) -> dict[str, int]:
    """Parameters by their part in the model, from the architecture's numbers alone."""
    m = MODELS[kind]
    d, h = m["width"], m["mlp"]
    linears = (d * 3 * d + 3 * d) + (d * d + d) + (d * h + h) + (h * d + d)
    if kind == "plain":
        embed, stem_norms = 3 * m["patch"] ** 2 * d + d, 0
    else:
        wide = (3, 32, 64, 128, d)
        inner = (32, 64, 128)  # each convolution but the last has a norm in place of a bias
        embed = sum(9 * a * b for a, b in pairwise(wide))
        stem_norms = 2 * sum(inner)
        embed += d  # the last has a bias
    block_norms = m["depth"] * 4 * d
    norms = block_norms + 2 * d + stem_norms
    head = d * m["classes"] + m["classes"]
    named = m["depth"] * linears + embed + norms + head
    every = named + d + (m["tokens"] + 1) * d  # class token and positions
    return {"norms": norms, "block norms": block_norms, "named": named, "all": every}


def expected(name: str, kind: str) -> tuple[int, int]:
    """Added with seven domains, and trained."""
    m, s = MODELS[kind], sizes(kind)
    d, depth = m["width"], m["depth"]
    if name == "adma":  # mask token, and a linear map to nine directions of three colours
        mine = d + (d + 1) * 3 * 9 * max(1, m["patch"] // 8) ** 2
        return mine, s["named"] + mine
    if name == "becotta":  # a router for four domains, and six experts of rank six, a block
        mine = depth * (4 * 6 * d + 6 * 2 * 6 * d)
        return mine, mine
    if name == "ecotta":  # scale, shift, a norm and a bottleneck of 32, for up to four parts
        mine = min(4, depth) * (2 * d + 2 * d + 2 * 32 * d)
        return mine, mine
    if name == "vida":  # ranks 1 and 128 beside query-key-value and the projection
        mine = depth * sum((1 + 128) * (i + o) for i, o in ((d, 3 * d), (d, d)))
        return mine, s["all"] + mine
    if name == "svdp":
        return 3 * 540 * 960, s["named"] + 3 * 540 * 960
    if name == "vdp":
        return 2 * 3 * 56 * 56, 2 * 3 * 56 * 56
    if name == "foa":
        return 3 * d, 3 * d
    if name == "dpcore":
        return K * 8 * d, 8 * d
    if name == "kff":  # and one token a class, of which one step moves an image's
        return K * 8 * d + m["classes"] * d, 8 * d + d
    if name == "reservoir":  # TENT's parameters once more for each further style
        return (K - 1) * s["norms"], s["norms"]
    if name == "imse":  # four maps of full rank a block, once more for each domain that has ended
        return (K - 1) * depth * 4 * d, depth * 4 * d
    if name == "zoa":  # two norms in every block but the first
        mine = (depth - 1) * 4 * d
        return (K - 1) * (mine + 1), mine
    if name == "spa":  # a square predictor before the classifier
        return d * d, s["norms"] + d * d
    if name == "cola":  # ETA's parameters and a share for each domain that has ended
        return (K - 1) * (s["norms"] + 1), s["norms"]
    if name == "ostinato":  # ranks 64 and 32 an FFN; every second block a matrix, scale, two shifts
        maps = -(-depth // 2) * (d * d + 3 * d)
        shared, domain = depth * 2 * d * 64, depth * 2 * d * 32
        return shared + K * (maps + domain), shared + domain
    if name == "dual_expert":  # two experts and their router in every FFN
        shared, domain = (depth * (2 * 2 * d * r + 2 * d + 2) for r in RANKS)
        return shared + K * domain, shared + domain
    if name in ("rem", "m2a"):
        return 0, max(1, depth - 3) * 4 * d
    if name in ("sar", "deyo"):
        return 0, s["block norms"]  # of the first nine
    if name in ("cotta", "rmt", "memo"):
        return 0, s["all"]
    return 0, 0 if name in STILL else s["norms"]


def test_the_sizes_are_the_models_own() -> None:
    for kind in MODELS:
        assert sizes(kind)["all"] == sum(p.numel() for p in build(kind).parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_TRANSFORMERS)
def test_added_and_trained_are_what_other_widths_say(name: str) -> None:
    method = adapted(name, build("stem"))
    assert (method.added(K), method.trained()) == expected(name, "stem")


@pytest.mark.parametrize("name", ON_TRANSFORMERS)
def test_added_and_trained_are_what_the_widths_say_and_no_step_moves_more(name: str) -> None:
    model = build("plain")
    method = adapted(name, model)
    assert (method.added(K), method.trained()) == expected(name, "plain")
    source = {id(p): p.detach().clone() for p in method.parameters()}
    method(torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)))
    moved = sum(
        p.numel()
        for p in method.parameters()
        if id(p) not in source or not torch.equal(p.detach(), source[id(p)])
    )
    assert moved <= method.trained()


def test_class_prompts_are_counted_for_every_image() -> None:
    method = adapted("kff", build("plain"))
    method(torch.rand(5, 3, 32, 32))
    assert method.trained() == 8 * 32 + 5 * 32


@pytest.mark.parametrize(
    ("name", "settings", "added"),
    [
        ("vida", {"warm_steps": 1}, 6 * 129 * (4 * 128 + 2 * 128)),
        ("svdp", {}, 3 * 540 * 960),
        ("dpcore", {}, K * 8 * 128),
    ],
)
def test_the_table_shows_what_is_added(name: str, settings: dict[str, Any], added: int) -> None:
    request = Request(methods=(name,), changes={"settings": settings})
    row = build_table("parameters", request).rows[0]
    assert row.values[2].value == pytest.approx(added / 1e6)
