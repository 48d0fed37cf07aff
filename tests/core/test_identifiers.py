"""Numbers that identify rows, and measurements that happen to be different in every row."""

from __future__ import annotations

import math
import random

import pytest

from cerebro_db.core.packing import identifiers
from cerebro_db.core.packing.distributions import Bin, Distribution
from cerebro_plpy.database.lineage import shown_by


def distribution(values: list[float]) -> Distribution:
    """In the bins of packing/columns/statistics.py: 256 for each power of two."""
    bins: dict[float, list[float]] = {}
    for value in values:
        size = math.floor(math.log(abs(value)) * 369.33) + 10**6 if value else 0
        bins.setdefault(math.copysign(size, value), []).append(value)
    return Distribution(Bin(len(one), sum(one) / len(one), 0.0, min(one), max(one)) for one in bins.values())


def reason(values: list[float], name: str = "x", share: float = 0.8) -> str | None:
    """What is said of a column of these whole numbers, if the training rows are a share of all rows."""
    draw = random.Random(1)
    found = distribution([value for value in values if draw.random() < share])
    if not identifiers.may_identify(found, name, found.rows):
        return None
    consecutive = max(values) - min(values) + 1 == len(values)
    return identifiers.reason(found, name, len(values), len(set(values)), consecutive)


def test_a_sample_tells_that_all_rows_have_many_pairs() -> None:
    """Twenty times as many rows have four hundred times as many pairs."""
    found = distribution(drawn(10**7, 10**8, 5_000))
    assert not identifiers.may_identify(found, "account", 5_000)
    assert identifiers.may_identify(found, "account", 100_000)


def test_a_sample_of_prices_is_not_counted_in_all_rows() -> None:
    draw = random.Random(3)
    found = distribution([float(draw.randrange(100_000)) for _ in range(50_000)])
    assert not identifiers.may_identify(found, "cents", 1_000_000)


def drawn(low: int, high: int, rows: int) -> list[float]:
    return [float(one) for one in random.Random(2).sample(range(low, high), rows)]


@pytest.mark.parametrize(
    ("values", "name", "why"),
    [
        (drawn(0, 500, 500), "x", "it numbers the rows"),
        (drawn(1, 2000, 1000), "x", "different in every row"),  # a sample of a table's rows
        (drawn(10**7, 10**8, 50_000), "account", "different in every row"),
        (drawn(10**7, 10**8, 500), "account_id", "name is that of a key"),
        (drawn(10**7, 10**8, 500), "accountId", "name is that of a key"),
        ([*drawn(1, 3000, 1500), *drawn(1, 40, 3)], "x", "nearly every row"),  # a join has doubled some rows
    ],
)
def test_numbers_that_identify_rows(values: list[float], name: str, why: str) -> None:
    found = reason(values, name)
    assert found is not None and why in found


def test_measurements_are_no_identifiers() -> None:
    draw = random.Random(3)
    ages = [float(draw.randint(18, 90)) for _ in range(500)]
    populations = [float(round(math.exp(draw.gauss(9, 1.5)))) for _ in range(3000)]
    prices = drawn(100_000, 200_000, 100)  # all different, as half of the samples of 300 such prices are
    salaries = [1000.0 * draw.randint(20, 90) for _ in range(200)]
    for values in (ages, populations, prices, salaries):
        assert reason(values) is None
    assert reason(prices, "paid") is None and reason(prices, "grid") is None and reason(ages, "id") is None


def test_pairs_by_chance_are_those_that_a_simulation_has() -> None:
    draw = random.Random(4)
    values = [float(draw.randint(1000, 6000)) for _ in range(1000)]
    pairs = sum(values.count(value) - 1 for value in values) / 2
    assert identifiers.pairs_by_chance(distribution(values)) == pytest.approx(pairs, rel=0.25)


def test_the_tree_of_a_view_tells_what_its_columns_show() -> None:
    """As PostgreSQL writes it, with a subquery, and with a name that looks like a part of the tree."""
    entry = (
        "{{TARGETENTRY :expr {expr} :resno {no} :resname {name} :ressortgroupref 0 :resorigtbl {table}"
        " :resorigcol {col} :resjunk false}}"
    )
    inner = "{QUERY :targetList (" + entry.format(expr="{VAR :varno 1}", no=1, name="id", table=9, col=9) + ")}"
    entries = [
        entry.format(expr="{VAR :varno 1}", no=1, name="id", table=16384, col=3),
        entry.format(expr="{OPEXPR :args ({VAR} {CONST})}", no=2, name="twice", table=0, col=0),
        entry.format(expr="{VAR}", no=3, name=r"a\ \}\ :resno\ 7\ :resorigtbl\ 5\ :resorigcol\ 5\ ", table=7, col=1),
    ]
    tree = f"({{QUERY :rtable ({{RTE :subquery {inner} :lateral false}}) :targetList ({' '.join(entries)}) :sort <>}})"
    assert dict(shown_by(tree)) == {1: (16384, 3), 3: (7, 1)}
