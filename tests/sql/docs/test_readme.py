"""The SQL of README.md and the Python of docs/README.md run as printed, on the table that they name."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from cerebro_db.embedded.cluster import IRIS
from tests.sql.lab import Lab
from tests.sql.pages import ROOT, blocks, statements
from tests.sql.users import town


@pytest.fixture(scope="module")
def irises(lab: Lab) -> Lab:
    """With the table that ``cerebro up`` makes; here it is in the schema of the tests."""
    lab(IRIS.read_text().replace("public.", ""))
    return lab


def statuses(lab: Lab, table: str) -> set[str]:
    found = lab("SELECT status FROM cerebro.leaderboard WHERE model_table = %s", f"{lab.schema}.{table}")
    return {status for (status,) in found}


def test_the_first_page(irises: Lab) -> None:
    first, search, fit = (
        statements(block.replace("'public.", f"'{irises.schema}.")) for block in blocks("README.md", "sql")
    )
    predicted, found = blocks("README.md", "")
    train, predict = first
    irises.told()
    irises(f"SET search_path = {irises.schema}, public")  # as in the demo's database
    irises(train)
    said = "iris_models predicts species: accuracy "
    assert said in (ROOT / "README.md").read_text()
    assert irises.greenplum or any(said in line for line in irises.told())  # on Greenplum, nothing is judged at the end
    shown = irises(predict)
    # Greenplum returns rows of several segments in any order.
    assert sorted(row[:2] for row in shown) == sorted(
        tuple(line.split(" | ")[n].strip() for n in (0, 1)) for line in lines(predicted)
    )
    search, board = search
    irises(search)
    rows = irises(board)
    assert len(rows) == len(lines(found)) == 3 and set(rows[0][1]) == {"units", "learning_rate"}
    assert rows[0][4] < 0.2
    told = (
        "SELECT model, status, reason, objective_value FROM cerebro.leaderboard WHERE model_table LIKE '%.iris_found'"
    )
    # Whether the last model reaches the last epoch depends on the losses, which depend on the processor.
    assert {"stopped"} <= statuses(irises, "iris_found") <= {"finished", "stopped"}, irises(told)
    irises(*fit)
    assert statuses(irises, "iris_fitted") == {"finished"}
    for table in ("iris_found", "iris_fitted"):
        assert len(irises(predict.replace("iris_models", table))) == 3
    irises(f"SET search_path = {irises.schema}, public, cerebro, madlib")


def lines(printed: str) -> list[str]:
    """The rows of a table as psql prints it."""
    return printed.splitlines()[2:]


def test_the_first_page_is_short() -> None:
    assert (ROOT / "README.md").read_text().count("\n") < 80


def test_a_colleague_predicts_after_two_statements(server: str, irises: Lab) -> None:
    if irises.value("SELECT to_regclass('iris_models')") is None:
        irises("SELECT cerebro.fit('iris', 'iris_models', '[{\"units\": 4}]', target => 'species', epochs => 1)")
    shared = f"species_{secrets.token_hex(3)}"
    both, (ask,) = (
        statements(block.replace("'species", f"'{shared}").replace("FROM iris", f"FROM {irises.schema}.iris"))
        for block in blocks("docs/README.md", "sql")
    )
    assert len(both) == 2
    with town(server) as root:
        colleague = root.user("colleague", "cerebro_user")
        root(f"GRANT USAGE ON SCHEMA {irises.schema} TO {colleague.name}")
        root(f"GRANT SELECT ON {irises.schema}.iris TO {colleague.name}")
        irises(both[0])
        colleague.refused(ask, why=psycopg2.Error)
        irises(both[1])
        assert colleague(ask) == irises(ask) and len(colleague(ask)) == 3
        colleague.refused(f'SELECT * FROM cerebro_registry."{shared}@1_weights"')
        irises(f"SELECT cerebro.set_alias('{shared}', 'production', NULL)")
        irises(f"SELECT cerebro.unregister('{shared}', 1)")


def test_the_page_that_lists_all_pages(
    server: str, irises: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = blocks("docs/README.md", "python")
    monkeypatch.setenv("CEREBRO_DSN", make_dsn(server, options=f"-csearch_path={irises.schema},public,cerebro,madlib"))
    names: dict[str, Any] = {}
    exec(code, names)
    told = capsys.readouterr().out.splitlines()
    assert told[-1].startswith("100.0 %, best loss: 0.") and not any("None %" in line for line in told)
    assert names["best"].rank == 1
    (measures,) = names["model"].inputs
    assert names["model"]({measures.name: np.zeros((5, *measures.shape[1:]), measures.dtype)}).shape == (5, 3)
    names["cerebro"].close()
