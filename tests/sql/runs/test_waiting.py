"""Kept teams: which calls a kept team of worker sessions serves, and when it ends."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors

from tests.sql import users
from tests.sql.lab import CROSS, Lab, eventually, flower_model, run, trainer_processes
from tests.sql.users import Town, User
from tests.thorough import TIMES

SEGMENTS = 2
Workers = set[tuple[int, int]]  # (process of the worker session, process of its trainer)
ALIVE = "SELECT pid FROM pg_stat_activity WHERE pid = ANY (%s)"


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    if lab.greenplum:
        pytest.skip("workers do not wait on Greenplum")
    lab.iris(SEGMENTS)
    arch = lab.architecture(flower_model())
    lab.selection("mst", [(arch, f"optimizer='SGD(lr=0.1)', {CROSS}", "batch_size=8, epochs=1")])
    return lab


@pytest.fixture
def session(place: Lab) -> Iterator[Any]:
    """A new session."""
    with contextlib.closing(place.connect()) as connection:
        yield connection
    eventually(lambda: not place.waiting(), 20, "workers end with their session")


def fit(place: Lab, session: Any, source: str = "train", **options: Any) -> tuple[int, Workers]:
    """The number of a run, and the worker sessions and trainers that trained it."""
    run(session, "DROP TABLE IF EXISTS m, m_info, m_summary, m_weights")
    number = place.fit(source, "m", "mst", 1, on=session, options={"seed": 1, **options})
    return number, served(place, number)


def served(place: Lab, number: int) -> Workers:
    return set(place("SELECT worker_pid, trainer_pid FROM hop WHERE run = %s", number))


def losses(place: Lab, number: int) -> list[float]:
    return [loss for (loss,) in place("SELECT loss FROM hop WHERE run = %s ORDER BY hop", number)]


# -- calls that a kept team serves ---------------------------------------------------------------------------


def test_the_next_call_is_served_by_the_same_trainers(place: Lab, session: Any) -> None:
    # A session that an earlier module forgot ends when Python frees it; its team waits for at most a minute.
    eventually(lambda: not place.waiting(), 120, "the teams of earlier sessions end")
    first, workers = fit(place, session)
    assert len(workers) == SEGMENTS
    assert place.waiting() == {pid for pid, _ in workers}
    second, again = fit(place, session)
    assert again == workers and losses(place, second) == losses(place, first)
    run(session, "SELECT resume(%s, epochs => 2)", second)
    assert served(place, second) == workers
    run(session, "SELECT madlib_keras_evaluate('m', 'train', 'seen', false, 1)")
    run(session, "SELECT madlib_keras_predict('m', 'garden', 'id', 'sl, sw, pl, pw', 'said', 'response', false, 1)")
    assert place.waiting() == {pid for pid, _ in workers}
    assert place("SELECT count(*) FROM said") == [(30,)]
    run(session, "DROP TABLE seen, said")


def test_one_team_waits_and_it_is_of_the_right_kind(place: Lab, session: Any) -> None:
    _, workers = fit(place, session)
    _, others = fit(place, session, deterministic=True)
    assert not workers & others
    assert place.waiting() == {pid for pid, _ in others}
    with contextlib.closing(place.connect()) as another:
        _, anothers = fit(place, another)
        assert not anothers & others, "they are this session's"
        assert place.waiting() == {pid for pid, _ in anothers | others}


def test_rows_that_changed_are_read_again(place: Lab, session: Any) -> None:
    """The cached rows are not used after the table was packed again or changed by hand."""
    place.pack("flowers", "rows", "species", "sl, sw, pl, pw", segments=SEGMENTS, seed=1)
    before, workers = fit(place, session, "rows")
    place("VACUUM FULL rows")
    moved, again = fit(place, session, "rows")
    assert again == workers and losses(place, moved) == losses(place, before)
    place("DROP TABLE rows, rows_summary")
    place.pack("flowers", "rows", "species", "sl, sw, pl, pw", segments=SEGMENTS, seed=2)
    other, again = fit(place, session, "rows")
    assert again == workers and losses(place, other) != losses(place, before)
    place("UPDATE rows SET features = overlay(features PLACING '\\x00000000' FROM 1)")
    with pytest.raises(psycopg2.Error, match="are not those that were packed"):
        fit(place, session, "rows")
    assert not place.waiting()
    place("DROP TABLE rows, rows_summary")


def test_rows_that_are_hidden_by_now_are_not_used(place: Lab, town: Town, ann: User) -> None:
    """The cache of an earlier call must not contain rows that a policy now hides."""
    users.fit(ann)
    for table in ("packed", *(f"packed_seg{part}" for part in range(SEGMENTS))):
        ann(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY; ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        ann(f"CREATE POLICY ours ON {table} USING (current_setting('application_name') NOT LIKE 'cerebro_db segment%')")
    error = ann.refused("SELECT madlib_fit_multiple_model('packed', 'models2', 'mst', 1)", why=psycopg2.Error)
    assert "no rows of" in str(error) and owners(town) == set()


# -- the same user with the same rights ----------------------------------------------------------------------


@pytest.fixture
def town(place: Lab) -> Iterator[Town]:
    with users.town(place.dsn) as made:
        yield made


@pytest.fixture
def ann(town: Town) -> User:
    user = town.user("ann", "cerebro_user")
    users.equip(user, segments=SEGMENTS)
    return user


def owners(town: Town) -> set[str]:
    """The owners of kept teams."""
    found = town("SELECT DISTINCT usename FROM pg_stat_activity WHERE application_name = 'cerebro_db waiting'")
    return {town("SELECT rolname FROM pg_roles WHERE oid = %s::oid", name.split("_")[2])[0] for name in found}


def test_another_role_has_workers_of_its_own(place: Lab, town: Town, ann: User) -> None:
    bob = town.user("bob", "cerebro_user")
    users.equip(bob, segments=SEGMENTS)
    both = town.user("both", ann.name, bob.name)
    both(f"SET ROLE {ann.name}; SET search_path = {ann.name}, cerebro, madlib")
    anns = served(place, users.fit(both))
    assert owners(town) == {ann.name}
    both(f"SET ROLE {bob.name}; SET search_path = {bob.name}, cerebro, madlib")
    bobs = served(place, users.fit(both))
    assert not anns & bobs and owners(town) == {bob.name}


def test_what_a_login_depends_on_is_looked_at_again(place: Lab, town: Town, ann: User) -> None:
    """A login depends on the settings of the database and the user's name; a kept session also on its worker role."""
    seen = [served(place, users.fit(ann, "m0"))]

    def call(number: int) -> None:
        seen.append(served(place, users.fit(ann, f"m{number}")))
        assert not seen[-1] & seen[-2], number

    renamed = ann.name + "_x"
    town(f"ALTER ROLE {ann.name} RENAME TO {renamed}")
    try:
        call(1)
    finally:
        town(f"ALTER ROLE {renamed} RENAME TO {ann.name}")
    database = town("SELECT current_database()")[0]
    waiting = "SELECT usename::text FROM pg_stat_activity WHERE application_name = 'cerebro_db waiting'"
    try:
        call(2)
        town(f"ALTER DATABASE {database} SET work_mem = '5MB'")
        for number, change in enumerate(("REVOKE {user} FROM {worker}", "GRANT {worker} TO pg_monitor",
                                         "GRANT SELECT ON {user}.packed TO {worker}"), start=3):  # fmt: skip
            call(number)
            worker = users.worker_roles(town, ann.name)
            worker = next(role for role in town(waiting) if role in worker)
            town(change.format(user=ann.name, worker=worker))
        call(number + 1)
    finally:
        town(f"ALTER DATABASE {database} RESET work_mem")


