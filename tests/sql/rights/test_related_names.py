"""A model's plan names related tables, and a name in a document opens none of them.

mallory's model reads tables of mallory's.  Whoever predicts with it, or with a copy of it, reads the tables that the
call names, and no code of mallory's runs: no view, policy, statistic or expression of an index of mallory's tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from tests.sql import users
from tests.sql.users import Town, User

LEVELS = ("READ COMMITTED", "REPEATABLE READ")
MLP = '[{"architecture": "mlp", "units": 4}]'
# Not Greenplum's cache of 20 values for each session: each call counts.
RING = """
CREATE SEQUENCE rang CACHE 1; GRANT USAGE ON SEQUENCE rang TO PUBLIC;
CREATE FUNCTION ring(i bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
    IF current_user <> '{own}' THEN PERFORM pg_catalog.nextval('{own}.rang'); END IF;
    RETURN i;
END $$;
"""
TABLES = """
CREATE TABLE people (id integer PRIMARY KEY, seen timestamptz, age integer, gone boolean);
INSERT INTO people SELECT i, timestamptz '2024-01-01Z' + i % 30 * interval '1 day', i % 60, i % 3 = 0
  FROM generate_series(1, 300) i;
CREATE TABLE orders (id bigint PRIMARY KEY, person integer, at timestamptz, amount double precision);
INSERT INTO orders SELECT i, 1 + i % 290, timestamptz '2023-12-20Z' + i % 40 * interval '1 day', i % 17
  FROM generate_series(1, 2000) i;
"""
RELATED = json.dumps({"orders": {"on": "person", "time": "at", "latest": 2}})
FORMS = {
    "a view": "ALTER TABLE orders RENAME TO hidden;"
    " CREATE VIEW orders AS SELECT id, ring(person)::integer AS person, at, amount FROM hidden",
    "a policy": "ALTER TABLE orders ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON orders USING (ring(id) > 0)",
    # The planner computes what is constant.
    "statistics": "CREATE STATISTICS s ON (ring(1) + id), person FROM orders; ANALYZE orders",
    "an index": "CREATE INDEX ON orders (person) WHERE ring(1) > 0; ANALYZE orders",
}
CALLS = {
    "predict": "SELECT * FROM predict('{model}', 'SELECT * FROM people'{named})",
    "predict_into": "SELECT predict_into('{model}', 'people', 'made'{named})",
    "evaluate": "SELECT * FROM evaluate('{model}', 'SELECT * FROM people'{named})",
    "importance": "SELECT * FROM importance('{model}', 'SELECT * FROM people LIMIT 50'{named})",
    "explain": "SELECT * FROM explain('{model}', 'TABLE people LIMIT 2', background => 'TABLE people LIMIT 9'{named})",
    "drift": "SELECT * FROM drift('{model}', 'SELECT * FROM people'{named})",
    "confusion_matrix": "SELECT * FROM confusion_matrix('{model}', 'SELECT * FROM people'{named})",
    "mistakes": "SELECT * FROM mistakes('{model}', 'SELECT * FROM people'{named})",
    "roc_curve": "SELECT * FROM roc_curve('{model}', 'SELECT * FROM people'{named})",
    "calibration": "SELECT * FROM calibration('{model}', 'SELECT * FROM people'{named})",
    "related_rows": "SELECT related_rows('{model}', 'SELECT * FROM people', 'made'{named})",
    "create_predictor": "SELECT create_predictor('{model}', 'guess'{named})",
}


@pytest.fixture(scope="module")
def place(server: str) -> Iterator[tuple[Town, User, User]]:
    with users.town(server) as root:
        mallory, bob = root.user("mallory", "cerebro_user"), root.user("bob", "cerebro_user")
        for user in (mallory, bob):
            user(TABLES)
        mallory(RING.replace("{own}", mallory.name))
        fit(mallory, "m")
        mallory(f"GRANT USAGE ON SCHEMA {mallory.name} TO PUBLIC")
        mallory(f"GRANT SELECT ON ALL TABLES IN SCHEMA {mallory.name} TO PUBLIC")
        yield root, mallory, bob


def fit(user: User, model: str) -> None:
    user(
        f"SELECT fit('people', '{model}', '{MLP}', target => 'gone', related => %s, as_of => 'seen', epochs => 1)",
        RELATED,
    )


def set_trap(mallory: User, form: str) -> None:
    """Make mallory's table of orders anew, in this form."""
    (kind,) = mallory("SELECT relkind::text FROM pg_class WHERE oid = 'orders'::regclass")
    mallory(f"DROP {'VIEW' if kind == 'v' else 'TABLE'} orders; DROP TABLE IF EXISTS hidden")
    mallory(TABLES[TABLES.index("CREATE TABLE orders") :] + form)
    mallory(f"GRANT SELECT ON ALL TABLES IN SCHEMA {mallory.name} TO PUBLIC")
    rang(mallory)


def rang(mallory: User) -> int:
    """How often others have called mallory's function, since the last time."""
    (found,) = mallory("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM rang")
    mallory("SELECT setval('rang', 1, false)")
    return int(found)


def named(table: str = "orders") -> str:
    return ', related => \'{"orders": "' + table + "\"}'"


def at_level(user: Any, level: str, statement: str) -> str | None:
    """The error, if there is one.  Nothing is kept."""
    try:
        user(f"BEGIN ISOLATION LEVEL {level}; {statement.replace('%', '%%')}")
    except psycopg2.Error as error:
        return str(error)
    finally:
        user("ROLLBACK")
    return None


def test_a_strangers_model_reads_what_the_call_names(place: tuple[Town, User, User]) -> None:
    _, mallory, bob = place
    model = f"{mallory.name}.m"
    for name, call in CALLS.items():
        told = at_level(bob, LEVELS[0], call.format(model=model, named=""))
        assert told is not None and "has to name them" in told, (name, told)
        assert '"orders": "TABLE"' in told
        assert at_level(bob, LEVELS[0], call.format(model=model, named=named())) is None, name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("level", LEVELS)
def test_no_code_of_the_stranger_runs(place: tuple[Town, User, User], form: str, level: str) -> None:
    town, mallory, bob = place
    if form == "statistics" and int(mallory("SHOW server_version_num")[0]) < 140000:
        pytest.skip("before PostgreSQL 14, statistics have no expressions")
    set_trap(mallory, FORMS[form])
    model = f"{mallory.name}.m"
    root = town.root
    with root.cursor() as cursor:
        cursor.execute(f"SET search_path = {bob.name}, cerebro")

    def as_root(statement: str, *values: Any) -> None:
        with root.cursor() as cursor:
            cursor.execute(statement)

    for call in CALLS.values():
        for given in ("", named(f"{bob.name}.orders")):
            at_level(bob, level, call.format(model=model, named=given))
            at_level(as_root, level, call.format(model=model, named=given))
    assert rang(mallory) == 0
    # The trap works: whoever names it steps into it.
    at_level(bob, level, CALLS["predict"].format(model=model, named=named(f"{mallory.name}.orders")))
    assert rang(mallory) > 0
    # What its owner's role has named is no stranger's for the owner alone.
    assert at_level(mallory, level, CALLS["predict"].format(model="m", named="")) is None


def test_a_copy_of_a_model_is_nobodys_choice(place: tuple[Town, User, User]) -> None:
    """A summary has the number of any run: that of the victim's own, too."""
    _, mallory, bob = place
    fit(bob, "own")
    assert at_level(bob, LEVELS[0], CALLS["predict"].format(model="own", named="")) is None
    (run,) = bob("SELECT run FROM own_summary")
    set_trap(mallory, FORMS["a view"])
    for ending in ("", "_info", "_summary"):
        bob(f"CREATE TABLE copy{ending} AS SELECT * FROM {mallory.name}.m{ending}")
    bob(f"UPDATE copy_summary SET run = {run}")
    told = at_level(bob, LEVELS[0], CALLS["predict"].format(model="copy", named=""))
    assert told is not None and "has to name them" in told
    assert rang(mallory) == 0
    bob("DROP TABLE copy, copy_info, copy_summary")


def test_a_name_in_an_edited_summary_opens_nothing(place: tuple[Town, User, User]) -> None:
    """The run is the victim's and the rows are its rows, but somebody has written another table into the plan."""
    _, mallory, bob = place
    set_trap(mallory, FORMS["a view"])
    fit(bob, "edited")
    # Rows come in any order on Greenplum, which decides in which batch a row is.
    predicted = (
        "SELECT key_value::integer, round(probability::numeric, 5) FROM predict('edited', 'people', 'id') ORDER BY 1"
    )
    before = bob(predicted)
    bob(
        "UPDATE edited_summary SET layout = jsonb_set(layout, '{related,steps,0,table}', %s)",
        f'"{mallory.name}.orders"',
    )
    assert bob("SELECT layout -> 'related' -> 'steps' -> 0 ->> 'table' FROM edited_summary") == [
        f"{mallory.name}.orders"
    ]
    assert bob(predicted) == before
    assert rang(mallory) == 0


def test_another_role_of_the_session_has_chosen_nothing(place: tuple[Town, User, User]) -> None:
    """What a session keeps of a model is kept for the role that it was made for."""
    town, mallory, bob = place
    fit(bob, "shared")
    bob(f'GRANT USAGE ON SCHEMA "{bob.name}" TO PUBLIC; GRANT SELECT ON ALL TABLES IN SCHEMA "{bob.name}" TO PUBLIC')
    call = f"SELECT * FROM cerebro.predict('{bob.name}.shared', 'SELECT * FROM {bob.name}.people')"
    with town.root.cursor() as cursor:
        cursor.execute(f"SET ROLE {bob.name}")
        cursor.execute(call)
        assert cursor.fetchone() is not None
        for role in (mallory.name, "NONE"):
            cursor.execute(f"SET ROLE {role}")
            with pytest.raises(psycopg2.Error, match="has to name them"):
                cursor.execute(call)
        cursor.execute("RESET ROLE")


def test_rights_are_those_of_the_caller(place: tuple[Town, User, User]) -> None:
    _, mallory, bob = place
    model = f"{mallory.name}.m"
    bob("CREATE TABLE part (LIKE orders); GRANT SELECT (person, at) ON part TO PUBLIC")
    told = at_level(mallory, LEVELS[0], CALLS["predict"].format(model="m", named=named(f"{bob.name}.part")))
    assert told is not None and "amount" in told and "permission denied" in told
    told = at_level(bob, LEVELS[0], CALLS["predict"].format(model=model, named=named(f"{mallory.name}.nothing")))
    assert told is not None and "there is no table" in told
    bob("DROP TABLE part")


def test_foreign_keys_of_strangers_lead_nowhere(place: tuple[Town, User, User]) -> None:
    """'auto' follows the keys of the caller's tables alone: a stranger's table may refer to the caller's table."""
    _, mallory, bob = place
    bob("CREATE TABLE parents (id integer PRIMARY KEY, age integer, gone boolean);"
        " GRANT REFERENCES ON parents TO PUBLIC;"
        " INSERT INTO parents SELECT i, i % 50, i % 2 = 0 FROM generate_series(1, 200) i;"
        " CREATE TABLE visits (id integer PRIMARY KEY, parent integer REFERENCES parents, pages integer);"
        " INSERT INTO visits SELECT i, 1 + i % 200, i % 9 FROM generate_series(1, 600) i;"
        f' GRANT USAGE ON SCHEMA "{bob.name}" TO PUBLIC')  # fmt: skip
    mallory(f"CREATE TABLE children (id integer PRIMARY KEY, parent integer REFERENCES {bob.name}.parents, n integer);"
            " INSERT INTO children SELECT i, 1 + i % 200, i FROM generate_series(1, 400) i;"
            " ALTER TABLE children ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON children USING (ring(id) > 0);"
            " GRANT SELECT ON children TO PUBLIC")  # fmt: skip
    rang(mallory)
    bob(f"SELECT fit('parents', 'followed', '{MLP}', target => 'gone', related => 'auto', epochs => 1)")
    (plan,) = bob("SELECT layout -> 'related' -> 'steps' FROM followed_summary")
    assert [step["path"] for step in plan] == ["visits"]
    assert len(bob("SELECT * FROM predict('followed', 'SELECT * FROM parents')")) == 200
    assert rang(mallory) == 0


def test_a_predictor_remembers_what_its_creator_named(place: tuple[Town, User, User]) -> None:
    _, mallory, bob = place
    set_trap(mallory, "")
    bob(f"SELECT create_predictor('{mallory.name}.m', 'guess'{named()})")
    (body,) = bob(
        "SELECT prosrc FROM pg_proc WHERE proname = 'guess' AND pronamespace = current_schema()::regnamespace"
    )
    assert f"{bob.name}" in body and "orders" in body
    assert bob("SELECT guess(id => 5) IS NOT NULL") == [True]


def test_a_shared_version_reads_what_the_call_names(place: tuple[Town, User, User]) -> None:
    _, mallory, bob = place
    set_trap(mallory, FORMS["a view"])
    name = f"model_of_{mallory.name}"
    mallory("SELECT register(%s, 'm')", name)
    mallory("SELECT share(%s, %s)", name, bob.name)
    for level in LEVELS:
        for call in ("predict", "predict_into", "evaluate", "importance", "mistakes"):
            told = at_level(bob, level, CALLS[call].format(model=f"{name}@1", named=""))
            assert told is not None and "has to name them" in told, (call, told)
            assert at_level(bob, level, CALLS[call].format(model=f"{name}@1", named=named())) is None
    assert rang(mallory) == 0
    assert at_level(mallory, LEVELS[0], CALLS["predict"].format(model=f"{name}@1", named="")) is None


def test_a_forgotten_run_has_chosen_nothing(place: tuple[Town, User, User]) -> None:
    _, _, bob = place
    fit(bob, "forgotten")
    assert at_level(bob, LEVELS[0], CALLS["predict"].format(model="forgotten", named="")) is None
    bob("SELECT forget((SELECT run FROM forgotten_summary))")
    told = at_level(bob.another(), LEVELS[0], CALLS["predict"].format(model="forgotten", named=""))
    assert told is not None and "its run was forgotten" in told
    assert at_level(bob, LEVELS[0], CALLS["predict"].format(model="forgotten", named=named())) is None
