"""Who may what: the whole privilege matrix against a file, and what follows from it for users and monitors.

    CEREBRO_WRITE_PRIVILEGES=1 pytest tests/sql/rights/test_privileges.py -k matrix

writes the file anew; read the difference before it is committed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.sql.users import Town, User, equip, fit, town

MATRIX = Path(__file__).with_name("privileges.txt")
ON_GREENPLUM = Path(__file__).with_name("privileges_greenplum.txt")  # what is there besides
ROLES = (
    "public",
    "cerebro_user",
    "cerebro_monitor",
    "cerebro_admin",
    "cerebro_worker",
    "cerebro_enrol",
    "cerebro_registry",
)

# What each role has in effect, its memberships included.
EFFECTIVE = """
WITH role AS (SELECT unnest(%(roles)s) AS role), object AS (
    SELECT 'schema' AS kind, nspname::text AS object, oid, ARRAY['USAGE', 'CREATE'] AS privileges
      FROM pg_namespace
     WHERE nspname IN ('cerebro', 'cerebro_bi', 'cerebro_data', 'cerebro_internal', 'cerebro_optuna',
                       'cerebro_registry', 'cerebro_state')
     UNION ALL
    SELECT 'function', oid::regprocedure::text, oid, ARRAY['EXECUTE']
      FROM pg_proc WHERE pronamespace IN ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace)
     UNION ALL
    SELECT CASE relkind WHEN 'v' THEN 'view' ELSE 'table' END, oid::regclass::text, oid,
           ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']
      FROM pg_class
     WHERE relnamespace::regnamespace::text IN ('cerebro', 'cerebro_internal', 'cerebro_bi', 'cerebro_optuna')
       AND relkind IN ('r', 'p', 'v', 'm', 'f')
     UNION ALL
    SELECT 'sequence', oid::regclass::text, oid, ARRAY['USAGE', 'SELECT', 'UPDATE']
      FROM pg_class WHERE relnamespace = 'cerebro'::regnamespace AND relkind = 'S'
     UNION ALL
    SELECT 'type', t.oid::regtype::text, t.oid, ARRAY['USAGE']
      FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid
     WHERE t.typnamespace = 'cerebro_internal'::regnamespace AND c.relkind = 'c'
)
SELECT kind, object, role, privilege,
       CASE kind WHEN 'schema' THEN has_schema_privilege(role, oid, privilege)
                 WHEN 'function' THEN has_function_privilege(role, oid, privilege)
                 WHEN 'sequence' THEN has_sequence_privilege(role, oid, privilege)
                 WHEN 'type' THEN has_type_privilege(role, oid, privilege)
                 ELSE has_table_privilege(role, oid, privilege) END
  FROM object CROSS JOIN role CROSS JOIN LATERAL unnest(privileges) WITH ORDINALITY AS p (privilege, place)
 ORDER BY kind, object, array_position(%(roles)s, role), place
