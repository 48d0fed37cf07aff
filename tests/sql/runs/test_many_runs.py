"""The views over many runs read each row a few times at most, however the planner joins.

The log of the first shape has many models for each run, that of the second many runs: what is read again for each
model, or for each run, shows in one of them.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from cerebro_db.core.names import Name
from cerebro_db.core.sql import Sql, literal, shown
from cerebro_madlib.tables.model_tables import info_rows
from cerebro_plpy.runs.record.log import MODEL_INFO
from tests.conftest import connect
from tests.sql.lab import run

SHAPES = {"models": (100, 50), "runs": (1500, 1)}  # runs and models of each
RUNS, MODELS = SHAPES["models"]
EPOCHS, SEGMENTS = 2, 2
BEATS = 3
FEW = 50  # times that a row is read: a node of the plan for each step that it takes
OTHERS = 3  # runs of another user
VIEWS = (
    "runs",
    "run_plan",
    "learning_curve",
    "leaderboard",
    "parameters",
    "cross_validation",
    "groups",
    "metrics",
    "run_progress",
    "hop_timeline",
    "run_time",
    "segments_now",
    "decisions",
    "requests",
)
RUN = """
INSERT INTO cerebro.run (run, source_table, packed_table, model_table, selection_table, arch_table, epochs,
                         evaluate_every, seed, segments, dist_keys, configurations, rows_per_epoch, storage,
                         options, layout,
                         validation_rows, packed_summary, version)
SELECT n, 'rows', 'packed', 'models', 'mst', 'arch', {epochs}, 1, 1, {segments}, '{{0,1}}', {models}, 200,
       'run_000000000000', '{{}}', '{{}}', 20, '{{}}', '0'
  FROM generate_series(1, {runs}) n;
INSERT INTO cerebro.architecture (run, model_id, name, given, architecture)
SELECT n, 1, 'small', '{{}}', '{{}}' FROM generate_series(1, {runs}) n;
INSERT INTO cerebro.configuration (run, configuration, place, model_id, compile_params, fit_params, compile, fit,
                                   parameters)
SELECT n, m, m, 1, 'c', 'f', '{{"metrics": ["accuracy"]}}', '{{}}', '{{}}'
  FROM generate_series(1, {runs}) n, generate_series(1, {models}) m;
INSERT INTO cerebro.model (run, model, configuration, seed, initial)
SELECT n, m, m, 1, 'random' FROM generate_series(1, {runs}) n, generate_series(1, {models}) m;
INSERT INTO cerebro.event (run, model, event, detail)
SELECT n, NULL, event, '{{"pid": 1, "backend_start": "2020-01-01T00:00:00+00:00"}}'
  FROM generate_series(1, {runs}) n, unnest(ARRAY['created', 'started', 'finished', 'materialized']) event;
INSERT INTO cerebro.event (run, model, event, detail)
SELECT n, m, 'built', '{{"parameters": 9, "engine": "jax"}}'
  FROM generate_series(1, {runs}) n, generate_series(1, {models}) m;
INSERT INTO cerebro.attempt (run, model, hop, segment)
SELECT n, m, h, h % {segments}
  FROM generate_series(1, {runs}) n, generate_series(1, {models}) m, generate_series(1, {epochs} * {segments}) h;
INSERT INTO cerebro.hop (run, model, hop, epoch, segment, started_at, finished_at, trainer_pid, rows, steps, loss,
                         metric, metrics, state_bytes, state_sha256, weights_offset, weights_bytes, seconds)
SELECT n, m, h, (h - 1) / {segments} + 1, h % {segments}, now(), now() + interval '1 s', 1, 100, 1, 1.0 / (m + h), 0.5,
       '{{"accuracy": 0.5}}', 1, '', 0, 0, '{{"train": 1, "build": 0.1}}'
  FROM generate_series(1, {runs}) n, generate_series(1, {models}) m, generate_series(1, {epochs} * {segments}) h;
INSERT INTO cerebro.evaluation (run, model, epoch, dataset, part, segment, started_at, rows, loss, metric, metrics,
                                seconds)
SELECT n, m, e, 'validation', p, p, now(), 10, 1.0 / (m + e), 0.5, '{{"accuracy": 0.5}}', '{{"evaluate": 1}}'
  FROM generate_series(1, {runs}) n, generate_series(1, {models}) m, generate_series(1, {epochs}) e,
       generate_series(0, 1) p;
INSERT INTO cerebro.objective (run, model, epoch, hop, value, kept)
SELECT n, m, e, e * {segments}, 1.0 / (m + e), true
  FROM generate_series(1, {runs}) n, generate_series(1, {models}) m, generate_series(1, {epochs}) e;
