"""No setting of a session changes what a column becomes, when rows are packed, predicted and judged."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import Lab
from tests.thorough import tries

ROWS = 240
THINGS = f"""
CREATE TYPE mood AS ENUM ('glad', 'sad', 'so');
CREATE TABLE things AS SELECT i AS id, date '2019-12-20' + i * 3 AS day,
  timestamp '2020-03-01 01:10' + i * interval '7 h' AS local,
  timestamptz '2021-03-01 10:00+02' + i * interval '7 h 13 min' AS moment, time '00:10' + i * interval '11 min' AS hour,
  i * interval '1 month 3 h' AS slept, (i * 1.25)::numeric::money AS paid, (1 / (i + 2.0))::real AS part,
  pi() / i AS exact, i / 7.0::numeric AS digits, ('10.0.0.' || i % 3)::inet AS host, i % 2 = 0 AS member,
  (ARRAY['glad', 'sad', 'so'])[1 + i % 3]::mood AS mood, repeat('good food and ', 1 + i % 3) || i AS review,
  ARRAY[i, i % 7]::real[] AS sensors,
  timestamptz '2021-01-01 00:00+00' + i % 3 * interval '90 days' AS term, pi() / (1 + i % 3) AS angle,
  interval '1 month' * (1 + i % 3) AS span, (i % 3 * 10.5)::numeric::money AS price,
  date '2020-02-03' + i % 3 * 40 AS due,
  timestamptz '2021-11-07 05:30+00' + i % 4 * interval '30 min' AS clocks_change,
  decode('0' || 1 + i % 3, 'hex') AS bytes, decode(lpad(to_hex(i), 2, '0') || '2795', 'hex') AS image,
  time with time zone '10:00+03' + i % 2 * interval '1 h' AS zoned,
  tstzrange(timestamptz '2021-01-01 00:00+00', timestamptz '2021-01-02 00:00+00' + i * interval '1 h') AS during,
  ARRAY[timestamptz '2021-01-01 00:00+00' + i * interval '1 h'] AS moments,
  (ARRAY['no', 'yes', 'maybe'])[1 + (i * 7 % 11) % 3] AS answer
