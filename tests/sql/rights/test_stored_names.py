"""A document of a stranger names a table, and nobody reads it: a view there would run the stranger's function.

The documents are the summary of a model table, and an archive.  The victims are a user and a superuser.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from cerebro_db.client.cerebro import Cerebro
from cerebro_db.client.models import archives
from tests.documents import rewritten, with_model
from tests.sql import users
from tests.sql.users import Town
from tests.thorough import landing

ROWS = "SELECT i AS id, (i % 7)::double precision AS a, (i % 5)::real AS y FROM generate_series(1, 80) i"
FIT = """SELECT cerebro.fit('{0}', '{1}', '[{{"architecture": "mlp", "units": 4}}, {{"architecture": "mlp"}}]',
 target => 'y', inputs => 'a', epochs => 1, segments => 1, packed_table => '{1}_packed'{2})"""


class Scene:
    """mallory's models, whose summaries name a view of mallory's; a sequence counts what its function does."""

    def __init__(self, root: Town) -> None:
        self.root = root
        self.mallory, self.bob = root.user("mallory", "cerebro_user"), root.user("bob", "cerebro_user")
        mallory, own = self.mallory, self.mallory.name
        self.own = own
        root(f"SET search_path = {self.bob.name}, cerebro; SET client_min_messages = warning")
        mallory(f"CREATE TABLE rows AS {ROWS}; CREATE TABLE others AS {ROWS}; ALTER TABLE rows ADD PRIMARY KEY (id)")
        mallory("CREATE SEQUENCE rang CACHE 1")
        mallory(
            f"CREATE FUNCTION ring() RETURNS integer LANGUAGE sql AS $$ SELECT nextval('{own}.rang')::integer $$;"
            " CREATE VIEW trap AS SELECT id, a, y FROM rows WHERE ring() > 0"
        )
        mallory(FIT.format("rows", "divided", ""))
        mallory(FIT.format("rows", "validated", ", validation_table => 'others'"))
        for ending in ("", "_info", "_summary"):
            mallory(f"CREATE TABLE exported{ending} AS TABLE validated{ending}")
        mallory(
            f"GRANT USAGE ON SCHEMA {own} TO PUBLIC; GRANT SELECT ON ALL TABLES IN SCHEMA {own} TO PUBLIC;"
            " GRANT USAGE, SELECT, UPDATE ON SEQUENCE rang TO PUBLIC"
        )
        self.bob(
            f"CREATE TABLE orders AS {ROWS}; CREATE TABLE checks AS {ROWS}; ALTER TABLE orders ADD PRIMARY KEY (id)"
        )
        self.bob(f"SELECT count(*) FROM {own}.trap")  # it can run: else nothing below would prove anything
        assert self.calls() > 0

    def calls(self) -> int:
        return int(self.root(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {self.own}.rang")[0])

    def set_trap(self, table: str) -> None:
        """All names of tables in a summary are that of the view."""
        for argument in ("validation_table", "distribution_rules"):
            self.mallory(
                f"UPDATE {table}_summary SET packing = jsonb_set(packing, '{{arguments,{argument}}}', %s::jsonb)"
                f" WHERE packing #> '{{arguments,{argument}}}' IS NOT NULL OR %s",
                json.dumps(f"{self.own}.trap"), table == "validated",
            )  # fmt: skip
        names = [f"{self.own}.trap"] * 3
        self.mallory(f"UPDATE {table}_summary SET source_table = %s, packed_table = %s, validation_table = %s", *names)


@pytest.fixture(scope="module")
def scene(server: str) -> Iterator[Scene]:
    with users.town(server) as root:
        made = Scene(root)
        for table in ("divided", "validated"):
            made.set_trap(table)
        yield made
        root("RESET ROLE")


@pytest.fixture(params=["a user", "a superuser"])
def victim(scene: Scene, request: pytest.FixtureRequest) -> Any:
    return scene.root if request.param == "a superuser" else scene.bob


@pytest.fixture
def name(victim: Any) -> Iterator[str]:
    name = f"m_{secrets.token_hex(4)}"
    yield name
    remove(victim, name)


def remove(victim: Any, name: str) -> None:
    for alias in victim("SELECT alias FROM cerebro.registered_aliases WHERE registered_model = %s", name):
        victim("SELECT cerebro.set_alias(%s, %s, NULL)", name, alias)
    for version in victim(
        "SELECT version FROM cerebro.registered_versions WHERE registered_model = %s AND unregistered_at IS NULL", name
    ):
        victim("SELECT cerebro.unregister(%s, %s)", name, version)


def refused(scene: Scene, victim: Any, statement: str, message: str) -> None:
    before = scene.calls()
    with pytest.raises(psycopg2.Error, match=message):
        victim(statement)
    assert scene.calls() == before


@pytest.mark.parametrize("table", landing(["divided", "validated"], "validated"))
def test_retraining_reads_what_the_call_names(scene: Scene, victim: Any, name: str, table: str) -> None:
    victim(f"SELECT cerebro.register('{name}', '{scene.own}.{table}', alias => 'production')")
    why = "was trained by another role"
    refused(scene, victim, f"SELECT cerebro.retrain('{name}')", f"source_table: version 1 of '{name}' {why}")
    bobs, before = scene.bob.name, scene.calls()
    scene.root(f"GRANT USAGE ON SCHEMA {bobs} TO PUBLIC")
    call = f"SELECT version FROM cerebro.retrain('{name}', source_table => '{bobs}.orders', if_unchanged => true"
    if table == "validated":
        refused(scene, victim, f"{call})", f"validation_table: version 1 of '{name}' {why}")
        call += f", validation_table => '{bobs}.checks'"
    assert victim(f"{call})") == [2] and scene.calls() == before
    # The new version is one of the caller's, and the call named its tables.
    victim(f"SELECT cerebro.set_alias('{name}', 'production', 2)")
    assert victim(f"SELECT version FROM cerebro.retrain('{name}')") == []


def test_an_own_run_opens_its_tables_and_no_others(scene: Scene) -> None:
    """A summary may have the number of a run of the reader's, and the packed rows of a stranger have a source."""
    bob, name = scene.bob, f"m_{secrets.token_hex(4)}"
    (run,) = bob(FIT.format("orders", "own", ""))
    try:
        scene.mallory(f"UPDATE divided_summary SET run = {run}")
        bob(f"SELECT cerebro.register('{name}', '{scene.own}.divided', alias => 'production')")
        refused(scene, bob, f"SELECT cerebro.retrain('{name}')", "was trained by another role")
        # The run of bob's on mallory's packed rows says what mallory's summary says: bob has not named it.
        scene.mallory(f"UPDATE divided_packed_summary SET source_table = '{scene.own}.trap'")
        listed = json.dumps([{"architecture": "mlp"}])
        bob(f"SELECT cerebro.fit('{scene.own}.divided_packed', 'on_theirs', %s, epochs => 1)", listed)
        bob(f"SELECT cerebro.register('{name}', 'on_theirs', alias => 'production')")
        refused(scene, bob, f"SELECT cerebro.retrain('{name}')", "the call named packed rows")
    finally:
        remove(bob, name)


