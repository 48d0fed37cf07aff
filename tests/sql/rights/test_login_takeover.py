"""Attempts to log in from outside as a victim's worker role, by setting its password while its login is open.

The attacker has whatever code planted in a table that the victim trains on can get: sessions of the victim's worker
roles, functions that such a role owns, and, where a role may grant itself, membership in it.  CEREBRO_LOGIN_ATTACKS is
the number of the victim's logins that each test attacks.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from cerebro_db.core.sql import Sql, shown, sql_of_user
from cerebro_plpy.sessions import logins
from cerebro_plpy.sessions.session import Session, Statement
from tests.conftest import connect
from tests.sql.lab import eventually
from tests.sql.users import Town, User, equip, town
from tests.thorough import tries

TIMES = int(os.environ.get("CEREBRO_LOGIN_ATTACKS", tries(6)))
TRIALS = tries(1)  # of two trainings at the same time
# As soon as a login of the victim's is open, sets the password of each worker role of the victim that it may alter.
ATTACK = """
    CREATE FUNCTION {schema}.{name}(seconds float8) RETURNS bigint LANGUAGE plpgsql {rights} AS $$
    DECLARE
        until  timestamptz := clock_timestamp() + seconds * interval '1 second';
        worker name;
        done   bigint := 0;
    BEGIN
        WHILE done = 0 AND clock_timestamp() < until LOOP
            CONTINUE WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname ~ '^cerebro_w_{oid}'
                                                                        AND rolvaliduntil > clock_timestamp());
            FOR worker IN SELECT rolname FROM pg_catalog.pg_roles WHERE rolname ~ '^cerebro_w_{oid}' LOOP
                BEGIN
                    EXECUTE format('ALTER ROLE %I PASSWORD %L', worker, 'planted');
                    done := done + 1;
                EXCEPTION WHEN OTHERS THEN
                    NULL;
                END;
            END LOOP;
        END LOOP;
        RETURN done;
    END
    $$;
    GRANT EXECUTE ON FUNCTION {schema}.{name}(float8) TO PUBLIC;
"""


@pytest.fixture
def people(server: str, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Town, User, User]]:
    with town(server) as root:
        bob, mallory = root.user("bob", "cerebro_user"), root.user("mallory", "cerebro_user")
        mallory(f"GRANT USAGE, CREATE ON SCHEMA {mallory.name} TO PUBLIC")
        monkeypatch.chdir(data_folder)  # as in the server's own processes
        yield root, bob, mallory


class Attackers:
    """Threads that repeat an attack until the end of the block, and count how often it had an effect."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.threads: list[threading.Thread] = []
        self.effects = 0

    def repeat(self, attack: Callable[[], int]) -> None:
        def work() -> None:
            while not self.over.is_set():
                with contextlib.suppress(psycopg2.Error):
                    self.effects += attack()

        self.threads.append(threading.Thread(target=work))

    def __enter__(self) -> Attackers:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()


def oid_of(root: Town, user: User) -> int:
    return int(root("SELECT %s::regrole::oid::bigint", user.name)[0])


def victim(root: Town, bob: User) -> logins.Owner:
    """bob, as a session of the server itself sees him."""
    database = root("SELECT current_database()")[0]
    greenplum = root.greenplum
    return logins.Owner(bob.name, oid_of(root, bob), database, True, "", "", sets_role=greenplum)


def log_in(user: logins.Owner) -> Session:
    return logins.session_of(user, "cerebro_db segment 0", lambda: None)


def outsider(root: Town, bob: User) -> Callable[[], int]:
    """Tries the planted password from outside, for all worker roles of bob."""
    dsn, looking = parse_dsn(bob.dsn), connect(root.dsn)
    roles = f"SELECT rolname FROM pg_roles WHERE rolname ~ '^cerebro_w_{oid_of(root, bob)}' ORDER BY oid DESC LIMIT 8"

    def attack() -> int:
        with looking.cursor() as cursor:
            cursor.execute(roles)
            names = [name for (name,) in cursor.fetchall()]
        entered = 0
        for name in names:
            with contextlib.suppress(psycopg2.OperationalError):
                connect(make_dsn(**{**dsn, "user": name, "password": "planted"})).close()
                entered += 1
        return entered

    return attack


