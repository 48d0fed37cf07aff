"""Rows that a verb has packed are used again by later calls, unless the rows or the preparation have changed."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from cerebro_db.core.names import PACKED_ENDINGS
from tests.sql.lab import Lab, eventually, run, verb
from tests.sql.users import town

ROWS = """
CREATE TABLE houses AS SELECT i AS id, (i * 37 % 91)::real AS size, ARRAY[[i, 2], [3, i % 5]]::real[] AS plan,
  (ARRAY['Rome', 'Bonn', 'Lyon'])[1 + i % 3] AS city, timestamptz '2020-01-01 12:00+00' + i * interval '1 day' AS sold,
  0.1 * i AS cost, i % 4 AS person, i * 2.0::real AS n1, 1.0::real AS n2, sin(i)::real AS n3, cos(i)::real AS n4,
  1.5::real AS n5, NULLIF(i, 7)::real AS n6, i::real AS n7, CASE WHEN i % 3 = 0 THEN 'high' ELSE 'low' END AS class
FROM generate_series(1, 60) i
"""
ONE = [{"architecture": "mlp", "units": 4, "layers": 1}]
AGAIN = "were packed before, for the same arguments, and are used again: they are in "


@pytest.fixture
def houses(lab: Lab) -> Iterator[Lab]:
    lab("DROP TABLE IF EXISTS houses CASCADE")
    lab(ROWS)
    yield lab
    for (name,) in lab("SELECT model_table FROM models WHERE model_table LIKE %s", f"{lab.schema}.%"):
        lab("SELECT drop_model(%s)", name)
    lab("SELECT forget(run) FROM runs WHERE model_table LIKE %s", f"{lab.schema}.%")
    lab.told()
    for name in [one for one in lab.tables() if "_packed" in one or "decoy" in one]:
        lab(f"DROP TABLE IF EXISTS {name}")


def packed(lab: Any, output: str, source: str = "houses", **more: Any) -> str:
    """The name of the packed table in this schema that the verbs use for these arguments of cerebro.pack."""
    names = (
        "inputs", "prepare", "validation", "validation_table", "split_by", "split_at", "stratify", "buffer_size",
        "segments", "distribution_rules", "seed", "sequence", "weights", "class_weight", "folds", "group_by", "related",
        "as_of",
    )  # fmt: skip
    given = {"target": "class", **dict.fromkeys(names), **more}
    named = ", ".join(f"{name} => %s" for name in given)
    values = [json.dumps(one) if isinstance(one, dict) else one for one in given.values()]
    statement = f"SELECT cerebro_internal._packed_rows(also_in => %s, source_table => %s, output_table => %s, {named})"
    (found,) = lab(statement, "pg_catalog", source, output, *values)  # this schema alone
    return (found if isinstance(found, str) else found[0]).rpartition(".")[2].strip('"')


def fit(lab: Lab, model: str, source: str = "houses", **more: Any) -> str:
    """Fit, and return the packed table of the run."""
    given = {"epochs": 1, "target": "class", "options": {"seed": 1}, **more}
    lab.told()
    number = lab.value(*verb("fit", source, model, ONE, **given))
    found = str(lab.value("SELECT packed_table FROM run_plan WHERE run = %s", number)).rpartition(".")[2]
    return found.removeprefix(f"{lab.schema}_")


def hidden(lab: Lab) -> set[str]:
    """The packed rows in the schema of the product, without the beginning of their names that is the schema's."""
    rows = lab("SELECT relname::text FROM pg_class WHERE relnamespace = 'cerebro_data'::regnamespace"
               " AND relkind IN ('r', 'p') AND NOT relispartition AND starts_with(relname, %s)",
               f"{lab.schema}_")  # fmt: skip
    return {name.removeprefix(f"{lab.schema}_") for (name,) in rows}