def test_an_ensemble_and_a_calibration_read_no_rows_of_a_strangers_run(scene: Scene, victim: Any) -> None:
    mean = f"{scene.bob.name}.mean_{victim is scene.root:d}"
    scene.mallory(
        "CREATE OR REPLACE VIEW trapped AS SELECT * FROM divided_packed_validation WHERE ring() > 0;"
        " CREATE TABLE IF NOT EXISTS trapped_summary AS TABLE divided_packed_validation_summary;"
        " GRANT SELECT ON trapped, trapped_summary TO PUBLIC"
    )
    scene.mallory(f"UPDATE divided_summary SET validation_table = '{scene.own}.trapped'")
    before = scene.calls()
    victim(f"SELECT cerebro.ensemble('{scene.own}.divided', '{mean}')")
    assert scene.calls() == before
    refused(scene, victim, f"SELECT cerebro.calibrate('{mean}')", "trained by another role")


def test_the_tables_of_an_ensemble_bring_no_code_of_a_strangers(scene: Scene, victim: Any) -> None:
    """An index of the members' tables, or a domain, would run whenever the caller's new tables are used."""
    mallory, mean = scene.mallory, f"{scene.bob.name}.clean_{victim is scene.root:d}"
    mallory(
        "CREATE FUNCTION spring(integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM ring();"
        " RETURN 1; END $$;"
        f" ALTER FUNCTION spring(integer) SET search_path = {scene.own};"
        " CREATE INDEX springs ON divided_info ((spring(1) + configuration)); CREATE TYPE sort AS ENUM ('a');"
        " CREATE DOMAIN word AS text CHECK (spring(1) > 0); ALTER TABLE divided_info ADD odd word, ADD sort sort,"
        " ALTER reason TYPE word; ALTER TABLE divided_summary ALTER model_table TYPE word"
    )
    try:
        victim(f"SELECT cerebro.ensemble('{scene.own}.divided', '{mean}', all_join => true)")
        before = scene.calls()
        assert victim(f"SELECT configuration FROM {mean}_info WHERE configuration > 0") == [1]
        victim(f"UPDATE {mean}_info SET reason = reason || '.', odd = 'x'; UPDATE {mean}_summary SET model_table = ''")
        victim("SELECT * FROM cerebro.models")
        victim(f"SELECT * FROM cerebro.predict('{mean}', 'SELECT * FROM {scene.bob.name}.orders')")
        assert scene.calls() == before
        columns = victim(f"SELECT attname FROM pg_attribute WHERE attrelid = '{mean}_info'::regclass AND attnum > 0")
        assert "odd" in columns and "sort" not in columns
        victim(f"SELECT spring FROM {scene.own}.spring(1)")
        assert scene.calls() > before
    finally:
        mallory(
            "DROP INDEX springs; ALTER TABLE divided_info DROP odd, DROP sort, ALTER reason TYPE text;"
            " ALTER TABLE divided_summary ALTER model_table TYPE text; DROP DOMAIN word; DROP TYPE sort;"
            " DROP FUNCTION spring(integer)"
        )


