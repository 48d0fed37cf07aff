"""Searches: how long each method, and each rival, takes until it has a model as good as the best of the grid.

A contender leaves a curve: after each epoch of a model the seconds since the call, the seconds that segments (or the
rival's processes) have computed until then, and the model's validation accuracy.  Each repeat has a seed of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.bench import report
from tests.bench.contenders import OUTPUT, script
from tests.bench.stage import Contender, Measured, Stage
from tests.bench.works import BATCHES, CROSS_ENTROPY, OPTIMIZERS, RATE_POINTS, RATES, Work
from tests.sql.lab import Json, run

Curve = list[list[float]]  # seconds since the call, seconds of computation until then, accuracy

GRID = "search, grid"
WITHIN = 0.005  # half a point of accuracy
HEAD = ["", "reached", "unit-seconds until", "of the grid's", "wall s until", "unit-seconds", "wall s"]
HEAD += ["best accuracy", "busy"]
POPULATION = 16  # of population-based training, whose models all train to the end


def space_of(work: Work) -> Json:
    return {
        "loss": CROSS_ENTROPY,
        "metrics": ["accuracy"],
        "optimizer": {"choice": list(OPTIMIZERS)},
        "learning_rate": {"log_uniform": list(RATES), "points": RATE_POINTS},
        "batch_size": {"choice": list(BATCHES)},
        "passes": 1,
    }


def searching(name: str, method: Json) -> Contender:
    seeds = itertools.count(1)

    def contend(stage: Stage) -> Iterator[Measured]:
        work, database = stage.work, stage.database
        table = work.name.lower()
        count = min(POPULATION, len(work.configurations)) if method["name"] == "pbt" else len(work.configurations)
        named: Json = {
            "method": json.dumps(method),
            "epochs": work.epochs,
            "max_configurations": count,
            "objective": "val_accuracy",
            "validation_table": f"{table}_packed_validation",
            "options": json.dumps({"seed": next(seeds)}),
        }
        statement = f"SELECT cerebro.search(%s, %s, %s{''.join(f', {key} => %s' for key in named)})"
        given = database.lab.value(f"SELECT model_arch FROM {table}_arch WHERE model_id = 1")
        first = (f"{table}_packed", OUTPUT, json.dumps({"architecture": given, **space_of(work)}))
        with contextlib.closing(database.lab.connect()) as session, stage.meter() as meter:
            began = time.time()
            ((number,),) = run(session, statement, *first, *named.values())
        start, curve = curve_of(database.lab, number, began)
        profile = database.profile(number)
        database.drop_models(OUTPUT)
        database.lab("SELECT forget(%s)", number)  # else there would be thousands of state tables in the end
        yield Measured(name, meter.taken, start, more={"curve": curve, "profile": profile})

    return contend


def curve_of(lab: Any, number: int, began: float) -> tuple[float, Curve]:
    """The seconds until the first unit of a run, and its curve."""
    units = lab(
        "SELECT extract(epoch FROM finished_at)::float8, seconds, extract(epoch FROM started_at)::float8"
        " FROM hop_timeline WHERE run = %s ORDER BY finished_at",
        number,
    )
    epochs = lab(
        "SELECT extract(epoch FROM max(t.finished_at))::float8 AS at, max(m.value)"
        "  FROM hop_timeline t JOIN metrics m USING (run, model, epoch)"
        " WHERE t.run = %s AND m.dataset = 'validation' AND m.metric = 'accuracy' AND m.value IS NOT NULL"
        " GROUP BY t.model, t.epoch ORDER BY at",
        number,
    )
    curve, spent, place = [], 0.0, 0
    for at, accuracy in epochs:
        while place < len(units) and units[place][0] <= at:
            spent += units[place][1]
            place += 1
        curve.append([at - began, spent, accuracy])
    return min(unit[2] for unit in units) - began, curve


def rival(name: str, module: str, needs: str) -> Contender:
    seeds = itertools.count(1)

    def contend(stage: Stage) -> Iterator[Measured]:
        began = time.time()
        for one in script(name, module, str(next(seeds)), needs=needs)(stage):
            curve, spent = [], 0.0
            for at, seconds, accuracy in sorted(one.more["epochs"]):
                spent += seconds
                curve.append([at - began, spent, accuracy])
            yield Measured(name, one.taken, one.start, more={"curve": curve})

    return contend


METHODS: dict[str, Json] = {
    "grid": {"name": "grid"},
    "random": {"name": "random"},
    "halving": {"name": "halving"},
    "hyperband": {"name": "hyperband"},
    "asha": {"name": "asha"},
    "median": {"name": "median"},
    "patience": {"name": "patience"},
    "threshold": {"name": "threshold", "value": 0.5, "min_epochs": 2},
    "tpe": {"name": "tpe"},
    "asha-tpe": {"name": "asha", "sampler": "tpe"},
    "pbt": {"name": "pbt"},
    "evolution": {"name": "evolution"},
}
CONTENDERS: dict[str, Contender] = {
    **{f"search-{key}": searching(f"search, {key}", method) for key, method in METHODS.items()},
    "search-optuna": rival("Optuna: TPE, Hyperband", "optuna_search", "optuna"),
    "search-ray": rival("Ray Tune: ASHA", "ray_search", "ray"),
}


# --- what came of it -------------------------------------------------------------------------------------


def curves(measured: Sequence[Measured]) -> dict[str, Curve]:
    return {one.contender: one.more["curve"] for one in measured if one.more.get("curve")}


def busy(measured: Sequence[Measured]) -> float | None:
    """The share of the time between the first and the last unit that segments were busy; rivals do not tell."""
    shares = [report.busy(one) for one in measured if "profile" in one.more]
    return statistics.mean(shares) if shares else None


def until(curve: Curve, accuracy: float) -> list[float] | None:
    """The first point of a curve that is as good."""
    return next((point for point in curve if point[2] >= accuracy), None)


def figures(repeats: report.Repeats) -> dict[str, Json]:
    """How good each contender's models became and when; if the grid took part, when they were as good as its best."""
    rounds = [found for measured in repeats if (found := curves(measured))]
    grids = [found[GRID] for found in rounds if GRID in found]
    whole = statistics.mean(curve[-1][1] for curve in grids) if grids else None
    told: dict[str, Json] = {}
    for name in dict.fromkeys(name for found in rounds for name in found):
        mine = [found[name] for found in rounds if name in found]
        told[name] = {
            **({} if whole is None else _until_as_good(rounds, name, whole)),
            "units": statistics.mean(curve[-1][1] for curve in mine),
            "wall": statistics.mean(curve[-1][0] for curve in mine),
            "accuracy": statistics.mean(max(point[2] for point in curve) for curve in mine),
            "busy": busy(report.of(repeats, name)),
        }
    return told


