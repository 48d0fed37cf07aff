"""Model Hopper Parallelism in one page: which configuration trains where, and in which order.

An *experiment* has C configurations and S segments.  In every epoch each configuration visits each
segment exactly once; one visit is a *unit*.  The *order* of a configuration's visits is a pure
function of the run's seed, so a run can be repeated exactly; *when* a visit happens is decided as
segments fall idle, so nobody ever waits at a barrier.

The rules that hold at any moment:

* a segment works on one unit at a time, or on several *alike* that train together in one pass (fusion);
* a configuration is on one segment at a time (its state is in one place);
* the next epoch of a configuration begins only when its evaluations of the last one are done, for
  they read the very state that training would replace.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Union

ROUNDING = 1 + 1e-9  # equal shares are equal, however they were added up


def derived_seed(*parts: object) -> int:
    """A 63-bit seed that depends on every part and on nothing else."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def power_of_two(most: int) -> int:
    """The largest one that is no more."""
    return 1 << (most.bit_length() - 1)


def visit_order(seed: int, enters: int, segments: int) -> list[int]:
    """The segments in the order in which a configuration that enters the ring there visits them, every epoch.

    One random ring per run, which every configuration enters at a point of its own: configurations
    of equal cost never want the same segment at the same time, and of mixed cost rarely.  A new ring
    per epoch, or an order per configuration, leaves segments idle (docs/scheduling.md has the numbers).
    Randomness between epochs comes from reshuffling the rows of each visit.
    """
    ring = list(range(segments))
    random.Random(derived_seed(seed, "ring")).shuffle(ring)
    return [ring[(enters + step) % segments] for step in range(segments)]


def entries(costs: Mapping[int, Any], taken: Container[int] = ()) -> dict[int, int]:
    """Where each configuration enters the ring: those that cost most first, one after the other, where nobody does yet.

    So those of one cost begin on as many segments as there are; all of a costly kind on one would make the others wait.
    """
    costliest_first = sorted(costs, key=lambda key: costs[key], reverse=True)
    return dict(zip(costliest_first, (entry for entry in itertools.count() if entry not in taken)))


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
    enters: dict[int, int] = field(default_factory=dict)  # where on the ring; those without: at their place here
    # Configurations that may train together have the same word here; those without one train alone.
    alike: dict[int, str] = field(default_factory=dict)
    most_together: int = 1

    def __post_init__(self) -> None:
        if self.segments < 1 or self.epochs < 0 or self.evaluate_every < 0 or self.most_together < 1:
            raise ValueError(
                f"no schedule has {self.segments} segments and {self.epochs} epochs, {self.most_together} at a time"
            )
        if len(set(self.configurations)) < len(self.configurations):
            raise ValueError("two configurations have the same key")
        # A part on a segment that is not there would wait for ever.
        used = {segment for parts in self.evaluations.values() for segment in parts.values()}
        if not used <= set(range(self.segments)):
            raise ValueError(f"an evaluation is on a segment outside 0..{self.segments - 1}")

    def evaluates_after(self, epoch: int) -> bool:
        return epoch == self.epochs or (self.evaluate_every > 0 and epoch % self.evaluate_every == 0)


@dataclass
class Progress:
    """Where one configuration stands.  While it is active, it has units waiting or under way."""

    enters: int
    hops: int = 0
    status: Status = Status.ACTIVE
    reason: str | None = None
    waiting: set[Unit] = field(default_factory=set)  # may begin as soon as their segments are idle
    under_way: set[Unit] = field(default_factory=set)
    tries: dict[Unit, int] = field(default_factory=dict)  # failed attempts at units that are not done
    seconds: float = 0.0  # spent training, for the estimate of what remains
    units: int = 0


