"""Attempts of a plain user to act as another role.  None of them may succeed."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors
from psycopg2.extensions import make_dsn, parse_dsn

from tests.conftest import ENGINE, connect
from tests.sql.users import ARCHITECTURE, Town, User, equip, fit, town, worker_roles


@pytest.fixture(scope="module")
def people(server: str) -> Iterator[tuple[Town, User, User]]:
    """The superuser; alice, the attacker; bob, her victim.  alice and bob have each trained a run."""
    with town(server) as root:
        alice, bob = root.user("alice", "cerebro_user"), root.user("bob", "cerebro_user")
        for user in (alice, bob):
            user("CREATE TABLE secrets AS SELECT 'of ' || current_user AS text")
            equip(user)
            fit(user)
        yield root, alice, bob


@pytest.fixture
def root(people: Any) -> Town:
    return people[0]


@pytest.fixture
def alice(people: Any) -> User:
    return people[1]


@pytest.fixture
def bob(people: Any) -> User:
    return people[2]


def worker_of(root: Town, user: User) -> str:
    """How the names of the user's worker roles begin."""
    return root("SELECT 'cerebro_w_' || %s::regrole::oid || '_'", user.name)[0]


# -- attacks through search_path ---------------------------------------------------------------------------------


TAKEOVERS = {
    # The caller's search_path can give "text", "name" and "=" another meaning. This must not change the worker role.
    "an own type text": """
        CREATE TYPE {own}.text AS ENUM ('{bob}', 'cerebro_worker', '{database}');
        CREATE FUNCTION {own}.to_text(name) RETURNS {own}.text LANGUAGE sql AS $$
            SELECT CASE WHEN $1 = '{alice}' THEN '{bob}' ELSE '{database}' END::{own}.text $$;
        CREATE CAST (name AS {own}.text) WITH FUNCTION {own}.to_text(name) AS ASSIGNMENT;
        CREATE FUNCTION {own}.differ(name, {own}.text) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$;
        CREATE OPERATOR {own}.= (LEFTARG = name, RIGHTARG = {own}.text, FUNCTION = {own}.differ)""",
    "an own type name": """
        CREATE TYPE {own}.name AS ENUM ('{alice}', '{bob}');
        CREATE FUNCTION {own}.to_name({own}.name) RETURNS pg_catalog.name LANGUAGE sql AS
            $$ SELECT '{bob}'::pg_catalog.name $$;
        CREATE CAST ({own}.name AS pg_catalog.name) WITH FUNCTION {own}.to_name({own}.name) AS IMPLICIT""",
    "an own operator": """
        CREATE FUNCTION {own}.is_bob(name, name) RETURNS boolean LANGUAGE sql AS $$
            SELECT $1 OPERATOR(pg_catalog.=) '{bob}'::pg_catalog.name $$;
        CREATE OPERATOR {own}.= (LEFTARG = name, RIGHTARG = name, FUNCTION = {own}.is_bob)""",
    "own functions": """
        CREATE FUNCTION {own}.current_database() RETURNS name LANGUAGE sql AS $$ SELECT 'postgres'::name $$;
        CREATE FUNCTION {own}.concat(text, oid) RETURNS text LANGUAGE sql AS $$
            SELECT 'cerebro_w_'::text || '{bob}'::regrole::oid::text $$""",
    "own catalogs": """
        CREATE VIEW {own}.pg_roles AS SELECT * FROM pg_catalog.pg_roles WHERE rolname = '{bob}';
        CREATE VIEW {own}.pg_auth_members AS SELECT * FROM pg_catalog.pg_auth_members WHERE false""",
}


@pytest.mark.parametrize("game", TAKEOVERS)
def test_the_callers_search_path_has_no_say_in_who_the_worker_is(root: Town, alice: User, bob: User, game: str) -> None:
    """If alice acted as bob, the error would say that bob's run is finished.  As alice, she has no such run."""
    (bobs,) = bob("SELECT run FROM cerebro.runs")
    own = f"{alice.name}_games"
    root(f"CREATE SCHEMA {own}; ALTER SCHEMA {own} OWNER TO {alice.name}")
    try:
        with contextlib.closing(connect(alice.dsn)) as connection, connection.cursor() as cursor:
            (database,) = root("SELECT current_database()")
            planted = TAKEOVERS[game].format(own=own, alice=alice.name, bob=bob.name, database=database)
            cursor.execute("SET search_path = pg_catalog; " + planted)
            cursor.execute(f"SET search_path = {own}, pg_catalog")
            with pytest.raises(psycopg2.Error) as caught:
                cursor.execute(f"SELECT cerebro.resume({bobs})")
            assert "is finished" not in str(caught.value), "alice speaks as bob"
    finally:
        root(f"SET client_min_messages = warning; DROP SCHEMA {own} CASCADE")


# -- attacks through roles ---------------------------------------------------------------------------------------


def test_nobody_sets_borrows_or_becomes_a_role_that_is_not_theirs(root: Town, alice: User, bob: User) -> None:
    workers = [role for user in (alice, bob) for role in worker_roles(root, user.name)]
    superuser = root.root.info.user
    for role in [*workers, "cerebro_enrol", "cerebro_worker", "cerebro_admin", "cerebro_monitor", bob.name, superuser]:
        alice.refused(f"SET ROLE {role}")
        alice.refused(f"SET SESSION AUTHORIZATION {role}")
        alice.refused(f"ALTER ROLE {role} PASSWORD 'known'")
        alice.refused(f"ALTER ROLE {role} SET search_path = {alice.name}")
        alice.refused(f"GRANT {role} TO {alice.name}")
        alice.refused(f"DROP ROLE {role}")
    alice.refused(f"GRANT cerebro_user TO {bob.name}")
    alice.refused(f"CREATE ROLE cerebro_w_{root('SELECT max(oid::bigint) + 1 FROM pg_roles')[0]}")