FROM generate_series(1, {ROWS}) i;
"""
INPUTS = "day, local, moment, hour, slept, paid, part, exact, digits, host, member, mood, review, sensors"
PREPARE = {"term": "category", "angle": "category", "span": "category", "price": "category", "due": "category",
           "image": {"shape": [3]}}  # fmt: skip
TARGETS = ("term", "span", "price", "due", "clocks_change", "bytes", "host", "zoned")
SETTINGS = {
    "TimeZone": ("UTC", "Asia/Tokyo", "America/New_York", "<+0330>-03:30", "Asia/Kolkata"),
    "DateStyle": ("ISO, MDY", "SQL, DMY", "German", "Postgres, MDY", "ISO, YMD"),
    "IntervalStyle": ("postgres", "postgres_verbose", "sql_standard", "iso_8601"),
    "extra_float_digits": ("-15", "0", "1", "3"),
    "bytea_output": ("hex", "escape"),
    "xmlbinary": ("base64", "hex"),
    "array_nulls": ("on", "off"),
    "lc_monetary": ("C", "C.utf8"),
    "lc_numeric": ("C", "C.utf8"),
    "lc_time": ("C", "C.utf8"),
    "standard_conforming_strings": ("on", "off"),
    "escape_string_warning": ("on", "off"),
    "backslash_quote": ("on", "off"),
    "quote_all_identifiers": ("on", "off"),
    "transform_null_equals": ("on", "off"),
    "default_text_search_config": ("pg_catalog.english", "pg_catalog.simple"),
    "client_encoding": ("UTF8", "LATIN1"),
    "search_path": ("{schema}, public, cerebro, madlib", "pg_catalog, {schema}, cerebro, madlib", "cerebro, {schema}"),
}


@pytest.fixture(scope="module")
def things(lab: Lab) -> Lab:
    lab(THINGS)
    lab(
        "SELECT cerebro.fit('things', 'answers', $$[{\"architecture\": \"mlp\", \"units\": 8, \"batch_size\": 16}]$$,"
        " target => 'answer', inputs => %s, prepare => %s, epochs => 1, segments => 1, validation => 0)",
        f"{INPUTS}, {', '.join(PREPARE)}", json.dumps(PREPARE),
    )  # fmt: skip
    return lab


@contextmanager
def settings(lab: Lab, **values: str) -> Iterator[None]:
    before = {name: lab.value(f"SHOW {name}") for name in values}
    for name, value in values.items():
        lab("SELECT set_config(%s, %s, false)", name, value.format(schema=lab.schema))
    try:
        yield
    finally:
        for name, value in before.items():
            lab("SELECT set_config(%s, %s, false)", name, value)


def drawn(seed: int) -> dict[str, str]:
    chance = random.Random(seed)
    return {name: chance.choice(values) for name, values in SETTINGS.items()}


def packings(lab: Lab) -> dict[str, Any]:
    """All that packing makes of the rows, of the targets of each type, and of rows for validation."""
    made = {}
    named = f"{INPUTS}, {', '.join(PREPARE)}"
    for name, call in {
        "prepared": ("pack", "answer", f"inputs => '{named}', prepare => '{json.dumps(PREPARE)}'"),
        "divided": ("pack", "answer", "inputs => 'part, exact', validation => 0.4"),
        **{one: ("pack_plain", one, "inputs => 'part, exact'") for one in TARGETS},
        "arrays": ("pack_plain", "sensors", "inputs => 'digits'"),
    }.items():
        function, target, more = call
        lab(f"SELECT cerebro.{function}('{lab.schema}.things', '{lab.schema}.p_{name}', '{target}', {more},"
            " segments => 1, seed => 1)")  # fmt: skip
    for name in TARGETS:
        lab(f"SELECT cerebro.pack_like('{lab.schema}.things', '{lab.schema}.p_{name}_like', '{name}', 'part, exact',"
            f" '{lab.schema}.p_{name}')")  # fmt: skip
    lab(f"SELECT madlib.training_preprocessor_dl('{lab.schema}.things', '{lab.schema}.p_madlib', 'angle', 'sensors')")
    tables = [name for (name,) in lab("SELECT relname::text FROM pg_class WHERE relnamespace = %s::regnamespace"
              " AND relname ~ '^p_.*_summary$' ORDER BY 1", lab.schema)]  # fmt: skip
    for table in tables:
        layout = lab.value(f"SELECT layout FROM {lab.schema}.{table}")
        for variable in layout["outputs"]:  # labels are texts of the session; the summary has their values
            variable["preparation"].pop("labels", None)
        for variable in [*layout["inputs"], *layout["outputs"]]:  # quote_all_identifiers quotes the names of types
            for feature in variable["preparation"].get("features", []):
                feature["type"] = feature["type"].replace('"', "")
        made[table] = {part: layout[part] for part in ("inputs", "outputs", "partitions")}
        if table == "p_madlib_summary":  # without a seed
            made[table]["partitions"] = None
    lab("SET client_min_messages = warning")
    lab("DROP TABLE " + ", ".join(f"{lab.schema}.{table.removesuffix('_summary')}" for table in tables))
    lab("DROP TABLE " + ", ".join(f"{lab.schema}.{table}" for table in tables))
    lab("RESET client_min_messages")
    return made


def predictions(lab: Lab) -> Any:
    """Numbers as bytes: extra_float_digits would change how the server writes them."""
    model, query = f"{lab.schema}.answers", f"SELECT * FROM {lab.schema}.things"
    # Greenplum's segments add in no order.
    value = "round(value::numeric, 9)::float8" if lab.greenplum else "value"
    return [
        lab(f"SELECT {columns} FROM cerebro.{call} ORDER BY 1, 2", model, query)
        for columns, call in (
            ("key_value::int, class, encode(float8send(probability), 'hex')", "predict(%s, %s, 'id')"),
            (f"metric, encode(float8send({value}), 'hex')", "evaluate(%s, %s)"),
            ("actual, predicted, count", "confusion_matrix(%s, %s)"),
        )
    ]


def test_what_packing_makes(things: Lab) -> None:
    wanted = packings(things)
    for seed in range(tries(2)):
        chosen = drawn(seed)
        with settings(things, **chosen):
            found = packings(things)
        assert found.keys() == wanted.keys()
        assert [name for name in wanted if found[name] != wanted[name]] == [], chosen


def test_what_predictions_make(things: Lab) -> None:
    wanted = predictions(things)
    for seed in range(100, 100 + tries(2)):
        with settings(things, **drawn(seed)):
            found = predictions(things)
        assert found == wanted, drawn(seed)


def test_a_time_without_a_zone_is_no_moment(things: Lab) -> None:
    """Only a time zone makes one of the other, and the session's would be taken without a word."""
    model, table = f"{things.schema}.answers", f"{things.schema}.things"
    changed = {
        "moment": "moment AT TIME ZONE 'UTC'", "term": "(term AT TIME ZONE 'UTC')::date",
        "local": "local AT TIME ZONE 'UTC'", "day": "day::timestamptz",
    }  # fmt: skip
    for column, value in changed.items():
        others = ", ".join(name for name, _ in things.columns("things") if name != column)
        query = f"SELECT {others}, {value} AS {column} FROM {table}"
        for call in (f"predict('{model}', %s, 'id')", f"evaluate('{model}', %s)"):
            with pytest.raises(psycopg2.Error, match=f"a type that they did not have in training: {column}") as error:
                things(f"SELECT * FROM cerebro.{call}", query)
            assert "AT TIME ZONE" in error.value.diag.message_hint
    midnight = f"SELECT *, day::timestamp AS then FROM {table}"  # needs no zone
    told = "SELECT key_value, class, probability FROM cerebro.predict(%s, %s, 'id') ORDER BY 1, 2"
    same = things(told, model, midnight)
    others = ", ".join(name for name, _ in things.columns("things") if name != "day")
    query = f"SELECT {others}, day::timestamp AS day FROM {table}"
    assert things(told, model, query) == same


