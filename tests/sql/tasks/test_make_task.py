"""cerebro.make_task equals the same computed in Python, row by row, and refuses what it cannot use."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from psycopg2 import errors

from tests.sql.lab import Lab
from tests.sql.users import Town, town

ORDERS = (
    "SELECT c.id AS customer, date '2025-01-01' + (hashint4(c.id * 1000 + n) & 1023) % 300 AS ordered,"
    " ((hashint4(n * 77 + c.id) & 1023) / 8.0)::numeric AS amount,"
    " (ARRAY['tea', 'milk', 'bread'])[1 + (hashint4(n + c.id) & 1023) % 3] AS product"
    " FROM customers c, generate_series(1, c.id % 7) n"
)


@pytest.fixture(scope="module")
def shop(lab: Lab) -> Lab:
    """40 customers with 0 to 6 orders each in 300 days, keys and a foreign key."""
    lab("CREATE TABLE customers (id integer PRIMARY KEY, joined date, name text)")
    lab("INSERT INTO customers SELECT i, date '2025-01-01' + i * 5, 'c' || i FROM generate_series(1, 40) i")
    lab("CREATE TABLE orders (customer integer REFERENCES customers, ordered date, amount numeric, product text,"
        " id serial PRIMARY KEY)")  # fmt: skip
    lab(f"INSERT INTO orders (customer, ordered, amount, product) {ORDERS}")
    return lab


def expected(shop: Lab, target: Any, horizon: int, as_of: list[date], active: int | None = None) -> set[Any]:
    orders: dict[int, list[Any]] = {}
    for customer, ordered, amount, product in shop("SELECT customer, ordered, amount, product FROM orders"):
        orders.setdefault(customer, []).append((ordered, amount, product))
    found = set()
    for (customer,) in shop("SELECT id FROM customers"):
        for at in as_of:
            mine = orders.get(customer, [])
            if active is not None and not any(at - timedelta(active) <= row[0] < at for row in mine):
                continue
            value = target(sorted(row for row in mine if at <= row[0] < at + timedelta(horizon)))
            if value is not None:
                found.add((customer, at, value))
    return found


def made(shop: Lab, name: str, columns: str = "id, as_of, target") -> list[Any]:
    return sorted(shop(f"SELECT {columns} FROM {name}"))


def cut_offs(shop: Lab, name: str) -> list[date]:
    return [at for (at,) in shop(f"SELECT DISTINCT as_of FROM {name} ORDER BY 1")]


LAST = "(SELECT max(ordered) FROM orders)"


@pytest.mark.parametrize(
    ("name", "target", "plain", "kind"),
    [
        ("churn", "count(*) = 0", lambda rows: not rows, "boolean"),
        ("spent", "sum(amount)", lambda rows: sum(row[1] for row in rows), "numeric"),
        ("best", "max(orders.amount)", lambda rows: max((row[1] for row in rows), default=None), "numeric"),
        ("next_product", "(array_agg(product ORDER BY ordered, amount))[1]",
         lambda rows: rows[0][2] if rows else None, "text"),
        ("usual", "mode() WITHIN GROUP (ORDER BY product) -- the usual one",
         lambda rows: max(sorted({row[2] for row in rows}), key=[row[2] for row in rows].count) if rows else None,
         "text"),
        ("soon", "min(ordered) - as_of", None, "integer"),
    ],
)  # fmt: skip
def test_it_equals_plain_python(shop: Lab, name: str, target: str, plain: Any, kind: str) -> None:
    shop.told()
    rows = shop.value(f"SELECT make_task('customers', 'orders', %s, '{name}', '60 days', '30 days')", target)
    said = " ".join(shop.told())
    last = shop.value(f"SELECT {LAST} - 60")
    first = shop.value("SELECT min(ordered) + 60 FROM orders")
    possible = sorted(last - timedelta(30 * n) for n in range(20) if last - timedelta(30 * n) >= first)
    assert len(possible) == 6
    # The horizon of the last but one reaches into the time of the last one.
    assert cut_offs(shop, name) == [at for at in possible if at != possible[-2]]
    if plain is None:
        mine = {(customer, at): (day - at).days for customer, at, day in expected(
            shop, lambda rows: rows[0][0] if rows else None, 60, cut_offs(shop, name))}  # fmt: skip
        assert {(customer, at): days for customer, at, days in made(shop, name)} == mine
    else:
        assert set(made(shop, name)) == expected(shop, plain, 60, cut_offs(shop, name))
    assert rows == len(made(shop, name)) > 50
    assert dict(shop.columns(name)) == {"id": "integer", "as_of": "date", "target": kind}
    left_out = 40 * 5 - rows
    assert (f"{left_out} rows without a target" in said) == (left_out > 0) == (name not in ("churn", "spent"))
    assert f"has {rows} rows" in said and "5 cut-off times" in said and "1 cut-off time before left out" in said
    assert f"cerebro.train('{shop.schema}.{name}'" in said and "related => 'auto'" in said


def test_the_table_has_a_key_and_refers_to_the_entities(shop: Lab) -> None:
    shop("SELECT make_task('customers', 'orders', 'count(*)', 'keyed', '30 days', '30 days')")
    found = shop("SELECT contype::text, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'keyed'::regclass"
                 " AND contype <> 'n' ORDER BY 1")  # fmt: skip
    assert [kind for kind, _ in found] == ["f", "p"]
    assert "REFERENCES customers(id) ON DELETE CASCADE" in found[0][1] and found[1][1] == "PRIMARY KEY (id, as_of)"
    with_orders = shop.value("SELECT count(*) FROM keyed WHERE id = 40")
    shop("BEGIN")
    shop("DELETE FROM orders WHERE customer = 40")
    shop("DELETE FROM customers WHERE id = 40")
    gone = shop.value("SELECT count(*) FROM keyed WHERE id = 40")
    shop("ROLLBACK")
    # Greenplum declares foreign keys, and does not enforce them.
    assert with_orders > 0 and gone == (with_orders if shop.greenplum else 0)


def test_the_call_that_is_said_divides_the_rows_as_meant(shop: Lab) -> None:
    shop.told()
    shop("SELECT make_task('customers', 'orders', 'count(*) = 0', 'shared', '90 days', '20 days', active => '60 days')")
    said = " ".join(shop.told())
    share = float(said.split("validation => ")[1].split(",")[0]) if "validation => " in said else 0.2
    first = date.fromisoformat(said.split("cut-off time")[2].split("from ")[1][:10])
    moment = shop.value(f"SELECT percentile_disc({1 - share}) WITHIN GROUP (ORDER BY as_of) FROM shared")
    times = cut_offs(shop, "shared")
    assert moment == [at for at in times if at < first][-1] and moment + timedelta(90) <= first
    assert set(made(shop, "shared")) == expected(shop, lambda rows: not rows, 90, times, active=60)


def test_training_on_it_divides_by_time(shop: Lab) -> None:
    shop("SELECT make_task('customers', 'orders', 'count(*) = 0', 'trainable', '60 days', '10 days')")
    said = " ".join(shop.told())
    call = said[said.index("SELECT cerebro.train(") :]
    share = call.split("validation => ")[1].split(",")[0] if "validation => " in call else "0.2"
    shop(f"SELECT pack('trainable', 'trainable_packed', 'target', split_at => 'as_of', validation => {share})")
    apart = shop.value("SELECT sum(rows) FROM trainable_packed_validation_summary")
    assert f"with {apart} rows for validation" in said


NEXT = {
    "all is declared": ("'customers', 'orders', 'count(*) = 0', '{}', '60 days', '30 days'", "'auto'"),
    "the entity has no time": ("'plain', 'plain_orders', 'sum(amount)', '{}', '60 days', '30 days'",
                               """'{"plain": {"unchanging": true, "columns": ""}, "plain.plain_orders": {"time":"""),
    "nothing is declared": ("'half', 'orders', 'count(*)', '{}', '60 days', '30 days', key => 'customer'",
                            """'{"half": {"on": {"customer": "customer"}, "unchanging": true, "columns": ""},"""
                            """ "half.orders": {"on": {"customer": "customer"}, "time": "ordered"}}'"""),
    "the entity has a time": ("'joining', 'orders', 'count(*)', '{}', '60 days', '30 days', key => 'customer',"
                              " entity_time => 'joined'", '"time": "joined"}'),
}  # fmt: skip