@pytest.mark.parametrize("guess", ["", "cerebro", "alice's own", "the verifier"])
def test_worker_passwords_cannot_be_guessed(root: Town, alice: User, bob: User, guess: str) -> None:
    own_password = parse_dsn(alice.dsn)["password"]
    for role in (*worker_roles(root, alice.name), *worker_roles(root, bob.name), "cerebro_enrol"):
        (verifier,) = root("SELECT rolpassword FROM pg_authid WHERE rolname = %s", role)
        password = {"alice's own": own_password, "the verifier": verifier or ""}.get(guess, guess)
        with pytest.raises(psycopg2.OperationalError, match="authentication failed|no password supplied"):
            connect(make_dsn(**{**parse_dsn(alice.dsn), "user": role, "password": password})).close()


def test_what_only_the_server_calls_is_nobodys(root: Town, alice: User, bob: User) -> None:
    alice.refused("SELECT cerebro_internal._enrol(%s::regrole::oid, 'x')", alice.name)
    alice.refused("SELECT cerebro_internal._enrol(%s::regrole::oid, 'x')", root.root.info.user)
    alice.refused("SELECT cerebro_internal._setup_logins()")
    alice.refused("SELECT rolpassword FROM pg_authid")
    for read in ("pg_read_file", "pg_read_binary_file", "pg_stat_file"):
        alice.refused(f"SELECT {read}('cerebro_db/secret')")
    alice.refused("SELECT pg_ls_dir('cerebro_db')")
    alice.refused("SELECT lo_import('cerebro_db/secret')")
    alice("CREATE TEMP TABLE IF NOT EXISTS lines (line text)")
    alice.refused("COPY lines FROM 'cerebro_db/secret'")
    alice.refused("COPY lines FROM PROGRAM 'cat cerebro_db/secret'")
    alice.refused(
        "CREATE FUNCTION f() RETURNS text LANGUAGE plpython3u AS $$ return open('cerebro_db/secret').read() $$"
    )
    alice.refused("CREATE FUNCTION cerebro.doctor() RETURNS text LANGUAGE sql AS $$ SELECT '' $$")
    alice.refused("CREATE OR REPLACE VIEW cerebro.runs AS SELECT 1 AS run")
    alice.refused("ALTER EXTENSION cerebro_db UPDATE")


def test_the_secret_is_the_servers_alone(data_folder: Path, root: Town, alice: User) -> None:
    folder = data_folder / "cerebro_db"
    assert folder.stat().st_mode & 0o077 == 0 and (folder / "secret").stat().st_mode & 0o077 == 0
    (logged,) = root("SELECT current_setting('log_directory')")
    logs = b"".join(path.read_bytes() for path in (data_folder / logged).iterdir())
    assert logs and (folder / "secret").read_bytes() not in logs


# -- direct calls of the functions of worker sessions ------------------------------------------------------------

OPEN = f"""SELECT cerebro_internal._worker_open('{{"engine": "{ENGINE}", "threads": 1}}')"""
PATHS = [
    "/etc/passwd",
    "../../cerebro_db/secret",
    "../../../PG_VERSION",
    "a/../../b",
    "\n",
    "x" * 100_000,
    "'; DROP",
    "%s",
]


def test_a_trainer_is_opened_with_what_we_know_only(alice: User) -> None:
    for options in (
        {
            "order": "data",
            "handle": "h",
            "layout": {"inputs": [], "outputs": []},
            "rows": 0,
            "files": {"x": "/etc/passwd"},
        },
        {"order": "train", "out": "/tmp/stolen"},
        {"engine": "../../../tmp/evil"},
        {"engine": "os"},
        {"threads": "1; import os"},
        {"threads": 1, "PYTHONPATH": "/tmp"},
        {"gpu": "0\nLD_PRELOAD=/tmp/evil.so"},
        {"memory_limit_mb": True},
        [],
        "text",
        None,
    ):
        with pytest.raises(psycopg2.Error):
            alice("SELECT cerebro_internal._worker_open(%s)", json.dumps(options))
            (answer,) = alice("SELECT cerebro_internal._work(%s)", json.dumps({"order": "inspect"}))
            assert "there is no engine" in answer
            raise psycopg2.Error
        alice("SELECT cerebro_internal._worker_close()")


def test_handles_and_names_are_no_paths(data_folder: Path, alice: User) -> None:
    alice(OPEN)
    before = {path for path in data_folder.iterdir()}
    for path in PATHS:
        alice("SELECT cerebro_internal._data_in(%s, %s, %s)", path, path, b"1234")
        alice("SELECT cerebro_internal._state_in(%s, 0, %s)", path, b"1234")
        for work in (
            {"order": "drop_rows", "handle": path},
            {
                "order": "load_rows",
                "handle": path,
                "layout": {"inputs": [], "outputs": []},
                "rows": 0,
                "files": {"x": "/etc/passwd"},
            },
        ):
            alice.refused("SELECT 1 / (cerebro_internal._work(%s) IS NULL)::int", json.dumps(work), why=psycopg2.Error)
    assert {path for path in data_folder.iterdir()} == before
    for start in (-1, -(2**63), 2**63 - 1):
        alice.refused("SELECT cerebro_internal._state_in('t', %s, 'x')", start, why=psycopg2.Error)
    alice("SELECT cerebro_internal._worker_close()")


