"""Worker roles are no second account: they can log in only at the moment when the server does so for their user."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors
from psycopg2.extensions import make_dsn, parse_dsn

from cerebro_plpy.sessions import logins
from tests.conftest import connect
from tests.sql.lab import eventually
from tests.sql.users import Town, User, equip, fit, town

PLANTED = """
    CREATE TABLE planted (who name, began name);
    GRANT INSERT ON planted TO PUBLIC;
    GRANT USAGE ON SCHEMA {mallory} TO PUBLIC;
    CREATE FUNCTION plant() RETURNS boolean LANGUAGE plpgsql AS $$
    DECLARE
        acting text := pg_catalog.current_setting('role');
    BEGIN
        IF session_user ~ '^cerebro_w_' THEN
            PERFORM pg_catalog.set_config('role', 'none', true);
            EXECUTE format('ALTER ROLE %I PASSWORD %L', session_user, 'planted');
            EXECUTE format('ALTER ROLE %I SET search_path = {mallory}', session_user);
            EXECUTE format('ALTER ROLE %I IN DATABASE %I SET search_path = {mallory}',
                           session_user, current_database());
            INSERT INTO {mallory}.planted VALUES (current_user, session_user);
            PERFORM pg_catalog.set_config('role', acting, true);
        END IF;
        RETURN true;
    EXCEPTION WHEN feature_not_supported THEN
        RETURN true;  -- on a segment of Greenplum nothing can be altered
    END
    $$;
    CREATE VIEW viewed AS SELECT * FROM packed WHERE plant();
    CREATE VIEW viewed_summary AS SELECT * FROM packed_summary;
"""


@pytest.fixture(scope="module")
def people(server: str) -> Iterator[tuple[Town, User, User]]:
    """The superuser; bob; mallory, whose packed table has planted code that bob may run by training on it."""
    with town(server) as root:
        bob, mallory = root.user("bob", "cerebro_user"), root.user("mallory", "cerebro_user")
        equip(bob)
        equip(mallory)
        mallory(PLANTED.replace("{mallory}", mallory.name))
        mallory(f"GRANT SELECT ON ALL TABLES IN SCHEMA {mallory.name} TO {bob.name}")
        yield root, bob, mallory


@pytest.fixture
def root(people: Any) -> Town:
    return people[0]


@pytest.fixture
def bob(people: Any) -> User:
    return people[1]


@pytest.fixture
def mallory(people: Any) -> User:
    return people[2]


def worker_of(root: Town, user: User) -> str:
    return root("SELECT 'cerebro_w_' || %s::regrole::oid", user.name)[0]


def refused_login(user: User, role: str, password: str) -> None:
    with pytest.raises(psycopg2.OperationalError, match="authentication failed"):
        connect(make_dsn(**{**parse_dsn(user.dsn), "user": role, "password": password})).close()


def owner_of(root: Town, user: User) -> logins.Owner:
    """The user as a session of the server itself sees it."""
    with contextlib.closing(connect(user.dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT current_user::regrole::oid::bigint, current_database()")
        oid, database = cursor.fetchone()
    return logins.Owner(user.name, oid, database, True, frozenset(), True, True, "", "")


def test_a_planted_password_opens_nothing(root: Town, bob: User, mallory: User) -> None:
    """Planted code can leave the user's role and be the worker role, which may change its own password and settings."""
    bob.log_in()
    bob(f"SELECT cerebro.madlib_fit_multiple_model('{mallory.name}.viewed', 'planted', 'mst', 1)")
    worker = worker_of(root, bob)
    if "Greenplum" not in root("SELECT version()")[0]:
        assert (worker, worker) in mallory("SELECT DISTINCT who::text, began::text FROM planted")
    refused_login(bob, worker, "planted")
    root(f"ALTER ROLE {bob.name} NOLOGIN")
    try:
        refused_login(bob, worker, "planted")
    finally:
        root(f"ALTER ROLE {bob.name} LOGIN")
    bob.log_in()
    fit(bob, "after_it")  # whatever was planted is gone with the next login
    settings = root("SELECT setconfig::text FROM pg_db_role_setting WHERE setrole = %s::regrole", worker)
    assert settings in ([], [f"{{role={bob.name}}}"])  # the latter on Greenplum
    refused_login(bob, worker, "planted")


def test_a_worker_role_has_no_valid_password_between_two_logins(root: Town, bob: User) -> None:
    fit(bob, "between")
    worker = worker_of(root, bob)
    assert root("SELECT rolcanlogin, rolvaliduntil < now() FROM pg_roles WHERE rolname = %s", worker) == [(True, True)]


