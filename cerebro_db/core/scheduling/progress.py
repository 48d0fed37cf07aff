"""Where one model of a schedule stands."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from enum import Enum

from ..events import Verdict
from ..search.policy import Decision
from .plan import ModelPlan, Unit


class Status(str, Enum):
    ACTIVE = "active"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass
class Spent:
    """The seconds of some units that are done."""

    seconds: float = 0.0
    units: int = 0

    def add(self, seconds: float) -> None:
        self.seconds, self.units = self.seconds + seconds, self.units + 1

    @property
    def each(self) -> float | None:
        """The mean; None before the first unit."""
        return self.seconds / self.units if self.units else None


@dataclass
class Progress:
    """While a model is active, it has units waiting or under way, or it awaits a decision."""

    plan: ModelPlan
    order: list[int]  # its segments, in the order of its visits
    total: int  # hops in all epochs
    hops: int = 0
    epochs: int = 0  # trained and evaluated
    status: Status = Status.ACTIVE
    reason: str | None = None
    decided: int = 0  # the last epoch that has a decision on record
    waiting: set[Unit] = field(default_factory=set)  # may begin as soon as their segments are idle
    under_way: set[Unit] = field(default_factory=set)
    tries: dict[Unit, int] = field(default_factory=dict)  # failed attempts at units that are not done
    visits: Spent = field(default_factory=Spent)  # for the estimate of what remains
    evaluations: Spent = field(default_factory=Spent)

    def require_fits(self, hops: int, decision: Decision, models: Container[int | None]) -> None:
        """Refuse a decision on record that no schedule would have left there, if the model has so many hops."""
        done, step = divmod(hops, len(self.order))
        what = f"the decision about epoch {decision.epoch} of model {decision.model}"
        if decision.model != self.plan.model:
            raise ValueError(f"{what} is given for model {self.plan.model}")
        if not 1 <= decision.epoch <= done:
            raise ValueError(f"{what} is on record, but the model has trained only {done} epochs")
        if decision.verdict is Verdict.STOP and (done, step) != (decision.epoch, 0):
            raise ValueError(f"{what} has stopped it after {decision.epoch} epochs, but it has {hops} hops")
        for new in decision.added:
            if new.model not in models:
                raise ValueError(f"{what} has added model {new.model}, which the plan does not have")