@pytest.mark.same_machine
def test_a_session_opens_no_more_files_than_it_needs(alice: User) -> None:
    """A backend without free descriptors cannot write the write-ahead log, and then the whole server stops."""
    alice("SELECT cerebro_internal._worker_close()")
    alice(OPEN)
    (pid,) = alice("SELECT pg_backend_pid()")
    before = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    alice("SELECT count(cerebro_internal._state_in(i::text, 0, 'x')) FROM generate_series(1, 2000) i")
    alice("SELECT count(cerebro_internal._data_in('h', i::text, 'x')) FROM generate_series(1, 2000) i")
    alice("SELECT count(cerebro_internal._data_in(i::text, 'x', 'x')) FROM generate_series(1, 500) i")
    assert len(list(Path(f"/proc/{pid}/fd").iterdir())) < before + 20
    alice("SELECT cerebro_internal._worker_close()")


def test_a_session_takes_states_only_for_a_trainer_and_not_without_end(alice: User) -> None:
    """What it takes lies in memory, and goes with the trainer."""
    alice(OPEN)
    alice("SELECT count(cerebro_internal._state_in(i::text, 0, 'x')) FROM generate_series(1, 4096) i")
    error = alice.refused("SELECT cerebro_internal._state_in('one more', 0, 'x')", why=errors.InvalidParameterValue)
    assert "4,096 states" in str(error)
    assert alice("SELECT cerebro_internal._state_in('7', 1, 'x')") == [1]  # more of a state that it has
    alice("SELECT cerebro_internal._worker_close()")


def test_a_process_that_was_not_opened_takes_no_orders(alice: User) -> None:
    alice("SELECT cerebro_internal._worker_close()")
    for call in (
        "_state_in('s', 0, 'x')",
        "_data_in('h', 'x', 'x')",
        '_work(\'{"order": "inspect"}\')',
        "_state_out(0, 0)",
        "_predict(1, ARRAY['x'::bytea])",
    ):
        error = alice.refused(f"SELECT cerebro_internal.{call}", why=psycopg2.Error)
        assert error.pgcode == "58M01" and "this process has no trainer" in str(error)
        assert "_worker_open" in error.diag.message_hint


def test_what_is_not_there_is_said_as_such(alice: User) -> None:
    alice("SELECT cerebro_internal._worker_open(%s)", json.dumps({"engine": ENGINE, "threads": 1}))
    for unit, member in ((0, 0), (1, -1), (-1, 2**31 - 1)):
        error = alice.refused("SELECT * FROM cerebro_internal._state_out(%s, %s)", unit, member, why=psycopg2.Error)
        assert error.diag.message_primary.endswith(f"visit {unit} of this session has left no state {member}")
    described = {
        "order": "describe", "configuration": {"architecture": json.loads(ARCHITECTURE)},
        "layout": {"inputs": [], "outputs": []},
    }  # fmt: skip
    (answer,) = alice("SELECT cerebro_internal._work(%s)", json.dumps({"order": "begin", "computation": described}))
    assert "ok" in json.loads(answer)
    (answer,) = alice("SELECT cerebro_internal._work(%s)", json.dumps({"order": "keep_engines", "engines": []}))
    assert "ok" in json.loads(answer)
    (answer,) = alice("SELECT cerebro_internal._work(%s)", json.dumps({"order": "collect_result"}))
    assert json.loads(answer)["error"]["message"] == "the trainer was given no order"
    alice("SELECT cerebro_internal._worker_close()")


def test_forged_work_reaches_nothing(alice: User) -> None:
    """Orders with forged paths, tokens and models: each answer is an error, or has no content of a file."""
    alice("SELECT cerebro_internal._worker_open(%s)", json.dumps({"engine": ENGINE, "threads": 1}))
    model = {
        "architecture": json.loads(ARCHITECTURE),
        "compile": {"optimizer": {"class_name": "SGD", "config": {}}, "loss": "mse"},
        "fit": {"batch_size": 1, "epochs": 1},
    }
    evil = {
        **model,
        "architecture": {"class_name": "Sequential", "config": {"layers": [{"class_name": "Lambda", "config": {}}]}},
    }
    member = {"configuration": 0, "seed": 1, "visits": [{"shuffle_seed": 1}], "state": {"origin": "seed"}}
    evaluate = {"order": "evaluate", "handle": "none", "configurations": [model]}
    train = {"order": "train", "handle": "none", "configurations": [model]}
    state = {"origin": "weights", "name": "none", "path": "/etc/passwd"}
    columns = [{"name": "x", "dtype": "uint8", "shape": [2]}]
    answers = []
    for work in (
        {**train, "groups": [{"members": [{**member, "out": "/tmp/stolen"}]}]},
        {**train, "groups": [{"members": [{**member, "state": state}]}]},
        {**train, "groups": [{"members": [member]}]},
        {**train, "groups": [{"members": [{**member, "configuration": 1}]}]},
        {**train, "groups": [{"members": [{**member, "evaluations": [{"handle": "another"}]}]}]},
        {**evaluate, "models": [{"configuration": 0, "state": {**state, "name": None}}]},
        {**evaluate, "models": [{"configuration": 0, "state": {"origin": "resident", "token": "1.1"}}]},
        {"order": "describe", "configuration": evil, "layout": {"inputs": columns, "outputs": []}},
        {"order": "load_rows", "handle": "none", "layout": {}, "rows": 1, "files": {"x": "/etc/passwd"}},
        {"order": "predict", "configuration": model, "state": state, "out": "/tmp/stolen", "handle": "none"},
        {"order": "start_engine", "settings": {"engine": "tensorflow"}, "compiled": "/tmp"},
        {"order": "begin", "computation": {"order": "rest", "seconds": 1, "folders": ["/"]}},
        {"order": "rest", "seconds": 1, "folders": ["/"]},
        {"order": "exec", "code": "import os"},
        {"order": "__init__"},
        {"order": "train"},
        {},
        {"order": ["train"]},
    ):
        try:
            (answer,) = alice("SELECT cerebro_internal._work(%s)", json.dumps(work))
        except psycopg2.Error as error:
            answer = str(error)
        else:
            assert "error" in json.loads(answer), work
        answers.append(answer)
    for text in ("[]", "7", "null", "{", "[" * 100_000, '{"order": "train"}', json.dumps({"order": "x" * 1_000_000})):
        with contextlib.suppress(psycopg2.Error):
            (answer,) = alice("SELECT cerebro_internal._work(%s)", text)
            assert "error" in json.loads(answer)
            answers.append(answer)
    assert "root:" not in "".join(answers)
    alice("SELECT cerebro_internal._worker_close()")
    assert alice("SELECT 1") == [1]