@pytest.mark.parametrize("case", NEXT)
def test_the_call_that_is_said_reads_the_events(shop: Lab, case: str) -> None:
    if case == "the entity has no time":
        shop("CREATE TABLE plain AS SELECT id FROM customers; ALTER TABLE plain ADD PRIMARY KEY (id)")
        shop("CREATE TABLE plain_orders AS SELECT customer, ordered, amount FROM orders")
        shop("ALTER TABLE plain_orders ADD FOREIGN KEY (customer) REFERENCES plain")
    elif case == "nothing is declared":
        shop("CREATE VIEW half AS SELECT id AS customer, name FROM customers WHERE id % 2 = 0")
    elif case == "the entity has a time":
        shop("CREATE VIEW joining AS SELECT id AS customer, joined, name FROM customers")
    call, related = NEXT[case]
    name = f"next_{list(NEXT).index(case)}"
    shop.told()
    shop(f"SELECT make_task({call.format(name)})")
    said = " ".join(shop.told())
    proposed = said[said.index("SELECT cerebro.train(") : said.index(");", said.index("SELECT cerebro.train("))]
    assert related in proposed
    shop(f"{proposed}, dry_run => true)")
    told = " ".join(shop.told())
    assert "orders" in told and "left out" not in told, told
    more = proposed.partition("target => 'target', ")[2]
    shop(f"SELECT pack('{name}', '{name}_packed', 'target', {more})")
    columns = [column for (column,) in shop(f"SELECT column_name FROM prepared_columns('{name}_packed')")]
    assert any("orders.count" in one for one in columns), columns
    assert not [one for one in columns if one.endswith((".name", ".id", ".customer"))] or related == "'auto'", columns


