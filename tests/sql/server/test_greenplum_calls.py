"""How queries call our functions on Greenplum: they work, or fail before Python is entered; the session goes on."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest
from psycopg2.errorcodes import SYNTAX_ERROR, UNDEFINED_FUNCTION

from cerebro_plpy.runs.elsewhere import CALLS
from tests.conftest import connect
from tests.sql.lab import Lab, eventually, run

pytestmark = pytest.mark.greenplum

# {call} stands for a call with an integer of a row as its first argument.  Some are no valid SQL for some functions.
ROW = "x.i"
SHAPES = {
    "for each row": (ROW, "SELECT {call} FROM numbers x"),
    "in WHERE": (ROW, "SELECT 1 FROM numbers x WHERE ({call}) IS NOT NULL"),
    "of an aggregate": ("max(x.i + 0)", "SELECT {call} FROM numbers x"),
    "of a view's rows": ("x.run", "SELECT {call} FROM cerebro.runs x"),
    "of an aggregate over a view": ("max(x.run)", "SELECT {call} FROM cerebro.runs x"),
    "of a view joined with a table": ("r.run", "SELECT {call} FROM cerebro.runs r JOIN numbers x ON x.i = r.run"),
    "in a correlated subquery": (ROW, "SELECT (SELECT {call}) FROM numbers x"),
    "in a correlated subquery of a table": (ROW, "SELECT (SELECT {call} FROM texts WHERE t = x.t) FROM numbers x"),
    "of a subquery": ("(SELECT max(i + 0) FROM numbers)", "SELECT {call}"),
    "LATERAL": (ROW, "SELECT * FROM numbers x CROSS JOIN LATERAL {call} y"),
    "LATERAL of a view": ("x.run", "SELECT * FROM cerebro.runs x CROSS JOIN LATERAL {call} y"),
    "in INSERT SELECT": (ROW, "INSERT INTO texts SELECT ({call})::text FROM numbers x"),
    "in INSERT SELECT of a view": ("x.run", "INSERT INTO texts SELECT ({call})::text FROM cerebro.runs x"),
    "in CREATE TABLE AS": (ROW, "CREATE TEMP TABLE made AS SELECT {call} AS y FROM numbers x"),
    "in HAVING": (ROW, "SELECT count(*) FROM numbers x GROUP BY i HAVING ({call}) IS NOT NULL"),
    "after ORDER BY and LIMIT": (ROW, "SELECT {call} FROM (SELECT i FROM numbers ORDER BY i LIMIT 2) x"),
    "of a window": ("row_number() OVER ()", "SELECT {call} FROM numbers x"),
    "in UNION ALL": (ROW, "SELECT ({call})::text FROM numbers x UNION ALL SELECT ({call})::text FROM numbers x"),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab("CREATE TABLE numbers AS SELECT i, i::text AS t FROM generate_series(1, 9) i DISTRIBUTED BY (i)")
    lab("CREATE TABLE texts (t text) DISTRIBUTED BY (t)")
    lab("INSERT INTO texts SELECT t FROM numbers")
    lab("CREATE TABLE rows AS SELECT i AS id, (i % 7)::real AS a, i % 3 AS y FROM generate_series(1, 300) i")
    return lab


def fit(place: Lab, output: str, *, epochs: int = 1, wait: bool = True) -> int:
    # Closed at once: a submitted run does without its caller.
    with contextlib.closing(place.connect()) as connection:
        return run(
            connection,
            "SELECT cerebro.fit('rows', %s, '[{\"units\": 2}, {\"units\": 3}]', target => 'y', inputs => 'a',"
            " epochs => %s, wait => %s, packed_table => %s)",
            output, epochs, wait, f"{output}_packed",
        )[0][0]  # fmt: skip


@pytest.fixture
def running(place: Lab, request: pytest.FixtureRequest) -> Iterator[int]:
    found = fit(place, f"running_{abs(hash(request.node.name))}", epochs=100_000, wait=False)
    try:
        eventually(lambda: place.status(found) == "running", 120, "the run trains")
        yield found
    finally:
        with contextlib.closing(connect(place.dsn)) as connection:
            run(connection, "SELECT cerebro.cancel(%s)", found)


def public_functions(place: Lab) -> list[tuple[str, list[str]]]:
    """The name of each public function, and the types of its arguments."""
    return place(
        "SELECT format('%I.%I', nspname, proname), ARRAY(SELECT format_type(t, NULL) FROM unnest(proargtypes) t)"
        "  FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace"
        " WHERE nspname IN ('cerebro', 'madlib') AND proname !~ '^_' AND prokind = 'f'"
        "   AND prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype) ORDER BY 1, 2"
    )


def call(name: str, types: list[str], value: str) -> str:
    """With NULLs, which no function takes for an order to do something for long."""
    nothing = [
        "ARRAY[NULL::integer]" if kind == "anyarray" else f"NULL::{'integer' if kind == 'anyelement' else kind}"
        for kind in types
    ]
    if types and types[0] not in ("anyarray", "anyelement"):
        # The number of a run is one that there is not.
        nothing[0] = (
            f"(1000000 + {value})::{types[0]}"
            if types[0] == "bigint"
            else f"NULLIF(({value})::text, ({value})::text)::{types[0]}"
        )
    return f"{name}({', '.join(nothing)})"


def healthy(connection: Any, finished: int, process: int) -> None:
    """Two functions in Python work: the second would crash the server if the first had found Python damaged."""
    for _ in range(2):
        assert run(connection, "SELECT cerebro.cancel(%s)", finished) == [(False,)]
    assert connection.info.backend_pid == process


@pytest.mark.parametrize("shape", SHAPES)
def test_whatever_calls_a_function_the_session_goes_on(place: Lab, shape: str) -> None:
    value, query = SHAPES[shape]
    finished = place.value("SELECT COALESCE((SELECT max(run) FROM runs WHERE status = 'finished'), 0)") or fit(
        place, "done"
    )
    functions = public_functions(place)
    assert len(functions) > 80
    with contextlib.closing(place.connect()) as connection:
        process = connection.info.backend_pid
        run(connection, "SET statement_timeout = '20s'")
        for name, types in functions:
            told = None
            try:
                run(connection, query.format(call=call(name, types, value), value=value))
            except psycopg2.Error as error:
                told = error
            assert not connection.closed, (name, told)
            assert told is None or told.pgcode not in (SYNTAX_ERROR, UNDEFINED_FUNCTION), (name, told)
            assert "opcode" not in str(told) and "SystemError" not in str(told), (name, told)
            with contextlib.suppress(psycopg2.Error):
                run(connection, "DROP TABLE IF EXISTS made")
        healthy(connection, finished, process)


@pytest.mark.parametrize("shape", ["for each row", "in WHERE", "in CREATE TABLE AS", "of an aggregate", "of a window"])
def test_a_query_that_the_segments_work_on_is_refused_in_plain_words(place: Lab, shape: str) -> None:
    value, query = SHAPES[shape]
    says = "fit: a query over a table or a view calls it, while the segments work"
    with pytest.raises(psycopg2.errors.FeatureNotSupported, match=says) as error:
        place(query.format(call=f"cerebro.fit(({value})::text, 'out', '[{{}}]')"))
    assert "LOOP PERFORM cerebro.fit(r.…)" in error.value.diag.message_hint
    assert "Traceback" not in error.value.diag.context


@pytest.mark.parametrize("shape", ["for each row", "in WHERE", "in CREATE TABLE AS", "of an aggregate", "LATERAL"])
def test_a_predictor_beside_rows_is_refused_in_its_own_name(place: Lab, shape: str) -> None:
    """The error names what the user has called, and what its hint says works."""
    if place.value("SELECT to_regclass(%s)", '"it\'s"') is None:
        place("SELECT cerebro.materialize(%s, %s)", fit(place, "odd"), '"it\'s"')
        place("SELECT cerebro.create_predictor(%s, 'y_of')", '"it\'s"')
    value, query = SHAPES[shape]
    says = rf"^{place.schema}\.y_of: a query over a table or a view calls it, while the segments work on this query"
    with pytest.raises(psycopg2.errors.FeatureNotSupported, match=says) as error:
        place(query.format(call=f"y_of(({value})::real)"))
    instead = re.search(r"SELECT \* FROM cerebro\.predict\(.*\)(?=\.$)", error.value.diag.message_hint)
    assert instead is not None, error.value.diag.message_hint
    predicted = place(instead[0].replace("my_rows", "rows") + " ORDER BY key_value::int LIMIT 1")
    assert predicted[0][3] == place.value("SELECT y_of((SELECT a FROM rows WHERE id = 1))::text")


def test_prediction_beside_rows_says_what_to_do(place: Lab) -> None:
    with pytest.raises(psycopg2.errors.FeatureNotSupported, match="^cerebro.predict: a query over") as error:
        place("SELECT cerebro.predict(t, 'x') FROM numbers")
    assert "Predict all rows with one query" in error.value.diag.message_hint


def test_each_refusal_names_a_function_that_users_call(place: Lab) -> None:
    named = {
        name
        for (name,) in place(
            "SELECT DISTINCT (regexp_match(prosrc, %s))[1] FROM pg_proc"
            " WHERE pronamespace IN ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace) AND prosrc ~ %s",
            r"_begin_call\('([a-z_.]+)'[,)]",
            r"_begin_call\('([a-z_.]+)'[,)]",
        )
    }
    users = {name for name, _ in public_functions(place)}
    assert len(named) > 60
    # Nobody calls these in a query: the product does, in sessions of its own, and the install script.
    assert named - users == {"cerebro.drive", "cerebro.packed", "cerebro.setup_logins"}


def test_what_judges_a_model_is_refused_in_its_own_name(place: Lab) -> None:
    for name in ("evaluate", "confusion_matrix", "residuals"):
        with pytest.raises(psycopg2.errors.FeatureNotSupported, match=f"^cerebro.{name}: a query over"):
            place(f"SELECT cerebro.{name}(t, 'SELECT 1') FROM numbers")


def test_an_open_cursor_does_no_harm(place: Lab) -> None:
    with contextlib.closing(place.connect()) as connection:
        run(connection, "BEGIN; DECLARE c CURSOR FOR SELECT * FROM numbers; FETCH c")
        run(connection, "SELECT cerebro.pack('rows', 'beside', 'y')")
        assert run(connection, "SELECT count(*) FROM beside_summary") == [(1,)]
        with pytest.raises(psycopg2.errors.FeatureNotSupported, match="multiple segworker groups"):
            run(connection, "SELECT cerebro.pack('rows', 'beside_' || max(i + 0), 'y') FROM numbers")
        run(connection, "ROLLBACK")
        run(connection, "SELECT cerebro.pack('rows', 'afterwards', 'y')")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT cerebro.cancel((SELECT max(run) FROM cerebro.runs))",
        "SELECT cerebro.cancel((SELECT run FROM cerebro.runs ORDER BY created_at DESC LIMIT 1))",
        "SELECT cerebro.cancel(run) FROM cerebro.runs WHERE run = {run}",
        "SELECT cerebro.cancel(run, owner) FROM cerebro.runs WHERE status = 'running' AND run = {run}",
        "SELECT cerebro.cancel(max(run)) FROM cerebro.runs",
        "SELECT c FROM cerebro.runs r CROSS JOIN LATERAL cerebro.cancel(r.run) c WHERE r.run = {run}",
        "SELECT bool_or(cerebro.cancel(run)) FROM cerebro.leaderboard WHERE run = {run}",
        "WITH mine AS (SELECT run FROM cerebro.run_progress WHERE run = {run}) SELECT cerebro.cancel(run) FROM mine",
    ],
)
def test_a_run_is_cancelled_with_its_number_from_a_query(place: Lab, running: int, query: str) -> None:
    assert place(query.format(run=running)) == [(True,)]
    assert place.value("SELECT cerebro.wait(%s, 60)", running) == "cancelled"


def test_runs_are_cancelled_in_a_loop(place: Lab, running: int) -> None:
    place(
        "DO $$ DECLARE r record; BEGIN FOR r IN SELECT run FROM cerebro.runs WHERE status = 'running' ORDER BY run LOOP"
        " PERFORM cerebro.cancel(r.run); END LOOP; END $$"
    )
    assert place.value("SELECT cerebro.wait(%s, 60)", running) == "cancelled"


def test_models_are_stopped_with_a_query(place: Lab, running: int) -> None:
    requests = place(
        "SELECT cerebro.stop_model(run, configuration, 'told') FROM cerebro.leaderboard WHERE run = %s", running
    )
    assert len(requests) == 2
    asked = place("SELECT action, reason FROM cerebro.requests WHERE run = %s", running)
    assert asked == [("stop", "told")] * 2
    assert place.value("SELECT cerebro.wait(max(run), 60) FROM cerebro.runs WHERE run = %s", running) == "finished"


def test_steering_with_a_query_has_the_rights_of_the_caller(place: Lab, running: int) -> None:
    """Whatever a call says of its caller: the session that calls for it is that of the current user."""
    place("CREATE ROLE stranger LOGIN IN ROLE cerebro_user")
    try:
        with contextlib.closing(place.connect()) as connection:
            run(connection, "SET SESSION AUTHORIZATION stranger")
            with pytest.raises(psycopg2.Error, match=f"there is no run {running}"):
                run(connection, f"SELECT cerebro.cancel({running} + 0 * count(*)) FROM cerebro.runs")
            me = "(SELECT rolname FROM pg_roles WHERE oid = 10)"
            forged = f"cerebro_python._caller(current_setting('search_path')) || jsonb_build_object('name', {me})"
            with pytest.raises(psycopg2.Error, match="permission denied to set role"):
                run(
                    connection,
                    f"SELECT cerebro_python._elsewhere('cancel', ARRAY['{running}', NULL], {forged})",
                )
            assert connection.info.transaction_status == 0
    finally:
        place("DROP ROLE stranger")
    assert place.status(running) == "running"


def test_runs_are_forgotten_and_extended_with_a_query(place: Lab) -> None:
    first, second = fit(place, "first"), fit(place, "second")
    assert place("SELECT cerebro.resume(run, epochs => 2) FROM cerebro.runs WHERE run = %s", first) == [(first,)]
    place("SELECT cerebro.materialize(run, 'again_' || run) FROM cerebro.runs WHERE run = %s", first)
    assert place(f"SELECT count(*) FROM again_{first}") == [(2,)]
    place("SELECT cerebro.forget(run) FROM cerebro.runs WHERE run IN (%s, %s)", first, second)
    assert place("SELECT count(*) FROM cerebro.runs WHERE run IN (%s, %s)", first, second) == [(0,)]


def test_every_steering_function_can_be_called_elsewhere(place: Lab) -> None:
    found = place(
        "SELECT DISTINCT proname::text FROM pg_proc"
        " WHERE pronamespace = 'cerebro'::regnamespace AND position('_elsewhere(' IN prosrc) > 0"
    )
    assert {name for (name,) in found} == set(CALLS)


def test_no_function_in_python_is_without_its_guard(place: Lab) -> None:
    found = place(
        "SELECT proname FROM pg_proc JOIN pg_language l ON l.oid = prolang"
        " WHERE lanname = 'plpython3u' AND pronamespace IN ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace)"
        " ORDER BY 1"
    )
    assert [name for (name,) in found] == [
        "_as_registry", "_data_in", "_gpu_texts", "_gpus", "_hold", "_predict", "_state_in", "_state_out", "_warm_up",
        "_work", "_worker_close", "_worker_open",
    ]  # fmt: skip
    place("SELECT plpgsql_validator(oid) FROM pg_proc"
          " WHERE pronamespace IN ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace)"
          " AND prolang = (SELECT oid FROM pg_language WHERE lanname = 'plpgsql')")  # fmt: skip
    # Those run on segments, and look themselves, as the bodies of the others do.
    for name, arguments in (
        ("_worker_close", ""),
        ("_gpus", ""),
        ("_work", "max(i + 0)::text"),
        ("_warm_up", "max(i + 0)::text"),
    ):
        with pytest.raises(psycopg2.Error, match="a query calls this on the coordinator"):
            place(f"SELECT cerebro_internal.{name}({arguments}), max(i + 0) FROM numbers")
    for body in (
        "cancel(max(i + 0), NULL)",
        "_predict_rows(max(t), 'x', NULL, NULL, 1, NULL, false, false, NULL, NULL, false)",
        "doctor(max(i + 0))",
    ):
        with pytest.raises(psycopg2.Error, match="a query calls this on the coordinator"):
            place(f"SELECT cerebro_python.{body} FROM numbers")
    for _ in range(2):
        with pytest.raises(psycopg2.Error, match="there is no run -1"):
            place("SELECT cerebro.cancel(-1)")
