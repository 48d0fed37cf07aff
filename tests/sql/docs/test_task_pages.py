"""The examples of the pages about preparing and training run as printed, on the tables of docs/prepare.md.

tests/sql/docs/test_judging_pages.py and test_serving_pages.py have the other task pages, and test_search_pages.py those
about search and steering.
"""

from __future__ import annotations

import shlex

import pytest
from typer.testing import CliRunner

from cerebro_db.client import cli
from tests.sql.docs.task_pages import RUN, Shown
from tests.sql.pages import blocks

PAGES = ("prepare", "train", "follow", "resume")


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
    assert statuses.pop(shown.runs["resume"]) == "forgotten"  # by the page, at its end
    assert len(statuses) == 11 and set(statuses.values()) == {"finished"}


def test_a_run_is_followed(shown: Shown, server: str) -> None:
    assert shown.of("cerebro.wait(12)") == [[("finished",)]]
    (board,) = shown.of("FROM cerebro.leaderboard WHERE run = 12")
    (curve,) = shown.of("FROM cerebro.learning_curve WHERE run = 12")
    assert [row[0] for row in board] == [1, 2, 3] and len(curve) == 3 * 5
    run = str(shown.runs["follow"])
    (commands,) = blocks("docs/follow.md", "sh")
    for line in commands.splitlines():
        arguments = shlex.split(RUN.sub(run, line), comments=True)[1:]
        done = CliRunner().invoke(cli.app, arguments, env={"CEREBRO_DSN": server})
        assert done.exit_code == 0 and run in done.output, (line, done.output)


def test_a_run_is_resumed(shown: Shown) -> None:
    assert shown.of("cerebro.cancel(12)") == [[(True,)]]
    assert shown.of("cerebro.wait(12, 60)") == [[("cancelled",)]]
    assert shown.of("SELECT run, status, message")[0][0][:2] == (shown.runs["resume"], "cancelled")
