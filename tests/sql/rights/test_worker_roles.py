"""Worker roles are no second account: each can log in once, when the server does so for its user."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors
from psycopg2.extensions import make_dsn, parse_dsn

from cerebro_db.core.sql import sql_of_user
from cerebro_plpy.sessions import logins
from cerebro_plpy.sessions.session import Session
from tests.conftest import connect
from tests.sql.lab import eventually
from tests.sql.users import Town, User, equip, fit, town, worker_roles

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


def refused_login(user: User, role: str, password: str) -> None:
    # A role that has been dropped is no member of cerebro_worker, and then no line of pg_hba.conf may be left for it.
    with pytest.raises(psycopg2.OperationalError, match="authentication failed|no pg_hba.conf entry|does not exist"):
        connect(make_dsn(**{**parse_dsn(user.dsn), "user": role, "password": password})).close()


def owner_of(root: Town, user: User) -> logins.Owner:
    """The user as a session of the server itself sees it."""
    with contextlib.closing(connect(user.dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT current_user::regrole::oid::bigint, current_database()")
        oid, database = cursor.fetchone()
    greenplum = root.greenplum
    return logins.Owner(user.name, oid, database, True, "", "", sets_role=greenplum)


def log_in(root: Town, user: User) -> Session:
    return logins.session_of(owner_of(root, user), "test", lambda: None)


@pytest.fixture
def here(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data_folder)  # as in the server's own processes


def test_a_planted_password_opens_nothing(root: Town, bob: User, mallory: User) -> None:
    """Planted code can leave the user's role and be the worker role, which may change its own password and settings."""
    bob.log_in()
    bob(f"SELECT cerebro.madlib_fit_multiple_model('{mallory.name}.viewed', 'planted', 'mst', 1)")
    workers = worker_roles(root, bob.name)
    if not root.greenplum:
        found = mallory("SELECT DISTINCT who::text, began::text FROM planted")
        assert found and all(who == began and began in workers for who, began in found)
        set_by_code = "SELECT count(*) > 0 FROM pg_db_role_setting WHERE setrole::regrole::text = ANY (%s)"
        assert root(set_by_code, workers) == [True]
    for worker in workers:
        refused_login(bob, worker, "planted")
    root(f"ALTER ROLE {bob.name} NOLOGIN")
    try:
        for worker in workers:
            refused_login(bob, worker, "planted")
    finally:
        root(f"ALTER ROLE {bob.name} LOGIN")
    bob.log_in()
    fit(bob, "after_it")  # with worker roles of its own
    later = worker_roles(root, bob.name)
    settings = "SELECT DISTINCT setconfig::text FROM pg_db_role_setting WHERE setrole::regrole::text = ANY (%s)"
    assert later and set(root(settings, later)) <= {f"{{role={bob.name}}}"}  # the latter on Greenplum
    for worker in {*workers, *later}:
        refused_login(bob, worker, "planted")


def test_a_worker_role_never_gets_a_valid_password_again(root: Town, bob: User) -> None:
    fit(bob, "between")
    closed = "SELECT DISTINCT rolcanlogin, rolvaliduntil < now() FROM pg_roles WHERE rolname = ANY (%s)"
    assert root(closed, worker_roles(root, bob.name)) == [(True, True)]


def test_a_worker_role_cannot_open_its_own_login(root: Town, bob: User, here: None) -> None:
    with contextlib.closing(log_in(root, bob)) as session:
        session.run(sql_of_user("SET ROLE NONE"))
        session.run(sql_of_user(f"ALTER ROLE {session.role} PASSWORD 'planted'"))
        for change in ("VALID UNTIL 'infinity'", "CREATEROLE", f"RENAME TO {session.role}_x"):
            with pytest.raises((errors.InsufficientPrivilege, errors.FeatureNotSupported)):
                session.run(sql_of_user(f"ALTER ROLE {session.role} {change}"))
        refused_login(bob, session.role, "planted")


def test_each_session_has_a_role_of_its_own_which_ends_with_it(root: Town, bob: User, here: None) -> None:
    bob.log_in()  # ends the team that it kept
    first, second = log_in(root, bob), log_in(root, bob)
    with contextlib.closing(first), contextlib.closing(second):
        assert first.role != second.role
        first.close()
        ended(root, first)
        with contextlib.closing(log_in(root, bob)) as third:
            assert {second.role, third.role} <= set(worker_roles(root, bob.name))
            assert first.role not in worker_roles(root, bob.name) and third.role != first.role
            assert second.run(sql_of_user("SELECT current_user::text")) == [(bob.name,)]


def ended(root: Town, session: Session) -> None:
    eventually(lambda: not root("SELECT 1 FROM pg_stat_activity WHERE usename = %s", session.role), 10, "it has ended")


