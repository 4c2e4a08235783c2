"""One page for a set of runs: self-contained, with one small script, the same for the same runs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from ostinato.errors import MissingResource
from ostinato.report._ablation import descriptor_ablation
from ostinato.report._attention_figure import attention_maps
from ostinato.report._by_round import error_by_round
from ostinato.report._distances import distance_to_source
from ostinato.report._domains import discriminator_timeline, pool_growth
from ostinato.report._over_time import error_over_time
from ostinato.report._overview import describe_runs, summarise_variants, warnings
from ostinato.report._per_class import iou_per_class
from ostinato.report._per_domain import error_per_domain
from ostinato.report._pictures import predictions_in_pictures
from ostinato.report._reliability import cost_against_accuracy, reliability_diagram
from ostinato.report._runs import Variant
from ostinato.report._spectra import descriptor_map
from ostinato.report._trust import trust_over_time
from ostinato.report.figure import Figure, Part
from ostinato.report.style import plotting, theme

_TEMPLATE = "page.html.j2"


def _draw_all(variants: Sequence[Variant]) -> list[Part]:
    """Every figure that these runs allow, in the order of the page."""
    return [
        *error_over_time(variants),
        *error_by_round(variants),
        *error_per_domain(variants),
        *iou_per_class(variants),
        *predictions_in_pictures(variants),
        *discriminator_timeline(variants),
        *pool_growth(variants),
        *trust_over_time(variants),
        *distance_to_source(variants),
        *descriptor_map(variants),
        *descriptor_ablation(variants),
        *attention_maps(variants),
        *reliability_diagram(variants),
        *cost_against_accuracy(variants),
    ]


def render(variants: Sequence[Variant], title: str = "Ostinato report") -> str:
    """The page's HTML."""
    plotting()
    template = read_template("ostinato.report", _TEMPLATE)
    parts = _draw_all(variants)
    summary, runs = summarise_variants(variants), describe_runs(variants)
    versions = {name: v for r in variants for name, v in r.first.provenance.versions.items()}
    text: str = template.render(
        title=title,
        style=page_style(),
        script=(script := _page_script()),
        script_hash=_content_hash(script),
        variants=variants,
        summary=summary,
        summary_data=summary.data().uri(),
        runs=runs,
        runs_data=runs.data().uri(),
        warnings=warnings(variants),
        figures=[part for part in parts if isinstance(part, Figure)],
        missing=[part for part in parts if not isinstance(part, Figure)],
        contents=_contents(parts),
        versions=sorted(versions.items()),
    )
    return text


def _contents(parts: Sequence[Part]) -> list[tuple[str, str]]:
    """(anchor, words): each kind of figure once."""
    found: dict[str, str] = {}
    for part in parts:
        if isinstance(part, Figure):
            found.setdefault(part.title.partition(":")[0], part.name)
    return [(anchor, words) for words, anchor in found.items()]


def page_style() -> str:
    """The style sheet that all pages of this project share."""
    return (files("ostinato.report") / "page.css").read_text(encoding="utf-8")


def _page_script() -> str:
    """The script that sorts tables and shows hints; the page works without it."""
    return (files("ostinato.report") / "page.js").read_text(encoding="utf-8")


def _content_hash(script: str) -> str:
    """What a page's policy calls a script that may run: no other one does.

    >>> _content_hash("")[:20]
    'sha256-47DEQpj8HBSa+'
    """
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def read_template(package: str, name: str) -> Any:
    """A page's template, which refuses names that it was not given."""
    try:
        import jinja2
    except ImportError:
        raise MissingResource(
            "Reports are written with jinja2, which is not installed: "
            "pip install 'ostinato[report]'"
        ) from None
    text = (files(package) / name).read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["theme"] = theme
    return environment.from_string(text)
