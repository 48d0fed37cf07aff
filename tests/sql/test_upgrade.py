"""A database with runs in it, brought to the next version; and released scripts, which do not change any more."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cerebro_db.client import cluster as clusters
from cerebro_db.client.extension import NAME, Sources
from tests import freeze
from tests.conftest import TRAINER, connect
from tests.sql.lab import Lab, eventually, flower_model
from tests.sql.memory import compiled

OPTIONS = {"deterministic": True, "seed": 8}
EPOCHS = 8
NEXT = """
ALTER TABLE cerebro.run ADD COLUMN remark text;

CREATE TABLE cerebro.remark (run bigint NOT NULL, owner name NOT NULL DEFAULT current_user, remark text NOT NULL);
COMMENT ON TABLE cerebro.remark IS 'What people say of runs.';
ALTER TABLE cerebro.remark ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_rows ON cerebro.remark USING (owner = current_user) WITH CHECK (owner = current_user);
GRANT SELECT, INSERT, DELETE ON cerebro.remark TO cerebro_user;
SELECT pg_catalog.pg_extension_config_dump('cerebro.remark', '');

CREATE VIEW cerebro.remarks WITH (security_barrier) AS
SELECT run, owner, remark FROM cerebro.run WHERE owner = current_user;
COMMENT ON VIEW cerebro.remarks IS 'What was said of each run.';
GRANT SELECT ON cerebro.remarks TO cerebro_user;

CREATE OR REPLACE FUNCTION cerebro.wait_for(run bigint) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.wait(plpy, run, None)
$py$;
COMMENT ON FUNCTION cerebro.wait_for(bigint) IS 'Waits.';
REVOKE ALL ON FUNCTION cerebro.wait_for(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cerebro.wait_for(bigint) TO cerebro_user;
"""

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
                             attstorage, pg_get_expr(adbin, adrelid)), E'\\n' ORDER BY attname)
                        FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
                       WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
                     (SELECT string_agg(pg_get_indexdef(indexrelid), E'\\n' ORDER BY 1)
                        FROM pg_index WHERE indrelid = c.oid),
                     (SELECT string_agg(pg_get_constraintdef(k.oid), E'\\n' ORDER BY 1)
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


def sources(
    top: Path, version: str, pieces: dict[str, str] | None = None, migrations: dict[str, str] | None = None
) -> Sources:
    """This clone's code with another SQL part."""
    here = Sources.find()
    (top / "sql").mkdir(parents=True)
    shutil.copytree(here.root / "migrations", top / "migrations")
    control = here.control.read_text().replace(f"'{here.version}'", f"'{version}'")
    (top / here.control.name).write_text(control)
    for folder, files in (("sql", pieces or {}), ("migrations", migrations or {})):
        for name, text in files.items():
            (top / folder / name).write_text(text)
    return Sources(top, here.package, here.plpy)


def fake(top: Path) -> tuple[Sources, Sources]:
    """This version, and one after it."""
    here = Sources.find()
    version = here.version + ".1"
    now = {piece.name: piece.read_text() for piece in (here.root / "sql").glob("[0-9]*.sql")}
    migrations = {f"{NAME}--{here.version}--{version}.sql": NEXT}
    return here, sources(top / "next", version, {**now, "95_next.sql": NEXT}, migrations)


def steps(top: Path) -> Iterator[tuple[Sources, Sources]]:
    yield fake(top)
    here = Sources.find()
    for name in freeze.released():
        version = name[len(NAME) + 2 : -len(".sql")]
        if "--" not in version and version != here.version:
            whole = {"00_whole.sql": (freeze.MIGRATIONS / name).read_text()}
            yield sources(top / version, version, whole), here


def inventory(dsn: str) -> dict[str, str]:
    with contextlib.closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SET search_path = pg_catalog")
        cursor.execute(INVENTORY)
        return dict(cursor.fetchall())


@pytest.mark.slow
@pytest.mark.needs_cluster
def test_update_with_live_data(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for number, (old, new) in enumerate(steps(tmp_path)):
        cluster = clusters.throw_away(TRAINER, sources=old)
        try:
            update(cluster, old, new)
            if number == 0:
                with contextlib.closing(connect(cluster.dsn())) as db, db.cursor() as cursor:
                    cursor.execute("INSERT INTO cerebro.remark (run, remark) VALUES (1, 'good')")
                    cursor.execute("SELECT count(*), count(remark) FROM cerebro.remarks")
                    assert cursor.fetchone() == (3, 0)
                    before = inventory(cluster.dsn())
                    cursor.execute("REVOKE SELECT ON cerebro.remarks FROM cerebro_user")
                assert inventory(cluster.dsn()) != before  # what a migration forgets is seen
        finally:
            clusters.remove(cluster)


def update(cluster: clusters.Cluster, old: Sources, new: Sources) -> None:
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
    board = lab("SELECT run, mst_key, status, training_loss FROM leaderboard ORDER BY 1, 2")
    lab.close()
    assert cluster.up(trainer_python=TRAINER, sources=new).extension == "updated"
    with contextlib.closing(connect(cluster.dsn("postgres"))) as db, db.cursor() as cursor:
        cursor.execute("CREATE DATABASE fresh")
    with contextlib.closing(connect(cluster.dsn("fresh"))) as db:
        clusters.equip(db, new.version)
    assert lab.value("SELECT extversion FROM pg_extension WHERE extname = %s", NAME) == new.version
    assert inventory(cluster.dsn()) == inventory(cluster.dsn("fresh"))
    for name, rows in known.items():
        found = lab(f"SELECT * FROM {name} ORDER BY 1, 2, 3, 4")
        assert [row[: len(rows[0])] for row in found] == rows
    assert lab("SELECT run, mst_key, status, training_loss FROM leaderboard ORDER BY 1, 2") == board
    assert lab.value("SELECT resume(%s)", broken) == broken
    assert lab.states(broken) == lab.states(calm)
    assert lab.fit("train", "later", "mst", 1, options=OPTIONS) > broken
    lab.close()


# -- what is released --------------------------------------------------------------------------------------


def test_released_scripts_do_not_change() -> None:
    assert freeze.changed(freeze.MIGRATIONS, freeze.RELEASED, Sources.find().version) == []


def test_a_change_would_be_seen(tmp_path: Path) -> None:
    now, after = fake(tmp_path)
    folder, released = tmp_path / "next" / "migrations", tmp_path / "released"
    released.write_text("# comment\n")
    assert freeze.changed(folder, released, after.version) == []  # being written
    (step,) = freeze.changed(folder, released, after.version + ".1")
    assert step.startswith(f"{NAME}--{now.version}--{after.version}.sql leads to")
    assert freeze.freeze(after, folder, released) == [
        f"{NAME}--{after.version}.sql",
        f"{NAME}--{now.version}--{after.version}.sql",
    ]
    assert freeze.changed(folder, released, after.version + ".1") == []
    with pytest.raises(SystemExit):
        freeze.freeze(after, folder, released)
    name = next(iter(freeze.released(released)))
    (folder / name).write_text("-- mended\n")
    assert freeze.changed(folder, released, after.version + ".1") == [f"{name} is released and was changed"]
    (folder / name).unlink()
    assert freeze.changed(folder, released, after.version + ".1") == [f"{name} is released and is gone"]