INSERT INTO cerebro.decision (run, model, epoch, decision, policy, request, detail)
SELECT n, m, e, 'add', 'p', 3 * n + m, '{{"added": [{{"model": 51}}]}}'
  FROM generate_series(1, {runs}) n, generate_series(1, {models}) m, generate_series(1, {epochs}) e;
INSERT INTO cerebro.request (request_id, run, action, detail)
SELECT 3 * n + m, n, 'stop', jsonb_build_object('model', m)
  FROM generate_series(1, {runs}) n, generate_series(1, {models}) m;
INSERT INTO cerebro.heartbeat (run, rows_done, rows_total)
SELECT n, beat, {beats} FROM generate_series(1, {runs}) n, generate_series(1, {beats}) beat;
"""
LOG = (
    "run",
    "configuration",
    "model",
    "event",
    "hop",
    "evaluation",
    "objective",
    "attempt",
    "decision",
    "request",
    "heartbeat",
)


class Filled:
    """The superuser's session, and the log of two users: ``many``, and ``few`` with runs of the same numbers."""

    def __init__(self, connection: Any, runs: int, models: int) -> None:
        self.connection, self.runs, self.models = connection, runs, models
        self.is_analyzed = False
        self._stored: dict[tuple[str, str], int] = {}

    def __call__(self, role: str, statement: str) -> list[Any]:
        run(self.connection, f"SET ROLE {role}")
        try:
            return run(self.connection, statement)
        finally:
            run(self.connection, "RESET ROLE")

    def stored(self, role: str, where: str = "true") -> int:
        """The rows of a user's log."""
        if (role, where) not in self._stored:
            counts = (self(role, f"SELECT count(*) FROM cerebro.{table} WHERE {where}")[0][0] for table in LOG)
            self._stored[role, where] = sum(counts)
        return self._stored[role, where]

    def analyze(self) -> None:
        if not self.is_analyzed:
            run(self.connection, "".join(f"ANALYZE cerebro.{table};" for table in LOG))
            self.is_analyzed = True


@contextlib.contextmanager
def filled(server: str, runs: int, models: int) -> Iterator[Filled]:
    with contextlib.closing(connect(server)) as connection:
        run(connection, "SET jit = off")
        roles = {"few": "cerebro_user", "many": "cerebro_user", "watcher": "cerebro_monitor"}
        for role, group in roles.items():
            run(connection, f"DROP ROLE IF EXISTS {role}; CREATE ROLE {role}; GRANT {group} TO {role}")
        log = Filled(connection, runs, models)
        try:
            log("few", RUN.format(runs=OTHERS, models=models, epochs=EPOCHS, segments=SEGMENTS, beats=BEATS))
            log("many", RUN.format(runs=runs, models=models, epochs=EPOCHS, segments=SEGMENTS, beats=BEATS))
            yield log
        finally:
            for table in (*LOG, "architecture"):
                run(connection, f"DELETE FROM cerebro.{table} WHERE pg_get_userbyid(owner) IN ('few', 'many')")
            run(connection, "DROP OWNED BY few, many, watcher; DROP ROLE few, many, watcher")


@pytest.fixture(scope="module", params=SHAPES)
def log(server: str, request: pytest.FixtureRequest) -> Iterator[Filled]:
    with filled(server, *SHAPES[request.param]) as made:
        yield made


def rows_touched(node: dict[str, Any]) -> float:
    """The rows that a plan's nodes have read or made, each time they ran."""
    removed = sum(count for name, count in node.items() if name.startswith("Rows Removed"))
    own = (node["Actual Rows"] + removed) * node["Actual Loops"]
    return own + sum(rows_touched(child) for child in node.get("Plans", ()))


def plan_of(log: Filled, role: str, query: str) -> dict[str, Any]:
    ((plan,),) = log(role, f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT json) {query}")
    print(query[:80], plan[0]["Execution Time"], rows_touched(plan[0]["Plan"]))
    return plan[0]["Plan"]  # type: ignore[no-any-return]


# What the planner may not choose. Without joins by hash and merge it joins in a loop whatever can be joined in a loop,
# and without indexes such a loop reads a whole table again for each row.
PLANNERS = {
    "free": (),
    "loops": ("enable_hashjoin", "enable_mergejoin", "enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan"),
}


@pytest.fixture(params=PLANNERS)
def planner(log: Filled, request: pytest.FixtureRequest) -> Iterator[str]:
    for setting in PLANNERS[request.param]:
        run(log.connection, f"SET {setting} = off")
    yield request.param
    for setting in PLANNERS[request.param]:
        run(log.connection, f"RESET {setting}")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("role", ["many", "watcher"])