# -- code that alice planted -------------------------------------------------------------------------------------


SPIED = "what a spy found:"
SEEN: dict[Path, int] = {}  # for each log file, the bytes that were already searched


def spy(alice: User) -> None:
    """Create a function of alice's that records its role and the roles that it could take.  It ignores all errors.

    The function ``seen``, which calls it, is declared immutable, so PostgreSQL also calls it when it plans a query.
    """
    alice("CREATE TABLE spied (kind text, who name, began name, more boolean, reached text)")
    alice(f"GRANT INSERT ON spied TO PUBLIC; GRANT USAGE ON SCHEMA {alice.name} TO PUBLIC")
    alice(
        f"""
        CREATE FUNCTION look_around(kind text) RETURNS integer LANGUAGE plpgsql AS $$
        DECLARE
            mark    text := 'spy.k' || pg_catalog.md5(kind);
            role    text := pg_catalog.current_setting('role');
            me      name := current_user;
            reached text := '';
            named   text;
            more    boolean;
        BEGIN
            IF pg_catalog.current_setting(mark, true) = 'seen' THEN
                RETURN 1;
            END IF;
            PERFORM pg_catalog.set_config(mark, 'seen', false);
            FOR named IN SELECT rolname FROM pg_catalog.pg_roles WHERE rolname !~ '^pg_'
            LOOP
                BEGIN
                    PERFORM pg_catalog.set_config('role', named, true);
                    reached := reached || named || ' ';
                EXCEPTION WHEN OTHERS THEN NULL;
                END;
            END LOOP;
            FOREACH named IN ARRAY ARRAY['RESET SESSION AUTHORIZATION', 'RESET ROLE',
                'SET SESSION AUTHORIZATION postgres',
                'SELECT cerebro_internal._enrol(10, '''')', 'SELECT pg_read_file(''cerebro_db/secret'')',
                'SELECT rolpassword FROM pg_authid', 'ALTER ROLE {alice.name} SUPERUSER']
            LOOP
                BEGIN
                    EXECUTE named;
                    IF named !~ '^RESET' THEN
                        reached := reached || pg_catalog.replace(named, ' ', '_') || ' ';
                    END IF;
                EXCEPTION WHEN OTHERS THEN NULL;
                END;
            END LOOP;
            PERFORM pg_catalog.set_config('role', role, false);  -- not to be noticed
            more := (SELECT rolsuper OR rolcreaterole FROM pg_catalog.pg_roles WHERE rolname = session_user);
            BEGIN
                INSERT INTO {alice.name}.spied VALUES (kind, me, session_user, more, reached);
            EXCEPTION WHEN feature_not_supported THEN  -- on a segment of Greenplum: its log has to do
                RAISE LOG '{SPIED} {alice.name}|%|%|%|%|%|', kind, me, session_user, more, reached;
            END;
            RETURN 1;
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING 'spy: %', SQLERRM;
            RETURN 1;
        END
        $$;
        CREATE FUNCTION seen(kind text) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$
        BEGIN
            RETURN {alice.name}.look_around(kind);
        END
        $$
        """
    )


def caught(root: Town, alice: User, caller: User) -> set[str]:
    """The planted code that ran, after a check that it ran as its caller and could take only the caller's roles."""
    found = root(f"SELECT * FROM {alice.name}.spied") + logged_by_segments(root, alice)
    root(f"TRUNCATE {alice.name}.spied")
    worker = worker_of(root, caller)
    own = {caller.name, "cerebro_user", "cerebro_worker", "none"}
    if root.greenplum:
        own.add("SELECT_rolpassword_FROM_pg_authid")  # Greenplum's segments do not check privileges.
    for kind, who, began, more, reached in found:
        assert began == caller.name or began.startswith(worker), (kind, began)
        assert who in (caller.name, began), (kind, who, began)
        assert more in (False, "f"), (kind, more)
        assert set(reached.split()) <= {*own, began}, (kind, reached)
    return {kind for kind, *_ in found}


def logged_by_segments(root: Town, alice: User) -> list[tuple[str, ...]]:
    """The records of spies on Greenplum's segments, which write to the server log instead of a table."""
    if not root.greenplum:
        return []
    found = []
    (logs,) = root("SELECT current_setting('log_directory')")
    for folder in root("SELECT datadir FROM gp_segment_configuration WHERE role = 'p' AND content >= 0"):
        for file in Path(folder, logs).iterdir():
            seen = SEEN.setdefault(file, 0)
            text = file.read_bytes()[seen:]
            SEEN[file] += len(text)
            lines = re.findall(f"{SPIED} {alice.name}" + r"\|([^\n]*)\|", text.decode("utf-8", "replace"))
            found += [tuple(line.split("|")) for line in lines]
    return found


