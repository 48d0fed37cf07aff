"""The views of the schema cerebro_bi: plain types only, and otherwise those of the schema cerebro."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest
import sqlalchemy
from psycopg2 import sql
from psycopg2.extras import Json
from sqlalchemy.types import NullType

from tests.reference import VIEWS
from tests.sql.users import Town, User, equip, fit, town

NAMES = sorted(name for names in VIEWS.values() for name in names)
PLAIN = {"bigint", "integer", "double precision", "text", "boolean", "timestamp with time zone"}
COLUMNS = """
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), col_description(a.attrelid, a.attnum)
  FROM pg_attribute a WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
KIND = """
SELECT obj_description(%(view)s::regclass, 'pg_class'), 'security_barrier=true' = ANY (reloptions),
       ARRAY(SELECT r FROM unnest(ARRAY['public', 'cerebro_user', 'cerebro_monitor', 'cerebro_worker']) r
              WHERE has_table_privilege(r, %(view)s, 'SELECT')),
       has_table_privilege('cerebro_admin', %(view)s, 'INSERT, UPDATE, DELETE, TRUNCATE')
  FROM pg_class WHERE oid = %(view)s::regclass
"""


@pytest.fixture(scope="module")
def people(server: str) -> Iterator[tuple[Town, User, User, User]]:
    """The superuser, one who has trained, one who has not, and a monitor."""
    with town(server) as root:
        anna, ben = root.user("anna", "cerebro_user"), root.user("ben", "cerebro_user")
        equip(anna)
        fit(anna)
        yield root, anna, ben, root.user("mona", "cerebro_monitor")


def kind(root: Town, view: str) -> Any:
    with root.root.cursor() as cursor:
        cursor.execute(KIND, {"view": view})
        return cursor.fetchone()


def test_each_view_has_one_for_bi_tools(people: tuple[Town, User, User, User]) -> None:
    root, *_ = people
    found = root("SELECT relname FROM pg_class WHERE relnamespace = 'cerebro_bi'::regnamespace")
    assert sorted(found) == NAMES
    for name in NAMES:
        theirs, ours = (root(COLUMNS, f"{schema}.{name}") for schema in ("cerebro", "cerebro_bi"))
        assert [(column, comment) for column, _, comment in ours] == [
            (column, comment) for column, _, comment in theirs
        ]
        assert {type for _, type, _ in ours} <= PLAIN, name
        comment, barrier, readers, writable = kind(root, f"cerebro_bi.{name}")
        assert (comment, readers) == (kind(root, f"cerebro.{name}")[0], kind(root, f"cerebro.{name}")[2])
        assert barrier and not writable and "public" not in readers


def test_documents_arrays_and_names_are_texts(people: tuple[Town, User, User, User]) -> None:
    root, anna, _, _ = people
    shown = "SELECT parameters, owner FROM {}.leaderboard ORDER BY model"
    for (document, owner), (text, name) in zip(
        anna(shown.format("cerebro")), anna(shown.format("cerebro_bi")), strict=True
    ):
        assert anna("SELECT %s::jsonb = %s::jsonb", text, Json(document)) == [True] and owner == name == anna.name
    for (keys, segments), told in zip(
        anna("SELECT dist_keys, segments FROM cerebro.run_plan"),
        anna("SELECT dist_keys FROM cerebro_bi.run_plan"),
        strict=True,
    ):
        assert told == ", ".join(map(str, keys)) and len(keys) == segments


@pytest.mark.parametrize("name", NAMES)
def test_each_sees_the_same_rows(people: tuple[Town, User, User, User], name: str) -> None:
    root, *users = people
    columns = root(COLUMNS, f"cerebro.{name}")
    plain = sql.SQL(", ").join(sql.Identifier(column) for column, type, _ in columns if type in PLAIN)
    for user in users:
        if not user("SELECT has_table_privilege(%s, 'SELECT')", f"cerebro.{name}")[0]:
            user.refused(f"SELECT * FROM cerebro_bi.{name}")
            continue
        theirs, ours = (
            rounded(user(sql.SQL("SELECT {} FROM {}").format(plain, sql.Identifier(schema, name))))
            for schema in ("cerebro", "cerebro_bi")
        )
        assert theirs == ours


