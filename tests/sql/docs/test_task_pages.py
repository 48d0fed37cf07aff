"""The examples of the pages about preparing and training, and of the pages for experts and about several tables, run as
printed, on the tables of docs/prepare.md.

tests/sql/docs/test_run_page.py has the page about runs; test_judging_pages.py and test_serving_pages.py have others.
"""

from __future__ import annotations

import pytest

from tests.sql.docs.task_pages import Shown

PAGES = ("prepare", "train", "experts", "related")


@pytest.mark.parametrize("page", PAGES)
def test_each_statement_runs_and_queries_return_rows(there: Shown, page: str) -> None:
    there.require_rows(PAGES, page)


def test_there_are_statements(shown: Shown) -> None:
    assert len(shown.rows) > 25


def test_columns_become_what_the_page_says(shown: Shown) -> None:
    (columns,) = shown.of("prepared_columns('people_packed')")
    assert {row[0]: row[1] for row in columns} == {
        "age": "number", "born": "date", "city": "category", "zip": "category", "text": "words", "income": "measured",
    }  # fmt: skip


def test_runs_finish(shown: Shown) -> None:
    statuses = shown.statuses()
    assert len(statuses) == 14 and set(statuses.values()) == {"finished"}


def test_a_search_stops_models(shown: Shown) -> None:
    (board,) = shown.of("WHERE run = (SELECT run FROM churn_search_summary)")
    assert len(board) == 12 and {row[2] for row in board} == {"finished", "stopped"}
    assert board[0][1] > 0.6 and all(row[3] is not None for row in board), "every model has reached a rung"
    momentum = {row[5]["optimizer"]: "momentum" in row[5] for row in board}
    assert momentum == {"Adam": False, "SGD": True}


def test_an_architecture_has_parameters(shown: Shown) -> None:
    assert "tower" in [row[0] for row in shown.of("FROM cerebro.architectures")[0]]
    tried = shown.lab(
        "SELECT chosen, status FROM cerebro.leaderboard WHERE run = (SELECT run FROM iris_towers_summary)"
    )
    assert {status for _, status in tried} == {"finished", "stopped"}
    both = {"architecture", "dropout", "learning_rate"}
    keys = {chosen["architecture"]: both & chosen.keys() | {"depth", "width"} & chosen.keys() for chosen, _ in tried}
    assert keys == {"tower": {*both, "depth", "width"}, "mlp": both}


def test_new_nodes_are_appended(shown: Shown) -> None:
    first, second = shown.of("cerebro.propagate(")
    assert first == [(1000,)] and 3 <= second[0][0] < 1001
