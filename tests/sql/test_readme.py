"""The SQL and Python examples of the README run exactly as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from psycopg2.extensions import make_dsn
from sklearn.datasets import load_iris

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def first_minute() -> str:
    return re.search(r"## The first minute in SQL.*?```sql\n(.*?)```", README, re.DOTALL).group(1)  # type: ignore[union-attr]


def from_python() -> str:
    return re.search(r"The same from Python.*?```python\n(.*?)```", README, re.DOTALL).group(1)  # type: ignore[union-attr]


def test_the_first_minute(
    server: str, db: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    iris = load_iris()
    with db.cursor() as cursor:
        cursor.execute("SELECT current_schema()")
        (schema,) = cursor.fetchone()
        cursor.execute(
            "CREATE TABLE iris (id integer, sepal_length real, sepal_width real, petal_length real,"
            " petal_width real, species text)"
        )
        rows = zip(iris.data.tolist(), iris.target_names[iris.target].tolist())
        for place, (measures, species) in enumerate(rows):
            cursor.execute("INSERT INTO iris VALUES (%s, %s, %s, %s, %s, %s)", (place, *measures, species))
        cursor.execute("SET search_path = %s, public, cerebro", (schema,))
        results = []
        for statement in first_minute().replace("'public.iris_models'", f"'{schema}.iris_models'").split(";\n"):
            if statement.strip():
                cursor.execute(statement)
                results.append(cursor.fetchall())
        board = results[4]
        assert [row[0] for row in board] == list(range(1, 9)), "eight configurations, best first"
        assert board[0][4] > 0.9, "iris is easy"
        cursor.execute("SELECT status, reason FROM leaderboard WHERE model_table = %s", (f"{schema}.iris_models",))
        assert set(cursor.fetchall()) == {("finished", None)}
        right = "SELECT count(*), avg((class_value = species)::integer) FROM iris_predicted JOIN iris USING (id)"
        cursor.execute(right)
        count, right = cursor.fetchone()
        assert count == 150
        assert right > 0.6
    monkeypatch.setenv("CEREBRO_DSN", make_dsn(server, options=f"-csearch_path={schema},public,cerebro"))
    names: dict[str, Any] = {}
    exec(from_python(), names)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("100.0 %, best loss so far: 0.")
    assert not any("None %" in line for line in lines)
    assert names["best"].rank == 1 and names["best"].training_metric > 0.9
    assert names["model"].predict(iris.data[:5], verbose=0).shape == (5, 3)
    names["cerebro"].close()
