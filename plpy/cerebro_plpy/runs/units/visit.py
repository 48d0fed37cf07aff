"""A training visit in three steps: fetch the states, compute, commit.

One order may train several models: fused in one pass, or one after the other.  Of a model whose rows are all on one
segment, an order may have several visits, and the evaluations between them.  Each unit has a record of its own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

from cerebro_db.core import protocol
from cerebro_db.core.errors import CerebroError, TrainerFailed, WrongState
from cerebro_db.core.events import DataSetName
from cerebro_db.core.protocol import (
    EvaluatedModel,
    EvaluationRows,
    Group,
    Member,
    MemberVisit,
    RowsBeside,
    StateRef,
    Trained,
    TrainedGroup,
    TrainedMember,
    TrainedVisit,
)
from cerebro_db.core.records import dataclass, field
from cerebro_db.core.scheduling.plan import Average, Evaluate, Train, TrainReplica, Unit
from cerebro_db.core.sql import Sql, sql

from ...platform.base import LeftState
from ...sessions.failures import Refused
from ...sessions.overlap import AnotherTask, Task, is_chain
from ...sessions.session import BEGIN, COMMIT, Statement
from ...sessions.team import Resident, Worker
from ..record import state_tables
from ..record.log.unit_rows import OrderOnRecord, UnitRows
from ..record.run import Left, Model
from . import averaging
from .unit import Fetched, OrderConfigurations, Result, Units

Handles = Mapping[tuple[str, int], str]  # data set, part -> the name of the rows


async def train(units: Units, worker: Worker, task: Task, share: bool) -> list[Result]:
    """Carry out the groups of a task one after the other: a result for each unit, in order."""
    fetched = await units.fetch_ahead(worker, task, wanted(units, task.groups))
    with worker.tasks.computes(task):
        worker.session.progress = None
        computed = await compute(units, worker, task, fetched, share)
        members = (member for group in computed.trained.groups for member in group.members)
        task.rows = sum(visit.rows for member in members for visit in member.visits)
    return await commit(units, worker, task, computed)


@dataclass(frozen=True)
class Computed:
    """What the trainer has answered, and what is known of the time before."""

    trained: Trained
    began: datetime
    seconds: dict[str, float]  # by stage, before the trainer computed


def first_visits(groups: Sequence[Sequence[Unit]]) -> list[Train]:
    """The first visit of each model of an order."""
    firsts = (unit for group in groups for unit in (group[:1] if is_chain(group) else group))
    return [unit for unit in firsts if isinstance(unit, Train)]


def _may_be_resident(groups: Sequence[Sequence[Unit]]) -> bool:
    """Whether a visit can start from the state that the trainer has in memory.

    Of several visits, one may put its state where another's is; an average is put there, too.  A chain loads its state
    again if it ends before a loss that is not finite.
    """
    visits = [unit for group in groups for unit in group if isinstance(unit, Train)]
    return len(visits) == 1 and not isinstance(visits[0], Average)


def wanted(units: Units, groups: Sequence[Sequence[Unit]]) -> list[tuple[Model, int]]:
    """The states that the visits start from: the model, and the hop that left its state."""
    visits = first_visits(groups)
    if isinstance(visits[0], Average):
        return averaging.replicas_of(units, visits[0])
    return [(units.model(visit), visit.start) for visit in visits]


async def compute(units: Units, worker: Worker, task: Task, fetched: Fetched | None, share: bool) -> Computed:
    """Have the trainer train the groups."""

    def order(handle: str, refs: Sequence[StateRef]) -> protocol.Computation[Trained]:
        if isinstance(visits[0], Average):
            return averaging.order(units, visits[0], handle, refs)
        states, configurations = iter(refs), OrderConfigurations()
        made = [
            Group(
                [_member(units, its, next(states), configurations, handles) for its in _by_model(group)],
                beside[units.model(group[0]).number],
            )
            for group in task.groups
        ]
        engine = units.model(visits[0]).build.engine
        return protocol.Train(handle, configurations.all, made, engine=engine)

    visits = first_visits(task.groups)
    task.shares_session = share or fetched is not None
    if task.shares_session:
        # The session may be busy with another task, so the database says when this one began.
        began = (await units.log.units.attempts(visits, worker.worker_pid))[0][0]
        before: list[Statement] = []
    else:
        began = datetime.now(timezone.utc)
        before = attempts(units, worker, visits, began)
    worker.tasks.computing_since = began
    part = units.run.part_of(units.model(visits[0]), visits[0])
    handle, reading = await units.read(worker, units.run.source, part, fetched)
    beside: dict[int, list[RowsBeside]] = {}
    for visit in visits:
        beside[visit.model], took = await _rows_beside(units, worker, visit, fetched)
        reading += took
    handles: dict[tuple[str, int], str] = {}
    for dataset, part in {(unit.dataset, unit.part) for unit in task.units if isinstance(unit, Evaluate)}:
        handles[dataset, part], took = await units.read(worker, units.run.data(dataset), part, fetched)
        reading += took
    states = wanted(units, task.groups)
    trained, took = await units.compute(
        worker,
        task,
        states,
        fetched,
        before,
        lambda refs: order(handle, refs),
        resident=_may_be_resident(task.groups),
    )
    computed = sum(sum(group.seconds.values()) for group in trained.groups)
    seconds = {"data": reading, "load": max(0.0, took - computed)}
    units.times.features.add(worker.segment, trained.features)
    for group in trained.groups:
        units.count(task, group.seconds, "train")
    units.count(task, seconds, "train")
    return Computed(trained, began, seconds)


async def _rows_beside(
    units: Units, worker: Worker, visit: Train, fetched: Fetched | None
) -> tuple[list[RowsBeside], float]:
    """The rows of other segments from which a model grows that does not hop; and the seconds it took to bring them."""
    run, model, found, reading = units.run, units.model(visit), [], 0.0
    for part in run.segments_of(model) if model.asked.home is not None else ():
        if part != visit.segment:
            handle, took = await units.read(worker, run.source, part, fetched)
            found.append(RowsBeside(handle, run.span_of(model, DataSetName.TRAINING, part)))
            reading += took
    return found, reading


def attempts(units: Units, worker: Worker, visits: Sequence[Train], began: datetime) -> list[Statement]:
    """What records that visits begin, in the message of their order.

    A crash of the server can lose attempts that came to nothing, but never the attempt of a hop on record: the hop's
    own commit writes the log up to itself.
    """
    recorded, later = units.log.units.attempts(visits, worker.worker_pid, began), units.platform.commits_later
    return [recorded] if worker.session.own or later is None else [BEGIN, Statement(later), recorded, COMMIT]


def _by_model(group: Sequence[Unit]) -> list[Sequence[Unit]]:
    """The units of each model of a group."""
    return [group] if is_chain(group) else [[unit] for unit in group]


def _member(
    units: Units, its: Sequence[Unit], state: StateRef, configurations: OrderConfigurations, handles: Handles
) -> Member:
    """A model that is trained, and evaluated, by units that follow each other."""
    first, model = its[0], units.model(its[0])
    assert isinstance(first, Train)
    goes_on = model.epoch == first.epoch and not isinstance(first, TrainReplica)
    evaluated = {unit.epoch: unit for unit in its if isinstance(unit, Evaluate)}
    rows = {(unit.dataset, unit.part): None for unit in its if isinstance(unit, Evaluate)}
    return Member(
        configuration=configurations.place(model),
        seed=model.asked.seed,
        visits=[
            MemberVisit(
                units.run.shuffle_seed(model, unit.hop), unit.epoch in evaluated, units.run.portion(model, unit.epoch)
            )
            for unit in its
            if isinstance(unit, Train)
        ],
        state=state,
        state_bytes=model.state_bytes,
        metric_states=model.metric_states if goes_on else None,
        fold=model.asked.fold,
        span=units.run.span_of(model, DataSetName.TRAINING, units.run.part_of(model, first)),
        evaluations=[
            EvaluationRows(handles[dataset, part], units.run.span_of(model, dataset, part), model.asked.fold)
            for dataset, part in rows
        ],
    )


# -- the record ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DoneUnit:
    """A unit that the trainer has done."""

    unit: Unit
    figures: TrainedVisit | EvaluatedModel
    seconds: dict[str, float]  # its own, by stage
    member: TrainedMember
    last: bool = False  # whether the state after it is the one that the member has left
    fused: int = 1  # members that trained in the same pass


@dataclass
class Answered:
    """What became of the units of an order."""

    results: dict[Unit, Result] = field(default_factory=dict)
    done: list[DoneUnit] = field(default_factory=list)


def answered(groups: Sequence[Sequence[Unit]], trained: Trained) -> Answered:
    """Which units the trainer has done; of the others, why not."""
    found = Answered()
    for group, result in zip(groups, trained.groups):
        found.results.update(dict.fromkeys(group, Result(cut=True)))
        done: list[DoneUnit] = []
        error: CerebroError | None = None if result.error is None else result.error.error()
        if error is None:
            done = list(_chained(group, result) if is_chain(group) else _fused(group, result))
            if not any(one.last for one in done):  # no hop may be on record after which there is no state
                error = TrainerFailed("the answer of the trainer lacks an evaluation")
            elif len(group) > 1 and is_chain(group) and not state_tables.is_small(done[0].member.state.bytes):
                # Of a model that was added to the run, the size is known after its first visit.  The tables for large
                # states take them hop by hop.
                error = WrongState(f"its state is larger than expected: {done[0].member.state.bytes:,} bytes")
        if error is None:
            found.done += done
            continue
        failed = [group[0]] if is_chain(group) else group  # what comes after the first of a chain did not begin
        found.results.update(dict.fromkeys(failed, Result(error=Refused(error))))
    return found


def _fused(group: Sequence[Unit], result: TrainedGroup) -> Iterator[DoneUnit]:
    share = {stage: round(spent / len(group), 6) for stage, spent in result.seconds.items()}
    for unit, member in zip(group, result.members):
        yield DoneUnit(unit, member.visits[0], dict(share), member, True, len(group))


def _chained(group: Sequence[Unit], result: TrainedGroup) -> Iterator[DoneUnit]:
    """The first visit has built and loaded the model, and the last one has saved it."""
    (member,) = result.members
    first, last = member.visits[0], member.visits[-1]
    visits = iter(member.visits)
    evaluations: Iterator[EvaluatedModel] = iter(())
    for unit in group:
        if isinstance(unit, Evaluate):
            evaluated = next(evaluations, None)
            if evaluated is None:
                return
            yield DoneUnit(unit, evaluated, dict(evaluated.seconds), member)
            continue
        visit = next(visits, None)
        if visit is None:
            return
        evaluations = iter(visit.evaluations)
        stages = [*(("build", "load", "features") if visit is first else ()), *(("save",) if visit is last else ())]
        seconds = {
            "train": visit.seconds,
            **{stage: result.seconds[stage] for stage in stages if stage in result.seconds},
        }
        yield DoneUnit(unit, visit, seconds, member, visit is last)


async def commit(units: Units, worker: Worker, task: Task, computed: Computed) -> list[Result]:
    """Store the states and records of all units that were done, in one transaction."""
    trained = computed.trained
    while worker.tasks.followed(task) and worker.tasks.computing_since is None:
        await AnotherTask()  # the next task gets the trainer before this one stores
    followed_at = worker.tasks.computing_since
    # If nothing follows yet, something may before the server records the end of this.
    behind = followed_at or (datetime.now(timezone.utc) if task.shares_session else None)
    saving = datetime.now(timezone.utc) if worker.session.own else None  # else when the transaction began
    found = answered(task.groups, trained)
    order = OrderOnRecord(
        computed.began, trained.worker_pid, trained.trainer_pid, max(1, len(found.done)), behind, saving
    )
    rows = UnitRows(units.run.id, order)
    kept, copies = _recorded(units, worker, found, computed.seconds, rows)
    if kept:
        before = time.monotonic()
        stored = [one for one in kept if one.last]
        await _commit(units, worker, trained.visit, stored, [*rows.statements(), *copies])
        if not task.shares_session:
            units.times.moving_states += time.monotonic() - before
    worker.still_resident(trained.resident, trained.trainer_pid)
    for one in kept:
        _is_committed(units, worker, one, trained, followed_at is None)
    return [found.results[unit] for unit in task.units]


def _recorded(
    units: Units, worker: Worker, found: Answered, beside: Mapping[str, float], rows: UnitRows
) -> tuple[list[DoneUnit], list[Statement]]:
    """The units that can be committed, whose results and rows are made here; also statements beside the rows.

    ``beside``: the seconds of the order in which the trainer did not compute, which all units share.
    """
    count = max(1, len(found.done))
    each = sum(beside.values()) / count
    whole = sum(sum(one.seconds.values()) + each for one in found.done) or 1.0
    kept: list[DoneUnit] = []
    copies: list[Statement] = []
    elapsed = 0.0  # share of the order's time that the units before this one took
    for one in found.done:
        unit, figures, part = one.unit, one.figures, (sum(one.seconds.values()) + each) / whole
        result = found.results[unit] = _result(units, one, part)
        elapsed, slice_of_time = elapsed + part, (elapsed, elapsed + part)
        if result.reason is not None:
            continue
        kept.append(one)
        seconds = {
            **one.seconds,
            "data": round(beside["data"] / count, 6),
            "load": round(one.seconds.get("load", 0.0) + beside["load"] / count, 6),
        }
        if isinstance(unit, Evaluate):
            assert isinstance(figures, EvaluatedModel)
            rows.evaluation(unit, figures, figures.metrics, slice_of_time=slice_of_time, seconds=seconds)
            copies += units.objectives.after_evaluation(unit, figures, figures.metrics, rows)
            continue
        assert isinstance(figures, TrainedVisit)
        state, fused = one.member.state, {"fused": one.fused} if one.fused > 1 else {}
        rows.hop(unit, figures, state, stored=one.last, slice_of_time=slice_of_time, seconds={**seconds, **fused})
        copies += units.objectives.after_visit(unit, figures, state.bytes, worker.dist_key, rows)
    return kept, copies


def _result(units: Units, one: DoneUnit, part: float) -> Result:
    unit, figures = one.unit, one.figures
    reason = None
    if isinstance(figures, TrainedVisit) and not figures.finite and units.run.options.nan != "keep":
        reason = f"the loss became {figures.loss} in epoch {unit.epoch} on segment {unit.segment}"
    building = one.seconds.get("build", 0.0)
    weight = figures.weight(None) if isinstance(figures, EvaluatedModel) else figures.rows
    return Result(reason, weight, figures.loss, figures.metrics, building=building, part=part)


def _is_committed(units: Units, worker: Worker, one: DoneUnit, trained: Trained, resident: bool) -> None:
    """``resident``: whether states that are in the trainer's memory stay there until its next order."""
    unit, figures, state = one.unit, one.figures, one.member.state
    if isinstance(unit, Evaluate):
        units.objectives.committed(unit)
        return
    assert isinstance(figures, TrainedVisit)
    sha256 = state.sha256 if one.last else None
    units.committed(worker, unit, figures.rows, state.bytes, sha256, figures.metric_states, frozen=state.frozen)
    if not one.last:
        return
    if state.frozen is not None:
        units.run.frozen_stored.add(state.frozen.sha256)
        worker.frozen.add(state.frozen.sha256)
    if (file := trained.left[state.index]) is not None:
        units.keep_file(unit, Left(unit.hop, worker.place, file))
    if state.token in trained.resident and resident:
        assert state.token is not None
        worker.resident[unit.model] = Resident(unit.hop, state.token, trained.trainer_pid)