"""


@pytest.fixture(scope="module")
def people(server: str) -> Iterator[tuple[Town, User, User, User, User]]:
    """The superuser, two who have trained, a monitor and an admin."""
    with town(server) as root:
        anna, ben = root.user("anna", "cerebro_user"), root.user("ben", "cerebro_user")
        for user in (anna, ben):
            equip(user)
            fit(user)
        yield root, anna, ben, root.user("mona", "cerebro_monitor"), root.user("adam", "cerebro_admin")


def matrix(root: Town) -> str:
    """A line for each object; below it, who has what of it."""
    with root.root.cursor() as cursor:
        cursor.execute("SET search_path = pg_catalog; " + EFFECTIVE, {"roles": list(ROLES)})
        held: dict[tuple[str, str], dict[str, list[str]]] = {}
        for kind, name, role, privilege, has in cursor:
            of_all = held.setdefault((kind, name), {})
            if has:
                of_all.setdefault(role, []).append(privilege)
    order = ("schema", "function", "table", "view", "sequence", "type")
    lines = []
    for kind, name in sorted(held, key=lambda one: (order.index(one[0]), one[1])):
        lines.append(f"{kind} {name}" if held[kind, name] else f"{kind} {name}: nobody's")
        for role, privileges in held[kind, name].items():
            lines.append(f"    {role}: {', '.join(privileges)}")
    return "\n".join(lines) + "\n"


def test_the_whole_matrix(server: str) -> None:
    with town(server) as root:
        found = matrix(root)
        greenplum = root.greenplum
    if os.environ.get("CEREBRO_WRITE_PRIVILEGES"):
        if greenplum:
            more = blocks(found).items() - blocks(MATRIX.read_text()).items()
            ON_GREENPLUM.write_text("".join(f"{what}\n{who}" for what, who in sorted(more)))
        else:
            MATRIX.write_text(found)
    wanted = {**blocks(MATRIX.read_text()), **(blocks(ON_GREENPLUM.read_text()) if greenplum else {})}
    assert blocks(found) == wanted, "privileges have changed: look at each, then write the file anew"
    assert "public" not in found.replace("public.", "")


def blocks(text: str) -> dict[str, str]:
    """Object to who may what."""
    return dict(re.findall(r"^(\S.*)\n((?: .*\n)*)", text, re.MULTILINE))


def test_public_may_do_nothing(server: str) -> None:
    with town(server) as root:
        nobody = root.user("nobody")
        for relation in root(
            "SELECT relnamespace::regnamespace || '.' || relname FROM pg_class WHERE relkind IN ('r', 'v')"
            " AND relnamespace IN ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace)"
        ):
            nobody.refused(f"SELECT * FROM {relation}")
        for call in (
            "doctor()",
            "resume(1)",
            "cancel(1)",
        ):
            nobody.refused(f"SELECT cerebro.{call}")
        for call in (
            "_sessions()",
            "_work('{}')",
            "_enrol(10, 'x')",
            "_close_login('postgres')",
            "_drop_worker_roles()",
        ):
            nobody.refused(f"SELECT cerebro_internal.{call}")
        nobody.refused("CREATE TABLE cerebro_state.x ()")
        nobody.refused("CREATE TABLE cerebro_data.x ()")
        assert root("SELECT count(*) FROM pg_namespace WHERE nspname = 'cerebro'") == [1]


def test_everything_in_the_extension_is_granted_to_nobody_by_default(server: str) -> None:
    with town(server) as root:
        root("SET search_path = pg_catalog")
        by_default = root(
            "SELECT oid::regprocedure::text FROM pg_proc"
            " WHERE pronamespace IN ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace)"
            " AND (proacl IS NULL OR has_function_privilege('public', oid, 'EXECUTE'))"
        )
        assert by_default == []


def test_everything_has_a_comment(server: str) -> None:
    with town(server) as root:
        root("SET search_path = pg_catalog")
        assert (
            root(
                "SELECT oid::regprocedure::text FROM pg_proc"
                " WHERE pronamespace IN ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace)"
                " AND obj_description(oid, 'pg_proc') IS NULL"
            )
            == []
        )
        assert (
            root(
                "SELECT oid::regclass::text FROM pg_class"
                " WHERE relnamespace IN ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace)"
                " AND relkind IN ('r', 'p', 'v', 'm') AND obj_description(oid, 'pg_class') IS NULL"
            )
            == []
        )
        assert (
            root(
                "SELECT rolname FROM pg_roles WHERE rolname = ANY (%s) AND shobj_description(oid, 'pg_authid') IS NULL",
                list(ROLES[1:]),
            )
            == []
        )


def test_security_definer_functions_pin_their_search_path(server: str) -> None:
    """docs/security.md says what each of them is for."""
    with town(server) as root:
        root("SET search_path = pg_catalog")
        found = root(
            "SELECT oid::regprocedure::text, proconfig FROM pg_proc"
            " WHERE prosecdef AND pronamespace IN ('cerebro'::regnamespace, 'cerebro_internal'::regnamespace)"
        )
    assert {name for name, _ in found} == {
        "cerebro_internal._dismiss_waiting()",
        "cerebro_internal._enrol(oid,text)",
        "cerebro_internal._as_registry()",
        "cerebro_internal._close_login(name)",
        "cerebro_internal._code_folder()",
        "cerebro_internal._drop_architecture(text,name)",
        "cerebro_internal._drop_worker_roles()",
        "cerebro_internal._forget(bigint,name)",
        "cerebro_internal._forget_own(bigint,name)",
        "cerebro_internal._note_run(name,bigint,integer)",
        "cerebro_internal._reals(bytea)",
        "cerebro_internal._queue()",
        "cerebro_internal._sessions()",
        "cerebro_internal._smallints(bytea)",
        "cerebro_internal._trim_profile(name)",
        "cerebro_internal._trainer_limit(name,name)",
    }
    assert all("search_path=pg_catalog, pg_temp" in settings for _, settings in found)


def test_the_owner_of_the_registry_s_function_has_few_rights(server: str) -> None:
    """It reads and writes what the registry consists of, and can be nobody."""
    with town(server) as root:
        owner = "SELECT pg_get_userbyid(proowner)::text FROM pg_proc WHERE proname = '_as_registry'"
        assert root(owner) == ["cerebro_registry"]
        assert root(
            "SELECT count(*) FROM pg_auth_members a JOIN pg_roles r ON r.oid IN (a.roleid, a.member)"
            " WHERE r.rolname = 'cerebro_registry'"
        ) == [0]
        assert root(
            "SELECT DISTINCT relnamespace::regnamespace::text FROM pg_class"
            " WHERE relowner = 'cerebro_registry'::regrole AND relkind IN ('r', 'v', 'S', 'm', 'p', 'f')"
        ) in ([], ["cerebro_registry"])  # fmt: skip


def test_tables_with_rows_of_several_owners_have_row_level_security(server: str) -> None:
    with town(server) as root:
        root("SET search_path = pg_catalog")
        assert (
            root(
                "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'owner'"
                " WHERE relnamespace = 'cerebro'::regnamespace AND relkind IN ('r', 'p') AND NOT relrowsecurity"
                " AND has_table_privilege('cerebro_admin', c.oid, 'SELECT, INSERT, UPDATE, DELETE')"
            )
            == []
        )
        assert root(
            "SELECT relname FROM pg_class WHERE relnamespace = 'cerebro'::regnamespace AND relkind = 'v'"
            " AND NOT COALESCE('security_barrier=true' = ANY (reloptions), false)"
        ) == ["custom_functions"], "custom functions are everybody's"


VIEWS = (
    "run_plan",
    "runs",
    "learning_curve",
    "leaderboard",
    "metrics",
    "run_progress",
    "hop_timeline",
    "segments_now",
    "run_time",
)


def test_what_one_writes_about_a_run_breaks_nobodys_views(people: Any) -> None:
    """Users may write rows about their own runs, and views compute with everybody's."""
    root, anna, ben, *_ = people
    (run,) = anna("SELECT run FROM cerebro.runs")
    wrong = (psycopg2.errors.CheckViolation, psycopg2.DataError)
    for event, detail in (
        ("started", '{"pid": "mine"}'),
        ("finished", '{"pid": 1e99}'),
        ("started", '{"pid": 1, "backend_start": "20/11/2026 01:02:03+00"}'),
        ("started", '{"pid": 1, "backend_start": "infinity"}'),
        ("extended", '{"epochs": "all"}'),
        ("extended", '{"epochs": -2}'),
        ("built", '{"parameters": "many"}'),
    ):
        anna.refused(
            "INSERT INTO cerebro.event (run, event, detail) VALUES (%s, %s, %s)", run, event, detail, why=wrong
        )
    anna.refused("INSERT INTO cerebro.event (run, event, at) VALUES (%s, 'finished', 'infinity')", run, why=wrong)
    for columns, values in (("visits", "'{}'"), ("parent", "1"), ("parent_hop", "1")):
        anna.refused(
            f"INSERT INTO cerebro.model (run, model, configuration, seed, initial, {columns})"
            f" VALUES (%s, 9, 1, 1, 'random', {values})",
            run,
            why=wrong,
        )
    anna.refused(
        "INSERT INTO cerebro.decision (run, model, epoch, at, decision, policy)"
        " VALUES (%s, 1, 1, 'infinity', 'stop', 'p')",
        run,
        why=wrong,
    )
    anna.refused("INSERT INTO cerebro.heartbeat (run, rows_done, rows_total) VALUES (%s, -1, 9e18)", run, why=wrong)
    anna.refused("INSERT INTO cerebro.attempt (run, model, hop, segment) VALUES (%s, 1, -9, 0)", run, why=wrong)
    for column, value in (
        ("loss", "1e308"),
        ("metric", "-1e308"),
        ("metric_states", "repeat('x', 4000000)"),
        ("rows", "9e18"),
        ("started_at", "'-infinity'"),
        ("seconds", '\'{"train": "long"}\''),
        ("seconds", "'{\"save\": 1e300}'"),
    ):
        columns = root("SELECT attname FROM pg_attribute WHERE attrelid = 'cerebro.hop'::regclass AND attnum > 0")
        values = ", ".join(value if c == column else "1000" if c == "hop" else f'"{c}"' for c in columns)
        anna.refused(f"INSERT INTO cerebro.hop SELECT {values} FROM cerebro.hop LIMIT 1", why=wrong)
    # Of lists, the view shows what is a number.
    columns = root("SELECT attname FROM pg_attribute WHERE attrelid = 'cerebro.hop'::regclass AND attnum > 0")
    own = {"hop": "2000", "epoch": "77"}
    for metrics in ("1", "[]", '{"c": {"d": 1}}', '{"c": "x"}'):
        values = ", ".join({**own, "metrics": f"'{metrics}'"}.get(c, f'"{c}"') for c in columns)
        anna.refused(f"INSERT INTO cerebro.hop SELECT {values} FROM cerebro.hop LIMIT 1", why=wrong)
    odd = '{"a": 1e400, "b": [1e-400, "x", [2], null], "e": [], "f1_score": [1, 2, 3, 4]}'
    values = ", ".join({**own, "metrics": f"'{odd}'"}.get(c, f'"{c}"') for c in columns)
    anna(f"INSERT INTO cerebro.hop SELECT {values} FROM cerebro.hop LIMIT 1")
    assert sorted(anna("SELECT metric FROM cerebro.metrics WHERE epoch = 77 AND value IS NOT NULL")) == sorted([
        "b[0]", "f1_score", "f1_score[down]", "f1_score[up]", "f1_score[2]", "f1_score[3]", "loss",
    ])  # fmt: skip
    monitor = people[3]
    shown = set(monitor("SELECT metric FROM cerebro.metrics WHERE epoch = 77"))
    assert {"f1_score[0]", "f1_score[1]"} < shown and not {"f1_score[up]", "f1_score[down]"} & shown, "classes are data"
    no_segments = """jsonb_populate_record(r, '{"run": 9, "segments": 0}')"""
    anna.refused(
        f"INSERT INTO cerebro.run SELECT (x.bad).* FROM (SELECT {no_segments} AS bad FROM cerebro.run r) x", why=wrong
    )
    for user in (root, anna, ben):
        for view in VIEWS:
            user(f"SELECT count(*) FROM cerebro.{view}")


