"""Upgrading a database that has runs, installing the replaceable SQL again, and the hashes of released scripts."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from cerebro_db.embedded import cluster as clusters
from cerebro_db.embedded import database, extension, throw_away
from cerebro_db.embedded.extension import NAME, Sources
from cerebro_db.embedded.files import DATABASE
from tests import freeze
from tests.conftest import TRAINER, connect
from tests.sql.lab import Lab, eventually, flower_model
from tests.sql.memory import compiled
from tests.sql.moving import as_user, tool

OPTIONS = {"deterministic": True, "seed": 8}
EPOCHS = 24
# What an imagined next version adds, as its developer would write it: a piece of each folder, and the migration.
ADDED_TABLE = """
CREATE TABLE cerebro.remark (run bigint NOT NULL, owner name NOT NULL DEFAULT current_user, remark text NOT NULL);
COMMENT ON TABLE cerebro.remark IS 'Remarks on runs.';
ALTER TABLE cerebro.remark ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_rows ON cerebro.remark USING (owner = current_user) WITH CHECK (owner = current_user);
SELECT pg_catalog.pg_extension_config_dump('cerebro.remark', '');
"""
ADDED_COLUMN = "ALTER TABLE cerebro.run ADD COLUMN remark text;\n"
ADDED_API = """
CREATE OR REPLACE VIEW cerebro.remarks WITH (security_barrier) AS
SELECT run, pg_get_userbyid(owner) AS owner, remark FROM cerebro.run WHERE pg_get_userbyid(owner) = current_user;
COMMENT ON VIEW cerebro.remarks IS 'The remark on each run.';
COMMENT ON COLUMN cerebro.remarks.remark IS 'The remark.';
GRANT SELECT ON cerebro.remarks TO cerebro_user;
GRANT SELECT, INSERT, DELETE ON cerebro.remark TO cerebro_user;

CREATE OR REPLACE FUNCTION cerebro.wait_for(run bigint) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.wait(plpy, run=run, timeout=None)
$py$;
COMMENT ON FUNCTION cerebro.wait_for(bigint) IS 'Waits.';
"""
MIGRATION = f"{ADDED_COLUMN}{ADDED_TABLE}\n@api@\n"

# Every object of the extension with all that can differ about it.
INVENTORY = """
WITH member AS (
    SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid
     WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'cerebro_db'
), told AS (
    SELECT pg_describe_object(m.classid, m.objid, 0) AS what,
           concat_ws(E'\\n', obj_description(m.objid, m.classid::regclass::text),
           CASE m.classid
               WHEN 'pg_proc'::regclass THEN (
                   SELECT concat_ws(E'\\n', pg_get_functiondef(p.oid), (SELECT array_agg(a::text ORDER BY 1)
                     FROM unnest(p.proacl) a)::text) FROM pg_proc p WHERE p.oid = m.objid)
               WHEN 'pg_class'::regclass THEN (
                   SELECT concat_ws(E'\\n', c.relkind, c.reloptions::text, c.relrowsecurity::text,
                     CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END,
                     (SELECT array_agg(a::text ORDER BY 1) FROM unnest(c.relacl) a)::text,
                     (SELECT string_agg(concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull,
                             attstorage, pg_get_expr(adbin, adrelid), attacl::text, col_description(c.oid, attnum)),
                             E'\\n' ORDER BY attname)
                        FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
                       WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
                     (SELECT string_agg(pg_get_indexdef(indexrelid), E'\\n' ORDER BY pg_get_indexdef(indexrelid))
                        FROM pg_index WHERE indrelid = c.oid),
                     (SELECT string_agg(pg_get_constraintdef(k.oid), E'\\n' ORDER BY pg_get_constraintdef(k.oid))
                        FROM pg_constraint k WHERE conrelid = c.oid),
                     (SELECT string_agg(concat_ws(' ', polname, polcmd, pg_get_expr(polqual, polrelid),
                             pg_get_expr(polwithcheck, polrelid)), E'\\n' ORDER BY polname)
                        FROM pg_policy WHERE polrelid = c.oid))
                     FROM pg_class c WHERE c.oid = m.objid)
               WHEN 'pg_namespace'::regclass THEN (SELECT nspacl::text FROM pg_namespace n WHERE n.oid = m.objid)
           END) AS text
      FROM member m
)
SELECT what, text FROM told
UNION ALL
SELECT 'dumped', string_agg(c.oid::regclass::text, ' ' ORDER BY c.oid::regclass::text)
  FROM pg_extension e, unnest(e.extconfig) AS dumped JOIN pg_class c ON c.oid = dumped WHERE e.extname = 'cerebro_db'
 ORDER BY 1