def test_a_task_is_not_read_for_another_one(shop: Lab) -> None:
    """Its rows of an earlier time have targets that are made of events after the time of the other one's rows."""
    shop("CREATE TABLE members AS SELECT id, joined FROM customers; ALTER TABLE members ADD PRIMARY KEY (id)")
    shop("CREATE TABLE buys AS SELECT customer AS id, ordered, amount FROM orders")
    shop("ALTER TABLE buys ADD FOREIGN KEY (id) REFERENCES members")
    for name, target in (("one_task", "sum(amount)"), ("other_task", "count(*) = 0")):
        shop(f"SELECT make_task('members', 'buys', '{target}', '{name}', '60 days', '30 days')")
    shop("SELECT pack('other_task', 'other_packed', 'target', related => 'auto', as_of => 'as_of')")
    columns = [column for (column,) in shop("SELECT column_name FROM prepared_columns('other_packed')")]
    assert any("buys.count" in one for one in columns) and not [one for one in columns if "task" in one], columns
    # Whoever names it has chosen so; and without the comment it is a table like any other.
    shop("COMMENT ON COLUMN one_task.target IS NULL")
    shop("SELECT pack('other_task', 'leaking', 'target', related => 'auto', as_of => 'as_of')")
    columns = [column for (column,) in shop("SELECT column_name FROM prepared_columns('leaking')")]
    assert [one for one in columns if "one_task.target" in one], columns


def test_cut_off_times_that_are_given(shop: Lab) -> None:
    call = "SELECT make_task('customers', 'orders', 'count(*)', '{}', '1 month', '1 month', validation => 0{})"
    shop(call.format("forwards", ", starts => '2025-01-31', ends => '2025-05-31'"))
    assert [str(at) for at in cut_offs(shop, "forwards")] == [
        "2025-01-31", "2025-02-28", "2025-03-31", "2025-04-30", "2025-05-31"]  # fmt: skip
    shop(call.format("backwards", ", ends => '2025-05-31'"))
    assert [str(at) for at in cut_offs(shop, "backwards")][-3:] == ["2025-03-31", "2025-04-30", "2025-05-31"]
    shop(call.format("once", ", starts => '2025-05-31', ends => '2025-05-31'"))
    assert made(shop, "once") == sorted(expected(shop, len, 30, [date(2025, 5, 31)]))


