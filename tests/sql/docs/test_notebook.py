"""docs/notebook.ipynb runs from its first cell to its last. Jupyter is not needed: a cell is Python that may await."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from psycopg2.extensions import make_dsn

from cerebro_db.embedded.cluster import IRIS
from tests.sql.lab import Lab

NOTEBOOK = Path(__file__).parents[3] / "docs" / "notebook.ipynb"


def executed(cells: list[str]) -> list[Any]:
    """The value of each cell's last expression."""
    names: dict[str, Any] = {}
    return [_value(ast.parse(cell), names) for cell in cells]


def _value(tree: ast.Module, names: dict[str, Any]) -> Any:
    if isinstance(last := tree.body[-1], ast.Expr):
        tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("_", ast.Store())], last.value), last)
    code = compile(ast.fix_missing_locations(tree), "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names["_"] = None
    awaited = eval(code, names)
    if inspect.iscoroutine(awaited):
        asyncio.run(awaited)
    return names["_"]


def test_the_notebook(
    lab: Lab, server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab(IRIS.read_text().replace("public.", ""))
    monkeypatch.setenv("CEREBRO_DSN", make_dsn(server, options=f"-csearch_path={lab.schema},public,cerebro"))
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    _, board, curve, frame, predicted, number, _ = executed(cells)
    assert "finished, 100.0 %" in capsys.readouterr().out
    assert [row.rank for row in board] == [1, 2, 3] and "<table>" in board._repr_html_()
    assert len(curve) == 30 and curve._repr_html_().count("<polyline") == 3
    assert frame["rank"].tolist() == [1, 2, 3] and "validation_loss" in frame._repr_html_()
    assert [row.key_value for row in predicted] == ["1", "2", "3", "4", "5"] and predicted[0].label is not None
    assert lab.value("SELECT status FROM cerebro.runs WHERE run = %s", number) == "finished"
    assert lab.value("SELECT to_regclass('iris_notebook')") is None


def test_it_has_no_outputs() -> None:
    """They would be old, and could show what is on the author's machine."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
