"""The examples of the pages about predicting, forecasts and production run as printed, on the tables of
docs/prepare.md and models of docs/train.md."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg2.extensions import make_dsn
from typer.testing import CliRunner

from cerebro_db.client import cli
from tests.sql.docs.task_pages import Shown, earlier
from tests.sql.lab import Lab
from tests.sql.pages import blocks

PAGES = ("predict", "forecast", "production")
BEFORE = ("cerebro.pack('people', 'people_packed',", "'income', target => 'income'", "'people_models', $$[")


@pytest.fixture(scope="module")
def there(lab: Lab) -> Iterator[Shown]:
    made = Shown(lab)
    for statement in earlier(("prepare", "train"), BEFORE):
        lab(statement)
    yield made
    lab.remove_registered("income")
    lab("DROP OWNED BY analyst; DROP ROLE analyst, dashboards")


@pytest.mark.parametrize("page", PAGES)
def test_each_statement_runs_and_queries_return_rows(there: Shown, page: str) -> None:
    there.require_rows(PAGES, page)


def test_there_are_statements(shown: Shown) -> None:
    assert len(shown.rows) > 35


def test_predictions(shown: Shown) -> None:
    found = shown.of("FROM cerebro.predict('people") + shown.of("JOIN cerebro.predict('people")
    sizes = {len(rows) for rows in found if rows}  # a view has none
    assert len(found) > 2 and sizes == {100}
    assert shown.of("cerebro.predict_into('people") == [[(100,)]]
    by_city, joined = shown.of("FROM people_predicted")
    assert sum(rows for _, rows, _ in by_city) == len(joined) == 100
    assert all(0 < mean < 200000 for _, _, mean in by_city)
    incomes = [float(str(income)) for ((income,),) in shown.of("income_of(age")]
    assert len(incomes) == 2 and all(0 < income < 200000 for income in incomes)


def test_forecasts(shown: Shown) -> None:
    (ahead,) = shown.of("sold_then")
    assert len(ahead) == 6 * 7 and {row[0] for row in ahead} == {f"{shop}, 2024-03-31" for shop in range(1, 7)}
    assert {row[1] for row in ahead} == {f"2024-04-0{day}" for day in range(1, 8)}
    assert all(lower <= value <= upper and quantiles == [lower, value, upper]
               for _, _, value, lower, upper, quantiles in ahead)  # fmt: skip
    assert shown.of("cerebro.predict_into('sales_models'") == [[(42,)]]
    (written,) = shown.of("FROM sales_forecast")
    assert sorted(row[2] for row in written) == pytest.approx(sorted(row[2] for row in ahead))
    ((whole, *steps),) = shown.of("FROM cerebro.backtest(")
    assert [row[0] for row in steps] == list(range(1, 8)) and whole[:3] == (None, 10, 6 * 10 * 7)
    assert all(row[3] > 0 and 0 <= row[6] <= 1 and row[7] == 0.9 for row in [whole, *steps])


def test_runs_finish(shown: Shown) -> None:
    statuses = shown.statuses()
    assert len(statuses) == 4 and set(statuses.values()) == {"finished"}


def test_an_alias_moves(shown: Shown) -> None:
    (history,) = shown.of("FROM cerebro.registry_history")
    assert [(row[2], row[3]) for row in history] == [
        ("registered", 1), ("alias", 1), ("registered", 2), ("alias", 2), ("alias", 1),
    ]  # fmt: skip
    (versions,) = shown.of("FROM cerebro.registered_versions")
    assert [(row[0], row[1], 1000 < row[4] < 2000) for row in versions] == [(1, "production", True)]


def test_models(lab: Lab, shown: Shown) -> None:
    (listed,) = shown.of("FROM cerebro.models")
    names = {row[0] for row in listed}
    assert {f"{lab.schema}.{name}" for name in ("income", "people_models", "people_together")} <= names
    kept = lab("SELECT model_table FROM cerebro.models")
    assert (f"{lab.schema}.people_together",) not in kept and (f"{lab.schema}.people_models",) in kept


def test_a_model_is_exported(
    shown: Shown, lab: Lab, server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert shown.rows
    monkeypatch.setenv("CEREBRO_DSN", make_dsn(server, options=f"-csearch_path={lab.schema},public,cerebro"))
    monkeypatch.chdir(tmp_path)
    for block in blocks("docs/production.md", "sh"):
        for line in block.splitlines():
            done = CliRunner().invoke(cli.app, shlex.split(line, comments=True)[1:])
            assert done.exit_code == 0, (line, done.output)
    monkeypatch.syspath_prepend(str(tmp_path))
    given = lab("SELECT to_jsonb(p) FROM new_people p ORDER BY id")
    names: dict[str, Any] = {"rows": [row for (row,) in given]}
    said = []
    for code in blocks("docs/production.md", "python"):
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