def test_each_sees_and_drives_their_own(people: Any) -> None:
    root, anna, ben, *_ = people
    for user, other in ((anna, ben), (ben, anna)):
        for view in VIEWS:
            assert set(user(f"SELECT DISTINCT owner::text FROM cerebro.{view}")) == {user.name}, view
        (theirs,) = other("SELECT run FROM cerebro.runs")
        for call in ("cancel(%s)", "wait(%s, 0)", "forget(%s)", "resume(%s, 5)", "materialize(%s, 'x')"):
            user.refused(f"SELECT cerebro.{call}", theirs, why=psycopg2.errors.UndefinedObject)
        # A view's filter comes before the user's own conditions, however cheap and talkative those are.
        user(
            "CREATE OR REPLACE FUNCTION told(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS"
            " $$ BEGIN RAISE NOTICE '%', $1; RETURN true; END $$"
        )
        user("SELECT count(*) FROM cerebro.runs WHERE told(source_table)")
        assert not any(other.name in notice for notice in user.connection.notices)


def test_a_monitor_sees_the_metrics_of_all_and_nothing_else(people: Any) -> None:
    root, anna, ben, mona, _ = people
    for view in VIEWS:
        assert {anna.name, ben.name} <= set(mona(f"SELECT DISTINCT owner::text FROM cerebro.{view}")), view
    assert mona("SELECT count(*) FROM cerebro.leaderboard WHERE training_loss IS NOT NULL")[0] >= 2
    assert mona("SELECT DISTINCT packed_summary FROM cerebro.run_plan") == [None], "class values are data"
    for table in root(
        "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'cerebro'::regnamespace"
        " AND relname <> 'custom_function'"
    ):
        mona.refused(f"SELECT * FROM {table}")
    for leaf in root("SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace"):
        mona.refused(f"SELECT * FROM {leaf}")
    for owner in (anna, ben):
        mona.refused(f"SELECT model_weights FROM {owner.name}.models")
    (theirs,) = anna("SELECT run FROM cerebro.runs")
    for call in ("cancel(%s)", "forget(%s)", "resume(%s, 5)", "materialize(%s, 'x')", "doctor()"):
        mona.refused(f"SELECT cerebro.{call}", *([theirs] if "%s" in call else []))