def test_targets_that_may_be_incomplete_are_told(shop: Lab) -> None:
    shop.told()
    call = "SELECT make_task('customers', 'orders', 'count(*)', '{}', '30 days', '30 days', ends => {})"
    shop(call.format("complete", f"({LAST} - 30)::text"))
    assert "incomplete" not in " ".join(shop.told())
    shop(call.format("late", f"({LAST} + 15)::text"))
    assert "the horizons of 2 cut-off times end after the last event" in " ".join(shop.told())


def test_names_that_need_quotes(shop: Lab) -> None:
    shop('CREATE TABLE "My Clients" ("Client ""Id""" integer PRIMARY KEY)')
    shop('INSERT INTO "My Clients" SELECT i FROM generate_series(1, 9) i')
    shop('CREATE TABLE "Their Calls" AS SELECT 1 + i % 9 AS who, date \'2025-01-01\' + i AS "On" FROM'
         " generate_series(1, 200) i")  # fmt: skip
    shop.told()
    shop("""SELECT make_task('"My Clients"', '"Their Calls"', 'count("Their Calls"."On")', '"A Task"', '20 days',"""
         """ '90 days', on_columns => 'who')""")  # fmt: skip
    call = " ".join(shop.told()).split("next: SELECT cerebro.train(")[1]
    assert call.startswith(f"""'{shop.schema}."A Task"', '"A Task_models"', target => 'target', as_of => 'as_of'""")
    assert '"on": {"Client \\"Id\\"": "who"}' in call
    shop("""SELECT make_task('"My Clients"', '"Their Calls"', 'count(*)', '"One Time"', '95 days', '90 days',"""
         """ on_columns => 'who')""")  # fmt: skip
    call = " ".join(shop.told()).split("next: SELECT cerebro.train(")[1]
    split = call[call.index("split_by") : call.index(", related")]
    shop(f"""SELECT pack('"One Time"', 'packed_once', 'target', {split})""")


def test_an_entity_has_rows_from_its_time_on(shop: Lab) -> None:
    shop.told()
    shop("SELECT make_task('customers', 'orders', 'count(*)', 'always', '60 days', '60 days')")
    assert "entity_time => 'joined'" in " ".join(str(one) for one in shop.db.notices)
    shop(
        "SELECT make_task('customers', 'orders', 'count(*)', 'existing', '60 days', '60 days', entity_time => 'joined')"
    )
    assert made(shop, "existing") == shop(
        "SELECT a.id, as_of, target FROM always a JOIN customers c USING (id) WHERE joined <= as_of ORDER BY 1, 2"
    )
    assert 0 < len(made(shop, "existing")) < len(made(shop, "always"))


def test_times_with_a_zone_at_midnight(shop: Lab) -> None:
    shop("CREATE VIEW timed AS SELECT customer AS id, ordered::timestamptz + interval '17:05:03.25' AS at FROM orders")
    shop("SELECT make_task('customers', 'timed', 'count(*) = 0', 'of_times', '30 days', '30 days')")
    assert dict(shop.columns("of_times"))["as_of"] == "timestamp with time zone"
    assert shop.value("SELECT bool_and(as_of = date_trunc('day', as_of)) FROM of_times")
    shop("SELECT make_task('customers', 'timed', 'count(*) = 0', 'of_hours', '40 hours', '40 days')")
    assert shop.value("SELECT max(as_of) = (SELECT max(at) - interval '40 hours' FROM timed) FROM of_hours")
    at = shop("SELECT id, target, NOT EXISTS (SELECT FROM timed t WHERE t.id = o.id AND at >= as_of AND"
              " at < as_of + interval '40 hours') FROM of_hours o")  # fmt: skip
    assert at and all(one == other for _, one, other in at) and {one for _, one, _ in at} == {True, False}


