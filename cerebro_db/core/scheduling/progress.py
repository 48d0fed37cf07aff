"""Where one model of a schedule stands."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from enum import Enum

from ..events import Verdict
from ..records import dataclass, field
from ..search.policy import Decision
from .plan import Average, ModelPlan, Train, TrainReplica, Unit
from .replay import point


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


RECENT = 9  # units


@dataclass
class Recent:
    """The seconds of the last units that are done."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def add(self, seconds: float) -> None:
        self.seconds.append(seconds)

    @property
    def mean(self) -> float:
        """0 before the first unit."""
        return sum(self.seconds) / len(self.seconds) if self.seconds else 0.0

    @property
    def typical(self) -> float | None:
        """The lower quartile: the first units may have built programs.  None before the first unit."""
        return sorted(self.seconds)[len(self.seconds) // 4] if self.seconds else None


@dataclass
class ModelProgress:
    """While a model is active, it has units waiting or under way, or it awaits a decision."""

    plan: ModelPlan
    order: list[int]  # its segments, in the order of its visits
    total: int  # hops in all epochs
    hops: int = 0
    replicas: set[int] = field(default_factory=set)  # of these hops, those of replicas whose average is not committed
    epochs: int = 0  # trained and evaluated
    status: Status = Status.ACTIVE
    reason: str | None = None
    decided: int = 0  # the last epoch that the policy or a rule has decided about
    waiting: set[Unit] = field(default_factory=set)  # may begin as soon as their segments are idle
    under_way: set[Unit] = field(default_factory=set)
    tries: dict[Unit, int] = field(default_factory=dict)  # failed attempts at units that are not done
    visits: Spent = field(default_factory=Spent)  # for the estimate of what remains
    recent: Recent = field(default_factory=Recent)  # visits
    evaluations: Spent = field(default_factory=Spent)

    @property
    def at_epoch_end(self) -> bool:
        """Whether it has trained no part of its next epoch."""
        return self.hops % len(self.order) == 0

    @property
    def own_hop(self) -> int:
        """The hop that left the model's state; states of replicas are not the model's."""
        return self.hops - len(self.replicas)

    def replicas_to_train(self) -> list[Train]:
        """Of a model that averages, the visits of replicas that the epoch still needs, at last the average alone."""
        *segments, averaging = self.order
        model, epoch = self.plan.model, self.hops // len(self.order)
        first = epoch * len(self.order) + 1
        replicas = [TrainReplica(model, first + n, epoch + 1, segment, n + 1) for n, segment in enumerate(segments)]
        missing: list[Train] = [replica for replica in replicas if replica.hop not in self.replicas]
        return missing or [Average(model, first + len(replicas), epoch + 1, averaging, len(replicas))]

    def has_hopped(self, hop: Train) -> None:
        """A hop is committed."""
        self.hops += 1
        if isinstance(hop, TrainReplica):
            self.replicas.add(hop.hop)
        elif isinstance(hop, Average):
            self.replicas.clear()

    def require_fits(self, hops: int, decisions: Sequence[Decision], models: Container[int | None]) -> None:
        """Refuse decisions on record that no schedule would have left there, if the model has so many hops."""
        done, stopped = hops // len(self.order), None
        for decision in decisions:
            what = f"the decision about epoch {decision.epoch} of model {decision.model}"
            if decision.model != self.plan.model:
                raise ValueError(f"{what} is given for model {self.plan.model}")
            assert decision.epoch is not None
            earliest = 0 if decision.verdict is Verdict.STOP or not decision.concludes else 1
            if decision.verdict is not Verdict.GO_ON and not earliest <= decision.epoch <= done:
                raise ValueError(f"{what} is on record, but the model has trained only {done} epochs")
            for new in decision.added:
                if new.model not in models:
                    raise ValueError(f"{what} has added model {new.model}, which the plan does not have")
            if decision.verdict is Verdict.STOP:
                stopped = decision
            elif decision.verdict is Verdict.GO_ON:
                if stopped is None:
                    raise ValueError(f"{what} lets it go on, but it was not stopped")
                stopped = None
        if stopped is not None and point(stopped, len(self.order)) != hops:
            raise ValueError(
                f"the decision about epoch {stopped.epoch} of model {stopped.model} has stopped it after"
                f" {stopped.epoch} epochs, but it has {hops} hops"
            )