@pytest.mark.parametrize("analyzed", [False, True])  # first all that are not: nothing makes statistics unknown again
def test_a_view_over_all_runs_reads_each_row_a_few_times(
    log: Filled, role: str, view: str, analyzed: bool, planner: str
) -> None:
    """Also where the planner knows nothing of the rows yet, and where it expects the worst plan to be the best one.  An
    aggregate for each model would read millions."""
    if analyzed:
        log.analyze()
    everything = log.stored(run(log.connection, "SELECT current_user")[0][0])
    assert rows_touched(plan_of(log, role, f"SELECT * FROM cerebro.{view}")) < FEW * everything


@pytest.mark.parametrize("view", VIEWS)
def test_who_has_few_runs_reads_few_rows(log: Filled, view: str) -> None:
    """The rows of others have no influence, also where both have runs of the same number."""
    log.analyze()
    sessions = 200  # that there may be, and locks
    for where in ("", "WHERE run = 2"):
        touched = rows_touched(plan_of(log, "few", f"SELECT * FROM cerebro.{view} {where}"))
        assert touched < FEW * log.stored("few") + sessions


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("role", ["many", "watcher"])
def test_a_view_of_one_run_reads_that_run(log: Filled, role: str, view: str) -> None:
    log.analyze()
    touched = rows_touched(plan_of(log, role, f"SELECT * FROM cerebro.{view} WHERE run = 7"))
    assert touched < FEW * log.stored("many", "run = 7") + 1000  # both users have this run; the log has 100,000 rows


of_models = pytest.mark.parametrize("log", ["models"], indirect=True)


TOLD = {
    number: {"metrics": ["accuracy"], "loss": "mse", "which": "best", "epoch": 1} for number in range(1, MODELS + 1)
}
TEXT = shown(literal(json.dumps(TOLD)))


def filled_in(query: Sql, *given: str) -> str:
    return functools.reduce(lambda sql, one: sql.replace(f"${one[0]}", one[1]), enumerate(given, 1), shown(query))


INFO = filled_in(MODEL_INFO, "7", TEXT, "NULL::integer")
OF_MADLIB = filled_in(info_rows(Name(None, "plain_info")), "7", TEXT, "now()", "1", str(EPOCHS))


@pytest.fixture
def plain_info(log: Filled) -> None:
    """The plain table that MADlib's is made of."""
    log("many", f"DROP TABLE IF EXISTS plain_info; CREATE TEMPORARY TABLE plain_info AS {INFO}")


@of_models
@pytest.mark.throw_away  # the JSON of Greenplum's EXPLAIN is not complete here
@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("query", [INFO, OF_MADLIB], ids=["plain", "madlib"])
@pytest.mark.usefixtures("plain_info")
def test_the_info_table_of_a_run_reads_its_rows_a_few_times(log: Filled, query: str, analyzed: bool) -> None:
    """A learning curve that is read for each pair of models would be millions of rows."""
    if analyzed:
        log.analyze()
    plan = plan_of(log, "many", query)
    assert plan["Actual Rows"] == MODELS
    assert rows_touched(plan) < 200 * log.stored("many", "run = 7")


@of_models
@pytest.mark.usefixtures("plain_info")
def test_the_info_table_has_the_figures_of_the_state_that_it_names(log: Filled) -> None:
    figures = "training_loss_final, which, epoch, training_loss"
    found = log("many", f"SELECT {figures} FROM ({OF_MADLIB}) i ORDER BY mst_key")
    assert len(found) == MODELS
    for final, which, epoch, losses in found:
        assert len(losses) == EPOCHS and (final, which, epoch) == (losses[0], "best", 1)
    plain = log("many", f"SELECT training_loss, which, epoch FROM ({INFO}) i ORDER BY configuration")
    assert plain == [(final, which, epoch) for final, which, epoch, _ in found]


@of_models
def test_the_figures_are_right(log: Filled) -> None:
    def ask(query: str) -> list[Any]:
        return log("many", query)

    assert ask("SELECT count(*), min(rank), max(rank), min(status), min(engine) FROM cerebro.leaderboard") == [
        (RUNS * MODELS, 1, MODELS, "finished", "jax")
    ]
    best = (
        "SELECT configuration, training_loss, validation_loss, epochs_done FROM cerebro.leaderboard"
        " WHERE run = 7 AND rank = 1"
    )
    (found,) = ask(best)
    assert found == (MODELS, pytest.approx((1 / 53 + 1 / 54) / 2), pytest.approx(1 / 52), EPOCHS)
    assert ask("SELECT count(*), sum(rows) FROM cerebro.learning_curve") == [
        (RUNS * MODELS * EPOCHS, 200 * RUNS * MODELS * EPOCHS)
    ]
    progress = (
        "SELECT DISTINCT status, hops_done, hops_total, configurations_finished, best_configuration"
        " FROM cerebro.run_progress"
    )
    hops = MODELS * EPOCHS * SEGMENTS
    assert ask(progress) == [("finished", hops, hops, MODELS, MODELS)]
