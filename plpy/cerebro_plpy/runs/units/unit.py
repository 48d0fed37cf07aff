"""What training visits and evaluations share: fetching states, and giving an order that needs them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable, TypeVar

from cerebro_db.core import protocol
from cerebro_db.core.errors import CorruptState, WrongState
from cerebro_db.core.events import Initial
from cerebro_db.core.names import Name
from cerebro_db.core.packing.layout import DataSet
from cerebro_db.core.protocol import Computation, FrozenPart, MetricStates, StateRef, frozen_name
from cerebro_db.core.records import dataclass, field
from cerebro_db.core.scheduling.plan import Average, Train, TrainJointly, TrainReplica, Unit
from cerebro_db.core.sql import Sql, sql
from cerebro_db.core.trainers.frozen_feature_plan import FeatureUse

from ...models import weights
from ...platform.base import Platform, StateRows
from ...sessions.failures import Refused
from ...sessions.overlap import AnotherTask, Task
from ...sessions.session import BEGIN, COMMIT, Statement
from ...sessions.team import Team, Worker
from ..record import state_tables
from ..record.log import RunLog
from ..record.run import Left, Model, Replica, Run, StoredWeights
from .objectives import Objectives

A = TypeVar("A")


@dataclass(frozen=True)
class Result:
    """What became of one unit.  A unit with a reason is not committed: its model must stop training."""

    reason: str | None = None
    weight: float = 0  # of its loss beside those of the epoch's other units: mostly the number of its rows
    loss: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    error: Refused | None = None  # the unit was refused; perhaps it will be tried again
    building: float = 0.0  # seconds in which the trainer built or compiled the model
    part: float | None = None  # its share of the time of its order; None: all units have equal shares
    cut: bool = False  # it did not begin, because a unit before it of the same model was the last one


class OrderConfigurations:
    """The configurations of an order's models, each once."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self._places: dict[int, int] = {}  # by key

    def place(self, model: Model) -> int:
        place = self._places.setdefault(model.key, len(self.all))
        if place == len(self.all):
            self.all.append(model.asked.definition)
        return place


@dataclass
class Fetched:
    """The states for an order: how it refers to them, and the statements that bring them to the segment."""

    refs: list[StateRef]
    statements: list[Statement] = field(default_factory=list)
    # A trainer has one in memory, segments have left files, or rows may be in another table by now.
    may_be_gone: bool = False

    @property
    def names(self) -> list[str]:
        return [ref.name for ref in self.refs if ref.name is not None]

    @property
    def received(self) -> list[str]:
        """The names of all that a segment may have received for the order, with the frozen parts."""
        return [*self.names, *(frozen_name(ref.frozen.sha256) for ref in self.refs if ref.frozen is not None)]

    @property
    def before_order(self) -> list[Statement]:
        """The statements, in the message of an order.  Their locks end before the trainer works for minutes."""
        return [BEGIN, *self.statements, COMMIT] if self.statements else []


@dataclass
class Times:
    """Seconds that all units so far have spent; the first two decide about read-ahead."""

    training: float = 0.0
    moving_states: float = 0.0
    features: FeatureUse = field(default_factory=FeatureUse)


