"""cerebro.make_task: what divides cut-off times, and what is a sum."""

from __future__ import annotations

import math
import random

import pytest

from cerebro_db.core.packing import tasks
from cerebro_db.core.packing.tasks import CutOff


def cut_offs(count: int, horizon: float, every: float = 1.0) -> list[CutOff]:
    return [CutOff(str(i), "", None, round(i * every * 100), round((i * every + horizon) * 100)) for i in range(count)]


@pytest.mark.parametrize("horizon", [0.5, 1, 1.5, 3, 7])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 12, 40])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.6])
def test_no_horizon_of_training_reaches_into_validation(count: int, horizon: float, share: float) -> None:
    found = tasks.divided(cut_offs(count, horizon), share)
    if found is None:
        assert count - 1 < horizon or count == 1
        return
    assert found.training and found.validation
    assert max(one.ends for one in found.training) <= found.validation[0].at
    assert found.left_out == count - len(found.all) == math.ceil(horizon) - 1
    assert [one.as_of for one in found.validation] == [str(i) for i in range(count - len(found.validation), count)]
    got = len(found.validation) / len(found.all)
    for other in range(1, count - found.left_out):  # no other division is nearer to the share
        assert abs(other / (count - found.left_out) - share) >= abs(got - share) - 1e-12


def test_the_share_takes_the_rows_that_were_meant() -> None:
    """As percentile_disc takes them: the first row whose part of all rows is at least 1 - share."""
    drawn = random.Random(1)
    for _ in range(2000):
        before, last, after = (drawn.choice([drawn.randint(0, 9), drawn.randint(0, 10**6)]) for _ in range(3))
        last, after = max(last, 1), max(after, 1)
        rows = before + last + after
        place = math.ceil((1 - float(f"{tasks.share_at(before, last, after):.10g}")) * rows)
        assert before < place <= before + last, (before, last, after)


@pytest.mark.parametrize(
    "text",
    ["sum(amount)", " SUM (price * n)\n", "sum((a + b) * c)", "sum(a) FILTER (WHERE kind = 'a)b')", 'sum("a)" )',
     "pg_catalog.sum(x)", "sum(CASE WHEN k = 'it''s (' THEN x END)"],
)  # fmt: skip
def test_sums(text: str) -> None:
    assert tasks.is_sum(text)


@pytest.mark.parametrize(
    "text",
    ["sum(a) / count(*)", "avg(a)", "summary(a)", "count(*) = 0", "sum(a) - sum(b)", "sum(a) > 10",
     "coalesce(sum(a), 1)", "sum(a) -- (", "max(a)", "", "sum", "sum(a) FILTER (WHERE b) + 1"],
)  # fmt: skip
def test_others_are_no_sums(text: str) -> None:
    assert not tasks.is_sum(text)
