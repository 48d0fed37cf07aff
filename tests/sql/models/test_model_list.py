"""cerebro.models and cerebro.drop_model: what is listed and dropped, for whom, and hostile tables."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from cerebro_db import __version__
from tests.sql.lab import CROSS, Lab, flower_model
from tests.sql.users import Town, User, equip, fit, town

COLUMNS = "target, run, run_name, objective, best_value, rows, configurations, bytes > 0, created_at IS NOT NULL"


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab.iris(segments=1)
    arch = lab.architecture(flower_model())
    rows = [(arch, f"optimizer='SGD(lr={rate})', {CROSS}", "batch_size=8") for rate in (0.01, 0.05)]
    lab.selection("mst", rows)
    return lab


def listed(lab: Lab, table: str, columns: str = COLUMNS) -> Any:
    found = lab(f"SELECT {columns} FROM cerebro.models WHERE model_table = %s", f"{lab.schema}.{table}")
    return found[0] if found else None


def trained(lab: Lab, table: str, **more: Any) -> int:
    return lab.fit("train", table, "mst", 2, **more)


def test_a_run_is_listed_with_its_figures(place: Lab) -> None:
    run = trained(place, "models", validation_table="val", name="two rates")
    loss = place.value("SELECT min(validation_loss_final) FROM models_info")
    assert listed(place, "models") == (
        "species", run, "two rates", "val_loss", pytest.approx(loss), 120, 2, True, True,
    )  # fmt: skip
    made, mine = listed(place, "models", "created_at, owner = current_user")
    assert mine and made == place.value("SELECT created_at FROM runs WHERE run = %s", run)
    size = "SELECT sum(pg_total_relation_size(t)) FROM unnest('{models, models_info, models_summary}'::regclass[]) t"
    assert listed(place, "models", "bytes") == place(size)[0]


def test_an_objective_and_its_direction(place: Lab) -> None:
    trained(place, "accurate", validation_table="val", options={"objective": "val_accuracy"})
    best = place.value("SELECT max(objective_value) FROM accurate_info")
    assert listed(place, "accurate", "objective, best_value") == ("val_accuracy", pytest.approx(best))


def test_tables_that_no_run_names(place: Lab) -> None:
    """Ensembles, renamed and materialized tables, and those of madlib_keras_fit are found, too."""
    run = trained(place, "again")
    place("SELECT cerebro.materialize(%s, 'other')", run)
    for ending in ("", "_info", "_summary"):
        place(f'ALTER TABLE again{ending} RENAME TO "Re named{ending}"')
    assert listed(place, "again") is None
    assert listed(place, "other", "run, configurations, rows") == (run, 2, 120)
    assert listed(place, '"Re named"', "run, configurations") == (run, 2)
    place("SELECT load_keras_model('functional_arch', cerebro.architecture('mlp', 'train'))")
    place.selection("mst_2", [(1, f"optimizer='SGD(lr={rate})', {CROSS}", "batch_size=8") for rate in (0.1, 0.2)],
                    "functional_arch")  # fmt: skip
    place.fit("train", "members", "mst_2", 1)
    place("SELECT cerebro.ensemble('members', 'together', 2)")
    assert listed(place, "together", "target, configurations, best_value") == ("species", 1, None)
    said = place.value("SELECT reason FROM together_info")
    assert said.startswith("the mean of configurations ")
    assert listed(place, "together", "chosen_configuration, made_of, quality") == (1, said, None)


@pytest.mark.parametrize(("validation", "options"), [(None, {}), ("val", {}), ("val", {"objective": "val_accuracy"})])
def test_the_configuration_that_predict_takes(place: Lab, validation: str | None, options: dict[str, str]) -> None:
    place("DROP TABLE IF EXISTS chosen, chosen_info, chosen_summary")
    trained(place, "chosen", validation_table=validation, options=options)
    chosen, made_of, quality = listed(place, "chosen", "chosen_configuration, made_of, quality")
    asked = "SELECT * FROM cerebro.predict('chosen', 'garden', 'id'{}) ORDER BY 1"
    assert place(asked.format("")) == place(asked.format(f", configuration => {chosen}"))
    assert place(asked.format("")) != place(asked.format(f", configuration => {3 - chosen}"))
    assert made_of is None and quality is None


def test_a_model_of_madlib_keras_fit(madlib: Lab, place: Lab) -> None:
    place("SELECT madlib.madlib_keras_fit('train', 'single', 'arch', 1, %s, 'batch_size=8', 1)",
          f"optimizer='SGD', {CROSS}")  # fmt: skip
    assert listed(place, "single", "target, configurations, rows") == ("species", 1, 120)
    place("SELECT cerebro.drop_model('single')")
    assert not {"single", "single_summary"} & place.tables()


def test_a_table_that_somebody_has_locked_is_not_waited_for(place: Lab) -> None:
    trained(place, "busy")
    with contextlib.closing(place.connect()) as other:
        other.autocommit = False
        with other.cursor() as cursor:
            cursor.execute("LOCK TABLE busy_info IN ACCESS EXCLUSIVE MODE")
            begun = time.monotonic()
            assert listed(place, "busy") == (None,) * 8 + (False,)
            assert time.monotonic() - begun < 5
    assert listed(place, "busy", "configurations") == (2,)


def test_no_locks_are_left_and_hundreds_of_tables_are_listed(place: Lab) -> None:
    trained(place, "pattern")
    place("DO $$ BEGIN FOR i IN 1..500 LOOP EXECUTE format('CREATE TABLE copy_%s AS TABLE pattern; CREATE TABLE"
          " copy_%s_info AS TABLE pattern_info; CREATE TABLE copy_%s_summary AS TABLE pattern_summary', i, i, i);"
          " IF i % 100 = 0 THEN COMMIT; END IF; END LOOP; END $$")  # fmt: skip
    begun = time.monotonic()
    for _ in range(10):  # as many tables as 500 models have, read one by one
        for number in range(1, 501):
            place(f"SELECT run, layout FROM copy_{number}_summary")
    one_by_one = time.monotonic() - begun
    place("BEGIN")
    try:
        begun = time.monotonic()
        copies = place("SELECT configurations FROM cerebro.models WHERE model_table LIKE %s", f"{place.schema}.copy%")
        took = time.monotonic() - begun
        assert copies == [(2,)] * 500
        kept = place.value("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'")
    finally:
        place("ROLLBACK")
        place("DO $$ BEGIN FOR i IN 1..500 LOOP EXECUTE format('DROP TABLE copy_%s, copy_%s_info, copy_%s_summary',"
              " i, i, i); IF i % 100 = 0 THEN COMMIT; END IF; END LOOP; END $$")  # fmt: skip
    assert kept < 100 and took < one_by_one * (20 if place.greenplum else 6), (kept, took, one_by_one)


def test_drop_model_drops_a_model_and_nothing_else(place: Lab) -> None:
    run = trained(place, "gone")
    place("CREATE TABLE gone_weights AS SELECT 1 AS mine")  # no table of ours
    before = place.tables()
    place("SELECT cerebro.drop_model('gone')")
    assert before - place.tables() == {"gone", "gone_info", "gone_info_pkey", "gone_summary"}
    assert listed(place, "gone") is None and place.status(run) == "finished"
    place("DROP TABLE gone_weights; SELECT cerebro.materialize(%s, 'gone')", run)
    assert listed(place, "gone", "run") == (run,)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("'flowers'", "'flowers' is not a table of trained models"),
        ("'nowhere'", "model_table: there is no table 'nowhere'"),
        ("NULL", "model_table must not be NULL or empty"),
        ("'kept_summary'", "is not a table of trained models"),
        ("'looks'", "'looks' is a view, not a table"),
        ("'alone'", "'alone' is not a table of trained models: it has no summary"),
    ],
)
def test_what_is_no_model_stays(place: Lab, table: str, says: str) -> None:
    if "kept" not in place.tables():
        trained(place, "kept")
        place("CREATE VIEW looks AS TABLE kept; CREATE VIEW looks_summary AS TABLE kept_summary;"
              " CREATE TABLE alone AS TABLE kept")  # fmt: skip
    before = place.tables()
    with pytest.raises(psycopg2.Error) as error:
        place(f"SELECT cerebro.drop_model({table})")
    assert says in str(error.value) and error.value.diag.message_hint
    assert place.tables() == before


def test_dependants_are_named_and_stay(place: Lab) -> None:
    trained(place, "needed")
    place("CREATE VIEW watched AS SELECT mst_key FROM needed_info")
    with pytest.raises(psycopg2.errors.DependentObjectsStillExist) as error:
        place("SELECT cerebro.drop_model('needed')")
    assert "view watched depends on table needed_info" in error.value.diag.message_detail
    assert "CASCADE" not in str(error.value)
    assert {"needed", "needed_info", "needed_summary", "watched"} <= place.tables()
    place("DROP VIEW watched; SELECT cerebro.drop_model('needed')")
    assert not {"needed", "needed_info", "needed_summary"} & place.tables()


def test_version(place: Lab) -> None:
    assert place.value("SELECT cerebro.version()") == __version__


# -- several users ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people(server: str) -> Iterator[tuple[Town, User, User]]:
    with town(server) as root:
        anna, ben = root.user("anna", "cerebro_user"), root.user("ben", "cerebro_user")
        equip(anna)
        fit(anna)
        yield root, anna, ben


def tables_of(user: User) -> list[Any]:
    return user("SELECT model_table FROM cerebro.models WHERE best_value IS NOT NULL ORDER BY 1")


def test_others_see_what_they_may_read(people: tuple[Town, User, User]) -> None:
    """Of tables of others the names, and to who may see the log what it says."""
    root, anna, ben = people
    (table,) = tables_of(anna)
    figures = (
        "SELECT run, rows, configurations, created_at IS NOT NULL, best_value FROM cerebro.models"
        f" WHERE model_table = '{table}'"
    )
    (mine,) = anna(figures)
    assert ben(figures) == []
    anna(f"GRANT USAGE ON SCHEMA {anna.name} TO {ben.name}; GRANT SELECT ON {table} TO {ben.name}")
    assert ben(figures) == [(None, None, None, False, None)]
    anna(f"GRANT SELECT ON {table}_info, {table}_summary TO {ben.name}")
    assert ben(figures) == [(None, None, None, False, None)]
    assert ben("SELECT model_table, owner FROM cerebro.models") == [(table, anna.name)]
    ben.refused(f"SELECT cerebro.drop_model('{table}')", why=psycopg2.errors.InsufficientPrivilege)
    assert tables_of(anna) == [table]
    watcher = root.user("watcher", "cerebro_user", "cerebro_monitor")
    anna(f"GRANT USAGE ON SCHEMA {anna.name} TO {watcher.name}; GRANT SELECT ON {table} TO {watcher.name}")
    assert watcher(figures) == [(*mine[:4], None)] and mine[4] is not None
    # Tables of superusers are read for everybody.
    root(f"CREATE SCHEMA {anna.name}_given; GRANT USAGE ON SCHEMA {anna.name}_given TO {ben.name}")
    try:
        for ending in ("", "_info", "_summary"):
            root(f"CREATE TABLE {anna.name}_given.copy{ending} AS TABLE {table}{ending};"
                 f" GRANT SELECT ON {anna.name}_given.copy{ending} TO {ben.name}")  # fmt: skip
        assert tables_of(ben) == [f"{anna.name}_given.copy"]
        root(f"ALTER SCHEMA {anna.name}_given OWNER TO {anna.name}")  # who owns it can rename it
        assert tables_of(ben) == []
    finally:
        root(f"DROP SCHEMA {anna.name}_given CASCADE")


TRAPS = {
    "viewed": "CREATE VIEW {0}_summary AS SELECT s.* FROM {1}_summary s WHERE {2}",
    "policed": "CREATE TABLE {0}_summary AS TABLE {1}_summary; ALTER TABLE {0}_summary ENABLE ROW LEVEL SECURITY;"
    " CREATE POLICY p ON {0}_summary USING ({2})",
    "indexed": "CREATE TABLE {0}_summary AS TABLE {1}_summary; CREATE INDEX ON {0}_summary (run) WHERE {2}",
    "counted": "CREATE TABLE {0}_summary AS TABLE {1}_summary; CREATE STATISTICS {0}_x ON ({2}), run FROM {0}_summary",
    "checked": "CREATE TABLE {0}_summary AS TABLE {1}_summary; ALTER TABLE {0}_summary ADD CHECK ({2})",
}


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("who", ["a user", "a superuser", "of the same group"])
def test_no_code_of_a_table_runs(people: tuple[Town, User, User], isolation: str, who: str) -> None:
    """Views, policies, constraints, index and statistics expressions belong to the tables' owners.

    Each table is plain when the transaction begins, and a trap when the list is read.
    """
    root, anna, ben = people
    victim: Any = root if who == "a superuser" else ben
    (table,) = [one for one in tables_of(anna) if one.endswith(".models")]
    group = f"group_{root.mark}"
    anna("DROP SEQUENCE IF EXISTS rang CASCADE; CREATE SEQUENCE rang CACHE 1; GRANT ALL ON SEQUENCE rang TO PUBLIC;"
         " CREATE OR REPLACE FUNCTION spy() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN"
         f" IF current_user <> '{anna.name}' THEN PERFORM nextval('{anna.name}.rang'); END IF; RETURN true; END $$;"
         f" GRANT EXECUTE ON FUNCTION spy() TO PUBLIC; GRANT USAGE ON SCHEMA {anna.name} TO PUBLIC")  # fmt: skip
    if who == "of the same group":
        root(f"CREATE ROLE {group}; GRANT {group} TO {anna.name}, {ben.name};"
             f" GRANT USAGE, CREATE ON SCHEMA {anna.name} TO {group}")  # fmt: skip
    traps = dict(TRAPS)
    if not root.counts_expressions:
        del traps["counted"]
    made = [f"{anna.name}.{name}" for name in traps]

    def give(own: str) -> None:
        for ending in ("", "_info", "_summary"):
            anna(f"GRANT SELECT ON {own}{ending} TO PUBLIC")
            if who == "of the same group" and "viewed" not in own:
                anna(f"ALTER TABLE {own}{ending} OWNER TO {group}")

    try:
        for own in made:
            for ending in ("", "_info", "_summary"):
                anna(f"CREATE TABLE {own}{ending} AS TABLE {table}{ending}")
            give(own)
        victim(f"BEGIN ISOLATION LEVEL {isolation}")
        victim("SELECT count(*) FROM pg_class")  # the snapshot
        for trap, own in zip(traps.values(), made):
            anna(f"DROP TABLE {own}_summary; {trap.format(own, table, f'{anna.name}.spy()')}")
            give(own)
        found = dict(victim("SELECT model_table, best_value FROM cerebro.models"))
        victim("COMMIT")
        assert isolation == "READ COMMITTED" or set(made) <= set(found)
        assert {found.get(own) for own in made} == {None}
        assert anna("SELECT is_called FROM rang") == [False]
        if who != "of the same group":
            assert victim(f"SELECT count(*) FROM {anna.name}.viewed_summary") == [1]
            assert anna("SELECT is_called FROM rang") == [True], "the trap would not have rung"
    finally:
        victim("ROLLBACK")
        for own in made:
            for kind, ending in (("VIEW", "_summary"), ("TABLE", "_summary"), ("TABLE", "_info"), ("TABLE", "")):
                with contextlib.suppress(psycopg2.Error):
                    anna(f"DROP {kind} {own}{ending}")
        if who == "of the same group":
            root(f"DROP OWNED BY {group}; DROP ROLE {group}")


def test_a_table_that_changes_hands_is_not_read(people: tuple[Town, User, User]) -> None:
    """In a transaction that still sees its former owner."""
    root, anna, ben = people
    (table,) = [one for one in tables_of(anna) if one.endswith(".models")]
    anna("CREATE OR REPLACE FUNCTION ring() RETURNS integer LANGUAGE plpgsql IMMUTABLE AS"
         f" $$ BEGIN RAISE WARNING 'ring'; PERFORM nextval('{anna.name}.bell'); RETURN 1; END $$;"
         f" CREATE SEQUENCE bell; GRANT ALL ON SEQUENCE bell TO PUBLIC;"
         f" GRANT USAGE ON SCHEMA {anna.name} TO PUBLIC")  # fmt: skip
    for ending in ("", "_info", "_summary"):
        root(f"CREATE TABLE {ben.name}.handed{ending} AS TABLE {table}{ending};"
             f" ALTER TABLE {ben.name}.handed{ending} OWNER TO {ben.name}")  # fmt: skip
    assert tables_of(ben) == [f"{ben.name}.handed"]
    ben("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")
    assert tables_of(ben) == [f"{ben.name}.handed"]
    root(f"ALTER TABLE {ben.name}.handed_summary OWNER TO {anna.name}; GRANT USAGE ON SCHEMA {ben.name} TO {anna.name};"
         f" GRANT SELECT ON {ben.name}.handed_summary TO {ben.name};"
         f" GRANT CREATE ON SCHEMA {ben.name} TO {anna.name}")  # fmt: skip
    anna(f"CREATE INDEX ON {ben.name}.handed_summary (run) WHERE {anna.name}.ring() = 1")
    before = anna("SELECT last_value FROM bell")
    assert tables_of(ben) == []
    assert anna("SELECT last_value FROM bell") == before
    ben("COMMIT")
    assert tables_of(ben) == [] and anna("SELECT last_value FROM bell") == before
    ben(f"SELECT count(*) FROM {ben.name}.handed_summary WHERE run = 1")
    assert anna("SELECT last_value FROM bell") != before, "the trap would not have rung"
    root(f"DROP TABLE {ben.name}.handed, {ben.name}.handed_info, {ben.name}.handed_summary")


def test_a_superuser_reads_no_figures_of_ordinary_users(people: tuple[Town, User, User]) -> None:
    """Their owners could change them between the check and the reading; what the log says can be shown."""
    root, anna, ben = people
    table = f"{anna.name}.models"
    (row,) = root("SELECT best_value, target, bytes, owner FROM cerebro.models WHERE model_table = %s", table)
    assert row == (None, None, None, anna.name)
    figures = "SELECT run, rows, configurations FROM cerebro.models WHERE model_table = %s"
    assert root(figures, table) == anna(figures, table)
    root(f"CREATE TABLE {anna.name}_own AS TABLE {table}; CREATE TABLE {anna.name}_own_info AS TABLE {table}_info;"
         f" CREATE TABLE {anna.name}_own_summary AS TABLE {table}_summary")  # fmt: skip
    try:
        mine = "SELECT configurations FROM cerebro.models WHERE model_table LIKE %s"
        assert root(mine, f"%.{anna.name}_own") == anna(
            "SELECT configurations FROM cerebro.models WHERE model_table = %s", table
        )
        root(f"ALTER TABLE {anna.name}_own_info OWNER TO {anna.name}")
        assert root(mine, f"%.{anna.name}_own") == [None]
    finally:
        root(f"DROP TABLE {anna.name}_own, {anna.name}_own_info, {anna.name}_own_summary")


def test_hostile_figures_do_not_make_the_list_fail(people: tuple[Town, User, User]) -> None:
    root, anna, ben = people
    (table,) = [one for one in tables_of(anna) if one.endswith(".models")]
    own = f"{anna.name}.odd"
    anna(f"CREATE TABLE {own} AS TABLE {table}; CREATE TABLE {own}_info AS TABLE {table}_info;"
         f" CREATE TABLE {own}_summary AS TABLE {table}_summary")  # fmt: skip
    for change in (
        *(f"start_training_time = '{one}'" for one in ("4713-01-01 BC", "294276-12-31", "infinity")),
        "layout = '{\"rows\": \"x\"}'", "layout = '{\"rows\": -1e300}'", "layout = '{\"rows\": 1e300}'", "layout = '7'",
        "run = -9223372036854775808", "name = repeat(E'\\u0001', 100000)", "objective = NULL", "direction = 'MAX'",
        "dependent_varname = array_fill('a'::text, ARRAY[3, 100000])", "dependent_varname = '{NULL}'",
    ):  # fmt: skip
        anna(f"UPDATE {own}_summary SET {change}")
        assert own in anna("SELECT model_table FROM cerebro.models"), change
        assert anna("SELECT length(run_name) <= 1000 AND length(target) <= 1000 FROM cerebro.models"
                   f" WHERE model_table = '{own}'") in ([True], [None])  # fmt: skip
    anna(f"ALTER TABLE {own}_info ADD COLUMN quality jsonb")
    for quality in ("'7'", "'{\"says\": {}}'", "'[]'", "jsonb_build_object('says', repeat(E'\\u0001', 100000))"):
        anna(f"UPDATE {own}_info SET quality = {quality}")
        assert anna(f"SELECT configurations > 0 AND COALESCE(length(quality), 0) <= 4000 FROM cerebro.models"
                    f" WHERE model_table = '{own}'") == [True], quality  # fmt: skip
    for value in ("NaN", "Infinity", "-Infinity", "1e308"):
        anna(f"UPDATE {own}_info SET objective_value = '{value}'")
        assert anna(f"SELECT best_value::text FROM cerebro.models WHERE model_table = '{own}'")
