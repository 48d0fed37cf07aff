"""The log's tables and the views over them, on rows written by hand: no run is driven here."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import psycopg2
import pytest

from cerebro_db.core import events
from tests.conftest import connect

# What each word constraint of the log holds: (table, constraint) to the enum that it must equal.
WORDS: dict[tuple[str, str], type[Enum]] = {
    ("event", "event_is_known"): events.Event,
    ("model", "initial_is_known"): events.Initial,
    ("hop", "kind_is_known"): events.HopKind,
    ("evaluation", "dataset_is_known"): events.DataSetName,
    ("decision", "decision_is_known"): events.Verdict,
    ("request", "action_is_known"): events.Action,
}
SEGMENTS, EPOCHS = 2, 3
SECONDS = '{"train": 1}'


class Log:
    """The superuser's session in a database of its own."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def __call__(self, statement: str, *values: Any) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def run(self, run: int, configurations: int, epochs: int = EPOCHS) -> None:
        """A run with its configurations and one model for each of them."""
        self(
            "INSERT INTO cerebro.run (run, source_table, packed_table, model_table, selection_table, arch_table,"
            " epochs, evaluate_every, seed, segments, dist_keys, configurations, rows_per_epoch, storage,"
            " options, layout,"
            " packed_summary, version)"
            " VALUES (%s, 'rows', 'packed', 'models', 'mst', 'arch', %s, 1, 1, %s, '{0,1}', %s, 20, 'run_000000000000',"
            " '{}', '{}', '{}', '0')",
            run,
            epochs,
            SEGMENTS,
            configurations,
        )
        self(
            "INSERT INTO cerebro.architecture (run, model_id, name, given, architecture)"
            " VALUES (%s, 7, 'small', '{}', '{}')",
            run,
        )
        for place in range(configurations):
            self(
                "INSERT INTO cerebro.configuration"
                " (run, configuration, place, model_id, compile_params, fit_params, compile, fit, parameters)"
                """ VALUES (%s, %s, %s, 7, 'c', 'f', '{"metrics": ["accuracy"]}', '{}', '{}')""",
                run,
                100 + place,
                place,
            )
            self.model(run, place + 1, 100 + place)
        self(
            "INSERT INTO cerebro.event (run, event, detail) SELECT %s, 'created',"
            " jsonb_build_object('pid', pid, 'backend_start', backend_start)"
            " FROM pg_stat_activity WHERE pid = pg_backend_pid()",
            run,
        )

    def model(self, run: int, model: int, configuration: int, visits: list[int] | None = None) -> None:
        self(
            "INSERT INTO cerebro.model (run, model, configuration, visits, seed, initial, initial_sha256, parent,"
            " parent_hop)"
            " VALUES (%s, %s, %s, %s, 1, 'random', NULL, NULL, NULL)",
            run,
            model,
            configuration,
            visits,
        )

    def hops(self, run: int, model: int, first: int, last: int, visits: int = SEGMENTS, loss: float = 1.0) -> None:
        self(
            "INSERT INTO cerebro.hop (run, model, hop, epoch, segment, started_at, trainer_pid, rows, steps, loss,"
            " metric, metrics, state_bytes, state_sha256, weights_offset, weights_bytes, seconds)"
            " SELECT %s, %s, hop, (hop - 1) / %s + 1, (hop - 1) %% %s, clock_timestamp() - interval '2 s', 1, 10, 2,"
            " %s, 0.5, '{}', 8, 'x', 0, 8, %s FROM generate_series(%s::int, %s::int) hop",
            *(run, model, visits, visits, loss, SECONDS, first, last),
        )

    def decide(self, run: int, model: int, epoch: int, decision: str, reason: str | None = None) -> None:
        self(
            "INSERT INTO cerebro.decision (run, model, epoch, decision, reason, policy)"
            " VALUES (%s, %s, %s, %s, %s, 'p')",
            *(run, model, epoch, decision, reason),
        )

    def board(self, run: int) -> dict[int, tuple[Any, ...]]:
        """Model to what the leaderboard shows of it."""
        rows = self(
            "SELECT model, configuration, status, epochs_done, reason, rank FROM cerebro.leaderboard WHERE run = %s",
            run,
        )
        return {row[0]: row[1:] for row in rows}

    def progress(self, run: int) -> tuple[Any, ...]:
        return self(
            "SELECT hops_done, hops_total, configurations_finished, configurations_failed, best_configuration"
            " FROM cerebro.run_progress WHERE run = %s",
            run,
        )[0]