def test_three_verbs_pack_a_table_once(houses: Lab) -> None:
    few = {"target": "class", "epochs": 1, "max_configurations": 1, "segments": 1, "options": {"seed": 1}}
    houses(*verb("train", "houses", "first", **few, architectures=["mlp"]))
    first = f"cerebro_data.{houses.schema}_first_packed"
    assert f"the packed rows are in {first} and" in "".join(houses.told())
    space = {"architecture": "mlp", "units": {"choice": [4, 8]}}
    houses(*verb("search", "houses", "second", space, **few))
    told = "".join(houses.told())
    assert f"{AGAIN}{first} and {first}_validation" in told
    assert fit(houses, "third", segments=1) == "first_packed"
    assert {one for one in houses.tables() if one.endswith("_packed")} == {first}
    assert houses.value("SELECT count(*) FROM cerebro.predict('third', 'SELECT * FROM houses')") == 60

    houses("SELECT drop_model('first')")
    assert fit(houses, "fourth", segments=1) == "first_packed", "the rows are kept when their first model is dropped"
    houses("ALTER TABLE fourth RENAME TO fifth; ALTER TABLE fourth_info RENAME TO fifth_info;"
           " ALTER TABLE fourth_summary RENAME TO fifth_summary")  # fmt: skip
    houses("SELECT drop_model('third')")
    houses("SELECT drop_model('second')")
    assert houses("SELECT count(*) FROM cerebro.evaluate('fifth') WHERE metric = 'rows'") == [(1,)]
    houses("SELECT drop_model('fifth')")
    assert not hidden(houses), "they go with the last model"


def test_packed_rows_that_no_run_needs_go(houses: Lab) -> None:
    """With the model that is replaced, and with a run that is forgotten; those that the user has named stay."""
    assert fit(houses, "a") == "a_packed"
    houses("UPDATE houses SET size = size + 1 WHERE id = 7")
    assert fit(houses, "a", replace=True) == "a_packed_2", "a name that is on record has one meaning"
    assert {one for one in hidden(houses) if "validation" not in one} == {"a_packed_2", "a_packed_2_summary"}
    assert fit(houses, "b") == "a_packed_2"
    run = houses.value("SELECT max(run) FROM runs")
    houses("SELECT forget(%s)", run)
    assert "a_packed_2" in hidden(houses)
    houses("SELECT forget(%s)", run - 1)
    assert not hidden(houses) and houses.value("SELECT count(*) FROM predict('a', 'TABLE houses')") == 60
    with pytest.raises(psycopg2.Error, match="its run was forgotten"):
        houses("SELECT * FROM evaluate('a')")
    assert fit(houses, "c", packed_table="named_packed") == "named_packed"
    assert fit(houses, "d") == "named_packed", "those in the schema of the model are used, too"
    houses("SELECT drop_model('c')")
    houses("SELECT drop_model('d')")
    assert not hidden(houses) and "named_packed" in houses.tables()


def test_packed_rows_stay_while_a_model_that_may_need_them_cannot_be_read(houses: Lab, server: str) -> None:
    assert fit(houses, "a") == fit(houses, "b") == "a_packed"
    with contextlib.closing(psycopg2.connect(server)) as another, another.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {houses.schema}.b IN ACCESS EXCLUSIVE MODE")
        houses("SELECT drop_model('a')")
    assert f"because the model table {houses.schema}.b may need them" in "".join(houses.told())
    assert houses("SELECT count(*) FROM cerebro.evaluate('b') WHERE metric = 'rows'") == [(1,)]
    houses("SELECT drop_model('b')")
    assert not hidden(houses)


def test_packed_rows_stay_for_a_registered_version(houses: Lab) -> None:
    name = f"kept_{houses.schema}"
    judged = "SELECT count(*) FROM cerebro.evaluate(%s) WHERE metric = 'rows'"
    try:
        assert fit(houses, "a") == fit(houses, "b") == "a_packed"
        houses("SELECT register(%s, 'a')", name)
        houses("SELECT register(%s, 'b')", name)
        before = hidden(houses)
        houses("SELECT drop_model('a')")
        houses("SELECT drop_model('b')")
        assert hidden(houses) == before
        houses("SELECT unregister(%s, 2)", name)
        assert hidden(houses) == before and houses(judged, f"{name}@1") == [(1,)]
        houses("SELECT unregister(%s, 1)", name)
        assert not hidden(houses), "they go with the last version"
    finally:
        houses.remove_registered(name)


def test_a_registered_version_whose_run_was_forgotten_says_so(houses: Lab) -> None:
    name = f"lost_{houses.schema}"
    try:
        fit(houses, "a")
        houses("SELECT register(%s, 'a')", name)
        houses("SELECT drop_model('a')")
        houses("SELECT forget(max(run)) FROM runs")
        assert not hidden(houses), "nothing could find them any more"
        with pytest.raises(psycopg2.Error, match="its run was forgotten"):
            houses("SELECT * FROM evaluate(%s)", f"{name}@1")
    finally:
        houses.remove_registered(name)


