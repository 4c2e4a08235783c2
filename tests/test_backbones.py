"""Every family of models does everything: one for each mechanism here, all in the slow table."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

import ostinato
from ostinato.errors import TargetError
from ostinato.ops.blocks import choose_blocks, find_blocks, last_stage
from ostinato.ops.features import FeatureTaps, open_tokens, prefix_tokens
from ostinato.ops.layouts import Layout

kit = runpy.run_path(str(Path(__file__).with_name("_backbones.py")))
PAGE = Path(__file__).parents[1] / "docs" / "backbones.md"
START, END = "<!-- matrix -->\n", "<!-- end of matrix -->"


@pytest.mark.parametrize("question", kit["QUESTIONS"])
@pytest.mark.parametrize("family", kit["MECHANISMS"])
def test_a_family_of_each_mechanism(family, question):
    getattr(kit["Case"](family), question)()


def test_the_page_has_a_row_for_every_family():
    rest = PAGE.read_text(encoding="utf-8").partition(START)[2].partition(END)[0]
    rows = [line.split("|")[1].strip() for line in rest.splitlines()[2:]]
    assert rows == list(kit["FAMILIES"])


@pytest.mark.slow
def test_the_table_of_all_families():
    """Write the page anew with OSTINATO_WRITE_DOCS=1; otherwise it has to say what is so."""
    found = kit["matrix"]()
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    written, _, tail = rest.partition(END)
    if os.environ.get("OSTINATO_WRITE_DOCS"):
        PAGE.write_text(head + START + found + END + tail, encoding="utf-8")
        written = found
    assert written == found
    assert "no (" not in found


@pytest.mark.parametrize("family", ["timm efficientnet", "timm resnet50-gn", "timm mlp-mixer"])
def test_the_papers_experts_stand_after_the_blocks_of_a_network(family):
    model, batch = kit["build"](family), kit["images"](8, 1, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = ostinato.adapt(model, "source")(batch)
    adapted = ostinato.adapt(kit["build"](family), preset="paper", lr=0.1, kappa=2.0)
    assert torch.equal(adapted(batch), expected)
    assert adapted.last.updated
    assert not torch.equal(adapted(batch), expected)
    back = ostinato.unwrap(adapted)
    assert all(torch.equal(value, before[name]) for name, value in back.state_dict().items())


class Own(nn.Module):
    """Blocks as attributes, a head behind `flatten`: nothing tells what a block is."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.flatten, self.head = nn.Flatten(), nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.first(x).relu()
        x = x + self.second(x).relu()
        return self.head(self.flatten(x.mean((2, 3), keepdim=True)))


HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}


def test_own_models_say_what_their_blocks_are():
    model = Own().eval()
    with pytest.raises(TargetError, match=r"blocks=\[...\]. It has stem, first, second, head"):
        ostinato.collect_statistics(model, kit["images"](8), **HALF)
    blocks = ["first", "second"]
    statistics = ostinato.collect_statistics(model, kit["images"](30), blocks=blocks, **HALF)
    assert statistics.describe() == "2 blocks x 8 features from 30 images"
    adapted = ostinato.adapt(model, statistics=statistics, blocks=blocks, **HALF)
    assert adapted(kit["images"](4, 1, 2)).shape == (4, 5)
    ostinato.unwrap(adapted)
    with pytest.raises(TargetError):
        find_blocks(model)  # what was named went with the method


def test_modules_without_weights_may_be_blocks():
    """VGG's stages end with pooling."""
    from torchvision.models import vgg11

    blocks = [f"features.{number}" for number in (5, 10, 15)]
    model = vgg11(num_classes=5).eval()
    statistics = ostinato.collect_statistics(model, kit["images"](30), blocks=blocks)
    assert statistics.describe() == "3 blocks x 128/256/512 features from 30 images"
    adapted = ostinato.adapt(model, statistics=statistics, blocks=blocks)
    assert adapted(kit["images"](4, 1, 2)).shape == (4, 5)


def test_a_choice_of_blocks_is_checked():
    model = Own()
    with pytest.raises(TargetError, match="matches no module"):
        choose_blocks(model, ["frist"])
    choose_blocks(model, lambda name, module: name in ("first", "second"))
    assert list(find_blocks(model)) == ["first", "second"]
    assert list(find_blocks(nn.ModuleDict({"inner": model}))) == ["inner.first", "inner.second"]


def test_a_head_behind_flatten_is_no_block():
    blocks = find_blocks(kit["build"]("timm swin"))
    assert list(blocks) == ["layers.0.blocks.0", "layers.1.blocks.0"]