@pytest.fixture
def log(fresh_database: str) -> Iterator[Log]:
    with contextlib.closing(connect(fresh_database)) as connection:
        yield Log(connection)


def test_the_words_of_the_log_are_the_enums(server: str) -> None:
    with contextlib.closing(connect(server)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE connamespace = 'cerebro'::regnamespace AND conname LIKE '%\\_is\\_known'"
        )
        found = {
            (table.removeprefix("cerebro."), name): re.findall(r"'((?:[^']|'')*)'", definition)
            for table, name, definition in cursor
        }
    assert found == {where: [str(word.value) for word in enum] for where, enum in WORDS.items()}


def test_the_log_takes_no_other_words(log: Log) -> None:
    log.run(1, 1)
    for statement in (
        "INSERT INTO cerebro.event (run, event) VALUES (1, 'begun')",
        "INSERT INTO cerebro.model (run, model, configuration, seed, initial) VALUES (1, 2, 100, 1, 'zero')",
        "INSERT INTO cerebro.decision (run, model, epoch, decision, policy) VALUES (1, 1, 1, 'pause', 'p')",
        "INSERT INTO cerebro.hop (run, model, hop, kind, epoch, segment, started_at, trainer_pid, rows, steps, loss,"
        " metrics, state_bytes, state_sha256, weights_offset, weights_bytes, seconds)"
        " VALUES (1, 1, 9, 'visit', 1, 0, now(), 1, 1, 1, 1, '{}', 1, '', 0, 0, '{}')",
        "INSERT INTO cerebro.evaluation (run, model, epoch, dataset, part, segment, started_at, rows, loss, metrics,"
        " seconds) VALUES (1, 1, 1, 'test', 0, 0, now(), 1, 1, '{}', '{}')",
    ):
        with pytest.raises(psycopg2.errors.CheckViolation, match="_is_known"):
            log(statement)
    for columns, values in (
        ("visits", "'{}'"),  # a model without segments would never train
        ("parent", "1"),  # a copy says which state it is a copy of
        ("parent_hop", "1"),
    ):
        with pytest.raises(psycopg2.errors.CheckViolation):
            log(
                f"INSERT INTO cerebro.model (run, model, configuration, seed, initial, {columns})"
                f" VALUES (1, 2, 100, 1, 'random', {values})"
            )


def test_the_status_of_models(log: Log) -> None:
    """Five configurations: one waits, one trains, one is finished, one was stopped, one failed."""
    log.run(1, 5)
    log.hops(1, 2, 1, 3, loss=5.0)
    log.hops(1, 3, 1, SEGMENTS * EPOCHS, loss=2.0)
    log.hops(1, 4, 1, SEGMENTS * 2, loss=3.0)
    log.decide(1, 4, 1, "continue", "so far good")
    log.decide(1, 4, 2, "stop", "among the worst half after 2 epochs")
    log.hops(1, 5, 1, 1, loss=0.1)
    log("""INSERT INTO cerebro.event (run, event, model, detail) VALUES (1, 'model failed', 5, '{"reason": "nan"}')""")
    assert log.board(1) == {
        1: (100, "waiting", 0, None, 4),
        2: (101, "training", 1, None, 3),
        3: (102, "finished", EPOCHS, None, 1),
        4: (103, "stopped", 2, "among the worst half after 2 epochs", 2),
        5: (104, "failed", 0, "nan", 5),
    }
    # The stopped model has its four hops and gets no more; a failed one may be given another chance.
    assert log.progress(1) == (14, 4 * SEGMENTS * EPOCHS + 4, 2, 1, 102)
    log("INSERT INTO cerebro.event (run, event, model) VALUES (1, 'model revived', 5)")
    assert log.board(1)[5] == (104, "training", 0, None, 1)