@pytest.fixture(scope="module")
def mallory(people: Any) -> User:
    """A user whose packed table has planted code in many places.  bob may read the table."""
    root, _, bob = people
    mallory = root.user("mallory", "cerebro_user")
    equip(mallory)
    spy(mallory)
    leaves = mallory("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'packed'::regclass")
    (leaf,) = leaves or ["packed"]
    for statement in (
        "ALTER TABLE packed ENABLE ROW LEVEL SECURITY; ALTER TABLE packed FORCE ROW LEVEL SECURITY",
        "CREATE POLICY spies ON packed USING (seen('policy') = 1)",
        "CREATE INDEX ON packed ((seen('index expression') + buffer_id))",
        "CREATE INDEX ON packed (buffer_id) WHERE seen('partial index') = 1",
        *(f"CREATE STATISTICS spies ON (seen('statistic') + buffer_id), buffer_id FROM {leaf}" for leaf in leaves),
        f"ALTER TABLE {leaf} ADD CHECK (seen('check constraint') = 1)",
        "CREATE VIEW viewed AS SELECT * FROM packed WHERE seen('view') = 1",
        "CREATE VIEW viewed_summary AS SELECT * FROM packed_summary WHERE seen('view of the summary') = 1",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {mallory.name} TO {bob.name}",
        "DELETE FROM spied",
    ):
        mallory(statement)
    mallory.log_in()  # In the old session, all planted code has already run.
    return mallory


@pytest.mark.parametrize("source", ["packed", "viewed"])
def test_planted_code_runs_as_the_victim_at_most(root: Town, bob: User, mallory: User, source: str) -> None:
    """Planted code may act as bob, as if bob read the table himself, but it cannot use the worker's login."""
    bob.log_in()  # A kept team would not evaluate the expressions again.
    (run,) = bob(f"SELECT cerebro.madlib_fit_multiple_model('{mallory.name}.{source}', 'from_{source}', 'mst', 1)")
    kinds = caught(root, mallory, bob)
    assert {"policy", "index expression", "partial index"} <= kinds
    assert source == "packed" or {"view", "view of the summary"} <= kinds
    assert bob("SELECT owner::text FROM cerebro.runs WHERE run = %s", run) == [bob.name]


def test_planted_code_on_the_own_states_runs_as_oneself(root: Town, mallory: User) -> None:
    """Triggers, defaults, checks and domains on the state tables, into which worker sessions write."""
    run = fit(mallory)
    assert caught(root, mallory, mallory)
    leaves = mallory(
        "SELECT oid::regclass::text FROM pg_class WHERE relname ~ '^run_' AND relkind = 'r'"
        " AND relowner = current_user::regrole"
    )
    assert leaves
    mallory(
        "CREATE FUNCTION triggered() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM seen('trigger'); RETURN NEW; END $$"
    )
    mallory("CREATE DOMAIN counted AS bigint CHECK (seen('domain') = 1)")
    for leaf in leaves:
        mallory(f"CREATE TRIGGER spies BEFORE INSERT ON {leaf} FOR EACH ROW EXECUTE FUNCTION triggered()")
        mallory(f"ALTER TABLE {leaf} ADD CHECK (seen('check of a state') = 1)")
        mallory(f"ALTER TABLE {leaf} ADD COLUMN more integer DEFAULT (seen('default'))")
        mallory(f"ALTER TABLE {leaf} ALTER COLUMN start TYPE counted")
    mallory("DELETE FROM spied")
    with contextlib.suppress(psycopg2.Error):
        mallory("SELECT cerebro.resume(%s, 3)", run)
    kinds = caught(root, mallory, mallory)
    assert kinds & {"trigger", "check of a state", "default", "domain"}


def test_whose_run_it_is_within_a_security_definer_function(root: Town, bob: User, mallory: User) -> None:
    """In mallory's SECURITY DEFINER function, called by bob, the runs and workers belong to mallory."""
    mallory("CREATE TABLE IF NOT EXISTS asked (who name)")
    mallory(
        "CREATE FUNCTION lure() RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$ DECLARE found text; BEGIN"
        " SELECT d.found INTO found FROM cerebro.doctor(1) d WHERE check_name = 'login'; RETURN found; END $$"
    )
    mallory("GRANT EXECUTE ON FUNCTION lure() TO PUBLIC")
    (found,) = bob(f"SELECT {mallory.name}.lure()")
    assert found.endswith(f"acts as {mallory.name}") and worker_of(root, mallory) in found


# -- forged rows, occupied names, settings -----------------------------------------------------------------------


