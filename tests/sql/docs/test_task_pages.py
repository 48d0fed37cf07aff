"""The examples of the task pages and of docs/concepts.md run as printed, on the tables that docs/prepare.md makes.

tests/sql/docs/test_search_pages.py has the pages about search and steering.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg2.extensions import make_dsn
from typer.testing import CliRunner

from cerebro_db.client import cli
from tests.sql.lab import Lab
from tests.sql.pages import blocks, statements

AFTER = (
    "train",
    "follow",
    "resume",
    "predict",
    "judge",
    "forecast",
    "groups",
    "graphs",
    "registry",
    "bi",
    "export",
    "retrain",
    "concepts",
)  # prepare
BUDGET = "'4 seconds'"  # in place of the minutes of a page
RUN = re.compile(r"\b12\b")  # stands for the number of the run that a page starts


@pytest.fixture(scope="module")
def runs() -> dict[str, int]:
    """The run that a page calls 12."""
    return {}


@pytest.fixture(scope="module")
def shown(lab: Lab, runs: dict[str, int]) -> Iterator[dict[str, list[tuple[Any, ...]]]]:
    """The rows that each statement returns, by the statement's text."""
    *examples, tables = blocks("docs/prepare.md", "sql")
    found: dict[str, list[tuple[Any, ...]]] = {}
    pages = {"prepare": [tables, *examples], **{task: blocks(f"docs/{task}.md", "sql") for task in AFTER}}
    for page, of_page in pages.items():
        for statement in [one for block in of_page for one in statements(block)]:
            number = runs.get(page)
            assert statement not in found, "two pages have this statement"
            numbered = statement if number is None else RUN.sub(str(number), statement)
            found[statement] = lab(re.sub(r"'\d+ minutes'", BUDGET, numbered))
            if "wait => false" in statement:
                runs[page] = found[statement][0][0]
    yield found
    for name in ("income", "orders", "shop_3"):
        lab.remove_registered(name)
    lab("DROP OWNED BY analyst; DROP ROLE analyst, dashboards")


def of(shown: dict[str, list[tuple[Any, ...]]], part: str) -> list[list[tuple[Any, ...]]]:
    found = [rows for statement, rows in shown.items() if part in statement]
    assert found, f"no statement of the page has {part}"
    return found


def test_each_statement_runs_and_queries_return_rows(shown: dict[str, list[tuple[Any, ...]]]) -> None:
    assert len(shown) > 45
    assert [statement for statement, rows in shown.items() if statement.startswith("SELECT") and not rows] == []


def test_columns_become_what_the_page_says(shown: dict[str, list[tuple[Any, ...]]]) -> None:
    (columns,) = of(shown, "prepared_columns('people_packed')")
    assert {row[0]: row[1] for row in columns} == {
        "age": "number", "born": "date", "city": "category", "zip": "category", "text": "words", "income": "measured",
    }  # fmt: skip


def test_predictions(shown: dict[str, list[tuple[Any, ...]]]) -> None:
    of_people = {
        statement: rows
        for statement, rows in shown.items()
        if "sales_models" not in statement and "photo_models" not in statement and "VIEW" not in statement
    }
    for rows in of(of_people, "FROM cerebro.predict(") + of(of_people, "JOIN cerebro.predict("):
        assert len(rows) == 100
    assert of(shown, "cerebro.predict_into(") == [[(100,)]]
    ((rows, least, mean, most),) = of(shown, "FROM people_predicted")[0]
    assert rows == 100 and 0 < least < mean < most < 200000
    ((income,),) = of(shown, "income_of(age")[0]
    assert 0 < float(str(income)) < 200000


def test_runs_finish(lab: Lab, shown: dict[str, list[tuple[Any, ...]]], runs: dict[str, int]) -> None:
    statuses = dict(lab("SELECT run, status FROM runs WHERE model_table LIKE %s", f"{lab.schema}.%"))
    started = [rows[0][0] for part in ("cerebro.train(", "cerebro.fit(") for rows in of(shown, part)]
    started.remove(runs["resume"])  # which the page forgets at its end
    assert len(started) == 25 and {statuses[run] for run in started} == {"finished"}


def test_a_run_is_followed(shown: dict[str, list[tuple[Any, ...]]], server: str, runs: dict[str, int]) -> None:
    assert of(shown, "cerebro.wait(12)") == [[("finished",)]]
    (board,) = of(shown, "FROM cerebro.leaderboard WHERE run = 12")
    (curve,) = of(shown, "FROM cerebro.learning_curve WHERE run = 12")
    assert [row[0] for row in board] == [1, 2, 3] and len(curve) == 30
    (commands,) = blocks("docs/follow.md", "sh")
    for line in commands.splitlines():
        arguments = shlex.split(RUN.sub(str(runs["follow"]), line), comments=True)[1:]
        done = CliRunner().invoke(cli.app, arguments, env={"CEREBRO_DSN": server})
        assert done.exit_code == 0 and str(runs["follow"]) in done.output, (line, done.output)


def test_the_loss_is_that_of_the_page(shown: dict[str, list[tuple[Any, ...]]]) -> None:
    ((loss,),) = of(shown, "of_the_right_class")[0]
    assert float(loss) == pytest.approx(1.034, abs=0.001)