def test_a_label_without_a_zone_is_no_moment(things: Lab) -> None:
    things(
        "CREATE VIEW locally AS SELECT part, exact, term AT TIME ZONE 'UTC' AS term, due::timestamptz AS due"
        " FROM things"
    )
    for target in ("term", "due"):
        things(f"SELECT cerebro.pack_plain('things', 'of_{target}', '{target}', 'part, exact', segments => 1)")
        with pytest.raises(psycopg2.Error, match="it depends on the time zone") as error:
            things(f"SELECT cerebro.pack_like('locally', 'never', '{target}', 'part, exact', 'of_{target}')")
        assert "AT TIME ZONE" in error.value.diag.message_hint
    things('SELECT cerebro.fit(\'of_term\', \'terms\', $$[{"architecture": "mlp", "units": 4}]$$, epochs => 1)')
    with pytest.raises(psycopg2.Error, match="it depends on the time zone") as error:
        things("SELECT * FROM cerebro.confusion_matrix('terms', 'SELECT * FROM locally')")
    assert "AT TIME ZONE" in error.value.diag.message_hint
    found = []
    for zone in ("UTC", "Asia/Tokyo"):
        with settings(things, TimeZone=zone):
            found.append(things("SELECT actual::timestamptz, predicted::timestamptz, count"
                                " FROM cerebro.confusion_matrix('terms', 'TABLE things') ORDER BY 1, 2"))  # fmt: skip
    assert found[0] == found[1] and sum(count for *_, count in found[0]) == ROWS


def test_a_verb_packs_what_the_caller_sees(things: Lab) -> None:
    """Another session packs the rows of a view: with the time zone, order of dates and search_path of the caller's."""
    things(
        "CREATE FUNCTION of_mine() RETURNS integer LANGUAGE sql AS 'SELECT 1';"
        " CREATE FUNCTION calls_it() RETURNS integer LANGUAGE plpgsql AS 'BEGIN RETURN of_mine(); END';"
        " CREATE VIEW seen AS SELECT id, extract(hour FROM moment)::real AS hour,"
        "  ('02/03/' || 2000 + id % 9)::date AS day, calls_it() + id % 5 AS more, answer FROM things"
    )
    with settings(things, TimeZone="Asia/Tokyo", DateStyle="German, DMY"):
        hours = things.value("SELECT avg(hour) FROM seen")
        things(
            "SELECT cerebro.fit('seen', 'seers', $$[{\"architecture\": \"mlp\", \"units\": 4}]$$, target => 'answer',"
            " inputs => 'hour, day, more', prepare => '{\"hour\": \"standard\"}', epochs => 1, validation => 0,"
            " segments => 1)"
        )
        packed = things.packed_rows("seers")
        mean = f"SELECT (parameters ->> 'mean')::real FROM prepared_columns('{packed}') WHERE column_name = %s"
        assert things.value(mean, "hour") == pytest.approx(hours, rel=1e-4)
        days = things.value("SELECT avg(day - date '1970-01-01')::real FROM seen")
        assert things.value(mean, "day") == pytest.approx(days, rel=1e-4)
