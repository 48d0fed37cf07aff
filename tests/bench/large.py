"""Ten million rows and six minutes: how many configurations cerebro.train compares, and how good its answer is.

Rivals have the same minutes, in which the rows have to reach them, too.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from tests.bench import report
from tests.bench.contenders import call, python_with
from tests.bench.database import Database
from tests.bench.rivals import large as rivals
from tests.sql.lab import Json

OURS, ONE = "cerebro.train", "cerebro.train, one configuration"
LIGHTGBM, KERAS = "LightGBM", "Keras"
NAMES = {"train": OURS, "one": ONE, "lightgbm": LIGHTGBM, "keras": KERAS}
NEEDS = {LIGHTGBM: "lightgbm", KERAS: "keras"}
ROWS, HELD_OUT, COLUMNS = 10_000_000, 200_000, rivals.COLUMNS
BUDGET = 360  # seconds
SIGNAL = (
    "sin(3 * x1) * x2 + x3 * x4 - x5 * x5 + CASE WHEN x6 > 0 THEN x7 ELSE x8 END + 0.5 * x9 * x10 * x11 + 0.2 * x12"
)


def compared(
    database: Database,
    chosen: list[str],
    *,
    rows: int | None,
    budget: int | None,
    record: TextIO,
    say: Callable[[str], None],
) -> list[Json]:
    lines = []
    seconds = budget or BUDGET
    make(database, rows or ROWS)
    for name in [name for key, name in NAMES.items() if key in chosen or not chosen]:
        for line in (ours if name in (OURS, ONE) else rival)(database, name, seconds):
            print(json.dumps({"work": "large", **line}), file=record, flush=True)
            say(f"large {name}: log loss {line['log_loss']:.4f}, {line['seconds']:.0f} s, {line['compared']} compared")
            lines.append(line)
    return lines


def table(lines: list[Json]) -> str:
    rows = [
        [one["contender"], f"{one['log_loss']:.4f}", str(one["compared"]), f"{one['seconds']:.0f}"] for one in lines
    ]
    return report.table(["", "log loss", "configurations compared", "seconds"], rows)


def make(database: Database, rows: int) -> None:
    """``large`` and ``large_held_out``: a class that depends on products, a square and a case of normal numbers."""
    lab = database.lab
    numbers = ", ".join(f"((random() + random() + random() - 1.5) * 2)::real AS x{n + 1}" for n in range(COLUMNS))
    lab("SELECT setseed(0.5)")
    for name, count in (("large", rows), ("large_held_out", HELD_OUT)):
        lab(
            f"CREATE TABLE {name} AS SELECT *, random() < 1 / (1 + exp(-2 * ({SIGNAL}))) AS target"
            f" FROM (SELECT i AS id, {numbers} FROM generate_series(1, {count}) i OFFSET 0) drawn"
        )
        lab(f"ANALYZE {name}")


def ours(database: Database, name: str, budget: int) -> Iterator[Json]:
    lab = database.lab
    began = time.monotonic()
    one = ", max_configurations => 1" if name == ONE else ""
    number = lab.value(
        "SELECT cerebro.train('large', 'large_models', target => 'target', budget => %s,"
        f" inputs => %s, options => '{{\"seed\": 1}}'{one})",
        f"{budget} seconds", ", ".join(rivals.NAMES),
    )  # fmt: skip
    seconds = time.monotonic() - began
    loss = lab.value(
        "SELECT -avg(ln(greatest(1e-7, CASE WHEN p.class::boolean = h.target THEN p.probability"
        " ELSE 1 - p.probability END))) FROM cerebro.predict('large_models', 'SELECT * FROM large_held_out', 'id') p"
        " JOIN large_held_out h ON h.id::text = p.key_value"
    )
    count = lab.value(
        "SELECT count(*) FROM leaderboard WHERE run = %s AND objective_value IS NOT NULL AND parent IS NULL", number
    )
    lab("SELECT forget(%s)", number)
    lab("DROP TABLE large_models, large_models_info, large_models_summary")
    yield {"contender": name, "log_loss": float(loss), "compared": count, "seconds": seconds}


def rival(database: Database, name: str, budget: int) -> Iterator[Json]:
    python = python_with(NEEDS[name])
    if python is None:
        return
    began = time.monotonic()
    numbers = ", ".join([*rivals.NAMES, "target::int::real"])
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder:
        for table in ("large", "large_held_out"):
            with database.lab.db.cursor() as cursor, open(Path(folder, table), "wb") as file:
                cursor.copy_expert(f"COPY (SELECT {numbers} FROM {table}) TO STDOUT (FORMAT binary)", file)
        left = budget - (time.monotonic() - began)
        call([python, "-m", "tests.bench.rivals.large", folder, name, str(left)])
        loss = json.loads(Path(folder, "result.json").read_text())
    yield {"contender": name, "log_loss": loss, "compared": 1, "seconds": time.monotonic() - began}
