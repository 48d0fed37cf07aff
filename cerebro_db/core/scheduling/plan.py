"""What a run is to do: its models, its segments, its epochs and evaluations, and the units that they come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar, Union

from ..events import HopKind
from ..records import dataclass, field
from .ring import visit_order

MOST_HOPS = 2**31 - 1  # of one model


@dataclass(frozen=True)
class ModelPlan:
    """A model, and what decides its visits."""

    model: int  # its number within the run
    position: int  # where it enters the ring of segments
    visits: tuple[int, ...] | None = None  # the segments that it visits; None: all
    group: str | None = None  # its fusion group: models of one group may train fused; None: it trains alone
    # Models of one series may train, or be evaluated, one after the other in one order; None: one order per unit.
    series: str | None = None
    # A visit of a model takes about as long as those of other models of its sort; None: nothing is known of it.
    sort: str | None = None
    refused: str | None = None  # why it cannot train at all
    # Replicas of it train in all visits of an epoch but the last, at the same time; the last one averages their states.
    averages: bool = False
    # The segments whose trainers train it together, each with the gradients of its own rows; its only visit names one.
    jointly: tuple[int, ...] = ()
    # Its visits take the rows of one segment after the other, but all its units are on this segment, which has copies
    # of the rows.  None: it hops.
    stays_on: int | None = None
    fold: int | None = None  # the fold that it does not train on
    evaluated: bool = True  # whether it is in the evaluations of the plan
    # The configuration, and its group, whose best epoch is the best in the mean over its folds; None: no folds say it.
    judged: str | None = None
    judges: int = 0  # of the model on all these rows: how many models of folds there are, or will be
    group_number: int | None = None  # the group on whose rows it trains
    starts_from: int | None = None  # the model whose stored state it reads in its first visit
    # Data set -> the parts of it that have rows for this model; None: all parts.
    parts: Mapping[str, Collection[int]] | None = None
    # How many epochs, with their evaluations, one order may have of it: all its rows are on one segment, where they
    # train and evaluate alike.  0: an order has one unit of it.
    most_chained: int = 0
    expected: float = 0.0  # seconds of a visit, by what earlier runs have measured; 0: they say nothing

    @property
    def on_all_rows(self) -> bool:
        return self.fold is None and self.group_number is None

    @property
    def is_judge(self) -> bool:
        """Whether it is trained only to say how good each epoch of another model is."""
        return self.judged is not None and self.fold is not None


@dataclass(frozen=True)
class Train:
    """A visit: one model trains one pass over one segment's rows. It is the model's ``hop``-th, counted from 1."""

    kind: ClassVar[HopKind] = HopKind.TRAIN

    model: int
    hop: int
    epoch: int
    segment: int

    @property
    def start(self) -> int:
        """The hop that left the state from which this one starts; 0: the initial state."""
        return self.hop - 1


@dataclass(frozen=True)
class TrainReplica(Train):
    """A visit of a replica of a model; all replicas start from the state after the model's last epoch."""

    kind: ClassVar[HopKind] = HopKind.TRAIN_REPLICA

    replica: int  # number of the replica, from 1

    @property
    def start(self) -> int:
        return self.hop - self.replica


@dataclass(frozen=True)
class Average(Train):
    """The last hop of an epoch that replicas have trained: the average of their states becomes the model's state."""

    kind: ClassVar[HopKind] = HopKind.AVERAGE

    replicas: int  # how many

    @property
    def averaged(self) -> range:
        """The hops that left the states of the replicas."""
        return range(self.hop - self.replicas, self.hop)


@dataclass(frozen=True)
class TrainJointly(Train):
    """The visit of an epoch in which several segments train one model: gradient accumulation over their rows."""

    segments: tuple[int, ...]  # all of them, the one that stores the state first


@dataclass(frozen=True)
class Evaluate:
    """One model, as it is after ``epoch``, is evaluated on one part of a data set."""

    model: int
    hop: int
    epoch: int
    segment: int
    dataset: str
    part: int


Unit = Union[Train, Evaluate]


def segments_of(unit: Unit) -> tuple[int, ...]:
    """The segments that a unit keeps busy."""
    return unit.segments if isinstance(unit, TrainJointly) else (unit.segment,)