def test_rows_of_others_cannot_be_forged_read_or_removed(root: Town, alice: User, bob: User) -> None:
    (bobs,) = bob("SELECT min(run) FROM cerebro.runs")
    tables = [
        "run",
        "architecture",
        "configuration",
        "model",
        "decision",
        "event",
        "attempt",
        "hop",
        "evaluation",
        "heartbeat",
        "profile",
        "request",
    ]
    counts = {
        table: root(f"SELECT count(*) FROM cerebro.{table} WHERE pg_get_userbyid(owner) = %s", bob.name)
        for table in tables
    }
    for table in tables:
        assert alice(f"SELECT DISTINCT owner::text FROM cerebro.{table}") in ([alice.name], []), table
        alice.refused(f"DELETE FROM cerebro.{table} WHERE run = %s", bobs)
        # Whoever may delete may lock the table against everybody, and hide that a run has begun.
        alice.refused(f"DELETE FROM cerebro.{table} WHERE true")
        for mode in ("SHARE", "EXCLUSIVE", "ACCESS EXCLUSIVE"):
            alice("BEGIN")
            alice.refused(f"LOCK TABLE cerebro.{table} IN {mode} MODE")
            alice("ROLLBACK")
        alice.refused(f"UPDATE cerebro.{table} SET owner = owner")
        alice.refused(f"TRUNCATE cerebro.{table}")
        alice.refused(
            f"CREATE TRIGGER t BEFORE UPDATE ON cerebro.{table} FOR EACH ROW"
            " EXECUTE FUNCTION suppress_redundant_updates_trigger()"
        )
        alice.refused(f"ALTER TABLE cerebro.{table} DISABLE ROW LEVEL SECURITY")
        alice.refused(f"CREATE RULE r AS ON INSERT TO cerebro.{table} DO INSTEAD NOTHING")
        alice.refused(f"CREATE POLICY p ON cerebro.{table} USING (true)")
    for owner in (bob.name, root.root.info.user, *worker_roles(root, bob.name)):
        alice.refused(
            "INSERT INTO cerebro.heartbeat (run, owner, rows_done, rows_total) VALUES (%s, %s, 1, 1)", bobs, owner
        )
        alice.refused("INSERT INTO cerebro.event (run, owner, event) VALUES (%s, %s, 'cancel requested')", bobs, owner)
        alice.refused("INSERT INTO cerebro.event (run, owner, event) VALUES (%s, %s, 'finished')", bobs, owner)
    # alice's own row with the number of bob's run concerns only alice.
    alice("INSERT INTO cerebro.event (run, event) VALUES (%s, 'failed')", bobs)
    assert bob("SELECT status FROM cerebro.runs WHERE run = %s", bobs) == ["finished"]
    assert counts == {
        table: root(f"SELECT count(*) FROM cerebro.{table} WHERE pg_get_userbyid(owner) = %s", bob.name)
        for table in tables
    }
    for call in ("cancel(%s)", "wait(%s, 0)", "forget(%s)", "resume(%s, 5)", "materialize(%s, 'stolen')",
                 "stop_model(%s, 1)", "extend(%s, 9)", "set_budget(%s, '{}')", "clone_model(%s, 1)"):  # fmt: skip
        error = alice.refused(f"SELECT cerebro.{call}", bobs, why=psycopg2.Error)
        assert bob.name not in str(error)
    for view in (
        "run_plan",
        "runs",
        "learning_curve",
        "leaderboard",
        "metrics",
        "run_progress",
        "hop_timeline",
        "run_time",
        "decisions",
        "requests",
    ):
        assert set(alice(f"SELECT owner::text FROM cerebro.{view}")) <= {alice.name}


def test_states_and_models_of_others_cannot_be_read(root: Town, alice: User, bob: User) -> None:
    leaves = root(
        "SELECT oid::regclass::text FROM pg_class WHERE relowner = %s::regrole AND relkind = 'r' AND relname ~ '^run_'",
        bob.name,
    )
    assert leaves
    for table in [*leaves, f"{bob.name}.models", f"{bob.name}.packed", f"{bob.name}.secrets"]:
        alice.refused(f"SELECT * FROM {table}")
        alice.refused(f"INSERT INTO {table} SELECT * FROM {table}")
        alice.refused(f"DROP TABLE {table}")
    for call in (
        f"madlib_fit_multiple_model('{bob.name}.packed', 'stolen', 'mst', 1)",
        f"madlib_keras_evaluate('{bob.name}.models', 'packed', 'stolen')",
        f"madlib_keras_predict('{bob.name}.models', 'points', 'id', 'x', 'stolen', mst_key => 1)",
        f"pack_plain('{bob.name}.points', 'stolen', 'y', 'x')",
        f"load_model_selection_table('{bob.name}.arch', 'stolen', ARRAY[1], ARRAY['x'], ARRAY['x'])",
        f"load_keras_model('{bob.name}.arch', '{{}}')",
        f"delete_keras_model('{bob.name}.arch', 1)",
    ):
        alice.refused(f"SELECT cerebro.{call}", why=psycopg2.Error)
    assert alice("SELECT to_regclass('stolen')") == [None]


def test_sequences_are_for_drawing_from_only(alice: User) -> None:
    for sequence in ("cerebro.run_id", "cerebro.event_id"):
        assert alice(f"SELECT nextval('{sequence}')")
        alice.refused(f"SELECT setval('{sequence}', 1)")
        alice.refused(f"SELECT last_value FROM {sequence}")
        alice.refused(f"ALTER SEQUENCE {sequence} RESTART")


def test_a_forged_run_drops_and_reads_only_what_is_ones_own(root: Town, alice: User, bob: User) -> None:
    """alice can write anything into the row of her run: bob's state tables, bob's table names, SQL."""
    storage = root("SELECT storage FROM cerebro.run WHERE pg_get_userbyid(owner) = %s", bob.name)[0]
    hostile = f"{bob.name}.packed; DROP TABLE {bob.name}.packed; --"
    (run,) = alice(
        "INSERT INTO cerebro.run SELECT nextval('cerebro.run_id'), owner, name, description, created_at, %s, %s, NULL,"
        " %s, selection_table, arch_table, epochs, evaluate_every, seed, segments, dist_keys, configurations,"
        " rows_per_epoch, %s, options, layout, validation_layout, NULL, packed_summary, version"
        " FROM cerebro.run LIMIT 1 RETURNING run",
        hostile,
        hostile,
        f'"{alice.name}"."x""; DROP TABLE {bob.name}.packed; --"',
        storage,
    )
    alice("INSERT INTO cerebro.event (run, event) VALUES (%s, 'created')", run)
    for call in ("resume(%s)", "materialize(%s, 'stolen')"):
        alice.refused(f"SELECT cerebro.{call}", run, why=psycopg2.Error)
    (tables,) = root("SELECT count(*) FROM pg_class WHERE relname ~ ('^' || %s)", storage)
    alice("SELECT cerebro.forget(%s)", run)  # her row goes, and nothing of bob's
    assert root("SELECT count(*) FROM cerebro.run WHERE run = %s", run) == [0]
    assert root("SELECT count(*) FROM pg_class WHERE relname ~ ('^' || %s)", storage) == [tables] and tables > 0
    assert bob("SELECT count(*) FROM packed")[0] > 0