def test_each_model_has_its_own_visits(log: Log) -> None:
    """Two models of one configuration, and each is finished when it has made its own visits."""
    log.run(1, 1)
    log.model(1, 2, 100, [1])
    assert log.progress(1)[:2] == (0, EPOCHS * SEGMENTS + EPOCHS)
    log.hops(1, 1, 1, 3)
    log.hops(1, 2, 1, 3, visits=1)
    found = log.board(1)
    assert found[1][:3] == (100, "training", 1) and found[2][:3] == (100, "finished", EPOCHS)
    log("INSERT INTO cerebro.attempt (run, model, hop, segment) VALUES (1, 1, 4, 1), (1, 2, 3, 0)")
    assert log("SELECT segment, configuration, epoch, hop, done, model FROM cerebro.segments_now ORDER BY segment") == [
        (0, 100, 3, 3, True, 2),
        (1, 100, 2, 4, False, 1),
    ]
    assert log("SELECT model, epoch, configuration, rows FROM cerebro.learning_curve ORDER BY 1, 2") == [
        (1, 1, 100, 20),
        (1, 2, 100, 10),
        *((2, epoch, 100, 10) for epoch in (1, 2, 3)),
    ]
    timeline = log(
        "SELECT model, count(*), min(configuration), sum(seconds_training) FROM cerebro.hop_timeline GROUP BY 1"
    )
    assert sorted(timeline) == [(1, 3, 100, 3.0), (2, 3, 100, 3.0)]


def test_a_run_of_any_size_is_computed(log: Log) -> None:
    """A user may write such rows, and a monitor's queries must not end with an error because of them."""
    log.run(1, 2, epochs=2**31 - 1)
    log("UPDATE cerebro.run SET segments = 10000, dist_keys = array_fill(0, '{10000}')")
    log(
        "INSERT INTO cerebro.model (run, model, configuration, seed, initial)"
        " SELECT 1, model, 100, 1, 'random' FROM generate_series(3, 5) model"
    )
    assert log.progress(1)[:2] == (0, 5 * 10_000 * (2**31 - 1))


def test_whether_a_run_has_ended(log: Log) -> None:
    """A run that has finished still makes its tables, as long as its session is in the transaction that trained it."""
    log.run(1, 1)
    with contextlib.closing(psycopg2.connect(log.connection.dsn)) as connection, connection.cursor() as cursor:
        # It stands for a driver: in the transaction that trains the run, and then makes the tables.
        cursor.execute(
            "SELECT jsonb_build_object('pid', pid, 'backend_start', backend_start, 'transaction', transaction)"
            " FROM cerebro_internal._sessions() WHERE pid = pg_backend_pid()"
        )
        ((alive,),) = cursor.fetchall()
        assert alive["transaction"]
        statuses_of_a_run(log, alive)
        ended = "SELECT ended FROM cerebro.runs WHERE run = 1"
        log("INSERT INTO cerebro.event (run, event, detail) VALUES (1, 'started', %s)", json.dumps(alive))
        log("INSERT INTO cerebro.event (run, event) VALUES (1, 'finished')")
        assert log(ended) == [(False,)]
        connection.rollback()
        assert log(ended) == [(True,)]  # the session is still there, but in no transaction that could make the tables
        cursor.execute("SELECT 1")
        assert log(ended) == [(True,)]


def statuses_of_a_run(log: Log, alive: dict[str, Any]) -> None:
    gone = {**alive, "backend_start": "2001-01-01T00:00:00+00:00"}

    def after(event: str, detail: dict[str, Any] | None = None) -> tuple[str, bool]:
        log("INSERT INTO cerebro.event (run, event, detail) VALUES (1, %s, %s)", event, json.dumps(detail or {}))
        return log("SELECT status, ended FROM cerebro.runs WHERE run = 1")[0]

    assert log("SELECT status, ended FROM cerebro.runs WHERE run = 1") == [("created", False)]
    assert after("cancel requested") == ("cancelled", True)  # before a session began it
    ((told, at),) = log("SELECT message, ended_at FROM cerebro.runs")
    assert told == "the run was cancelled before it began" and at is not None
    assert after("created", gone) == ("interrupted", True)  # nobody will begin it
    assert after("started", alive) == ("running", False)
    assert after("cancel requested") == ("running", False)
    assert after("cancelled") == ("cancelled", True)
    assert after("started", gone) == ("interrupted", True)
    assert after("started", alive) == ("running", False)
    assert after("finished") == ("finishing", False)
    assert log("SELECT driver_pid FROM cerebro.runs") == [(alive["pid"],)]
    assert after("extended", {"epochs": 9}) == ("finishing", False)
    assert after("submitted") == ("finishing", False)  # a session is about to drive it further
    assert after("started", alive) == ("running", False)
    assert after("finished") == ("finishing", False)
    assert after("materialized") == ("finished", True)
    assert after("started", gone) == ("interrupted", True)
    assert after("finished") == ("finished", True)  # nobody will make the tables
    assert after("started", alive) == ("running", False)
    assert after("failed", {"message": "no room"}) == ("failed", True)
    ((told, driver, epochs),) = log("SELECT message, driver_pid, epochs FROM cerebro.runs")
    assert (told, driver, epochs) == ("no room", None, 9)