def parts_in_order(seed: int, position: int, segments: int, visits: Collection[int] | None) -> list[int]:
    """The segments whose rows the visits of each epoch of a model take, in their order."""
    order = visit_order(seed, position, segments)
    return order if visits is None else [segment for segment in order if segment in visits]


@dataclass(frozen=True)
class Plan:
    """Everything that determines the schedule."""

    seed: int
    models: tuple[ModelPlan, ...]
    segments: int
    epochs: int
    # Data set -> for each part of it that has rows, the segment that evaluates it.
    evaluations: dict[str, dict[int, int]] = field(default_factory=dict)
    evaluate_every: int = 0  # epochs; 0: only after the last
    evaluate_after: frozenset[int] = frozenset()  # further epochs after which models are evaluated
    most_fused: int = 1  # how many models may train in one pass
    series_seconds: float = 0.0  # how long the units of one order may take in all; 0: one order per unit

    def __post_init__(self) -> None:
        for name, least in (("segments", 1), ("epochs", 0), ("evaluate_every", 0), ("most_fused", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least {least}")
        numbers = [one.model for one in self.models]
        if len(set(numbers)) < len(numbers):
            twice = sorted(number for number, times in Counter(numbers).items() if times > 1)
            raise ValueError(f"two models have the same number: {', '.join(map(str, twice))}")
        for one in self.models:
            self.require_visits(one)
        # An evaluation on a segment that does not exist would wait for ever.
        used = {segment for parts in self.evaluations.values() for segment in parts.values()}
        if not used <= set(range(self.segments)):
            raise ValueError(f"an evaluation is on a segment outside 0..{self.segments - 1}")

    def require_visits(self, one: ModelPlan) -> None:
        if one.stays_on is not None and (
            one.averages or one.jointly or one.most_chained or one.stays_on not in range(self.segments)
        ):
            raise ValueError(f"model {one.model} cannot stay on segment {one.stays_on}")
        if one.jointly and one.visits != one.jointly[:1]:
            raise ValueError(f"model {one.model} is trained by segments {one.jointly}, but its visits are {one.visits}")
        if one.visits is None:
            if one.averages:
                raise ValueError(f"model {one.model} averages, so its plan must say on which segment")
            return
        trains = one.visits[:-1] if one.averages else one.visits
        if not trains or len(set(trains)) < len(trains):
            raise ValueError(
                f"model {one.model} must visit one segment or more, each once; its visits are {one.visits}"
            )
        if not {*one.visits, *one.jointly} <= set(range(self.segments)):
            raise ValueError(f"model {one.model} visits a segment outside 0..{self.segments - 1}: {one.visits}")
        if one.most_chained:
            segments = {*one.visits, *(segment for _, _, segment in self.evaluations_of(one))}
            if len(segments) > 1:
                raise ValueError(f"the units of model {one.model} are on several segments: no order can have them all")

    def order_of(self, one: ModelPlan) -> list[int]:
        """The segments of a model in the order in which it visits them, every epoch."""
        if one.averages and one.visits is not None:
            return list(one.visits)
        parts = parts_in_order(self.seed, one.position, self.segments, one.visits)
        return parts if one.stays_on is None else [one.stays_on] * len(parts)

    def evaluations_of(self, one: ModelPlan) -> Iterator[tuple[str, int, int]]:
        """The data set, the part and the segment of each evaluation of a model."""
        for dataset, parts in self.evaluations.items():
            for part, segment in parts.items():
                if one.evaluated and (one.parts is None or part in one.parts[dataset]):
                    yield dataset, part, segment if one.stays_on is None else one.stays_on

    def epoch_of(self, one: ModelPlan, visit: Train) -> list[Unit]:
        """The last visit of an epoch, and the evaluations after it."""
        if not self.evaluates_after(visit.epoch):
            return [visit]
        return [
            visit,
            *(
                Evaluate(visit.model, visit.hop, visit.epoch, segment, dataset, part)
                for dataset, part, segment in self.evaluations_of(one)
            ),
        ]

    def evaluates_after(self, epoch: int) -> bool:
        every = self.evaluate_every > 0 and epoch % self.evaluate_every == 0
        return every or epoch == self.epochs or epoch in self.evaluate_after