def test_the_password_cannot_be_changed_while_it_is_valid(root: Town, bob: User) -> None:
    """Code in another session of the worker role waits for the end of the login, and then it is too late."""
    worker, open_login = worker_of(root, bob), "SELECT cerebro._enrol(%s, %s)"
    root(open_login, bob.name, logins.scram_verifier("known"))
    dsn = make_dsn(**{**parse_dsn(bob.dsn), "user": worker, "password": "known"})
    with contextlib.closing(connect(dsn)) as planted, contextlib.closing(connect(root.dsn)) as server:
        server.autocommit = False
        server.cursor().execute("SELECT cerebro._close_login(%s)", (bob.name,))
        with contextlib.closing(connect(dsn)) as login:  # as the server logs in now
            assert not login.closed
        cursor = planted.cursor()
        cursor.execute("SET ROLE NONE; SET lock_timeout = '200ms'")
        with pytest.raises(errors.LockNotAvailable):
            cursor.execute(f"ALTER ROLE {worker} PASSWORD 'planted'")
        server.commit()
        cursor.execute(f"ALTER ROLE {worker} PASSWORD 'planted'")
        with pytest.raises(errors.InsufficientPrivilege):
            cursor.execute(f"ALTER ROLE {worker} VALID UNTIL 'infinity'")
    refused_login(bob, worker, "planted")
    refused_login(bob, worker, "known")


@pytest.mark.parametrize("change", ["NOLOGIN", "VALID UNTIL '2000-01-01'"])
def test_who_may_not_log_in_has_no_worker_sessions(root: Town, bob: User, change: str) -> None:
    """The session that bob still has opens none, and those that it has kept are not used any more."""
    bob.log_in()
    fit(bob, f"before_{len(change)}")
    root(f"ALTER ROLE {bob.name} {change}")
    try:
        error = bob.refused(
            f"SELECT cerebro.madlib_fit_multiple_model('packed', 'not_{len(change)}', 'mst', 1)", why=psycopg2.Error
        )
        if "is not permitted to log in" in str(error):
            return  # Greenplum refuses any query: the user's session cannot log in to a segment either.
        assert "may not log in" in str(error) and error.diag.message_hint.startswith("ALTER ROLE")
        worker = worker_of(root, bob)
        assert root("SELECT rolcanlogin FROM pg_roles WHERE rolname = %s", worker) == [False]
    finally:
        root(f"ALTER ROLE {bob.name} LOGIN VALID UNTIL 'infinity'")
    fit(bob, f"again_{len(change)}")


def test_many_logins_at_once(root: Town, bob: User, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sessions that alter one role at the same moment are an error in PostgreSQL; here all of them succeed."""
    monkeypatch.chdir(data_folder)  # as in the server's own processes
    carol = root.user("carol", "cerebro_user")
    assert logged_in(owner_of(root, carol), 4, 1) == [carol.name] * 4  # they make the role, too
    assert logged_in(owner_of(root, bob), 4, 5) == [bob.name] * 20


def logged_in(user: logins.Owner, sessions: int, times: int) -> list[str]:
    """The roles as which so many sessions at once work after their logins."""
    found = []

    def log_in() -> None:
        for _ in range(times):
            with contextlib.closing(logins.session_of(user, "test", lambda: None)) as session:
                found.append(session.run("SELECT current_user::text")[0][0])

    threads = [threading.Thread(target=log_in) for _ in range(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_two_sessions_that_make_a_worker_role_at_once(root: Town) -> None:
    """The second one waits for the first, and then finds the role."""
    dave = root.user("dave", "cerebro_user")
    enrol = "SELECT cerebro._enrol(%s, %s)"
    with contextlib.closing(connect(root.dsn)) as first, contextlib.closing(connect(root.dsn)) as second:
        first.autocommit = False
        first.cursor().execute(enrol, (dave.name, logins.scram_verifier("one")))
        found: list[Any] = []

        def enrol_too() -> None:
            with second.cursor() as cursor:
                cursor.execute("SET lock_timeout = '60s'")
                cursor.execute(enrol, (dave.name, logins.scram_verifier("two")))
                found.extend(cursor.fetchall())

        thread = threading.Thread(target=enrol_too)
        thread.start()
        waits = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        eventually(lambda: root(waits, second.info.backend_pid), 30, "the second session waits")
        first.commit()
        thread.join()
    assert found == [(worker_of(root, dave),)]
