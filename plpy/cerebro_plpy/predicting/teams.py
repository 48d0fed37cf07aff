"""A trained model at work in worker sessions and their trainers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import psycopg2

from cerebro_db.core import protocol
from cerebro_db.core.models.metrics import Means, merged_means, of_means
from cerebro_db.core.names import token
from cerebro_db.core.packing.layout import DataSet
from cerebro_db.core.parameters import params
from cerebro_db.core.protocol import (
    BeginPrediction,
    EvaluatedModel,
    Exchange,
    MergeMetrics,
    MetricsMerged,
    ModelState,
    StateRef,
    TrainerOptions,
)
from cerebro_db.core.sql import Sql, sql

from .. import platform
from ..database.access import Database
from ..database.cancellation import listener
from ..models.trained import TrainedModel
from ..platform.machine import threads
from ..segment import nursery_connection
from ..sessions import kept_teams
from ..sessions.failures import Refused, failure_of, session_was_lost
from ..sessions.session import COMMIT, Statement
from ..sessions.team import Team, Worker
from ..sessions.team_options import TeamOptions
from .trainers import PLAIN

T = TypeVar("T")


class Weighted(Protocol):
    """A model whose state is its weights."""

    @property
    def definition(self) -> dict[str, Any]: ...

    def weights(self, db: Database) -> Iterator[bytes]: ...


def options(db: Database, use_gpus: bool | None, keys: Sequence[int], memory_mb: int | None) -> TeamOptions:
    """What trainers are started with.  ``memory_mb``: that each may use, as the run of its model had it."""
    gpus = platform.require_gpus(db, use_gpus, keys)
    engine = nursery_connection.default_engine(listener(db.plpy))
    return TeamOptions((engine,), TrainerOptions(threads=threads(len(keys)), memory_mb=memory_mb), tuple(gpus))


@contextlib.contextmanager
def team_of(db: Database, keys: Sequence[int], chosen: TeamOptions, *, own: bool = False) -> Iterator[Team]:
    """One worker session per key; or the caller's ``own`` session for all keys."""
    with kept_teams.team_for(db, keys, chosen, own=own) as team:
        try:
            yield team
        except Refused as refused:
            raise refused.error from refused
        except psycopg2.Error as error:
            raise failure_of("a worker session", error, team.platform) from error


def again_if_lost(team: Team, work: Callable[[], T]) -> T:
    """The result of the work; it is done once more with new sessions if one of them ends while it is done."""
    try:
        return work()
    except psycopg2.Error as error:
        if not session_was_lost(error, team.platform):
            raise
        team.close()
        team.reopen()
    return work()


async def send_weights(db: Database, team: Team, to: Worker, model: Weighted, name: str) -> None:
    where, start = team.platform.on_segment(to.dist_key), 0
    for piece in model.weights(db):
        await Statement(sql("SELECT cerebro._state_in({}, {}, {}) {where}", where=where), (name, start, piece))
        start += len(piece)


def evaluate(
    db: Database, team: Team, model: Weighted, data: DataSet, parts: Sequence[int]
) -> tuple[float, dict[str, Any]]:
    """The loss and the metrics over all these parts of the data; session i evaluates ``parts[i]``."""
    configuration = _to_evaluate(model)
    found, handles = _evaluated(db, team, model, configuration, data, parts)
    loss = math.fsum(part.loss * part.rows for part in found) / sum(part.rows for part in found)
    states = [part.metric_states for part in found]
    if len(states) == 1:
        return loss, found[0].metrics
    if states[0].others is None:
        return loss, of_means(merged_means(one.means for one in states))

    async def merge(worker: Worker) -> MetricsMerged:
        return await team.order(worker, MergeMetrics(configuration, handles[worker.segment], states))

    first = team.workers[0]
    return loss, team.run_all({first.segment: merge(first)})[first.segment].metrics


def evaluate_exchanges(
    db: Database, team: Team, model: TrainedModel, data: DataSet, parts: Sequence[int], exchanges: Sequence[Exchange]
) -> list[Means]:
    """What the losses count over all these parts: with the rows as they are, then with each exchange."""
    configuration = _to_evaluate(model, metrics=[], weighted_metrics=None)
    found, _ = _evaluated(db, team, model, configuration, data, parts, exchanges=exchanges)
    each = [[part.metric_states, *part.exchanged] for part in found]
    return [merged_means(states.means for states in parts) for parts in zip(*each)]


def _to_evaluate(model: Weighted, **compiled: Any) -> dict[str, Any]:
    """The configuration of a model whose state is its weights: with an optimizer that has no state."""
    plain = params.compile_params(PLAIN)["optimizer"]
    return {**model.definition, "compile": {**model.definition["compile"], "optimizer": plain, **compiled}}


def _evaluated(
    db: Database,
    team: Team,
    model: Weighted,
    configuration: dict[str, Any],
    data: DataSet,
    parts: Sequence[int],
    *,
    exchanges: Sequence[Exchange] = (),
) -> tuple[list[EvaluatedModel], dict[int, str]]:
    """The result of each part, and the name of the rows of each session."""
    name = token(8)
    handles: dict[int, str] = {}

    async def steps(worker: Worker) -> EvaluatedModel:
        handles[worker.segment], _ = await team.read(worker, data, parts[worker.segment])
        await send_weights(db, team, worker, model, name)
        state = ModelState(0, StateRef.weights(name), exchanges=list(exchanges))
        order = protocol.Evaluate(handles[worker.segment], [configuration], [state])
        (result,) = (await team.order(worker, order)).models
        if result.error is not None:
            raise Refused(result.error.error())
        return result

    return list(team.run_all({worker.segment: steps(worker) for worker in team.workers}).values()), handles


def predict(
    db: Database,
    team: Team,
    model: TrainedModel,
    order: BeginPrediction,
    statements: Sequence[Sql],
    *,
    in_transaction: bool,
) -> None:
    """Session i runs ``statements[i]``, which calls cerebro._predict; a transaction that is open is committed."""
    name = order.state.name
    assert name is not None

    async def steps(worker: Worker) -> None:
        await send_weights(db, team, worker, model, name)
        await team.order(worker, order)
        await Statement(statements[worker.segment])
        if in_transaction:
            await COMMIT
        await team.order(worker, protocol.EndPrediction())

    team.run_all({worker.segment: steps(worker) for worker in team.workers})
