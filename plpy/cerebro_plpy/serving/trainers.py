"""A trained model at work: in worker sessions and their trainers, or in a trainer of the caller's session.

All orders of serving/ to segments and trainers are here.
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg2

from cerebro_db.core import protocol
from cerebro_db.core.engines import DEFAULT
from cerebro_db.core.layout import DataSet
from cerebro_db.core.metrics import merged_means, of_means
from cerebro_db.core.protocol import (
    BeginPrediction,
    BestClasses,
    Evaluated,
    MergeMetrics,
    MetricsMerged,
    PredictionInput,
    StateRef,
    TrainerSettings,
)

from .. import platform
from ..data.preparation import SourceVariable
from ..database.access import Database
from ..platform.machine import cores
from ..segment import current
from ..segment.prediction import Prediction
from ..segment.worker import Segment
from ..sessions import kept_teams, limits
from ..sessions.failures import Refused, failure_of, session_was_lost
from ..sessions.session import Statement
from ..sessions.team import Team, Worker
from .trained import Model

T = TypeVar("T")


def options(db: Database, use_gpus: bool | None, module: str, keys: Sequence[int]) -> dict[str, Any]:
    """What trainers are started with."""
    return {
        "engine": DEFAULT,
        "deterministic": False,
        "threads": max(1, cores() // len(keys)),
        "gpus": platform.require_gpus(db, use_gpus, keys, module),
    }


# -- worker sessions -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def team_of(db: Database, keys: Sequence[int], chosen: dict[str, Any]) -> Iterator[Team]:
    """One worker session per key."""
    with kept_teams.team_for(db, keys, chosen) as team:
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


async def send_weights(db: Database, team: Team, to: Worker, model: Model, name: str) -> None:
    where, start = team.platform.on_segment(to.dist_key), 0
    for piece in model.weights(db):
        await Statement(f"SELECT cerebro._state_in(%s, %s, %s) {where}", (name, start, psycopg2.Binary(piece)))
        start += len(piece)


def evaluate(
    db: Database, team: Team, model: Model, data: DataSet, parts: Sequence[int]
) -> tuple[float, dict[str, Any]]:
    """The loss and the metrics over all these parts of the data; session i evaluates ``parts[i]``."""
    name = secrets.token_hex(8)
    handles: dict[int, str] = {}

    async def steps(worker: Worker) -> Evaluated:
        handle, _ = await team.read(worker, data, parts[worker.segment])
        handles[worker.segment] = handle
        await send_weights(db, team, worker, model, name)
        order = protocol.Evaluate(configuration=model.definition, handle=handle, state=StateRef.weights(name))
        return await team.order(worker, order)

    found = list(team.run_all({worker.segment: steps(worker) for worker in team.workers}).values())
    loss = math.fsum(part.loss * part.rows for part in found) / sum(part.rows for part in found)
    states = [part.metric_states for part in found]
    if len(states) == 1:
        return loss, found[0].metrics
    if states[0].others is None:
        return loss, of_means(merged_means(one.means for one in states))

    async def merge(worker: Worker) -> MetricsMerged:
        return await team.order(worker, MergeMetrics(model.definition, handles[worker.segment], states))

    first = team.workers[0]
    return loss, team.run_all({first.segment: merge(first)})[first.segment].metrics


@dataclass(frozen=True)
class PredictionOrder:
    """What a prediction needs besides rows and weights."""

    configuration: dict[str, Any]
    inputs: list[PredictionInput]
    best: BestClasses | None  # None: the answers are the outputs themselves

    def begin(self, name: str) -> BeginPrediction:
        """The order, with the name of the weights that the segment has received."""
        return BeginPrediction(self.configuration, self.inputs, StateRef.weights(name), self.best)


def prediction_order(model: Model, inputs: Sequence[SourceVariable], best: BestClasses | None) -> PredictionOrder:
    return PredictionOrder(
        model.definition, [PredictionInput(**variable.for_prediction()) for variable in inputs], best
    )


def predict(
    db: Database,
    team: Team,
    model: Model,
    order: PredictionOrder,
    statements: Sequence[str],
    *,
    in_transaction: bool,
) -> None:
    """Session i runs ``statements[i]``, which calls cerebro._predict; a transaction that is open is committed."""
    name = secrets.token_hex(8)

    async def steps(worker: Worker) -> None:
        await send_weights(db, team, worker, model, name)
        await team.order(worker, order.begin(name))
        await Statement(statements[worker.segment])
        if in_transaction:
            await Statement("COMMIT")
        await team.order(worker, protocol.EndPrediction())

    team.run_all({worker.segment: steps(worker) for worker in team.workers})


# -- the caller's session ------------------------------------------------------------------------------------


@contextlib.contextmanager
def predicting_here(db: Database, model: Model, order: PredictionOrder, chosen: dict[str, Any]) -> Iterator[Prediction]:
    """Within it, cerebro._predict works in the caller's session."""
    with _own_segment(db, chosen) as mine:
        name, start = secrets.token_hex(8), 0
        for piece in model.weights(db):
            mine.received.receive(name, start, piece)
            start += len(piece)
        mine.obey(order.begin(name))
        assert mine.prediction is not None
        yield mine.prediction
        mine.obey(protocol.EndPrediction())


@contextlib.contextmanager
def _own_segment(db: Database, chosen: dict[str, Any]) -> Iterator[Segment]:
    """A trainer of the caller's own session: for few rows, and for rows that only this transaction can see."""
    try:
        mine = current.mine(db)
        mine.open(
            TrainerSettings(
                engine=chosen["engine"],
                threads=chosen["threads"],
                deterministic=chosen["deterministic"],
                gpu=chosen["gpus"][0] if chosen["gpus"] else None,
            )
        )
        yield mine
        seconds, _ = limits.of(db)["waiting_seconds"]
        if seconds and not chosen["gpus"]:
            mine.obey(protocol.Rest(seconds))
        else:
            current.close_mine()
    except BaseException:
        current.close_mine()
        raise