def test_an_admin_may_ask_a_run_to_end_or_forget_it_and_no_more(people: Any) -> None:
    root, anna, _, _, adam = people
    (theirs,) = anna("SELECT run FROM cerebro.runs")
    assert adam("SELECT cerebro.cancel(%s)", theirs) == [False], "it has ended already"
    adam("BEGIN")
    adam("INSERT INTO cerebro.event (run, owner, event) VALUES (%s, %s, 'cancel requested')", theirs, anna.name)
    adam("ROLLBACK")
    adam.refused("INSERT INTO cerebro.event (run, owner, event) VALUES (%s, %s, 'finished')", theirs, anna.name)
    for call in ("resume(%s, 5)", "materialize(%s, 'x')"):
        adam.refused(f"SELECT cerebro.{call}", theirs, why=psycopg2.errors.UndefinedObject)
    adam.refused("DELETE FROM cerebro.event WHERE run = %s", theirs)
    tables = "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace"
    for leaf in root(f"{tables} AND relkind IN ('r', 'p')"):
        adam.refused(f"SELECT * FROM {leaf}")


def test_a_worker_role_is_a_member_of_exactly_its_user_and_the_group(people: Any) -> None:
    root, anna, *_ = people
    found = root(
        """
        SELECT w.rolname, array_agg(g.rolname::text ORDER BY g.rolname::text),
               bool_or(w.rolsuper OR w.rolcreaterole OR w.rolcreatedb OR w.rolreplication OR w.rolbypassrls)
          FROM pg_auth_members m
          JOIN pg_roles w ON w.oid = m.member
          JOIN pg_roles g ON g.oid = m.roleid
         WHERE w.rolname ~ '^cerebro_w_[0-9]+_[0-9a-f]+$'
         GROUP BY w.rolname
        """
    )
    assert found
    for worker, groups, more in found:
        owner = root("SELECT rolname::text FROM pg_roles WHERE oid = %s::oid", worker.split("_")[2])
        assert groups == sorted([*owner, "cerebro_worker"]) and not more  # its user may have been dropped since
    assert root("SELECT has_schema_privilege('cerebro_worker', 'cerebro', 'USAGE')") == [False]
