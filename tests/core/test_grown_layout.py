"""Whether a layout is that of a table to which rows were added since another layout was read."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.packing.layout import FIRST_ADDED, has_grown

BEFORE: dict[str, Any] = {"inputs": [{"name": "x"}], "outputs": [], "rows": 5, "partitions": [{"key": 1, "rows": 5}]}
AFTER: dict[str, Any] = {**BEFORE, "rows": 7, "partitions": [{"key": 1, "rows": 7}], "end": FIRST_ADDED + 1}


def test_a_table_has_grown_if_only_buffers_came() -> None:
    assert has_grown(BEFORE, AFTER)
    assert has_grown(AFTER, {**AFTER, "rows": 8, "end": FIRST_ADDED + 2})


def test_a_table_with_fewer_buffers_or_other_columns_has_not_grown() -> None:
    assert not has_grown(AFTER, BEFORE)
    assert not has_grown(BEFORE, BEFORE)
    assert not has_grown(BEFORE, {**AFTER, "inputs": [{"name": "z"}]})