def test_composite_keys_self_references_and_views(shop: Lab) -> None:
    shop("CREATE TABLE sites (country text, site integer, PRIMARY KEY (country, site))")
    shop("INSERT INTO sites SELECT c, s FROM unnest('{de,fr}'::text[]) c, generate_series(1, 3) s")
    shop("CREATE TABLE visits AS SELECT s AS place, c AS land, timestamp '2025-01-01' + n * interval '5 days' AS at"
         " FROM unnest('{de,fr}'::text[]) c, generate_series(1, 3) s, generate_series(s, 50, s) n")  # fmt: skip
    shop("ALTER TABLE visits ADD FOREIGN KEY (place, land) REFERENCES sites (site, country)")
    shop("SELECT make_task('sites', 'visits', 'count(*)', 'busy', '30 days', '30 days')")
    assert shop("SELECT DISTINCT country, site, target FROM busy ORDER BY 1, 2, 3")[:2] == [("de", 1, 6), ("de", 2, 3)]
    shop("SELECT make_task('sites', 'visits', 'count(*)', 'busy_2', '30 days', '30 days', key => 'country, site',"
         " on_columns => 'land, place')")  # fmt: skip
    assert made(shop, "busy_2", "country, site, as_of, target") == made(shop, "busy", "country, site, as_of, target")
    shop("CREATE TABLE posts (id integer PRIMARY KEY, answers integer REFERENCES posts, at date)")
    shop("INSERT INTO posts SELECT i, nullif(i / 3, 0), date '2025-01-01' + i FROM generate_series(1, 200) i")
    shop("SELECT make_task('posts', 'posts', 'count(*)', 'answered', '50 days', '50 days', entity_time => 'at')")
    assert shop.value("SELECT bool_and(target = (SELECT count(*) FROM posts p WHERE p.answers = a.id AND p.at >= as_of"
                      " AND p.at < as_of + 50)) AND max(target) > 0 FROM answered a")  # fmt: skip
    shop("CREATE VIEW people AS SELECT id AS customer FROM customers WHERE id % 2 = 0")
    shop.told()
    shop("SELECT make_task('people', 'orders', 'count(*)', 'of_view', '60 days', '60 days', key => 'customer')")
    said = " ".join(shop.told())
    assert '"people.orders"' in said and '"on": {"customer": "customer"}' in said
    assert shop.value("SELECT count(DISTINCT customer) FROM of_view") == 20


def test_names_are_those_of_the_events_alone(shop: Lab) -> None:
    """Columns of entities and events may have equal names; as_of of an event stands for itself."""
    shop("CREATE TABLE moments AS SELECT customer AS id, amount AS name, ordered AS as_of FROM orders")
    shop("SELECT make_task('customers', 'moments', 'max(name)', 'named', '60 days', '60 days', on_columns => 'id')")
    assert made(shop, "named") == sorted(
        expected(shop, lambda rows: max((row[1] for row in rows), default=None), 60, cut_offs(shop, "named"))
    )
    shop("SELECT make_task('customers', 'moments', 'max(as_of)', 'own', '60 days', '60 days', on_columns => 'id')")
    assert shop.value("SELECT bool_and(target >= as_of AND target < as_of + 60) FROM own")


def test_events_without_a_time_or_after_now_are_told(shop: Lab) -> None:
    shop("CREATE TABLE odd AS SELECT customer AS id, ordered::timestamp AS at FROM orders")
    shop("INSERT INTO odd VALUES (1, NULL), (2, NULL), (NULL, NULL), (1, 'infinity'), (3, '9999-12-31')")
    shop.told()
    shop("SELECT make_task('customers', 'odd', 'count(*)', 'of_odd', '60 days', '30 days', starts => '2025-02-01')")
    said = " ".join(shop.told())
    assert "2 events of 'odd' without 'at' count nowhere" in said and "after now" in said
    assert cut_offs(shop, "of_odd")[-1] <= datetime.now() - timedelta(60)