def _until_as_good(rounds: Sequence[dict[str, Curve]], name: str, whole: float) -> Json:
    """``whole``: the seconds that all units of the grid took."""
    pairs = [(found[name], found[GRID]) for found in rounds if {name, GRID} <= found.keys()]
    points = [until(curve, max(point[2] for point in grid) - WITHIN) for curve, grid in pairs]
    reached = [point for point in points if point is not None]
    found: Json = {"seeds": len(pairs), "reached": len(reached)}
    if reached:
        units = statistics.mean(point[1] for point in reached)
        found.update(units_until=units, of_grid=units / whole)
        found["wall_until"] = statistics.mean(point[0] for point in reached)
    return found


def table(found: dict[str, Json]) -> str:
    """The table of these figures."""
    if not found:
        return ""
    rows = [
        [
            name,
            f"{one['reached']} of {one['seeds']}" if "seeds" in one else "–",
            *(
                f"{one[what]:.{digits}f}" if what in one else "–"
                for what, digits in (("units_until", 1), ("of_grid", 2), ("wall_until", 1))
            ),
            f"{one['units']:.1f}",
            f"{one['wall']:.1f}",
            f"{one['accuracy']:.4f}",
            "" if one["busy"] is None else f"{one['busy']:.3f}",
        ]
        for name, one in found.items()
    ]
    note = (
        "Until a model has the grid's best validation accuracy less half a point: means over the seeds that got there."
    )
    return f"{report.table(HEAD, rows)}\n\n{note}"


def draw(work: Work, repeats: report.Repeats, path: Path) -> None:
    """Draw the smallest error so far against the time: for each contender the median over the seeds."""
    import matplotlib
    import numpy as np

    matplotlib.use("agg")
    from matplotlib import pyplot

    rounds = [found for measured in repeats if (found := curves(measured))]
    ends = [curve[-1][0] for found in rounds for curve in found.values()]
    times = np.geomspace(min(curve[0][0] for found in rounds for curve in found.values()), max(ends), 300)
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    colours = pyplot.get_cmap("tab20")
    for place, name in enumerate(dict.fromkeys(name for found in rounds for name in found)):
        mine = [best_at(found[name], times) for found in rounds if name in found]
        axes.step(
            times,
            1 - np.median(mine, axis=0),
            where="post",
            label=name,
            color=colours(place),
            linestyle="-" if name.startswith("search") else "--",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("seconds since the call")
    axes.set_ylabel("smallest validation error so far")
    axes.set_title(work.name.removeprefix("search_"))
    axes.legend(fontsize="x-small", ncols=2)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def best_at(curve: Curve, times: Any) -> Any:
    """The best accuracy so far at each time; NaN before the first epoch."""
    import numpy as np

    found = np.searchsorted([point[0] for point in curve], times, side="right")
    best = np.array([np.nan, *itertools.accumulate((point[2] for point in curve), max)])
    return best[found]