async def _commit(
    units: Units, worker: Worker, number: int, kept: Sequence[DoneUnit], records: Sequence[Statement]
) -> None:
    """Store the states that visits have left in files, with the records of the order, in one transaction."""
    run, small = units.run, []
    statements = [BEGIN, *_store_frozen(units, worker, number, kept)]
    for one in kept:
        if state_tables.is_small(one.member.state.bytes):
            small.append(one)
        else:
            statements += _store_large(units, worker, number, one)
    with contextlib.ExitStack() as stack:
        if small:
            current = stack.enter_context(
                run.shared.appending(sum(state_tables.on_disk(one.member.state.bytes) for one in small))
            )
            statements += _store_small(units, worker, number, small, current)
        statements += [*records, *_free_large(units, kept)]
        if run.shared.may_move:
            stack.enter_context(run.shared.emptying())
            states = state_tables.needed(run, units.objectives.best, units.keep_two)
            statements.append(Statement(state_tables.moved_sql(run.storage, run.shared.other, states)))
        await Statement.joined([*statements, COMMIT])
    run.shared.turn(lambda: state_tables.needed_bytes(run))


def _store_small(units: Units, worker: Worker, number: int, kept: Sequence[DoneUnit], current: int) -> list[Statement]:
    left = [LeftState(one.member.state.index, one.unit.model, one.unit.hop) for one in kept]
    return [
        Statement(
            sql(
                "INSERT INTO {table} (__dist_key__, model, hop, start, payload)"
                " SELECT s.__dist_key__, s.model, s.hop, (s.made).start, (s.made).payload FROM ({made}) s",
                table=state_tables.shared(units.run.storage)[current],
                made=made,
            )
        )
        for made in units.platform.states_made(number, left, worker.dist_key)
    ]


