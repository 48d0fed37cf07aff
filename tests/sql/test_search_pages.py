"""The examples of docs/search.md and docs/steering.md run as printed, after those of the README."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.sql.lab import Lab, eventually, verb
from tests.sql.test_readme import first_minute

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def statements(block: str) -> list[str]:
    """Those of a block: each ends with a semicolon at the end of a line, or before a comment."""
    return [one.strip() for one in re.split(r";[ ]*(?:--[^\n]*)?\n", block) if one.strip()]


@pytest.fixture(scope="module")
def iris(lab: Lab) -> Lab:
    """After the first minute of the README up to its configurations; with rows to validate on."""
    lab.iris(segments=2)
    lab(
        "CREATE TABLE iris AS SELECT id, sl AS sepal_length, sw AS sepal_width, pl AS petal_length, pw AS petal_width,"
        " species FROM flowers"
    )
    lab("CREATE TABLE more_iris AS SELECT * FROM iris WHERE id % 7 = 0")
    for statement in first_minute().split(";\n")[:3]:
        lab(statement)
    columns = "sepal_length, sepal_width, petal_length, petal_width"
    lab(
        "SELECT cerebro.validation_preprocessor_dl('more_iris', 'iris_val', 'species', %s, 'iris_packed')", columns
    )  # fmt: skip
    return lab


def test_the_page_about_search(iris: Lab) -> None:
    first, tower = blocks("search.md", "sql")
    search, board = statements(first)
    run = iris.value(search)
    shown = iris(board.replace("12", str(run)))
    assert len(shown) == 64 and sum(row[2] == "finished" for row in shown) >= 2
    assert shown[0][1] > 0.8 and all(row[3] is not None for row in shown), "every model has reached a rung"
    iris(*statements(tower))
    (given,) = re.findall(r"the parameters are keys: `(\{.*?\})`\. In", (DOCS / "search.md").read_text(), re.DOTALL)
    (schedule,) = blocks("search.md", "json")
    space = {**json.loads(given), **json.loads(schedule)}
    run = iris.value(*verb("search", "iris_packed", "towers", space, epochs=1, method="random", max_configurations=6))
    assert {status for (status,) in iris("SELECT status FROM leaderboard WHERE run = %s", run)} == {"finished"}
    (grid,) = re.findall(r"`arch_params_grid` does:\n`\$\$(\{.*?\})\$\$`", (DOCS / "search.md").read_text())
    iris("SELECT cerebro.load_keras_model('arch', architecture) FROM cerebro.added_architecture WHERE name = 'tower'")
    iris(
        "SELECT cerebro.generate_model_configs('arch', 'filled', ARRAY[2], %s, %s, arch_params_grid => %s)",
        "{'loss': ['mse'], 'optimizer_params_list': [{'lr': [0.1]}]}", "{'batch_size': [8]}", grid,
    )  # fmt: skip
    assert iris.value("SELECT count(*) FROM filled") == 4


def test_the_page_about_steering(iris: Lab) -> None:
    steps, views, rule = blocks("steering.md", "sql")
    slowly = "SELECT 99 AS model, 'nobody' FROM pg_sleep(0.3) WHERE $1 > 0"
    run = iris.submit("iris_packed", "iris_steered", "mst", 39, options={"stop_when": slowly})
    eventually(lambda: iris.value("SELECT count(*) FROM hop WHERE run = %s", run) > 16, 60, "it trains")
    for statement in statements(steps):
        request = iris.value(statement.replace("12", str(run), 1))
        status = "SELECT status FROM requests WHERE request_id = %s"
        eventually(lambda: iris.value(status, request) != "waiting", 60, statement)  # noqa: B023
        assert iris.value(status, request) == "done", statement
    for view in statements(views):
        assert iris(view.replace("12", str(run)))
    iris("SELECT cancel(%s)", run)
    ruled = iris.value(*statements(rule))
    stopped = iris("SELECT reason FROM leaderboard WHERE run = %s AND stopped_by = 'rule'", ruled)
    assert stopped and all(reason.startswith("worse than the median of epoch ") for (reason,) in stopped)
