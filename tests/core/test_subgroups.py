"""Groups are placed so that the segments' rows are nearly equal, and only groups larger than a share are split."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_building import KIND, NUMBERS

from cerebro_db.core.errors import BadData
from cerebro_db.core.packing.buffer_format import PlacedGeometry
from cerebro_db.core.packing.layout import DataSet, GroupColumn, Groups, Layout, Partition, Variable
from cerebro_db.core.packing.preparation import Fold
from cerebro_db.core.packing.subgroups import SLACK, placed, spread
from cerebro_db.core.search.decision import NewModel, Variant
from cerebro_db.core.sql_types import TEXT
from cerebro_plpy.runs.record.run import variants

sizes_of_groups = st.lists(st.integers(1, 3000), min_size=1, max_size=120)


@given(sizes_of_groups, st.integers(1, 40))
def test_all_rows_are_placed_once_and_only_large_groups_are_split(sizes: list[int], segments: int) -> None:
    segments = min(segments, sum(sizes))
    found = placed(sizes, segments)
    assert 1 <= len(found) <= segments and all(found)
    rows = dict.fromkeys(range(1, len(sizes) + 1), 0)
    for pieces in found:
        numbers = [number for number, _ in pieces]
        assert numbers == sorted(set(numbers))
        for number, size in pieces:
            assert size > 0
            rows[number] += size
    assert list(rows.values()) == sizes
    share = max(1, sum(sizes) // len(found))
    for number, size in enumerate(sizes, 1):
        count = sum(number in dict(segment) for segment in found)
        assert count == 1 or size > (1 + SLACK) * share
    assert placed(sizes, segments) == found


def zipf(groups: int) -> list[int]:
    return [max(1, 200_000 // rank) for rank in range(1, groups + 1)]


@pytest.mark.parametrize("segments", [4, 8, 16, 32, 64])
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(zipf(200), id="zipf-200"),
        pytest.param(zipf(5000), id="zipf-5000"),
        pytest.param([75_000, *[5] * 10_000], id="one-giant"),
        pytest.param([5] * 10_000, id="equal"),
        pytest.param([random.Random(3).randint(1, 1000) for _ in range(3000)], id="mixed"),
    ],
)
def test_the_rows_of_segments_are_nearly_equal(sizes: list[int], segments: int) -> None:
    found = placed(sizes, segments)
    assert len(found) == segments
    assert max(sum(rows for _, rows in pieces) for pieces in found) <= 1.15 * sum(sizes) / segments


def test_a_group_that_is_a_little_larger_than_a_share_stays_whole() -> None:
    assert placed([26, 25, 25, 24], 4) == [[(1, 26)], [(2, 25)], [(3, 25)], [(4, 24)]]


def test_fewer_segments_where_one_would_stay_empty() -> None:
    assert placed([8, 8, 8, 8, 8, 8, 8], 8) == [[(number, 8)] for number in range(1, 8)]


# -- buffers and layouts ---------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 200), min_size=1, max_size=20).filter(any), st.integers(1, 60))
def test_buffers_of_a_segment_follow_each_other(rows_of: list[int], rows_per_buffer: int) -> None:
    geometry = PlacedGeometry(tuple(rows_of), rows_per_buffer)
    sizes = [geometry.size(buffer) for buffer in range(geometry.buffers)]
    segments = [geometry.segment(buffer) for buffer in range(geometry.buffers)]
    assert segments == sorted(segments) and min(sizes) > 0
    assert max(sizes) == geometry.buffer_size <= rows_per_buffer
    found = [sum(size for size, one in zip(sizes, segments) if one == segment) for segment in range(len(rows_of))]
    assert found == rows_of and geometry.rows == sum(rows_of) and geometry.segments == len(rows_of)


GROUPS = Groups((GroupColumn("shop", TEXT),), (("Bonn",), ("Rome",), (None,)))
PARTS = (
    Partition(0, 10, 1, 100, "a" * 64, groups=((1, 4), (2, 6))),
    Partition(1, 5, 1, 50, "b" * 64, groups=((1, 2), (3, 3))),
    Partition(2, 0, 0, 0, "c" * 64),
)
GROUPED = Layout((NUMBERS,), (KIND,), 15, PARTS, groups=GROUPS)


def test_a_layout_with_groups_survives_json() -> None:
    document = json.loads(json.dumps(GROUPED.to_json()))
    assert Layout.from_json(document) == GROUPED
    rows = DataSet("t", Layout.from_json(document))
    assert rows.has_groups and rows.groups == (("Bonn",), ("Rome",), (None,))
    assert rows.spans == {(0, 1): (0, 4), (0, 2): (4, 6), (1, 1): (0, 2), (1, 3): (2, 3)}
    assert rows.pieces == {1: {0: 4, 1: 2}, 2: {0: 6}, 3: {1: 3}}


@pytest.mark.parametrize(
    "pieces",
    [
        None, "all", [], [[1, 4]], [[1, 4], [2, 7]], [[2, 6], [1, 4]], [[1, 4], [1, 6]], [[1, 4], [4, 6]],
        [[1, 4], [2, 6], [3, 0]], [[0, 4], [2, 6]], [[1, 4.0], [2, 6]], [[1, 4, 1], [2, 6]], [1, 9],
    ],
)  # fmt: skip
def test_pieces_that_contradict_the_rows_are_refused(pieces: Any) -> None:
    document = GROUPED.to_json()
    document["partitions"][0]["groups"] = pieces
    with pytest.raises(BadData):
        Layout.from_json(document)


@pytest.mark.parametrize(
    "labels",
    [
        None, [], [["Bonn"], ["Rome"]], [["Bonn"], ["Rome"], ["Bonn"]], [["Bonn"], ["Rome"], []],
        [["a", "b"], ["c"], ["d"]],
        [["Bonn"], ["Rome"], [3]], [["Bonn"], ["Rome"], ["x" * 401]], [["Bonn"], ["Rome"], "x"],
    ],
)  # fmt: skip
def test_labels_of_groups_are_checked(labels: Any) -> None:
    document = GROUPED.to_json()
    document["groups"]["labels"] = labels
    with pytest.raises(BadData):
        Layout.from_json(document)


# -- folds of groups -----------------------------------------------------------------------------------------------


@given(
    st.integers(2, 100).flatmap(
        lambda count: st.tuples(st.just(count), st.lists(st.integers(1, count), max_size=count))
    )
)
def test_few_rows_of_a_group_are_in_different_folds(given: tuple[int, list[int]]) -> None:
    count, wanted = given[0], sorted(given[1])
    found = spread(wanted, count)
    assert len(found) == len(wanted) and found == sorted(set(found)) and set(found) <= set(range(1, count + 1))
    if len(set(wanted)) == len(wanted):
        assert found == wanted


FOLDS_OF_GROUPS = (((1, 3), (6, 0)), ((1, 1), (0, 3)), ())
FOLDED = replace(
    GROUPED,
    fold=Variable("__fold__", "uint8", (1,), ("id",), Fold(2)),
    partitions=tuple(
        replace(part, folds=tuple(map(sum, zip(*folds))) or (0, 0), group_folds=folds)
        for part, folds in zip(PARTS, FOLDS_OF_GROUPS)
    ),
)


def test_a_layout_with_folds_of_groups_survives_json() -> None:
    document = json.loads(json.dumps(FOLDED.to_json()))
    assert Layout.from_json(document) == FOLDED
    whole = Layout.from_json(document).without_groups
    assert Layout.from_json(json.loads(json.dumps(whole.to_json()))) == whole and whole.folds == 2
    rows = DataSet("t", Layout.from_json(document))
    assert [rows.folds_of(group) for group in (1, 2, 3)] == [[1, 2], [], []]  # those of group 2 are all in one fold
    assert rows.rows_of_fold(2) == 7 and rows.rows_of_fold(2, 1) == 4 and rows.rows_of_fold(1, 3) == 0
    assert rows.rows_for(None, 1, trained=True) == {0: 4, 1: 2} == rows.rows_for(None, 1, trained=False)
    assert rows.rows_for(1, 1, trained=True) == {0: 3, 1: 1} and rows.rows_for(1, 1, trained=False) == {0: 1, 1: 1}
    assert rows.rows_for(1, 2, trained=True) == {} and rows.rows_for(1, 2, trained=False) == {0: 6}
    assert rows.rows_for(2, None, trained=True) == {0: 7, 1: 1} and rows.rows_for(None, None, trained=True) == {
        0: 10,
        1: 5,
    }
    assert rows.rows_for(None, 9, trained=True) == {}
    of_folds = [Variant(fold=fold) for fold in (1, 2)]
    of_groups = [Variant(group_number=group) for group in (1, 2, 3)]
    assert variants(rows, 1) == [*of_folds, *of_groups, Variant(1, 1), Variant(2, 1)]
    assert variants(rows, 6) == [*of_folds, *of_groups[:2], Variant(1, 1), Variant(2, 1)]


@pytest.mark.parametrize(
    "folds",
    [
        None, "all", [], [[1, 3]], [[1, 3], [5, 0]], [[3, 1], [6, 0]], [[1, 3, 0], [6, 0, 0]], [[1], [6]],
        [[1, 3.0], [6, 0]], [[5, -1], [2, 4]], [4, 6],
    ],
)  # fmt: skip
def test_folds_of_groups_that_contradict_the_rows_are_refused(folds: Any) -> None:
    document = FOLDED.to_json()
    document["partitions"][0]["group_folds"] = folds
    with pytest.raises(BadData):
        Layout.from_json(document)


@pytest.mark.parametrize("left_out", ["groups", "folds", "group_folds"])
def test_folds_of_groups_need_folds_and_groups(left_out: str) -> None:
    document = FOLDED.to_json()
    del document["partitions"][0][left_out]
    with pytest.raises(BadData):
        Layout.from_json(document)


def test_a_new_model_of_a_fold_of_a_group_survives_json() -> None:
    one = NewModel(key=4, fold=2, group_number=7, model=9)
    assert NewModel.from_json(json.loads(json.dumps(one.to_json()))) == one and one.variant == Variant(2, 7)
    assert Variant.of(None, None) is None


def test_rows_of_groups_need_the_list_of_the_groups() -> None:
    document = GROUPED.to_json()
    del document["groups"]
    with pytest.raises(BadData, match="rows of each group"):
        Layout.from_json(document)
