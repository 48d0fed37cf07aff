"""Whether a layout is that of a table to which rows were added since another layout was read."""

from __future__ import annotations

from dataclasses import replace

from cerebro_db.core.packing.layout import FIRST_ADDED, Layout, Partition, has_grown

ROWS = Partition(key=1, rows=5, buffers=1, bytes=40, sha256="a")
BEFORE = Layout(inputs=(), outputs=(), rows=5, partitions=(ROWS,))
AFTER = replace(BEFORE, rows=7, partitions=(replace(ROWS, rows=7, buffers=2, sha256="b"),), end=FIRST_ADDED + 1)


def test_a_table_has_grown_if_only_buffers_came() -> None:
    assert has_grown(BEFORE, AFTER)
    assert has_grown(AFTER, replace(AFTER, rows=8, end=FIRST_ADDED + 2))


def test_a_table_with_fewer_buffers_or_other_columns_has_not_grown() -> None:
    assert not has_grown(AFTER, BEFORE)
    assert not has_grown(BEFORE, BEFORE)
    assert not has_grown(BEFORE, replace(AFTER, key="z"))
