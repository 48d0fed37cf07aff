"""The examples of docs/concepts.md and of the pages about judging models and groups run as printed, on the tables of
docs/prepare.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sql.docs.task_pages import Shown
from tests.sql.lab import Lab

PAGES = ("concepts", "judge", "groups")


@pytest.fixture(scope="module")
def there(lab: Lab) -> Iterator[Shown]:
    yield Shown(lab)
    for name in ("orders", "shop_3"):
        lab.remove_registered(name)


@pytest.mark.parametrize("page", PAGES)
def test_each_statement_runs_and_queries_return_rows(there: Shown, page: str) -> None:
    there.require_rows(PAGES, page)


def test_there_are_statements(shown: Shown) -> None:
    assert len(shown.rows) > 25


def test_runs_finish(shown: Shown) -> None:
    statuses = shown.statuses()
    assert len(statuses) == 6 and set(statuses.values()) == {"finished"}


def test_the_loss_is_that_of_the_page(shown: Shown) -> None:
    ((loss,),) = shown.of("of_the_right_class")[0]
    assert float(loss) == pytest.approx(1.034, abs=0.001)


def test_judging(shown: Shown) -> None:
    _, found = shown.of("SELECT * FROM cerebro.evaluate(")
    figures = {metric: value for metric, value, _ in found}
    assert figures["rows"] == 200 and figures["accuracy"] > 0.6 and figures["auc"] > 0.6
    (mistakes,) = shown.of("cerebro.mistakes(")
    assert 0 < len(mistakes) <= 20 and all(row[1] != row[2] for row in mistakes)
    (matrix,) = shown.of("confusion_matrix")
    assert sum(row[2] for row in matrix) == 200 and sum(row[2] for row in matrix if row[0] == row[1]) > 120
    for rows in shown.of("cerebro.importance("):
        assert {row[0] for row in rows} == {"months", "charges", "contract"}


def test_a_rare_class_is_decided_for(shown: Shown) -> None:
    (found,) = shown.of("class_metrics")
    assert [row[0] for row in found] == ["No", "Yes"] and sum(row[4] for row in found) == 200
    (compared,) = shown.of("AS plain, calibrated.value")
    assert {"log_loss", "ece", "rows"} <= {row[0] for row in compared}


def test_the_models_of_folds_predict(shown: Shown) -> None:
    (rows,) = shown.of("FROM cerebro.predict('folds_models'")
    assert len(rows) == 100


def test_groups(shown: Shown) -> None:
    (best,) = shown.of("rank = 1 AND group_number IS NOT NULL")
    assert [row[0] for row in best] == [f"shop {number}" for number in range(5)]
    (listed,) = shown.of("FROM orders_models_groups")
    assert len(listed) == 10 and all(row[4] is None for row in listed)
    ((by_table,), (by_version,)) = (
        shown.of(f"FROM cerebro.predict('{one}'") for one in ("orders_models", "orders@production")
    )
    assert sorted(by_table) == sorted(by_version) and len(by_table) == 100
