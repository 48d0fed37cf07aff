"""The shapes in which a run can train, what each of them is expected to take, and which one is chosen.

A shape says how many threads each trainer has, which engine trains, and how a model trains on the rows of several
segments.  Whoever names an option fixes this dimension.  The shape of the plain rules is kept unless another one gains
enough: what a profile says is not exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from ..engines import COMPILED_PER_BATCH_SIZE, MOST_THREADS
from ..options import GRADIENTS, HOPPING
from ..records import dataclass, field
from . import simulation
from .shape_plan import MOST_SHAPES, PricedShape, ShapePlan
from .simulation import SimulatedModel
from .speed_profile import EVALUATING, ModelPrice, ProfileKey, SpeedProfile, TrainerSetting

LEAST_GAIN = 0.1  # of the time of the plain rules: less than that is no reason to leave them
LEAST_SECONDS = 2.0  # new trainers and programs for another number of threads cost about as much
WORTH_FUSING = 0.7  # as in preflight: a member that costs more than this share of a model alone is not fused


@dataclass(frozen=True)
class WorkModel:
    """A model that a run will train."""

    shapes: str
    batch_size: int
    rows: float  # that it trains on in an epoch, on all segments


@dataclass(frozen=True)
class RunWork:
    """What a run has to do."""

    models: Sequence[WorkModel]  # those that train at the same time; a search begins others when some have ended
    segments: int
    epochs: int
    parts: int = 0  # of the rows that models are evaluated on
    rows_of_part: float = 0.0
    evaluate_every: int = 0


@dataclass(frozen=True)
class Possible:
    """What a run may do, and who has said so."""

    engines: tuple[str, ...]  # each model has the fastest one of these
    threads: int  # by the plain rule
    cores: int
    others: tuple[str, ...] = ()  # further engines: they are priced, but not chosen
    fixed: Mapping[str, str] = field(default_factory=dict)  # option -> why it is as it is
    parallel: str = HOPPING

    @property
    def engine(self) -> str:
        return self.engines[0] if len(self.engines) == 1 else "auto"


def thread_counts(possible: Possible) -> list[int]:
    """The numbers of threads that are worth a price: that of the rule, and up to all processors.

    Few trainers are at work if there are few models, or in the end of a run, when the slowest ones train on.
    """
    if "threads" in possible.fixed:
        return [possible.threads]
    most = min(MOST_THREADS, max(possible.threads, possible.cores))
    counts = [possible.threads]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return counts if most == counts[-1] else [*counts, most]


def plan_shapes(work: RunWork, possible: Possible, profile: SpeedProfile) -> ShapePlan:
    """The plan of a run.  A pure function: equal arguments give equal plans."""
    pricing = Pricing(work, possible, profile)
    rule = pricing.of(possible.threads)
    counts = thread_counts(possible)[1:]
    # A run that is too short to gain anything is not delayed by prices.
    long_enough = rule.seconds is not None and rule.seconds >= LEAST_SECONDS
    candidates = [pricing.of(one) for one in counts if pricing.knows(one)] if long_enough else []
    best = min(candidates, key=lambda one: (one.seconds or 0.0, one.shape.threads), default=rule)
    chosen = best if best is not rule and _gains_enough(rule, best) else rule
    told = [one.told(rule, _why_not(one, rule)) for one in (rule, *candidates) if one is not chosen]
    idle = [one for one in counts if one * pricing.busy <= possible.cores and not pricing.knows(one)]
    if long_enough and idle:
        why = f"not measured; one run with the option threads => {idle[-1]} would measure it"
        told.append(PricedShape(possible.engine, idle[-1], possible.parallel, why=why))
    for engine in possible.others:
        one = Pricing(work, replace(possible, engines=(engine,)), profile).of(chosen.shape.threads)
        if one.seconds is not None:
            told.append(one.told(rule, possible.fixed.get("engine", "the engine by default is another one")))
    if possible.parallel == HOPPING and work.segments > 1:
        one = Pricing(work, replace(possible, parallel=GRADIENTS), profile).of(chosen.shape.threads)
        if one.seconds is not None:
            told.append(one.told(rule, "not the same training: a minibatch has rows of all segments (option parallel)"))
    return ShapePlan(
        chosen.told(rule, _why(chosen, rule, possible)), tuple(told[:MOST_SHAPES]), len(work.models), pricing.measured
    )


@dataclass(frozen=True)
class Price:
    """Of a shape."""

    shape: PricedShape
    seconds: float | None = None  # None: no model has been measured

    def told(self, rule: Price, why: str) -> PricedShape:
        if self.seconds is None:
            return replace(self.shape, why=why)
        share = round(self.seconds / rule.seconds, 3) if rule.seconds else None
        return replace(self.shape, seconds=round(self.seconds, 2), share=share, why=why)


class Pricing:
    """Prices the shapes of a run with these engines: each model has the fastest one that is known."""

    def __init__(self, work: RunWork, possible: Possible, profile: SpeedProfile) -> None:
        self.work, self.possible, self.profile = work, possible, profile
        self.busy = max(1, min(work.segments, len(work.models))) if possible.parallel == HOPPING else work.segments

    @cached_property
    def measured(self) -> int:
        """Of the models, those alike of which have been measured."""
        return sum(any(self.profile.knows(key) for key in self._keys(one)) for one in self.work.models)

    def knows(self, threads: int) -> bool:
        """Whether it was measured what so many threads gain, of any of the models."""
        keys = [key for one in set(self.work.models) for key in self._keys(one)]
        return any(self.profile.exponent(key) is not None or threads in self.profile.threads(key) for key in keys)

    def of(self, threads: int) -> Price:
        """What the run takes with so many threads for each trainer.

        Models that nothing is known of cost the mean of the others, for each row.
        """
        work, possible = self.work, self.possible
        shape = PricedShape(possible.engine, threads, possible.parallel)
        if not self.measured:
            return Price(shape)
        setting = TrainerSetting(threads, self.busy, possible.cores)
        known: dict[WorkModel, tuple[ProfileKey, ModelPrice] | None] = {}
        for one in work.models:
            if one not in known:
                known[one] = self._fastest(one, setting)
        found = [price for each in map(known.__getitem__, work.models) if each is not None for price in (each[1],)]
        usual = sum(price.train_row for price in found) / len(found)
        simulated = [self._simulated(one, known[one], usual, threads) for one in work.models]
        if possible.parallel == HOPPING:
            seconds = simulation.makespan(
                simulated, work.segments, work.epochs, parts=work.parts, evaluate_every=work.evaluate_every
            )
        else:  # each visit keeps all segments busy
            seconds = work.epochs * sum(one.visit(self.busy) for one in simulated)
        return Price(shape, seconds)

    def _keys(self, one: WorkModel) -> list[ProfileKey]:
        return [
            ProfileKey(engine, one.shapes, one.batch_size, self.possible.parallel) for engine in self.possible.engines
        ]

    def _fastest(self, one: WorkModel, setting: TrainerSetting) -> tuple[ProfileKey, ModelPrice] | None:
        found = []
        for key in self._keys(one):
            price = self.profile.price(key, setting)
            if price is not None:
                found.append((key, price))
        return min(found, key=lambda each: each[1].train_row, default=None)

    def _simulated(
        self, one: WorkModel, found: tuple[ProfileKey, ModelPrice] | None, usual: float, threads: int
    ) -> SimulatedModel:
        """What a model costs.  How many segments are at work changes the processors that its trainer has."""
        key, price = found or (self._keys(one)[0], None)
        exponent, cores = self.profile.exponent(key) or 0.0, self.possible.cores
        now = TrainerSetting(threads, self.busy, cores).speed(exponent)
        slower = [
            now / TrainerSetting(threads, busy, cores).speed(exponent) for busy in range(1, self.work.segments + 1)
        ]
        if price is None:
            price = ModelPrice(usual, usual / EVALUATING, 0.0, 0.0, 0)
        rows = one.rows / (self.work.segments if self.possible.parallel == HOPPING else 1)
        alike = f"{one.shapes} {one.batch_size}"
        part = self.profile.rehearsed_most(key) if key.engine in COMPILED_PER_BATCH_SIZE else None
        return SimulatedModel(
            visit=lambda busy: rows * price.train_row * slower[busy - 1] + price.hop,
            evaluation=lambda busy: self.work.rows_of_part * price.evaluate_row * slower[busy - 1],
            build=price.build,
            program=f"{key.engine} {alike}",
            group=None if part is None or part >= WORTH_FUSING else alike,
            part=1.0 if part is None else part,
        )


def _gains_enough(rule: Price, other: Price) -> bool:
    saved = (rule.seconds or 0.0) - (other.seconds or 0.0)
    return saved >= LEAST_SECONDS and saved >= LEAST_GAIN * (rule.seconds or 0.0)


def _why(chosen: Price, rule: Price, possible: Possible) -> str:
    if chosen.seconds is not None and rule.seconds is not None and chosen is not rule:
        return f"{1 - chosen.seconds / rule.seconds:.0%} less time than the plain rules"
    return possible.fixed.get("threads") or f"the plain rules; no other shape is expected to gain {LEAST_GAIN:.0%}"


def _why_not(one: Price, rule: Price) -> str:
    if one is rule:
        return "the plain rules"
    if _gains_enough(rule, one):
        return "takes longer than the chosen shape"
    return f"gains less than {LEAST_GAIN:.0%}, or less than {LEAST_SECONDS:.0f} s"
