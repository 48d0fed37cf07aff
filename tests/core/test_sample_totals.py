"""What one statement asks of a large table's columns fits into a SELECT list, which has 1,664 entries at most."""

from __future__ import annotations

import pytest

from cerebro_db.core.packing.columns import Found
from cerebro_db.core.packing.distributions import Distribution
from cerebro_plpy.database.relations import Column
from cerebro_plpy.packing.columns import statistics


@pytest.mark.parametrize("type", ["timestamp", "text"])
def test_the_totals_of_many_columns_fit(type: str) -> None:
    family = "date" if type == "timestamp" else "text"
    found = Found("x", type, type, family, False, False, 0, 0, Distribution([]), False, [], 9, 9, 9, 9)
    looked = statistics.Looked(Column("x", type, type, "S", None), family, as_text=type == "text")
    totals = [one for place in range(statistics.AT_ONCE) for one in statistics._totals(place, looked, found)]
    assert len(totals) + 1 <= 1664
