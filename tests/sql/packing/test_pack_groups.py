"""cerebro.pack with group_by: the rows of each group lie together, on one segment unless a group is too large."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from tests.sql.lab import Lab
from tests.sql.packing.test_tables import packed, refused, values

SALES = """
CREATE TABLE sales AS SELECT i AS id, i::real AS x, (i * 3 % 17)::real AS price,
  CASE WHEN i <= 240 THEN 'giant' WHEN i % 7 = 0 THEN NULL ELSE 'shop ' || i % 7 END AS shop,
  (i % 3)::smallint AS region, date '2026-01-01' + i % 4 AS day, i % 2 = 0 AS online, 1.5::real AS rate,
  ARRAY[i, i] AS pair
 FROM generate_series(1, 400) i;
ALTER TABLE sales ADD PRIMARY KEY (id);
"""


@pytest.fixture(scope="module")
def sales(lab: Lab) -> Lab:
    lab(SALES)
    return lab


def pieces_of(place: Lab, table: str) -> list[tuple[int, int, list[int]]]:
    """(Segment, number of the group, ids) of each piece of a packed table, as the layout says where they lie."""
    layout = place.value(f"SELECT layout FROM {table}_summary")
    ids = values(place, table, "pair")[:, 0].tolist()
    found, start = [], 0
    for segment, partition in enumerate(layout["partitions"]):
        for number, rows in partition.get("groups", ()):
            found.append((segment, number, ids[start : start + rows]))
            start += rows
    assert start == len(ids) == layout["rows"]
    return found


def label_of(place: Lab, by: str) -> dict[int, tuple[Any, ...]]:
    return {row[0]: row[1:] for row in place(f"SELECT id, {by} FROM sales")}


def pack(place: Lab, output: str, by: str, segments: int = 3, **more: Any) -> list[str]:
    return packed(
        place, output, "price", "sales", inputs="x, pair", group_by=by, segments=segments,
        seed=more.pop("seed", 1), **more
    )  # fmt: skip


@pytest.mark.parametrize(
    ("by", "texts"),
    [
        ("shop", "shop"),
        ("region", "region::text"),
        ("day", "day::text"),
        ("online", "online::text"),
        ("shop, region", "shop, region::text"),
    ],
)
def test_the_rows_of_each_group_lie_together(sales: Lab, by: str, texts: str) -> None:
    table = "by_" + by.replace(", ", "_")
    pack(sales, table, by, validation=0.25)
    labels = label_of(sales, texts)
    listed = [tuple(one) for one in sales.value(f"SELECT layout FROM {table}_summary")["groups"]["labels"]]
    assert listed == sorted(set(labels.values()), key=lambda label: [(one is None, one or "") for one in label])
    seen: Counter[int] = Counter()
    for part in (table, f"{table}_validation"):
        for _, number, ids in pieces_of(sales, part):
            assert {labels[one] for one in ids} == {listed[number - 1]}
            seen.update(ids)
    assert seen == Counter(range(1, 401))


def test_numbers_of_groups_follow_the_values(sales: Lab) -> None:
    sales("CREATE VIEW many AS SELECT id, x, price, id % 12 AS shelf FROM sales")
    packed(sales, "shelves", "price", "many", inputs="x", group_by="shelf", validation=0, segments=2, seed=1)
    layout = sales.value("SELECT layout FROM shelves_summary")
    assert layout["groups"] == {
        "columns": [{"name": "shelf", "type": "integer"}],
        "labels": [[str(shelf)] for shelf in range(12)],
    }


def test_only_a_group_larger_than_a_share_is_split_and_segments_are_balanced(sales: Lab) -> None:
    notices = pack(sales, "balanced", "shop", validation=0)
    segments: dict[int, set[int]] = {}
    rows: Counter[int] = Counter()
    for segment, number, ids in pieces_of(sales, "balanced"):
        segments.setdefault(number, set()).add(segment)
        rows[segment] += len(ids)
    assert [len(segments[number]) for number in sorted(segments)] == [2, 1, 1, 1, 1, 1, 1, 1]  # giant comes first
    assert max(rows.values()) <= 1.15 * 400 / 3
    assert any(
        line.startswith("8 groups on 3 segments, each with") and "1 group on several" in line for line in notices
    )


def test_validation_rows_of_a_group_lie_on_its_segments(sales: Lab) -> None:
    pack(sales, "two_sides", "shop", validation=0.25)
    training: dict[int, set[int]] = {}
    for segment, number, _ in pieces_of(sales, "two_sides"):
        training.setdefault(number, set()).add(segment)
    for segment, number, _ in pieces_of(sales, "two_sides_validation"):
        assert segment in training[number]
    layout, others = (
        sales.value(f"SELECT layout FROM {name}_summary") for name in ("two_sides", "two_sides_validation")
    )
    assert [one["key"] for one in layout["partitions"]] == [one["key"] for one in others["partitions"]]
    assert layout["groups"] == others["groups"]


def test_validation_rows_of_unknown_groups_are_left_out_with_a_notice(sales: Lab) -> None:
    sales(
        "CREATE TABLE others AS SELECT * FROM sales WHERE id <= 100 UNION ALL SELECT 1000 + i, i, i, 'new', 0,"
        " date '2026-01-01', true, 1, ARRAY[i, i] FROM generate_series(1, 5) i"
    )
    sales("CREATE TABLE nobody AS SELECT * FROM others WHERE shop = 'new'")
    notices = pack(sales, "beside", "shop", validation_table="others")
    assert any(line.startswith("5 rows for validation are left out") for line in notices)
    assert sum(len(ids) for _, _, ids in pieces_of(sales, "beside_validation")) == 100
    error = refused(sales, target="price", source="sales", inputs="x", group_by="shop", validation_table="nobody")
    assert "no row for validation" in str(error)


def test_the_same_seed_packs_the_same_bytes(sales: Lab) -> None:
    sales(
        "CREATE TABLE sales_again AS SELECT * FROM sales ORDER BY id DESC; ALTER TABLE sales_again ADD PRIMARY KEY (id)"
    )
    for source, output in (("sales", "first"), ("sales_again", "second")):
        packed(sales, output, "price", source, inputs="x", group_by="shop", validation=0.25, segments=3, seed=9)
    for ending in ("", "_validation"):
        one, other = (
            sales.value(f"SELECT layout -> 'partitions' FROM {name}{ending}_summary") for name in ("first", "second")
        )
        assert one == other
    pack(sales, "third", "shop", validation=0.25, seed=10)
    assert sales.value("SELECT layout -> 'partitions' FROM third_summary") != one


def test_buffers_of_any_size_hold_the_same_rows(sales: Lab) -> None:
    pack(sales, "small", "shop", validation=0, buffer_size=7)
    pack(sales, "large", "shop", validation=0)
    assert pieces_of(sales, "small") == pieces_of(sales, "large")
    assert sales.value("SELECT count(*) FROM small") > 50


def test_values_that_need_a_wider_type_are_packed_with_their_groups(sales: Lab) -> None:
    sales("CREATE TABLE wide AS SELECT id, shop, ARRAY[id * 1000, 1] AS v, price FROM sales")
    packed(sales, "widened", "price", "wide", inputs="v", group_by="shop", validation=0, segments=3, seed=1)
    labels = label_of(sales, "shop")
    ids = (values(sales, "widened", "v")[:, 0] // 1000).tolist()
    layout, start = sales.value("SELECT layout FROM widened_summary"), 0
    for partition in layout["partitions"]:
        for number, rows in partition["groups"]:
            assert {labels[one] for one in ids[start : start + rows]} == {tuple(layout["groups"]["labels"][number - 1])}
            start += rows


def test_group_columns_are_no_inputs_unless_they_are_named(sales: Lab) -> None:
    packed(sales, "apart", "price", "sales", group_by="shop", validation=0, prepare={"pair": "ignore"})
    assert "shop" not in sales.value("SELECT inputs FROM apart_summary")
    packed(sales, "named", "price", "sales", inputs="x, shop", group_by="shop", validation=0)
    assert "shop" in sales.value("SELECT inputs FROM named_summary")


def test_rows_that_are_alike_cannot_be_divided(sales: Lab) -> None:
    sales(
        "CREATE TABLE alike AS SELECT 1.0::real AS x, 2.0::real AS price, 'a' AS shop FROM generate_series(1, 50)"
        " UNION ALL SELECT 2, 3, 'b'"
    )
    error = refused(sales, target="price", source="alike", inputs="x", group_by="shop", validation=0, segments=3)
    assert "cannot be divided" in str(error)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            {"group_by": "shop, region", "sequence": '{"by": "shop", "order": "id", "length": 3, "step": 1}'},
            "'region' of group_by is not in \"by\" of sequence",
        ),
        ({"group_by": " "}, "group_by must not be empty"),
        ({"group_by": "rate"}, "its type is real"),
        ({"group_by": "pair"}, r"its type is integer\[\]"),
        ({"group_by": "price"}, "is in group_by"),
        ({"group_by": "nothing"}, "nothing"),
    ],
)
def test_what_cannot_be_grouped_is_refused(sales: Lab, more: dict[str, Any], text: str) -> None:
    error = refused(sales, target="price", source="sales", inputs="x", validation=None, **more)
    assert re.search(text, str(error))


def test_groups_that_change_while_they_are_packed_are_refused(sales: Lab) -> None:
    sales("CREATE VIEW restless AS SELECT id, x, pair, price, (random() * 3)::integer AS shop FROM sales")
    error = refused(sales, target="price", source="restless", inputs="x", group_by="shop", validation=0, segments=2)
    assert "again and again" in str(error)


def test_long_values_are_refused(sales: Lab) -> None:
    sales("CREATE TABLE long AS SELECT id, x, price, repeat('x', 401) AS shop FROM sales")
    assert "more than 400 bytes" in str(refused(sales, target="price", source="long", inputs="x", group_by="shop"))


def test_another_type_in_the_rows_for_validation_is_refused(sales: Lab) -> None:
    sales("CREATE TABLE dated AS SELECT id, x, price, '2026-01-01'::date AS shop FROM sales")
    error = refused(sales, target="price", source="sales", inputs="x", group_by="shop", validation_table="dated")
    assert "column 'shop' of table dated has type date, and text in the rows for training" in str(error)


def test_too_many_groups_are_refused(sales: Lab) -> None:
    sales(
        "CREATE TABLE crowd AS SELECT i AS id, i::real AS x, (i % 9)::real AS price FROM generate_series(1, 100001) i"
    )
    error = refused(sales, target="price", source="crowd", inputs="x", group_by="id", validation=0)
    assert "group_by: table crowd has more than 100,000 groups" in str(error)


def test_too_many_columns_are_refused(sales: Lab) -> None:
    listed = ", ".join(f"{place} AS c{place}" for place in range(33))
    sales(f"CREATE TABLE columns_33 AS SELECT id, x, price, {listed} FROM sales")
    by = ", ".join(f"c{place}" for place in range(33))
    error = refused(sales, target="price", source="columns_33", inputs="x", group_by=by)
    assert "group_by has 33 columns; it can have 32" in str(error)