def test_a_role_that_something_depends_on_can_do_nothing_any_more(
    root: Town, bob: User, mallory: User, here: None
) -> None:
    """What it owns keeps it. A function of its owner's rights must not have bob's rights for ever."""
    bob("CREATE TABLE IF NOT EXISTS diary AS SELECT 1 AS day")
    mallory(f"GRANT CREATE ON SCHEMA {mallory.name} TO PUBLIC")
    with contextlib.closing(log_in(root, bob)) as session:
        session.run(sql_of_user("SET ROLE NONE"))
        session.run(
            sql_of_user(
                f"CREATE FUNCTION {mallory.name}.peek() RETURNS bigint LANGUAGE sql SECURITY DEFINER"
                f" AS 'SELECT count(*) FROM {bob.name}.diary'"
            )
        )
        assert mallory("SELECT peek()") == [1]  # as with any function that bob himself makes for mallory
    ended(root, session)
    log_in(root, bob).close()
    mallory.refused("SELECT peek()")
    roles = "SELECT count(*) FROM pg_auth_members WHERE member = %s::regrole OR roleid = %s::regrole"
    assert root(roles, session.role, session.role) == [0]
    (advice,) = root("SELECT found FROM cerebro.doctor(1) WHERE check_name = 'worker roles' AND status = 'warning'")
    assert session.role in advice
    root(f"DROP OWNED BY {session.role}")
    log_in(root, bob).close()
    assert session.role not in worker_roles(root, bob.name)


def test_nobody_can_hold_up_logins_by_a_role_whose_session_has_ended(
    root: Town, bob: User, mallory: User, here: None
) -> None:
    with contextlib.closing(connect(mallory.dsn)) as holder:
        holder.autocommit = False
        roles = []
        for _ in range(20):
            with contextlib.closing(log_in(root, bob)) as session:
                roles.append(session.role)
                holder.cursor().execute(f"GRANT SELECT ON {mallory.name}.planted TO {session.role}")
            ended(root, session)
        started = time.monotonic()
        log_in(root, bob).close()
        assert time.monotonic() - started < 5
        assert set(roles) <= set(worker_roles(root, bob.name))
        holder.rollback()
    eventually(lambda: gone(root, bob, roles), 10, "the roles are dropped")


def gone(root: Town, user: User, roles: list[str]) -> bool:
    log_in(root, user).close()
    return not set(roles) & set(worker_roles(root, user.name))


def test_worker_roles_of_a_dropped_user_are_dropped(root: Town, bob: User, here: None) -> None:
    eve = root.user("eve", "cerebro_user")
    with contextlib.closing(log_in(root, eve)) as session:
        pass
    ended(root, session)
    eve.connection.close()
    root(f"DROP OWNED BY {eve.name}; DROP SCHEMA IF EXISTS {eve.name}; DROP ROLE {eve.name}")
    root.users.remove(eve)
    root.roles.remove(eve.name)
    log_in(root, bob).close()
    assert root("SELECT 1 FROM pg_roles WHERE rolname = %s", session.role) == []


def test_another_database_gets_the_extension_while_worker_roles_exist(
    root: Town, bob: User, here: None, request: pytest.FixtureRequest
) -> None:
    with contextlib.closing(log_in(root, bob)) as session:
        with contextlib.closing(connect(request.getfixturevalue("fresh_database"))) as other, other.cursor() as cursor:
            cursor.execute("SELECT cerebro_internal._drop_worker_roles()")
        assert session.role in worker_roles(root, bob.name)
        assert session.run(sql_of_user("SELECT current_user::text")) == [(bob.name,)]


def test_a_role_that_exists_already_is_not_used(root: Town, bob: User) -> None:
    """Somebody who may create roles could have made it, and could act as it."""
    verifier = logins.scram_verifier("known")
    (worker,) = root("SELECT cerebro_internal._enrol(%s::regrole::oid, %s)", bob.name, verifier)
    with pytest.raises(errors.DuplicateObject):
        root("SELECT cerebro_internal._enrol(%s::regrole::oid, %s)", bob.name, verifier)
    root("SELECT cerebro_internal._close_login(%s)", worker)
    refused_login(bob, worker, "known")


def test_only_logins_of_worker_roles_are_closed(root: Town, bob: User) -> None:
    for other in (bob.name, "cerebro_enrol", root.root.info.user, None):
        with pytest.raises(errors.InvalidParameterValue, match="is no worker role"):
            root("SELECT cerebro_internal._close_login(%s)", other)


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
        closed = "SELECT COALESCE(bool_and(rolvaliduntil < now()), true) FROM pg_roles WHERE rolname = ANY (%s)"
        assert root(closed, worker_roles(root, bob.name)) == [True]
    finally:
        root(f"ALTER ROLE {bob.name} LOGIN VALID UNTIL 'infinity'")
    fit(bob, f"again_{len(change)}")


def test_many_logins_at_once(root: Town, bob: User, here: None) -> None:
    """Each makes a role and drops those of the others that have ended."""
    assert logged_in(owner_of(root, bob), 6, 10) == [bob.name] * 60


def logged_in(user: logins.Owner, sessions: int, times: int) -> list[str]:
    """The roles as which so many sessions at once work after their logins."""
    found = []

    def log_in() -> None:
        for _ in range(times):
            with contextlib.closing(logins.session_of(user, "test", lambda: None)) as session:
                found.append(session.run(sql_of_user("SELECT current_user::text"))[0][0])

    threads = [threading.Thread(target=log_in) for _ in range(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
