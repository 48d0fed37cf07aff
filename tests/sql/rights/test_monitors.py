"""Monitors see how runs go, and no values of rows: each column that they read is judged, and canaries are sought."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.sql.users import Town, User, town

COLUMNS = Path(__file__).with_name("monitor_columns.txt")
# Why a column of a relation that monitors read contains no values of rows.
WHY = {
    "number": "a key, a count or a switch of the log",
    "time": "a moment, or a duration in seconds",
    "figure": "a loss or a metric, which monitors are there to see",
    "word": "a word of a closed list",
    "server": "made by the server from none of the user's texts",
    "name": "the name of a role, a table, a run, a model, a metric or a method: names are metadata",
    "parameter": "hyper-parameters, as the user wrote them or a search chose them, before any row was read",
    "remark": "written by a person for whoever reads about the run",
    "administrator": "written by an administrator for all users",
    "owner": "NULL for all but the owner (and of a refusal, whoever made the request)",
    "owner or server": "the text of an error or a rule for the owner; for all others NULL or a text of the server's",
}
NUMBERS = {"integer", "bigint", "double precision", "boolean", "integer[]"}
TYPES = {
    "number": NUMBERS,
    "time": {"timestamp with time zone", "double precision"},
    "figure": {"double precision"},
}
# Only these texts of the server stand in a column that says why something happened.
SERVER_SAYS = re.compile(
    r"only its owner sees the message( \(SQLSTATE [0-9A-Z]{5}\))?"
    r"|its model tables were not made; SELECT cerebro\.materialize\([0-9]+, 'another_name'\) makes them"
    r"|its models are in no table; SELECT cerebro\.materialize\([0-9]+, '[a-z_0-9.]+'\) makes it"
)


def judged() -> dict[str, str]:
    lines = (line for line in COLUMNS.read_text().splitlines() if line and not line.startswith("#"))
    return dict(line.split(": ") for line in lines)


def readable(root: Any) -> dict[str, str]:
    """Each column that a monitor may read, and its type."""
    return dict(
        root(
            "SELECT c.relname || '.' || a.attname, format_type(a.atttypid, NULL) FROM pg_class c"
            " JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE c.relnamespace = 'cerebro'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"
            " AND a.attnum > 0 AND NOT a.attisdropped"
            " AND has_column_privilege('cerebro_monitor', c.oid, a.attnum, 'SELECT')"
        )
    )


def test_each_column_that_a_monitor_reads_is_judged(server: str) -> None:
    """A new column belongs into monitor_columns.txt, with the reason for which it contains no values of rows."""
    with town(server) as root:
        types = readable(root)
    assert judged().keys() == types.keys()
    assert set(judged().values()) <= set(WHY)
    wrong = {
        column: types[column] for column, why in judged().items() if types[column] not in TYPES.get(why, types.values())
    }
    assert not wrong, "a text is no number"


TEXTS = "canary|2187-"  # labels, categories, words, comments and texts of errors, and dates
WEIGHTS = [771231.5 + 123457.25 * step for step in range(7)]
ROWS = """
CREATE TABLE birds AS
SELECT i AS id, (ARRAY['canarylabelred', 'canarylabelblue', 'canarylabelgreen'])[1 + i % 3] AS colour,
       (ARRAY['canarycategorynorth', 'canarycategorysouth', 'canarycategoryeast'])[1 + i * 7 % 3] AS region,
       771231.5 + 123457.25 * (i % 7) AS weight, date '2187-03-01' + i % 20 AS seen,
       'canaryword' || i % 5 || ' canaryother canaryword' || i % 3 AS song
  FROM generate_series(1, 240) i;
