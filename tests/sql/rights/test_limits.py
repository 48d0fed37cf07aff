"""Limits per role: what is over them is refused with SQLSTATE 53400 before it is taken; an admin forgets runs."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors

from cerebro_db.core.errors import DiskFull, OutOfResources
from cerebro_plpy.platform import machine
from cerebro_plpy.segment.scratch import require_disk, require_shared_memory
from tests.conftest import ENGINE
from tests.sql import users
from tests.sql.lab import eventually
from tests.sql.users import Town, User


@pytest.fixture(scope="module")
def town(server: str) -> Iterator[Town]:
    with users.town(server) as made:
        yield made


@pytest.fixture(scope="module")
def ann(town: Town) -> User:
    """She has a packed table of two segments, and a selection of one small model."""
    user = town.user("ann", "cerebro_user")
    users.equip(user, segments=2)
    return user


def used(user: User) -> dict[str, tuple[Any, Any]]:
    return {name: (allowed, used) for name, allowed, used in user("SELECT name, allowed, used FROM cerebro.limits")}


@pytest.fixture
def limited(town: Town, ann: User) -> Iterator[Any]:
    def limit(**limits: Any) -> None:
        named = "".join(f", {name} => %s" for name in limits)
        town(f"SELECT cerebro.set_limits(%s{named})", ann.name, *limits.values())

    try:
        yield limit
    finally:
        town("DELETE FROM cerebro.role_limit")


def refused(user: User, *arguments: Any) -> str:
    error = user.refused(*arguments, why=errors.ConfigurationLimitExceeded)
    assert "cerebro.limits" in (error.diag.message_hint or "")
    return str(error.diag.message_primary).partition(": ")[2]


FIT = "SELECT madlib_fit_multiple_model('packed', 'none', 'mst', 1)"


def test_what_holds_is_seen(town: Town, ann: User, limited: Any) -> None:
    assert [used(ann)[name][0] for name in ("running_runs", "segments", "state_bytes", "run_seconds")] == [None] * 4
    town("SELECT cerebro.set_limits(NULL, max_running_runs => 7, max_segments => 70)")
    limited(max_running_runs=2)
    assert used(ann)["running_runs"] == (2, 0)
    assert used(ann)["segments"] == (70, 0)
    spare, total = used(ann)["connections"], town("SELECT current_setting('max_connections')::int")[0]
    assert 0 < spare[1] < spare[0] <= total - 3 - total // 10
    limited()  # none of her own any more
    assert used(ann)["running_runs"] == (7, 0)


def test_who_sets_them(town: Town, ann: User) -> None:
    for statement in (
        "SELECT cerebro.set_limits(NULL)",
        "SELECT * FROM cerebro.role_limit",
        "DELETE FROM cerebro.role_limit",
        "INSERT INTO cerebro.role_limit (role) VALUES (0)",
    ):
        ann.refused(statement)
    admin = town.user("limiter", "cerebro_admin")
    admin("SELECT cerebro.set_limits(%s, max_segments => 3)", ann.name)
    assert admin("SELECT max_segments, set_by::text FROM cerebro.role_limit") == [(3, admin.name)]
    admin.refused("UPDATE cerebro.role_limit SET max_segments = NULL")
    error = admin.refused("SELECT cerebro.set_limits('nobody')", why=errors.UndefinedObject)
    assert str(error).startswith("cerebro.set_limits: there is no role 'nobody'")
    admin.refused("SELECT cerebro.set_limits(%s, max_segments => -1)", ann.name, why=errors.CheckViolation)
    admin("SELECT cerebro.set_limits(%s)", ann.name)


@pytest.mark.parametrize("function", ["madlib_fit_multiple_model", "fit"])
def test_runs_and_segments(ann: User, limited: Any, function: str) -> None:
    statement = FIT.replace("madlib_fit_multiple_model", function)
    if function == "fit":
        statement = statement.replace("'mst', 1", "'mst', epochs => 1")
    limited(max_running_runs=0)
    assert refused(ann, statement) == "you have 0 runs under way, and may have 0 at once"
    limited(max_segments=1)
    assert refused(ann, statement) == "a run on 2 segments is more than you may have: 1 at once"
    assert ann("SELECT count(*) FROM cerebro.run") == [0]  # nothing was begun


def test_connections(town: Town, ann: User, limited: Any) -> None:
    most, taken = used(ann)["connections"]
    kept = max(3, town("SELECT current_setting('max_connections')::int")[0] // 10)
    limited(min_free_connections=most + kept - taken)
    message = refused(ann, FIT)
    assert message.startswith("3 worker connections are wanted, and the server has ")
    assert ann("SELECT count(*) FROM cerebro.run") == [0]
    limited(min_free_connections=0)
    assert used(ann)["connections"][0] == most + kept


def test_one_after_the_other(town: Town, ann: User, limited: Any) -> None:
    """With one run allowed a second waits for nobody, also when it is resumed; time and disk end a run, resumably."""
    limited(max_running_runs=1, max_segments=3)
    long = ann("SELECT fit('packed', 'long', 'mst', epochs => 3000, wait => false)")[0]
    try:
        assert used(ann)["running_runs"] == (1, 1) and used(ann)["segments"] == (3, 2)
        assert refused(ann, FIT) == "you have 1 runs under way, and may have 1 at once"
        limited(max_segments=3)
        assert refused(ann, FIT) == (
            "a run on 2 segments is more than you may have: 3 at once, and 2 are in use by your other runs"
        )
        eventually(lambda: used(ann)["state_bytes"][1] > 0, what="a state is stored")
        admin = town.user("ender", "cerebro_admin")
        error = admin.refused("SELECT cerebro.forget(%s)", long, why=errors.ObjectInUse)
        assert "is running" in str(error)
    finally:
        ann("SELECT cerebro.cancel(%s)", long)
    assert ann("SELECT cerebro.wait(%s, 30)", long) == ["cancelled"]

    limited(max_running_runs=0)
    assert refused(ann, "SELECT cerebro.resume(%s)", long).startswith("you have 0 runs under way")
    limited(max_state_bytes=1000)
    message = refused(ann, "SELECT cerebro.resume(%s)", long)
    assert "are more than the 1,000 that you may store" in message, message
    limited(max_run_seconds=2)
    error = ann.refused("SELECT cerebro.resume(%s)", long, why=errors.QueryCanceled)
    assert "took the 2 s that a run of yours may take" in str(error)
    assert "cerebro.resume" in error.diag.message_hint
    assert ann("SELECT status, message FROM cerebro.runs WHERE run = %s", long)[0][0] == "cancelled"
    limited()

    # Others cannot forget it, an administrator can: log and states are gone, nobody else's are.
    other = users.fit(ann, "other")
    watcher = town.user("watcher", "cerebro_monitor", "cerebro_user")
    watcher.refused("SELECT cerebro.forget(%s)", long)
    watcher.refused("SELECT cerebro_internal._forget(%s, %s)", long, ann.name)
    storage, kept = (town("SELECT storage FROM cerebro.run WHERE run = %s", number)[0] for number in (long, other))
    # A row that names another run's states does not make an admin drop them.
    mallory = town.user("mallory", "cerebro_user")
    mallory(
        "INSERT INTO cerebro.run (run, source_table, packed_table, model_table, selection_table, arch_table,"
        " epochs, evaluate_every, seed, segments, dist_keys, configurations, rows_per_epoch, storage,"
        " options, layout, packed_summary, version)"
        " VALUES (900001, 's', 'p', 'm', 'sel', 'a', 1, 1, 1, 1, '{0}', 1, 1, %s, '{}', '{}', '{}', 'v')",
        kept,
    )
    mallory("INSERT INTO cerebro.event (run, event) VALUES (900001, 'created'), (900001, 'finished')")
    leaves = "SELECT count(*) FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace AND relname LIKE %s"
    assert town(leaves, storage + "%")[0] > 0 and town(leaves, kept + "%")[0] > 0
    admin("SELECT cerebro.forget(900001)")
    admin("SELECT cerebro.forget(%s)", long)
    assert town(leaves, storage + "%") == [0] and town(leaves, kept + "%")[0] > 0
    for table in [
        "run",
        "event",
        "hop",
        "configuration",
        "model",
        "architecture",
        "attempt",
        "heartbeat",
        "evaluation",
        "decision",
        "request",
    ]:
        assert town(f"SELECT count(*) FROM cerebro.{table} WHERE run IN (%s, 900001)", long) == [0], table
    assert ann("SELECT run FROM cerebro.runs") == [other]
    admin.refused("SELECT cerebro.forget(%s)", long, why=errors.UndefinedObject)


def test_no_row_of_a_user_lifts_a_limit(town: Town, ann: User, limited: Any) -> None:
    """The log says what its owner writes; what is counted is the sessions that drive runs."""
    limited(max_running_runs=1, max_segments=3)
    long = ann("SELECT fit('packed', 'lasting', 'mst', epochs => 3000, wait => false)")[0]
    driver = eventually(lambda: ann("SELECT driver_pid FROM cerebro.runs WHERE run = %s AND status = 'running'", long))
    try:
        for forged in ("finished", "failed", "cancelled", "forgotten"):
            ann("INSERT INTO cerebro.event (run, event) VALUES (%s, %s)", long, forged)
            assert (used(ann)["running_runs"], used(ann)["segments"]) == ((1, 1), (3, 2)), forged
            assert 0 <= used(ann)["run_seconds"][1] < 600
            assert refused(ann, FIT) == "you have 1 runs under way, and may have 1 at once"
        (worker,) = town("SELECT rolname FROM pg_roles WHERE shobj_description(oid, 'pg_authid') LIKE 'drives run %'")
        ann.refused("SELECT cerebro_internal._note_run(%s, 1, 1)", worker)
        ann.refused(f"COMMENT ON ROLE {worker} IS NULL")
    finally:
        town("SELECT pg_terminate_backend(%s)", driver[0])
    eventually(lambda: used(ann)["running_runs"] == (1, 0), what="nothing drives the run")
    # Nor does what a user writes count as a run.
    ann("INSERT INTO cerebro.event (run, event, detail) SELECT %s, 'started', jsonb_build_object('pid', a.pid,"
        " 'backend_start', to_jsonb(a.backend_start)) FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()",
        long)  # fmt: skip
    assert ann("SELECT status FROM cerebro.runs WHERE run = %s", long) == ["running"]
    assert used(ann)["running_runs"] == (1, 0)


def test_two_at_once(town: Town, ann: User, limited: Any) -> None:
    """Both pass the first look; the claim counts them one after the other.  Neither would end before a cancel."""
    limited(max_running_runs=1)
    before = ann("SELECT count(*) FROM cerebro.runs")[0]
    ann("SELECT pg_advisory_lock(hashtextextended('cerebro_db owner ' || current_user, 0))")  # so none begins
    options = f"-c search_path={ann.name},cerebro,madlib -c statement_timeout=300s"
    both = [psycopg2.connect(ann.dsn, options=options) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        calls = {pool.submit(_outcome, one, f"twin{number}"): one for number, one in enumerate(both)}
        try:
            eventually(lambda: ann("SELECT count(*) FROM cerebro.runs")[0] == before + 2, 60, "both are on record")
            assert not wait(calls, 1).done and used(ann)["running_runs"] == (1, 0)  # both wait for the claim
            ann("SELECT pg_advisory_unlock_all()")
            ended, going_on = wait(calls, 60, FIRST_COMPLETED)
            assert [one.result() for one in ended] == ["you have 1 runs under way, and may have 1 at once"]
            assert used(ann)["running_runs"] == (1, 1)
        finally:
            ann("SELECT pg_advisory_unlock_all()")
            for one in both:
                one.cancel()
    assert [one.result() for one in going_on] == ["cancelled"]
    for one in both:
        one.close()
    eventually(lambda: used(ann)["running_runs"] == (1, 0), 30, "the session of the run has ended")


def _outcome(connection: Any, model_table: str) -> str:
    try:
        connection.cursor().execute(FIT.replace("none", model_table).replace(", 1)", ", 100000)"))
    except errors.ConfigurationLimitExceeded as error:
        return str(error.diag.message_primary).partition(": ")[2]
    except errors.QueryCanceled:
        return "cancelled"
    return "finished"


def limit_of(pid: int) -> str:
    (line,) = (line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if "Max data size" in line)
    return line.split()[3]


@pytest.mark.same_machine
def test_the_memory_of_trainers(ann: User, limited: Any) -> None:
    """The limit reaches the trainers of runs and of predictions; a trainer with another limit is not used again."""

    def trainers() -> set[int]:
        users.fit(ann, f"limited_{secrets.token_hex(3)}")
        return set(ann("SELECT DISTINCT trainer_pid FROM cerebro.hop WHERE run = (SELECT max(run) FROM cerebro.run)"))

    limited(max_trainer_mb=6000)
    assert ann("SELECT allowed, used FROM cerebro.limits WHERE name = 'trainer_mb'") == [(6000, None)]
    if ann.greenplum:  # there trainers end with their call
        run = users.fit(ann, f"limited_{secrets.token_hex(3)}", function="fit", epochs=10_000, wait=False)
        at_work = "SELECT trainer_pid FROM cerebro.hop WHERE run = %s"
        first = set(eventually(lambda: ann(at_work, run), 60, "a hop"))
        assert {limit_of(pid) for pid in first} == {str(6000 << 20)}
        ann("SELECT cerebro.cancel(%s)", run)
        ann("SELECT cerebro.wait(%s)", run)
        return
    first = trainers()
    assert {limit_of(pid) for pid in first} == {str(6000 << 20)}
    limited()
    second = trainers()
    assert second and not first & second
    assert {limit_of(pid) for pid in second} == {"unlimited"}


def test_models_are_cut_to_fit_into_the_limit_of_the_role(ann: User, limited: Any) -> None:
    """A run may ask for less memory than the role has, and not for more."""
    limited(max_trainer_mb=6000)
    for options in ({"memory_mb": 6001}, {"memory_mb": 2**31 - 1, "shard": 2}):
        for call in (
            "SELECT madlib_fit_multiple_model('packed', 'none', 'mst', 1, options => %s)",
            "SELECT cerebro.fit('packed', 'none', 'mst', epochs => 1, dry_run => true, options => %s)",
        ):
            message = refused(ann, call, json.dumps(options))
            assert message == f"memory_mb is {options['memory_mb']:,}, and your trainers may have 6,000 MB each"
    run = users.fit(ann, f"limited_{secrets.token_hex(3)}", options=json.dumps({"memory_mb": 6000}))
    assert ann("SELECT status FROM cerebro.runs WHERE run = %s", run) == ["finished"]
    limited()
    run = users.fit(ann, f"limited_{secrets.token_hex(3)}", options=json.dumps({"memory_mb": 6001, "shard": "never"}))
    assert ann("SELECT options ->> 'memory_mb' FROM cerebro.run_plan WHERE run = %s", run) == ["6001"]


@pytest.mark.same_machine
def test_nobody_can_leave_out_the_limit_of_memory(town: Town, ann: User, limited: Any) -> None:
    """By calling the worker's function with other settings, as another role, or with a GPU that is not there."""
    others = f"others_{town.mark}"
    town(f"CREATE ROLE {others}; GRANT cerebro_user TO {others}; GRANT {others} TO {ann.name}")
    open_worker = "SELECT cerebro_internal._worker_open(%s) ->> 'trainer_pid'"
    settings = {"engine": ENGINE, "threads": 1}
    town("SELECT cerebro.set_limits(NULL, max_trainer_mb => 9000)")
    try:
        for role, limits, allowed in (
            (ann.name, {}, 9000),
            (ann.name, {"max_trainer_mb": 6000}, 6000),
            (others, {"max_trainer_mb": 6000}, 6000),
            ("cerebro_user", {"max_trainer_mb": 6000}, 6000),
            (ann.name, {"max_segments": 9}, 9000),
        ):
            limited(**limits)
            ann(f"SET ROLE {role}")
            assert ann("SELECT allowed FROM cerebro.limits WHERE name = 'trainer_mb'") == [allowed]
            (pid,) = ann(open_worker, json.dumps(settings))
            ann(
                "SELECT cerebro_internal._work(%s)", '{"order": "inspect"}'
            )  # answered when the trainer has taken its settings
            assert limit_of(int(pid)) == str(allowed << 20), (role, limits)
            ann("SELECT cerebro_internal._worker_close()")  # a trainer serves one role
        for more, why in (
            ({"memory_limit_mb": 100_000}, "the settings.memory_limit_mb cannot be given"),
            ({"gpu": machine.gpus()}, f"there is no GPU {machine.gpus()} here"),
            ({"threads": 257}, "a trainer cannot have threads = 257"),
        ):
            error = ann.refused(open_worker, json.dumps({**settings, **more}), why=errors.InvalidParameterValue)
            assert why in str(error)
    finally:
        ann("SELECT cerebro_internal._worker_close(); RESET ROLE")
        town(f"DROP OWNED BY {others}; DROP ROLE {others}")


def test_a_session_leaves_others_as_much_room_as_it_takes(tmp_path: Path) -> None:
    for require, refused in ((require_disk, DiskFull), (require_shared_memory, OutOfResources)):
        room = machine.room(tmp_path) or 0
        require(tmp_path, 1, held=room // 4)
        with pytest.raises(refused):
            require(tmp_path, 1, held=room)
