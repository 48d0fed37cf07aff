"""Model Hopper Parallelism in one page: which configuration trains where, and in which order.

An *experiment* has C configurations and S segments.  In every epoch each configuration visits each
segment exactly once; one visit is a *unit*.  The *order* of a configuration's visits is a pure
function of the run's seed, so a run can be repeated exactly; *when* a visit happens is decided as
segments fall idle, so nobody ever waits at a barrier.

The rules that hold at any moment:

* a segment works on one unit at a time;
* a configuration is on one segment at a time (its state is in one place);
* the next epoch of a configuration begins only when its evaluations of the last one are done, for
  they read the very state that training would replace.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Union


def derived_seed(*parts: object) -> int:
    """A 63-bit seed that depends on every part and on nothing else."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def visit_order(seed: int, place: int, segments: int) -> list[int]:
    """The segments in the order in which the ``place``-th configuration visits them, every epoch.

    One random ring per run, which every configuration enters at a point of its own: configurations
    of equal cost never want the same segment at the same time, and of mixed cost rarely (the
    simulation in tests/core/test_schedule.py; drawing a new order per epoch or per configuration
    leaves segments idle).  Randomness between epochs comes from reshuffling the rows of each visit.
    """
    ring = list(range(segments))
    random.Random(derived_seed(seed, "ring")).shuffle(ring)
    return [ring[(place + step) % segments] for step in range(segments)]


@dataclass(frozen=True)
class Train:
    """One configuration trains one pass over one segment's rows: its ``hop``-th, counted from 1."""

    configuration: int
    hop: int
    epoch: int
    segment: int


@dataclass(frozen=True)
class Evaluate:
    """One configuration, as it is after ``epoch``, is evaluated on one part of a data set."""

    configuration: int
    hop: int
    epoch: int
    segment: int
    dataset: str
    part: int


Unit = Union[Train, Evaluate]


class Status(str, Enum):
    ACTIVE = "active"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True)
class Plan:
    """Everything that decides the schedule."""

    seed: int
    configurations: tuple[int, ...]
    segments: int
    epochs: int
    # Data set -> for each part of it that has rows, the segment that evaluates it.
    evaluations: dict[str, dict[int, int]] = field(default_factory=dict)
    evaluate_every: int = 0  # epochs; 0: only after the last

    def evaluates_after(self, epoch: int) -> bool:
        return epoch == self.epochs or (self.evaluate_every > 0 and epoch % self.evaluate_every == 0)


@dataclass
class Progress:
    """Where one configuration stands."""

    place: int
    hops: int = 0
    status: Status = Status.ACTIVE
    reason: str | None = None
    training: bool = False
    waiting_for: set[tuple[str, int]] = field(default_factory=set)  # evaluations not begun
    evaluating: set[tuple[str, int]] = field(default_factory=set)  # evaluations under way
    seconds: float = 0.0  # spent training, for the estimate of what remains
    units: int = 0
    tries: int = 0  # failed attempts at the unit that comes next


