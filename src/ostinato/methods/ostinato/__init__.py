"""Ostinato's own method: route each image, move its tokens towards the source's, learn on top.

Every image goes to the source, to a domain met before or to a new one (`domains.router`). A
domain's expert is first of all a map: mean and covariance of its tokens after each block are moved
a share of the way to the source's. Which share, down to none, is decided by how sure the model is
of its answers: that is the expert's trust, and where the source is surest, the source answers. On
top of a trusted map low-rank branches learn from confident predictions, at a rate that falls with
every update.

`predict` answers from a published version and queues what it saw; `learn` takes the queue in and
publishes the next version; calling the method does both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ostinato.domains.router import Router
from ostinato.domains.texture import Texture
from ostinato.domains.told import Told
from ostinato.domains.verdict import SOURCE, Change
from ostinato.errors import ConfigError, InputError, MissingResource
from ostinato.experts.routed import EVERY, Branch, Hooks
from ostinato.methods.base import Input, MethodInfo
from ostinato.methods.contract import MethodConfig, Need
from ostinato.methods.ostinato.batches import first_part, joined
from ostinato.methods.ostinato.capture import Answered, sent
from ostinato.methods.ostinato.counts import Counted
from ostinato.methods.ostinato.parts import (
    PRESETS,
    Domain,
    OstinatoConfig,
    Version,
    to_levels,
)
from ostinato.methods.ostinato.state import DomainBank
from ostinato.methods.ostinato.step import Started
from ostinato.ops.allocator import hold_little
from ostinato.ops.borrowed import Borrowed
from ostinato.ops.statistics import check_fits
from ostinato.registry import METHODS
from ostinato.types import StepOutput


@METHODS.register("ostinato")
class Ostinato(Counted):
    """Per-image routing, experts from moments, learning on top.

    >>> import timm
    >>> from ostinato import adapt, collect_statistics
    >>> vit = timm.create_model("test_vit", num_classes=10)
    >>> clean = torch.rand(40, 3, 160, 160)
    >>> adapted = adapt(vit, statistics=collect_statistics(vit, clean))
    >>> adapted(torch.rand(4, 3, 160, 160)).shape, adapted.last.domain
    (torch.Size([4, 10]), 0)
    """

    name = "ostinato"
    Config = OstinatoConfig
    config: OstinatoConfig
    info = MethodInfo(
        title="Ostinato",
        paper="this project, after Zhao et al., AAAI 2026 and PEA, ICLR 2026",
        trains="a shared low-rank branch and the images' domains'; maps follow from moments",
        predicts="before",
        tasks=frozenset({"classification", "segmentation"}),
        needs=frozenset({"source statistics"}),
        differences="none: this is its release",
        own=True,
        colours={"robust": 0, "forward-only": 2},
    )
    presets = PRESETS
    default_preset = "robust"
    example = {"micro": 8, "enough": 8, "trust": False}
    follows = True
    told_by_image = True
    wide = True

    @classmethod
    def needs(cls, config: MethodConfig) -> frozenset[Need]:
        """Statistics of clean images; true domains where these are asked for."""
        assert isinstance(config, OstinatoConfig)
        told: frozenset[Need] = frozenset({"domain labels"} if config.true_domains else ())
        return told | {"source statistics"}

    def configure(self) -> None:
        """Put hooks into the model, and set up routing and domains."""
        statistics = self.resources.statistics
        assert statistics is not None
        if not statistics.tokens or statistics.content is None:
            raise MissingResource(
                "These source statistics hold no moments of tokens: they were made by version 0.1, "
                "or the model's blocks give no tokens. Collect them anew with "
                "ostinato.collect_statistics(model, clean_images)."
            )
        if self.config.true_domains and not self.config.count_in:
            raise ConfigError("true_domains=True needs count_in=True.")
        self.hooks = self.open_hooks()
        check_fits(statistics, self.hooks.blocks, self.fingerprint)
        self.statistics = statistics.to(self.model.device)
        self.describe = Texture()
        config = self.config
        self.router = self.track(
            "router",
            Router(
                statistics.content,
                enough=config.enough,
                apart=config.apart,
                limit=config.max_domains,
            ),
        )
        sizes = (len(self.statistics.tokens[::EVERY]), len(statistics.content.mean))
        self.told = self.track("told", Told()) if config.true_domains else None
        branches, changed = Borrowed(self._new_branches), Borrowed(self._taken_over)
        self.bank = self.track("bank", DomainBank(branches, config, changed, sizes))
        self.publisher = self._publisher()
        self._open_captures()
        self.queue: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._made: dict[int, Tensor] = {}
        self._came: int | None = None  # the domain that came last
        self.version = Version(0, self.router.view())

    def open_hooks(self) -> Hooks:
        """The places where experts act; streams that share a model share them."""
        assert self.resources.statistics is not None
        widths = [block.mean.numel() for block in self.resources.statistics.tokens]
        return Hooks(self.model.base, self.targets, widths)

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("captures", "step_captures", "map_captures", "narrowed")  # a copy makes its own
        return {name: v for name, v in super().__getstate__().items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._open_captures()

    # One batch.

    def advance(self, batch: Input) -> StepOutput:
        """Answer a batch and learn from it, in parts of `micro` images where that may matter."""
        outputs = list[StepOutput]()
        rest: Input | None = batch
        self._came = None if self.last is None else self.last.domain
        while rest is not None:
            size = len(rest) if self._is_settled(len(rest)) else self.config.micro
            part, rest = first_part(rest, size)
            outputs.append(self._advance(part))
            self._came = outputs[-1].domain
        self.counters["steps"] += 1
        self.counters["size"] = list(batch.pixels.shape[-2:])
        return joined(outputs)

    def _advance(self, batch: Input) -> StepOutput:
        if not self.config.count_in:
            output, described = self._respond(batch)
            self._take_in(batch.pixels, described, batch.classes)
            updated = self._learn_waiting(batch.classes)
            return replace(output, updated=updated, events=tuple(self.events))
        # What is expected, an answer or a step, is sent off first; taking in happens meanwhile.
        expected, answered, started = None, None, None
        if not self._remakes(len(batch)):
            expected = self._expected_step()
            answered = self._captured(batch) if expected is None else None
        if answered is None:
            arrived = sent(self._described(batch.pixels))
            started = None if expected is None else self._start_step(batch, expected)
        described = arrived() if answered is None else answered.arrived()
        change = self._take_in(batch.pixels, described, batch.classes, batch.oracle, answered)
        ready = self._ready(change.owners)
        if ready is not None:
            return self._answer_and_learn(batch, change, ready, started)
        if answered is not None:
            self.publisher.placed(self.version)  # for the next batch, while this one is answered
        if answered is not None and self._still_holds(answered, change.owners):
            output = self._captured_output(batch, answered, self.version, change.owners, change)
        elif (made := self._made_answer(change)) is not None:
            output = self._output(made, self.version, change.owners, change.distance, change)
        else:
            output = self._answer(batch, described, change)
        self._watch(change.owners, output.logits)
        updated = self._learn_waiting(batch.classes)
        return replace(output, updated=updated, events=tuple(self.events))

    # Taking in.

    def _routed(
        self, described: Tensor, told: str | tuple[str, ...] | None
    ) -> tuple[Change, Tensor]:
        """What a batch does to the domains, and the domains of the latest images."""
        if self.told is None:
            change = self.router.observe(described)
            return change, self.router.owner
        if told is None:
            raise InputError("With true_domains=True every batch needs its domains' names.")
        names = (told,) * len(described) if isinstance(told, str) else told
        change = self.told.observe(names)
        return change, torch.tensor(change.owners)

    def _take_in(
        self,
        pixels: Tensor,
        described: Tensor,
        classes: Tensor | None,
        told: str | tuple[str, ...] | None = None,
        answered: Answered | None = None,
    ) -> Change:
        """Routing learns the batch, domains get its images, due maps are made; publishes."""
        self.events, self._made = [], {}
        change, latest = self._routed(described, told)
        levels = to_levels(pixels)
        self.bank.keep([image for image, new in zip(levels, change.known, strict=True) if new])
        for gone, into in change.merged:
            self.bank.merge(gone, into)
            self.events.append(f"merged domain {gone} into {into}")
        for domain in change.founded:
            self.bank.found(domain, latest)
            self.events.append(f"founded domain {domain}")
        for domain in dict.fromkeys(change.owners):
            if domain == SOURCE:
                continue
            mine = zip(levels, change.owners, change.known, strict=True)
            fresh = [image for image, owner, new in mine if owner == domain and new]
            self.bank.add(domain, fresh, counted=domain in change.founded)
        for domain in dict.fromkeys(change.owners):
            if domain != SOURCE and (window := self._window(domain)):
                images = self._latest(domain, window, pixels, change)
                own = images.shape[1:] == pixels.shape[1:]  # else the batch's were resized
                source = self._source_of(answered, images) if answered and own else None
                made = self._make_maps(self.bank.domains[domain], images, classes, source)
                self.bank.domains[domain].stands(self.router.latest(domain, window))
                self._made |= {domain: made} if own else {}
        self._republish()
        return change

    def _source_of(self, answered: Answered, images: Tensor) -> Tensor | None:
        """The source's logits for the images of a batch, where it was the source that answered."""
        logits = answered.logits
        if len(images) != len(logits) or bool(answered.routed.rows.any()):
            return None
        return logits

    def _made_answer(self, change: Change) -> Tensor | None:
        """The batch's logits where making maps has given them: all of it was one domain's."""
        made = self._made.get(change.owners[0])
        if made is None or len(set(change.owners)) > 1 or not all(change.known):
            return None
        return made[-len(change.owners) :] if len(made) >= len(change.owners) else None

    def _latest_domain(self) -> Domain | None:
        """The domain that came last; None where that was the source."""
        return None if self._came is None else self.bank.domains.get(self._came)

    def _remakes(self, count: int) -> bool:
        """Whether so many more images of the domain that came last have its maps made anew."""
        domain = self._latest_domain()
        return domain is not None and domain.images + count >= domain.due

    def _is_settled(self, count: int) -> bool:
        """Whether a batch of the domain that came last would change nothing: it is taken whole.

        Where something is learned, or maps are made, the first part of a batch serves the others.
        """
        domain = self._latest_domain()
        has_maps = domain is not None and bool(domain.maps)
        return has_maps and not self.config.learn and not self._remakes(count)

    # Learning.

    def _ready(self, owners: Sequence[int]) -> Domain | None:
        """The domain that a part of a batch may teach at once: all its images are that domain's."""
        if len(set(owners)) != 1 or len(owners) < self.config.micro // 2:
            return None
        domain = self.bank.domains.get(owners[0])
        if domain is None or not self._may_learn(domain) or not self._pays(domain):
            return None
        return domain

    def _expected_step(self) -> Domain | None:
        """The domain that came last, if it would learn from a batch of its own."""
        domain = self._latest_domain()
        if domain is None or not self._may_learn(domain) or not self._pays(domain):
            return None
        return domain

    def _answer_and_learn(
        self,
        batch: Input,
        change: Change,
        domain: Domain,
        started: Started | None,
    ) -> StepOutput:
        version = self.version
        held = started is not None and started.holds(domain, self.bank.shared)
        found = started.found if started is not None and held else None
        logits, loss, updated = self._step(batch, domain, found)
        domain.learned_from(len(change.owners))
        self._republish()
        if domain.branches is None:  # forgotten: its maps answered
            version = replace(version, temperatures={})
        output = self._output(logits, version, change.owners, change.distance, change)
        self._watch(change.owners, output.logits)
        return replace(output, loss=loss, updated=updated)

    # Publishing.

    def _republish(self) -> None:
        """Make what is known now the version that answers."""
        shared: tuple[Branch, ...] = ()
        if self.bank.shared.updates:
            shared = self.bank.shared.published()
        self.version = Version(
            self.version.number + 1,
            self.router.view(),
            {number: domain.expert() for number, domain in self.bank.domains.items()},
            shared,
            {number: domain.share for number, domain in self.bank.domains.items()},
            {number: one.temperature for number, one in self.bank.domains.items() if one.maps},
        )

    def _taken_over(self) -> None:
        """After a reset or a load: what was queued before belongs to another past."""
        self.queue = []
        self._republish()

    # The rest.

    def respond(self, batch: Input) -> StepOutput:
        """Answer from the published version, without waiting for whoever learns; queue."""
        output, described = self._respond(batch)
        if not self._frozen:
            self.queue.append((to_levels(batch.pixels), described, batch.classes))
            del self.queue[: -self.config.buffer]
        return output

    def learn(self) -> bool:
        """Take in what `predict` queued, and publish; whether anything was learned."""
        self._refuse_detached()
        moved, exactness = False, self._exactness()
        self.processes.agree(lambda: f"learn {self.standing()}")
        alike = self.processes.together()
        with self._at_work(), torch.inference_mode(False), torch.enable_grad(), exactness, alike:
            for _ in range(len(self.queue)):  # what comes meanwhile is the next call's
                if not self.queue:
                    break  # a reset on the way
                levels, described, classes = self.queue.pop(0)
                self._take_in(levels.float() / 255, described, classes)
                moved |= self._learn_waiting(classes)
        if self.model.device.type == "cpu":
            hold_little()
        return moved

    def source_logits(self, batch: Input) -> Tensor:
        """What the source model says: a forward without experts."""
        with torch.no_grad(), self.autocast():
            return self.logits(batch).detach().float()

    def arrive(self) -> None:
        """Statistics and experts go where the model is; they stay in single precision."""
        if not hasattr(self, "bank"):
            return
        device = self.model.device
        self.statistics = self.statistics.to(device)
        self._initial = self._initial.to(device)
        self.publisher = self._publisher()
        self._open_captures()
        self.bank.import_state(self.bank.export_state())

    def release(self) -> None:
        """Take the hooks off."""
        if hasattr(self, "hooks"):
            self.hooks.remove()

    def standing(self) -> str:
        """Steps, what is queued, and the domains with their trust."""
        known, waiting = self.version, len(self.queue)
        return f"{super().standing()} {known.number} {waiting} {known.view.ids} {known.shares}"