def test_a_run_without_models(log: Log) -> None:
    log.run(1, 0)
    assert log.progress(1) == (0, 0, 0, 0, None)
    assert log("SELECT status FROM cerebro.runs") == [("created",)]


HOP: dict[str, Any] = {
    "run": 1, "model": 1, "hop": 1, "epoch": 1, "segment": 0, "started_at": "2026-01-01", "finished_at": "2026-01-02",
    "trainer_pid": 1, "rows": 1, "steps": 1, "loss": 1.0, "metric": 1.0, "metrics": "{}", "state_bytes": 8,
    "state_sha256": "x", "weights_offset": 0, "weights_bytes": 8, "seconds": SECONDS,
}  # fmt: skip
LATEST, EARLIEST = "3000-01-01 00:00+00", "2000-01-01 00:00+00"
VIEWS = (
    "run_plan",
    "runs",
    "learning_curve",
    "leaderboard",
    "run_progress",
    "hop_timeline",
    "segments_now",
    "run_time",
    "decisions",
    "requests",
)


def write(log: Log, table: str, row: dict[str, Any]) -> None:
    log(f"INSERT INTO cerebro.{table} ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})", *row.values())


SOUND: dict[str, dict[str, Any]] = {
    "run": {
        "run": 2, "source_table": "x", "packed_table": "x", "model_table": "x", "selection_table": "x",
        "arch_table": "x", "epochs": 1,
        "evaluate_every": 1, "seed": 1, "segments": 1, "dist_keys": "{0}", "configurations": 1, "rows_per_epoch": 1,
        "storage": "x", "options": "{}", "layout": "{}", "packed_summary": "{}", "version": "0",
    },
    "event": {"run": 1, "event": "failed"},
    "attempt": {"run": 1, "model": 1, "hop": 1, "segment": 0},
    "hop": HOP,
    "objective": {"run": 1, "model": 1, "epoch": 1, "hop": 1, "value": 0.0, "kept": True},
    "decision": {"run": 1, "model": 1, "epoch": 1, "decision": "stop", "policy": "p"},
    "heartbeat": {"run": 1, "rows_done": 1, "rows_total": 1},
    "request": {"run": 1, "action": "stop"},
}  # fmt: skip
MOMENTS = {
    "run": ("created_at",),
    "event": ("at",),
    "attempt": ("started_at",),
    "hop": ("started_at", "finished_at"),
    "objective": ("at",),
    "decision": ("at",),
    "heartbeat": ("at",),
    "request": ("at",),
}
POISON: list[tuple[str, str, Any]] = [
    *(
        (table, column, value)
        for table, columns in MOMENTS.items()
        for column in columns
        for value in ("4714-11-24 00:00+00 BC", "294276-01-01", "-infinity", "infinity")
    ),
    *(("hop", column, value) for column in ("loss", "metric") for value in (1e290, -1.7e308, 5e-324, -1e-200)),
    ("hop", "rows", 2**63 - 1),
    ("hop", "rows", -1),
    ("hop", "seconds", '{"train": 1e300}'),
    ("hop", "seconds", '{"save": 1e-300}'),
    ("hop", "seconds", '{"load": "NaN"}'),
    ("heartbeat", "rows_done", 2**63 - 1),
    ("heartbeat", "rows_total", -1),
    ("event", "detail", json.dumps({"message": "x" * 100_001})),
    *(("objective", "value", value) for value in (1e290, -5e-324, float("nan"), float("inf"), float("-inf"))),
    ("objective", "epoch", 0),
    ("objective", "hop", 0),
    ("decision", "reason", "x" * 100_001),
    ("decision", "epoch", -1),
    ("request", "reason", "x" * 100_001),
    ("request", "detail", '{"model": 0}'),
    ("request", "detail", '{"epochs": -1}'),
    ("request", "detail", '{"new": {"parent": 0}}'),
    ("run", "name", "x" * 10_001),
    ("run", "description", "x" * 100_001),
    ("run", "options", json.dumps({"x": "x" * 1_000_000})),
    ("run", "segments", 0),
    ("run", "configurations", 2**31 - 1),
]