COMMENT ON TABLE birds IS 'canarycomment';
COMMENT ON COLUMN birds.region IS 'canarycomment';
"""
FEW = {
    "epochs": 2, "max_configurations": 2, "architectures": ["mlp"], "options": {"seed": 1}, "validation": 0.2,
    "segments": 1,
}  # fmt: skip


def call(user: User, function: str, **given: Any) -> list[Any]:
    values = [json.dumps(one) if isinstance(one, (dict, list)) else one for one in given.values()]
    return user(f"SELECT cerebro.{function}({', '.join(f'{name} => %s' for name in given)})", *values)


@pytest.fixture(scope="module")
def aviary(server: str) -> Iterator[tuple[Town, User, User, User]]:
    """The log of a user whose every value is a canary, with runs that succeed, are stopped and fail in all ways."""
    with town(server) as root:
        owner = root.user("owner", "cerebro_user")
        mona, adam = root.user("mona", "cerebro_monitor"), root.user("adam", "cerebro_admin")
        owner(ROWS)
        call(
            owner,
            "train",
            source_table="birds",
            model_table="colours",
            target="colour",
            folds=2,
            **{**FEW, "validation": None},
        )
        call(owner, "train", source_table="birds", model_table="weights", target="weight", **FEW)
        call(
            owner,
            "fit",
            source_table="birds",
            model_table="regions",
            configurations=[{"architecture": "mlp", "units": 4}],
            target="colour",
            group_by="region",
            epochs=1,
            segments=1,
        )
        owner("SELECT count(*) FROM cerebro.predict('regions', 'SELECT * FROM birds')")
        # A rule whose reasons are labels, and later fails with a value in its message. The cast that fails is outside
        # of the subquery, because Greenplum computes subqueries before the query, whether CASE needs them or not.
        owner("CREATE TABLE turn AS SELECT 1 AS number")
        rule = (
            "SELECT m.model, CASE WHEN m.model = 1 THEN (SELECT min(colour) FROM birds WHERE region > 'canary')"
            " ELSE (SELECT min(region) || number FROM birds, turn GROUP BY number)::integer::text END"
            " FROM cerebro.leaderboard m WHERE m.run = $1 AND m.model IN (1, (SELECT number FROM turn))"
        )
        call(
            owner,
            "train",
            source_table="birds",
            model_table="ruled",
            target="colour",
            stop_when=rule,
            **{**FEW, "epochs": 4},
        )
        owner("UPDATE turn SET number = 2")
        call(
            owner,
            "train",
            source_table="birds",
            model_table="unruly",
            target="colour",
            stop_when=rule,
            **{**FEW, "epochs": 4},
        )
        # Rows that could be read when the run was made, and raise an error with a value when it is resumed.
        owner(
            "CREATE FUNCTION readable(region bytea) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE EXCEPTION 'no such region: canarycategorywest'; END $$"
        )
        (packed,) = owner("SELECT packed_table FROM cerebro.run_plan WHERE model_table LIKE '%%.colours'")
        (inputs,) = owner(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass AND atttypid = 'bytea'::regtype"
            " AND attnum > 0 LIMIT 1",
            packed,
        )
        owner(f"ALTER TABLE {packed} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
        owner(f'CREATE POLICY look ON {packed} USING (readable("{inputs}"))')
        (run,) = owner("SELECT run FROM cerebro.runs WHERE model_table LIKE '%%.colours'")
        owner.refused("SELECT cerebro.resume(%s, 3)", run, why=psycopg2.Error)
        # Requests that are refused.
        (done,) = owner("SELECT run FROM cerebro.runs WHERE model_table LIKE '%%.weights'")
        for someone in (owner, adam):  # there is no such model
            asked = (
                "INSERT INTO cerebro.request (run, owner, action, detail) VALUES (%s, %s, 'stop', '{\"model\": 77}')"
            )
            someone(asked, done, owner.name)
        owner("SELECT cerebro.resume(%s, 3)", done)
        owner("SELECT count(*) FROM cerebro.predict('colours', 'SELECT * FROM birds')")
        yield root, owner, mona, adam


def canaries() -> re.Pattern[str]:
    """The texts, and what numbers begin with: those of the rows, their mean and their deviations.

    All have six digits or more before the point, however they are rounded; a key of the log may have five.
    """
    numbers = [*WEIGHTS, statistics.fmean(WEIGHTS), statistics.pstdev(WEIGHTS), statistics.stdev(WEIGHTS)]
    assert min(numbers) >= 100_000
    return re.compile("|".join([TEXTS, *(rf"(?<![0-9.]){str(number)[:5]}[0-9]" for number in numbers)]))


def shown(reader: User) -> dict[str, list[str]]:
    """The columns that a monitor reads, as the reader sees them."""
    found: dict[str, list[str]] = {column: [] for column in judged()}
    for view in {column.partition(".")[0] for column in found}:
        columns = [column for column in found if column.partition(".")[0] == view]
        texts = ", ".join(f'"{column.partition(".")[2]}"::text' for column in columns)
        for row in reader(f"SELECT ARRAY[{texts}] FROM cerebro.{view}"):
            for column, value in zip(columns, row):
                if value is not None:
                    found[column].append(value)
    return found


def test_the_owner_sees_the_canaries(aviary: tuple[Town, User, User, User]) -> None:
    """They were in every sort of text that can contain values."""
    _, owner, *_ = aviary
    seen = {column for column, texts in shown(owner).items() if any("canary" in text for text in texts)}
    assert seen == {
        *(f"{view}.group_value" for view in ("leaderboard", "learning_curve", "metrics", "groups")),
        "decisions.reason",
        "leaderboard.reason",
        "models.quality",
        "run_plan.layout",
        "run_plan.options",
        "run_plan.packed_summary",
        "run_plan.validation_layout",
        "run_progress.message",
        "runs.message",
        "runs.quality",
    }
    assert {"failed", "finished"} == set(owner("SELECT status FROM cerebro.runs"))
    assert owner("SELECT count(*) FROM cerebro.requests WHERE refusal IS NOT NULL") >= [1]


@pytest.mark.parametrize("who", ["monitor", "administrator"])
def test_nobody_else_sees_a_canary(aviary: tuple[Town, User, User, User], who: str) -> None:
    _, owner, mona, adam = aviary
    reader = mona if who == "monitor" else adam
    found = shown(reader)
    assert set(reader("SELECT run FROM cerebro.runs")) >= set(owner("SELECT run FROM cerebro.runs"))
    for column, texts in found.items():
        caught = [text for text in texts if canaries().search(text) and judged()[column] not in ("figure", "time")]
        assert not caught, (column, caught[:3])


def test_what_the_owner_alone_sees(aviary: tuple[Town, User, User, User]) -> None:
    _, owner, mona, adam = aviary
    own, theirs = shown(owner), shown(mona)
    for column, why in judged().items():
        if why == "owner":
            assert theirs[column] == [], column
    for column in ("runs.message", "run_progress.message"):
        assert own[column] and theirs[column]
        assert all(SERVER_SAYS.fullmatch(text) for text in theirs[column]), theirs[column]
    assert any("SQLSTATE P0001" in text for text in theirs["runs.message"])
    failed = "SELECT count(reason), count(*) FROM cerebro.leaderboard WHERE status = 'failed' OR stopped_by = 'rule'"
    assert owner(failed)[0][0] == owner(failed)[0][1] > 0
    assert mona(failed) == [(0, owner(failed)[0][1])]
    # Whoever has asked sees why not.
    asked = "SELECT count(refusal) FROM cerebro.requests WHERE by = %s"
    assert adam(asked, adam.name) == owner(asked, adam.name) and mona(asked, owner.name) == [0]
