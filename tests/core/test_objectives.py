"""The record of a run's objective, on a log of lists: which epochs are best, and what repeated units change."""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from typing import Any

import pytest

from cerebro_db.core.events import Initial
from cerebro_db.core.packing.layout import DataSet, Layout, Partition
from cerebro_db.core.protocol import EvaluatedModel, MetricStates, TrainedVisit
from cerebro_db.core.run_options import RunOptions
from cerebro_db.core.scheduling.plan import Evaluate, Train
from cerebro_db.core.sql import shown
from cerebro_plpy.platform.postgresql import PostgreSQL
from cerebro_plpy.runs.record import state_tables
from cerebro_plpy.runs.record.log.unit_rows import OrderOnRecord, UnitRows
from cerebro_plpy.runs.record.log.units import UnitLog
from cerebro_plpy.runs.record.run import AskedModel, Model, Run
from cerebro_plpy.runs.units.objectives import Objectives
from cerebro_plpy.sessions.session import Statement

SEGMENTS = 2


class Log(UnitLog):
    """Takes statements when their transaction commits."""

    def __init__(self) -> None:
        self.run = 1
        self.visits: list[Any] = []
        self.parts: list[Any] = []
        self.epochs: dict[tuple[int, int], tuple[float, bool]] = {}

    def hops(self) -> list[Any]:
        return self.visits

    def evaluations(self) -> list[Any]:
        return self.parts

    def objectives(self, model: int | None = None) -> list[Any]:
        return [(*key, *found) for key, found in sorted(self.epochs.items()) if model in (None, key[0])]

    def take(self, statements: list[Statement]) -> None:
        for statement in statements:
            if "INTO cerebro.objective" in shown(statement.sql):
                for row in json.loads(statement.parameters[0]):
                    epoch = row["model"], row["epoch"]
                    assert epoch not in self.epochs, "an epoch is recorded once"
                    self.epochs[epoch] = row["value"], row["kept"]


SMALL, LARGE = 1 << 18, 1 << 21  # bytes of a state


def run(size: int = LARGE, **options: Any) -> Run:
    chosen = RunOptions(**{"keep": "best", "direction": "min", **options})
    made = Run(1, "me", data(), data(), "models", 9, 1, 1, [0, 1], "run_0", chosen)
    made.models[1] = Model(AskedModel(1, 1, 0, 1, "", "", {}, 1, Initial.RANDOM), None, state_bytes=size)
    return made


def data() -> DataSet:
    return DataSet("t", Layout((), (), 20, tuple(Partition(key, 10, 1, 100, "a" * 64) for key in (0, 1))))


def objectives(of: Run, log: Log) -> Objectives:
    return Objectives(of, log, PostgreSQL())


def after_visit(one: Objectives, visit: Train, loss: float, size: int, **metrics: Any) -> list[Statement]:
    """All that goes into the transaction of a visit."""
    rows = UnitRows(1, OrderOnRecord(datetime.now(timezone.utc), 1))
    trained = TrainedVisit(10, 1, loss, metrics, MetricStates({}), True)
    return [*one.after_visit(visit, trained, size, 0, rows), *rows.statements()]


def after_evaluation(one: Objectives, unit: Evaluate, rows: int, loss: float, metrics: Any) -> list[Statement]:
    log = UnitRows(1, OrderOnRecord(datetime.now(timezone.utc), 1))
    return [*one.after_evaluation(unit, EvaluatedModel(rows, loss), metrics, log), *log.statements()]


def train(one: Objectives, log: Log, epoch: int, *losses: float, commit: bool = True) -> list[str]:
    """The statements of the visits of an epoch."""
    said = []
    for place, loss in enumerate(losses, 1):
        visit = Train(1, (epoch - 1) * SEGMENTS + place, epoch, place - 1)
        size = one.run.models[1].state_bytes
        statements = after_visit(one, visit, loss, size, auc=[loss, loss])
        said += [shown(statement.sql) for statement in statements]
        if commit:
            log.take(statements)
            one.committed(visit)
    return said


def evaluate(epoch: int, part: int) -> Evaluate:
    return Evaluate(1, epoch * SEGMENTS, epoch, part, "validation", part)


def test_the_best_of_the_epochs() -> None:
    """Of equal losses the earlier epoch; a loss that is not finite is never best, and has no row."""
    log = Log()
    one = objectives(run(objective="loss"), log)
    for epoch, losses in enumerate([(3, 1), (2, 2), (1, 2), (math.nan, 0), (-math.inf, 0), (2, 1), (0, 1)], 1):
        train(one, log, epoch, *losses)
    assert log.epochs == {
        (1, 1): (2.0, True), (1, 2): (2.0, False), (1, 3): (1.5, True), (1, 6): (1.5, False), (1, 7): (0.5, True),
    }  # fmt: skip


def test_large_values_are_best_if_the_objective_says_so() -> None:
    log = Log()
    one = objectives(run(objective="auc", direction="max"), log)
    for epoch, value in enumerate([0.5, 0.5, 0.75, 0.25], 1):
        train(one, log, epoch, 0.0, value)
    assert [found for _, found in sorted(log.epochs.items())] == [
        (0.5, True),
        (0.5, False),
        (0.75, True),
        (0.25, False),
    ]