def test_the_log_takes_nothing_that_the_views_cannot_compute_with(log: Log) -> None:
    for table, column, value in POISON:
        with pytest.raises(psycopg2.errors.CheckViolation):
            write(log, table, {**SOUND[table], column: value})
            raise AssertionError(f"{table}.{column} took {str(value)[:40]}")
    for table, row in SOUND.items():
        write(log, table, row)  # nothing else was wrong


def test_rows_at_the_bounds_break_no_view(log: Log) -> None:
    """The worst that a user can write about a run of its own, thousands of times the largest loss included."""
    log.run(1, 2, epochs=2**31 - 1)
    log("UPDATE cerebro.run SET segments = 10000, dist_keys = array_fill(0, '{10000}'), created_at = %s", EARLIEST)
    worst = [1e100, -1e100, 1e-100, 0.0, float("nan"), float("inf"), float("-inf")]
    hop = 0
    for epoch, loss in enumerate(worst, 1):
        for rows in (0, 1, 10**12):
            for started, finished in ((EARLIEST, LATEST), (LATEST, EARLIEST)):
                hop += 1
                seconds = {stage: (-1) ** hop * 1e12 for stage in ("data", "build", "load", "train", "save", "behind")}
                own: dict[str, Any] = {"hop": hop, "epoch": epoch, "loss": loss, "metric": loss, "rows": rows}
                own |= {"started_at": started, "finished_at": finished, "seconds": json.dumps(seconds)}
                write(log, "hop", {**HOP, **own})
    log(
        "INSERT INTO cerebro.hop (run, model, hop, epoch, segment, started_at, trainer_pid, rows, steps, loss,"
        " metrics, state_bytes, state_sha256, weights_offset, weights_bytes, seconds)"
        " SELECT 1, 2, hop, 1, 0, now(), 1, 1e12, 1, CASE WHEN hop % 2 = 0 THEN 1e100 ELSE 1e-100 END, '{}', 8, 'x',"
        """ 0, 8, '{"train": 1e-100}' FROM generate_series(1, 20000) hop"""
    )
    log(
        "INSERT INTO cerebro.evaluation (run, model, epoch, dataset, part, segment, started_at, finished_at, rows,"
        " loss, metrics, seconds) SELECT 1, 1, 1, 'validation', part, 0, %s, %s, 1e12, 1e100, '{}', '{}'"
        " FROM generate_series(1, 100) part",
        EARLIEST,
        LATEST,
    )
    log("UPDATE cerebro.run SET validation_rows = 1000000000000")
    for epoch, value in ((1, 1e100), (2, -1e100), (2**31 - 1, 1e-100)):
        write(log, "objective", {**SOUND["objective"], "epoch": epoch, "value": value})
    for options in ('{"objective": "x", "direction": "max", "keep": "best"}', '{"objective": [1], "direction": {}}'):
        log("UPDATE cerebro.run SET options = %s", options)
        assert log("SELECT * FROM cerebro.leaderboard")
    for at in (EARLIEST, LATEST):
        for done, total in ((0, 10**18), (10**18, 0)):
            log(
                "INSERT INTO cerebro.heartbeat (run, at, rows_done, rows_total) VALUES (1, %s, %s, %s),"
                " (1, %s::timestamptz - interval '1 us' * sign(extract(year FROM %s::timestamptz) - 2500), %s, %s)",
                *(at, done, total, at, at, total, done),
            )
    log(
        "INSERT INTO cerebro.attempt (run, model, hop, segment, started_at) VALUES (1, 1, %s, 0, %s)", 2**31 - 1, LATEST
    )
    log(
        "INSERT INTO cerebro.event (run, event, at, detail) VALUES (1, 'extended', %s, %s), (1, 'built', %s, %s)",
        *(LATEST, json.dumps({"epochs": 2**31 - 1}), EARLIEST, json.dumps({"parameters": 2**63 - 1})),
    )
    for number, detail in enumerate(
        ["{}", '{"added": 1, "gone_on": {}}', '{"added": [1, [], {"model": {}}, {"model": [2]}, null]}',
         '{"gone_on": [[], {}, null, "x"], "new": 7}', '{"new": {"configuration": []}}', '{"model": 2147483647}']
    ):  # fmt: skip
        for place, action in enumerate(events.Action):
            request = {"run": 1, "request_id": 10 * number + place, "action": action.value, "detail": detail}
            write(log, "request", request)
            write(log, "decision", {**SOUND["decision"], "request": 10 * number + place, "detail": detail})
    for view in VIEWS:
        assert log(f"SELECT * FROM cerebro.{view}"), view
    assert log("SELECT * FROM cerebro.limits")