def rounded(rows: list[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Greenplum returns rows in any order, and adds their numbers in any order."""
    return Counter(tuple(float(f"{one:.9g}") if isinstance(one, float) else one for one in row) for row in rows)


def test_what_others_see(people: tuple[Town, User, User, User]) -> None:
    root, anna, ben, mona = people
    assert (
        len(anna("SELECT * FROM cerebro_bi.learning_curve")) > 0 == len(ben("SELECT * FROM cerebro_bi.learning_curve"))
    )
    assert anna.name in mona("SELECT owner FROM cerebro_bi.runs")
    assert mona("SELECT DISTINCT layout FROM cerebro_bi.run_plan") == [None], "class values are data"
    assert len(anna("SELECT layout FROM cerebro_bi.run_plan WHERE layout LIKE '{%'")) == 1
    ben("CREATE FUNCTION told(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS"
        " $$ BEGIN RAISE NOTICE '%', $1; RETURN true; END $$")  # fmt: skip
    ben("SELECT count(*) FROM cerebro_bi.runs WHERE told(source_table)")
    assert not any(anna.name in notice for notice in ben.connection.notices)
    root.user("nobody").refused("SELECT * FROM cerebro_bi.runs")


def test_parameters(people: tuple[Town, User, User, User]) -> None:
    _, anna, ben, mona = people
    documents = dict(anna("SELECT configuration, parameters FROM cerebro.leaderboard"))
    found: dict[int, dict[str, Any]] = {}
    for configuration, parameter, value, text in anna(
        "SELECT configuration, parameter, value, text FROM cerebro.parameters"
    ):
        found.setdefault(configuration, {})[parameter] = text if value is None else value
        assert value is None or float(text) == value
    numbers = {
        key: {name: value for name, value in document.items() if isinstance(value, (int, float))}
        for key, document in documents.items()
    }
    assert found.keys() == documents.keys() and len(found) > 0
    for key, document in documents.items():
        assert found[key].keys() == document.keys() and numbers[key].items() <= found[key].items() and numbers[key]
    assert ben("SELECT * FROM cerebro.parameters") == []
    assert anna.name in mona("SELECT owner FROM cerebro.parameters")


def test_numbers_that_are_none_here_are_texts(people: tuple[Town, User, User, User]) -> None:
    _, anna, _, mona = people
    odd = '{"a": 1e400, "b": -1e-400, "c": [1, 2], "d": null, "e": true, "f": "x", "g": 0, "h": {"i": 1}}'
    anna("BEGIN")
    columns = {"configuration": "900", "parameters": "%s"}
    names = [
        "run", "configuration", "place", "model_id", "compile_params", "fit_params", "compile", "fit", "parameters",
    ]  # fmt: skip
    anna(
        f"INSERT INTO cerebro.configuration ({', '.join(names)})"
        f" SELECT {', '.join(columns.get(name, name) for name in names)} FROM cerebro.configuration LIMIT 1", odd,
    )  # fmt: skip
    rows = anna("SELECT parameter, value, text FROM cerebro.parameters WHERE configuration = 900 ORDER BY parameter")
    anna("ROLLBACK")
    assert [(name, value) for name, value, _ in rows] == [
        ("a", None), ("b", 0.0), ("c", None), ("d", None), ("e", None), ("f", None), ("g", 0.0), ("h", None),
    ]  # fmt: skip
    assert [text for _, _, text in rows[2:]] == ["[1, 2]", None, "true", "x", "0", '{"i": 1}']


def test_sqlalchemy_knows_every_type(server: str) -> None:
    """Superset and others learn of the columns through it."""
    engine = sqlalchemy.create_engine("postgresql+psycopg2://", creator=lambda: psycopg2.connect(server))
    try:
        seen = sqlalchemy.inspect(engine)
        assert sorted(seen.get_view_names(schema="cerebro_bi")) == NAMES and not seen.get_table_names("cerebro_bi")
        types = {type(column["type"]) for name in NAMES for column in seen.get_columns(name, schema="cerebro_bi")}
        assert NullType not in types
        assert {one().python_type.__name__ for one in types} == {"int", "str", "float", "bool", "datetime"}
    finally:
        engine.dispose()
