"""Predictions in a materialized view, an index or a statistic of somebody, which another user has the server compute.

PostgreSQL runs such expressions as their owner, and keeps them from everything of the session that has no owner
(a "security-restricted operation").
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors

from tests.sql.users import Town, User, equip, fit, town

INSPECT = json.dumps({"order": "inspect"})
PREDICTED = "SELECT key_value::int AS id, class FROM cerebro.predict('{0}.models', 'SELECT * FROM {0}.points', 'id')"
CALLS = {
    "predict": PREDICTED,
    "a predictor": "SELECT id, {0}.y_of(x) AS class FROM {0}.points WHERE id < 4",
    **{
        name: f"SELECT * FROM cerebro.{name}('{{0}}.models', 'SELECT * FROM {{0}}.points')"
        for name in (
            "evaluate",
            "confusion_matrix",
            "mistakes",
            "roc_curve",
            "precision_recall",
            "calibration",
            "importance",
            "explain",
        )
    },
    "residuals": "SELECT * FROM cerebro.residuals('{0}.numbers', 'SELECT * FROM {0}.points', 'id')",
    "importance of packed rows": "SELECT * FROM cerebro.importance('{0}.models', '{0}.packed')",
    "prepared_columns": "SELECT * FROM cerebro.prepared_columns('{0}.packed')",
    "models": "SELECT model_table FROM cerebro.models",
}


@pytest.fixture(scope="module")
def people(server: str) -> Iterator[tuple[Town, User]]:
    """The superuser, and bob, who has a model, and materialized views that the superuser refreshes."""
    with town(server) as root:
        bob = root.user("bob", "cerebro_user")
        equip(bob)
        fit(bob)
        bob("ALTER TABLE points ADD z real; UPDATE points SET z = x[1] * 7 + id % 3")
        bob(
            'SELECT cerebro.fit(\'points\', \'numbers\', $$[{"architecture": "mlp", "units": 8, "batch_size": 8}]$$,'
            " target => 'z', inputs => 'x', epochs => 1, segments => 1, validation => 0)"
        )
        bob("SELECT cerebro.create_predictor('models', 'y_of')")
        yield root, bob


@pytest.fixture
def root(people: Any) -> Town:
    return people[0]


@pytest.fixture
def bob(people: Any) -> User:
    return people[1]


def on_greenplum(root: Town) -> bool:
    return root.greenplum


@pytest.mark.parametrize("name", CALLS)
def test_a_materialized_view(root: Town, bob: User, name: str) -> None:
    call = CALLS[name].format(bob.name)
    if on_greenplum(root) and name == "a predictor":
        with pytest.raises(errors.FeatureNotSupported, match="while the segments work on this query"):
            bob(f"CREATE MATERIALIZED VIEW kept AS {call}")
        return
    if on_greenplum(root) and name == "importance":  # the last digits depend on the order in which rows are added up
        call = f"SELECT column_name FROM ({call}) i"
    bob(f"CREATE MATERIALIZED VIEW kept AS {call}")
    try:
        for refresh in ("SELECT 1", f"REFRESH MATERIALIZED VIEW {bob.name}.kept"):
            root(refresh)
            kept, wanted = (sorted(map(repr, bob(query))) for query in ("SELECT * FROM kept", call))
            assert kept == wanted and (kept or name == "mistakes")  # the model may make none
        if name == "predict":
            bob("CREATE UNIQUE INDEX ON kept (id)")
            root(f"REFRESH MATERIALIZED VIEW CONCURRENTLY {bob.name}.kept")
            assert len(bob("SELECT * FROM kept")) == 40
    finally:
        bob("DROP MATERIALIZED VIEW kept")


def test_the_tables_that_were_read_are_free_again(root: Town, bob: User) -> None:
    """A cursor that is left open would keep them in use until the end of the transaction."""
    bob(f"CREATE MATERIALIZED VIEW kept AS {PREDICTED.format(bob.name)}")
    try:
        root(f"BEGIN; REFRESH MATERIALIZED VIEW {bob.name}.kept; ALTER TABLE {bob.name}.points ADD more integer")
        root(f"ALTER TABLE {bob.name}.models ADD more integer")
        assert root("SELECT name FROM pg_cursors") == []
    finally:
        root("ROLLBACK")
        bob("DROP MATERIALIZED VIEW kept")


def test_an_index_and_what_the_server_computes_for_it(root: Town, bob: User) -> None:
    if on_greenplum(root):
        pytest.skip("functions beside the rows of a table run on Greenplum's segments, where a predictor is refused")
    own = bob.name
    bob(
        "CREATE FUNCTION fixed(real[]) RETURNS text IMMUTABLE LANGUAGE plpgsql"
        f" AS $$ BEGIN RETURN {own}.y_of($1); END $$"
    )
    bob(f"CREATE TABLE few AS SELECT * FROM points WHERE id < 4; CREATE INDEX few_y ON few ({own}.fixed(x))")
    for statement in ("ANALYZE {}.few", "REINDEX TABLE {}.few", "CLUSTER {}.few USING few_y", "VACUUM FULL {}.few"):
        root(statement.format(own))
    bob(f"SET enable_seqscan = off; SET search_path = {own}")
    found = bob("SELECT id FROM few WHERE fixed(x) = 'up' ORDER BY id")
    bob(f"RESET enable_seqscan; SET search_path = {own}, cerebro, madlib")
    assert found == [id for id, y in bob("SELECT id, y_of(x) FROM few ORDER BY id") if y == "up"]


def test_a_function_that_writes_a_table_says_why_it_cannot(root: Town, bob: User) -> None:
    if on_greenplum(root):
        pytest.skip("such an operation is refused on Greenplum before the function is called")
    with pytest.raises(errors.InsufficientPrivilege) as caught:
        # Names have their schema, because from PostgreSQL 17 on such an operation has a search_path of its own.
        names = f"'{bob.name}.models', '{bob.name}.points', '{bob.name}.written'"
        bob(f"CREATE MATERIALIZED VIEW never AS SELECT cerebro.predict_into({names})")
    assert "security-restricted operation" in str(caught.value) and "cerebro.predict" in caught.value.diag.message_hint


ESCAPES = (
    "SET ROLE {root}",
    "RESET ROLE",
    "SET SESSION AUTHORIZATION {root}",
    "RESET SESSION AUTHORIZATION",
    "CREATE TEMP TABLE planted (i integer)",
    "DECLARE planted CURSOR WITH HOLD FOR SELECT 1",
    "CLOSE ALL",
    "PREPARE planted AS SELECT 1",
    "DEALLOCATE ALL",
    "DISCARD PLANS",
    "LISTEN planted",
)


def test_the_operation_stays_restricted(root: Town, bob: User) -> None:
    """Before and after our functions have run in it."""
    tries = [one.format(root=root.root.info.user) for one in ESCAPES]
    bob("CREATE TABLE tried (at text, statement text, outcome text)")
    bob(
        "CREATE FUNCTION tries(happens text) RETURNS bigint LANGUAGE plpgsql AS $$ DECLARE one text; got text; BEGIN"
        f" FOREACH one IN ARRAY ARRAY[{', '.join(f'$q${one}$q$' for one in tries)}] LOOP"
        "  BEGIN EXECUTE one; got := 'done'; EXCEPTION WHEN OTHERS THEN got := SQLSTATE; END;"
        f" INSERT INTO {bob.name}.tried VALUES (happens, one, got || ' as ' || current_user); END LOOP;"
        " RETURN 0; END $$"
    )
    called = f"SELECT {bob.name}.tries('before') AS n"
    called += f" UNION ALL SELECT count(*) FROM ({PREDICTED.format(bob.name)}) p"
    called += f" UNION ALL SELECT {bob.name}.tries('after')"
    bob(f"CREATE MATERIALIZED VIEW tempts AS {called} WITH NO DATA")
    root(f"REFRESH MATERIALIZED VIEW {bob.name}.tempts")
    found = bob("SELECT at, statement, outcome FROM tried")
    assert {at for at, *_ in found} == {"before", "after"} and len(found) == 2 * len(tries)
    assert {outcome for *_, outcome in found} == {f"42501 as {bob.name}"}
    assert root("SELECT current_user = session_user AND NOT EXISTS (SELECT FROM pg_cursors)") == [True]


def test_a_trainer_serves_the_user_for_whom_it_was_started(root: Town, bob: User) -> None:
    """What a trainer of the session has in memory is nobody else's: neither for planted code, nor after it has run."""
    if on_greenplum(root):
        pytest.skip("on Greenplum a function beside the rows of a table may write nothing")
    mine = f"SELECT class FROM cerebro.predict('{bob.name}.models', 'SELECT * FROM {bob.name}.points')"
    bob("CREATE TABLE heard (what text)")
    bob(
        "CREATE FUNCTION asks() RETURNS integer LANGUAGE plpgsql SECURITY DEFINER AS $$ DECLARE got text; BEGIN"
        f"  BEGIN got := cerebro_internal._work('{INSPECT}'); EXCEPTION WHEN OTHERS THEN got := SQLSTATE; END;"
        f" INSERT INTO {bob.name}.heard VALUES (got); RETURN 1; END $$"
    )
    bob("CREATE MATERIALIZED VIEW asked AS SELECT asks() WITH NO DATA")
    bob(f"CREATE MATERIALIZED VIEW predicted AS {PREDICTED.format(bob.name)} WITH NO DATA")
    root(mine)
    (own,) = root("SELECT cerebro_internal._work(%s)", INSPECT)
    assert json.loads(own)["ok"]
    root(mine)  # which leaves the trainer to the next call
    root(f"REFRESH MATERIALIZED VIEW {bob.name}.asked")
    assert bob("SELECT what FROM heard") == ["58M01"]  # bob has no trainer there
    root(f"REFRESH MATERIALIZED VIEW {bob.name}.predicted")
    with pytest.raises(psycopg2.Error) as refused:
        root("SELECT cerebro_internal._work(%s)", INSPECT)
    assert refused.value.pgcode == "58M01"  # bob's trainer is none of the superuser's
    # While rows are read for the superuser, a function of bob's is refused.
    bob("DELETE FROM heard; CREATE VIEW spied AS SELECT id, x, asks() AS i FROM points")
    counted = "SELECT count(*) FROM cerebro.predict('{0}.models', 'SELECT id, x, i FROM {0}.spied WHERE i = 1')"
    assert root(counted.format(bob.name)) == [40]
    assert set(bob("SELECT what FROM heard")) == {"55006"}