@pytest.mark.parametrize("ending", PACKED_ENDINGS)
def test_packed_rows_on_which_a_view_depends_stay_whole(houses: Lab, ending: str) -> None:
    fit(houses, "a")
    before = hidden(houses)
    assert len(before) == len(PACKED_ENDINGS)
    table = f"cerebro_data.{houses.schema}_a_packed"
    rows = f"SELECT count(*) FROM {table}"
    count = houses.value(rows)
    houses(f"CREATE VIEW seen AS SELECT 1 AS one FROM {table}{ending}")
    try:
        houses("SELECT drop_model('a')")
        told = "".join(houses.told())
        assert f"the packed rows in {table} stay, because other objects depend on them" in told and "view seen" in told
        houses("SELECT forget(max(run)) FROM runs")
        told = "".join(houses.told())
        assert "its packed rows stay, because other objects depend on them" in told and "seen of" in told
        assert "states" not in told
        assert hidden(houses) == before and houses.value(rows) == count > 0
    finally:
        houses("DROP VIEW seen")
        houses("DROP TABLE " + ", ".join(f"{table}{one}" for one in PACKED_ENDINGS))


def test_a_table_that_the_user_has_named_in_that_schema_stays(houses: Lab) -> None:
    name = f"cerebro_data.{houses.schema}_named"
    try:
        fit(houses, "a", packed_table=name)
        houses("SELECT drop_model('a')")
        houses("SELECT forget(max(run)) FROM runs")
        assert {"named", "named_validation"} <= hidden(houses)
    finally:
        for ending in PACKED_ENDINGS:
            houses(f"DROP TABLE IF EXISTS {name}{ending}")


def test_rows_of_a_run_that_has_not_finished_stay(houses: Lab) -> None:
    given = {"target": "class", "options": {"seed": 1}}
    number = houses.value(*verb("fit", "houses", "a", ONE, **given, epochs=100_000, wait=False))
    assert fit(houses, "b") == "a_packed"
    houses("SELECT drop_model('b')")
    houses("SELECT forget(%s)", number + 1)
    assert "a_packed" in hidden(houses)
    houses("SELECT cancel(%s)", number)
    eventually(lambda: houses.status(number) == "cancelled", what="the run has ended")
    if houses.value("SELECT to_regclass('a') IS NOT NULL"):
        houses("SELECT drop_model('a')")
    assert "a_packed" in hidden(houses), "the run could be resumed"
    houses("SELECT forget(%s)", number)
    assert not hidden(houses)


def test_five_trainings_leave_a_model_each(houses: Lab) -> None:
    before = houses.tables()
    for number in range(5):
        houses("UPDATE houses SET size = size + 1")
        fit(houses, f"model_{number}")
    made = {name for name in houses.tables() - before if not name.startswith("cerebro_data.")}
    assert made == {f"model_{number}{end}" for number in range(5) for end in ("", "_info", "_info_pkey", "_summary")}


