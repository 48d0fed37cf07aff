"""The part of the orchestrator's ports that decisions need: the log, which needs no worker session."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cerebro_db.core.errors import CerebroError
from cerebro_db.core.events import Action, Decider, Verdict
from cerebro_db.core.options import BEST
from cerebro_db.core.packing.subgroups import MOST_MODELS
from cerebro_db.core.parameters import custom
from cerebro_db.core.parameters.custom import Known
from cerebro_db.core.scheduling.schedule import ModelPlan
from cerebro_db.core.search.budget import Used
from cerebro_db.core.search.policy import Decision, NewModel, Policy
from cerebro_db.core.search.request import Request

from ...database.access import Database
from ...definitions import custom_functions
from ...platform.base import Platform
from ...sessions.session import Session
from ..record.log import RunLog
from ..record.run import Run
from . import additions
from .incoming_requests import IncomingRequests
from .rules import Rule

TELL_EVERY = 10.0  # seconds between two notices of how a policy's plan has changed
REPLAYED = "replay"  # what the log of a replay calls the policy that decided in the earlier run


class Decisions:
    """Commits decisions, and tells what they depend on."""

    def __init__(
        self,
        db: Database,
        run: Run,
        recorder: Session,
        platform: Platform,
        policy: Policy,
        *,
        attention: IncomingRequests,
        rule: Rule | None,
    ) -> None:
        self.db, self.run, self.recorder, self.platform = db, run, recorder, platform
        self.attention, self.rule = attention, rule
        self.timed = policy.timed
        self.policy = REPLAYED if run.options.replay is not None else policy.name
        self.log = RunLog.of(recorder, run.id)
        self.built = False  # whether preflight is over
        self.began = time.monotonic()
        self.unit_seconds = 0.0  # of the units that have ended since
        self._before: Used | None = None
        self._told_plan, self._told_at = "", -TELL_EVERY  # the policy's plan as it was told last, and when
        self._functions: Known | None = None
        self._refusals: dict[int, str | None] = {}  # number of a request -> why its configuration is refused

    def decided(self, decisions: Sequence[Decision]) -> list[ModelPlan]:
        """Commit decisions, with the models that they add, their configurations and their initial states."""
        self.recorder.finish()
        known = self._known() if any(decision.added for decision in decisions) else {}
        added = additions.commit(
            self.run, self.log, self.recorder, self.platform, decisions,
            policy=self.policy, known=known, built=self.built,
        )  # fmt: skip
        for decision in decisions:
            if decision.verdict is Verdict.EXTEND:
                self.run.epochs = int(decision.detail["epochs"])
            if decision.request is not None:
                self.attention.answered(decision.request)
            if decision.by in (Decider.REQUEST, Decider.RULE):
                self.db.notice(self._told(decision))
            elif self.timed:
                self._tell_of_plan(decision)
        for model in added:
            if model.asked.refused is not None:
                self.db.warning(f"configuration {model.key} failed: {model.asked.refused}")
        return [self.run.plan_of(model) for model in added]

    def _known(self) -> Known:
        """The custom functions that configurations may name."""
        if self._functions is None:
            self.recorder.finish()
            self._functions = custom.with_references(
                custom_functions.latest(self.recorder.run(custom_functions.LATEST)),
                (model.asked.definition["compile"] for model in self.run.models.values()),
            )
        return self._functions

    def _tell_of_plan(self, decision: Decision) -> None:
        """Say what a policy plans when it adds models, but not each time that the plan changes a little."""
        if not decision.added or not decision.reason or decision.reason == self._told_plan:
            return
        if decision.model is not None:
            self.db.detail(f"configuration {self.run.models[decision.model].key} {decision.reason}")
        elif time.monotonic() - self._told_at >= TELL_EVERY:
            self._told_plan, self._told_at = decision.reason, time.monotonic()
            self.db.detail(decision.reason)

    def _told(self, decision: Decision) -> str:
        """What the session that drives the run says of a decision of a person or of the rule."""
        which = "" if decision.model is None else f"configuration {self.run.models[decision.model].key}"
        about = f"request {decision.request}: " if decision.request is not None else ""
        why = f": {decision.reason}" if decision.reason else ""
        if decision.verdict is Verdict.STOP:
            by = "the rule" if decision.by is Decider.RULE else "request"
            return f"{about}{which} is stopped after epoch {decision.epoch} by {by}{why}"
        if decision.verdict is Verdict.GO_ON:
            return f"{about}{which} goes on after epoch {decision.epoch}{why}"
        if decision.verdict is Verdict.ADD:
            (new,) = decision.added
            parent = "" if new.parent is None else f", a clone of configuration {self.run.models[new.parent].key}"
            return f"{about}configuration {self.run.models[new.model or 0].key} is added{parent}{why}"
        if decision.verdict is Verdict.EXTEND:
            return f"{about}the run has {decision.detail['epochs']} epochs now{why}"
        if decision.verdict is Verdict.BUDGET:
            return f"{about}the budget of the run is now {json.dumps(dict(decision.detail))}{why}"
        return f"{about}refused{why}"

    def configuration(self, model: int) -> dict[str, Any]:
        return self.run.configuration_of(self.run.models[model])

    def best_hop(self, model: int) -> int | None:
        if self.run.options.keep != BEST:
            return None
        self.recorder.finish()
        kept = [epoch for _, epoch, _, kept in self.log.units.objectives(model) if kept]
        return max(kept) * self.run.hops_per_epoch(self.run.models[model]) if kept else None

    def requests(self) -> Sequence[Request]:
        return [self._checked(request) for request in self.attention.requests()]

    def _checked(self, request: Request) -> Request:
        """The request, marked as wrong if its configuration is none of the run, or fails the checks of a new one."""
        if request.request not in self._refusals:
            self._refusals[request.request] = self._refusal(request)
        wrong = self._refusals[request.request]
        return request if wrong is None else replace(request, wrong=wrong)

    def _refusal(self, request: Request) -> str | None:
        try:
            request.require_sound()
        except CerebroError:
            return None  # it says itself what is wrong
        if request.action is not Action.ADD:
            return None
        new = request.new
        if new.key is not None:
            known = any(model.key == new.key for model in self.run.models.values())
            return None if known else f"the run has no configuration {new.key}"
        if new.configuration is None:
            return None
        return self._too_many(new) or additions.refusal(self.run, self.recorder, new, self._known())

    def _too_many(self, new: NewModel) -> str | None:
        """Why a configuration would bring the run more models than a run with groups can have."""
        each = 1 if new.parent is not None else len(self.run.groups) + 1  # a clone is one model
        models = len(self.run.models) + each
        if not self.run.source.has_groups or models <= MOST_MODELS:
            return None
        return f"the run would have {models:,} models; a run with groups can have {MOST_MODELS:,}"

    def ruled(self, model: int, epoch: int) -> str | None:
        return None if self.rule is None else self.rule.objection(model, self.run.models[model].key, epoch)

    def used(self) -> Used:
        """Also by the sessions that have driven the run before."""
        if self._before is None:
            self.recorder.finish()
            self._before = Used(self.log.units.driven_seconds(), self.log.units.unit_seconds() - self.unit_seconds)
        seconds = self._before.seconds + time.monotonic() - self.began
        return Used(seconds, self._before.unit_seconds + self.unit_seconds)