def test_a_run_is_resumed(shown: dict[str, list[tuple[Any, ...]]], runs: dict[str, int]) -> None:
    assert of(shown, "cerebro.cancel(12)") == [[(True,)]]
    assert of(shown, "cerebro.wait(12, 60)") == [[("cancelled",)]]
    assert of(shown, "SELECT run, status, message")[0][0][:2] == (runs["resume"], "cancelled")


def test_a_model_is_exported(
    shown: dict[str, list[tuple[Any, ...]]], lab: Lab, server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert shown
    monkeypatch.setenv("CEREBRO_DSN", make_dsn(server, options=f"-csearch_path={lab.schema},public,cerebro"))
    monkeypatch.chdir(tmp_path)
    for block in blocks("docs/export.md", "sh"):
        for line in block.splitlines():
            done = CliRunner().invoke(cli.app, shlex.split(line, comments=True)[1:])
            assert done.exit_code == 0, (line, done.output)
    monkeypatch.syspath_prepend(str(tmp_path))
    given = lab("SELECT to_jsonb(p) FROM new_people p ORDER BY id")
    names: dict[str, Any] = {"rows": [row for (row,) in given]}
    said = []
    for code in blocks("docs/export.md", "python"):
        *before, last = code.strip().splitlines()
        exec("\n".join([*before, f"said = {last}"]), names)
        said.append(names["said"])
    names["cerebro"].close()
    assert said[0]["income"].shape == (1,)
    assert lab("SELECT status FROM cerebro.runs WHERE run = %s", said[2].run) == [("finished",)]
    expected = [
        value
        for (value,) in lab(
            "SELECT value FROM cerebro.predict('people_models', 'SELECT * FROM new_people') ORDER BY key_value::integer"
        )
    ]
    assert said[1].ravel() == pytest.approx(expected, rel=1e-5)


def test_new_nodes_are_appended(shown: dict[str, list[tuple[Any, ...]]]) -> None:
    first, second = of(shown, "cerebro.propagate(")
    assert first == [(1000,)] and 3 <= second[0][0] < 1001


def test_an_alias_moves(shown: dict[str, list[tuple[Any, ...]]]) -> None:
    (history,) = of(shown, "FROM cerebro.registry_history")
    assert [(row[2], row[3]) for row in history] == [
        ("registered", 1), ("alias", 1), ("registered", 2), ("alias", 2), ("alias", 1),
    ]  # fmt: skip
    (versions,) = of(shown, "FROM cerebro.registered_versions")
    assert [(row[0], row[1], 1000 < row[4] < 2000) for row in versions] == [(1, "production", True)]


def test_the_new_models_are_compared_with_the_old(shown: dict[str, list[tuple[Any, ...]]]) -> None:
    (compared,) = of(shown, "UNION ALL")
    assert {row[0] for row in compared} == {"old", "new"}


def test_judging(shown: dict[str, list[tuple[Any, ...]]]) -> None:
    (found,) = of(shown, "SELECT * FROM cerebro.evaluate(")
    figures = dict(found)
    assert figures["rows"] == 200 and figures["accuracy"] > 0.6 and figures["auc"] > 0.6
    (matrix,) = of(shown, "confusion_matrix")
    assert sum(row[2] for row in matrix) == 200 and sum(row[2] for row in matrix if row[0] == row[1]) > 120
    for rows in of(shown, "cerebro.importance("):
        assert {row[0] for row in rows} == {"months", "charges", "contract"}


def test_a_rare_class_is_decided_for(shown: dict[str, list[tuple[Any, ...]]]) -> None:
    (found,) = of(shown, "class_metrics")
    assert [row[0] for row in found] == ["No", "Yes"] and sum(row[4] for row in found) == 200
    (compared,) = of(shown, "AS plain, calibrated.value")
    assert {"log_loss", "ece", "rows"} <= {row[0] for row in compared}


def test_groups(shown: dict[str, list[tuple[Any, ...]]]) -> None:
    (best,) = of(shown, "rank = 1 AND group_number IS NOT NULL")
    assert [row[0] for row in best] == [f"shop {number}" for number in range(5)]
    (listed,) = of(shown, "FROM orders_models_groups")
    assert len(listed) == 10 and all(row[4] is None for row in listed)
    ((by_table,), (by_version,)) = (
        of(shown, f"FROM cerebro.predict('{one}'") for one in ("orders_models", "orders@production")
    )
    assert sorted(by_table) == sorted(by_version)


def test_forecasts(shown: dict[str, list[tuple[Any, ...]]]) -> None:
    (ahead,) = of(shown, "sold_a_week_later")
    assert sorted(row[0] for row in ahead) == [f"{shop}, 2024-08-22" for shop in range(1, 7)]
    (((mine, naive, rows),),) = of(shown, "error_of_the_week_before")
    assert 0 < mine < 2 * naive and rows == 6 * 144
    (intervals,) = of(shown, "lower, value, upper\n  FROM cerebro.predict('sales_models'")
    assert len(intervals) == 6 and all(lower < value < upper for _, lower, value, upper in intervals)


def test_models(lab: Lab, shown: dict[str, list[tuple[Any, ...]]]) -> None:
    (listed,) = of(shown, "FROM cerebro.models")
    names = {row[0] for row in listed}
    assert {f"{lab.schema}.{name}" for name in ("income", "people_models", "people_together")} <= names
    kept = lab("SELECT model_table FROM cerebro.models")
    assert (f"{lab.schema}.people_together",) not in kept and (f"{lab.schema}.people_models",) in kept
