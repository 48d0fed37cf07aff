"""Training a group in one pass over the rows: one model, or several that are fused."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy as np

from cerebro_db.core.architecture import trees
from cerebro_db.core.errors import CerebroError, InvalidArgument
from cerebro_db.core.models import metrics
from cerebro_db.core.protocol import (
    Average,
    EvaluatedModel,
    EvaluationRows,
    Group,
    Member,
    MemberVisit,
    MetricStates,
    Origin,
    TrainedMember,
    TrainedVisit,
)
from cerebro_db.nn import metric_states, state_file
from cerebro_db.nn.clocks import Clock, Pace
from cerebro_db.nn.engines.base import Program
from cerebro_db.nn.fit_parameters import Fit
from cerebro_db.nn.orders import evaluations
from cerebro_db.nn.orders.growing import Growing
from cerebro_db.nn.programs import Programs, ReadyProgram
from cerebro_db.nn.rows.data import Dataset, Slab, places_of, portion_rows, row_order, slabs
from cerebro_db.nn.trees.model import TreeModel
from cerebro_db.nn.trees.rows import Part

MOST_JUDGED = 4096  # rows by which trees are judged that have grown from them

Json = dict[str, Any]
Report = Callable[[int, Optional[float]], None]  # of the rows trained on, over all members, and the running loss
Listen = Callable[[], None]
Datasets = Callable[[str], Dataset]  # by handle
Visits = list[TrainedVisit]  # of one member


def planned_rows(group: Group, configurations: Sequence[Json], dataset: Dataset) -> int:
    """The rows that a group will train on, over all members; none if it cannot be trained."""
    try:
        configuration = configurations[group.members[0].configuration]
        size = portion_rows(_size(dataset, dataset.rows_of(group.fold, True, group.span)), group.portions)
        if trees.are_grown(configuration["architecture"]):
            return size * (1 + len(group.beside))
        fit = Fit.of(configuration)
        rows = fit.rows_of(size)
        return fit.epochs * rows * sum(len(member.visits) for member in group.members)
    except CerebroError:
        return 0


@dataclass(frozen=True)
class TrainingOrder:
    """What the groups of an order share."""

    programs: Programs
    configurations: Sequence[Json]
    dataset: Dataset
    evaluated: Datasets
    pace: Pace
    report: Report
    listen: Listen
    memory_mb: int | None = None  # that a model may take; None: no limit is known


def train(
    order: TrainingOrder, group: Group, first_index: int, token: str, before: int
) -> tuple[list[TrainedMember], dict[str, float]]:
    """Train each member on the same rows, each in its own row order, and write the states; also the seconds by stage.

    The last member's state stays in memory under the token.  ``before``: the rows of the groups before this one.
    """
    members, clock = group.members, Clock()
    order.programs.features_lap()
    files = [member.out for member in members if member.out is not None]
    if len(files) < len(members):
        raise InvalidArgument("the order names no file for an outgoing state")
    configurations = [order.configurations[member.configuration] for member in members]
    chosen = order.dataset.rows_of(group.fold, True, group.span)
    if trees.are_grown(configurations[0]["architecture"]):
        passes: _Passes = _growing(order, group, configurations, chosen, before)
    else:
        rows = Fit.of(configurations[0]).rows_of(portion_rows(_size(order.dataset, chosen), group.portions))
        ready = order.programs.ready_to_train(configurations, order.dataset, members[0].seed, rows)
        passes = _Passes(order, ready, configurations, chosen, before, portions=group.portions)
    clock.lap("build")
    visits = _fused(passes, members, clock) if len(members) > 1 else [_chain(passes, members[0], clock)]
    trained = []
    for place, (file, its) in enumerate(zip(files, visits)):
        passes.put_back(place)
        last = place == len(members) - 1
        state = state_file.write(passes.ready.program, file, first_index + place, token if last else None)
        trained.append(TrainedMember(its, state))
    clock.lap("save")
    passes.left(token, trained[-1].state.sha256)
    return trained, clock.laps


class _Passes:
    """The passes of a group over its rows, with the states of fused members, or the state in the variables."""

    def __init__(
        self,
        order: TrainingOrder,
        ready: ReadyProgram,
        configurations: Sequence[Json],
        chosen: np.ndarray | None,
        before: int,
        *,
        portions: int,
    ) -> None:
        self.order, self.ready, self.configurations, self._chosen = order, ready, configurations, chosen
        self._portions = portions
        self.fit, self.size = Fit.of(configurations[0]), portion_rows(_size(order.dataset, chosen), portions)
        self.stacked: list[Any] = []
        self._rows: Dataset | None = None  # as steps get them, with the state that was loaded
        self._visits = 1  # of each member
        self._done = before  # rows

    def load(self, members: Sequence[Member]) -> None:
        order, program, measure = self.order, self.ready.program, None
        if program.measures_groups and members[0].span is not None and self._chosen is not None and self.size:
            measure = functools.partial(program.measure_group, order.dataset, self._chosen, order.listen)
        self.stacked = load_members(order.programs, self.ready, members, self.configurations, measure)
        self._rows, self._visits = None, len(members[0].visits)

    def visit(self, visits: Sequence[MemberVisit]) -> int:
        """Train one visit of each member; returns the rows of each."""
        order, fit, program, members = self.order, self.fit, self.ready.program, len(visits)
        speed, rows, done = self.ready.speed["train", members], fit.rows_of(self.size), 0
        if self._rows is None:
            passes = fit.epochs * self._visits
            self._rows = order.programs.rows_of_steps(
                self.ready, order.dataset, order.listen, passes, partly=self._portions > 1
            )
        with order.programs.configuration_errors():
            for epoch in range(fit.epochs):
                places = self._orders(visits, epoch)
                for slab in slabs(self._rows, rows, fit.batch_size, speed, places):
                    started = time.monotonic()
                    stepped = order.programs.stepped(self.ready, slab, order.listen)
                    self.stacked = advance(program, self.stacked, stepped, fit.batch_size)
                    speed.measured(math.ceil(slab.rows / fit.batch_size), time.monotonic() - started)
                    done += slab.rows
                    order.listen()
                    if order.pace.due():
                        order.report(self._done + done * members, None if self.stacked else program.running_loss())
        self._done += done * members
        return done

    def _orders(self, visits: Sequence[MemberVisit], epoch: int) -> np.ndarray | None:
        """As ``row_orders``, of the portions of the visits."""
        if self._portions == 1:
            seeds = [visit.shuffle_seed for visit in visits]
            return row_orders(self.size, seeds, epoch, self.fit.shuffle, self._chosen)
        orders = [
            row_orders(
                self.size,
                [visit.shuffle_seed],
                epoch,
                self.fit.shuffle,
                portion_of(self.order.dataset, self._chosen, visit),
            )
            for visit in visits
        ]
        return orders[0] if len(orders) == 1 else np.stack([one for one in orders if one is not None])

    def left(self, token: str, sha256: str) -> None:
        """The state in the variables was written."""
        self.ready.token, self.ready.sha256 = token, sha256

    def put_back(self, place: int) -> None:
        """Bring the state of a fused member into the variables."""
        if self.stacked and self.ready.program.fusion:
            self.ready.program.known_frozen = None
            self.ready.program.fusion.put_back(self.stacked[place])

    def trained(self, rows: int, earlier: MetricStates | None, seconds: float = 0.0) -> TrainedVisit:
        """The result of a visit whose metrics are in the variables."""
        program = self.ready.program
        with self.order.programs.configuration_errors():
            counted = program.metric_states()
            loss = metrics.loss(counted.means)
            so_far = counted if earlier is None else metric_states.merged([earlier, counted])
            values = program.metric_values(so_far)
        steps = self.fit.steps_of(self.size)
        return TrainedVisit(
            rows=rows,
            steps=steps,
            loss=loss,
            metrics=values,
            metric_states=so_far,
            finite=math.isfinite(loss),
            seconds=seconds,
        )

    def evaluated(self, member: Member) -> list[EvaluatedModel]:
        """The results of the evaluations of the state that is in the variables."""
        return [self._evaluated(rows) for rows in member.evaluations]

    def _evaluated(self, rows: EvaluationRows) -> EvaluatedModel:
        order, dataset = self.order, self.order.evaluated(rows.handle)
        if dataset.layout != order.dataset.layout:
            raise InvalidArgument("a model is evaluated between its visits only on rows with the columns that train it")
        chosen = dataset.rows_of(rows.fold, False, rows.span)
        return evaluations.evaluate_loaded(
            order.programs, self.ready, self.configurations[0], dataset, chosen, order.listen
        )


class _GrowingPasses(_Passes):
    """Visits that grow trees, from the rows of several segments."""

    def __init__(self, parts: Sequence[Part], *of_passes: Any, portions: int) -> None:
        super().__init__(*of_passes, portions=portions)
        self._of_model, self._parts, self._scores = parts, parts, np.empty(0)
        self._before: str | None = None  # the checksum of the state in the variables

    def load(self, members: Sequence[Member]) -> None:
        state = members[0].state
        known = self.ready.sha256 if state.origin is Origin.RESIDENT else state.sha256
        super().load(members)
        if self.ready.growing is None:
            self.ready.growing = Growing(self.ready.program, TreeModel(self.ready.program))
        self._before = known

    def visit(self, visits: Sequence[MemberVisit]) -> int:
        order, growing, program = self.order, self.ready.growing, self.ready.program
        (visit,) = visits
        self._parts = [(rows, portion_of(rows, chosen, visit)) for rows, chosen in self._of_model]
        with order.programs.configuration_errors():
            growing.load(self.configurations[0], self._parts, order.memory_mb, order.listen)
            self._scores = growing.visit(visit.shuffle_seed, self._before, order.listen)
        self._before = None
        self._count()
        self._done += growing.rows.count
        if order.pace.due():
            order.report(self._done, program.running_loss())
        return growing.rows.count

    def _count(self) -> None:
        """Judge the trees by rows from which they have grown."""
        dataset, chosen = max(self._parts, key=lambda part: _size(*part))
        places = np.arange(dataset.rows, dtype=np.int32) if chosen is None else chosen
        evaluations.count(
            self.order.programs,
            self.ready,
            self.configurations[0],
            dataset,
            places[:MOST_JUDGED],
            self.order.listen,
        )

    def left(self, token: str, sha256: str) -> None:
        super().left(token, sha256)
        self.ready.growing.keep(sha256, self._scores)


def _growing(
    order: TrainingOrder, group: Group, configurations: Sequence[Json], chosen: np.ndarray | None, before: int
) -> _GrowingPasses:
    ready = order.programs.ready(configurations[0], order.dataset.layout, group.members[0].seed)
    ready.program.require_values(order.dataset)
    others = [(order.evaluated(one.handle), one.span) for one in group.beside]
    parts = [(order.dataset, chosen), *((rows, rows.rows_of(group.fold, True, span)) for rows, span in others)]
    return _GrowingPasses(parts, order, ready, configurations, chosen, before, portions=group.portions)


def _fused(passes: _Passes, members: Sequence[Member], clock: Clock) -> list[Visits]:
    """Train the only visit of each member, all in one pass."""
    passes.load(members)
    clock.lap("load")
    rows = passes.visit([member.visits[0] for member in members])
    clock.lap("train", passes.order.programs.features_lap())
    found: list[Visits] = []
    for place, member in enumerate(members):
        passes.put_back(place)
        found.append([passes.trained(rows, member.metric_states)])
    return found


def _chain(passes: _Passes, member: Member, clock: Clock) -> Visits:
    """Train the visits of a model one after the other, with its evaluations between them.

    A visit with a loss that is not finite is not made, unless it is the first: its model may have to stop where it was.
    """
    visits = member.visits
    while True:
        passes.load([member])
        clock.lap("load")
        found: Visits = []
        for visit in visits:
            if found:
                passes.ready.program.start_metrics()
            rows = passes.visit([visit])
            seconds = clock.lap("train", passes.order.programs.features_lap())
            trained = passes.trained(rows, None if found else member.metric_states, seconds)
            if not trained.finite:
                break
            if visit.evaluated:
                trained = replace(trained, evaluations=passes.evaluated(member))
                clock.lap("evaluate")
            found.append(trained)
        if trained.finite or not found:
            return found or [trained]
        visits = visits[: len(found)]


def average(programs: Programs, order: Average, dataset: Dataset, token: str) -> tuple[TrainedMember, dict[str, float]]:
    """Average the states of replicas and write the average; also the seconds by stage.

    The average stays in memory under the token.
    """
    if order.out is None:
        raise InvalidArgument("the order names no file for the averaged state")
    clock = Clock()
    ready = programs.ready(order.configuration, dataset.layout, rows=dataset)
    clock.lap("build")
    programs.load_average(ready, order.replicas)
    clock.lap("load")
    with programs.configuration_errors():
        counted = metric_states.merged([replica.metric_states for replica in order.replicas])
        values = ready.program.metric_values(counted)
    state = state_file.write(ready.program, order.out, 0, token)
    clock.lap("save")
    ready.token, ready.sha256 = token, state.sha256
    loss = metrics.loss(counted.means)
    visit = TrainedVisit(0, 0, loss, values, counted, math.isfinite(loss))
    return TrainedMember([visit], state), clock.laps


def load_members(
    programs: Programs,
    ready: ReadyProgram,
    members: Sequence[Member],
    configurations: Sequence[Json],
    measure: Callable[[], None] | None = None,
) -> list[Any]:
    """Bring the state of a single member into the program's variables, or return the states of several.

    ``measure``: what brings the statistics of a group into the variables of a model with random weights.
    """
    stacked = []
    for member, configuration in zip(members, configurations):
        if len(members) > 1:  # else they are those of the program that is ready
            ready.program.put_numbers(configuration)
        programs.load(ready, configuration, member.state, member.seed)
        if measure is not None and member.state.origin is Origin.SEED:
            with programs.configuration_errors():
                measure()
        ready.program.start_metrics()
        if ready.program.fusion and len(members) > 1:
            stacked.append(ready.program.fusion.taken())
    ready.forget_state()  # until the visit is complete
    return stacked


def advance(program: Program, stacked: list[Any], slab: Slab, batch_size: int) -> list[Any]:
    """Train on a slab: the states of several members if there are any, else the state in the variables."""
    if program.fusion and stacked:
        return program.fusion.train(stacked, slab, batch_size)
    program.train(slab, batch_size)
    return stacked


def row_orders(
    rows: int, shuffle_seeds: Sequence[int], epoch: int, shuffle: bool, chosen: np.ndarray | None = None
) -> np.ndarray | None:
    """The order of the rows for one member (None: as they lie), or a line for each of several.

    ``chosen``: the places of the rows; None: all.
    """
    if len(shuffle_seeds) == 1 and not shuffle:
        return chosen
    orders = [row_order(rows, seed, epoch) if shuffle else np.arange(rows) for seed in shuffle_seeds]
    if chosen is not None:
        orders = [chosen[order] for order in orders]
    return orders[0] if len(orders) == 1 else np.stack(orders)


def portion_of(dataset: Dataset, chosen: np.ndarray | None, visit: MemberVisit) -> np.ndarray | None:
    """The places of the rows of a visit.  ``chosen``: those of all rows of its model; None: all."""
    if visit.portion is None:
        return chosen
    places = places_of(visit.portion, _size(dataset, chosen))
    return places if chosen is None else chosen[places]


def _size(dataset: Dataset, chosen: np.ndarray | None) -> int:
    return dataset.rows if chosen is None else len(chosen)