class Lists(nn.Module):
    """Attentions in one list, feed-forward networks in another: a block is nowhere one module."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 8, 8)
        self.attend = nn.ModuleList(
            nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2)
        )
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(2)
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        for attend, feed in zip(self.attend, self.feed, strict=True):
            x = x + attend(x, x, x, need_weights=False)[0]
            x = x + feed(x)
        return self.head(x.mean(1))


def test_lists_of_parts_are_no_blocks_until_somebody_says_so():
    model, feeds = Lists().eval(), r"feed\.\d"
    with pytest.raises(TargetError, match=r"blocks=\[...\]"):
        ostinato.collect_statistics(model, kit["images"](8), **HALF)
    statistics = ostinato.collect_statistics(model, kit["images"](30), blocks=feeds, **HALF)
    for more in ({}, {"targets": feeds}):
        settings = {"statistics": statistics, "blocks": feeds, "enough": 8, "micro": 8}
        adapted = ostinato.adapt(model, **settings, **more, **HALF)
        for seed in range(3):
            assert adapted(kit["images"](12, seed, 2)).isfinite().all()
        assert adapted.hooks.widths == [("feed.0", 16), ("feed.1", 16)]
        ostinato.unwrap(adapted)
    attend = ["attend.0", "attend.1"]
    with pytest.raises(TargetError, match=r"targets=\[...\]"):
        ostinato.adapt(model, statistics=statistics, blocks=attend, **HALF)


class Folding(nn.Module):
    """Two layers that see the columns of a feature map as images of their own."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)]
        self.stem, self.inner = nn.Conv2d(3, 8, 8, 8), nn.ModuleList(layers)
        self.outer, self.head = nn.Conv2d(8, 8, 1), nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        folded = x.permute(0, 3, 2, 1).flatten(0, 1)
        for layer in self.inner:
            folded = layer(folded)
        x = self.outer(x + folded.unflatten(0, (len(x), -1)).permute(0, 3, 2, 1))
        return self.head(x.mean((2, 3)))


def test_blocks_that_see_places_as_images_are_refused_before_anything_is_adapted():
    model, outer = Folding().eval(), ["stem", "outer"]
    chosen = [*outer, "inner.0"]
    with pytest.raises(TargetError, match=r"inner.0 has several rows.*these do: stem, outer\."):
        ostinato.collect_statistics(model, kit["images"](8), blocks=chosen, **HALF)
    statistics = ostinato.collect_statistics(model, kit["images"](30), blocks=outer, **HALF)
    assert statistics.describe() == "2 blocks x 8 features from 30 images"


def test_a_dictionary_of_stages_with_a_forward_is_a_row():
    from torchvision.models import mobilenet_v3_small
    from torchvision.models._utils import IntermediateLayerGetter

    part = IntermediateLayerGetter(mobilenet_v3_small().features, {"12": "out"})
    assert list(find_blocks(nn.ModuleDict({"backbone": part})))[:2] == ["backbone.1", "backbone.2"]


def test_the_last_stage_of_a_network():
    assert last_stage(kit["build"]("timm resnet50-gn")) == ("layer4.0",)


def test_prefix_tokens_are_counted():
    counts = {
        name: prefix_tokens(kit["build"](name)) for name in ("timm deit", "timm swin", "HF vit")
    }
    assert counts == {"timm deit": 2, "timm swin": 0, "HF vit": 1}


@pytest.mark.parametrize("family", ["timm mambaout", "torchvision maxvit"])
def test_maps_that_blocks_turn_are_read_by_their_widths(family):
    """Convolutions inside of blocks with features last, and attention over maps with them first."""
    model = kit["build"](family)
    with FeatureTaps(model) as taps, torch.no_grad():
        model(kit["images"](2))
    assert sorted({feature.shape[1] for feature in taps.features}) == [16, 24]
    assert [len(feature) for feature in taps.features] == [2] * len(taps.blocks)


def test_convolutions_whose_outputs_are_joined_keep_channels_first():
    joined = Layout.of(nn.ModuleList([nn.Conv2d(8, 24, 1), nn.Conv2d(8, 24, 3)]))
    assert joined.channels_first((2, 48, 24, 24))


def test_feature_maps_come_back_in_their_layout():
    torch.manual_seed(0)
    for shape, first in (((2, 5, 3, 4), True), ((2, 3, 4, 5), False), ((2, 12, 5), False)):
        x = torch.randn(shape)
        tokens, put_back = open_tokens(x, Layout(first))
        assert tokens.shape == (2, 12, 5)
        assert torch.equal(put_back(tokens), x)
        channel = put_back(tokens * torch.tensor([1.0, 0, 0, 0, 0]))
        assert int((channel != 0).sum()) == 24
