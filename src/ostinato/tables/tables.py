"""The paper's tables by name: which streams, which rows, which columns, at both scales.

`full` is the paper's own setting; `small` runs the same protocol on the package's own model and
images. Both are specs, so that whatever a table runs, `ostinato run` can run alone.
"""

from __future__ import annotations

from typing import Any

from ostinato.data.mosaic import MOSAIC, MOSAIC_NOTE, STREET_NOTE
from ostinato.data.stand_ins import LOOKS_NOTE, STAND_IN_NOTE
from ostinato.registry import TABLES
from ostinato.running.spec import SEEDS
from ostinato.tables._table import Measure, Part, Table, Variant
from ostinato.tables.printed import printed

METHODS_FULL = (
    *("source", "pseudo_label", "tent", "cotta", "vdp", "vida", "adma"),
    *("dual_expert:paper", "ostinato:forward-only", "ostinato:robust"),
)
"""The rows of the paper's tables, and the project's own presets."""
_METHODS_ACDC = (
    *("source", "tent", "cotta", "svdp", "becotta", "adma"),
    *("dual_expert:paper", "ostinato:robust"),
)
_METHODS_CAMVID = tuple(name for name in _METHODS_ACDC if name != "adma")

VIT = {
    "model": "vit_base_patch16_224.augreg_in21k_ft_in1k",
    "normalize": "none",
    "statistics": 300,
    "prepared": 2000,
    "clean": "imagenet-val",
    "seeds": SEEDS,
    "batch_size": 50,
}
EMBEDDED = {
    "model": "embedded",
    "normalize": "model",
    "roots": "embedded",
    "statistics": "embedded",
    "prepared": 500,
    "seeds": SEEDS,
    "batch_size": 50,
}
_LIMIT = 100
"""Images a corruption at small scale: two batches, so that a table takes minutes."""
_PAPER = "dual_expert:paper"

_IMAGENET_C = Part(
    "ImageNet-C",
    {**VIT, "stream": "continual", "data": {"dataset": "imagenet-c"}},
    {**EMBEDDED, "stream": "continual", "data": {"dataset": "imagenet-c", "limit": _LIMIT}},
)
_CIFAR100_C = Part(
    "CIFAR-100-C",
    {
        **VIT,
        "model": "vit_base_patch16_384.augreg_in21k_ft_in1k",
        "num_classes": 100,
        "clean": "cifar100:train",
        "stream": "continual",
        "data": {"dataset": "cifar100-c", "transform": "resize384-bilinear"},
    },
    {**EMBEDDED, "stream": "continual", "data": {"dataset": "cifar100-c", "limit": _LIMIT}},
)
# The parts of ImageNet++ follow from a seed, which stays the same in all runs.
_IMAGENET_PLUS = Part(
    "ImageNet+",
    {**VIT, "stream": "imagenet-plus", "data": {"seed": 0}},
    {
        **EMBEDDED,
        "stream": "imagenet-plus",
        "data": {"seed": 0, "transform": "none", "limit": 200},
    },
    rates={_PAPER: 5e-4},
)
_IMAGENET_PLUS_PLUS = Part(
    "ImageNet++",
    {**VIT, "stream": "imagenet-plus-plus", "data": {"seed": 0}},
    {**EMBEDDED, "stream": "imagenet-plus-plus", "data": {"seed": 0, "transform": "none"}},
    rates={_PAPER: 5e-4},
)
_ACDC = Part(
    "ACDC",
    {
        "model": "nvidia/segformer-b5-finetuned-cityscapes-1024-1024",
        "normalize": "model",
        "statistics": 300,
        "prepared": 300,
        "clean": "cityscapes:train",
        "seeds": SEEDS,
        "batch_size": 1,
        "stream": "recurring",
        "data": {"dataset": "acdc", "rounds": 3, "transform": "half"},
    },
    {
        **EMBEDDED,
        "model": MOSAIC,
        "statistics": 100,
        "prepared": 150,
        "batch_size": 1,
        "seeds": SEEDS[:1],  # fourteen views of every picture take their time on a CPU
        "stream": "recurring",
        "data": {"dataset": "acdc", "rounds": 3, "limit": 10},
    },
    rates={_PAPER: 3e-4},
)

_CAMVID = Part(
    "CamVid",
    {
        "model": "weights/segformer-b0-camvid",  # where examples/train_camvid.py leaves it
        "normalize": "model",
        "statistics": 300,
        "prepared": 300,
        "clean": "camvid:train",
        "seeds": SEEDS,
        "batch_size": 1,
        "stream": "recurring",
        # Where a model trained on clear days keeps two thirds of its mIoU on val, as on ACDC.
        "data": {"dataset": "camvid", "rounds": 3, "severity": 2},
    },
    {**_ACDC.small, "data": {"dataset": "camvid", "rounds": 3, "limit": 10, "severity": 3}},
    rates={_PAPER: 3e-4},
)


def _printed_columns(name: str, part: str = "") -> tuple[Measure, ...]:
    """The columns of a printed table; rounds become groups."""
    found = []
    for column in printed(name).columns:
        group = "" if column.round is None or column.kind == "mean" else f"R{column.round + 1}"
        once = not any(c.round for c in printed(name).columns)
        found.append(
            Measure(
                column.heading,
                column.kind,
                "" if once else group,
                part,
                column.domain,
                column.round,
            )
        )
    return tuple(found)


