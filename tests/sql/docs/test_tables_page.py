"""The examples of docs/tables.md run as printed, in the order of the page, on the tables that its end makes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.sql.lab import Lab
from tests.sql.pages import blocks, statements

PAGE = "docs/tables.md"
BUDGET = "'10 seconds'"  # in place of the minutes of the page


@pytest.fixture(scope="module")
def shown(lab: Lab) -> dict[str, list[tuple[Any, ...]]]:
    """The rows that each statement returns, by the statement's text."""
    *examples, tables = blocks(PAGE, "sql")
    found = {}
    for statement in [one for block in (tables, *examples) for one in statements(block)]:
        found[statement] = lab(re.sub(r"'\d+ minutes'", BUDGET, statement))
    return found


def of(shown: dict[str, list[tuple[Any, ...]]], part: str) -> list[list[tuple[Any, ...]]]:
    found = [rows for statement, rows in shown.items() if part in statement]
    assert found, f"no statement of the page has {part}"
    return found


def test_each_statement_runs_and_queries_return_rows(shown: dict[str, list[tuple[Any, ...]]]) -> None:
    assert len(shown) > 25
    assert [statement for statement, rows in shown.items() if statement.startswith("SELECT") and not rows] == []


def test_columns_become_what_the_page_says(shown: dict[str, list[tuple[Any, ...]]]) -> None:
    (columns,) = of(shown, "prepared_columns")
    assert {row[0]: row[1] for row in columns} == {
        "age": "number", "born": "date", "city": "category", "zip": "category", "text": "words", "income": "measured",
    }  # fmt: skip


def test_predictions(shown: dict[str, list[tuple[Any, ...]]]) -> None:
    for rows in of(shown, "FROM cerebro.predict(") + of(shown, "JOIN cerebro.predict("):
        assert len(rows) == 100
    assert of(shown, "cerebro.predict_into(") == [[(100,)]]
    ((rows, least, mean, most),) = of(shown, "FROM people_predicted")[0]
    assert rows == 100 and 0 < least < mean < most < 200000
    ((income,),) = of(shown, "income_of(age")[0]
    assert 0 < float(str(income)) < 200000


def test_runs_finish(lab: Lab, shown: dict[str, list[tuple[Any, ...]]]) -> None:
    statuses = dict(lab("SELECT run, status FROM runs WHERE model_table LIKE %s", f"{lab.schema}.%"))
    runs = [rows[0][0] for part in ("cerebro.train(", "cerebro.fit(") for rows in of(shown, part)]
    assert len(runs) == 6 and {statuses[run] for run in runs} == {"finished"}


def test_judging(shown: dict[str, list[tuple[Any, ...]]]) -> None:
    (found,) = of(shown, "cerebro.evaluate(")
    figures = dict(found)
    assert figures["rows"] == 200 and figures["accuracy"] > 0.6 and figures["auc"] > 0.6
    (matrix,) = of(shown, "confusion_matrix")
    assert sum(row[2] for row in matrix) == 200 and sum(row[2] for row in matrix if row[0] == row[1]) > 120
    for rows in of(shown, "cerebro.importance("):
        assert {row[0] for row in rows} == {"months", "charges", "contract"}


def test_models(lab: Lab, shown: dict[str, list[tuple[Any, ...]]]) -> None:
    (listed,) = of(shown, "FROM cerebro.models")
    names = {row[0] for row in listed}
    assert {f"{lab.schema}.{name}" for name in ("income", "people_models", "people_together")} <= names
    kept = lab("SELECT model_table FROM cerebro.models")
    assert (f"{lab.schema}.people_together",) not in kept and (f"{lab.schema}.people_models",) in kept
