"""Models of groups that measure their numbers by the rows of their group: what each group predicts, and keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sql.lab import Lab
from tests.sql.runs.test_groups import OPTIONS, digests

# The shops sell in different units: what one sells is a thousand times what another sells, and so are its items.
SOLD = """
CREATE TABLE sold AS
SELECT n AS id, 'shop ' || n % 4 AS shop, 10 ^ (n % 4) * (n * 37 % 100) AS items,
       10 ^ (n % 4) * (5 + n * 37 % 100 * (1 + n % 4) + (n * 13 % 7) / 7.0) AS spent
  FROM generate_series(1, 800) n;
ALTER TABLE sold ADD PRIMARY KEY (id);
"""
PLAIN = {"architecture": "mlp", "units": 16, "layers": 1, "dropout": 0, "learning_rate": 0.01}
MEASURED = {**PLAIN, "group_statistics": 1}


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab(SOLD)
    lab("SELECT cerebro.pack('sold', 'sold_packed', 'spent', inputs => 'items', group_by => 'shop', segments => 2,"
        " validation => 0.2, seed => 1)")  # fmt: skip
    return lab


def fit(
    place: Lab, output: str, *configurations: Any, epochs: int = 8, source: str = "sold_packed", **options: Any
) -> int:
    return place.value(
        "SELECT fit(%s, %s, %s, epochs => %s, options => %s)",
        source, output, json.dumps(configurations), epochs, json.dumps({**OPTIONS, **options}),
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(place: Lab) -> int:
    return fit(place, "measured", PLAIN, MEASURED)


def test_a_small_shop_is_predicted_in_its_own_unit(place: Lab, run: int) -> None:
    found = {
        (shop, configuration): error**0.5
        for shop, configuration, error in place(
            "SELECT group_value, configuration, validation_loss FROM leaderboard WHERE run = %s"
            " AND group_number IS NOT NULL", run
        )
    }  # fmt: skip
    spread = dict(place("SELECT shop, stddev_pop(spent) FROM sold GROUP BY shop"))
    for shop in spread:
        assert found[shop, 2] < 0.3 * spread[shop], shop
    assert found["shop 0", 1] > 10 * found["shop 0", 2], "the deviation of all shops is that of the largest"


def test_the_best_configuration_of_each_group_predicts(place: Lab, run: int) -> None:
    rows = place(
        "SELECT s.shop, max(abs(s.spent - p.value)) / max(s.spent) FROM sold s"
        " JOIN cerebro.predict('measured', 'SELECT * FROM sold') p ON p.key_value = s.id::text GROUP BY 1"
    )
    assert len(rows) == 4 and all(difference < 0.5 for _, difference in rows)


@pytest.mark.thorough  # test_groups.py extends a run, tests/nn/test_group_statistics.py has the numbers
def test_a_run_has_the_same_bits_again_and_when_it_goes_on(place: Lab, run: int) -> None:
    again = fit(place, "again", PLAIN, MEASURED, epochs=3)
    place("SELECT resume(%s, epochs => 8)", again)
    assert digests(place, again) == digests(place, run)


def test_a_search_can_try_both(place: Lab) -> None:
    space = {**PLAIN, "group_statistics": {"choice": [0, 1]}}
    run = place.value(
        "SELECT search('sold', 'searched', %s, target => 'spent', inputs => 'items', group_by => 'shop', epochs => 4,"
        " max_configurations => 2, segments => 2, options => %s)",
        json.dumps(space), json.dumps(OPTIONS),
    )  # fmt: skip
    tried = place("SELECT DISTINCT parameters ->> 'group_statistics' FROM leaderboard WHERE run = %s", run)
    assert sorted(tried) == [("0",), ("1",)]
    best = place(
        "SELECT group_value, parameters ->> 'group_statistics' FROM leaderboard"
        " WHERE run = %s AND rank = 1 AND group_number IS NOT NULL", run
    )  # fmt: skip
    assert len(best) == 4 and ("shop 0", "1") in best


def test_several_segments_cannot_measure_a_group(place: Lab) -> None:
    place("CREATE TABLE most_in_one AS SELECT id, CASE WHEN id > 120 THEN 'large' ELSE shop END AS shop, items, spent"
          " FROM sold")  # fmt: skip
    place("ALTER TABLE most_in_one ADD PRIMARY KEY (id)")
    place("SELECT cerebro.pack('most_in_one', 'most_packed', 'spent', inputs => 'items', group_by => 'shop',"
          " segments => 2, validation => 0.2, seed => 1)")  # fmt: skip
    run = fit(place, "refused", PLAIN, MEASURED, epochs=1, source="most_packed", parallel="gradients")
    board = place("SELECT configuration, group_value, status, reason FROM leaderboard WHERE run = %s", run)
    assert len(board) == 12
    failed = {(key, group): reason for key, group, status, reason in board if status == "failed"}
    assert list(failed) == [(2, "large")]
    assert "several segments cannot measure a group at the same time" in failed[2, "large"]
    assert {status for key, group, status, _ in board if (key, group) not in failed} == {"finished"}


def test_a_version_of_one_group_predicts_the_same(place: Lab, run: int) -> None:
    place("SELECT register('sold_in_shop_0', 'measured', configuration => 2, group_value => 'shop 0')")
    try:
        rows = "SELECT * FROM sold WHERE shop = 'shop 0'"
        both = place(
            "SELECT a.value, b.value FROM cerebro.predict('sold_in_shop_0@1', %s) a"
            " JOIN cerebro.predict('measured', %s, configuration => 2) b USING (key_value)", rows, rows
        )  # fmt: skip
        assert len(both) == 200 and all(left == right for left, right in both)
    finally:
        place.remove_registered("sold_in_shop_0")
