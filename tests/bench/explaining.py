"""Explaining 1,000 predictions: the time compared with predicting them, and the error compared with exact values."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from tests.bench import report
from tests.bench.stage import Contender, Measured, Stage
from tests.sql.lab import run

COLUMNS = (20, 10)
ROWS, EXACT_ROWS, BACKGROUND = 1000, 40, 16  # so few rows at a time are exact with 10 columns
NETWORK = {"architecture": "mlp", "units": 64, "layers": 2, "learning_rate": 0.005, "batch_size": 64}
QUERY = "SELECT * FROM explained WHERE id <= {}"


def make_models(stage: Stage) -> None:
    """A class that needs several columns at once, and a model for each number of columns."""
    lab = stage.database.lab
    if lab.value("SELECT pg_catalog.to_regclass('explained')") is not None:
        return
    numbers = ", ".join(f"sin(i * {1.37 + 0.61 * place} + {place})::real AS x{place}" for place in range(max(COLUMNS)))
    lab(f"CREATE TABLE explained AS SELECT i AS id, {numbers} FROM generate_series(1, 4000) i")
    lab("ALTER TABLE explained ADD PRIMARY KEY (id), ADD label text")
    lab("UPDATE explained SET label = CASE WHEN x0 * x1 + x2 * x3 + x4 > sin(3 * x5 + x6) THEN 'yes' ELSE 'no' END")
    for columns in COLUMNS:
        lab(
            f"SELECT cerebro.fit('explained', 'explained_{columns}', %s, target => 'label', epochs => 15,"
            " inputs => %s, options => '{\"seed\": 1}')",
            json.dumps([NETWORK]), ", ".join(f"x{place}" for place in range(columns)),
        )  # fmt: skip


def ours(stage: Stage) -> Iterator[Measured]:
    """In one session, whose trainer has started."""
    make_models(stage)
    found: dict[str, float] = {}
    with contextlib.closing(stage.database.lab.connect()) as session, stage.meter() as meter:
        for columns in COLUMNS:
            model = f"explained_{columns}"
            run(session, f"SELECT count(*) FROM cerebro.predict('{model}', '{QUERY.format(ROWS)}')")
            began = time.monotonic()
            run(session, f"SELECT count(*) FROM cerebro.predict('{model}', '{QUERY.format(ROWS)}')")
            predicted = time.monotonic()
            rows = explained(session, columns, 1, ROWS)
            found[f"predict {columns}"], found[f"explain {columns}"] = predicted - began, time.monotonic() - predicted
            assert len(rows) == ROWS * columns
            if columns == 10:
                exact: dict[Any, float] = {}
                for first in range(1, ROWS + 1, EXACT_ROWS):
                    exact.update(explained(session, columns, first, first + EXACT_ROWS - 1))
                found["error"] = max(abs(value - exact[place]) for place, value in rows.items())
    yield Measured("cerebro.explain", meter.taken, 0.0, more={"explained": found})


def explained(session: Any, columns: int, first: int, last: int) -> dict[tuple[str, str], float]:
    """Key and column -> contribution; each row's add up to the prediction minus the base."""
    background = f"SELECT * FROM explained WHERE id > 4000 - {BACKGROUND}"
    query = f"SELECT * FROM explained WHERE id BETWEEN {first} AND {last}"
    rows = run(
        session,
        "SELECT key_value, column_name, contribution, prediction - base"
        f" FROM cerebro.explain('explained_{columns}', '{query}', 'id', class => 'yes', background => '{background}')",
    )
    left: dict[str, float] = {}
    for key, _, contribution, gain in rows:
        left[key] = left.get(key, gain) - contribution
    assert max(map(abs, left.values())) < 1e-6
    return {(key, name): contribution for key, name, contribution, _ in rows}


CONTENDERS: dict[str, Contender] = {"ours": ours}


def table(repeats: report.Repeats) -> str:
    """The seconds for 1,000 rows, and the largest error."""
    mine = [one.more["explained"] for one in report.of(repeats, "cerebro.explain")]
    rows = []
    for columns in COLUMNS:
        predict, explain = f"predict {columns}", f"explain {columns}"
        rows.append([
            f"{columns} columns",
            report.spread([one[predict] for one in mine], digits=3),
            report.spread([one[explain] for one in mine], digits=3),
            report.spread([one[explain] / one[predict] for one in mine], digits=1),
            report.spread([one["error"] for one in mine], digits=4) if columns == 10 else "",
        ])  # fmt: skip
    head = [f"{ROWS:,} rows", "predicted in seconds", "explained in seconds", "ratio", "largest error"]
    return report.table(head, rows) if mine else ""