ERRORS = {
    "'nobody', 'orders', 'count(*)', 'o', '60 days', '30 days'": ("entity_table: there is no table 'nobody'", "42P01"),
    "'customers', 'none', 'count(*)', 'o', '60 days', '30 days'": ("event_table: there is no table 'none'", "42P01"),
    "'customers', 'orders', 'count(*)', 'orders', '60 days', '30 days'": ("'orders' already exists", "42P07"),
    "'customers', 'orders', 'count(*)', NULL, '60 days', '30 days'": ("output_table must not be NULL", "42602"),
    "'customers', 'orders', 'count(*)', 'o', '0 days', '30 days'": ("horizon is '0 days'; it must be above 0", "22023"),
    "'customers', 'orders', 'count(*)', 'o', '60 days', '-1 day'": ("every is '-1 day'; it must be above 0", "22023"),
    "'customers', 'orders', 'count(*)', 'o', '60 dayz', '30 days'": ("horizon: '60 dayz' is no interval", "22023"),
    "'customers', 'orders', 'count(*)', 'o', NULL, '30 days'": ("horizon must not be NULL", "22023"),
    "'customers', 'orders', 'count(*)', 'o', '60 days', '12 hours'": ("every is '12 hours', .* is a date", "22023"),
    "'customers', 'orders', 'count(*)', 'o', '60 days', '30 days', active => 'long'": ("active: 'long' is no", "22023"),
    "'customers', 'orders', 'count(*)', 'o', '1 day', '1 day', starts => '2025-03-01', ends => '2025-02-01'":
        ("ends is '2025-02-01', and that is before starts, '2025-03-01'", "22023"),
    "'customers', 'orders', 'count(*)', 'o', '60 days', '30 days', starts => 'soon'": ("starts: 'soon' is no", "22023"),
    "'customers', 'orders', 'count(*)', 'o', '60 days', '30 days', ends => 'infinity'": ("ends: 'infinity'", "22023"),
    "'customers', 'orders', 'count(*)', 'o', '200 days', '30 days'": ("no cut-off time has a complete", "22000"),
    "'customers', 'orders', 'count(*)', 'o', '1 month', '1 month -29 days', ends => '2025-09-30'":
        ("its parts must not have different signs", "22023"),
    "'customers', 'orders', 'count(*)', 'o', '1 day', '1 day', starts => '1900-01-01', ends => '2000-01-01'":
        ("more than 10,000 cut-off times", "22023"),
    "'customers', 'orders', 'count(*)', 'o', '60 days', '30 days', validation => 1": ("validation is 1", "22023"),
    "'customers', 'orders', NULL, 'o', '60 days', '30 days'": ("target must not be NULL", "22023"),
    "'customers', 'orders', 'amount', 'o', '60 days', '30 days'": ("target: 'amount' .*GROUP BY|no aggregate", "22023"),
    "'customers', 'orders', '1', 'o', '60 days', '30 days'": ("target: '1' is no aggregate", "22023"),
    "'customers', 'orders', 'sum(nothing)', 'o', '60 days', '30 days'":
        ("target: 'sum.nothing.' cannot be computed: .*\"nothing\" does not exist", "22023"),
    "'customers', 'orders', 'sum(', 'o', '60 days', '30 days'": ("target: 'sum.' cannot be .*syntax error", "22023"),
    "'customers', 'orders', 'count(*)) AS t FROM orders) AS p; DROP TABLE orders; SELECT p.* FROM (SELECT (1', 'o',"
    " '60 days', '30 days'":
        ("target: .* is several statements", "22P02"),
    "'customers', 'orders', 'count(*)), (sum(amount)', 'o', '60 days', '30 days'": ("is 2 expressions", "22023"),
    "'customers', 'orders', 'count(*)) AS a FROM orders UNION ALL SELECT (1', 'o', '60 days', '30 days'":
        ("cannot be computed", "22023"),
    "'customers', 'orders', 'sum(count(*)) OVER ()', 'o', '60 days', '30 days'": ("window functions are not", "22023"),
    "'customers', 'orders', 'unnest(array_agg(amount))', 'o', '60 days', '30 days'": ("target: ", "22023"),
    "'customers', 'orders', 'count(*)', 'o', '60 days', '30 days', key => 'number'":
        ("'customers' has no column 'number'", "42703"),
    "'customers', 'orders', 'count(*)', 'o', '60 days', '30 days', on_columns => 'x'": ("no column 'x'", "42703"),
    "'customers', 'orders', 'count(*)', 'o', '60 days', '30 days', on_columns => 'customer, id'":
        ("names 2 columns, and the key", "22023"),
    "'customers', 'orders', 'count(*)', 'o', '60 days', '30 days', on_columns => 'product'":
        ("on_columns: 'product' has the type text", "22023"),
    "'customers', 'orders', 'count(*)', 'o', '60 days', '30 days', event_time => 'amount'":
        ("event_time: 'amount' has", "22023"),
    "'customers', 'orders', 'count(*)', 'o', '60 days', '30 days', event_time => 'id, amount'":
        ("names 2 columns", "22023"),
    "'customers', 'orders', 'count(*)', 'o', '60 days', '30 days', entity_time => 'name'":
        ("entity_time: 'name'", "22023"),
    "'keyless', 'orders', 'count(*)', 'o', '60 days', '30 days'":
        ("key is NULL, and 'keyless' has no primary", "22023"),
    "'keyless', 'orders', 'count(*)', 'o', '60 days', '30 days', key => 'id',"
    " on_columns => 'customer'": ("several rows", "22000"),
    "'holes', 'orders', 'count(*)', 'o', '60 days', '30 days', key => 'customer'": ("is NULL in 1 row", "22000"),
    "'customers', 'keyless', 'count(*)', 'o', '60 days', '30 days', on_columns => 'id'":
        ("event_time is NULL, and .* no", "22023"),
    "'customers', 'two_times', 'count(*)', 'o', '60 days', '30 days', on_columns => 'c'":
        ("event_time is NULL, and .* 2 columns", "22023"),
    "'customers', 'untimed', 'count(*)', 'o', '60 days', '30 days', on_columns => 'c'":
        ("no event of 'untimed'", "22000"),
    "'customers', 'twice', 'count(*)', 'o', '60 days', '30 days'": ("has 2 foreign keys to 'customers'", "22023"),
    "'customers', 'unlinked', 'count(*)', 'o', '60 days', '30 days'":
        ("on_columns is NULL, 'unlinked' has no", "22023"),
    "'customers', 'empty', 'count(*)', 'o', '60 days', '30 days', on_columns => 'c'": ("'empty' has no rows", "22000"),
    "'customers', 'orders', 'max(amount) FILTER (WHERE false)', 'o', '60 days', '30 days'": ("NULL for all", "22000"),
    "'awkward', 'orders', 'count(*)', 'o', '60 days', '30 days', on_columns => 'customer'": ("key 'target'", "22023"),
}  # fmt: skip