def test_what_code_of_the_users_left_in_a_worker_is_gone(place: Lab, town: Town, ann: User) -> None:
    """A policy's function runs in worker sessions.  It leaves objects and locks there, and records what it finds."""
    ann("CREATE TABLE found (pid integer, path text, planted regclass, locks bigint, channels bigint, held bigint)")
    ann(
        """
        CREATE FUNCTION plant() RETURNS boolean LANGUAGE plpgsql SECURITY INVOKER AS $$
        BEGIN
            IF current_setting('application_name') LIKE 'cerebro_db segment%' THEN
                INSERT INTO {schema}.found VALUES (pg_backend_pid(), current_setting('search_path'),
                    to_regclass('pg_temp.planted'),
                    (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'),
                    (SELECT count(*) FROM pg_listening_channels()),
                    (SELECT count(*) FROM pg_cursors WHERE is_holdable));
                IF to_regclass('pg_temp.planted') IS NULL THEN
                    CREATE TEMP TABLE planted (x integer);
                    PERFORM pg_advisory_lock(4711, pg_backend_pid());
                    EXECUTE 'LISTEN planted';
                END IF;
                PERFORM set_config('search_path', '{schema}, pg_catalog', false);
            END IF;
            RETURN true;
        END $$
        """.replace("{schema}", ann.name)
    )
    for table in ("packed", *(f"packed_seg{part}" for part in range(SEGMENTS))):
        ann(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY; ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        ann(f"CREATE POLICY planting ON {table} USING (plant())")
    workers = served(place, users.fit(ann, "one"))
    planted = set(ann("SELECT pid FROM found WHERE planted IS NOT NULL"))
    assert planted == {pid for pid, _ in workers}, "it was there while the run went on"
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 4711"
    assert town(locks) == [0], "nobody waits for a session that waits"
    temporary = "SELECT count(*) FROM pg_class WHERE relname = 'planted'"
    assert town(temporary) == [0]
    ann("DELETE FROM found")
    assert served(place, users.fit(ann, "two")) == workers, "they are the same sessions"
    first = ann("SELECT DISTINCT ON (pid) path, planted IS NULL, locks, channels, held FROM found ORDER BY pid, ctid")
    assert len(first) == SEGMENTS
    for path, clean, locks_held, channels, held in first:
        assert ann.name not in path.replace('"$user"', "") and clean and (locks_held, channels, held) == (0, 0, 0)


# -- the end of a kept team ----------------------------------------------------------------------------------


def folders(place: Lab, pids: set[int]) -> list[Path]:
    """The non-empty scratch folders of these sessions."""
    assert place.home is not None
    places = [*place.home.glob("clusters/*/data/pgsql_tmp_cerebro"), *Path("/dev/shm").glob("cerebro_db_*")]
    mine = [folder for where in places for folder in where.iterdir() if folder.name.partition("-")[0] in map(str, pids)]
    return [folder for folder in mine if any(folder.glob("*"))]  # glob: it may be removed at this moment


def alive(place: Lab) -> set[int]:
    assert place.home is not None
    return {pid for pid, _ in trainer_processes(place.home)}


@pytest.fixture
def limits(place: Lab) -> Iterator[Any]:
    def limit(role: str | None = None, **limits: Any) -> None:
        named = "".join(f", {name} => %s" for name in limits)
        place(f"SELECT set_limits(%s{named})", role, *limits.values())

    try:
        yield limit
    finally:
        place("DELETE FROM role_limit")


@pytest.mark.throw_away
def test_they_do_not_wait_for_ever(place: Lab, session: Any, limits: Any) -> None:
    limits(max_waiting_seconds=1)
    _, workers = fit(place, session)
    sessions, trainers = ({one[which] for one in workers} for which in (0, 1))
    assert place.waiting() >= sessions  # The team of an earlier session may still be there.
    eventually(lambda: not alive(place) & trainers, 30, "the trainers end, and give their memory back")
    assert not folders(place, sessions)
    if (
        TIMES >= 5 and place.waiting()
    ):  # The sessions end a few seconds later. Until then they serve calls with new trainers.
        _, again = fit(place, session)
        assert not {pid for _, pid in again} & trainers
        sessions |= {pid for pid, _ in again}
    if place.value("SELECT current_setting('server_version_num')::int") >= 140000:
        eventually(lambda: not place.waiting() & sessions, 30, "the sessions end, too")


@pytest.mark.throw_away
@pytest.mark.parametrize("seconds", [pytest.param(1, marks=pytest.mark.thorough), 0])
def test_the_trainer_of_ones_own_session_is_no_other(place: Lab, session: Any, limits: Any, seconds: int) -> None:
    """A small table is predicted by a trainer of the session itself, without worker sessions."""
    assert place.home is not None
    limits(max_waiting_seconds=seconds)
    fit(place, session)
    own = session.info.backend_pid
    said = []
    for table in ("said", "again"):
        run(session, f"SELECT madlib_keras_predict('m', 'garden', 'id', 'sl, sw, pl, pw', '{table}', 'prob', false, 1)")
        said.append(run(session, f"SELECT id, class_value, prob FROM {table} ORDER BY 1, 2"))
        run(session, f"DROP TABLE {table}")
        gone = lambda: not [pid for pid, parent in trainer_processes(place.home) if parent == own]  # type: ignore[arg-type]  # noqa: E731
        eventually(gone, 30, "its trainer ends")
        assert not folders(place, {own})
    assert said[0] == said[1] and len(said[0]) == 90


def test_an_administrator_can_do_without(place: Lab, session: Any, limits: Any) -> None:
    limits(max_waiting_seconds=0)
    _, workers = fit(place, session)
    assert not place.waiting()
    place.require_no_orphans()
    limits(place.value("SELECT current_user"), max_waiting_seconds=600)
    _, again = fit(place, session)
    assert place.waiting() == {pid for pid, _ in again} and not again & workers
    assert place("SELECT allowed, used FROM limits WHERE name = 'waiting_seconds'") == [(600, None)]


@pytest.mark.throw_away
def test_they_end_with_their_session(place: Lab) -> None:
    with contextlib.closing(place.connect()) as session:
        _, workers = fit(place, session)
    sessions, trainers = ({one[which] for one in workers} for which in (0, 1))
    eventually(lambda: not place.waiting() and not alive(place) & trainers, 20, "they are gone")
    eventually(lambda: not folders(place, sessions), 20, "and so is what they had in memory")


def test_they_do_not_wait_after_a_cancel(place: Lab, session: Any) -> None:
    """A worker session that was interrupted may be in any state, so it is not kept."""
    _, workers = fit(place, session)
    run(session, "SET statement_timeout = '1s'")
    with pytest.raises(errors.QueryCanceled):
        place.fit("train", "gone", "mst", 100_000, on=session)
    run(session, "RESET statement_timeout")
    assert not place.waiting()
    eventually(lambda: not place(ALIVE, [pid for pid, _ in workers]), 20, "they end")


@pytest.mark.thorough  # they do not wait after a cancel, above
def test_they_do_not_wait_after_a_run_that_failed(place: Lab, session: Any) -> None:
    fit(place, session)
    five = place.architecture(flower_model(classes=5))
    place.selection("doomed", [(five, f"optimizer='SGD(lr=0.1)', {CROSS}", "batch_size=8, epochs=1")])
    with pytest.raises(psycopg2.Error, match="configuration 1"):
        place.fit("train", "gone", "doomed", 1, on=session)
    assert not place.waiting()


@pytest.mark.throw_away
@pytest.mark.thorough  # tests/sql/runs/test_lost_sessions.py ends kept sessions
def test_one_that_died_while_it_waited_is_replaced(place: Lab, session: Any) -> None:
    first, workers = fit(place, session)
    sessions, trainers = ({one[which] for one in workers} for which in (0, 1))
    os.kill(min(trainers), signal.SIGKILL)
    second, again = fit(place, session)
    assert {pid for pid, _ in again} == sessions and len(again & workers) == SEGMENTS - 1
    assert losses(place, second) == losses(place, first)


def test_they_give_way_to_others_who_lack_connections(place: Lab, town: Town, ann: User, limits: Any) -> None:
    bob = town.user("bob", "cerebro_user")
    users.equip(bob, segments=SEGMENTS)
    users.fit(ann)
    assert owners(town) == {ann.name}
    connections = "SELECT allowed, used FROM cerebro.limits WHERE name = 'connections'"
    limits(bob.name, min_free_connections=0)
    most, used = bob(connections)[0]
    limits(bob.name, min_free_connections=most - used - 1)  # One more connection is allowed, and a run needs three.
    assert bob(connections) == [(used + 1, used)]
    workers = served(place, users.fit(bob))
    assert len(workers) == SEGMENTS and ann.name not in owners(town)
