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

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ostinato.domains.router import Router
from ostinato.domains.texture import Texture
from ostinato.domains.told import Told
from ostinato.domains.verdict import SOURCE, Change
from ostinato.errors import ConfigError, InputError, MissingResource
from ostinato.experts.routed import EVERY, Hooks
from ostinato.experts.unread import leave_out_unread
from ostinato.methods.base import Input, MethodInfo
from ostinato.methods.contract import MethodConfig, Need
from ostinato.methods.ostinato._bank import Domain, Version, to_levels
from ostinato.methods.ostinato._batches import first_part, joined
from ostinato.methods.ostinato._capture import Answered, beside, sent
from ostinato.methods.ostinato._counts import Counted
from ostinato.methods.ostinato._state import DomainBank
from ostinato.methods.ostinato.settings import PRESETS, OstinatoConfig
from ostinato.ops.allocator import hold_little
from ostinato.ops.borrowed import Borrowed
from ostinato.ops.colours import three_colours
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
        hooks = Hooks(self.model.base, self.targets, widths)
        leave_out_unread(hooks, self.model, self.model.example())
        return hooks

    def __getstate__(self) -> dict[str, Any]:
        kept = super().__getstate__()
        for own in ("captures", "step_captures", "map_captures", "narrowed", "compiled"):
            kept.pop(own, None)  # a copy makes its own
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._open_captures()

    # One batch.

    def advance(self, batch: Input) -> StepOutput:
        """Answer a batch and learn from it, in parts of `micro` images where that may matter."""
        last = None if self.last is None else self.last.decision
        self._came = None if last is None else last.domain
        outputs = list[StepOutput]()
        rest: Input | None = batch
        while rest is not None:
            count = len(rest.pixels)
            whole = 2 * count < 3 * self.config.micro or self._is_settled(count)
            part, rest = (rest, None) if whole else first_part(rest, self.config.micro)
            outputs.append(self._advance(part))
            came = outputs[-1].decision
            self._came = None if came is None else came.domain
        self.counters["steps"] += 1
        self.counters["size"] = list(batch.pixels.shape[-2:])
        return outputs[0] if len(outputs) == 1 else joined(outputs)

    def _advance(self, batch: Input) -> StepOutput:
        if not self.config.count_in:
            output, found = self._respond(batch)
            self._take_in(batch.pixels, found, batch.classes)
            updated = self._learn_waiting(batch.classes)
            return replace(output, updated=updated, events=tuple(self.events))
        # What is expected, an answer or a step, is sent off first; taking in happens meanwhile.
        expected, answered, started = None, None, None
        described: Tensor | None = None
        if self.capturing and self.processes.alone:
            if not self._remakes(len(batch)):
                expected = self._expected_step()
                answered = self._captured(batch) if expected is None else None
            if answered is not None:
                arrived = answered.arrived
            else:
                with beside(batch.pixels.device) as aside:
                    started = None if expected is None else self._start_step(batch, expected)
                    with aside():
                        arrived = sent(self._described(batch.pixels))
            described = arrived()
        change = self._take_in(batch.pixels, described, batch.classes, batch.oracle, answered)
        ready = self._ready(change.owners)
        if ready is not None:
            held = started is not None and started.holds(ready, self.bank.shared)
            return self._answer_and_learn(
                batch, change, ready, started.found if started is not None and held else None
            )
        if answered is not None:
            self.publisher.placed(self.version)  # for the next batch, while this one is answered
        if answered is not None and self._still_holds(answered, change.owners):
            output = self._captured_output(batch, answered, self.version, change.owners, change)
        elif (made := self._made_answer(change)) is not None:
            output = self._output(made, self.version, change.owners, change.distance, change)
        else:
            output = self._answer(batch, change)
        self._watch(change.owners, output.logits)
        updated = self._learn_waiting(batch.classes)
        return replace(output, updated=updated, events=tuple(self.events))

    # Taking in.

    def _described(self, pixels: Tensor) -> Tensor:
        """Descriptors of pixels that the model takes, in content's deviations."""
        coloured = pixels if pixels.shape[1] == 3 else three_colours(pixels)
        if self.processes.alone:
            return self.publisher.content.place(self.describe.of(coloured))
        found = self.describe.of(self.processes.share(coloured))
        return self.publisher.content.place(self.processes.gathered(found, len(pixels)))

    def _told(self, count: int, names: str | tuple[str, ...] | None) -> tuple[Change, Tensor]:
        """What a batch does to the domains by its true ones, and those of its images."""
        assert self.told is not None
        if names is None:
            raise InputError("With true_domains=True every batch needs its domains' names.")
        change = self.told.observe((names,) * count if isinstance(names, str) else names)
        return change, torch.tensor(change.owners)

    def _take_in(
        self,
        pixels: Tensor,
        described: Tensor | None,
        classes: Tensor | None,
        told: str | tuple[str, ...] | None = None,
        answered: Answered | None = None,
    ) -> Change:
        """Routing learns the batch, domains get its images, due maps are made; publishes.

        Args:
            pixels: of the batch.
            described: its descriptors, where they are known.
            classes: the only classes there are, if not all.
            told: its true domains, where these are told.
            answered: its answer, where that was sent off before.
        """
        self.events, self._made = [], {}
        if self.told is None:
            placed = self._described(pixels) if described is None else described
            change = self.router.take(placed.cpu())
            latest = self.router.owner
        else:
            change, latest = self._told(len(pixels), told)
        view = self.router.view()
        self.events += self.bank.take_in(pixels, change, latest)
        for domain in dict.fromkeys(change.owners):
            if domain != SOURCE and (window := self._window(domain)):
                images = self._latest(domain, window, pixels, change)
                own = images.shape[1:] == pixels.shape[1:]  # else the batch's were resized
                source = self._source_of(answered, images) if answered and own else None
                made = self._make_maps(self.bank.domains[domain], images, classes, source)
                self.bank.domains[domain].stands(self.router.latest(domain, window))
                self._made |= {domain: made} if own else {}
        self.version = self.bank.version(self.version.number + 1, view)
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
        if domain is None or not domain.maps or self._remakes(count):
            return False
        updates = 0 if domain.branches is None else domain.branches.updates
        return not self.config.learn or updates >= self.config.settle

    # Learning.

    def _expected_step(self) -> Domain | None:
        """The domain that came last, if it would learn from a batch of its own."""
        domain = self._latest_domain()
        if domain is None or not self._may_learn(domain) or not self._pays(domain):
            return None
        return domain

    # The rest.

    def _taken_over(self) -> None:
        """After a reset or a load: what was queued before belongs to another past."""
        self.queue = []
        self._republish()

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
