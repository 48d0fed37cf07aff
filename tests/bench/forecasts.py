"""Forecasts with quantiles: cerebro.train beside a seasonal naive forecast, ETS and LightGBM on lags, on six series.

Series, windows, horizons and origins are in rivals/forecasts.py, and were chosen before anything was tuned.
Nobody sees a row after the first origin before that row is read as history.
"""

from __future__ import annotations

import csv
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from tests.bench import report
from tests.bench.contenders import call, python_with
from tests.bench.database import Database
from tests.bench.rivals import forecasts as rivals
from tests.sql.lab import Json

OURS, NAIVE, ETS, LIGHTGBM = "cerebro.train", "seasonal naive", "ETS", "LightGBM on lags"
NAMES = {"ours": OURS, "naive": NAIVE, "ets": ETS, "lightgbm": LIGHTGBM}
SETS = tuple(rivals.SETS)
BUDGET = 60  # seconds
Answers = list[list[Any]]  # series, place of the origin, step, quantiles


def compared(
    database: Database,
    names: list[str],
    chosen: list[str],
    *,
    budget: int | None,
    repeats: int,
    record: TextIO,
    say: Callable[[str], None],
) -> list[Json]:
    """All measurements.  ``names``: of sets; none: all.  ``chosen``: contenders; none: all."""
    python, lines = python_with("statsmodels"), []
    if python is None:
        say("forecasts: statsmodels is not installed; make bench does that")
        return []
    for name in [one for one in SETS if one in names or not names]:
        for line in _of_set(database, python, name, chosen or list(NAMES), budget or BUDGET, repeats):
            line = {"set": name, **line}
            print(json.dumps({"work": "forecasts", **line}), file=record, flush=True)
            say(f"{name} {line['contender']}: WQL {line['wql']:.4f}, {line['coverage']:.0%}, {line['seconds']:.1f} s")
            lines.append(line)
    return lines


def table(lines: list[Json]) -> str:
    """The mean weighted quantile loss of each contender on each set, and what its 0.9 intervals held."""
    shown = [one for one in NAMES.values() if any(line["contender"] == one for line in lines)]

    def means(name: str, contender: str) -> str:
        its = [line for line in lines if line["set"] == name and line["contender"] == contender]
        if not its:
            return "–"
        return f"{np.mean([one['wql'] for one in its]):.4f} ({np.mean([one['coverage'] for one in its]):.0%})"

    sets = dict.fromkeys(line["set"] for line in lines)
    return report.table(["", *shown], [[name, *(means(name, one) for one in shown)] for name in sets])


def scored(folder: Path, answers: Answers) -> Json:
    """The weighted quantile loss of these forecasts, and the part of the values in their 0.9 intervals."""
    levels, losses, size, inside = np.array(rivals.QUANTILES), 0.0, 0.0, 0
    with (folder / "rows.csv").open() as file:
        actual = {(row["series"], int(row["n"])): float(row["value"]) for row in csv.DictReader(file)}
    for series, origin, step, *quantiles in answers:
        value = actual[series, origin + step]
        apart = value - np.array(quantiles)
        losses += 2 * float(np.mean(np.maximum(levels * apart, (levels - 1) * apart)))
        size += abs(value)
        inside += quantiles[0] <= value <= quantiles[-1]
    return {"wql": losses / size, "coverage": inside / len(answers), "forecasts": len(answers)}


def _of_set(database: Database, python: str, name: str, chosen: list[str], budget: int, repeats: int) -> Iterator[Json]:
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as made:
        folder = Path(made)
        call([python, rivals.__file__, "series", str(folder), name])
        told = json.loads((folder / "told.json").read_text())
        _load(database, folder, told)
        for contender in chosen:
            for repeat in range(repeats if contender == "ours" else 1):
                if contender == "ours":
                    found = _ours(database, told, budget, repeat)
                else:
                    call([python, rivals.__file__, contender, str(folder)])
                    found = json.loads((folder / "result.json").read_text())
                answers = found.pop("answers")
                yield {"contender": NAMES[contender], "repeat": repeat, **found, **scored(folder, answers)}


def _load(database: Database, folder: Path, told: Json) -> None:
    lab, known = database.lab, "".join(f", {name} integer" for name in told["known"])
    lab("DROP TABLE IF EXISTS series CASCADE")
    lab(f"CREATE TABLE series (series text, n integer, at timestamp, value double precision{known})")
    with (folder / "rows.csv").open() as file, lab.db.cursor() as cursor:
        cursor.copy_expert("COPY series FROM STDIN CSV HEADER", file)
    lab(f"CREATE VIEW past AS SELECT * FROM series WHERE n <= {told['places'][0]}")


def _ours(database: Database, told: Json, budget: int, seed: int) -> Json:
    """A call with the defaults, and its forecasts from all origins."""
    lab = database.lab
    sequence = {
        "by": "series", "order": "at", "length": told["length"], "horizon": [1, told["horizon"]],
        "season": told["season"], "quantiles": list(rivals.QUANTILES), "known": ["at", *told["known"]],
    }  # fmt: skip
    several = lab.value("SELECT count(DISTINCT series) FROM series") > 1
    begun = time.monotonic()
    lab(
        "SELECT cerebro.train('past', 'trained', target => 'value', inputs => %s, sequence => %s, budget => %s,"
        " refit => true, options => %s, replace => true)",
        "value, series" if several else "value", json.dumps(sequence), f"{budget} seconds", json.dumps({"seed": seed}),
    )  # fmt: skip
    seconds, first = time.monotonic() - begun, told["places"][0]
    rows = lab(
        "WITH forecasts AS (SELECT p.key_value, p.quantiles, row_number() OVER (PARTITION BY p.key_value"
        " ORDER BY p.forecast_for::timestamp) AS step FROM cerebro.predict('trained', %s, 'place') p)"
        " SELECT s.series, s.n, f.step, f.quantiles FROM forecasts f"
        " JOIN series s ON s.series || ' ' || s.n = f.key_value WHERE s.n = ANY (%s)",
        f"SELECT *, series || ' ' || n AS place FROM series WHERE n > {first - told['length']}", told["places"],
    )  # fmt: skip
    lab("DROP TABLE trained, trained_info, trained_summary")
    return {"seconds": seconds, "answers": [[series, origin, step, *its] for series, origin, step, its in rows]}