def attacked(root: Town, bob: User, attack: Callable[[], int]) -> tuple[bool, int]:
    """Whether the attack set passwords, and how often somebody outside entered, while bob logged in ``TIMES`` times."""
    outside, inside = Attackers(), Attackers()
    outside.repeat(outsider(root, bob))
    inside.repeat(attack)
    user = victim(root, bob)
    with outside, inside:
        for _ in range(TIMES):
            log_in(user).close()
            time.sleep(0.02)
    print(f"{TIMES} logins of the victim, {inside.effects} planted passwords, {outside.effects} logins from outside")
    return inside.effects > 0, outside.effects


@pytest.fixture
def planted(people: Any) -> Iterator[Session]:
    """A session of bob's worker role in which mallory's code runs as the worker role itself."""
    root, bob, _ = people
    session = log_in(victim(root, bob))
    session.run(sql_of_user("SET ROLE NONE"))
    try:
        yield session
    finally:
        session.close()


def test_code_in_another_session_of_the_victim(people: Any, planted: Session) -> None:
    root, bob, mallory = people
    mallory(ATTACK.format(schema=mallory.name, name="take", oid=oid_of(root, bob), rights=""))
    assert attacked(root, bob, lambda: planted.run(sql_of_user(f"SELECT {mallory.name}.take(1)"))[0][0]) == (True, 0)


def test_a_function_that_a_worker_role_left(people: Any, planted: Session) -> None:
    """Whoever calls it acts as the worker role, also after the end of the session that made it."""
    root, bob, mallory = people
    with contextlib.suppress(psycopg2.OperationalError):
        connect(make_dsn(**{**parse_dsn(bob.dsn), "password": "wrong"})).close()
        pytest.skip("pg_hba.conf of this server trusts users without a password, so roles without a session, too")
    planted.run(
        sql_of_user(ATTACK.format(schema=mallory.name, name="take", oid=oid_of(root, bob), rights="SECURITY DEFINER"))
    )
    planted.close()
    assert attacked(root, bob, lambda: mallory(f"SELECT {mallory.name}.take(1)")[0]) == (True, 0)


def test_a_function_that_is_still_running(people: Any, planted: Session) -> None:
    """Nothing in the catalogs shows it: the function is dropped while it runs."""
    root, bob, mallory = people
    planted.run(
        sql_of_user(ATTACK.format(schema=mallory.name, name="take", oid=oid_of(root, bob), rights="SECURITY DEFINER"))
    )
    attack = Attackers()
    attack.repeat(lambda: mallory(f"SELECT {mallory.name}.take(60)")[0])
    with attack:
        time.sleep(0.5)
        planted.run(sql_of_user(f"DROP FUNCTION {mallory.name}.take(float8)"))
        planted.close()
        assert attacked(root, bob, lambda: time.sleep(1) or 0) == (False, 0)
        mallory.connection.cancel()


def test_a_session_that_has_borrowed_a_worker_role(people: Any, planted: Session) -> None:
    """Before PostgreSQL 15 a role may grant itself. SET ROLE outlives the end of the membership."""
    root, bob, mallory = people
    worker = planted.run(sql_of_user("SELECT session_user::text"))[0][0]
    try:
        planted.run(sql_of_user(f"GRANT {worker} TO {mallory.name}"))
    except psycopg2.errors.InsufficientPrivilege:
        pytest.skip("here no role may grant itself")
    mallory(ATTACK.format(schema=mallory.name, name="take", oid=oid_of(root, bob), rights=""))
    mallory(f"SET ROLE {worker}")
    planted.close()
    try:
        assert attacked(root, bob, lambda: mallory(f"SELECT {mallory.name}.take(1)")[0])[1] == 0
    finally:
        mallory.log_in()


