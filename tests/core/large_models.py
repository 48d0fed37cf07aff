"""Simulates models that are larger than a device: shard after shard, and the other ways to train them.

``PYTHONPATH=.:plpy python tests/core/large_models.py`` prints the table of docs/scheduling.md.

A model of w GB of weights has a state of 3 w (Adam), and needs 4 w to train (with its gradients).  A model that needs
more than a device has is cut into shards of equal size.  A minibatch passes forward through its shards and backward
again; a shard's weights are loaded for each, its optimizer for the second, and its state is stored after it.  Going
backward, a shard computes its outputs again.  A step forward is a third of the work of an uncut model.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from fakes import Clock, models

from cerebro_db.core.scheduling import orchestrator
from cerebro_db.core.scheduling.ring import derived_seed, ring_positions
from cerebro_db.core.scheduling.schedule import Plan, Schedule, Unit
from cerebro_db.core.scheduling.waiting import WorkOfModel

DEVICES, MODELS, EPOCHS, BATCHES = 8, 16, 3, 64
MEMORY = 8.0  # GB of a device
LARGEST = 8.0  # GB of weights
RATE = 12.0  # GB per second from the host's memory to a device, and at the same time back


@dataclass(frozen=True)
class Step:
    """What a device does with one shard without a pause."""

    compute: float  # seconds
    load: float  # seconds
    store: float  # seconds


@dataclass(frozen=True)
class LargeModel:
    """A model, and the seconds that a minibatch takes a device that could hold it."""

    weights: float  # GB
    compute: float

    def shards(self, at_once: int) -> int:
        """``at_once``: how many of them a device holds: two, if it reads the next one ahead."""
        needs = 4 * self.weights
        return 1 if needs <= MEMORY else math.ceil(needs * at_once / MEMORY)

    def steps(self, at_once: int) -> list[Step]:
        """Of one minibatch.  An uncut model stays where it is."""
        shards, forward, weights = self.shards(at_once), self.compute / 3, self.weights / RATE
        if shards == 1:
            return [Step(self.compute, 0.0, 0.0)]
        # The last shard goes back at once, so its weights are loaded once, with its optimizer.
        first = [Step(forward / shards, weights / shards, 0.0)] * (shards - 1)
        return [*first, *[Step(3 * forward / shards, 3 * weights / shards, 3 * weights / shards)] * shards]

    def batch_seconds(self, *, read_ahead: bool) -> float:
        """With reading ahead, a step, the load for the next one and the store of the last one overlap."""
        if not read_ahead:
            return sum(step.compute + step.load + step.store for step in self.steps(1))
        steps = self.steps(2)
        around = [steps[-1], *steps, steps[0]]  # the next minibatch follows at once
        return sum(
            max(step.compute, after.load, before.store)
            for before, step, after in zip(around, around[1:], around[2:], strict=False)
        )


def zipf(exponent: float, seconds: float) -> Callable[[random.Random], list[LargeModel]]:
    """Sizes that fall with their rank; ``seconds`` of a minibatch per GB of weights, with up to twice more or less."""

    def drawn(chance: random.Random) -> list[LargeModel]:
        found = []
        for rank in range(1, MODELS + 1):
            weights = LARGEST / rank**exponent
            found.append(LargeModel(weights, weights * seconds * 2 ** chance.uniform(-1, 1)))
        chance.shuffle(found)
        return found

    return drawn


# -- the ways to train them: how long each takes -----------------------------------------------------------


def lower_bound(drawn: Sequence[LargeModel]) -> float:
    """Of every way that trains each model step by step, if devices were large enough."""
    work = [EPOCHS * BATCHES * one.compute for one in drawn]
    return max(sum(work) / DEVICES, max(work))


def visit_seconds(drawn: Sequence[LargeModel], *, read_ahead: bool = True) -> list[float]:
    """What a visit of each model takes: a segment's share of the minibatches, and the state moved here and away."""
    share = BATCHES / DEVICES
    return [share * one.batch_seconds(read_ahead=read_ahead) + 6 * one.weights / RATE for one in drawn]


def shards_in_visits(drawn: Sequence[LargeModel], *, read_ahead: bool = True, make: type[Schedule] = Schedule) -> float:
    """The schedule of cerebro_db: in a visit a model trains on the rows of one segment, shard by shard."""
    visits = visit_seconds(drawn, read_ahead=read_ahead)
    positions = ring_positions(dict(enumerate(one.weights for one in drawn)))
    clock = Clock(lambda unit: visits[unit.model])
    orchestrator.run(make(Plan(0, models(range(len(drawn)), positions), DEVICES, EPOCHS)), clock)
    return clock.now


