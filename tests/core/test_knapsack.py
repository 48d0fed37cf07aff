"""What to keep where there is not room for everything."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cerebro_db.core.trainers import knapsack

THINGS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=9)


@given(THINGS, st.integers(0, 150))
def test_the_best_of_a_few_is_found(things: list[tuple[int, int]], room: int) -> None:
    sizes, worths = [size for size, _ in things], [float(worth) for _, worth in things]
    chosen = knapsack.best(sizes, worths, room)
    assert sum(sizes[place] for place in chosen) <= room
    best = max(
        sum(worths[place] for place in some)
        for number in range(len(things) + 1)
        for some in itertools.combinations(range(len(things)), number)
        if sum(sizes[place] for place in some) <= room
    )
    assert sum(worths[place] for place in chosen) == best


def test_the_best_ratio_is_not_the_best_choice() -> None:
    assert knapsack.best([6, 5, 5], [7.0, 5.0, 5.0], 10) == {1, 2}
    assert knapsack.best([1, 10], [2.0, 10.0], 10) == {1}
    assert knapsack.best([], [], 10) == set()
    assert knapsack.best([11], [1.0], 10) == set()


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=17, max_size=60), st.integers(0, 500))
def test_of_many_the_choice_fits(things: list[tuple[int, int]], room: int) -> None:
    sizes, worths = [size for size, _ in things], [float(worth) for _, worth in things]
    chosen = knapsack.best(sizes, worths, room)
    assert sum(sizes[place] for place in chosen) <= room
    fitting = [worth for size, worth in zip(sizes, worths) if size <= room]
    assert sum(worths[place] for place in chosen) >= max(fitting, default=0)