def test_what_another_role_puts_in_their_place_is_not_read(server: str) -> None:
    """Every user may make tables in the schema, so a name that is free again may be a stranger's."""
    with town(server) as place:
        alice, mallory = place.user("alice", "cerebro_user"), place.user("mallory", "cerebro_user")
        alice("CREATE TABLE points AS SELECT sin(i) AS x, i % 2 = 0 AS class FROM generate_series(1, 40) i")
        mallory(f"CREATE TABLE cerebro_data.{alice.name}_m_packed_validation (id integer)")
        given = {"epochs": 1, "target": "class", "options": {"seed": 1}}
        (number,) = alice(*verb("fit", "points", "m", ONE, **given))
        (packed,) = alice("SELECT packed_table FROM cerebro.runs")
        assert packed == f"cerebro_data.{alice.name}_m_packed_2"
        mallory(f"CREATE TYPE cerebro_data.{alice.name}_n_packed AS ENUM ('x')")
        mallory(f"CREATE TABLE cerebro_data.{alice.name}_n_packed_2_seg0 (id integer)")
        alice("UPDATE points SET x = x + 1")
        alice(*verb("fit", "points", "n", ONE, **given))
        assert f"cerebro_data.{alice.name}_n_packed_3" in alice("SELECT packed_table FROM cerebro.runs")
        mallory.refused(f"SELECT * FROM {packed}")
        mallory.refused(f"DROP TABLE {packed}")
        alice("SELECT cerebro.drop_model('m')")
        assert alice("SELECT to_regclass(%s)", packed) == [None]
        for ending in ("", "_summary", "_validation", "_validation_summary"):
            mallory(f"CREATE VIEW {packed}{ending} AS SELECT pg_sleep(1)::text AS layout, 1 AS __dist_key__")
            mallory(f"GRANT SELECT ON {packed}{ending} TO PUBLIC")
        error = alice.refused("SELECT cerebro.resume(%s, epochs => 2)", number, why=psycopg2.Error)
        assert "you have no such table any more" in str(error)
        alice("SELECT cerebro.materialize(%s, 'm')", number)
        error = alice.refused("SELECT * FROM cerebro.evaluate('m')", why=psycopg2.Error)
        assert "which is no table of yours" in str(error)
        alice("SELECT cerebro.drop_model('m')")
        alice("SELECT cerebro.forget(%s)", number)
        assert mallory("SELECT relkind::text FROM pg_class WHERE oid = to_regclass(%s)", packed) == ["v"]
        (later,) = alice(*verb("fit", "points", "o", ONE, **given))
        (packed,) = alice("SELECT packed_table FROM cerebro.runs WHERE run = %s", later)
        alice(f"DROP TABLE {packed}_validation")
        mallory(f"CREATE VIEW {packed}_validation AS SELECT 1 AS __dist_key__")
        mallory(f"GRANT SELECT ON {packed}_validation TO PUBLIC")
        error = alice.refused("SELECT cerebro.resume(%s, epochs => 2)", later, why=psycopg2.Error)
        assert f"in {packed}_validation, and you have no such table any more" in str(error)


def test_packed_rows_that_are_used_again_are_not_left_over(houses: Lab) -> None:
    """A call that is refused removes the tables that it has made, and no others."""
    fit(houses, "first")
    before = houses.tables()
    given = {"epochs": 1, "target": "size, cost", "inputs": "id, person"}
    with pytest.raises(psycopg2.Error, match="cnn reads images"):
        houses(*verb("fit", "houses", "second", [{"architecture": "cnn"}], **given))
    eventually(lambda: houses.tables() == before, what="another session has dropped them")  # on Greenplum
    houses(*verb("fit", "houses", "third", ONE, **given))
    before = houses.tables()
    with pytest.raises(psycopg2.Error, match="cnn reads images"):
        houses(*verb("fit", "houses", "second", [{"architecture": "cnn"}], **given))
    assert houses.tables() == before and "These tables remain" not in "".join(houses.told())


CHANGES = [
    "UPDATE houses SET size = size + 1 WHERE id = 7",
    "UPDATE houses SET cost = cost + 0.0000001 WHERE id = 7",
    "UPDATE houses SET size = '-0' WHERE size = 0",
    "UPDATE houses SET plan = ARRAY[plan[1][1], plan[1][2], plan[2][1], plan[2][2]]",
    "UPDATE houses SET sold = sold + interval '1 microsecond' WHERE id = 7",
    "UPDATE houses SET city = NULL WHERE id = 7",
    "UPDATE houses SET n3 = n4, n4 = n3 WHERE id = 9",
    "UPDATE houses SET n6 = 0 WHERE id = 7",
    "UPDATE houses SET n5 = NULL, n6 = 1.5 WHERE id = 7",
    "UPDATE houses SET city = (ARRAY['Bonn', 'Rome', 'Lyon'])[1 + id % 3]",
    "DELETE FROM houses WHERE id = 7",
    "INSERT INTO houses SELECT * FROM houses WHERE id = 7",
    "ALTER TABLE houses ADD more real DEFAULT 1",
    "ALTER TABLE houses DROP COLUMN city",
    "ALTER TABLE houses RENAME COLUMN city TO town",
    "ALTER TABLE houses ALTER person TYPE smallint",
    "ALTER TABLE houses ADD PRIMARY KEY (id)",
]


