"""A table with columns of most types: packing it, and predicting 1, 1,000 and all of its rows."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from tests.bench import report
from tests.bench.contenders import script
from tests.bench.database import Database
from tests.bench.other_work import PACKED_AGAIN, copy_out, packing
from tests.bench.stage import Contender, Measured, Stage
from tests.sql.lab import run

# A key, a target and 22 columns of most types, some with NULLs, heavy tails or many values.
MIXED_TABLE = """
CREATE TABLE pack_mixed AS SELECT i AS id,
  100 + 15 * a AS height, exp(2 * a)::numeric(14, 2) AS income, (10 * b)::real AS score,
  CASE WHEN i % 9 = 0 THEN NULL ELSE 50 + 20 * c END AS age, (3 * a + 4 * b)::real AS mix, exp(4 * c) AS tail,
  (1000 * abs(b))::integer AS visits, (1e6 * exp(c))::bigint AS bytes, i % 7 AS floor,
  (i * 31::bigint % 5000)::smallint AS code,
  (ARRAY['Rome', 'Bonn', 'Lyon', 'Oslo'])[1 + i % 4] AS city, 'street ' || i * 7919::bigint % 800 AS street,
  'user ' || i * 7919::bigint % 40000 AS login, CASE WHEN i % 11 = 0 THEN NULL ELSE 'kind ' || i % 23 END AS kind,
  md5((i % 300)::text)::uuid AS device, i % 3 = 0 AS member, (ARRAY['a', 'b', 'c'])[1 + i % 3] AS grade,
  date '2010-01-01' + i % 4000 AS born, timestamp '2020-01-01' + i % 100000 * interval '613 s' AS seen,
  CASE WHEN i % 13 = 0 THEN NULL ELSE timestamptz '2021-03-01' + i % 5000 * interval '1 day' END AS ended,
  time '00:00' + i % 86400 * interval '1 s' AS wakes,
  'good food, ' || (ARRAY['bad wine', 'fine wine', 'slow waiters'])[1 + i % 3] || ' and table number ' || i AS review,
  1000 * a + 500 * b + i % 4 * 300 + 100 * c AS price
 FROM (SELECT i, sqrt(-2 * ln(1 - u)) * cos(6.28318 * v) AS a, sqrt(-2 * ln(1 - u)) * sin(6.28318 * v) AS b,
              sqrt(-2 * ln(1 - w)) * cos(6.28318 * u) AS c
         FROM (SELECT i, i * 7919::bigint % 1000003 / 1000003.0::float8 AS u,
                      i * 104729::bigint % 999983 / 999983.0::float8 AS v,
                      i * 15485863::bigint % 999979 / 999979.0::float8 AS w
                 FROM generate_series(1, {rows}) i) drawn) numbers
"""
TRAINED = 50_000  # rows; the model predicts all of them
MODEL = "mixed_models"


def make_table(database: Database, rows: int) -> None:
    database.lab("DROP TABLE IF EXISTS pack_mixed")
    database.lab(MIXED_TABLE.format(rows=rows))
    database.lab("ANALYZE pack_mixed")


def pack(stage: Stage, session: Any) -> None:
    run(session, f"SELECT pack('pack_mixed', 'packed_again', 'price', segments => {stage.work.segments})")


PACKING: dict[str, Contender] = {
    "ours": packing("ours", pack),
    "copy-text": packing("COPY, text", copy_out("text", "pack_mixed")),
    "copy-binary": packing("COPY, binary", copy_out("binary", "pack_mixed")),
}


# --- few columns, and new rows ---------------------------------------------------------------------------

NARROW_COLUMNS = """
  random() * 100 AS number, (random() * 1000)::integer AS count, 'kind ' || (random() * 8)::integer AS kind,
  date '2020-01-01' + (random() * 1500)::integer AS day, random() * 10 AS target