class Schedule:
    """The state machine of a run: what is done, what is under way, what an idle segment does next."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.progress = {key: Progress(place) for place, key in enumerate(plan.configurations)}
        self.busy: dict[int, Unit] = {}
        self._orders = {
            key: visit_order(plan.seed, place, plan.segments) for place, key in enumerate(plan.configurations)
        }

    # -- what the log says has happened ----------------------------------------------------------

    def restore(self, key: int, hops: int, evaluated: Iterable[tuple[int, str, int]] = ()) -> None:
        """Take up a configuration where its log ends: ``hops`` done, and these (epoch, dataset, part)."""
        mine = self.progress[key]
        mine.hops = hops
        epoch, step = divmod(hops, self.plan.segments)
        if step == 0 and epoch > 0:
            self._epoch_ended(mine, epoch)
            mine.waiting_for -= {(dataset, part) for e, dataset, part in evaluated if e == epoch}
        self._settle(mine)

    def give_up(self, key: int, reason: str) -> None:
        mine = self.progress[key]
        mine.status, mine.reason = Status.FAILED, reason
        mine.waiting_for.clear()

    # -- questions -------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return not self.busy and all(mine.status is not Status.ACTIVE for mine in self.progress.values())

    def hops_total(self, key: int) -> int:
        return self.plan.epochs * self.plan.segments

    def next_visit(self, key: int) -> Train:
        mine = self.progress[key]
        epoch, step = divmod(mine.hops, self.plan.segments)
        return Train(key, mine.hops + 1, epoch + 1, self._orders[key][step])

    def candidates(self, segment: int) -> list[Unit]:
        """The units that may begin on this idle segment now."""
        units: list[Unit] = []
        for key, mine in self.progress.items():
            if mine.status is not Status.ACTIVE or mine.training:
                continue
            for dataset, part in sorted(mine.waiting_for):
                if self.plan.evaluations[dataset][part] == segment:
                    epoch = mine.hops // self.plan.segments
                    units.append(Evaluate(key, mine.hops, epoch, segment, dataset, part))
            if not mine.waiting_for and not mine.evaluating and mine.hops < self.hops_total(key):
                visit = self.next_visit(key)
                if visit.segment == segment:
                    units.append(visit)
        return units

    def remaining(self, key: int) -> float:
        """The estimated seconds of training that a configuration still needs."""
        mine = self.progress[key]
        measured = [other for other in self.progress.values() if other.units]
        if mine.units:
            unit = mine.seconds / mine.units
        elif measured:
            unit = sum(other.seconds for other in measured) / sum(other.units for other in measured)
        else:
            unit = 1.0
        return unit * (self.hops_total(key) - mine.hops)

    # -- moves -----------------------------------------------------------------------------------

    def take(self, segment: int) -> Unit | None:
        """Begin the best unit for an idle segment: the configuration with most work left goes first."""
        if segment in self.busy:
            raise RuntimeError(f"segment {segment} is busy")
        units = self.candidates(segment)
        if not units:
            return None
        unit = max(units, key=lambda u: (self.remaining(u.configuration), -self.progress[u.configuration].place))
        mine = self.progress[unit.configuration]
        if isinstance(unit, Train):
            mine.training = True
        else:
            mine.waiting_for.discard((unit.dataset, unit.part))
            mine.evaluating.add((unit.dataset, unit.part))
        self.busy[segment] = unit
        return unit

    def succeeded(self, unit: Unit, seconds: float = 0.0) -> None:
        mine = self._release(unit)
        mine.tries = 0
        if isinstance(unit, Train):
            mine.hops += 1
            mine.seconds += seconds
            mine.units += 1
            epoch, step = divmod(mine.hops, self.plan.segments)
            if step == 0 and mine.status is Status.ACTIVE:
                self._epoch_ended(mine, epoch)
        self._settle(mine)

    def failed(self, unit: Unit, reason: str, *, try_again: bool, most_tries: int = 3) -> bool:
        """A unit did not succeed.  True if it will be tried again."""
        mine = self._release(unit)
        mine.tries += 1
        if mine.status is not Status.ACTIVE:
            return False
        if try_again and mine.tries < most_tries:
            if isinstance(unit, Evaluate):
                mine.waiting_for.add((unit.dataset, unit.part))
            return True
        self.give_up(unit.configuration, reason if not try_again else f"gave up after {mine.tries} attempts: {reason}")
        return False

    # -- within ----------------------------------------------------------------------------------

    def _release(self, unit: Unit) -> Progress:
        if self.busy.get(unit.segment) != unit:
            raise RuntimeError(f"{unit} is not under way")
        del self.busy[unit.segment]
        mine = self.progress[unit.configuration]
        if isinstance(unit, Train):
            mine.training = False
        else:
            mine.evaluating.discard((unit.dataset, unit.part))
        return mine

    def _epoch_ended(self, mine: Progress, epoch: int) -> None:
        if self.plan.evaluates_after(epoch):
            mine.waiting_for = {(name, part) for name, parts in self.plan.evaluations.items() for part in parts}

    def _settle(self, mine: Progress) -> None:
        done = mine.hops >= self.plan.epochs * self.plan.segments
        if done and mine.status is Status.ACTIVE and not mine.waiting_for and not mine.evaluating:
            mine.status = Status.FINISHED
