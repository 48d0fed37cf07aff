"""Columns of related tables: which tables are read, what becomes of their rows, and that the future is never read."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from psycopg2 import Error, errors

from cerebro_db.core.packing.related import KINDS
from tests.sql.lab import Json, Lab
from tests.sql.packing.test_append import read

SHOP = """
CREATE TABLE regions (region text PRIMARY KEY, wealth double precision, founded date);
INSERT INTO regions SELECT 'r' || i, i * 1.25, date '2001-01-01' + i FROM generate_series(1, 5) i;
CREATE TABLE customers (id integer PRIMARY KEY, region text REFERENCES regions, joined timestamptz, age integer);
INSERT INTO customers SELECT i, CASE WHEN i % 10 > 0 THEN 'r' || 1 + i % 5 END,
  timestamptz '2023-01-01 00:00Z' + i % 90 * interval '1 day', 18 + i * 7919 % 60 FROM generate_series(1, 400) i;
CREATE TABLE products (id integer PRIMARY KEY, kind text, price numeric(8, 2));
INSERT INTO products SELECT i, (ARRAY['food', 'toy', 'book'])[1 + i % 3], i * 1.37 FROM generate_series(1, 30) i;
CREATE TABLE orders (id integer PRIMARY KEY, customer integer REFERENCES customers, at timestamptz NOT NULL,
  paid boolean, amount double precision);
INSERT INTO orders SELECT i, 1 + i * 104729 % 380, timestamptz '2023-04-01 00:00Z' + i * 7919 % 300 * interval '1 day'
  + i % 24 * interval '1 hour', i % 3 > 0, i * 31 % 97 / 3.7 FROM generate_series(1, 4000) i;
CREATE TABLE items (line integer, "order" integer REFERENCES orders, product integer REFERENCES products,
  quantity smallint, PRIMARY KEY ("order", line));
INSERT INTO items SELECT n, i, 1 + (i * 13 + n * 7) % 30, 1 + (i + n) % 4
  FROM generate_series(1, 4000) i, generate_series(1, 1 + i % 3) n;
CREATE TABLE churn AS SELECT c.id AS customer, m.at AS seen, (SELECT count(*) = 0 FROM orders o
   WHERE o.customer = c.id AND o.at >= m.at AND o.at < m.at + interval '30 days') AS gone
  FROM customers c, (VALUES (timestamptz '2023-08-01 00:00Z'), ('2023-10-01 00:00Z'), ('2023-12-01 00:00Z')) m (at);
