"""The table that compares searches: when each is as good as the grid, and the curve that the picture shows."""

from __future__ import annotations

import numpy as np

from tests.bench.meter import Taken
from tests.bench.search import GRID, best_at, figures, table
from tests.bench.stage import Measured

BUSY = {"waiting": 1.0, "training": 9.0, "starting": 5.0}


def measured(name: str, *curve: tuple[float, float, float], busy: bool = True) -> Measured:
    """A curve has points of (seconds since the call, seconds of computation until then, accuracy)."""
    more = {"curve": [list(point) for point in curve], **({"profile": BUSY} if busy else {})}
    return Measured(name, Taken(), 0.0, more=more)


def test_until_a_search_is_as_good_as_the_grid() -> None:
    grid = measured(GRID, (2, 3, 0.7), (5, 8, 0.9), (10, 16, 0.8))
    early = measured("search, asha", (1, 1, 0.5), (2, 4, 0.896), (3, 6, 0.85))
    never = measured("search, asha", (1, 2, 0.5), (4, 10, 0.894))
    rival = measured("Ray", (6, 11, 0.95), busy=False)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table(figures([[grid, early, rival], [grid, never]])).splitlines()
        if line.startswith("|")
    ]
    found = {name: cells for name, *cells in rows[2:]}
    # A model is as good with half a percentage point less than the best of the grid of the same seed.
    assert found["search, asha"] == ["1 of 2", "4.0", "0.25", "2.0", "8.0", "3.5", "0.8950", "0.900"]
    assert found[GRID] == ["2 of 2", "8.0", "0.50", "5.0", "16.0", "10.0", "0.9000", "0.900"]
    assert found["Ray"] == ["1 of 1", "11.0", "0.69", "6.0", "11.0", "6.0", "0.9500", ""]


def test_without_a_grid_nothing_is_said_of_it() -> None:
    lines = table(figures([[measured("search, asha", (1, 1, 0.5))]])).splitlines()
    assert [cell.strip() for cell in lines[2].strip("|").split("|")][1:5] == ["–"] * 4
    assert table(figures([[Measured("ours", Taken(), 0.0)]])) == ""


def test_the_curve_is_that_of_the_best_model_so_far() -> None:
    found = best_at([[1, 1, 0.5], [3, 2, 0.4], [4, 3, 0.8]], np.array([0.5, 1.0, 3.5, 9.0]))
    assert np.isnan(found[0]) and found[1:].tolist() == [0.5, 0.5, 0.8]
