"""What earlier runs have measured of models of the same shapes, and what that says of another number of threads."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from ..options import HOPPING
from ..records import dataclass

EVALUATING = 3  # times as long training on a row takes as evaluating it, where only the one was measured
NEWEST = 3  # measurements of which the median counts

# Twice the threads make a trainer 2 ** exponent times as fast.  Measured with TensorFlow and JAX on two processors: 1.4
# to 2.0 times where a step takes 24 to 120 ms, 1.15 times at 8 ms, 0.9 to 1.1 at 1.4 ms, and 0.7 times at 0.14 ms.
LONG_STEP, GAIN_OF_LONG_STEPS = 0.02, 0.5  # seconds, the exponent
CROWDED = 0.1  # of their speed trainers lose that have more threads in all than there are processors


@dataclass(frozen=True)
class ProfileKey:
    """Models of one key take equally long on the same trainers."""

    engine: str
    shapes: str  # of model_shapes.shapes_of
    batch_size: int
    parallel: str = HOPPING


@dataclass(frozen=True)
class MeasuredSpeed:
    """What one run has measured of the models of a key."""

    key: ProfileKey
    run: int
    threads: int  # of each trainer
    trainers: int  # that worked at the same time
    visits: int  # that were measured; 0: a trial, or a rehearsal
    train_row: float  # seconds of training on a row
    evaluate_row: float | None = None  # seconds of evaluating a row
    build: float | None = None  # seconds in which a trainer builds and compiles the models of the key
    hop: float | None = None  # seconds of a visit beside training: the state in and out, and the record
    state_bytes: int | None = None
    memory_mb: int | None = None  # that a trainer needs
    fused: int | None = None  # members that were fused in a rehearsal
    fused_share: float | None = None  # what each of them costs, compared with a model alone


@dataclass(frozen=True)
class ModelPrice:
    """What a model is expected to take on trainers of a given sort."""

    train_row: float
    evaluate_row: float
    build: float
    hop: float
    run: int  # the latest one that has measured it

    def visit(self, rows: float) -> float:
        return rows * self.train_row + self.hop

    def evaluation(self, rows: float) -> float:
        return rows * self.evaluate_row


@dataclass(frozen=True)
class TrainerSetting:
    """How many threads each trainer has, and how many trainers share how many processors."""

    threads: int
    trainers: int
    cores: int

    @property
    def useful(self) -> float:
        """The threads of a trainer that find a processor."""
        return min(float(self.threads), self.cores / self.trainers)

    def speed(self, exponent: float) -> float:
        """Compared with a trainer of one thread that has a processor for itself."""
        useful = self.useful
        crowded = CROWDED if self.threads > max(1.0, self.cores / self.trainers) else 0.0
        return (useful if useful < 1 else float(useful**exponent)) * (1 - crowded)


class SpeedProfile:
    """The measurements of a user's earlier runs on this machine, the newest first."""

    def __init__(self, measured: Iterable[MeasuredSpeed] = (), cores: int = 1) -> None:
        self.cores = cores
        self._of: dict[ProfileKey, list[MeasuredSpeed]] = {}
        for one in measured:
            self._of.setdefault(one.key, []).append(one)

    def __bool__(self) -> bool:
        return bool(self._of)

    def knows(self, key: ProfileKey) -> bool:
        return key in self._of

    def price(self, key: ProfileKey, setting: TrainerSetting) -> ModelPrice | None:
        """What a model of this key takes on such trainers; None: nothing alike has been measured.

        Visits say more than trials, and trainers with as many threads more than others.
        """
        known = self._of.get(key)
        if not known:
            return None
        known = [one for one in known if one.visits] or known
        known = [one for one in known if one.threads == setting.threads] or known
        nearest = min(known, key=lambda one: (abs(one.trainers - setting.trainers), abs(one.threads - setting.threads)))
        like = [one for one in known if (one.threads, one.trainers) == (nearest.threads, nearest.trainers)][:NEWEST]
        exponent = self.exponent(key) or 0.0
        measured_in = TrainerSetting(nearest.threads, nearest.trainers, self.cores)
        slower = measured_in.speed(exponent) / setting.speed(exponent)
        train_row = median(one.train_row for one in like) * slower
        evaluate_row = _median([one.evaluate_row for one in like])
        return ModelPrice(
            train_row=train_row,
            evaluate_row=train_row / EVALUATING if evaluate_row is None else evaluate_row * slower,
            build=_median([one.build for one in like]) or 0.0,
            hop=_median([one.hop for one in like]) or 0.0,
            run=like[0].run,
        )

    def exponent(self, key: ProfileKey) -> float | None:
        """How much a model gains from threads, as an exponent; None: nobody knows.

        It is measured if models were trained with several numbers of threads.  Else it follows from how long a step is.
        """
        best: dict[int, float] = {}
        for one in self._of.get(key, ()):
            useful = TrainerSetting(one.threads, one.trainers, self.cores).useful
            if one.visits and one.threads <= useful:
                threads = round(useful)
                best.setdefault(threads, one.train_row)
        if len(best) > 1:
            few, many = min(best), max(best)
            return _exponent(best[few] / best[many], many / few)
        steps = [one.train_row * key.batch_size for one in self._of.get(key, ()) if one.visits]
        return GAIN_OF_LONG_STEPS if steps and steps[0] >= LONG_STEP else None

    def rehearsed(self, key: ProfileKey, members: int) -> tuple[float, int] | None:
        """What a member costs if so many are fused, compared with a model alone; and the run that rehearsed it."""
        for one in self._of.get(key, ()):
            if one.fused == members and one.fused_share is not None:
                return one.fused_share, one.run
        return None

    def rehearsed_most(self, key: ProfileKey) -> float | None:
        """The same for the most members that were ever rehearsed."""
        found = [one for one in self._of.get(key, ()) if one.fused is not None and one.fused_share is not None]
        return max(found, key=lambda one: one.fused or 0).fused_share if found else None

    def threads(self, key: ProfileKey) -> set[int]:
        """The numbers of threads with which models of a key were measured."""
        return {one.threads for one in self._of.get(key, ())}

    def tried(self, key: ProfileKey, threads: int, measured: bool) -> MeasuredSpeed | None:
        """The newest trial of an engine with so many threads, or what its visits have taken."""
        found = self._of.get(key, ())
        return next((one for one in found if one.threads == threads and bool(one.visits) == measured), None)


def _exponent(faster: float, threads: float) -> float:

    return min(1.0, math.log(faster) / math.log(threads)) if faster > 0 else 0.0


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