"""


def sources(top: Path, version: str, pieces: dict[str, str], migrations: dict[str, str] | None = None) -> Sources:
    """This clone's code with other SQL: ``pieces`` by path below ``sql/``, and further migrations."""
    here = Sources.find()
    files = {f"sql/{name}": text for name, text in pieces.items()}
    for step in (here.root / "migrations").glob("*.sql"):
        files[f"migrations/{step.name}"] = extension.upgrade_script(here, step)
    files.update({f"migrations/{name}": text for name, text in (migrations or {}).items()})
    for one in extension.EXTENSIONS:
        if one is extension.MAIN or any(name.startswith("madlib/") for name in pieces):
            files[one.control] = (here.root / one.control).read_text().replace(f"'{here.version}'", f"'{version}'")
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    (top / "migrations").mkdir(exist_ok=True)
    return Sources(top, here.package, here.plpy)


def fake(top: Path) -> tuple[Sources, Sources]:
    """This version, and one after it, with its code."""
    here = Sources.find()
    version = here.version + ".1"
    folder = here.root / "sql"
    now = {piece.relative_to(folder).as_posix(): piece.read_text() for piece in folder.rglob("[0-9]*.sql")}
    new = {"schema/95_remark.sql": ADDED_COLUMN + ADDED_TABLE, "api/85_remark.sql": ADDED_API}
    step = f"--{here.version}--{version}.sql"
    migrations = {
        f"{extension.MAIN.name}{step}": MIGRATION,
        f"{extension.MADLIB.name}{step}": "-- Nothing is new here.\n",
    }
    made = sources(top / "next", version, {**now, **new}, migrations)
    package = top / "next" / NAME
    package.mkdir()
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n')
    for room in ("core", "nn"):
        (package / room).symlink_to(here.package / room)
    return here, replace(made, package=package)


def released(top: Path, version: str) -> Sources:
    """A frozen release's SQL with this clone's code."""
    scripts = {
        "00_whole.sql": f"{NAME}--{version}.sql",
        "madlib/00_whole.sql": f"{extension.MADLIB.name}--{version}.sql",
    }
    return sources(
        top / version,
        version,
        {piece: _with_its_head(freeze.script(name), version) for piece, name in scripts.items()},
    )


def _with_its_head(script: str, version: str) -> str:
    """The script with the line of its own version, by which functions find the Python code."""
    if version != "0.1.0":
        return script
    return extension.expand(script).replace("cerebro_internal.", "cerebro.")  # which had this schema alone


def inventory(dsn: str) -> dict[str, str]:
    with contextlib.closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SET search_path = pg_catalog")
        cursor.execute(INVENTORY)
        return dict(cursor.fetchall())