_EXTRA = (Measure("K", "count"), Measure("ECE", "ece"), Measure("img/s", "speed"))
_BY_DOMAINS = Measure("Mean by domains", "by domains")
_K_NOTE = "K: domains found. ECE: expected calibration error in percent."


def _benchmark(
    part: Part,
    name: str,
    preset: str | None,
    extra: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
) -> Table:
    rounds = any(column.round for column in printed(name).columns)
    columns = _printed_columns(name)
    notes = (*printed(name).notes, _K_NOTE)
    small = (STAND_IN_NOTE, *extra)
    more = (_BY_DOMAINS, *_EXTRA) if rounds else _EXTRA
    return Table(
        name,
        f"{part.name}: {'mIoU' if printed(name).metric == 'miou' else 'error'} in percent",
        (part,),
        (*columns, *more),
        preset,
        notes=notes,
        small_notes=small,
        methods=methods,
    )


def _expert(label: str, **settings: Any) -> Variant:
    return Variant(label, "dual_expert", settings=settings)


_EXPERTS = Table(
    "ablation-experts",
    "Which experts: mean error in percent",
    (_IMAGENET_C, _IMAGENET_PLUS, _IMAGENET_PLUS_PLUS),
    tuple(
        Measure(p.name, "mean", part=p.name)
        for p in (_IMAGENET_C, _IMAGENET_PLUS, _IMAGENET_PLUS_PLUS)
    ),
    variants=(
        Variant("Neither", "source"),
        _expert("Shared", experts={"domain": False}),
        _expert("Self-Adaptive", experts={"shared": False}),
        _expert("Shared + Self-Adaptive"),
    ),
    notes=("A branch that is left out leaves the other with its own weight of 0.5.",),
    small_notes=(STAND_IN_NOTE, LOOKS_NOTE),
)
_ROUTING = (
    Measure("Purity", "purity"),
    Measure("AMI", "ami"),
    Measure("Delay", "delay"),
)
_ROUTING_NOTE = (
    "Purity: share of a corruption's batches in its main domain, in percent. AMI: adjusted mutual "
    "information with the true domains, in percent. Delay: batches to follow a change."
)
_FDD = Table(
    "ablation-fdd",
    "How domains are recognised (ImageNet-C protocol)",
    (_IMAGENET_C,),
    (*_printed_columns("ablation-fdd"), *_ROUTING),
    variants=(
        _expert("Upper (oracle)", discriminator={"kind": "oracle"}),
        _expert("Conf-Jump", discriminator={"kind": "confidence-jump"}),
        _expert("FDD w/o covariance", discriminator={"covariance": "none"}),
        _expert("FDD w/o discriminator", discriminator={"kind": "random"}),
        _expert("FDD w/o robust online update", discriminator={"update": "ema"}),
        _expert("FDD (ours)"),
    ),
    reference="Upper (oracle)",
    notes=(_ROUTING_NOTE, "w/o discriminator: batches go to a random known domain."),
)
_DESCRIPTOR = Table(
    "ablation-descriptor",
    "What images are described by (ImageNet-C protocol)",
    (_IMAGENET_C,),
    (Measure("Error", "mean"), Measure("Accuracy", "accuracy"), Measure("K", "count"), *_ROUTING),
    variants=tuple(
        _expert(label, discriminator={"descriptor": name})
        for label, name in (
            ("Low frequencies", "low"),
            ("High frequencies", "high"),
            ("Full spectrum", "full"),
            ("RGB histogram", "rgb-histogram"),
            ("Style (spectrum and histogram)", "style"),
            ("CLS feature", "cls-feature"),
        )
    ),
    notes=(*printed("ablation-descriptor").notes, _ROUTING_NOTE),
)
_PARAMETERS = Table(
    "parameters",
    "Parameters added and trained",
    (_IMAGENET_C,),
    (
        Measure("Added", "share"),
        Measure("Trained", "share"),
        Measure("Added M", "millions"),
        Measure("Trained M", "millions"),
    ),
    notes=(
        *printed("parameters").notes,
        "Added: what is learned beside the source model and stays, for seven domains, the paper's "
        "K: a method that keeps experts, prompts or parameters for each has seven of them. A "
        "teacher's copy of the model is not counted. Trained: what one step moves. Shares are of "
        "the source model.",
    ),
    small_notes=("Small scale: the embedded model in the place of ViT-B/16.",),
)

for _table in (
    _benchmark(_IMAGENET_C, "imagenet-c", "imagenet-c"),
    _benchmark(_CIFAR100_C, "cifar100-c", "cifar100-c"),
    _benchmark(_IMAGENET_PLUS, "imagenet-plus", "imagenet-c", (LOOKS_NOTE,)),
    _benchmark(_IMAGENET_PLUS_PLUS, "imagenet-plus-plus", "imagenet-c", (LOOKS_NOTE,)),
    _benchmark(_ACDC, "acdc", "acdc", (MOSAIC_NOTE,), _METHODS_ACDC),
    _benchmark(_CAMVID, "camvid", "acdc", (STREET_NOTE,), _METHODS_CAMVID),
    _EXPERTS,
    _FDD,
    _DESCRIPTOR,
    _PARAMETERS,
):
    TABLES.register(_table.name)(_table)