def test_the_table_of_the_best_large_states() -> None:
    """It is made once, and emptied before each further state."""
    log = Log()
    one = objectives(run(objective="loss"), log)
    said = [train(one, log, epoch, 1 / epoch, 1 / epoch) for epoch in range(1, 7)]
    assert [sum("CREATE TABLE" in sql for sql in epoch) for epoch in said] == [1, 0, 0, 0, 0, 0]
    assert [sum("TRUNCATE" in sql for sql in epoch) for epoch in said] == [0, 1, 1, 1, 1, 1]
    assert all(any("hop = 12 AND __dist_key__ = 0" in sql for sql in epoch) for epoch in said[-1:])


def test_a_small_best_state_stays_where_it_is() -> None:
    """It is not copied, but needed for as long as no later epoch is better."""
    log = Log()
    one = objectives(run(SMALL, objective="loss"), log)
    assert [len(train(one, log, epoch, loss, loss)) for epoch, loss in enumerate((3, 1, 2), 1)] == [1, 1, 1]
    assert log.epochs == {(1, 1): (3.0, True), (1, 2): (1.0, True), (1, 3): (2.0, False)}
    one.run.models[1].hops = 6
    assert state_tables.needed(one.run, one.best) == [(1, 4), (1, 6)]
    assert state_tables.needed(one.run, objectives(one.run, log).best) == [(1, 4), (1, 6)], (
        "a resumed run knows it, too"
    )


def test_only_the_objective_is_recorded_without_keep() -> None:
    log = Log()
    one = objectives(run(objective="loss", keep="last"), log)
    said = train(one, log, 1, 1, 1)
    assert len(said) == 1 and log.epochs == {(1, 1): (1.0, False)}
    assert train(objectives(run(keep="last"), Log()), Log(), 1, 1, 1) == [], "a run without an objective has no record"


def test_a_visit_that_is_not_committed_changes_nothing() -> None:
    log = Log()
    one = objectives(run(objective="loss"), log)
    train(one, log, 1, 4, 4)
    train(one, log, 2, 1, 1, commit=False)
    assert train(one, log, 2, 2, 2)[-1].startswith("INSERT INTO cerebro.objective")
    assert log.epochs[1, 2] == (2.0, True)


@pytest.mark.parametrize("there", [True, False])
def test_a_session_that_is_lost_while_it_commits(there: bool) -> None:
    """The log knows whether the epoch is on record."""
    log = Log()
    one = objectives(run(objective="loss"), log)
    train(one, log, 1, 4, 4)
    last = Train(1, 4, 2, 1)
    train(one, log, 2, 1, commit=False)
    statements = after_visit(one, last, 1, LARGE)
    if there:
        log.take(statements)
    one.look_up(last)
    if not there:
        train(one, log, 2, 1, 1)
    train(one, log, 3, 3, 3)
    assert log.epochs == {(1, 1): (4.0, True), (1, 2): (1.0, True), (1, 3): (3.0, False)}


def test_an_evaluation_is_complete_with_its_last_part() -> None:
    """Whichever parts are committed first: a part that is repeated does not speak for another one."""
    log = Log()
    one = objectives(run(objective="val_auc", direction="max"), log)
    assert train(one, log, 1, 1, 1) == []
    first, last = evaluate(1, 0), evaluate(1, 1)
    assert after_evaluation(one, first, 10, 1.0, {}) == []  # it fails, and is tried again
    lost = after_evaluation(one, last, 10, 1.0, {"auc": 0.5})
    assert lost
    assert after_evaluation(one, first, 10, 1.0, {}) == [], "the other transaction records the epoch"
    one.committed(first)
    one.look_up(last)  # it was not committed, and is tried again
    log.take(after_evaluation(one, last, 10, 1.0, {"auc": 0.5}))
    one.committed(last)
    assert after_evaluation(one, first, 10, 1.0, {}) == []
    assert log.epochs == {(1, 1): (0.5, True)}


def test_a_resumed_run_goes_on_from_its_log() -> None:
    log = Log()
    log.visits = [(1, 1, 1, 10, 1.0, {}), (1, 1, 2, 10, 1.0, {})]
    log.parts = [
        *((1, 1, "validation", part, 10, loss, {}) for part, loss in enumerate((0.5, 0.5))),
        (1, 2, "validation", 0, 10, 0.125, {}),
    ]
    log.epochs[1, 1] = 0.5, True
    one = objectives(run(objective="val_loss"), log)
    assert after_evaluation(one, evaluate(1, 1), 10, 0.1, {}) == [], "it is on record"
    log.take(after_evaluation(one, evaluate(2, 1), 10, 0.375, {}))
    one.committed(evaluate(2, 1))
    assert log.epochs[1, 2] == (0.25, True)
    said = after_evaluation(one, evaluate(3, 0), 10, 0.5, {}) + after_evaluation(one, evaluate(3, 1), 10, 0.5, {})
    assert len(said) == 1, "it is not better than what was kept before the run was interrupted"


def test_the_disk_that_best_states_take() -> None:
    last, best = (state_tables.most_bytes(run(objective="loss", keep=keep)) for keep in ("last", "best"))
    assert best == 1.5 * last