class Units:
    """A run's units on the workers of its team."""

    def __init__(self, run: Run, log: RunLog, team: Team, keep_two: bool) -> None:
        self.run, self.log, self.team = run, log, team
        self.keep_two = keep_two  # a decision may copy a state until the second hop after it is committed
        self.times = Times()
        # Model, epoch, data set -> by part, what the metrics have counted; until the last part is evaluated.
        self.evaluated: dict[tuple[int, int, str], dict[int, MetricStates]] = {}
        self.objectives = Objectives(run, log.units, team.platform)
        self.rows_done = 0  # in committed visits

    @property
    def platform(self) -> Platform:
        return self.team.platform

    def model(self, unit: Unit) -> Model:
        return self.run.models[unit.model]

    def committed(
        self,
        worker: Worker,
        visit: Train,
        rows: int,
        state_bytes: int,
        sha256: str | None,
        counted: MetricStates | None,
        *,
        frozen: FrozenPart | None = None,
    ) -> None:
        """A hop is on record: the state of the model, or of a replica, is the one that this worker stored.

        ``sha256``: None if the state was not stored, because the model's next visit is on record, too.
        ``frozen``: the part that is in a table of its own.
        """
        model = self.model(visit)
        model.state_bytes = state_bytes
        if isinstance(visit, TrainReplica):
            model.replicas[visit.hop] = Replica(rows, sha256, worker.dist_key, counted, frozen=frozen)
        else:
            model.hops, model.sha256, model.frozen = visit.hop, sha256, frozen
            model.epoch, model.metric_states = visit.epoch, counted
            model.dist_key = worker.dist_key
            model.replicas.clear()
        self.objectives.committed(visit)
        self.rows_done += rows

    def keep_file(self, visit: Train, left: Left) -> None:
        """The segment keeps the file of a committed state.

        No order uses the file of an average, or of a joint visit: several sessions start from that state.
        """
        if not isinstance(visit, (Average, TrainJointly)):
            self.model(visit).after(visit.hop).left = left

    async def fetch_ahead(self, worker: Worker, task: Task, wanted: Sequence[tuple[Model, int]]) -> Fetched | None:
        """Fetch the states while the trainer works for an earlier task, and wait until it is free.

        None if there is no earlier task: then the states are fetched in the message that carries the order.
        """
        if task.may_compute:
            return None
        fetched = self.fetch(worker, wanted)
        for statement in fetched.statements:
            await statement
        while worker.tasks.computing is not None:
            await AnotherTask()
        task.may_compute, task.started = True, time.monotonic()
        return Fetched(fetched.refs, may_be_gone=fetched.may_be_gone)  # the statements have been sent

    def fetch(self, worker: Worker, wanted: Sequence[tuple[Model, int]], *, resident: bool = False) -> Fetched:
        """How an order refers to the states of models after these hops, and what brings them to the segment.

        A state whose file is still on this host is taken from there, and needs no rows.  Nor does one that the trainer
        has in memory, if ``resident`` says that it is still there when the order comes to it.
        """
        fetched = Fetched([])
        names = f"{self.run.id}/{time.monotonic()}"
        shared: dict[int, list[tuple[int, int]]] = {}  # key of the segment that stored them -> model, hop
        for model, hop in wanted:
            in_memory = worker.resident.get(model.number)
            if resident and in_memory is not None and in_memory.hop == hop:
                fetched.refs.append(StateRef.resident(in_memory.token))
                fetched.may_be_gone = True
                continue
            if hop == 0 and model.asked.initial == Initial.RANDOM:
                fetched.refs.append(StateRef.seed())
                continue
            if hop == 0 and model.asked.start is not None:
                name = f"{names}/weights of {model.asked.start.model}"
                if name not in fetched.names:
                    fetched.statements += self._read_start(worker, model.asked.start, name)
                    fetched.may_be_gone = True
                fetched.refs.append(StateRef.weights(name))
                continue
            if hop == 0 and model.given is not None:
                name = f"{names}/weights {model.given}"
                if name not in fetched.names:
                    fetched.statements += self._read_part(
                        worker, state_tables.given_table_name(self.run.storage, model.given), name
                    )
                fetched.refs.append(StateRef.weights(name))
                continue
            name = f"{names}/{model.number}/{hop}"
            state, frozen = model.after(hop), model.frozen_after(hop)
            left = state.left
            if left is not None and left.place and (left.hop, left.place) == (hop, worker.place):
                assert state.sha256 is not None
                fetched.refs.append(StateRef.full(name, state.sha256, left.file, frozen=frozen))
                fetched.may_be_gone = True
                continue
            if frozen is not None:
                if frozen.sha256 in worker.frozen:
                    fetched.may_be_gone = True
                elif frozen not in (ref.frozen for ref in fetched.refs):
                    fetched.statements += self._read_part(worker, self._table_of(frozen), frozen_name(frozen.sha256))
            if state_tables.has_own_table(model, hop):
                table = state_tables.own_table_of(self.run, model, hop)
                rows = StateRows([table], table, state_tables.OF_OWN, sql("hop = {hop}", hop=hop))
                fetched.statements += self._read(worker, rows, state.dist_key, sql("{}"), name)
            else:
                shared.setdefault(state.dist_key, []).append((model.number, hop))
            if hop == 0 and model.asked.initial == Initial.WEIGHTS:
                fetched.refs.append(StateRef.weights(name))
            else:
                assert state.sha256 is not None
                adopted = hop == 0 and model.asked.adopts
                fetched.refs.append(StateRef.full(name, state.sha256, adopted=adopted, frozen=frozen))
        tables = state_tables.shared(self.run.storage)
        for key, states in shared.items():
            into = tables[self.run.shared.current]
            rows = StateRows(tables, into, state_tables.OF_SHARED, state_tables.among(states))
            fetched.statements += self._read(worker, rows, key, sql("{} || model || '/' || hop"), f"{names}/")
            fetched.may_be_gone = True  # states that move meanwhile are in the table that was read first
        return fetched

    def _read_start(self, worker: Worker, start: StoredWeights, name: str) -> list[Statement]:
        """What brings the weights in another model's state to a segment."""
        tables, columns, which = state_tables.of_start(self.run, start)
        cut = weights.within(start.first, start.size)
        which = sql("{which} AND {overlaps}", which=which, overlaps=cut.overlaps)
        rows = StateRows(tables, tables[self.run.shared.current if len(tables) > 1 else 0], columns, which)
        read = self._read(worker, rows, start.dist_key, sql("{}"), name, cut)
        if start.frozen is not None:
            within = weights.within(start.first - start.frozen.start, start.size)
            read += self._read_part(worker, self._table_of(start.frozen), name, within)
        return read

    def _table_of(self, part: FrozenPart) -> Name:
        return state_tables.frozen_table_name(self.run.storage, part.sha256)

    def _read_part(self, worker: Worker, of: Name, name: str, cut: weights.Cut = weights.WHOLE) -> list[Statement]:
        """What brings a frozen part or given weights to a segment, or what is cut out of it."""
        table = of.sql
        copies, where = self.platform.frozen_rows(table, worker.dist_key, state_tables.one_copy(table))
        where = sql("{where} AND {overlaps}", where=where, overlaps=cut.overlaps)
        require = state_tables.require_frozen_sql(of)
        return [*map(Statement, [require, *copies]), _receive(sql("{}"), cut, table, where, name)]

    def _read(
        self, worker: Worker, rows: StateRows, key: int, name: Sql, given: str, cut: weights.Cut = weights.WHOLE
    ) -> list[Statement]:
        """What brings states to a segment, each under its name."""
        copies, where = self.platform.hop_states(rows, worker.dist_key, key)
        return [*map(Statement, copies), *(_receive(name, cut, table, where, given) for table in rows.tables)]

    async def read(self, worker: Worker, data: DataSet, part: int, fetched: Fetched | None) -> tuple[str, float]:
        try:
            return await self.team.read(worker, data, part)
        except Refused:
            if fetched is not None and fetched.received:
                await self.team.order(worker, protocol.DropStates(fetched.received))
            raise

    async def compute(
        self,
        worker: Worker,
        task: Task,
        wanted: Sequence[tuple[Model, int]],
        fetched: Fetched | None,
        before: Sequence[Statement],
        order_for: Callable[[Sequence[StateRef]], Computation[A]],
        *,
        resident: bool,
    ) -> tuple[A, float]:
        """Give the trainer an order that needs states: the answer, and the seconds until it came.

        The states were fetched ahead, or they are resident (if ``resident`` says that these can be used), or they are
        fetched in the same message as the order.  If one that was to be at hand is gone, the order is repeated with the
        rows of the state tables.
        """
        give = self.team.order_and_share if task.shares_session else self.team.order
        fetched = fetched or self.fetch(worker, wanted, resident=resident)
        started = time.monotonic()
        try:
            answer = await give(worker, order_for(fetched.refs), before=await self._in_own_messages(before, fetched))
        except Refused as refused:
            if not (fetched.may_be_gone and isinstance(refused.error, (WrongState, CorruptState))):
                raise
            for model, hop in wanted:
                worker.resident.pop(model.number, None)
                model.after(hop).left = None
            worker.frozen.clear()
            fetched = self.fetch(worker, wanted)
            started = time.monotonic()
            answer = await give(worker, order_for(fetched.refs), before=await self._in_own_messages((), fetched))
        worker.frozen.update(ref.frozen.sha256 for ref in fetched.refs if ref.frozen is not None)
        return answer, time.monotonic() - started

    async def _in_own_messages(self, before: Sequence[Statement], fetched: Fetched) -> list[Statement]:
        """What goes before an order in its message: nothing, if the platform wants other messages for transactions.

        There, what is in the message of the order would be committed with it: nobody would see that a visit has begun.
        """
        if self.platform.transactions_share_messages:
            return [*before, *fetched.before_order]
        for statements in (before, fetched.before_order):
            if statements:
                await Statement.joined(statements)
        return []

    def count(self, task: Task, seconds: Mapping[str, float], stage: str) -> None:
        if not task.shares_session:  # else the times include waiting for other tasks
            self.times.training += seconds.get(stage, 0.0)
            self.times.moving_states += seconds.get("load", 0.0)


def _receive(name: Sql, cut: weights.Cut, table: Sql, where: Sql, given: str) -> Statement:
    """What gives a segment rows of a table, under a name that is an expression over ``given`` and the rows."""
    # One row to fetch, not one for each row of a state.  Greenplum's coordinator may compute what count() is given.
    return Statement(
        sql(
            "SELECT count(s.n) FROM (SELECT cerebro_internal._state_in({name}, {start}, {payload}) AS n FROM {table}"
            " WHERE {where} OFFSET 0) s",
            name=name,
            start=cut.start,
            payload=cut.payload,
            table=table,
            where=where,
        ),
        (given,),
    )
