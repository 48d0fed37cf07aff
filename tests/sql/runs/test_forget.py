"""Forgetting a run whose owner, or somebody else, has made objects of its state tables, or is reading them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg2 import errors

from tests.sql.lab import eventually
from tests.sql.users import Town, User, equip, fit, town

STATES = (
    "SELECT relname::text FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace AND relkind IN ('r', 'p')"
    " AND relname LIKE %s ORDER BY 1"
)


NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def people(server: str) -> Iterator[tuple[Town, User, User, User]]:
    with town(server) as made:
        alice, bob, admin = made.user("alice", "cerebro_user"), made.user("bob", "cerebro_user"), made.user("admin")
        made(f"GRANT cerebro_admin, cerebro_user TO {admin.name}")
        equip(alice, segments=2)
        yield made, alice, bob, admin


@pytest.fixture
def fitted(people: tuple[Town, User, User, User]) -> int:
    """A run of alice, in a table of its own."""
    _, alice, _, admin = people
    admin.connection.notices.clear()
    return fit(alice, f"made_{next(NUMBERS)}")


def states_of(root: Town, run: int) -> list[str]:
    """The tables of a run's states, first the one that has rows."""
    (storage,) = root("SELECT storage FROM cerebro.run WHERE run = %s", run)
    return sorted(root(STATES, storage + "%"), key=lambda table: root(f"SELECT count(*) FROM cerebro_state.{table}"),
                  reverse=True)  # fmt: skip


# What may be made of a state table: by whom, how, and how the warning names it. None: it goes with the table.
DEPENDANTS: dict[str, tuple[str, str, str | None]] = {
    "view": ("alice", "CREATE VIEW {alice}.seen AS SELECT hop, payload FROM {table}", "(view {alice}.seen of {alice})"),
    "another's view": ("bob", "CREATE VIEW {bob}.seen AS SELECT hop FROM {table}", "(view {bob}.seen of {bob})"),
    "view of a view": (
        "alice",
        "CREATE VIEW {alice}.a AS SELECT hop FROM {table}; CREATE VIEW {alice}.b AS SELECT * FROM {alice}.a",
        "(view {alice}.a of {alice})",
    ),
    "materialized view": (
        "alice",
        "CREATE MATERIALIZED VIEW {alice}.kept AS SELECT hop FROM {table}",
        "(materialized view {alice}.kept of {alice})",
    ),
    "another's function": (
        "bob",
        "CREATE FUNCTION {bob}.f(r {table}) RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "(function {bob}.f({table}) of {bob})",
    ),
    "another's column": ("bob", "CREATE TABLE {bob}.t (r {table}[])", "(table {bob}.t of {bob})"),
    "another's domain": ("bob", "CREATE DOMAIN {bob}.d AS {table}", "(type {bob}.d of {bob})"),
    "policy of another table": (
        "alice",
        "CREATE TABLE {alice}.p (x int); CREATE POLICY p ON {alice}.p USING (x IN (SELECT hop FROM {table}))",
        "(policy p on table {alice}.p of {alice})",
    ),
    "rule of another table": (
        "alice",
        "CREATE TABLE {alice}.w (x int);"
        " CREATE RULE w AS ON DELETE TO {alice}.w DO ALSO DELETE FROM {table} WHERE false",
        "(table {alice}.w of {alice})",
    ),
    "child": ("alice", "CREATE TABLE {alice}.child () INHERITS ({table})", "(table {alice}.child of {alice})"),
    "default from a sequence of the table": (
        "alice",
        "CREATE SEQUENCE {table}_n OWNED BY {table}.hop; CREATE TABLE {alice}.z (n int DEFAULT nextval('{table}_n'))",
        "(default value for column n of table {alice}.z of {alice})",
    ),
    "foreign key": (
        "alice",
        "ALTER TABLE {table} ADD CONSTRAINT k UNIQUE (__dist_key__, model, hop, start); CREATE TABLE {alice}.f (k int,"
        " m int, h int, s bigint, CONSTRAINT f FOREIGN KEY (k, m, h, s)"
        " REFERENCES {table} (__dist_key__, model, hop, start))",
        "with its rows (constraint f on table {alice}.f of {alice})",
    ),
    "rule": ("alice", "CREATE RULE r AS ON DELETE TO {table} DO INSTEAD SELECT 1 / 0", None),
    "policy": (
        "alice",
        "ALTER TABLE {table} ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON {table} USING (hop > 3)",
        None,
    ),
    "index": ("alice", "CREATE INDEX ON {table} ((hop + 1)) WHERE hop > 0", None),
    "publication": ("root", "CREATE PUBLICATION p_{alice} FOR TABLE {table}", None),
}


@pytest.mark.parametrize("by", ["admin", "owner"])
def test_objects_of_others_do_not_hold_up_a_forget(people: Any, fitted: int, by: str) -> None:
    root, alice, bob, admin = people
    table, *_ = states_of(root, fitted)
    given = {"alice": alice.name, "bob": bob.name, "table": f"cerebro_state.{table}"}
    alice(f"GRANT SELECT ON cerebro_state.{table} TO {bob.name}")
    alice(DEPENDANTS["view"][1].format(**given))
    bob(DEPENDANTS["another's view"][1].format(**given))
    caller = admin if by == "admin" else alice
    caller.connection.notices.clear()
    caller("SELECT cerebro.forget(%s, %s)", fitted, alice.name)
    (told,) = [notice for notice in caller.connection.notices if notice.startswith("WARNING")]
    assert f"view {alice.name}.seen of {alice.name}, view {bob.name}.seen of {bob.name}" in told
    assert f"{alice.name} can drop" in told
    assert root("SELECT count(*) FROM cerebro.run WHERE run = %s AND owner = %s::regrole", fitted, alice.name) == [0]
    assert root(STATES, table[:16] + "%") == [table], "the others are dropped"
    assert bob(f"SELECT count(*) FROM {bob.name}.seen") == alice(f"SELECT count(*) FROM {alice.name}.seen") == [0]
    alice(f"DROP TABLE cerebro_state.{table} CASCADE")


