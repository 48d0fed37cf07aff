"""Columns of related tables: which tables are read, what becomes of their rows, and that the future is never read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.sql.lab import Lab
from tests.sql.packing.test_append import read

SHOP = """
CREATE TABLE regions (region text PRIMARY KEY, wealth double precision, founded date);
INSERT INTO regions SELECT 'r' || i, i * 1.25, date '2001-01-01' + i FROM generate_series(1, 5) i;
CREATE TABLE customers (id integer PRIMARY KEY, region text REFERENCES regions, joined timestamptz, age integer);
INSERT INTO customers SELECT i, CASE WHEN i % 10 > 0 THEN 'r' || 1 + i % 5 END, timestamptz '2023-01-01 00:00Z' + i % 90 * interval '1 day',
  18 + i * 7919 % 60 FROM generate_series(1, 400) i;
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
CREATE TABLE churn AS SELECT c.id AS customer, m.at AS seen,
  (SELECT count(*) = 0 FROM orders o WHERE o.customer = c.id AND o.at >= m.at AND o.at < m.at + interval '30 days') AS gone
  FROM customers c, (VALUES (timestamptz '2023-08-01 00:00Z'), ('2023-10-01 00:00Z'), ('2023-12-01 00:00Z')) m (at);
ALTER TABLE churn ADD PRIMARY KEY (customer, seen), ADD FOREIGN KEY (customer) REFERENCES customers;
"""
STEPS = {
    "customers": {"time": "joined"},
    "customers.regions": {"unchanging": True},
    "customers.orders": {"time": "at"},
    "customers.orders.items": {"unchanging": True},
}


@pytest.fixture(scope="module")
def shop(lab: Lab) -> Lab:
    lab(SHOP)
    return lab


def packed(shop: Lab, related: Any, source: str = "churn", target: str = "gone", **more: Any) -> list[str]:
    """Pack the table; what was told."""
    ends = ("", "_summary", "_validation", "_validation_summary")
    shop("DROP TABLE IF EXISTS " + ", ".join(f"packed{end}" for end in ends))
    shop.told()
    related = related if isinstance(related, str) else json.dumps(related)
    given = {"seed": 1, "segments": 2, "related": related, "as_of": "seen", **more}
    given = {name: value for name, value in given.items() if value is not None}
    named = "".join(f", {name} => %s" for name in given)
    shop(f"SELECT pack('{source}', 'packed', '{target}'{named})", *given.values())
    return shop.told()


def layout(shop: Lab, table: str = "packed") -> Any:
    return shop.value(f"SELECT layout FROM {table}_summary")


def test_tables_are_read_beside_the_source(shop: Lab) -> None:
    told = packed(shop, STEPS)
    print("\n".join(told))
    found = layout(shop)
    print(json.dumps(found["related"], indent=1)[:3000])
    print([(one["name"], one["dtype"], one["shape"], one.get("columns")) for one in found["inputs"]])
    values = read(shop, "packed")
    print({name: (value.dtype, value.shape) for name, value in values.items()})
    assert np.isfinite(values["numbers"]).all()
    raise AssertionError
