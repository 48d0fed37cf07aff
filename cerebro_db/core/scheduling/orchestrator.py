"""The loop that keeps segments busy, over ports: no database, no clock and no framework of its own.

The real ports (``cerebro_plpy.runs.driver``) are worker sessions. The ports of the tests are a
simulated clock with injected faults. Either way this loop is all of model hopper parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..metrics import Value
from ..search.never_stop import NeverStop
from ..search.policy import Decision, History, Policy
from .schedule import MOST_TRIES, ModelPlan, Schedule, Status, Train, Unit


@dataclass(frozen=True)
class Outcome:
    """How a unit ended. ``error`` is None if the unit is committed."""

    unit: Unit
    seconds: float = 0.0  # its share, if it trained fused with others
    error: str | None = None
    # A crash of a trainer or a lost session says little about the model, so the unit is tried again.
    try_again: bool = False
    # Of a committed unit, as the log has them: what policies decide by.
    rows: int = 0
    loss: float | None = None
    metrics: Mapping[str, Value] = field(default_factory=dict)
    most_tries: int = MOST_TRIES  # of a unit that failed like this


class Ports(Protocol):
    def start(self, groups: Sequence[Sequence[Unit]]) -> None:
        """Begin units on their segment and return at once.

        A group is one unit, or several visits that train fused. Several groups are done one after the other: all are
        visits, or all evaluate the same rows. Each unit has an outcome of its own. A segment that reads ahead begins
        them after its current units.
        """

    def reads_ahead(self, segment: int) -> bool:
        """Whether a busy segment could prepare its next unit."""

    def wait(self) -> list[Outcome]:
        """Block a short while, at most until a unit has ended. Raises when the run is cancelled.

        An error in an outcome says that nothing of the unit is committed. Ports that cannot tell (a
        session lost during COMMIT) ask the log, or raise: the run is then taken up from its log.
        """

    def gave_up(self, model: int, reason: str) -> None:
        """A model has failed for good; the others go on. Called once per model."""

    def trying_again(self, unit: Unit, reason: str) -> None:
        """A unit has failed and will be repeated."""

    def decided(self, decision: Decision) -> Sequence[ModelPlan]:
        """Commit a decision as one row, before it takes effect, and return the plans of the models that it adds.

        The same transaction makes the added models, under the numbers in the decision, with their initial states. A
        model with a parent begins with the parent's state after ``parent_hop``. The parent may be
        training: at most one later visit of it has been committed since. If this raises, nothing took effect.
        """

    def configuration(self, model: int) -> Mapping[str, Any]:
        """What a policy may know of a model that a decision has added."""


def run(schedule: Schedule, ports: Ports, policy: Policy | None = None, history: History | None = None) -> None:
    """Drive a run from wherever its schedule stands to its end.

    ``history`` has the figures of the log, if the run is resumed; what the schedule knows is added here.
    """
    policy = policy or NeverStop()
    if policy.asks and not schedule.decides:
        raise ValueError(f"the policy '{policy.name}' wants to be asked, but the schedule awaits no decisions")
    history = History() if history is None else history
    for model, progress in schedule.progress.items():
        history.begins(model)
        history.complete(model, progress.epochs)
    for decision in schedule.decisions.values():
        history.decided(decision)
    decide_all(schedule, ports, policy, history)
    while not schedule.finished:
        for segment in range(schedule.plan.segments):
            if segment not in schedule.busy or ports.reads_ahead(segment):
                unit = schedule.take(segment)
                if unit is not None:
                    group: list[Unit] = [unit, *schedule.fuse(unit)]
                    after = schedule.follow_ups(unit) if len(group) == 1 else []
                    ports.start([group, *([other] for other in after)])
        if not schedule.busy:
            raise RuntimeError("no unit is runnable and none is under way: the schedule is stuck")
        for outcome in ports.wait():
            settle(schedule, ports, outcome, history)
        decide_all(schedule, ports, policy, history)


def settle(schedule: Schedule, ports: Ports, outcome: Outcome, history: History) -> None:
    unit, model = outcome.unit, outcome.unit.model
    if outcome.error is None:
        if schedule.decides:
            record(history, outcome)
        schedule.succeeded(unit, outcome.seconds)
        return
    # Several evaluations of one model may fail, each on its segment, but the model is given up once.
    already = schedule.progress[model].status is Status.FAILED
    if schedule.failed(unit, outcome.error, try_again=outcome.try_again, most_tries=outcome.most_tries):
        ports.trying_again(unit, outcome.error)
    elif not already:
        ports.gave_up(model, schedule.progress[model].reason or outcome.error)


def record(history: History, outcome: Outcome) -> None:
    unit, figures = outcome.unit, (outcome.rows, outcome.loss, outcome.metrics)
    if isinstance(unit, Train):
        history.trained(unit.model, unit.epoch, unit.hop, *figures)
    else:
        history.evaluated(unit.model, unit.epoch, unit.dataset, unit.part, *figures)


def decide_all(schedule: Schedule, ports: Ports, policy: Policy, history: History) -> None:
    """Ask the policy about every model that awaits a decision; each decision is committed before it takes effect."""
    while awaiting := schedule.awaiting():  # a replayed decision may make way for another
        for model, epoch in awaiting:
            history.complete(model, epoch)
            said = schedule.replayed(model, epoch) or policy.decide(history, model, epoch)
            decision = schedule.prepared(said)
            schedule.decide(decision, ports.decided(decision))
            for new in decision.added:
                assert new.model is not None
                history.begins(new.model, ports.configuration(new.model))
            history.decided(decision)
