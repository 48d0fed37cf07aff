"""Estimates how many seconds a run still takes, from its schedule, the pace of its units, its method and its budget.

The work that is left are the visits that the models will make, those that will begin included, and their evaluations.
A visit costs what the visits so far have cost without building, or what earlier runs have measured.  A first visit to a
segment also costs the median of what first visits spent building.
The work is divided among the segments; a run never ends before its longest model.  A budget can end it earlier.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median

from ..records import dataclass, field
from ..search.budget import Budget, Used
from ..search.policy import Policy
from .plan import Evaluate, Plan, Train, Unit, segments_of
from .progress import ModelProgress, Spent, Status
from .schedule import Schedule

MOST_OVERHEAD = 3.0  # times the time of the units: segments that wait, and what driver and sessions do between units
EARLY = 9  # evaluations, as many as are recent
PLACES = 50  # of models that will begin, of which the expected epochs are asked
FEWEST_ROWS = 0.03  # of the visits under way, before their pace says anything


@dataclass(frozen=True)
class BegunUnit:
    """A unit that a segment works on."""

    unit: Unit
    seconds: float  # so far
    share: float = 0.0  # of its rows that are done, as far as it is known


@dataclass
class RunPace:
    """What the units of this session have cost.  What a first visit spends on building is apart: it happens once."""

    visits: Spent = field(default_factory=Spent)  # without building
    evaluations: Spent = field(default_factory=Spent)
    early: list[float] = field(default_factory=list)  # seconds of the first evaluations
    of_models: dict[int, Spent] = field(default_factory=dict)  # the visits of each
    seen: dict[int, set[int]] = field(default_factory=dict)  # model -> the segments where it was built
    built: list[float] = field(default_factory=list)  # by each first visit of a model to a segment
    expected_evaluation: float = 0.0  # seconds of one, by earlier runs; 0: they say nothing
    expected_building: float | None = None  # seconds of all trainers in all, by earlier runs; None: they say nothing

    def add(self, unit: Unit, seconds: float, building: float) -> None:
        if isinstance(unit, Evaluate):
            self.evaluations.add(seconds)
            if len(self.early) < EARLY:
                self.early.append(seconds)
            return
        segments = self.seen.setdefault(unit.model, set())
        if unit.segment in segments:
            building = 0.0
        else:
            segments.add(unit.segment)
            building = min(building, seconds)
            self.built.append(building)
        self.visits.add(seconds - building)
        self.of_models.setdefault(unit.model, Spent()).add(seconds - building)

    @property
    def seconds(self) -> float:
        """Of all units."""
        return self.visits.seconds + self.evaluations.seconds + sum(self.built)

    @property
    def evaluation(self) -> float:
        """Seconds of an evaluation; 0: nothing is known."""
        return self.evaluations.each or self.expected_evaluation

    def slower(self, progress: Mapping[int, ModelProgress]) -> float:
        """How many times as long the visits so far have taken as earlier runs say."""
        known = [(spent, progress[model].plan.expected) for model, spent in self.of_models.items() if model in progress]
        expected = sum(spent.units * seconds for spent, seconds in known if seconds)
        return sum(spent.seconds for spent, seconds in known if seconds) / expected if expected else 1.0

    def is_settled(self, first_visits: int) -> bool:
        """Whether it is known what building costs: the first of so many may have compiled for all others."""
        if self.expected_building is not None:
            return True
        each = self.visits.each
        return each is None or len(self.built) >= first_visits or median(self.built or [0.0]) <= each


@dataclass(frozen=True)
class Work:
    """What is left to do, in seconds of a segment."""

    seconds: float
    longest: float  # of the model that ends last
    models: int  # that can train at the same time


def seconds_left(
    schedule: Schedule,
    policy: Policy,
    pace: RunPace,
    *,
    under_way: Iterable[BegunUnit],
    elapsed: float,
    budget: Budget,
    used: Used,
    begins: int | None = None,
) -> float | None:
    """The estimate; None as long as nothing is known.

    ``elapsed``: seconds since the first unit of this session.  ``begins``: how many models will begin in all, if the
    policy proposes them.
    """
    busy = list(under_way)
    each = pace.visits.each or _pace_of(busy) or _expected(schedule)
    if each is None or not pace.is_settled(schedule.plan.segments * min(2, len(schedule.progress))):
        return None  # a budget is no estimate: most runs end long before it
    ends = _end_of_budget(schedule, each, busy, budget, used)
    work = _work(schedule, policy, pace, each, busy, begins)
    parallel = max(1, min(schedule.plan.segments, work.models))
    done = sum(min(one.seconds, each) * len(segments_of(one.unit)) for one in busy if isinstance(one.unit, Train))
    seen = pace.seconds + sum(one.seconds for one in busy)
    overhead = min(MOST_OVERHEAD, max(1.0, elapsed * min(parallel, len(busy) or parallel) / seen)) if seen else 1.0
    found = max((work.seconds - done) * overhead / parallel, work.longest - (done / len(busy) if busy else 0.0), 0.0)
    return found if ends is None else min(found, ends)


def _pace_of(busy: list[BegunUnit]) -> float | None:
    """Seconds of a visit, while none has ended: what those under way will have taken."""
    told = [one.seconds / one.share for one in busy if one.share >= FEWEST_ROWS]
    return sum(told) / len(told) if told else None


def _expected(schedule: Schedule) -> float | None:
    """Seconds of a visit by earlier runs, if they say something of all models that train."""
    active = [mine.plan.expected for mine in schedule.progress.values() if mine.status is Status.ACTIVE]
    return sum(active) / len(active) if active and all(active) else None


def _work(
    schedule: Schedule, policy: Policy, pace: RunPace, each: float, busy: list[BegunUnit], begins: int | None
) -> Work:
    plan = schedule.plan
    building = median(pace.built) if pace.built and pace.expected_building is None else 0.0
    slower = pace.slower(schedule.progress)
    parts = sum(map(len, plan.evaluations.values()))
    # What the evaluations add to each visit of the models that will begin.
    judging = (
        1 + parts * pace.evaluation / max(1, plan.evaluate_every) / plan.segments / each if plan.evaluate_every else 1
    )
    slow = {
        one.unit.model: one.seconds
        for one in busy
        if isinstance(one.unit, Train) and one.unit.segment in pace.seen.get(one.unit.model, ())
    }
    seconds, visits, models = 0.0, 0.0, 0
    lengths = [0.0]
    for place, (number, mine) in enumerate(schedule.progress.items()):
        if mine.status is not Status.ACTIVE:
            continue
        segments = len(mine.plan.jointly) or 1  # which its visits keep busy
        models += segments
        expected = _visits_left(mine, policy.expected_epochs(place, mine.hops // len(mine.order)))
        own = pace.of_models.get(number)
        costs = (own.each if own is not None and own.units > 1 else None) or mine.plan.expected * slower or each
        costs = max(costs, slow.get(number, 0.0))
        unbuilt = min(expected, max(0, len(set(mine.order)) - len(pace.seen.get(number, ()))))
        length = expected * costs + unbuilt * building
        judged = _evaluations_left(plan, mine, expected) * pace.evaluation
        seconds, visits = seconds + length * segments + judged, visits + expected
        lengths.append(length + judged / max(1, min(parts, plan.segments)))
    if pace.expected_building is not None and models:
        seconds += max(0.0, pace.expected_building - sum(pace.built))
    begun = len(schedule.progress)
    coming = max(0, (begins or 0) - begun)
    if coming:
        fresh = coming * _epochs(policy, range(begun, begun + coming), plan.epochs) * plan.segments
        seconds += fresh * each * judging + coming * building * plan.segments
        visits, models = visits + fresh, models + coming
    if models and policy.asks:
        # Models that wait may go on, as many as the method lets go on in all.
        in_all = (begun + coming) * _epochs(policy, range(begun + coming), plan.epochs) * plan.segments
        if in_all < (begun + coming) * plan.epochs * plan.segments:
            seconds += max(0.0, in_all - schedule.hops - visits) * each * judging
        # And one is the best, and trains all its epochs.
        best = max((mine.hops for mine in schedule.progress.values() if mine.status is not Status.FAILED), default=0)
        lengths.append((plan.epochs * plan.segments - best) * each * judging)
    return Work(seconds, max(lengths), models * (plan.segments if _averages(schedule) else 1))


def _epochs(policy: Policy, places: range, most: int) -> float:
    """The mean of the epochs that models at these places are expected to train; some of them are asked."""
    some = places[:: max(1, len(places) // PLACES)]
    return sum(min(most, policy.expected_epochs(place, 0)) for place in some) / len(some) if some else 0.0


def _averages(schedule: Schedule) -> bool:
    """Whether replicas of a model train on all segments at the same time."""
    return any(mine.plan.averages for mine in schedule.progress.values())


def _evaluations_left(plan: Plan, mine: ModelProgress, visits: float) -> float:
    """The evaluations of a model that makes so many more visits."""
    if not mine.plan.evaluated:
        return 0.0
    parts = sum(len(mine.plan.parts[name]) if mine.plan.parts else len(all_) for name, all_ in plan.evaluations.items())
    done, epochs = mine.hops / len(mine.order), (mine.hops + visits) / len(mine.order)
    if not plan.evaluate_every:
        return parts if epochs >= plan.epochs > mine.epochs else 0.0
    return parts * max(0.0, epochs - max(done, mine.epochs)) / plan.evaluate_every


def _visits_left(mine: ModelProgress, epochs: float) -> float:
    return max(0.0, min(mine.total, epochs * len(mine.order)) - mine.hops)


def _end_of_budget(
    schedule: Schedule, each: float | None, busy: list[BegunUnit], budget: Budget, used: Used
) -> float | None:
    """When the budget is spent, and the visits that have begun by then have ended."""
    segments = schedule.plan.segments
    ends = []
    seconds = budget.seconds_left(used, schedule.visit_seconds)
    if seconds is not None:
        ends.append(seconds)
    if budget.unit_hours is not None:
        ends.append((3600 * budget.unit_hours - used.unit_seconds) / segments - (each or 0.0) / 2)
    if budget.hops is not None and each is not None:
        ends.append((budget.hops - schedule.hops) * each / segments)
    if not ends:
        return None
    end = max(0.0, min(ends))
    if each is None:
        return end
    # Visits follow each other: on each segment, the last one is that in which the budget ends.
    lefts = [max(0.0, each - one.seconds) for one in busy if isinstance(one.unit, Train)]
    return max((left + each * math.ceil(max(0.0, end - left) / each) for left in lefts), default=end)
