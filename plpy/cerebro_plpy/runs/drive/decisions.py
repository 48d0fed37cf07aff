"""The part of the orchestrator's ports that decisions need: the log, which needs no worker session."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cerebro_db.core.errors import CerebroError
from cerebro_db.core.events import Action, Verdict
from cerebro_db.core.parameters import custom
from cerebro_db.core.parameters.custom import Known
from cerebro_db.core.scheduling.schedule import ModelPlan
from cerebro_db.core.search.budget import Used
from cerebro_db.core.search.policy import Decision, Policy
from cerebro_db.core.search.request import Request

from ...database.access import Database
from ...definitions import custom_functions
from ...platform.base import Platform
from ...sessions.session import Session
from ..record.log import RunLog
from ..record.run import Run
from . import additions
from .attention import Attention
from .rules import Rule

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
        attention: Attention,
        rule: Rule | None,
    ) -> None:
        self.db, self.run, self.recorder, self.platform = db, run, recorder, platform
        self.attention, self.rule = attention, rule
        self.policy = REPLAYED if run.options.replay is not None else policy.name
        self.log = RunLog.of(recorder, run.id)
        self.built = False  # whether preflight is over
        self.began = time.monotonic()
        self.unit_seconds = 0.0  # of the units that have ended since
        self._before: Used | None = None
        self._known: Known | None = None

    def decided(self, decisions: Sequence[Decision]) -> list[ModelPlan]:
        """Commit decisions, with the models that they add, their configurations and their initial states."""
        self.recorder.finish()
        if self._known is None and any(decision.added for decision in decisions):
            self._known = custom.with_references(
                custom_functions.latest(self.recorder.run(custom_functions.LATEST)),
                (model.asked.definition["compile"] for model in self.run.models.values()),
            )
        added = additions.commit(
            self.run, self.log, self.recorder, self.platform, decisions,
            policy=self.policy, known=self._known or {}, built=self.built,
        )  # fmt: skip
        for decision in decisions:
            if decision.verdict is Verdict.EXTEND:
                self.run.epochs = int(decision.detail["epochs"])
            if decision.request is not None:
                self.attention.answered(decision.request)
        for model in added:
            if model.asked.refused is not None:
                self.db.warning(f"configuration {model.key} failed: {model.asked.refused}")
        return [self.run.plan_of(model) for model in added]

    def configuration(self, model: int) -> dict[str, Any]:
        return self.run.configuration_of(self.run.models[model])

    def requests(self) -> Sequence[Request]:
        return [self._checked(request) for request in self.attention.requests()]

    def _checked(self, request: Request) -> Request:
        """The request, marked as wrong if it names a configuration that the run does not have."""
        try:
            request.require_sound()
        except CerebroError:
            return request  # it says itself what is wrong
        key = request.new.key if request.action is Action.ADD else None
        if key is None or any(model.key == key for model in self.run.models.values()):
            return request
        return replace(request, wrong=f"the run has no configuration {key}")

    def ruled(self, model: int, epoch: int) -> str | None:
        return None if self.rule is None else self.rule.objection(model, self.run.models[model].key, epoch)

    def used(self) -> Used:
        """Also by the sessions that have driven the run before."""
        if self._before is None:
            self.recorder.finish()
            self._before = Used(self.log.units.driven_seconds(), self.log.units.unit_seconds() - self.unit_seconds)
        seconds = self._before.seconds + time.monotonic() - self.began
        return Used(seconds, self._before.unit_seconds + self.unit_seconds)
