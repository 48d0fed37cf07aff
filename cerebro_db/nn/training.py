"""Training a group in one pass over the rows: one model, or several that are fused."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np

from cerebro_db.core import metrics
from cerebro_db.core.errors import CerebroError, InvalidArgument
from cerebro_db.core.protocol import Average, Group, Member, TrainedMember
from cerebro_db.nn import metric_states, state_file
from cerebro_db.nn.clocks import Clock, Pace
from cerebro_db.nn.engines.base import Program
from cerebro_db.nn.fit import Fit
from cerebro_db.nn.programs import Programs, ReadyProgram
from cerebro_db.nn.rows.data import Dataset, Slab, row_order, slabs

Json = dict[str, Any]
Report = Callable[[int, Optional[float]], None]  # of the rows trained on, over all members, and the running loss
Listen = Callable[[], None]


def planned_rows(group: Group, dataset: Dataset) -> int:
    """The rows that a group will train on, over all members; none if it cannot be trained."""
    try:
        fit = Fit.of(group.members[0].configuration)
        return (
            fit.epochs * fit.rows_of(_size(dataset, dataset.rows_of(group.fold, True, group.span))) * len(group.members)
        )
    except CerebroError:
        return 0


def train(
    programs: Programs,
    group: Group,
    first_index: int,
    dataset: Dataset,
    token: str,
    *,
    pace: Pace,
    report: Report,
    listen: Listen,
) -> tuple[list[TrainedMember], dict[str, float]]:
    """Train each member on the same rows, each in its own row order, and write the states; also the seconds by stage.

    The last member's state stays in memory under the token.
    """
    members, clock = group.members, Clock()
    files = [member.out for member in members if member.out is not None]
    if len(files) < len(members):
        raise InvalidArgument("the order names no file for an outgoing state")
    fit = Fit.of(members[0].configuration)
    chosen = dataset.rows_of(group.fold, True, group.span)
    size = _size(dataset, chosen)
    rows = fit.rows_of(size)
    ready = programs.ready_to_train([member.configuration for member in members], dataset, members[0].seed, rows)
    program = ready.program
    clock.lap("build")
    stacked = load_members(programs, ready, members)
    clock.lap("load")
    speed, done = ready.speed["train", len(members)], 0
    with programs.configuration_errors():
        for epoch in range(fit.epochs):
            order = row_orders(size, [member.shuffle_seed for member in members], epoch, fit.shuffle, chosen)
            for slab in slabs(dataset, rows, fit.batch_size, speed, order):
                started = time.monotonic()
                stacked = advance(program, stacked, slab, fit.batch_size)
                speed.measured(math.ceil(slab.rows / fit.batch_size), time.monotonic() - started)
                done += slab.rows
                listen()
                if pace.due():
                    report(done * len(members), None if stacked else program.running_loss())
    clock.lap("train")
    trained = []
    for place, file in enumerate(files):
        if program.fusion and stacked:
            program.fusion.put_back(stacked[place])
        with programs.configuration_errors():
            counted = program.metric_states()
            loss, earlier = metrics.loss(counted.means), members[place].metric_states
            so_far = counted if earlier is None else metric_states.merged([earlier, counted])
            values = program.metric_values(so_far)
        last = place == len(members) - 1
        state = state_file.write(program, file, first_index + place, token if last else None)
        trained.append(TrainedMember(done, fit.steps_of(size), loss, values, so_far, math.isfinite(loss), state))
    clock.lap("save")
    ready.token, ready.sha256 = token, trained[-1].state.sha256
    return trained, clock.laps


def average(programs: Programs, order: Average, dataset: Dataset, token: str) -> tuple[TrainedMember, dict[str, float]]:
    """Average the states of replicas and write the average; also the seconds by stage.

    The average stays in memory under the token.
    """
    if order.out is None:
        raise InvalidArgument("the order names no file for the averaged state")
    clock = Clock()
    ready = programs.ready(order.configuration, dataset.layout)
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
    return TrainedMember(0, 0, loss, values, counted, math.isfinite(loss), state), clock.laps


def load_members(programs: Programs, ready: ReadyProgram, members: Sequence[Member]) -> list[Any]:
    """Bring the state of a single member into the program's variables, or return the states of several."""
    stacked = []
    for member in members:
        if len(members) > 1:  # else they are those of the program that is ready
            ready.program.put_numbers(member.configuration)
        programs.load(ready, member.configuration, member.state, member.seed)
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


def _size(dataset: Dataset, chosen: np.ndarray | None) -> int:
    return dataset.rows if chosen is None else len(chosen)
