"""The generated tables of `make bench WORKS=related` have the signals that they claim, and no other."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.bench import related
from tests.bench.related_sql import PLANTED, SHOP, SHOP_FEATURES, VISITS
from tests.sql.lab import Lab

ROWS = 2000


@pytest.fixture
def own(lab: Lab) -> Lab:
    """The lab without the tables of the test before."""
    lab("SET client_min_messages = warning")
    for (name,) in lab("SELECT tablename FROM pg_tables WHERE schemaname = %s", lab.schema):
        lab(f"DROP TABLE {name} CASCADE")
    return lab


def planted(lab: Lab, signal: str) -> None:
    for statement in PLANTED[signal]:
        lab(statement.format(rows=ROWS))


FOUND = {
    "count": "v.visits_30 >= 3",
    "recency": "v.days_since_last <= 7",
    "two tables away": "r.climate IN ('dry', 'cold')",
}


@pytest.mark.parametrize("signal", FOUND)
def test_a_feature_of_the_sql_by_hand_has_the_signal(own: Lab, signal: str) -> None:
    planted(own, signal)
    query = VISITS.replace("SELECT e.*, s.id AS shop", f"SELECT ({FOUND[signal]}) AS found, e.target")
    query = query[: query.index(", r.id AS region")] + query[query.index("\n  FROM examples") :]
    rows = own(f"SELECT found, target FROM ({query}) q")
    assert len(rows) == ROWS
    assert 0.93 < sum(found == target for found, target in rows) / ROWS < 0.97  # one in twenty is noise
    assert 0.2 < sum(target for _, target in rows) / ROWS < 0.8


def test_the_order_alone_has_the_signal(own: Lab) -> None:
    planted(own, "order")
    of_each: dict[int, list[str]] = {}
    for person, kind, earlier in own(
        "SELECT v.person_id, v.kind, v.at < e.at FROM visits v JOIN examples e USING (person_id)"
        " ORDER BY v.person_id, v.at DESC"
    ):
        assert earlier
        of_each.setdefault(person, []).append(kind)
    targets = dict(own("SELECT person_id, target FROM examples"))
    assert len(of_each) == ROWS and 0.4 < sum(targets.values()) / ROWS < 0.6
    assert {tuple(sorted(kinds)) for kinds in of_each.values()} == {tuple("AABBCC")}
    right = sum((kinds[1] == "A") == targets[person] for person, kinds in of_each.items())
    assert 0.93 < right / ROWS < 0.97
    assert {kinds[0] for kinds in of_each.values()} == {"C"} and {
        kinds[1:3].count("B") for kinds in of_each.values()
    } == {1}
    for place in (3, 5):  # the others say nothing
        counts = Counter((kinds[place], targets[person]) for person, kinds in of_each.items())
        shares = [counts[kind, True] / (counts[kind, True] + counts[kind, False]) for kind in "ABC"]
        assert max(shares) - min(shares) < 0.12, shares


def test_the_features_of_the_shop_have_each_row_once(own: Lab) -> None:
    if own.greenplum:
        pytest.skip("the benchmark runs on PostgreSQL")
    for statement in SHOP:
        own(statement.format(customers=200, orders=6000, items=20000))
    rows = own.value("SELECT make_task('customers', 'orders', 'count(*) = 0', 'churn', '90 days', '90 days',"
                     " active => '180 days', entity_time => 'joined')")  # fmt: skip
    own("ALTER TABLE churn ADD COLUMN example bigint GENERATED ALWAYS AS IDENTITY")
    own(f"CREATE TABLE by_hand AS {SHOP_FEATURES}")
    assert own("SELECT count(*), count(DISTINCT example) FROM by_hand") == [(rows, rows)]
    assert own.value("SELECT bool_and(orders > 0 AND since_last >= 0 AND orders >= orders_30) FROM by_hand")
    assert own.value(
        "SELECT count(*) FROM by_hand b JOIN churn t USING (example) WHERE b.orders <>"
        " (SELECT count(*) FROM orders o WHERE o.customer_id = t.customer_id AND o.ordered_at < t.as_of)"
    ) == 0  # fmt: skip
    assert 0.05 < own.value("SELECT avg(target::int)::float8 FROM churn") < 0.6


def test_the_table_of_results() -> None:
    lines = [
        {"set": "count", "contender": related.SINGLE, "repeat": 0, "classes": True, "score": 0.5, "seconds": 1.0},
        {"set": "count", "contender": related.SINGLE, "repeat": 1, "classes": True, "score": 0.6, "seconds": 1.0},
        {"set": "next hits", "contender": related.BY_HAND, "repeat": 0, "classes": False, "score": 43.0, "seconds": 1},
        {"set": "shop", "contender": "SQL by hand", "rows": 1000, "features": 4, "seconds": 2.0, "memory": 3 << 20},
    ]
    shown = related.table(lines)
    assert "| count (AUC) " in shown and "0.5500" in shown and "next hits (RMSE)" in shown and "43.0000" in shown
    assert "| SQL by hand " in shown and "1,000" in shown