PLANTED = """
    {take}
    CREATE TABLE {schema}.seen (worker name, open boolean);
    GRANT INSERT ON {schema}.seen TO PUBLIC;
    CREATE FUNCTION {schema}.plant() RETURNS boolean LANGUAGE plpgsql AS $$
    DECLARE
        acting text := pg_catalog.current_setting('role');
    BEGIN
        IF session_user ~ '^cerebro_w_' THEN
            PERFORM pg_catalog.set_config('role', 'none', true);
            INSERT INTO {schema}.seen
            SELECT rolname, rolvaliduntil > clock_timestamp() FROM pg_catalog.pg_roles WHERE rolname = session_user;
            PERFORM {schema}.take(3);
            PERFORM pg_catalog.set_config('role', acting, true);
        END IF;
        RETURN true;
    EXCEPTION WHEN feature_not_supported THEN
        RETURN true;  -- on a segment of Greenplum nothing can be altered
    END
    $$;
    CREATE VIEW {schema}.viewed AS SELECT * FROM {schema}.packed WHERE {schema}.plant();
    CREATE VIEW {schema}.viewed_summary AS SELECT * FROM {schema}.packed_summary;
    GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO PUBLIC;
"""


def test_code_in_a_table_that_the_victim_trains_on(people: Any) -> None:
    """As it happens: bob trains on mallory's view twice at the same time, and so logs in while her code runs."""
    root, bob, mallory = people
    equip(bob)
    equip(mallory)
    take = ATTACK.format(schema=mallory.name, name="take", oid=oid_of(root, bob), rights="")
    mallory(PLANTED.format(schema=mallory.name, take=take))
    outside = Attackers()
    outside.repeat(outsider(root, bob))

    def train(session: User, number: int) -> None:
        with contextlib.suppress(psycopg2.Error):
            session(f"SELECT cerebro.madlib_fit_multiple_model('{mallory.name}.viewed', 'm{number}', 'mst', 1)")

    with outside:
        for trial in range(TRIALS):
            sessions = [bob.another(), bob.another()]
            threads = [
                threading.Thread(target=train, args=(session, 2 * trial + number))
                for number, session in enumerate(sessions)
            ]
            for thread in threads:
                thread.start()
                time.sleep(1)
            for thread in threads:
                thread.join()
            for session in sessions:
                session.connection.close()
    assert outside.effects == 0
    assert bob("SELECT count(*) FROM cerebro.runs WHERE status = 'finished'") == [2 * TRIALS]
    if not root.greenplum:  # there it runs on segments, which cannot write
        seen = "SELECT bool_or(open), count(DISTINCT worker) >= %s FROM seen"
        assert mallory(seen, 2 * TRIALS) == [(False, True)]


def test_no_statement_runs_in_a_session_before_its_login_is_closed(
    people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, bob, _ = people
    sent: list[tuple[str, Sql]] = []
    send = Session._send

    def record(session: Session, statement: Statement) -> None:
        sent.append((session.role, statement.sql))
        send(session, statement)

    monkeypatch.setattr(Session, "_send", record)
    with contextlib.closing(log_in(victim(root, bob))) as session:
        of_worker = [number for number, (role, _) in enumerate(sent) if role == session.role]
    (closed,) = (number for number, (_, sql) in enumerate(sent) if "_close_login" in shown(sql))
    assert of_worker and min(of_worker) > closed
    assert sent[closed][0] == logins.ENROL


def test_a_login_that_cannot_be_closed_gives_no_session(people: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root, bob, _ = people
    send = Session._send

    def fail(session: Session, statement: Statement) -> None:
        if "_close_login" in shown(statement.sql):
            root("SELECT pg_terminate_backend(%s)", session.backend)
        send(session, statement)

    monkeypatch.setattr(Session, "_send", fail)
    with pytest.raises(psycopg2.OperationalError):
        log_in(victim(root, bob))
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename ~ ('^cerebro_w_' || %s)"
    eventually(lambda: root(sessions, str(oid_of(root, bob))) == [0], 10, "no session is left")