def test_only_the_owner_of_a_run_can_have_it_forgotten(root: Town, alice: User, bob: User) -> None:
    (bobs,) = bob("SELECT min(run) FROM cerebro.runs")
    alice.refused("SELECT cerebro_internal._forget(%s, %s)", bobs, bob.name)
    alice.refused("INSERT INTO cerebro.event (run, owner, event) VALUES (%s, %s, 'forgotten')", bobs, bob.name)
    alice("INSERT INTO cerebro.event (run, event) VALUES (%s, 'forgotten')", bobs)
    alice("SELECT cerebro_internal._forget_own(%s, %s)", bobs, bob.name)
    assert root("SELECT count(*) FROM cerebro.run WHERE run = %s AND owner = %s::regrole", bobs, bob.name) == [1]
    alice("SELECT cerebro_internal._forget_own(%s, %s)", bobs, alice.name)  # removes her event
    assert root(
        "SELECT count(*) FROM cerebro.event WHERE run = %s AND pg_get_userbyid(owner) = %s", bobs, alice.name
    ) == [0]


def test_nobody_can_foresee_the_names_of_states(root: Town) -> None:
    names = root("SELECT storage FROM cerebro.run")
    assert all(len(name) == len("run_") + 12 for name in names) and len(set(names)) == len(names)
    public = (
        "SELECT bool_or(has_schema_privilege('public', 'cerebro_state', p)) FROM unnest(ARRAY['USAGE', 'CREATE']) p"
    )
    assert root(public) == [False]


def test_a_planted_view_is_not_taken_for_a_state(root: Town, alice: User, bob: User) -> None:
    """A large state that a model starts from has a table of its own. Bob knows its name once the run is there."""
    fit(alice, "warm")
    run = fit(alice, "warm", warm_start=True)
    (storage,) = root("SELECT storage FROM cerebro.run WHERE run = %s", run)
    bob(f"GRANT USAGE ON SCHEMA {bob.name} TO PUBLIC; CREATE TABLE ran (who text); GRANT INSERT ON ran TO PUBLIC")
    bob(
        "CREATE FUNCTION spy() RETURNS bytea LANGUAGE plpgsql AS"
        f" $$ BEGIN INSERT INTO {bob.name}.ran VALUES (current_user); RETURN ''; END $$"
    )
    view = f'cerebro_state."{storage}_1_0"'
    bob(f"CREATE VIEW {view} AS SELECT 0 AS __dist_key__, 0 AS hop, 0::bigint AS start, spy() AS payload")
    bob(f"GRANT SELECT ON {view} TO PUBLIC")
    # As if the run had been interrupted before its first hop.
    root("DELETE FROM cerebro.hop WHERE run = %s", run)
    root("DELETE FROM cerebro.event WHERE run = %s AND event IN ('finished', 'materialized')", run)
    alice.refused("SELECT cerebro.resume(%s)", run, why=psycopg2.Error)
    assert bob("SELECT who FROM ran") == []
    bob(f"DROP VIEW {view}; DROP TABLE ran; DROP FUNCTION spy()")
    alice("SELECT cerebro.forget(%s); DROP TABLE warm, warm_info, warm_summary", run)


@pytest.mark.parametrize("value", ["9999999", "-1", "0", "x; DROP TABLE points", "9" * 5000, "\u0669", ""])
def test_settings_of_ours_are_checked_when_used(alice: User, value: str) -> None:
    alice("SELECT set_config('cerebro.segments', %s, false)", value)
    try:
        alice("DROP TABLE IF EXISTS again, again_summary")
        if value in ("", "\u0669"):  # no value; the digit nine in Arabic script
            alice("SELECT cerebro.pack_plain('points', 'again', 'y', 'x')")
        else:
            error = alice.refused(
                "SELECT cerebro.pack_plain('points', 'again', 'y', 'x')", why=errors.InvalidParameterValue
            )
            assert "cerebro.segments" in str(error) and len(str(error)) < 1000
    finally:
        alice("RESET cerebro.segments")


@pytest.mark.parametrize(
    "name", ['"; DROP TABLE points; --"', '"a\'b"', '"%s%%(x)s"', '"$1"', '"\\"', '"Ünï 表"', '"pg_temp"', '"a.b"']
)
def test_hostile_names_are_only_names(alice: User, name: str) -> None:
    alice(f"CREATE TABLE {name.replace('%', '%')} AS SELECT x, y, id AS {name} FROM points")
    try:
        alice("SELECT cerebro.pack_plain(%s, 'hostile', 'y', %s, segments => 1)", name, f"x, {name}")
        assert alice("SELECT count(*) FROM hostile")[0] > 0
        assert alice("SELECT inputs FROM hostile_summary")
    finally:
        alice("DROP TABLE IF EXISTS hostile, hostile_summary")
        alice(f"DROP TABLE {name}")
    assert alice("SELECT count(*) FROM points") == [40]