def _store_frozen(units: Units, worker: Worker, number: int, kept: Sequence[DoneUnit]) -> list[Statement]:
    """Store the frozen parts that are not stored yet.  In one order, so that no two sessions wait for each other."""
    states = (one.member.state for one in kept)
    parts = {state.frozen.sha256: (state.frozen, state.index) for state in states if state.frozen is not None}
    return [
        Statement(
            state_tables.store_frozen_sql(
                units.platform, units.run.storage, part, _made(units, worker, number, -1 - index)
            )
        )
        for sha256, (part, index) in sorted(parts.items())
        if sha256 not in units.run.frozen_stored
    ]


def _made(units: Units, worker: Worker, number: int, index: int) -> Sql:
    function = sql("cerebro_internal._state_out({number}, {index})", number=number, index=index)
    return units.platform.made_on_segment(function, worker.dist_key)


def _store_large(units: Units, worker: Worker, number: int, one: DoneUnit) -> list[Statement]:
    model, hop = units.model(one.unit), one.unit.hop
    return [
        Statement(state_tables.ready_sql(units.platform, units.run, model, hop)),
        Statement(
            sql(
                "INSERT INTO {table} (__dist_key__, hop, start, payload)"
                " SELECT s.__dist_key__, {hop}, (s.made).start, (s.made).payload FROM ({made}) s",
                table=state_tables.own_table_of(units.run, model, hop),
                hop=hop,
                made=_made(units, worker, number, one.member.state.index),
            )
        ),
    ]


def _free_large(units: Units, kept: Sequence[DoneUnit]) -> list[Statement]:
    """Free the states that large ones replace at once."""
    if units.keep_two:
        return []
    old = [
        table
        for one in kept
        if not state_tables.is_small(one.member.state.bytes)
        for table in state_tables.superseded(units.run, units.model(one.unit), one.unit.hop)
    ]
    return [Statement(state_tables.emptied_sql(old))] if old else []