def test_rows_that_have_changed_are_packed_again(houses: Lab) -> None:
    def begin_again() -> None:
        houses("DROP TABLE houses CASCADE")
        houses(ROWS)
        houses("UPDATE houses SET size = 0 WHERE id = 1")

    begin_again()
    assert packed(houses, "a_packed", validation=0.2) == packed(houses, "b_packed", validation=0.2) == "a_packed"
    for number, change in enumerate(CHANGES):
        begin_again()
        houses(change)
        assert packed(houses, f"c{number}_packed", validation=0.2) == f"c{number}_packed", change
    assert packed(houses, "d_packed", validation=0.2) == f"c{len(CHANGES) - 1}_packed"
    begin_again()
    assert packed(houses, "e_packed", validation=0.2) == "a_packed"


SAME = [
    "CREATE TABLE other AS TABLE houses; TRUNCATE houses; INSERT INTO houses SELECT * FROM other ORDER BY -id;"
    " DROP TABLE other",
    "UPDATE houses SET size = size + 1; UPDATE houses SET size = size - 1",
    "VACUUM FULL houses",
    "SET datestyle = 'German'; SET timezone = 'Asia/Tokyo'; SET extra_float_digits = -4; SET bytea_output = 'escape'",
    "CREATE TABLE unrelated (id integer)",
]


@pytest.mark.parametrize("change", SAME)
def test_rows_that_are_the_same_are_not_packed_again(houses: Lab, change: str) -> None:
    assert packed(houses, "a_packed", validation=0.2) == "a_packed"
    try:
        for part in change.split("; "):
            houses(part)
        assert packed(houses, "b_packed", validation=0.2) == "a_packed"
    finally:
        houses("RESET datestyle; RESET timezone; RESET extra_float_digits; RESET bytea_output")
        houses("DROP TABLE IF EXISTS unrelated")


def test_a_change_that_is_taken_back_leads_to_the_first_packed_table(houses: Lab) -> None:
    assert packed(houses, "a_packed") == "a_packed"
    houses("UPDATE houses SET city = 'Oslo' WHERE id = 9")
    assert packed(houses, "b_packed") == "b_packed"
    houses("UPDATE houses SET city = 'Rome' WHERE id = 9")
    assert packed(houses, "c_packed") == "a_packed"


def test_only_columns_that_matter_count(houses: Lab) -> None:
    """Without a key, all columns decide on which side a row is."""
    given = {"inputs": "size, city"}
    assert packed(houses, "a_packed", **given, validation=0) == "a_packed"
    assert packed(houses, "b_packed", **given, validation=0.2) == "b_packed"
    houses("UPDATE houses SET cost = 1000 WHERE id = 3")
    assert packed(houses, "c_packed", **given, validation=0) == "a_packed"
    assert packed(houses, "c_packed", **given, validation=0.2) == "c_packed"
    houses("UPDATE houses SET class = 'middle' WHERE id = 3")
    assert packed(houses, "d_packed", **given, validation=0) == "d_packed"


ARGUMENTS: list[dict[str, Any]] = [
    {"target": "person"}, {"inputs": "size, cost"}, {"inputs": "size, city, cost"}, {"prepare": {"city": "ignore"}},
    {"validation": 0.3}, {"validation": 0.0}, {"split_by": "person"}, {"split_at": "sold"}, {"stratify": True},
    {"buffer_size": 7}, {"segments": 1}, {"segments": 2}, {"segments": 3}, {"seed": 3},
    {"weights": "cost"}, {"class_weight": "balanced"},
    {"folds": 3, "validation": None}, {"group_by": "city"},
    {"sequence": {"by": "person", "order": "sold", "length": 3}}, {"validation_table": "others", "validation": None},
]  # fmt: skip


def test_each_argument_of_packing_counts(houses: Lab) -> None:
    houses("DROP TABLE IF EXISTS others; CREATE TABLE others AS SELECT * FROM houses WHERE id > 40")
    usual: dict[str, Any] = {"validation": 0.2, "inputs": "size, city"}
    assert packed(houses, "usual_packed", **usual) == "usual_packed"
    for number, change in enumerate(ARGUMENTS):
        given = {**usual, **change}
        assert packed(houses, f"a{number}_packed", **given) == f"a{number}_packed", change
        assert packed(houses, f"b{number}_packed", **given) == f"a{number}_packed", change
    given = {**usual, **ARGUMENTS[-1]}
    houses("UPDATE others SET city = 'Bonn' WHERE id = 41")
    assert packed(houses, "last_packed", **given) == "last_packed", "the rows for validation have changed"
    houses("CREATE VIEW seen AS TABLE houses")
    assert packed(houses, "seen_packed", source="seen", **usual) == "seen_packed", "the table has another name"
    houses("DROP VIEW seen; DROP TABLE others")