ALTER TABLE churn ADD PRIMARY KEY (customer, seen), ADD FOREIGN KEY (customer) REFERENCES customers;
"""
STEPS = {
    "customers": {"time": "joined"},
    "customers.regions": {"unchanging": True},
    "customers.orders": {"time": "at"},
    "customers.orders.items": {"unchanging": True},
}


Derived = Callable[..., list[Json]]


@pytest.fixture(scope="module")
def shop(lab: Lab) -> Lab:
    lab(SHOP)
    return lab


def packed(shop: Lab, related: Any, source: str = "churn", target: str = "gone", **more: Any) -> list[str]:
    """Pack the table; what was told."""
    ends = ("", "_summary", "_validation", "_validation_summary")
    shop("DROP TABLE IF EXISTS " + ", ".join(f"packed{end}" for end in ends))
    shop.told()
    related = related if related is None or isinstance(related, str) else json.dumps(related)
    given = {"seed": 1, "segments": 2, "related": related, "as_of": "seen", **more}
    given = {name: value for name, value in given.items() if value is not None}
    named = "".join(f", {name} => %s" for name in given)
    shop(f"SELECT pack('{source}', 'packed', '{target}'{named})", *given.values())
    return shop.told()


def layout(shop: Lab, table: str = "packed") -> Any:
    return shop.value(f"SELECT layout FROM {table}_summary")


@pytest.fixture(scope="module")
def derived(shop: Lab) -> Derived:
    """The columns that the rows of a query get by the plan of the packed table."""
    shop("SELECT count(*) FROM cerebro.doctor()")  # the session has our code now
    shop(
        """
        CREATE FUNCTION derive(query text, result text, ranked boolean) RETURNS void LANGUAGE plpython3u AS $f$
        from dataclasses import replace
        from cerebro_db.core.packing.layout import Layout
        from cerebro_db.core.names import Name
        from cerebro_db.core.sql import sql
        from cerebro_plpy.database import relations
        from cerebro_plpy.database.access import Database
        from cerebro_plpy.packing.related import derivation, deriving, planning
        db = Database(plpy)
        plan = Layout.parse(plpy.execute("SELECT layout FROM packed_summary")[0]["layout"], "layout").related
        if ranked:
            plan = replace(plan, rows=tuple(replace(one, crowded=plan.can_be_ranked(one.path)) for one in plan.rows))
            assert all(one.crowded for one in plan.rows)
        found = {step.path: relations.existing(db, step.table.for_people) for step in plan.steps}
        tables = derivation.OpenedTables(found, {path: relations.columns(db, one) for path, one in found.items()})
        source, present = relations.of_query(db, query)
        as_of = None if plan.as_of is None else present[plan.as_of]
        examples = planning.examples_of(source.rows, present, as_of, again=False)
        made = deriving.query(plan, examples, tables)
        db.execute(sql("CREATE TABLE {name} AS {made}", name=Name.parse(result).sql, made=made))
        $f$
        """
    )

    def derive(query: str, *, ranked: bool = False) -> list[Json]:
        shop("DROP TABLE IF EXISTS its_columns")
        shop("SELECT derive(%s, 'its_columns', %s)", query, ranked)
        return [row for (row,) in shop("SELECT to_jsonb(t) FROM its_columns t ORDER BY to_jsonb(t)::text")]

    return derive


def test_aggregates_are_what_they_say(shop: Lab, derived: Derived) -> None:
    packed(shop, STEPS)
    for row in derived("SELECT * FROM churn WHERE customer IN (1, 5, 17, 399)"):
        orders = shop(
            "SELECT extract(epoch FROM %s - at)::float8 / 86400, amount, paid FROM orders"
            " WHERE customer = %s AND at < %s ORDER BY at DESC",
            row["seen"], row["customer"], row["seen"],
        )  # fmt: skip
        ages, amounts = (np.array([one[place] for one in orders], float) for place in (0, 1))

        def its(what: str, row: Json = row) -> Any:
            return row[f"customers.orders.{what}"]

        assert its("count") == len(orders)
        if not orders:
            assert row["customer"] == 399  # no order has this customer
            assert its("amount sum") == 0 and its("amount mean") is None and its("since last") is None
            assert np.array(its("latest numbers")).shape == (16, 3)
            assert not np.any(its("latest numbers")) and not np.any(its("latest codes"))
            continue
        assert its("since last") == pytest.approx(min(ages)) and its("since first") == pytest.approx(max(ages))
        assert its("count 30d") == sum(ages <= 30)
        near = pytest.approx
        assert its("amount mean") == near(amounts.mean(), abs=1e-3)
        assert its("amount sum") == near(amounts.sum(), abs=1e-3 * len(amounts))
        assert its("amount spread") == near(amounts.std(), abs=1e-3)
        assert (its("amount least"), its("amount largest")) == near((amounts.min(), amounts.max()), abs=1e-3)
        assert its("amount last") == near(amounts[0])
        assert its("paid last") == orders[0][2]
        assert its("paid share false") == near(np.mean([not paid for _, _, paid in orders]))
        if len(orders) > 2:
            assert its("amount trend") == near(np.polyfit(-ages, amounts, 1)[0], abs=1e-3)
        (items,) = shop(
            'SELECT count(*), avg(quantity), count(DISTINCT product) FROM items i JOIN orders o ON o.id = i."order"'
            " WHERE customer = %s AND at < %s",
            row["customer"], row["seen"],
        )  # fmt: skip
        found = (its("items.count"), its("items.quantity mean"), its("items.product different"))
        assert found == near(tuple(map(float, items)))


def test_a_referred_row_is_read_as_it_was(shop: Lab, derived: Derived) -> None:
    packed(shop, STEPS)
    rows = derived("SELECT customer, timestamptz '2023-02-01 00:00Z' AS seen FROM churn WHERE customer IN (20, 88)")
    ages = {row["customer"]: row["customers.age"] for row in rows}
    assert ages[20] is not None and ages[88] is None  # one joined in January, the other one in March


def test_the_latest_rows_come_newest_first(shop: Lab, derived: Derived) -> None:
    packed(shop, {**STEPS, "customers.orders": {"time": "at", "latest": 3}})
    (row,) = derived("SELECT * FROM churn WHERE customer = 5 AND seen = '2023-10-01 00:00Z'")
    orders = shop("SELECT amount, paid FROM orders WHERE customer = 5 AND at < '2023-10-01 00:00Z' ORDER BY at DESC")
    (plan,) = [one for one in layout(shop)["related"]["rows"] if one["path"] == "customers.orders"]
    (amount,) = [one["feature"] for one in plan["latest"]["prepared"] if one["column"] == "amount"]
    (paid,) = [one["feature"] for one in plan["latest"]["prepared"] if one["column"] == "paid"]
    numbers, codes = np.array(row["customers.orders.latest numbers"]), np.array(row["customers.orders.latest codes"])
    assert numbers.shape == (3, 3) and (numbers[:, 0] == 1).all()
    assert list(numbers[:, 1]) == sorted(numbers[:, 1])  # ages
    expected = [(value - amount["mean"]) / amount["deviation"] for value, _ in orders[:3]]
    assert numbers[:, 2] == pytest.approx(expected, abs=1e-5)
    assert [paid["values"][code - 1] for code in codes[:, 0]] == [str(one).lower() for _, one in orders[:3]]
    (fewer,) = derived("SELECT 5 AS customer, min(at) + interval '1 second' AS seen FROM orders WHERE customer = 5")
    numbers = np.array(fewer["customers.orders.latest numbers"])
    assert list(numbers[:, 0]) == [1, 0, 0] and not numbers[1:].any()


def test_rows_at_and_after_the_time_change_nothing(shop: Lab, derived: Derived) -> None:
    """Of each example and of the whole packing: the same bytes, whatever happens from its time on."""
    moment = "2023-10-01 00:00Z"
    shop(f"CREATE VIEW until AS SELECT * FROM churn WHERE seen <= '{moment}'")
    steps = {**STEPS, "customers": {"on": {"customer": "id"}, "time": "joined"}}  # a view has no foreign keys
    packed(shop, steps, "until")
    before, plan = read(shop, "packed"), layout(shop)["related"]
    rows = derived(f"SELECT * FROM churn WHERE seen = '{moment}' ORDER BY customer")
    shop("BEGIN")
    try:
        shop(f"DELETE FROM items USING orders o WHERE o.id = \"order\" AND o.at >= '{moment}' AND o.id % 3 = 0")
        shop(f"DELETE FROM orders o WHERE o.at >= '{moment}' AND o.id % 3 = 0 AND NOT EXISTS"
             " (SELECT FROM items WHERE \"order\" = o.id)")  # fmt: skip
        shop(f"UPDATE orders SET amount = amount * 100, paid = NOT paid WHERE at >= '{moment}'")
        shop(f"INSERT INTO orders SELECT 100000 + i, 1 + i % 380, timestamptz '{moment}' + i / 500 * interval '1 day',"
             " true, 1e6 FROM generate_series(0, 2000) i")  # fmt: skip
        shop(f"INSERT INTO customers SELECT 1000 + i, 'r1', timestamptz '{moment}', 999 FROM generate_series(1, 50) i")
        assert derived(f"SELECT * FROM churn WHERE seen = '{moment}' ORDER BY customer") == rows
        packed(shop, steps, "until")
        assert layout(shop)["related"] == plan
        after = read(shop, "packed")
        assert after.keys() == before.keys()
        for name, values in after.items():
            assert values.tobytes() == before[name].tobytes(), name
    finally:
        shop("ROLLBACK")
        shop("DROP VIEW until")


def test_one_row_has_the_bits_of_many(shop: Lab, derived: Derived) -> None:
    """Also after the rows of the related tables have changed their places."""
    packed(shop, STEPS)
    many = {(row["customer"], row["seen"]): row for row in derived("SELECT * FROM churn")}
    assert len(many) == 1200
    shop("CREATE INDEX orders_of_customers ON orders (customer, at)")
    shop("CREATE TABLE moved AS SELECT * FROM orders ORDER BY hashint4(id)")
    shop("UPDATE orders SET paid = paid WHERE id % 2 = 0")
    for customer in (3, 44, 231):
        for row in derived(f"SELECT * FROM churn WHERE customer = {customer} AND seen = '2023-10-01 00:00Z'"):
            assert row == many[row["customer"], row["seen"]]
    assert {(row["customer"], row["seen"]): row for row in derived("SELECT * FROM churn")} == many
    shop("DROP INDEX orders_of_customers; DROP TABLE moved")


def test_the_bits_are_the_same_on_every_server(shop: Lab, derived: Derived) -> None:
    packed(shop, STEPS)
    rows = derived("SELECT * FROM churn")
    assert hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest() == DERIVED


DERIVED = "07b5dc2097a2bee01f02ed2726249220c2fa2136b1aee1c08ca23a9a8aad7c1b"


def test_declared_foreign_keys_are_followed(shop: Lab) -> None:
    told = packed(shop, "auto")
    found = {step["path"]: step for step in layout(shop)["related"]["steps"]}
    assert {path: (step["many"], step.get("time")) for path, step in found.items()} == {
        "customers": (False, "joined"),
        "customers.orders": (True, "at"),
    }
    (left,) = [one for one in told if "left out" in one]
    assert "customers.regions, because no column has the time of a row" in left
    assert '"customers.regions": {"unchanging": true}' in left  # what reads it


def test_a_table_that_refers_to_itself_and_a_circle(shop: Lab, derived: Derived) -> None:
    """A path ends at the depth, also where it comes back: a head is of a department, which has a head."""
    shop("""
    CREATE TABLE departments (name text PRIMARY KEY, size integer, head integer);
    CREATE TABLE people (id integer PRIMARY KEY, boss integer REFERENCES people, department text REFERENCES departments,
      wage integer, leaves boolean);
    INSERT INTO departments SELECT 'd' || i, i * 10 FROM generate_series(1, 4) i;
    INSERT INTO people SELECT i, CASE WHEN i > 4 THEN 1 + i % 4 END, 'd' || 1 + i % 4, 100 + i * 7919 % 97, i % 3 = 0
      FROM generate_series(1, 400) i;
    UPDATE departments SET head = size / 10;
    ALTER TABLE departments ADD FOREIGN KEY (head) REFERENCES people;
    """)
    packed(shop, "auto", "people", "leaves", as_of=None)
    many = {step["path"]: step["many"] for step in layout(shop)["related"]["steps"]}
    own, theirs, head = "people by boss", "departments by department", "departments by department.people by head"
    assert not any(many[path] for path in (own, theirs, head, f"{own}.{own}"))
    assert many["people by boss 2"] and many["departments by head"]
    assert max(path.count(".") for path in many) == 1
    (row,) = derived("SELECT * FROM people WHERE id = 7")
    wage = shop.value("SELECT wage FROM people WHERE id = 4")
    assert (row[f"{own}.wage"], row[f"{theirs}.size"], row[f"{head}.wage"]) == (wage, 40, wage)
    assert not any("leaves" in name for name in row if name != "leaves")  # the target of other rows
    shop("ALTER TABLE departments DROP CONSTRAINT departments_head_fkey; DROP TABLE people, departments")


def test_without_a_time_everything_related_is_read(shop: Lab) -> None:
    packed(shop, "auto", "customers", "age", as_of=None)
    found = {step["path"]: step["many"] for step in layout(shop)["related"]["steps"]}
    assert found == {"regions": False, "churn": True, "orders": True, "orders.items": True}


def test_nulls_orphans_and_tables_without_rows(shop: Lab, derived: Derived) -> None:
    """A key of several columns, some of them NULL, one of another type of number; a table that refers to itself."""
    shop("""
    CREATE TABLE plots (id integer PRIMARY KEY, farm text, year smallint, harvest double precision, beside integer);
    INSERT INTO plots SELECT i, CASE WHEN i % 7 > 0 THEN 'f' || i % 20 END, 2000 + i % 3, i % 11, NULLIF(i - 1, 0)
      FROM generate_series(1, 300) i;
    ALTER TABLE plots ADD FOREIGN KEY (beside) REFERENCES plots;
    CREATE TABLE rains (farm text, year bigint, day date, rain real, note text, shares real[]);
    INSERT INTO rains SELECT 'f' || i % 19, 2000 + i % 4, date '2020-01-01' + i, NULLIF(i % 9, 3), NULL, ARRAY[i, 1]
      FROM generate_series(1, 500) i;
    INSERT INTO rains VALUES (NULL, 2000, '2020-01-01', 5), ('f1', NULL, '2020-01-01', 5), ('f3', 2001, NULL, 'NaN');
    CREATE TABLE nobody (plot integer REFERENCES plots, x real);
    """)
    steps = {
        "rains": {"on": "farm, year"}, "nobody": {}, "plots": {"on": {"beside": "id"}},
        "neighbours": {"table": "plots", "on": {"id": "beside"}},
    }  # fmt: skip
    packed(shop, steps, "plots", "harvest", as_of=None)
    paths = {step["path"]: step["many"] for step in layout(shop)["related"]["steps"]}
    assert paths == {"rains": True, "nobody": True, "plots": False, "neighbours": True}
    assert not {"harvest"} & {column["name"] for step in layout(shop)["related"]["steps"] if step["path"] != "rains"
                              for column in step["columns"]}  # the targets of other rows  # fmt: skip
    rows = {row["id"]: row for row in derived("SELECT * FROM plots")}
    assert len(rows) == 300
    for plot in rows.values():
        expected = shop(
            "SELECT count(*), sum(rain) FILTER (WHERE rain <> 'NaN') FROM rains WHERE farm = %s AND year = %s",
            plot["farm"], plot["year"],
        )  # fmt: skip
        assert (plot["rains.count"], plot["rains.rain sum"]) == (expected[0][0], expected[0][1] or 0)
        assert plot["nobody.count"] == 0
        assert plot["plots.year"] == (rows[plot["id"] - 1]["year"] if plot["id"] > 1 else None)
        assert plot["neighbours.count"] == (plot["id"] < 300)


def test_a_customer_with_most_orders_and_partitioned_tables(shop: Lab, derived: Derived) -> None:
    shop("""
    CREATE TABLE shops (id integer PRIMARY KEY, y real);
    INSERT INTO shops SELECT i, i % 13 FROM generate_series(1, 100) i;
    CREATE TABLE sales (shop integer REFERENCES shops, day date, amount numeric) PARTITION BY RANGE (day);
    CREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
    CREATE TABLE sales_2 PARTITION OF sales FOR VALUES FROM ('2021-01-01') TO ('2022-01-01');
    INSERT INTO sales SELECT CASE WHEN i % 10 = 0 THEN 1 + i % 97 ELSE 1 END, date '2020-01-01' + i % 700, i % 50
      FROM generate_series(1, 50000) i;
    """)
    packed(shop, "auto", "shops", "y", as_of=None)
    (step,) = layout(shop)["related"]["steps"]
    assert step["path"] == "sales"
    rows = {row["id"]: row for row in derived("SELECT * FROM shops")}
    expected = dict(shop("SELECT shop, count(*) FROM sales GROUP BY 1"))
    assert {shop: row["sales.count"] for shop, row in rows.items()} == {shop: expected.get(shop, 0) for shop in rows}
    assert np.array(rows[1]["sales.latest numbers"]).shape == (32, 3)
    assert np.array(rows[1]["sales.latest numbers"])[:, 0].all()


@pytest.mark.parametrize(
    "related, more, message",
    [
        ({"nothing": {}}, {}, "related: nothing"),
        ({"customers": {"on": "nothing"}}, {}, "related: customers: on: customers has no column 'nothing'"),
        ({"customers": {"time": "nothing"}}, {}, "related: customers: there is no column 'nothing'"),
        ({"customers": {"time": "region"}}, {}, "time cannot be 'region' of type text"),
        ({"regions": {}}, {}, "no foreign key is declared between churn and regions"),
        ({"customers": {}, "customers.regions": {}}, {}, "which column has the time of a row"),
        ({"customers": {"columns": "nothing"}}, {}, "columns: customers has no column 'nothing'"),
        ({"customers": {"on": {"seen": "id"}}}, {}, "'seen' of churn is timestamp with time zone"),
        ({"customers": {"when": "at"}}, {}, 'related: customers has no field "when"'),
        ({"customers..orders": {}}, {}, "is no path of 1 to 3 labels"),
        ({"customers": []}, {}, "related: customers has to be a JSON object"),
        ("orders", {}, "related is not valid JSON"),
        (STEPS, {"as_of": "gone"}, "as_of cannot be 'gone' of type boolean"),
        (STEPS, {"as_of": "never"}, "as_of: churn has no column 'never'"),
        (None, {}, "as_of needs related"),
        (STEPS, {"sequence": json.dumps({"by": "customer", "order": "seen", "length": 2})}, "sequence cannot be used"),
    ],
)
def test_what_cannot_be_read_is_said(shop: Lab, related: Any, more: Json, message: str) -> None:
    before = shop("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'rows_%%'")
    with pytest.raises(Error, match=re.escape(message)):
        packed(shop, related, **more)
    assert shop("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'rows_%%'") == before


def test_a_dry_run_tells_the_plan_and_makes_no_table(shop: Lab) -> None:
    tables = shop("SELECT oid FROM pg_class WHERE relkind = 'r' ORDER BY 1")
    shop.told()
    shop("SELECT train('churn', 'model', 'gone', dry_run => true, related => %s, as_of => 'seen')", json.dumps(STEPS))
    told = "\n".join(shop.told())
    assert (
        "related: customers.orders is" in told
        and "where id = customer, before seen by at; the examples read at most" in told
    )
    assert re.search(r"related: about [0-9]+ s to read it", told)
    assert shop("SELECT oid FROM pg_class WHERE relkind = 'r' ORDER BY 1") == tables


def test_a_long_read_ends_with_a_cancel(shop: Lab) -> None:
    shop(
        "CREATE VIEW endless AS SELECT 1 + (i % 400)::integer AS customer, i % 7 AS x"
        " FROM generate_series(1, 10000000000) i"
    )
    shop("SET statement_timeout = '2s'")
    begun = time.monotonic()
    try:
        with pytest.raises(errors.QueryCanceled):
            packed(shop, {"endless": {"on": {"id": "customer"}}}, "customers", "age", as_of=None)
    finally:
        shop("RESET statement_timeout; DROP VIEW endless")
    assert time.monotonic() - begun < 30
    assert not shop("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'rows_%%'")


def test_ranks_give_the_same_bits(shop: Lab, derived: Derived) -> None:
    """Also of rows with the same time, and of examples without rows."""
    shop("UPDATE orders SET at = '2023-09-01 00:00Z' WHERE id % 10 = 0")
    packed(shop, STEPS)
    kinds = {one["kind"] for rows in layout(shop)["related"]["rows"] for one in rows["aggregates"]}
    assert kinds == set(KINDS)
    query = "SELECT * FROM churn UNION ALL SELECT customer, '2023-09-01 00:00Z', false FROM churn"
    query += " UNION ALL SELECT 5, '-infinity', false UNION ALL SELECT 5, 'infinity', false"
    rows, ranked = derived(query), derived(query, ranked=True)
    assert len(rows) == 2402
    for one, other in zip(rows, ranked):
        assert one == other


def test_a_crowd_is_ranked(shop: Lab, derived: Derived) -> None:
    """Each of 18,000 flights has all earlier ones of its airport: a hundred million rows."""
    shop("""
    CREATE TABLE ports (code text PRIMARY KEY, height integer);
    INSERT INTO ports VALUES ('a', 1), ('b', 2);
    CREATE TABLE flights AS SELECT i AS id, CASE WHEN i % 3 = 0 THEN 'b' ELSE 'a' END AS port, i * 7919 % 70 AS delay,
      timestamptz '2024-01-01 00:00Z' + i * interval '1 hour' AS at FROM generate_series(1, 18000) i;
    ALTER TABLE flights ADD PRIMARY KEY (id), ADD FOREIGN KEY (port) REFERENCES ports;
    """)
    steps = {"ports": {"unchanging": True}, "ports.flights": {"time": "at", "columns": "delay"}}
    packed(shop, steps, "flights", "delay", as_of="at")
    assert [one["crowded"] for one in layout(shop)["related"]["rows"]] == [True]
    (row,) = derived("SELECT * FROM flights WHERE id = 17000")
    windows = [one["within"] for rows in layout(shop)["related"]["rows"] for one in rows["aggregates"]
               if one["kind"] == "count" and "within" in one]  # fmt: skip
    assert windows
    expected = shop("SELECT count(*), sum(delay), max(delay), count(*) FILTER (WHERE id >= 17000 - 24 * %s)"
                    " FROM flights WHERE port = 'a' AND id < 17000", windows[0])  # fmt: skip
    names = ("count", "delay sum", "delay largest", f"count {windows[0]:g}d")
    assert tuple(row[f"ports.flights.{name}"] for name in names) == expected[0]
    assert row["ports.flights.since last"] == pytest.approx(1 / 24)


def test_rows_of_a_crowd_that_cannot_be_ranked_are_left_out(shop: Lab) -> None:
    """Their rows have two times."""
    shop("""
    CREATE TABLE legs AS SELECT id AS flight, id % 3 AS miles, at + interval '1 minute' AS done FROM flights;
    ALTER TABLE legs ADD FOREIGN KEY (flight) REFERENCES flights;
    """)
    steps = {"ports": {"unchanging": True}, "ports.flights": {"time": "at", "columns": "delay"},
             "ports.flights.legs": {"time": "done"}}  # fmt: skip
    told = packed(shop, steps, "flights", "delay", as_of="at")
    assert [one for one in told if "ports.flights.legs is left out" in one and "the limit is 100,000,000" in one]
    assert [step["path"] for step in layout(shop)["related"]["steps"]] == ["ports", "ports.flights"]


def test_an_empty_table_makes_no_input_also_beside_inputs_that_are_named(shop: Lab) -> None:
    shop("CREATE TABLE calls (customer integer REFERENCES customers, at timestamptz, seconds integer)")
    told = packed(shop, {"calls": {}}, "customers", "age", as_of=None, inputs="region")
    assert any("the column 'calls.since last' is ignored: it is NULL in all rows" in one for one in told)
    shop("DROP TABLE calls")


def test_a_related_column_that_tells_the_target_is_warned_of(shop: Lab) -> None:
    shop("CREATE TABLE answers AS SELECT id AS customer, age * 2 AS twice FROM customers")
    told = packed(shop, {"answers": {"on": {"id": "customer"}}}, "customers", "age", as_of=None)
    assert any("answers.twice" in one and "predict" in one for one in told), told
    shop("DROP TABLE answers")


def test_names_that_would_be_there_twice(shop: Lab) -> None:
    """Of columns of the source, of aggregates, of long tables, and of two tables and two keys."""
    long = "x" * 63
    shop(f"""
    CREATE TABLE owners (id integer PRIMARY KEY, cerebro_time integer, cerebro_key_0 integer, y real);
    INSERT INTO owners SELECT i, i % 7, i % 5, i % 11 FROM generate_series(1, 200) i;
    CREATE TABLE pets (owner integer REFERENCES owners, since integer, at date, kind text);
    ALTER TABLE pets ADD FOREIGN KEY (owner) REFERENCES owners;
    INSERT INTO pets SELECT 1 + i % 150, i % 40, date '2024-01-01' + i, 'k' || i % 3 FROM generate_series(1, 900) i;
    CREATE TABLE "{long}" (owner integer REFERENCES owners, weight real);
    INSERT INTO "{long}" SELECT 1 + i % 190, i % 10 FROM generate_series(1, 600) i;
    CREATE SCHEMA IF NOT EXISTS elsewhere; CREATE TABLE elsewhere.pets (owner integer REFERENCES owners, size real);
    INSERT INTO elsewhere.pets SELECT 1 + i % 50, i % 9 FROM generate_series(1, 300) i;
    """)
    packed(shop, "auto", "owners", "y", as_of=None)
    related = layout(shop)["related"]
    names = [one["name"] for rows in related["rows"] for one in rows["aggregates"]]
    assert len(set(names)) == len(names) and {"pets by owner.since last", "pets by owner.since last.2"} <= set(names)
    assert {step["path"] for step in related["steps"]} == {"pets by owner", "pets by owner 2", long}
    shop("DROP SCHEMA elsewhere CASCADE")


def test_twenty_tables_of_one_row(shop: Lab) -> None:
    """What is sent for a row has each array once: the text of the statement grows with their number only.

    On Greenplum a statement that reads so many tables needs more memory than a small cluster has.
    """
    spokes = 6 if shop.greenplum else 20
    shop("CREATE TABLE hubs (id integer PRIMARY KEY, y real);"
         " INSERT INTO hubs SELECT i, i % 5 FROM generate_series(1, 90) i")  # fmt: skip
    for number in range(spokes):
        shop(f"CREATE TABLE spoke_{number} (hub integer REFERENCES hubs, x real);"
             f" INSERT INTO spoke_{number} SELECT 1 + i % 80, i % 7 FROM generate_series(1, 200) i")  # fmt: skip
    packed(shop, "auto", "hubs", "y", as_of=None)
    assert len(layout(shop)["related"]["steps"]) == spokes
    shop("DROP TABLE " + ", ".join(f"spoke_{number}" for number in range(spokes)))


def test_extreme_numbers_and_times(shop: Lab, derived: Derived) -> None:
    shop("""
    CREATE TABLE pumps (id integer PRIMARY KEY, seen double precision, y real);
    INSERT INTO pumps SELECT i, 500 + i / 3.0, i % 5 FROM generate_series(1, 300) i;
    CREATE TABLE reads (pump integer REFERENCES pumps, seen float8, value float8, cents numeric(14, 2));
    INSERT INTO reads SELECT 1 + i % 290, (i % 1900) / 3.1, i % 10 / 7.0, i % 2000 / 100.0
    FROM generate_series(1, 9000) i;
    INSERT INTO reads VALUES (5, 'NaN', 1, 1), (5, '-Infinity', 1, 1), (5, 'Infinity', 1, 1);
    """)
    packed(shop, {"reads": {"time": "seen"}}, "pumps", "y")
    before = {row["id"]: row for row in derived("SELECT * FROM pumps")}
    expected = dict(shop("SELECT p.id, count(*) FILTER (WHERE r.seen < p.seen AND r.seen > '-Infinity') FROM pumps p"
                         " LEFT JOIN reads r ON r.pump = p.id GROUP BY 1"))  # fmt: skip
    assert {key: row["reads.count"] for key, row in before.items()} == expected
    shop("INSERT INTO reads VALUES (7, 1, 1e308, 5000000)")
    (row,) = derived("SELECT * FROM pumps WHERE id = 7")
    assert row["reads.count"] == expected[7] + 1 and row["reads.cents largest"] == 5000000
    for never in ("NaN", "Infinity"):
        (row,) = derived(f"SELECT 7 AS id, '{never}'::float8 AS seen")
        assert row["reads.count"] == 0


def test_a_row_refers_to_one_row(shop: Lab) -> None:
    """A unique index that was never finished promises nothing, and a view that shows a row twice is refused."""
    packed(shop, "auto", "customers", "age", as_of=None)
    shop("CREATE VIEW doubled AS TABLE regions UNION ALL TABLE regions")
    tables = {step["path"]: step["table"] for step in layout(shop)["related"]["steps"]}
    with pytest.raises(Error, match="doubled has several rows with the same region"):
        shop("SELECT pack_like('customers', 'again', 'age', NULL, 'packed', related => %s)",
             json.dumps({**tables, "regions": "doubled"}))  # fmt: skip
    shop("DROP VIEW doubled")