def test_the_replaceable_part_changes_nothing_when_it_is_installed_again(fresh_database: str) -> None:
    before = inventory(fresh_database)
    if any("cerebro_python" in what for what in before):
        pytest.skip("on Greenplum, bodies in Python are made anew, which only ALTER EXTENSION may")
    assert {"view cerebro.runs", "function cerebro.search", "cerebro_user=X"} <= set(told(before))
    with contextlib.closing(connect(fresh_database)) as db, db.cursor() as cursor:
        again = extension.expand(extension.replaceable(Sources.find()))
        for _ in range(2):
            cursor.execute("BEGIN")
            cursor.execute(again)
            cursor.execute("COMMIT")
            assert inventory(fresh_database) == before
        cursor.execute("COMMENT ON COLUMN cerebro.runs.status IS 'other'")
        assert inventory(fresh_database) != before
        cursor.execute(again)
        assert inventory(fresh_database) == before


def told(found: dict[str, str]) -> Iterator[str]:
    """Words of an inventory, to see that it is one."""
    for what, text in found.items():
        yield what.partition("(")[0]
        yield from re.findall(r"\bcerebro_user=X\b", text or "")


OLD_SQL = "the SQL functions of this database .* are older than the code", "ALTER EXTENSION cerebro_db UPDATE"
OLD_CODE = "the code of this session .* is older than the SQL functions", "Start a new session"


@pytest.mark.parametrize(("version", "told"), [("0.2.0", OLD_SQL), ("999.0", OLD_CODE)])
def test_sql_of_another_version_is_refused(fresh_database: str, version: str, told: tuple[str, str]) -> None:
    """As between make install and ALTER EXTENSION UPDATE, and in a session that still has the code of before."""
    with contextlib.closing(connect(fresh_database)) as db, db.cursor() as cursor:
        set_version(db, version)
        for call in ("cerebro.fit('t', 'm', '[]', 'y')", "cerebro.predict('m', 't')", "cerebro.wait(1)",
                     "madlib.load_keras_model('t', '{}')"):  # fmt: skip
            refused(cursor, f"SELECT * FROM {call}", *told)
        cursor.execute("SELECT status, found FROM cerebro.doctor() WHERE check_name = 'extension'")
        assert [status for status, found in cursor.fetchall() if version in found] == ["problem"]
        cursor.execute("SELECT cerebro_internal._setup_logins()")  # upgrade scripts call it
        set_version(db, Sources.find().version)
        with pytest.raises(psycopg2.Error, match="run 1"):
            cursor.execute("SELECT cerebro.wait(1)")


def set_version(db: Any, version: str) -> None:
    with db.cursor() as cursor:
        if db.server_version < 130000:
            cursor.execute("SET allow_system_table_mods = on")
        cursor.execute("UPDATE pg_extension SET extversion = %s WHERE extname = %s", (version, NAME))


def test_replaceable_pieces_only_replace() -> None:
    """What is made in sql/api can be made again; what runs once is in sql/schema."""
    text = re.sub(r"--.*", "", extension.replaceable(Sources.find()))
    outside = re.sub(r"(\$\w*\$).*?\1|'(?:[^']|'')*'", "", text, flags=re.DOTALL)  # without bodies and texts
    made = set(
        re.findall(r"\b(?:CREATE|ALTER|DROP|INSERT|DELETE|UPDATE|TRUNCATE)\b(?:\s+OR\s+REPLACE\s+\w+)?", outside)
    )
    # INSERT, UPDATE and DELETE: privileges that are granted. ALTER: of the owner of one function.
    assert made == {"CREATE OR REPLACE FUNCTION", "CREATE OR REPLACE VIEW", "INSERT", "UPDATE", "DELETE", "ALTER"}
    assert not re.search(r"\b(?:INSERT\s+INTO|DELETE\s+FROM|UPDATE\s+\w+\.)", outside)
    assert re.findall(r"ALTER.*", outside) == [
        "ALTER FUNCTION cerebro_internal._as_registry() OWNER TO cerebro_registry;"
    ]