def test_a_row_of_a_related_table_counts(houses: Lab) -> None:
    houses("CREATE TABLE visits AS SELECT id AS house, id % 5 AS length FROM houses")
    given = {"related": {"visits": {"on": {"id": "house"}}}, "inputs": "size"}
    assert packed(houses, "a_packed", **given) == "a_packed"
    assert packed(houses, "b_packed", **given) == "a_packed"
    houses("UPDATE visits SET length = 7 WHERE house = 3")
    assert packed(houses, "b_packed", **given) == "b_packed"
    houses("DROP TABLE visits")


def test_rows_that_differ_each_time_are_packed_each_time(houses: Lab) -> None:
    houses("CREATE VIEW drawn AS SELECT *, random() AS luck FROM houses")
    assert packed(houses, "a_packed", source="drawn", validation=0) == "a_packed"
    assert packed(houses, "b_packed", source="drawn", validation=0) == "b_packed"
    houses("DROP VIEW drawn")


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE a_packed_validation",
        "DROP TABLE a_packed_validation_summary",
        "DROP TABLE a_packed_summary",
        "DELETE FROM a_packed WHERE buffer_id = 0",
        "DELETE FROM a_packed_validation",
        "DELETE FROM a_packed_summary",
        "ALTER TABLE a_packed_summary DROP COLUMN fingerprint",
        "ALTER TABLE a_packed RENAME TO moved_packed",
        "CREATE VIEW copied AS TABLE a_packed_summary; ALTER TABLE a_packed_summary RENAME TO old_packed;"
        " ALTER VIEW copied RENAME TO a_packed_summary",
    ],
)
def test_a_packed_table_that_is_not_whole_is_not_used(houses: Lab, damage: str) -> None:
    given = {"validation": 0.2, "buffer_size": 5}
    assert packed(houses, "a_packed", **given) == "a_packed"
    houses(damage)
    assert packed(houses, "b_packed", **given) == packed(houses, "c_packed", **given) == "b_packed"
    houses("DROP VIEW IF EXISTS a_packed_summary") if "VIEW" in damage else None


def test_a_packed_table_of_another_name_or_schema(houses: Lab) -> None:
    """Who names the packed table gets this one; in another schema, others may see who uses it."""
    assert fit(houses, "a", packed_table="mine_packed") == "mine_packed"
    assert fit(houses, "b", packed_table="other_packed") == "other_packed"
    assert fit(houses, "c", packed_table="other_packed") == "other_packed"
    assert AGAIN in "".join(houses.told())
    before = houses.tables()
    with pytest.raises(
        psycopg2.Error, match="other_packed' exists, and was packed from other rows or with other arguments"
    ):
        fit(houses, "d", packed_table="other_packed", segments=2)
    assert "These tables remain" not in "".join(houses.told()) and houses.tables() == before
    with pytest.raises(psycopg2.Error, match="'houses' already exists"):
        fit(houses, "d", packed_table="houses")
    houses(*verb("fit", "houses", "d", ONE, epochs=1, target="class", packed_table="other_packed", dry_run=True))
    houses(f"CREATE SCHEMA {houses.schema}_2")
    try:
        assert packed(houses, f"{houses.schema}_2.a_packed", validation=0.2) == "a_packed"
    finally:
        houses(f"DROP SCHEMA {houses.schema}_2 CASCADE")


