"""Windows of groups whose columns have names and types that could be confused with others, and their division."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import Lab
from tests.sql.packing.test_tables import packed, values

LENGTH, DAYS = 4, 30
SEQUENCE = {"order": "day", "length": LENGTH, "step": 1}
NAMES = ("place", "cerebro_hash", "cerebro_key", "cerebro_group", "shop_of_rows", 'Place "x"')
LISTED = ", ".join("shop::integer AS " + '"' + name.replace('"', '""') + '"' for name in NAMES)
TABLE = f"""
CREATE TABLE days AS SELECT row_number() OVER () AS id, 'shop ' || shop AS shop, day::integer AS day,
  CASE WHEN shop < 3 THEN 'A' ELSE 'town ' || shop END AS town, ARRAY[day, shop]::smallint[] AS which,
  {LISTED}, (shop * 100 + day)::real AS sold, (day % 5)::real AS x
 FROM generate_series(1, 4) shop, generate_series(1, {DAYS}) day;
ALTER TABLE days ADD PRIMARY KEY (id);
"""


@pytest.fixture(scope="module")
def days(lab: Lab) -> Lab:
    lab(TABLE)
    return lab


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def shops_of_groups(place: Lab, table: str) -> dict[str, list[int]]:
    """Group -> the shop of each of its windows."""
    layout = place.value(f"SELECT layout FROM {table}_summary")
    which, found, start = values(place, table, "which").tolist(), defaultdict(list), 0
    for partition in layout["partitions"]:
        for number, rows in partition.get("groups", ()):
            for window in which[start : start + rows]:
                (shop,) = {shop for _, shop in window}
                found[layout["groups"]["labels"][number - 1][0]].append(shop)
            start += rows
    return found


def pack(
    place: Lab, output: str, by: Any, group_by: str, target: str = "sold", source: str = "days", **more: Any
) -> None:
    sequence = json.dumps({**SEQUENCE, "by": by, **more.pop("sequence", {})})
    more = {"inputs": "which", "segments": 2, "seed": 1, "validation": 0.0, **more}
    packed(place, output, target, source, group_by=group_by, sequence=sequence, **more)


WHOLE = DAYS - LENGTH + 1


@pytest.mark.parametrize("name", NAMES)
def test_a_group_is_that_of_its_column_whatever_its_name(days: Lab, name: str) -> None:
    output = f"named_{NAMES.index(name)}"
    pack(days, output, name, quoted(name))
    assert shops_of_groups(days, output) == {str(shop): [shop] * WHOLE for shop in range(1, 5)}


@pytest.mark.parametrize("name", NAMES)
def test_a_target_may_have_any_name(days: Lab, name: str) -> None:
    output = f"target_{NAMES.index(name)}"
    pack(days, output, "shop", "shop", quoted(name))
    assert set(shops_of_groups(days, output)) == {f"shop {shop}" for shop in range(1, 5)}


def test_a_column_of_by_can_be_the_target_or_the_weight(days: Lab) -> None:
    pack(days, "of_town", ["shop", "town"], "shop", "town")
    pack(days, "weighted", ["shop", "place"], "shop", weights="place")
    for output in ("of_town", "weighted"):
        assert {shop: len(rows) for shop, rows in shops_of_groups(days, output).items()} == {
            f"shop {shop}": WHOLE for shop in range(1, 5)
        }


def test_an_input_can_have_a_name_like_another_input_of_by(days: Lab) -> None:
    days("CREATE VIEW alike AS SELECT id, day, sold, shop, which, which AS shop_of_rows FROM days")
    pack(days, "words", "shop", "shop", source="alike", inputs="which, shop, shop_of_rows", prepare='{"shop": "words"}')
    assert set(shops_of_groups(days, "words")) == {f"shop {shop}" for shop in range(1, 5)}


@pytest.mark.parametrize("name", ["cerebro_key", "place"])
def test_windows_of_such_groups_are_predicted(days: Lab, name: str) -> None:
    days(
        "SELECT cerebro.fit('days', %s, '[{\"architecture\": \"mlp\", \"units\": 4}]', target => 'sold', inputs => 'x',"
        " group_by => %s, epochs => 1, segments => 1, sequence => %s)",
        f"of_{name}", name, json.dumps({**SEQUENCE, "by": name}),
    )  # fmt: skip
    assert days.value(f"SELECT count(*) FROM predict('of_{name}', 'SELECT * FROM days')") == 4 * WHOLE


def test_texts_that_a_collation_calls_equal_are_two_groups(days: Lab) -> None:
    try:
        days("CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    except psycopg2.errors.FeatureNotSupported:
        pytest.skip("this server has no ICU")
    days(
        "CREATE TABLE cities AS SELECT id, day, which, sold, (ARRAY['Rome', 'rome', 'Oslo', 'Bonn'])[place]"
        " COLLATE any_case AS city FROM days"
    )
    pack(days, "of_cities", "city", "city", source="cities")
    cities = dict(zip(("Rome", "rome", "Oslo", "Bonn"), range(1, 5)))
    assert shops_of_groups(days, "of_cities") == {city: [shop] * WHOLE for city, shop in cities.items()}


@pytest.mark.parametrize("by", [["shop", "place"], ["town", "shop"]])
def test_groups_with_one_subject_have_rows_on_both_sides(days: Lab, by: list[str]) -> None:
    """Else all windows of a town with one shop could be for validation, so it would have no model."""
    output = f"sides_{by[0]}"
    pack(days, output, by, by[0], validation=0.2)
    groups = {row for (row,) in days(f"SELECT DISTINCT {by[0]} FROM days")}
    assert set(shops_of_groups(days, output)) == groups
    assert set(shops_of_groups(days, f"{output}_validation")) == groups