@pytest.fixture(scope="module")
def bad(shop: Lab) -> Lab:
    shop("CREATE TABLE keyless AS SELECT 1 AS id UNION ALL SELECT 1")
    shop("CREATE TABLE holes AS SELECT 1 AS customer UNION ALL SELECT NULL")
    shop("CREATE TABLE two_times AS SELECT customer AS c, ordered, ordered AS sent FROM orders")
    shop("CREATE TABLE untimed AS SELECT customer AS c, NULL::date AS at FROM orders")
    shop("CREATE TABLE empty (c integer, at date)")
    shop("CREATE TABLE unlinked AS SELECT customer AS c, ordered FROM orders")
    shop("CREATE TABLE awkward (target integer PRIMARY KEY); INSERT INTO awkward VALUES (1)")
    shop("CREATE TABLE twice (a integer REFERENCES customers, b integer REFERENCES customers, at date)")
    shop("INSERT INTO twice VALUES (1, 2, '2025-01-01')")
    return shop


@pytest.mark.parametrize("call", ERRORS)
def test_errors_say_what_is_wrong_and_change_nothing(bad: Lab, call: str) -> None:
    text, state = ERRORS[call]
    before, orders = bad.tables(), bad.value("SELECT count(*) FROM orders")
    with pytest.raises(errors.Error, match=f"cerebro.make_task: .*({text})") as caught:
        bad(f"SELECT make_task({call})")
    assert caught.value.pgcode == state
    assert bad.tables() == before and bad.value("SELECT count(*) FROM orders") == orders