def test_nobody_can_plant_packed_rows(server: str) -> None:
    """A table of another owner is not used: not by its neighbour in a schema, not by a superuser."""
    with town(server) as place:
        alice, mallory = place.user("alice", "cerebro_user"), place.user("mallory", "cerebro_user")
        square = f"square_{place.mark}"
        place(f"CREATE SCHEMA {square}; GRANT ALL ON SCHEMA {square} TO {alice.name}, {mallory.name}")
        with contextlib.ExitStack() as leaving:
            leaving.callback(place, f"DROP SCHEMA {square} CASCADE")
            alice("CREATE TABLE points AS SELECT sin(i) AS x, i % 2 = 0 AS class FROM generate_series(1, 40) i")
            alice(f"GRANT USAGE ON SCHEMA {alice.name} TO {mallory.name}")
            alice(f"GRANT SELECT ON points TO {mallory.name}")
            source = f"{alice.name}.points"
            planted = packed(mallory, f"{square}.planted_packed", source, validation=0)
            mallory(f"GRANT ALL ON {square}.planted_packed, {square}.planted_packed_summary TO PUBLIC")
            assert packed(mallory, f"{square}.second_packed", source, validation=0) == planted == "planted_packed"
            assert packed(alice, f"{square}.hers_packed", source, validation=0) == "hers_packed"
            assert packed(place, f"{square}.root_packed", source, validation=0) == "root_packed"
            # The summary of one owner beside the table of another.
            mallory(f"DROP TABLE {square}.planted_packed_summary")
            place(f"ALTER TABLE {square}.hers_packed RENAME TO half_packed")
            place(f"ALTER TABLE {square}.hers_packed_summary RENAME TO planted_packed_summary")
            assert packed(alice, f"{square}.again_packed", source, validation=0) == "again_packed"
            # A group's table belongs to no member.
            group = f"group_{place.mark}"
            place(f"CREATE ROLE {group}; GRANT {group} TO {alice.name}; GRANT ALL ON SCHEMA {square} TO {group}")
            leaving.callback(place, f"DROP OWNED BY {group}; DROP ROLE {group}")
            for name in ("again_packed", "again_packed_summary"):
                place(f"ALTER TABLE {square}.{name} OWNER TO {group}")
            assert packed(alice, f"{square}.last_packed", source, validation=0) == "last_packed"


def test_rows_without_a_right_are_not_had_again(server: str) -> None:
    with town(server) as place:
        alice, bob = place.user("alice", "cerebro_user"), place.user("bob", "cerebro_user")
        bob("CREATE TABLE points AS SELECT sin(i) AS x, i % 2 = 0 AS class FROM generate_series(1, 40) i")
        bob(f"GRANT USAGE ON SCHEMA {bob.name} TO {alice.name}; GRANT SELECT ON points TO {alice.name}")
        assert packed(alice, "a_packed", f"{bob.name}.points") == "a_packed"
        bob(f"REVOKE SELECT ON points FROM {alice.name}")
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            packed(alice, "b_packed", f"{bob.name}.points")


def test_the_fingerprint_is_that_of_the_rows_that_are_packed(houses: Lab) -> None:
    """Between the two, others change the rows: what is packed are the rows of the fingerprint.

    A lock on another table with a fingerprint, whose turn is between the two, holds the session that packs.
    """
    houses("CREATE TABLE decoy (id integer); CREATE TABLE decoy_summary (fingerprint text)")
    holder, caller, failures = houses.connect(), houses.connect(), []
    holder.autocommit = False
    run(holder, "LOCK TABLE decoy_summary IN ACCESS EXCLUSIVE MODE")

    def first() -> None:
        try:
            run(caller, *verb("fit", "houses", "a", ONE, epochs=1, target="cost", inputs="size, city",
                              validation=0, options={"seed": 1}))  # fmt: skip
        except psycopg2.Error as error:
            failures.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    try:
        held = (
            "SELECT 1 FROM pg_locks l JOIN pg_stat_activity s USING (pid) WHERE NOT l.granted"
            " AND l.relation = 'decoy_summary'::regclass AND s.application_name = 'cerebro_db packing'"
        )
        eventually(lambda: houses(held), what="the session that packs waits")
        houses("UPDATE houses SET cost = 1000 + cost")
        houses("INSERT INTO houses SELECT * FROM houses WHERE id <= 10")
    finally:
        holder.rollback()
        thread.join(60)
        holder.close()
        caller.close()
    assert not failures
    mean = "SELECT layout #>> '{outputs,0,preparation,mean}', rows FROM %s_summary"
    ((before, rows),) = houses(mean % houses.packed_rows("a"))
    assert float(before) == pytest.approx(3.05, 1e-6) and rows == 60
    more = {"target": "cost", "inputs": "size, city", "validation": 0}
    assert fit(houses, "b", **more) == "b_packed"
    ((after, rows),) = houses(mean % houses.packed_rows("b"))
    assert float(after) > 1000 and rows == 70
    houses("CREATE TABLE once AS SELECT DISTINCT ON (id) * FROM houses; TRUNCATE houses; INSERT INTO houses TABLE once")
    houses("UPDATE houses SET cost = cost - 1000")
    assert fit(houses, "c", **more) == "a_packed"