@pytest.mark.throw_away
@pytest.mark.thorough  # test_update_with_live_data requires it, too
def test_an_updated_database_has_the_objects_of_a_new_one(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    old, new = fake(tmp_path)
    cluster = throw_away.create(TRAINER, sources=old)
    try:
        before = inventory(cluster.dsn())
        assert cluster.up(trainer_python=TRAINER, sources=new).extension == "updated"
        assert set(inventory(cluster.dsn())) - set(before) >= {"view cerebro.remarks", "table cerebro.remark"}
        require_as_new(cluster, new)
        with contextlib.closing(connect(cluster.dsn())) as db, db.cursor() as cursor:
            cursor.execute("REVOKE SELECT ON cerebro.remarks FROM cerebro_user")
        with pytest.raises(AssertionError):  # what a migration forgets is seen
            assert inventory(cluster.dsn()) == inventory(cluster.dsn("fresh"))
    finally:
        throw_away.remove(cluster)


def require_as_new(cluster: clusters.Cluster, new: Sources, updated: str = DATABASE) -> None:
    """Every object of the updated database is that of a new one, which is made here and named fresh."""
    with contextlib.closing(connect(cluster.dsn("postgres"))) as db, db.cursor() as cursor:
        cursor.execute("CREATE DATABASE fresh")
    with contextlib.closing(connect(cluster.dsn("fresh"))) as db:
        database.equip(db, new.version)
    assert inventory(cluster.dsn(updated)) == inventory(cluster.dsn("fresh"))


@pytest.mark.throw_away
def test_update_with_live_data(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    old, new = fake(tmp_path)
    cluster = throw_away.create(TRAINER, sources=old)
    try:
        update(cluster, new)
        with contextlib.closing(connect(cluster.dsn())) as db, db.cursor() as cursor:
            cursor.execute("INSERT INTO cerebro.remark (run, remark) VALUES (1, 'good')")
            cursor.execute("SELECT count(*), count(remark) FROM cerebro.remarks")
            assert cursor.fetchone() == (3, 0)
            before = inventory(cluster.dsn())
            cursor.execute("REVOKE SELECT ON cerebro.remarks FROM cerebro_user")
        assert inventory(cluster.dsn()) != before  # what a migration forgets is seen
    finally:
        throw_away.remove(cluster)


def update(cluster: clusters.Cluster, new: Sources) -> None:
    with contextlib.closing(connect(cluster.dsn())) as db, db.cursor() as cursor:
        cursor.execute("CREATE SCHEMA lab")
    lab = Lab(cluster.dsn(), "lab", cluster.home)
    lab.iris(segments=2)
    lab.selection("mst", [(lab.architecture(flower_model()), compiled("Adam", 0.01), "batch_size=8, epochs=2")])
    calm = lab.fit("train", "calm", "mst", EPOCHS, options=OPTIONS)
    broken = lab.submit("train", "broken", "mst", EPOCHS, options=OPTIONS)
    eventually(lambda: lab.value("SELECT count(*) FROM hop WHERE run = %s", broken) >= 3, 60, "three hops")
    lab.close()
    cluster.restart("immediate")  # as a machine that crashed, with nothing said in the log
    assert lab.status(broken) == "interrupted"
    known: dict[str, Any] = {name: lab(f"SELECT * FROM {name} ORDER BY 1, 2, 3, 4") for name in ("hop", "event")}
    board = lab("SELECT run, configuration, status, training_loss FROM leaderboard ORDER BY 1, 2")
    lab.close()
    assert cluster.up(trainer_python=TRAINER, sources=new).extension == "updated"
    require_as_new(cluster, new)
    assert lab.value("SELECT extversion FROM pg_extension WHERE extname = %s", NAME) == new.version
    for name, rows in known.items():
        found = lab(f"SELECT * FROM {name} ORDER BY 1, 2, 3, 4")
        assert [row[: len(rows[0])] for row in found] == rows
    assert lab("SELECT run, configuration, status, training_loss FROM leaderboard ORDER BY 1, 2") == board
    assert lab.value("SELECT resume(%s)", broken) == broken
    assert lab.states(broken) == lab.states(calm)
    assert lab.fit("train", "later", "mst", 1, options=OPTIONS) > broken
    lab.close()


def dumped() -> list[str]:
    """The releases with a dump, but for that of these sources: nothing updates it yet."""
    found = sorted(file.name.removesuffix(".sql.gz") for file in freeze.DUMPS.glob("[0-9]*.sql.gz"))
    return [one for one in found if one != Sources.find().version]


@pytest.mark.tensorflow  # with which the releases trained
@pytest.mark.throw_away
@pytest.mark.parametrize("version", dumped())
def test_runs_that_a_release_made(version: str, tmp_path: Path) -> None:
    """Its own code made them, on another machine. They are updated, and restored into a new database."""
    tmp_path.chmod(0o755)
    dump = tmp_path / "dump.sql"
    dump.write_bytes(gzip.decompress((freeze.DUMPS / f"{version}.sql.gz").read_bytes()))
    cluster = throw_away.create(TRAINER, sources=released(tmp_path, version))
    try:
        with contextlib.closing(connect(cluster.dsn())) as db, db.cursor() as cursor:
            cursor.execute(f"CREATE ROLE {freeze.OWNER} LOGIN PASSWORD 'known'; GRANT cerebro_user TO {freeze.OWNER}")
        restore(cluster, "updated", dump)
        with_views(cluster)
        cluster.up(trainer_python=TRAINER, sources=Sources.find())
        with contextlib.closing(connect(cluster.dsn("updated"))) as db, db.cursor() as cursor:
            cursor.execute("SELECT extversion FROM pg_extension WHERE extname = %s", (NAME,))
            assert cursor.fetchone() == (version,)
            cursor.execute(f"ALTER EXTENSION {NAME} UPDATE; ALTER EXTENSION {extension.MADLIB.name} UPDATE")
        require_as_new(cluster, Sources.find(), "updated")
        goes_on(cluster, "updated", version)
        views_work(cluster, "updated")
        restore(cluster, "restored", dump)
        goes_on(cluster, "restored", version)
        tool("pg_dump", cluster.dsn("updated"), "-f", str(tmp_path / "again.sql"))
        restore(cluster, "again", tmp_path / "again.sql")
        views_work(cluster, "again")
    finally:
        throw_away.remove(cluster)


def restore(cluster: clusters.Cluster, name: str, dump: Path) -> None:
    with contextlib.closing(connect(cluster.dsn("postgres"))) as db, db.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    tool("psql", cluster.dsn(name), "-q", "-v", "ON_ERROR_STOP=1", "-f", str(dump))


def with_views(cluster: clusters.Cluster) -> None:
    """Views of the user's that call functions, whose arguments or results may be others in this version."""
    with (
        contextlib.closing(connect(as_user(cluster.dsn("updated"), freeze.OWNER, "known"))) as db,
        db.cursor() as cursor,
    ):
        cursor.execute("SET search_path = work, cerebro")
        for name, call in {"guessed": "predict", "judged": "evaluate"}.items():
            query = f"SELECT * FROM cerebro.{call}('work.calm', 'SELECT * FROM work.garden')"
            cursor.execute(
                f"CREATE VIEW {name} AS {query}; CREATE MATERIALIZED VIEW kept_{name} AS {query} WITH NO DATA"
            )
        # The code is newer than these functions: they say what to do.
        for call in ("SELECT count(*) FROM guessed", "SELECT cerebro.fit('garden', 'grown', '[]', 'species')"):
            refused(cursor, call, *OLD_SQL)


def refused(cursor: Any, call: str, says: str, hint: str) -> None:
    with pytest.raises(psycopg2.errors.ObjectNotInPrerequisiteState, match=says) as error:
        cursor.execute(call)
    assert hint in error.value.diag.message_hint


def views_work(cluster: clusters.Cluster, name: str) -> None:
    with contextlib.closing(connect(as_user(cluster.dsn(name), freeze.OWNER, "known"))) as db, db.cursor() as cursor:
        cursor.execute("SET search_path = work, cerebro")
        cursor.execute("REFRESH MATERIALIZED VIEW kept_guessed; REFRESH MATERIALIZED VIEW kept_judged")
        for view in ("guessed", "kept_guessed"):
            cursor.execute(f"SELECT count(class) FROM {view}")
            assert cursor.fetchone() == (30,)
        cursor.execute("SELECT metric FROM judged EXCEPT SELECT metric FROM kept_judged")
        assert cursor.fetchall() == []


def goes_on(cluster: clusters.Cluster, name: str, version: str) -> None:
    """The models predict what they did, and the interrupted run ends as the finished one did."""
    lab = Lab(as_user(cluster.dsn(name), freeze.OWNER, "known"), "work", cluster.home)
    (calm,) = lab("SELECT run FROM runs WHERE status = 'finished'")
    hops = "SELECT count(*) FROM hop WHERE run = %s"
    ((broken,),) = lab("SELECT run FROM runs WHERE run <> %s", *calm)
    assert 5 <= lab.value(hops, broken) < lab.value(hops, *calm)
    known = json.loads((freeze.DUMPS / f"{version}.json").read_text())
    found = lab(freeze.PREDICTIONS)
    assert [row[:2] for row in found] == [tuple(row[:2]) for row in known]
    assert [row[2] for row in found] == pytest.approx([row[2] for row in known], abs=1e-5)
    assert lab.value("SELECT resume(%s)", broken) == broken
    assert lab.status(broken) == "finished"
    for column in ("training_loss", "validation_loss"):
        first, second = (
            [value for (value,) in lab(f"SELECT {column} FROM leaderboard WHERE run = %s ORDER BY configuration", run)]
            for run in (*calm, broken)
        )
        assert None not in first and second == pytest.approx(first, rel=1e-3)
    assert lab("SELECT * FROM predict('broken', 'SELECT * FROM garden')")
    assert lab.fit("train", "later", "mst", 1, options=OPTIONS) > broken
    lab.close()


# -- what is released --------------------------------------------------------------------------------------


def test_released_scripts_do_not_change() -> None:
    assert freeze.changed(Sources.find().version) == []


def test_a_change_would_be_seen(tmp_path: Path) -> None:
    now, after = fake(tmp_path)
    root, next_version = after.root, after.version + ".1"
    (root / extension.MADLIB.control).unlink()  # one extension and one step are enough here
    whole, step = f"{NAME}--{after.version}.sql", f"{NAME}--{now.version}--{after.version}.sql"
    for script in (root / freeze.MIGRATIONS).glob("*.sql"):
        if script.name != step:
            script.unlink()
    (root / freeze.LIST).write_text("# comment\n")
    assert freeze.changed(after.version, root) == []  # being written
    (wrong,) = freeze.changed(next_version, root)
    assert wrong.startswith(f"{step} leads to")
    assert freeze.freeze(after) == [whole, step]
    assert freeze.changed(next_version, root) == []
    for name in (whole, step):  # the functions of this version, whatever later versions make of them
        frozen = freeze.script(name, root)
        assert "CREATE OR REPLACE FUNCTION cerebro.wait_for" in frozen and "@api@" not in frozen
    with pytest.raises(SystemExit):
        freeze.freeze(after)
    for name, mended in {whole: gzip.compress(b"-- mended"), step: b"-- mended"}.items():
        kept = freeze.place(name, root).read_bytes()
        freeze.place(name, root).write_bytes(mended)
        assert freeze.changed(next_version, root) == [f"{name} is released and was changed"]
        freeze.place(name, root).unlink()
        assert freeze.changed(next_version, root) == [f"{name} is released and is gone"]
        freeze.place(name, root).write_bytes(kept)
