"""The search of a run: its policy, its budget, and its schedule and history as the log has them."""

from __future__ import annotations

from cerebro_db.core.events import Verdict
from cerebro_db.core.following import least_models
from cerebro_db.core.scheduling import orchestrator
from cerebro_db.core.scheduling.deciding import Deciding
from cerebro_db.core.scheduling.schedule import Schedule
from cerebro_db.core.search.budget import Budget
from cerebro_db.core.search.history import Figures
from cerebro_db.core.search.policy import Decision, History
from cerebro_db.core.trainers.frozen_feature_plan import FeatureUse

from ... import platform
from ...database.access import Database
from ...sessions.session import Session
from ...sessions.team import Team
from ..record.log import RunLog, as_written
from ..record.run import Run
from ..record.speeds import RunSpeeds
from . import policies, rules
from .decisions import Decisions
from .driver import Driver
from .incoming_requests import IncomingRequests
from .sharing import Sharing
from .suggestions import Suggestions


class Search:
    """Drives a claimed run by its policy."""

    def __init__(self, db: Database, run: Run, recorder: Session, attention: IncomingRequests) -> None:
        self.db, self.run, self.recorder = db, run, recorder
        self.log = RunLog.of(recorder, run.id)
        self.replays = run.options.replay
        shares = recorder.own and platform.of(db).runs_functions_in_session
        self.suggestions = Suggestions(db, run.options.engine, shares=shares)
        with as_written(run.id):
            self.policy = policies.policy_of(run, self.log, self.suggestions)
        self.rule = rules.of_run(db, run, recorder, attention)
        self.sharing = Sharing(db, run, recorder, self.log, policies.budget_of(run))
        self.decisions = Decisions(db, run, recorder, platform.of(db), self.policy, attention=attention, rule=self.rule)

    def begin(self) -> None:
        """Make the decisions that are due before preflight, so that it builds the models that they add with the others.

        These are the first models that the policy proposes, those that a replay adds at once, and what people have
        requested while nobody drove the run.
        """
        schedule = self.schedule()
        decisions, policy, history = self.decisions, self.policy, self.history()
        Deciding(schedule, decisions, policy, history, self.budget(schedule), repeats=self.replays is not None).attend()

    def drive(self, team: Team, speeds: RunSpeeds) -> tuple[bool, Schedule, FeatureUse]:
        """Take the run to its end. Returns whether its budget has ended it, the schedule, and what features did."""
        self.decisions.built = True
        schedule = self.schedule()
        self.decisions.attention.beat = None  # from now on the driver does that
        driver = Driver(
            self.db, self.run, schedule, team, self.recorder, self.decisions,
            policy=self.policy, budget=lambda: self.budget(schedule), sharing=self.sharing, speeds=speeds,
        )  # fmt: skip
        history, budget = self.history(), self.budget(schedule)
        spent = orchestrator.run(
            schedule, driver, self.policy, history, budget,
            repeats=self.replays is not None, least_models=least_models(self.run.options.follows),
        )  # fmt: skip
        driver.beat(last=True)
        self.recorder.finish()
        return spent, schedule, driver.units.times.features

    def close(self) -> None:
        self.suggestions.close()
        if self.rule is not None:
            self.rule.close()

    def reread(self) -> Schedule:
        """The schedule as another session would find it now."""
        mine = self.run
        try:
            self.run = self.log.plan.load()
            return self.schedule()
        finally:
            self.run = mine

    def schedule(self) -> Schedule:
        """The schedule with everything that the log says is done and decided."""
        with as_written(self.run.id):
            return self._schedule()

    def _schedule(self) -> Schedule:
        # A replay repeats the decisions of the earlier run, also under a policy that is never asked.
        replayed = RunLog(self.log.ask, self.replays).events.decisions() if self.replays is not None else []
        highest_key = max((model.key for model in self.run.models.values()), default=0)
        schedule = Schedule(self.run.plan(), self.policy.asks or self.rule is not None, replayed, highest_key)
        evaluated = self.log.units.evaluated()
        decided: dict[int | None, list[Decision]] = {}
        for decision in self.log.events.decisions():
            decided.setdefault(decision.model, []).append(decision)
        for decision in decided.get(None, ()):
            schedule.recall(decision)
        for number, model in self.run.models.items():
            hops, mine = model.hops + len(model.replicas), decided.get(number, ())
            if hops or mine:  # else it stands where it was when the schedule was made
                schedule.restore(number, hops, evaluated.get(number, ()), mine, model.replicas)
        for number, reason in self.log.events.failed().items():
            schedule.give_up(number, reason)
        return schedule

    def history(self) -> History:
        """What the log has for a policy."""
        history = History(self.run.options.optimised(self.run.validation is not None))
        if not (self.policy.asks or self.policy.proposes):
            return history
        with as_written(self.run.id):
            for model in self.run.models.values():
                history.begins(model.number, self.run.configuration_of(model))
            if not self.policy.reads_figures:
                return history
            for model_number, epoch, hop, *figures in self.log.units.hops():
                history.trained(model_number, epoch, hop, *figures)
            for model_number, epoch, dataset, part, *figures in self.log.units.evaluations():
                history.evaluated(model_number, epoch, dataset, part, Figures.of(*figures))
        return history

    def budget(self, schedule: Schedule) -> Budget:
        """The budget that was set last."""
        budget = policies.budget_of(self.run)
        for decision in schedule.decisions:
            if decision.verdict is Verdict.BUDGET:
                budget = Budget.from_document(decision.detail)
        return budget