"""


def make_narrow_tables(database: Database, rows: int) -> None:
    """A table with a key, four columns and a target; and a tenth of new rows."""
    for name, first, last in (("pack_narrow", 1, rows), ("pack_tenth", rows + 1, rows + rows // 10)):
        database.lab(f"DROP TABLE IF EXISTS {name}")
        database.lab(f"CREATE TABLE {name} AS SELECT i AS id, {NARROW_COLUMNS} FROM generate_series({first}, {last}) i")
        database.lab(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
        database.lab(f"ANALYZE {name}")


def pack_narrow(stage: Stage, session: Any) -> None:
    run(session, f"SELECT pack('pack_narrow', 'packed_again', 'target', segments => {stage.work.segments})")


def append(stage: Stage) -> Iterator[Measured]:
    with contextlib.closing(stage.database.lab.connect()) as session:
        pack_narrow(stage, session)
        with stage.meter() as meter:
            run(session, "SELECT append('packed_again', 'pack_tenth')")
        run(session, f"DROP TABLE {', '.join(PACKED_AGAIN)}")
    yield Measured("append a tenth", meter.taken, 0.0)


NARROW: dict[str, Contender] = {
    "ours": packing("ours", pack_narrow),
    "append": append,
    "copy-text": packing("COPY, text", copy_out("text", "pack_narrow")),
    "copy-binary": packing("COPY, binary", copy_out("binary", "pack_narrow")),
    "copy-tenth": packing("COPY of the tenth, text", copy_out("text", "pack_tenth")),
}


# --- predicting ------------------------------------------------------------------------------------------


def sizes(stage: Stage) -> list[int]:
    return [1, min(1000, stage.work.rows), stage.work.rows]


def ours(stage: Stage) -> Iterator[Measured]:
    """In a new session: one row, which starts a trainer; then one row again, a thousand rows, and all rows."""
    make_model(stage)
    answered: dict[str, float] = {}
    with contextlib.closing(stage.database.lab.connect()) as session, stage.meter() as meter:
        for name, rows in zip(("first", "one", "thousand", "all"), [1, *sizes(stage)]):
            began = time.monotonic()
            query = f"SELECT count(*), sum(value) FROM predict('{MODEL}', 'SELECT * FROM pack_mixed LIMIT {rows}')"
            ((found, _),) = run(session, query)
            answered[name] = time.monotonic() - began
            assert found == rows, f"{found} of {rows} rows were predicted"
    yield Measured("ours: cerebro.predict", meter.taken, answered["first"], more={"answered": answered})
    with contextlib.closing(stage.database.lab.connect()) as session, stage.meter() as meter:
        began = time.monotonic()
        run(
            session,
            f"SELECT madlib.madlib_keras_predict('{MODEL}', 'pack_mixed', 'id', NULL, 'predicted', mst_key => 1)",
        )
        answered = {"all": time.monotonic() - began}
        assert run(session, "SELECT count(*) FROM predicted") == [(stage.work.rows,)]
        run(session, "DROP TABLE predicted")
    yield Measured("ours: madlib_keras_predict", meter.taken, 0.0, more={"answered": answered})


def make_model(stage: Stage) -> None:
    """Train a model once, and write what its rivals need to read the same rows and prepare them in the same way."""
    lab, described = stage.database.lab, stage.folder / "mixed.json"
    if described.exists():
        return
    lab(f"CREATE TABLE mixed_source AS SELECT * FROM pack_mixed ORDER BY id LIMIT {TRAINED}")
    lab("ALTER TABLE mixed_source ADD PRIMARY KEY (id)")
    lab("SELECT pack('mixed_source', 'mixed_packed', 'price', seed => 1, segments => 2)")
    architecture = lab.value("SELECT architecture('mlp', 'mixed_packed')")
    model = lab.architecture(architecture, table="mixed_arch")
    compiled = lab.compiled("mixed_packed", "AdamW(learning_rate=0.001, weight_decay=0.0001)")
    lab.selection("mixed_mst", [(model, compiled, "batch_size=256")], arch="mixed_arch")
    lab.fit("mixed_packed", MODEL, "mixed_mst", 1)
    columns = lab(
        "SELECT json_agg(c ORDER BY start) FROM prepared_columns('mixed_packed') c WHERE NOT is_target"
        " GROUP BY variable"
    )
    given = {"dsn": lab.dsn, "schema": lab.schema, "architecture": architecture, "sizes": sizes(stage)}
    described.write_text(json.dumps({**given, "variables": [of_variable for (of_variable,) in columns]}))


def rival(stage: Stage) -> Iterator[Measured]:
    make_model(stage)
    yield from script("Keras, prepared in pandas", "pandas_predict")(stage)


PREDICTION: dict[str, Contender] = {"ours": ours, "pandas": rival}
ANSWERS = {"first": "1 row, with the start", "one": "1 row", "thousand": "1,000 rows", "all": "all rows",
           "in memory": "all rows, already in memory"}  # fmt: skip


def table(repeats: report.Repeats) -> str:
    """A table of the seconds until so many rows are predicted."""
    rows = []
    for name in report.contenders(repeats):
        mine = [one.more["answered"] for one in report.of(repeats, name) if "answered" in one.more]
        if mine:
            rows.append([name, *(report.spread([one[what] for one in mine], digits=3) if what in mine[0] else ""
                                 for what in ANSWERS)])  # fmt: skip
    return report.table(["seconds for", *ANSWERS.values()], rows) if rows else ""