def test_too_few_cut_off_times_for_a_validation_are_told(shop: Lab) -> None:
    shop.told()
    shop("SELECT make_task('customers', 'orders', 'count(*)', 'few', '130 days', '30 days')")
    said = " ".join(shop.told())
    assert len(cut_offs(shop, "few")) == 2
    assert "no rows are set apart for validation by time" in said and "split_by => 'id'" in said
    assert "split_at" not in said.split("next: ")[1]


@pytest.fixture
def people(server: str) -> Iterator[Town]:
    with town(server) as made:
        yield made


def test_the_tables_of_others_need_their_rights(people: Town) -> None:
    alice, bob = people.user("alice", "cerebro_user"), people.user("bob", "cerebro_user")
    alice("CREATE TABLE shops (id integer PRIMARY KEY, secret text)")
    alice("INSERT INTO shops SELECT i FROM generate_series(1, 5) i")
    alice("CREATE TABLE sales AS SELECT i % 5 + 1 AS shop, i AS amount, i AS secret, date '2025-01-01' + i AS day"
          " FROM generate_series(1, 100) i")  # fmt: skip
    call = (f"SELECT cerebro.make_task('{alice.name}.shops', '{alice.name}.sales', 'sum({{}})', '{{}}', '10 days',"
            " '10 days', on_columns => 'shop')").format  # fmt: skip
    bob.refused(call("amount", "mine"))
    alice(f"GRANT USAGE ON SCHEMA {alice.name} TO {bob.name}")
    alice(f"GRANT SELECT (id) ON shops TO {bob.name}")
    assert "sales" in str(bob.refused(call("amount", "mine")))
    alice(f"GRANT SELECT (shop, amount, day) ON sales TO {bob.name}")
    assert bob(call("amount", "mine"))[0] > 10
    bob.refused(call("secret", "more"))
    assert bob("SELECT count(*) FROM pg_constraint WHERE conrelid = 'mine'::regclass AND contype = 'f'") == [0]
    alice(f"GRANT REFERENCES ON shops TO {bob.name}")
    assert bob(call("amount", "referring"))[0] > 10
    assert bob("SELECT count(*) FROM pg_constraint WHERE conrelid = 'referring'::regclass AND contype = 'f'") == [1]


def test_the_expression_runs_with_the_callers_rights(people: Town) -> None:
    """A function of the definer's, or an attempt to leave the expression, gives nobody another's right."""
    alice, bob = people.user("alice", "cerebro_user"), people.user("bob", "cerebro_user")
    alice("CREATE TABLE hidden AS SELECT 'secret' AS word")
    bob("CREATE TABLE things (id integer PRIMARY KEY); INSERT INTO things VALUES (1)")
    bob("CREATE TABLE facts AS SELECT 1 AS id, date '2025-01-01' + i AS day FROM generate_series(1, 90) i")
    call = "SELECT cerebro.make_task('things', 'facts', '{}', 'told', '10 days', '10 days')".format
    bob.refused(call(f"max((SELECT word FROM {alice.name}.hidden))"))
    assert bob(call("max(current_user::text)"))[0] > 3
    assert bob("SELECT DISTINCT target FROM told") == [bob.name]


def test_a_cancel_ends_it_within_a_second(shop: Lab) -> None:
    shop("CREATE TABLE many AS SELECT i AS id FROM generate_series(1, 20000) i")
    shop("CREATE TABLE happening AS SELECT i % 20000 + 1 AS id, date '2020-01-01' + i % 2000 AS at"
         " FROM generate_series(1, 400000) i")  # fmt: skip
    session = shop.connect()
    ended: list[Any] = []

    def call() -> None:
        begun = time.monotonic()
        try:
            with session.cursor() as cursor:
                cursor.execute(
                    "SELECT make_task('many', 'happening', 'count(*)', 'endless', '500 days', '1 day', key => 'id')"
                )
        except errors.QueryCanceled as error:
            ended.append((time.monotonic() - begun, error))

    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(4)
    begun = time.monotonic()
    assert thread.is_alive()
    session.cancel()
    thread.join(10)
    # While Greenplum's segments work, its coordinator looks for a cancel every two seconds.
    assert ended and time.monotonic() - begun < (3.5 if shop.greenplum else 1.5)
    session.close()
    assert "endless" not in shop.tables()