def test_a_temporary_table_does_not_stand_in_for_a_real_one(alice: User) -> None:
    with contextlib.closing(connect(alice.dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET search_path = {alice.name}, cerebro, madlib")
        cursor.execute(
            "CREATE TEMP TABLE packed AS SELECT * FROM packed;"
            " CREATE TEMP TABLE packed_summary AS SELECT * FROM packed_summary"
        )
        with pytest.raises(errors.FeatureNotSupported, match="temporary"):
            workers = """options => '{"execution": "workers"}'"""
            cursor.execute(f"SELECT cerebro.madlib_fit_multiple_model('packed', 'm2', 'mst', 1, {workers})")
        for name in ("pg_roles", "pg_auth_members", "pg_class", "run", "runs"):
            cursor.execute(f"CREATE TEMP TABLE {name} (x int)")
        cursor.execute("SELECT found FROM cerebro.doctor(1) WHERE check_name = 'login'")
        assert cursor.fetchone()[0].endswith(f"acts as {alice.name}")


# -- roles and schemas from before the extension -----------------------------------------------------------------


@pytest.fixture
def bare(server: str) -> Iterator[Any]:
    """A database without the extension."""
    name = "t_bare"
    with contextlib.closing(connect(server)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        try:
            with contextlib.closing(connect(make_dsn(**{**parse_dsn(server), "dbname": name}))) as there:
                yield there.cursor()
        finally:
            cursor.execute(f"DROP DATABASE {name}")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ALTER ROLE cerebro_user SUPERUSER", "ALTER ROLE cerebro_user NOSUPERUSER"),
        ("ALTER ROLE cerebro_monitor CREATEROLE", "ALTER ROLE cerebro_monitor NOCREATEROLE"),
        ("ALTER ROLE cerebro_worker LOGIN", "ALTER ROLE cerebro_worker NOLOGIN"),
        ("ALTER ROLE cerebro_enrol SUPERUSER", "ALTER ROLE cerebro_enrol NOSUPERUSER"),
        ("GRANT pg_read_server_files TO cerebro_user", "REVOKE pg_read_server_files FROM cerebro_user"),
        ("GRANT cerebro_admin TO cerebro_user", "REVOKE cerebro_admin FROM cerebro_user"),
        ("CREATE ROLE squatter; GRANT cerebro_enrol TO squatter", "DROP ROLE squatter"),
        ("CREATE ROLE squatter; GRANT cerebro_worker TO squatter WITH ADMIN OPTION", "DROP ROLE squatter"),
    ],
)
def test_roles_of_our_names_that_may_more_are_refused(people: Any, bare: Any, before: str, after: str) -> None:
    # cerebro_admin is a member of cerebro_user, so PostgreSQL would refuse this grant as a circle.
    circle = "cerebro_admin TO cerebro_user" in before
    if circle:
        bare.execute("REVOKE cerebro_user FROM cerebro_admin")
    bare.execute(before)
    try:
        with pytest.raises(errors.DuplicateObject, match="exists already"):
            bare.execute("CREATE EXTENSION cerebro_db CASCADE")
        bare.execute("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'cerebro%'")
        assert bare.fetchone() == (0,)
    finally:
        bare.execute(after)
        if circle:
            bare.execute("GRANT cerebro_user TO cerebro_admin")


@pytest.mark.parametrize("game", ["owned", "writable", "planted"])
def test_a_schema_of_our_name_that_others_write_to_is_refused(people: Any, bare: Any, game: str) -> None:
    """A function format() in this schema would run with the rights of the superuser who creates the extension."""
    trap = (
        "CREATE FUNCTION cerebro.format(text, text) RETURNS text LANGUAGE plpgsql AS"
        " $$ BEGIN EXECUTE 'ALTER ROLE squatter SUPERUSER'; RETURN 'CREATE ROLE x'; END $$"
    )
    bare.execute("CREATE ROLE squatter")
    try:
        if game == "owned":
            bare.execute("CREATE SCHEMA cerebro; ALTER SCHEMA cerebro OWNER TO squatter")
        else:
            bare.execute("CREATE SCHEMA cerebro; GRANT CREATE, USAGE ON SCHEMA cerebro TO squatter")
        bare.execute(f"SET ROLE squatter; {trap}; RESET ROLE")
        if game == "planted":
            bare.execute("REVOKE CREATE ON SCHEMA cerebro FROM squatter")
        with pytest.raises(errors.DuplicateSchema, match="have a hand in it"):
            bare.execute("CREATE EXTENSION cerebro_db CASCADE")
        bare.execute("SELECT rolsuper FROM pg_roles WHERE rolname = 'squatter'")
        assert bare.fetchone() == (False,)
    finally:
        bare.execute(
            "RESET ROLE; SET client_min_messages = warning; DROP SCHEMA cerebro CASCADE; DROP OWNED BY squatter"
        )
        bare.execute("DROP ROLE squatter")


def test_a_worker_role_that_somebody_squatted_is_not_used(root: Town) -> None:
    """A user who created a role with such a name earlier, and is a member of it, must not get the rights of carol."""
    carol, squatter = root.user("carol", "cerebro_user"), root.user("squatter", "cerebro_user")
    squatted = worker_of(root, carol) + "abc"
    root(f"CREATE ROLE {squatted} LOGIN CREATEROLE PASSWORD 'known'; GRANT {squatted} TO {squatter.name}")
    (found,) = carol("SELECT found FROM cerebro.doctor(1) WHERE check_name = 'login'")
    assert found.endswith(f"acts as {carol.name}") and squatted not in found
    assert root("SELECT count(*) FROM pg_auth_members WHERE member = %s::regrole", squatted) == [0]
    squatter(f"SET ROLE {squatted}")
    squatter.refused(f"SET ROLE {carol.name}")
    with pytest.raises(psycopg2.OperationalError, match="authentication failed|no pg_hba.conf entry|does not exist"):
        connect(make_dsn(**{**parse_dsn(carol.dsn), "user": worker_of(root, carol), "password": "known"})).close()