class LeastLeftFirst(Schedule):
    """An idle segment takes the model with least work left."""

    def _wait(self, unit: Unit) -> None:
        most = WorkOfModel(seconds=1e9 - self.remaining(unit.model))
        self._waiting[unit.segment].add(unit, most, self.progress[unit.model].plan, self._goes_ahead(unit))


def over_its_own_bound(drawn: Sequence[LargeModel], make: type[Schedule] = Schedule) -> float:
    """What the order of the visits loses: the lower bound of these visits counts their transfers, too."""
    visits = visit_seconds(drawn)
    return shards_in_visits(drawn, make=make) / (EPOCHS * max(sum(visits), DEVICES * max(visits)))


def shards_of_several_models(drawn: Sequence[LargeModel]) -> float:
    """Hydra: all devices have all rows, and a device that begins a shard reads ahead one of the model with most left.

    A model is on one device at a time.  One that fits into a device stays there for the time of a visit.  A device
    chooses as late as reading ahead allows: a shard that it has chosen is kept from all others.
    """
    left: list[Iterator[Step]] = []
    work: list[float] = []
    for one in drawn:
        steps = one.steps(2) * BATCHES
        if one.shards(2) == 1:
            moved = 3 * one.weights / RATE
            steps = [Step(one.compute * BATCHES / DEVICES, moved, moved)] * DEVICES
        left.append(iter(steps * EPOCHS))
        work.append(EPOCHS * sum(step.compute for step in steps))
    loads = max(step.load for one in drawn for step in one.steps(2))
    free = [0.0] * len(drawn)  # when the last step of each model has ended
    devices = [(0.0, 0.0, device) for device in range(DEVICES)]  # when it chooses, and when its step has ended
    waiting, ended = set(range(len(drawn))), 0.0
    while waiting:
        now, ends, device = heapq.heappop(devices)
        soonest = max(ends, min(free[number] for number in waiting))
        chosen = max((work[number], number) for number in waiting if free[number] <= soonest)[1]
        step = next(left[chosen], None)
        if step is None:
            waiting.remove(chosen)
            heapq.heappush(devices, (now, ends, device))
            continue
        begins = max(ends, now + step.load, free[chosen])
        work[chosen] -= step.compute
        free[chosen] = begins + step.compute
        ended = max(ended, free[chosen] + step.store)
        heapq.heappush(devices, (max(begins, free[chosen] - loads), free[chosen], device))
    return ended


def tasks(drawn: Sequence[LargeModel]) -> float:
    """Each model on one device from its first batch to its last, the longest first; what does not fit is spilled."""
    devices = [0.0] * DEVICES
    for seconds in sorted((EPOCHS * BATCHES * one.batch_seconds(read_ahead=False) for one in drawn), reverse=True):
        heapq.heappush(devices, heapq.heappop(devices) + seconds)
    return max(devices)


def one_model_over_all(drawn: Sequence[LargeModel]) -> float:
    """Model parallelism: each device holds a part of the model, and one of them works at a time."""
    return sum(EPOCHS * BATCHES * one.compute for one in drawn)


WAYS: dict[str, Callable[[Sequence[LargeModel]], float]] = {
    "shards, read ahead": shards_in_visits,
    "not read ahead": lambda drawn: shards_in_visits(drawn, read_ahead=False),
    "of several models": shards_of_several_models,
    "tasks, spilled": tasks,
    "model parallel": one_model_over_all,
}
OWN = "the order alone"
EXPONENTS = (0.0, 0.5, 1.0)
SECONDS = (0.2, 0.4, 1.6)  # of a minibatch per GB of weights


def over_the_bound(exponent: float, seconds: float, seeds: int = 20) -> dict[str, tuple[float, float]]:
    """The mean and the worst makespan over the lower bound, of each way."""
    found: dict[str, list[float]] = {name: [] for name in (*WAYS, OWN)}
    for seed in range(seeds):
        drawn = zipf(exponent, seconds)(random.Random(derived_seed(seed, exponent, seconds)))
        bound = lower_bound(drawn)
        for name, way in WAYS.items():
            found[name].append(way(drawn) / bound)
        found[OWN].append(over_its_own_bound(drawn))
    return {name: (mean(values), max(values)) for name, values in found.items()}


def table() -> str:
    lines = [f"| sizes | s per GB | cut | {' | '.join((*WAYS, OWN))} |", "|---|---|---|" + "---|" * (len(WAYS) + 1)]
    for exponent in EXPONENTS:
        for seconds in SECONDS:
            cut = sum(one.shards(2) > 1 for one in zipf(exponent, seconds)(random.Random(0)))
            cells = [f"{middle:.2f} ({worst:.2f})" for middle, worst in over_the_bound(exponent, seconds).values()]
            name = "equal" if not exponent else f"1 / rank^{exponent:g}"
            lines.append(f"| {name} | {seconds} | {cut} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
