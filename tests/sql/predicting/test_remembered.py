"""A session that has predicted before gives the answers, or the errors, that a new session gives after any change."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from tests.sql.lab import Lab, flower_model, run, trainer_processes

QUERY = "SELECT 7 AS id, 5.1::real AS sl, 3.5::real AS sw, 1.4::real AS pl, 0.2::real AS pw"
ASK = f"SELECT class, probability FROM cerebro.predict('model', '{QUERY}', configuration => {{}})"
READER = "reader_of_models"
GRANTS = (
    f"""GRANT USAGE ON SCHEMA {{schema}} TO {READER}; GRANT SELECT ON model, model_info, model_summary TO {READER};"""
)

# What others do to the tables of a model: a statement, and one that undoes it.
CHANGES = {
    "the best model is another one": (
        "UPDATE model_info SET validation_loss = 9 - validation_loss, objective_value = 9 - objective_value",
        "UPDATE model_info SET validation_loss = 9 - validation_loss, objective_value = 9 - objective_value",
    ),
    "a model has other weights": (
        "CREATE TABLE kept AS TABLE model; UPDATE model SET weights = overlay(weights PLACING '\\x0000c040' FROM 1)",
        "TRUNCATE model; INSERT INTO model TABLE kept; DROP TABLE kept",
    ),
    "a model is gone": (
        "CREATE TABLE kept AS TABLE model; DELETE FROM model WHERE configuration = 1",
        "TRUNCATE model; INSERT INTO model TABLE kept; DROP TABLE kept",
    ),
    "classes have other labels": (
        "UPDATE model_summary SET species_labels = ARRAY['a', 'b', 'c']",
        "UPDATE model_summary SET species_labels = ARRAY['setosa', 'versicolor', 'virginica']",
    ),
    "the model table may not be read": (f"REVOKE SELECT ON model FROM {READER}", f"GRANT SELECT ON model TO {READER}"),
    "a table beside it may not be read": (
        f"REVOKE SELECT ON model_summary FROM {READER}",
        f"GRANT SELECT ON model_summary TO {READER}",
    ),
    "one column may not be read": (
        f"REVOKE SELECT ON model_info FROM {READER}; GRANT SELECT (configuration, status) ON model_info TO {READER}",
        f"REVOKE SELECT (configuration, status) ON model_info FROM {READER}; GRANT SELECT ON model_info TO {READER}",
    ),
    "the schema may not be used": (
        f"REVOKE USAGE ON SCHEMA {{schema}} FROM {READER}",
        f"GRANT USAGE ON SCHEMA {{schema}} TO {READER}",
    ),
    "a policy hides all rows": (
        "ALTER TABLE model ENABLE ROW LEVEL SECURITY;"
        f" CREATE POLICY none ON model TO {READER} USING (configuration = 2)",
        "DROP POLICY none ON model; ALTER TABLE model DISABLE ROW LEVEL SECURITY",
    ),
    "a column is gone": (
        "ALTER TABLE model_summary RENAME COLUMN layout TO other",
        "ALTER TABLE model_summary RENAME COLUMN other TO layout",
    ),
    "a table is gone": ("ALTER TABLE model_info RENAME TO gone", "ALTER TABLE gone RENAME TO model_info"),
    "the model table is gone": ("ALTER TABLE model RENAME TO gone", "ALTER TABLE gone RENAME TO model"),
    "another table has the name": (
        "ALTER TABLE model RENAME TO gone; CREATE TABLE model AS SELECT * FROM gone WHERE configuration = 2;"
        f" GRANT SELECT ON model TO {READER}",
        "DROP TABLE model; ALTER TABLE gone RENAME TO model",
    ),
    "a table inherits from it": (
        "CREATE TABLE heir (LIKE model); INSERT INTO heir TABLE model; TRUNCATE model; ALTER TABLE heir INHERIT model",
        "INSERT INTO model TABLE heir; DROP TABLE heir",
    ),
    "the tables are written anew": ("VACUUM FULL model; VACUUM FULL model_summary", "ANALYZE model"),
}


@pytest.fixture(scope="module")
def place(lab: Lab) -> Iterator[Lab]:
    if lab.greenplum:
        pytest.skip("on Greenplum no model is remembered")
    lab.iris(segments=1)
    architecture = json.dumps(flower_model())
    configurations = json.dumps([{"learning_rate": rate, "batch_size": 16} for rate in (0.001, 0.1)])
    lab(
        "SELECT fit('train', 'model', configurations => %s, epochs => 2, validation_table => 'val', options => %s)",
        json.dumps([{"architecture": json.loads(architecture), **one} for one in json.loads(configurations)]),
        json.dumps({"deterministic": True, "seed": 1}),
    )
    schema = lab.value("SELECT current_schema()")
    lab(f"CREATE ROLE {READER} LOGIN PASSWORD 'x' IN ROLE cerebro_user")
    try:
        lab(GRANTS.format(schema=schema))
        yield lab
    finally:
        lab(f"DROP OWNED BY {READER}; DROP ROLE {READER}")


def answer(session: Any, configuration: str) -> Any:
    """The prediction, or the SQLSTATE and the message of the error."""
    try:
        return run(session, ASK.format(configuration))
    except psycopg2.Error as error:
        return error.pgcode, error.diag.message_primary


def connected(place: Lab) -> Any:
    schema = place.value("SELECT current_schema()")
    session = psycopg2.connect(make_dsn(**{**parse_dsn(place.dsn), "user": READER, "password": "x"}))
    session.autocommit = True
    run(session, f"SET search_path = {schema}, cerebro, public")
    return session


@pytest.fixture(scope="module")
def session(place: Lab) -> Iterator[Any]:
    """One session that sees all changes."""
    with contextlib.closing(connected(place)) as opened:
        yield opened


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_has_changed_a_session_answers_as_a_new_one(place: Lab, session: Any, change: str) -> None:
    do, undo = (text.replace("{schema}", place.value("SELECT current_schema()")) for text in CHANGES[change])
    before = [answer(session, configuration) for configuration in ("NULL", "1") * 3]
    assert before == before[:2] * 3 and isinstance(before[0], list)
    for statement in do.split("; ") if "VACUUM" in do else [do]:
        place(statement)
    try:
        found = [answer(session, configuration) for configuration in ("NULL", "1") * 3]
        with contextlib.closing(connected(place)) as another:
            expected = [answer(another, configuration) for configuration in ("NULL", "1")]
    finally:
        place(undo)
    assert found == expected * 3
    if change not in ("the tables are written anew", "a table inherits from it", "a policy hides all rows"):
        assert found != before
    assert [answer(session, configuration) for configuration in ("NULL", "1")] == before[:2]


def test_what_is_remembered_is_not_read_again(place: Lab) -> None:
    with contextlib.closing(place.connect()) as session:
        ask = f"SELECT class, probability FROM cerebro.predict('model', '{QUERY}')"
        before = run(session, ask)
        assert run(session, ask) == before  # now it is known that nothing changed while the model was read
        run(session, "DO LANGUAGE plpython3u $$import sys; sys.modules['cerebro_plpy.models.trained'].read = None$$")
        assert run(session, ask) == before
        run(session, "UPDATE model_summary SET layout = layout")
        with pytest.raises(psycopg2.Error, match="not callable"):
            run(session, ask)


COUNT = """DO LANGUAGE plpython3u $$
import sys
counted = sys.modules["counted"] = type(sys)("counted")
counted.statements, cancellation = [], sys.modules["cerebro_plpy.database.cancellation"]
execute = cancellation.execute
cancellation.execute = lambda plpy, *statement: counted.statements.append(statement) or execute(plpy, *statement)
$$"""
COUNTED = """DO LANGUAGE plpython3u $$
import sys
found = sys.modules["counted"].statements
assert len(found) == 7, found
$$"""


def test_a_further_row_takes_seven_statements(place: Lab) -> None:
    """They hold the table, look for changes, describe the query, ask for limits, and open, read and close a cursor."""
    with contextlib.closing(place.connect()) as session:
        ask = f"SELECT class, probability FROM cerebro.predict('model', '{QUERY}')"
        before = [run(session, ask) for _ in range(2)]
        run(session, COUNT)
        assert [run(session, ask)] * 2 == before
        run(session, COUNTED)


def test_another_role_of_the_session_needs_its_own_rights(place: Lab) -> None:
    with contextlib.closing(place.connect()) as session:
        ask = f"SELECT class, probability FROM cerebro.predict('model', '{QUERY}')"
        before = run(session, ask)
        place(f"REVOKE SELECT ON model FROM {READER}")
        try:
            run(session, f"SET ROLE {READER}")
            with pytest.raises(psycopg2.Error, match="permission denied"):
                run(session, ask)
        finally:
            place(f"GRANT SELECT ON model TO {READER}")
        run(session, "RESET ROLE")
        assert run(session, ask) == before


def test_a_name_may_mean_another_table_later(place: Lab) -> None:
    with contextlib.closing(place.connect()) as session:
        ask = f"SELECT class, probability FROM cerebro.predict('model', '{QUERY}')"
        before = run(session, ask)
        for ending in ("", "_info", "_summary"):
            run(session, f"CREATE TEMPORARY TABLE model{ending} AS SELECT * FROM model{ending}")
        run(session, "UPDATE pg_temp.model_summary SET species_labels = ARRAY['x', 'y', 'z']")
        ((label, probability),) = run(session, ask)
        assert label in "xyz" and probability == before[0][1]
        run(session, "DROP TABLE pg_temp.model, pg_temp.model_info, pg_temp.model_summary")
        assert run(session, ask) == before


def test_a_table_that_takes_the_name_of_another_one_is_read_with_its_own_columns(place: Lab) -> None:
    with contextlib.closing(place.connect()) as session:
        run(session, "CREATE TEMPORARY TABLE other (i int)")  # so that there is a temporary schema before
        run(session, f"CREATE TABLE new_rows AS {QUERY}")
        ask = "SELECT key_value FROM cerebro.predict('model', 'SELECT * FROM new_rows')"
        assert [run(session, ask) for _ in range(3)] == [[("7",)]] * 3
        run(session, f"CREATE TEMPORARY TABLE new_rows AS SELECT 99 AS number, q.* FROM ({QUERY}) q")
        run(session, "ALTER TABLE pg_temp.new_rows DROP COLUMN id")
        assert run(session, ask) == [("99",)]
        run(session, "ALTER TABLE pg_temp.new_rows DROP COLUMN sw")
        with pytest.raises(psycopg2.Error, match="does not have the input sw"):
            run(session, ask)
        run(session, "DROP TABLE pg_temp.new_rows")
        run(session, "DROP TABLE new_rows")


def test_tables_that_are_emptied_in_the_transaction_that_made_them(place: Lab) -> None:
    with contextlib.closing(place.connect()) as session:
        ask = f"SELECT class, probability FROM cerebro.predict('made', '{QUERY}', configuration => 1)"
        run(session, "BEGIN")
        for ending in ("", "_info", "_summary"):
            run(session, f"CREATE TABLE made{ending} AS TABLE model{ending}")
        first = [run(session, ask) for _ in range(3)]
        assert first == first[:1] * 3
        run(session, "TRUNCATE made; INSERT INTO made TABLE model")
        run(session, "UPDATE made SET weights = (SELECT weights FROM model WHERE configuration = 2)")
        run(session, "TRUNCATE made_summary; INSERT INTO made_summary TABLE model_summary")
        run(session, "CREATE TEMPORARY TABLE kept AS TABLE made; TRUNCATE made; INSERT INTO made TABLE kept")
        changed = run(session, ask)
        run(session, "COMMIT")
        with contextlib.closing(place.connect()) as another:
            assert changed == run(another, ask) == run(session, ask) != first[0]
        run(session, "DROP TABLE made, made_info, made_summary")


def test_a_query_may_take_longer_than_a_trainer_rests(place: Lab) -> None:
    me = place.value("SELECT current_user::text")
    slow = QUERY.replace("SELECT ", "SELECT pg_sleep({})::text AS slept, ")
    ask = "SELECT class, probability FROM cerebro.predict('model', '{}', key => 'id', configuration => {})"
    with contextlib.closing(place.connect()) as session:
        expected = {which: run(session, ask.format(QUERY, which)) for which in (2, 1)}
        place("SELECT cerebro.set_limits(%s, max_waiting_seconds => 2)", me)
        try:
            for which in (1, 2):  # the model of the last call, and another one
                run(session, ask.format(QUERY, 1))
                assert run(session, ask.format(slow.format(3), which)) == expected[which]
        finally:
            place("DELETE FROM cerebro.role_limit")


def test_a_trainer_that_is_killed_while_rows_are_read_gets_a_successor(place: Lab) -> None:
    slow = QUERY.replace("SELECT ", "SELECT pg_sleep(2)::text AS slept, ")
    ask = f"SELECT class, probability FROM cerebro.predict('model', '{slow}', key => 'id')"
    with contextlib.closing(place.connect()) as session:
        before = run(session, ask.replace("pg_sleep(2)", "pg_sleep(0)"))

        def kill() -> None:
            for pid, parent in trainer_processes(place.home):
                if parent == session.info.backend_pid:
                    os.kill(pid, signal.SIGKILL)

        killer = threading.Timer(1, kill)
        killer.start()
        assert run(session, ask) == before
        killer.join()
        assert run(session, ask.replace("pg_sleep(2)", "pg_sleep(0)")) == before


def test_few_rows_and_many_rows_in_turn(place: Lab) -> None:
    """Few rows are part of the order to a trainer that has the weights; many rows lie in files."""
    ask = (
        "SELECT key_value::int, class, probability, rank FROM cerebro.predict('model', '{}', top => 3, key => 'id')"
        " ORDER BY 1, 4"
    )
    rows = "SELECT i AS id, i / 1000.0::real AS sl, 3.5::real AS sw, 1.4::real AS pl, 0.2::real AS pw FROM {} AS i"
    one, few, many = (rows.format(f"generate_series(1, {count})") for count in (1, 7, 5000))
    with contextlib.closing(place.connect()) as session:
        everything = run(session, ask.format(many))
        assert len(everything) == 3 * 5000 and len({row[2] for row in everything}) > 5000
        for query, count in ((one, 1), (few, 7), (one, 1), (many, 5000), (few, 7)):
            assert run(session, ask.format(query)) == everything[: 3 * count]
        with pytest.raises(psycopg2.Error, match="prediction: column 'features' has values that are NaN"):
            run(session, ask.format(one.replace("3.5::real", "''nan''::real")))
        assert run(session, ask.format(few)) == everything[:21]