def test_the_rows_for_validation_of_an_own_run_are_the_callers(scene: Scene) -> None:
    """Their name was derived: after a DROP, anybody may make another table of this name."""
    bob, mallory = scene.bob, scene.mallory
    bob(f"CREATE TABLE more_orders AS {ROWS}")
    (run,) = bob(FIT.format("more_orders", "judged", ""))
    bob("DROP TABLE judged_packed_validation, judged_packed_validation_summary")
    for ending in ("", "_summary"):
        mallory(f"CREATE VIEW seen{ending} AS SELECT * FROM divided_packed_validation{ending} WHERE ring() > 0")
        mallory(f"GRANT SELECT ON seen{ending} TO PUBLIC")
        scene.root(f"ALTER VIEW {scene.own}.seen{ending} SET SCHEMA {bob.name}")
        scene.root(f"ALTER VIEW {bob.name}.seen{ending} RENAME TO judged_packed_validation{ending}")
    why = f"the rows for validation of run {run} are in .*judged_packed_validation.*, which is no table of yours"
    refused(scene, bob, "SELECT cerebro.calibrate('judged')", why)
    before = scene.calls()
    bob("SELECT cerebro.ensemble('judged', 'judged_mean')")
    assert scene.calls() == before
    scene.root(f"DROP VIEW {bob.name}.judged_packed_validation, {bob.name}.judged_packed_validation_summary")


def test_a_run_replaces_no_tables_of_a_role_that_its_owner_is_in(scene: Scene) -> None:
    """Each of its members can put code into them, which would run when the run asks whose tables they are."""
    bob, mallory, both = scene.bob, scene.mallory, f"{scene.own}_both"
    (run,) = bob(FIT.format("orders", "kept", ""))
    bob("DROP TABLE kept, kept_info, kept_summary")
    scene.root(
        f"CREATE ROLE {both}; GRANT {both} TO {bob.name}, {mallory.name}; GRANT ALL ON SCHEMA {bob.name} TO {both}"
    )
    try:
        scene.root(f"GRANT USAGE, CREATE ON SCHEMA {scene.own} TO {both}")
        mallory(
            f"SET ROLE {both}; CREATE TABLE {bob.name}.kept_summary AS SELECT {run}::bigint AS run;"
            f" ALTER TABLE {bob.name}.kept_summary ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;"
            f" CREATE POLICY trap ON {bob.name}.kept_summary USING ({scene.own}.ring() > 0); RESET ROLE"
        )
        refused(scene, bob, f"SELECT cerebro.resume({run}, epochs => 2)", "kept_summary' already exists")
    finally:
        mallory("RESET ROLE")
        scene.root(f"DROP OWNED BY {both} CASCADE; DROP ROLE {both}")


@pytest.mark.parametrize("victim", landing(["a user", "a superuser"], "a superuser"), indirect=True)
def test_an_archive_brings_no_names(scene: Scene, victim: Any, name: str, tmp_path: Path) -> None:
    """Its names stay texts in ``imported``."""
    own = scene.own
    path = tmp_path / "theirs.cerebro"
    with Cerebro(scene.mallory.dsn) as theirs:
        theirs.export(f"{own}.exported", str(path))
    changed = rewritten(path, tmp_path / "changed.cerebro", lambda files: poison(files, f"{own}.trap"))
    before = scene.calls()
    dsn = scene.bob.dsn if victim is scene.bob else scene.root.dsn
    table = f"{scene.bob.name}.brought_{victim is scene.root:d}"
    with Cerebro(dsn) as ours:
        ours.import_model(str(changed), table)
    assert victim(f"SELECT source_table, packed_table, validation_table FROM {table}_summary") == [(None,) * 3]
    assert f"{own}.trap" not in str(victim(f"SELECT packing FROM {table}_summary"))
    assert victim(f"SELECT imported ->> 'source_table' FROM {table}_summary") == [f"{own}.trap"]
    victim(f"SELECT cerebro.register('{name}', '{table}', alias => 'production')")
    refused(scene, victim, f"SELECT cerebro.retrain('{name}')", "imported")
    call = f"SELECT version FROM cerebro.retrain('{name}', source_table => '{scene.bob.name}.orders'"
    assert victim(f"{call}, validation_table => '{scene.bob.name}.checks', if_unchanged => true)") == [2]
    assert scene.calls() == before


def poison(files: dict[str, bytes], trap: str) -> None:
    """All names of tables in an archive are that of the view."""
    summary = json.loads(json.loads(files[archives.MODEL])["summary"])
    summary.update(source_table=trap, packed_table=trap, validation_table=trap)
    summary["packing"]["arguments"].update(validation_table=trap, distribution_rules=trap)
    with_model(files, summary=json.dumps(summary))