def test_the_leaderboard_by_an_objective(log: Log) -> None:
    """By the latest value, or by the best with the option keep; of equal values the earlier epoch is best."""
    log.run(1, 4)
    curves = {1: (0.5, 0.9, 0.6), 2: (0.7, 0.7, 0.7), 3: (0.2, 0.8)}
    for model, curve in curves.items():
        for epoch, value in enumerate(curve, 1):
            kept = all(earlier < value for earlier in curve[: epoch - 1])
            row = {"run": 1, "model": model, "epoch": epoch, "hop": 2 * epoch, "value": value, "kept": kept}
            write(log, "objective", row)
    log.hops(1, 4, 1, 4, loss=0.1)

    def board(direction: str, keep: str) -> list[tuple[Any, ...]]:
        options = {"objective": "auc", "direction": direction, "keep": keep}
        log("UPDATE cerebro.run SET options = %s", json.dumps(options))
        return log(
            "SELECT model, rank, objective_value, best_epoch, best_value FROM cerebro.leaderboard"
            " WHERE objective = 'auc' ORDER BY rank"
        )

    assert board("max", "last") == [(3, 1, 0.8, 2, 0.8), (2, 2, 0.7, 1, 0.7), (1, 3, 0.6, 2, 0.9), (4, 4, *[None] * 3)]
    assert board("max", "best") == [(1, 1, 0.9, 2, 0.9), (3, 2, 0.8, 2, 0.8), (2, 3, 0.7, 1, 0.7), (4, 4, *[None] * 3)]
    assert board("min", "last") == [(1, 1, 0.6, 1, 0.5), (2, 2, 0.7, 1, 0.7), (3, 3, 0.8, 1, 0.2), (4, 4, *[None] * 3)]
    log("UPDATE cerebro.run SET options = '{}'")
    # Of epochs by loss only complete ones count.
    log.hops(1, 1, 1, 4, loss=0.5)
    log.hops(1, 1, 5, 5, loss=0.1)
    assert log(
        "SELECT model, rank, objective, objective_value, best_epoch, best_value FROM cerebro.leaderboard"
        " WHERE model < 3"
    ) == [(1, 1, "loss", 0.1, 1, 0.5), (2, 3, "loss", None, None, None)]


def test_who_stopped_a_model(log: Log) -> None:
    """Until a later decision lets it go on."""
    log.run(1, 2)
    log.hops(1, 1, 1, 2)
    shown = "SELECT model, status, reason, stopped_by, rung FROM cerebro.leaderboard ORDER BY model"
    log.decide(1, 1, 1, "stop", "waits at rung 2: for others")
    assert log(shown) == [(1, "stopped", "waits at rung 2: for others", "p", 2), (2, "waiting", None, None, None)]
    log.decide(1, 1, 1, "go on")
    assert log(shown)[0] == (1, "training", None, None, 2)
    log.decide(1, 1, 1, "continue", "passes rung 3")
    assert log(shown)[0] == (1, "training", None, None, 3)
    log.decide(1, 1, 1, "stop", "waits at rung 99999999999999999999: a text that a user wrote")
    log.decide(1, 1, 1, "stop", "again")
    assert log(shown)[0] == (1, "stopped", "again", "p", 999999999)