@pytest.mark.parametrize("name", list(DEPENDANTS))
def test_each_dependant_alone(people: Any, fitted: int, name: str) -> None:
    root, alice, bob, admin = people
    maker, statement, words = DEPENDANTS[name]
    if name == "publication" and root.greenplum:
        pytest.skip("Greenplum has no publications")
    table, *_ = states_of(root, fitted)
    given = {"alice": alice.name, "bob": bob.name, "table": f"cerebro_state.{table}"}
    alice(f"GRANT SELECT ON cerebro_state.{table} TO {bob.name}")
    {"alice": alice, "bob": bob, "root": root}[maker](statement.format(**given))
    admin("SELECT cerebro.forget(%s, %s)", fitted, alice.name)
    told = [notice for notice in admin.connection.notices if notice.startswith("WARNING")]
    left = root(STATES, table[:16] + "%")
    if words is None:
        assert (told, left) == ([], [])
    else:
        assert words.format(**given) in told[0] and left == [table]
        rows = root(f"SELECT count(*) FROM ONLY cerebro_state.{table}")
        assert (rows == [0]) == ("with its rows" not in words)
        root(f"DROP TABLE cerebro_state.{table} CASCADE")
    root(f"DROP PUBLICATION IF EXISTS p_{alice.name}")


def test_no_code_of_the_owner_runs(people: Any, fitted: int) -> None:
    """_forget() has the rights of a superuser; a trigger on what it empties would have them, too."""
    root, alice, _, admin = people
    table, *_ = states_of(root, fitted)
    alice("CREATE TABLE ran (who text); GRANT INSERT ON ran TO PUBLIC")
    alice(f"GRANT USAGE ON SCHEMA {alice.name} TO PUBLIC")
    alice(
        "CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN INSERT INTO {alice.name}.ran VALUES (current_user); RETURN NULL; END $$"
    )
    kinds = [("DELETE", "ROW"), ("DELETE", "STATEMENT"), ("TRUNCATE", "STATEMENT")]
    if root.greenplum:
        kinds = kinds[:1]  # it has triggers for rows only
    for when in ("BEFORE", "AFTER"):
        for event, each in kinds:
            name = f"{when}_{event}_{each}"
            alice(
                f"CREATE TRIGGER {name} {when} {event} ON cerebro_state.{table} FOR EACH {each} EXECUTE FUNCTION spy()"
            )
            alice(f"ALTER TABLE cerebro_state.{table} ENABLE ALWAYS TRIGGER {name}")
    alice(f"CREATE VIEW seen AS SELECT * FROM cerebro_state.{table}")
    alice(f"CREATE TABLE child () INHERITS (cerebro_state.{table})")
    event, each = kinds[-1]
    alice(f"CREATE TRIGGER child BEFORE {event} ON child FOR EACH {each} EXECUTE FUNCTION spy()")
    alice(f"INSERT INTO child SELECT * FROM ONLY cerebro_state.{table}")
    admin("SELECT cerebro.forget(%s, %s)", fitted, alice.name)
    assert alice("SELECT who FROM ran") == []
    assert alice(f"SELECT count(*) FROM ONLY cerebro_state.{table}") == [0]
    assert alice("SELECT count(*) > 0 FROM child") == [True], "her own table keeps its rows"
    alice(f"DROP TABLE cerebro_state.{table} CASCADE")


def test_a_table_of_the_owner_that_looks_like_a_state_holds_up_nothing(people: Any, fitted: int) -> None:
    root, alice, _, admin = people
    table, *_ = states_of(root, fitted)
    fake = f"cerebro_state.{table[:16]}_99_1"
    alice(f"CREATE TABLE {fake} (x int) PARTITION BY LIST (x)")
    alice(f"CREATE TABLE part PARTITION OF {fake} FOR VALUES IN (1)")
    alice(f"CREATE VIEW fake AS SELECT * FROM {fake}")
    admin("SELECT cerebro.forget(%s, %s)", fitted, alice.name)
    assert root(STATES, table[:16] + "%") == [fake.split(".")[1]]
    alice(f"DROP TABLE {fake} CASCADE")


def test_a_session_that_reads_a_state_is_named(people: Any, fitted: int) -> None:
    root, alice, _, admin = people
    table, *_ = states_of(root, fitted)
    alice(f"BEGIN; SELECT count(*) FROM cerebro_state.{table}")
    pid = alice.connection.info.backend_pid
    admin("SET lock_timeout = '400ms'")
    error = admin.refused("SELECT cerebro.forget(%s, %s)", fitted, alice.name, why=errors.LockNotAvailable)
    assert f"session {pid} of role {alice.name} holds a lock on cerebro_state.{table}" in str(error)
    admin("SET lock_timeout = 0; SET statement_timeout = '700ms'")
    admin.refused("SELECT cerebro.forget(%s, %s)", fitted, alice.name, why=errors.QueryCanceled)
    alice("ROLLBACK")
    admin("RESET statement_timeout")
    eventually(lambda: admin("SELECT cerebro.forget(%s, %s)", fitted, alice.name) == [""] or True)
    assert root(STATES, table[:16] + "%") == []