class Schedule:
    """The state machine of a run: what is done, what is under way, what an idle segment does next."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.progress = {
            key: Progress(plan.enters.get(key, place)) for place, key in enumerate(plan.configurations)
        }
        self.busy: dict[int, set[Unit]] = {}
        self._active = set(plan.configurations)
        # The same units as in Progress.waiting, by segment: 1,000 configurations are not searched for each hop.
        self._waiting: list[dict[Unit, None]] = [{} for _ in range(plan.segments)]
        self._seconds, self._units = 0.0, 0  # of all configurations
        self._orders = {key: visit_order(plan.seed, mine.enters, plan.segments) for key, mine in self.progress.items()}
        for key in plan.configurations:
            self._go_on(key)

    # -- what the log says has happened ----------------------------------------------------------

    def restore(self, key: int, hops: int, evaluated: Iterable[tuple[int, str, int]] = ()) -> None:
        """Take up a configuration where its log ends: ``hops`` done, and these (epoch, dataset, part)."""
        mine = self.progress[key]
        if not 0 <= hops <= self.hops_each:
            raise ValueError(f"configuration {key} has {hops} hops on record, of {self.hops_each}")
        if mine.under_way:
            raise RuntimeError(f"configuration {key} is under way")
        self._withdraw(mine)
        mine.hops = hops
        self._hopped(key, set(evaluated))

    def give_up(self, key: int, reason: str) -> None:
        """Nothing of this configuration begins any more; what is under way may still end."""
        mine = self.progress[key]
        self._withdraw(mine)
        mine.status, mine.reason = Status.FAILED, reason
        self._active.discard(key)

    # -- questions -------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return not self.busy and not self._active

    @property
    def hops_each(self) -> int:
        """How many hops a configuration has in all."""
        return self.plan.epochs * self.plan.segments

    def next_visit(self, key: int) -> Train:
        mine = self.progress[key]
        epoch, step = divmod(mine.hops, self.plan.segments)
        return Train(key, mine.hops + 1, epoch + 1, self._orders[key][step])

    def candidates(self, segment: int) -> list[Unit]:
        """The units that may begin on this segment when it is idle."""
        return list(self._waiting[segment])

    def remaining(self, key: int) -> float:
        """The estimated seconds of training that a configuration still needs."""
        mine = self.progress[key]
        if mine.units:
            unit = mine.seconds / mine.units
        elif self._units:
            unit = self._seconds / self._units  # like the others, until it is known better
        else:
            unit = 1.0
        return unit * (self.hops_each - mine.hops)

    # -- moves -----------------------------------------------------------------------------------

    def take(self, segment: int) -> Unit | None:
        """Begin the most urgent unit of a segment, if there is one."""
        if not self._waiting[segment]:
            return None
        unit = max(self._waiting[segment], key=self._urgency)
        self._begin(unit)
        return unit

    def companions(self, unit: Unit) -> list[Train]:
        """Begin, along with a unit that was just taken, what can train together with it in one pass.

        Only what waits for the same segment, and no more than leaves the other segments their share of all work:
        those who trained together arrive together, and a crowd would have them all idle but one.
        And only 2, 4, 8, … at a time: for each number the step is compiled anew.
        A unit that has failed before trains alone, lest it drag others along again.
        """
        kind = self.plan.alike.get(unit.configuration)
        if kind is None or not self._is_untried_visit(unit):
            return []
        waiting = [
            other
            for other in self._waiting[unit.segment]
            if isinstance(other, Train)
            and self.plan.alike.get(other.configuration) == kind
            and self._is_untried_visit(other)
        ]
        if not waiting:
            return []
        room = sum(map(self.remaining, self._active)) / self.plan.segments - self.remaining(unit.configuration)
        companions: list[Train] = []
        for other in sorted(waiting, key=self._urgency, reverse=True):
            work = self.remaining(other.configuration)
            if work <= room * ROUNDING and len(companions) + 1 < self.plan.most_together:
                room -= work
                companions.append(other)
        del companions[power_of_two(len(companions) + 1) - 1 :]
        for other in companions:
            self._begin(other)
        return companions

    def succeeded(self, unit: Unit, seconds: float = 0.0) -> None:
        mine = self._release(unit)
        mine.tries.pop(unit, None)
        if isinstance(unit, Train):
            mine.hops += 1
            mine.seconds, mine.units = mine.seconds + seconds, mine.units + 1
            self._seconds, self._units = self._seconds + seconds, self._units + 1
            self._hopped(unit.configuration)
        elif not mine.waiting and not mine.under_way:
            self._go_on(unit.configuration)

    def failed(self, unit: Unit, reason: str, *, try_again: bool, most_tries: int = 3) -> bool:
        """A unit did not succeed.  True if it will be tried again."""
        mine = self._release(unit)
        if mine.status is not Status.ACTIVE:
            return False
        tries = mine.tries[unit] = mine.tries.get(unit, 0) + 1
        if try_again and tries < most_tries:
            self._offer(unit)
            return True
        self.give_up(unit.configuration, f"gave up after {tries} attempts: {reason}" if try_again else reason)
        return False

    # -- within ----------------------------------------------------------------------------------

    def _hopped(self, key: int, evaluated: Container[tuple[int, str, int]] = ()) -> None:
        """After its last hop of an epoch a configuration is evaluated, if the plan says so; else it goes on."""
        mine = self.progress[key]
        epoch, step = divmod(mine.hops, self.plan.segments)
        if mine.status is Status.ACTIVE and step == 0 and epoch > 0 and self.plan.evaluates_after(epoch):
            for dataset, parts in self.plan.evaluations.items():
                for part, segment in parts.items():
                    if (epoch, dataset, part) not in evaluated:
                        self._offer(Evaluate(key, mine.hops, epoch, segment, dataset, part))
        if not mine.waiting:
            self._go_on(key)

    def _go_on(self, key: int) -> None:
        mine = self.progress[key]
        if mine.status is not Status.ACTIVE:
            return
        if mine.hops < self.hops_each:
            self._offer(self.next_visit(key))
        else:
            mine.status = Status.FINISHED
            self._active.discard(key)

    def _begin(self, unit: Unit) -> None:
        mine = self.progress[unit.configuration]
        del self._waiting[unit.segment][unit]
        mine.waiting.remove(unit)
        mine.under_way.add(unit)
        self.busy.setdefault(unit.segment, set()).add(unit)

    def _is_untried_visit(self, unit: Unit) -> bool:
        return isinstance(unit, Train) and unit not in self.progress[unit.configuration].tries

    def _offer(self, unit: Unit) -> None:
        self.progress[unit.configuration].waiting.add(unit)
        self._waiting[unit.segment][unit] = None

    def _withdraw(self, mine: Progress) -> None:
        for unit in mine.waiting:
            del self._waiting[unit.segment][unit]
        mine.waiting.clear()

    def _release(self, unit: Unit) -> Progress:
        units = self.busy.get(unit.segment, set())
        if unit not in units:
            raise RuntimeError(f"{unit} is not under way")
        units.remove(unit)
        if not units:
            del self.busy[unit.segment]
        mine = self.progress[unit.configuration]
        mine.under_way.remove(unit)
        return mine

    def _urgency(self, unit: Unit) -> tuple[bool, float, int]:
        """First the configuration with most work left, so that the longest does not end alone.

        But an evaluation that holds up a next epoch goes before any training: it is short, and its
        configuration waits for all parts, each behind a whole visit.  The last evaluation holds up nothing.
        """
        holds_up = isinstance(unit, Evaluate) and unit.epoch < self.plan.epochs
        return holds_up, self.remaining(unit.configuration), -self.progress[unit.configuration].enters
