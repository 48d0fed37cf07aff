"""A training visit in three steps: fetch the states, compute, commit.

One order may train several models: fused in one pass, or one after the other.  Each has a record of its own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from datetime import datetime, timezone

from cerebro_db.core import protocol
from cerebro_db.core.events import DataSetName
from cerebro_db.core.protocol import Group, Member, StateRef, Trained, TrainedMember
from cerebro_db.core.records import dataclass
from cerebro_db.core.scheduling.plan import Average, Train, TrainReplica
from cerebro_db.core.sql import sql

from ...platform.base import LeftState
from ...sessions.failures import Refused
from ...sessions.overlap import AnotherTask, Task
from ...sessions.session import BEGIN, COMMIT, Statement
from ...sessions.team import Resident, Worker
from ..record import state_tables
from ..record.run import Left, Model
from . import averaging
from .unit import Fetched, Result, Units


async def train(
    units: Units, worker: Worker, task: Task, groups: Sequence[Sequence[Train]], share: bool
) -> list[Result]:
    """Train the groups one after the other: a result for each visit, in order."""
    fetched = await units.fetch_ahead(worker, task, wanted(units, groups))
    with worker.tasks.computes(task):
        worker.session.progress = None
        computed = await compute(units, worker, task, groups, fetched, share)
        task.rows = sum(member.rows for group in computed.trained.groups for member in group.members)
    return await commit(units, worker, task, groups, computed)


@dataclass(frozen=True)
class Computed:
    """What the trainer has answered, and what is known of the time before."""

    trained: Trained
    began: datetime
    seconds: dict[str, float]  # by stage, before the trainer computed


def wanted(units: Units, groups: Sequence[Sequence[Train]]) -> list[tuple[Model, int]]:
    """The states that the visits start from: the model, and the hop that left its state."""
    visits = [visit for group in groups for visit in group]
    if isinstance(visits[0], Average):
        return averaging.replicas_of(units, visits[0])
    return [(units.model(visit), visit.start) for visit in visits]


async def compute(
    units: Units, worker: Worker, task: Task, groups: Sequence[Sequence[Train]], fetched: Fetched | None, share: bool
) -> Computed:
    """Have the trainer train the groups."""

    def order(handle: str, refs: Sequence[StateRef]) -> protocol.Computation[Trained]:
        if isinstance(visits[0], Average):
            return averaging.order(units, visits[0], handle, refs)
        states = iter(refs)
        return protocol.Train(
            handle=handle,
            engine=units.model(groups[0][0]).build.engine,
            groups=[Group([_member(units, visit, next(states)) for visit in group]) for group in groups],
        )

    visits = [visit for group in groups for visit in group]
    task.shares_session = share or fetched is not None
    if task.shares_session:
        # The session may be busy with another task, so the database says when this one began.
        began = (await units.log.units.attempts(visits, worker.worker_pid))[0][0]
        before: list[Statement] = []
    else:
        began = datetime.now(timezone.utc)
        attempts = units.log.units.attempts(visits, worker.worker_pid, began)
        # A crash of the server can lose attempts that came to nothing, but never the attempt of a hop on record: the
        # hop's own commit writes the log up to itself.
        later = units.platform.commits_later
        before = [attempts] if worker.session.own or later is None else [BEGIN, Statement(later), attempts, COMMIT]
    worker.tasks.computing_since = began
    handle, reading = await units.read(worker, units.run.source, visits[0].segment, fetched)
    states = wanted(units, groups)
    trained, took = await units.compute(
        worker,
        task,
        states,
        fetched,
        before,
        lambda refs: order(handle, refs),
        # Of several visits, one may put its state where another's is; an average is put there, too.
        resident=len(states) == 1 and not isinstance(visits[0], Average),
    )
    computed = sum(sum(group.seconds.values()) for group in trained.groups)
    seconds = {"data": reading, "load": max(0.0, took - computed)}
    for group in trained.groups:
        units.count(task, group.seconds, "train")
    units.count(task, seconds, "train")
    return Computed(trained, began, seconds)


async def commit(
    units: Units, worker: Worker, task: Task, groups: Sequence[Sequence[Train]], computed: Computed
) -> list[Result]:
    """Store the states and records of all visits that succeeded, in one transaction."""
    trained, seconds = computed.trained, computed.seconds
    while worker.tasks.followed(task) and worker.tasks.computing_since is None:
        await AnotherTask()  # the next task gets the trainer before this one stores
    followed_at = worker.tasks.computing_since
    # If nothing follows yet, something may before the server records the end of this.
    behind = followed_at or (datetime.now(timezone.utc) if task.shares_session else None)
    saving = datetime.now(timezone.utc) if worker.session.own else None  # else when the transaction began
    results: list[Result] = []
    kept: list[tuple[Train, TrainedMember]] = []
    records: list[Statement] = []
    count = sum(len(group) for group in groups)
    beside = sum(seconds.values())  # what all visits share
    whole = sum(sum(group.seconds.values()) for group in trained.groups) + beside or 1.0
    elapsed = 0.0  # share of the order's time that the visits before this one took
    for visits, group in zip(groups, trained.groups):
        if group.error is not None:
            results += [Result(error=Refused(group.error.error()))] * len(visits)
            continue
        share = {stage: round(spent / len(visits), 6) for stage, spent in group.seconds.items()}
        for visit, member in zip(visits, group.members):
            part = (sum(group.seconds.values()) / len(visits) + beside / count) / whole
            result = _result(units, visit, member, share.get("build", 0.0))
            results.append(result)
            if result.reason is None:
                kept.append((visit, member))
                records.append(
                    units.log.units.hop(
                        visit,
                        member,
                        began=computed.began,
                        slice_of_time=(elapsed, elapsed + part),
                        worker_pid=trained.worker_pid,
                        trainer_pid=trained.trainer_pid,
                        seconds={
                            **share,
                            "data": round(seconds["data"] / count, 6),
                            "load": round(share.get("load", 0.0) + seconds["load"] / count, 6),
                            **({"fused": len(visits)} if len(visits) > 1 else {}),
                        },
                        shared_by=count,
                        behind=behind,
                        saving=saving,
                    )
                )
                records += units.objectives.after_visit(visit, member, worker.dist_key)
            elapsed += part
    if kept:
        before = time.monotonic()
        await _commit(units, worker, trained.visit, kept, records)
        if not task.shares_session:
            units.times.moving_states += time.monotonic() - before
    worker.still_resident(trained.resident, trained.trainer_pid)
    for visit, member in kept:
        units.committed(worker, visit, member.rows, member.state.bytes, member.state.sha256, member.metric_states)
        if (file := trained.left[member.state.index]) is not None:
            units.keep_file(visit, Left(visit.hop, worker.place, file))
        if member.state.token in trained.resident and followed_at is None:
            worker.resident[visit.model] = Resident(visit.hop, member.state.token, trained.trainer_pid)
    return results


def _member(units: Units, visit: Train, state: StateRef) -> Member:
    model = units.model(visit)
    goes_on = model.epoch == visit.epoch and not isinstance(visit, TrainReplica)
    return Member(
        configuration=model.asked.definition,
        seed=model.asked.seed,
        shuffle_seed=units.run.shuffle_seed(model, visit.hop),
        state=state,
        state_bytes=model.state_bytes,
        metric_states=model.metric_states if goes_on else None,
        fold=model.asked.fold,
        span=units.run.span_of(model, DataSetName.TRAINING, visit.segment),
    )


def _result(units: Units, visit: Train, member: TrainedMember, building: float) -> Result:
    reason = None
    if not member.finite and units.run.options.nan != "keep":
        reason = f"the loss became {member.loss} in epoch {visit.epoch} on segment {visit.segment}"
    return Result(reason, member.rows, member.loss, member.metrics, building=building)


async def _commit(
    units: Units, worker: Worker, number: int, kept: Sequence[tuple[Train, TrainedMember]], records: Sequence[Statement]
) -> None:
    """Store the states that visits have left in files, with their records, in one transaction."""
    run, small = units.run, []
    statements = [BEGIN]
    for visit, member in kept:
        if state_tables.is_small(member.state.bytes):
            small.append((visit, member))
        else:
            statements += _store_large(units, worker, number, visit, member)
    with contextlib.ExitStack() as stack:
        if small:
            current = stack.enter_context(
                run.shared.appending(sum(state_tables.on_disk(member.state.bytes) for _, member in small))
            )
            statements += _store_small(units, worker, number, small, current)
        statements += [*records, *_free_large(units, kept)]
        if run.shared.may_move:
            stack.enter_context(run.shared.emptying())
            states = state_tables.needed(run, units.objectives.best, units.keep_two)
            statements.append(Statement(state_tables.moved_sql(run.storage, run.shared.other, states)))
        await Statement.joined([*statements, COMMIT])
    run.shared.turn(lambda: state_tables.needed_bytes(run))


def _store_small(
    units: Units, worker: Worker, number: int, kept: Sequence[tuple[Train, TrainedMember]], current: int
) -> list[Statement]:
    left = [LeftState(member.state.index, visit.model, visit.hop) for visit, member in kept]
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


def _store_large(units: Units, worker: Worker, number: int, visit: Train, member: TrainedMember) -> list[Statement]:
    model = units.model(visit)
    function = sql("cerebro._state_out({number}, {index})", number=number, index=member.state.index)
    return [
        Statement(state_tables.ready_sql(units.platform, units.run, model, visit.hop)),
        Statement(
            sql(
                "INSERT INTO {table} (__dist_key__, hop, start, payload)"
                " SELECT s.__dist_key__, {hop}, (s.made).start, (s.made).payload FROM ({made}) s",
                table=state_tables.own_table_of(units.run, model, visit.hop),
                hop=visit.hop,
                made=units.platform.made_on_segment(function, worker.dist_key),
            )
        ),
    ]


def _free_large(units: Units, kept: Sequence[tuple[Train, TrainedMember]]) -> list[Statement]:
    """Free the states that large ones replace at once."""
    if units.keep_two:
        return []
    old = [
        table
        for visit, member in kept
        if not state_tables.is_small(member.state.bytes)
        for table in state_tables.superseded(units.run, units.model(visit), visit.hop)
    ]
    return [Statement(state_tables.emptied_sql(old))] if old else []
