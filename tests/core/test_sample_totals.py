"""What one statement asks of a large table's columns fits into a SELECT list, which has 1,664 entries at most."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro_db.core.sql import Sql, shown, sql
from cerebro_plpy.database.relations import Column
from cerebro_plpy.packing.columns import statistics


class CountingDatabase:
    """Answers each statement with no values, and keeps how many it asks for."""

    def __init__(self) -> None:
        self.entries: list[int] = []

    def scan(self, statement: Sql) -> list[dict[str, Any]]:
        self.entries.append(shown(statement).count(" AS ") - 1)  # one names the rows
        return [{"rows": 7}]


class SomeRows:
    rows = sql("somewhere")


@pytest.mark.parametrize("type", ["timestamp", "text"])
def test_the_totals_of_many_columns_fit(type: str) -> None:
    family, asked = "date" if type == "timestamp" else "text", CountingDatabase()
    looked = statistics.Looked(Column("x", type, type, "S", None), family, as_text=type == "text")
    found = statistics.totals(asked, SomeRows, [looked] * 1600)  # type: ignore[arg-type]
    assert found == {"rows": 7} and len(asked.entries) == (4 if type == "timestamp" else 1)
    assert sum(asked.entries) == 1600 * (4 if type == "timestamp" else 1) + len(asked.entries)
    assert max(asked.entries) <= 1664


def test_without_columns_the_rows_are_counted() -> None:
    assert statistics.totals(CountingDatabase(), SomeRows, []) == {"rows": 7}  # type: ignore[arg-type]
