"""How long a run takes, by its real schedule on a simulated clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..records import dataclass
from ..scheduling import orchestrator
from ..scheduling.plan import ModelPlan, Plan, Train, TrainJointly, Unit
from ..scheduling.ports import Outcome
from ..scheduling.ring import ring_positions
from ..scheduling.schedule import Schedule
from ..search.budget import Used
from ..search.policy import Decision
from ..search.request import Request

MOST_SIMULATED = 500  # hops; a longer run has fewer epochs in the simulation, whose time is multiplied
MOST_IN_EPOCH = 2_000  # hops; a run with more is priced by its bound
MEAN_OVER_BOUND = 1.03  # of the makespan of the schedule over its lower bound (docs/scheduling.md)
MOST_FUSED = 16  # models in one pass over the rows


class SimulatedClock:
    """Ports that do nothing but let time pass.

    ``seconds``: of a unit, and of how many segments are at work when it begins.  ``part``: of fused units, what each
    but the longest costs, compared with what it costs alone.  ``order``: seconds of each order beside its units.
    """

    def __init__(
        self,
        seconds: Callable[[Unit, int], float],
        part: Callable[[Sequence[Unit]], float] = lambda units: 1.0,
        order: float = 0.0,
    ) -> None:
        self._of_unit, self._part, self._order, self.now, self.begun = seconds, part, order, 0.0, 0
        self.ends: list[tuple[float, int, list[Unit], float]] = []

    def start(self, groups: Sequence[Sequence[Unit]]) -> None:
        self.begun += 1
        took, at_work = self._order, len(self.ends) + 1
        for units in groups:
            if isinstance(units[0], TrainJointly):
                at_work = len(units[0].segments)
            costs = [self._of_unit(unit, at_work) for unit in units]
            took += max(costs) + self._part(units) * (sum(costs) - max(costs))
        heapq.heappush(self.ends, (self.now + took, self.begun, [unit for units in groups for unit in units], took))

    def wait(self) -> list[Outcome]:
        self.now, _, units, took = heapq.heappop(self.ends)
        return [Outcome(unit, seconds=took / len(units)) for unit in units]

    def reads_ahead(self, segment: int) -> bool:
        return False

    def segments_allowed(self) -> int | None:
        return None

    def gave_up(self, model: int, reason: str) -> None: ...

    def trying_again(self, unit: Unit, reason: str) -> None: ...

    def decided(self, decisions: Sequence[Decision]) -> list[ModelPlan]:
        return []

    def configuration(self, model: int) -> Mapping[str, Any]:
        return {}

    def best_hop(self, model: int) -> int | None:
        return None

    def requests(self) -> list[Request]:
        return []

    def ruled(self, model: int, epoch: int) -> str | None:
        return None

    def used(self) -> Used:
        return Used(self.now)


@dataclass(frozen=True)
class SimulatedModel:
    """What a model costs, in seconds; of each of them a function of how many segments are at work."""

    visit: Callable[[int], float]
    evaluation: Callable[[int], float]  # on one part
    build: float = 0.0  # in its first visit to a segment, if that has not built a model of its ``program`` before
    program: str = ""
    group: str | None = None  # its fusion group
    part: float = 1.0  # what a further member of that costs, compared with a model alone


def makespan(
    models: Sequence[SimulatedModel], segments: int, epochs: int, *, parts: int = 0, evaluate_every: int = 0
) -> float:
    """The seconds from the first visit to the end of the last evaluation."""
    if not models:
        return 0.0
    hops = len(models) * segments
    if hops > MOST_IN_EPOCH:
        return MEAN_OVER_BOUND * lower_bound(models, segments, epochs, parts=parts, evaluate_every=evaluate_every)
    fewer = max(1, min(epochs, MOST_SIMULATED // hops))
    costs = [one.visit(1) for one in models]
    positions = ring_positions(dict(enumerate(costs)))
    plan = Plan(
        seed=0,
        models=tuple(ModelPlan(place, positions[place], group=one.group) for place, one in enumerate(models)),
        segments=segments,
        epochs=fewer,
        evaluations={"validation": {part: part % segments for part in range(parts)}} if parts else {},
        evaluate_every=evaluate_every,
        most_fused=MOST_FUSED,
    )
    built: set[tuple[int, str]] = set()
    building = 0.0

    def seconds(unit: Unit, at_work: int) -> float:
        nonlocal building
        one = models[unit.model]
        if not isinstance(unit, Train):
            return one.evaluation(at_work)
        first = (unit.segment, one.program) not in built and one.build > 0
        if first:
            built.add((unit.segment, one.program))
            building += one.build
        return one.visit(at_work) + (one.build if first else 0.0)

    clock = SimulatedClock(seconds, lambda units: models[units[0].model].part)
    orchestrator.run(Schedule(plan), clock)
    once = building / segments  # building happens once, however many epochs there are
    return max(0.0, clock.now - once) * epochs / fewer + once


def lower_bound(
    models: Sequence[SimulatedModel], segments: int, epochs: int, *, parts: int = 0, evaluate_every: int = 0
) -> float:
    """What no schedule can beat without fusion: the work of all segments, or that of the longest model."""
    at_work = max(1, min(segments, len(models)))
    evaluations = parts * (epochs // evaluate_every if evaluate_every else 1)
    visits = [epochs * segments * one.visit(at_work) for one in models]
    evaluated = [evaluations * one.evaluation(at_work) for one in models]
    programs = {one.program: one.build for one in models}
    whole = (sum(visits) + sum(evaluated)) / segments + sum(programs.values())
    longest = max(trained + judged / max(1, min(parts, segments)) for trained, judged in zip(visits, evaluated))
    return max(whole, longest)
