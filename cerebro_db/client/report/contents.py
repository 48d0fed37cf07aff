"""What a report says about one run: the rows of its views, in the form that the page reads.

All views are read in one read-only transaction, so that their numbers fit together while the run goes on.
"""

from __future__ import annotations

import heapq
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, select

from cerebro_db.core.search.objective import Objective
from cerebro_db.core.texts import harmless

from ..display.differences import differences
from ..errors import NoSuchRun, translated
from ..orm import (
    LOSSES,
    BestOfGroup,
    Decision,
    LeaderboardEntry,
    LearningCurvePoint,
    Metric,
    Request,
    Run,
    RunPlan,
    RunProgress,
    RunTime,
    SegmentActivity,
    View,
)
from .importance import importance, is_number, trend

Json = dict[str, Any]
ReadModel = Callable[[Engine, Json, Json], Json]  # from the rows of cerebro.runs and cerebro.run_plan
Curves = dict[str, dict[int, dict[int, float]]]  # data set and metric, model, epoch

DIGITS = 9  # of the numbers of curves: those of a float32
TEXT = 2000  # characters of a name or a value
DATASETS = {"": "training", "training": "training, after", "validation": "validation"}  # of objectives, in metrics
PLAN = (
    "source_table", "validation_table", "model_table", "epochs", "segments", "rows_per_epoch", "evaluate_every", "seed",
    "cerebro_version",
)  # fmt: skip
LEADERBOARD = (
    "rank", "model", "configuration", "fold", "group_number", "group_value",
    "status", "objective_value", "spread", "best_value", "best_epoch",
    "epochs_done", "validation_loss", "validation_rmse", "training_loss", "validation_metric", "training_metric",
    "weights", "engine", "rung", "parent", "stopped_by", "reason",
)  # fmt: skip
GROUPS = (
    "group_number", "group_value", "rows", "validation_rows", "model", "configuration", "status", "objective_value",
    "validation_loss", "all_rows_configuration", "all_rows_objective_value", "all_rows_validation_loss",
    "worse_than_all_rows",
)  # fmt: skip
ACTIVITIES = ("train", "average", "evaluate")
AT_ONCE: Json = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}  # of a connection


def read(engine: Engine, run: Run, read_model: ReadModel) -> Json:
    """What the views say about this run of this owner, and what is said of its model."""
    with translated(), engine.connect().execution_options(**AT_ONCE) as connection:
        reader = RunReader(connection, run)
        found = reader.contents()
    return {**found, "model": plain(read_model(engine, reader.row_of_run, reader.plan))}


class RunReader:
    def __init__(self, connection: Connection, run: Run) -> None:
        self.connection = connection
        self.run, self.owner = run.run, run.owner
        self.row_of_run: Json = {}
        self.plan: Json = {}

    def rows(self, view: type[View], *columns: str, order: Sequence[str] = ()) -> list[Json]:
        """These columns of the run's rows; all columns if none is named."""
        table = view.__table__
        wanted = [table.c[name] for name in columns] or list(table.c)
        query = select(*wanted).where(table.c.run == self.run, table.c.owner == self.owner)
        return [
            dict(row) for row in self.connection.execute(query.order_by(*(table.c[name] for name in order))).mappings()
        ]

    def row(self, view: type[View]) -> Json:
        found = self.rows(view)
        if not found:  # somebody has forgotten the run since it was looked up
            raise NoSuchRun(f"There is no run {self.run} of {self.owner}.", "Your runs: cerebro runs")
        return found[0]

    def contents(self) -> Json:
        run, plan, progress = self.row(Run), self.row(RunPlan), self.row(RunProgress)
        self.row_of_run, self.plan = run, plan
        entries = sorted(self.rows(LeaderboardEntry), key=_place)
        compared = [one for one in entries if is_on_all_rows(one)]
        objective = entries[0]["objective"] if entries else progress["objective"]
        direction = direction_of(objective, plan["options"] or {}, compared)
        keep = keep_of(plan["options"], entries)
        points = self.rows(LearningCurvePoint, "model", "epoch", "trained_at", order=("trained_at", "model"))
        curves = self.curves()
        parameters = _parameters(compared)
        return plain({
            "run": self.run,
            "owner": self.owner,
            "name": run["run_name"],
            "description": run["description"],
            "status": run["status"],
            "message": run["message"],
            "ended_by": run["reason"],
            "started_at": run["started_at"],
            "ended_at": run["ended_at"],
            "source_table": run["source_table"],
            "model_table": run["model_table"],
            "targets": _targets(plan["layout"]),
            "chosen_configuration": run["chosen_configuration"],
            "made_of": run["made_of"],
            "quality": run["quality"],
            "objective": objective,
            "objective_curve": curve_of(objective) if objective else None,
            "direction": direction,
            "keep": keep,
            "metric_name": next((one["metric_name"] for one in entries if one["metric_name"]), None),
            "progress": progress,
            "settings": settings_of(plan, compared),
            "leaderboard": _leaderboard(entries),
            "groups": self.rows(BestOfGroup, *GROUPS, order=("group_number",)),
            "parameters": parameters,
            "importance": _importance(parameters, compared, direction),
            "curves": _drawn(curves),
            "best": best_against_time(
                points, curves.get(curve_of(objective), {}), entries, direction, keep, run["started_at"]
            ) if objective and run["started_at"] else [],
            "time": self.rows(RunTime, "activity", "seconds", "share", order=("position",)),
            "timeline": self.timeline(),
            "decisions": self.decisions(),
            "requests": self.rows(Request, order=("request_id",)),
        })  # fmt: skip

    def curves(self) -> Curves:
        """For each metric of each data set, the values by model and epoch. Values of single classes are left out."""
        found: Curves = {}
        for row in self.rows(Metric, "model", "epoch", "dataset", "metric", "value", order=("model", "epoch")):
            if "[" not in row["metric"] and _finite(row["value"]):
                values = found.setdefault(f"{row['dataset']} {row['metric']}", {}).setdefault(row["model"], {})
                values[row["epoch"]] = float(f"{row['value']:.{DIGITS}g}")
        return found

    def timeline(self) -> Json:
        """A list per column. Times are whole milliseconds after the first one."""
        names = ("segment", "activity", "model", "epoch", "hop", "started_at", "seconds", "seconds_behind")
        rows = self.rows(SegmentActivity, *names, order=("started_at", "segment"))
        zero = rows[0]["started_at"] if rows else None
        segments = sorted({row["segment"] for row in rows})
        lanes = {segment: lane for lane, segment in enumerate(segments)}
        activities = list(dict.fromkeys([*ACTIVITIES, *(row["activity"] for row in rows)]))
        return {
            "segments": segments,
            "activities": activities,
            "lane": [lanes[row["segment"]] for row in rows],
            "activity": [activities.index(row["activity"]) for row in rows],
            "start": [round((row["started_at"] - zero).total_seconds() * 1000) for row in rows],
            # In the last seconds_behind the segment already works on the next unit.
            "length": [round(1000 * (row["seconds"] - row["seconds_behind"])) for row in rows],
            **{name: [row[name] for row in rows] for name in ("model", "epoch", "hop")},
        }

    def decisions(self) -> list[Json]:
        rows = self.rows(Decision, order=("decision_id",))
        return [row for row in rows if row["decision"] != "continue"]


# -- pure ----------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """The value as JSON can have it. Texts lose what reorders or hides them, and the end if they are very long."""
    if isinstance(value, str):
        return harmless(value, lines=True, longest=TEXT)
    if isinstance(value, dict):
        return {plain(str(name)): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def direction_of(objective: str | None, options: Json, entries: Sequence[Json]) -> str:
    """``min`` or ``max``. Others than the owner do not see the options, but the order of the leaderboard."""
    if options.get("direction") in ("min", "max"):
        return options["direction"]
    valued = [
        one["objective_value"] for one in entries if one["status"] != "failed" and _finite(one["objective_value"])
    ]
    return "max" if objective not in LOSSES and valued and valued[0] > valued[-1] else "min"


def keep_of(options: Json | None, entries: Sequence[Json]) -> str:
    """Which epoch the result of a model is from: its ``best`` one, or its ``last`` one.

    Others than the owner do not see the options, but whether results are those of the best epochs.
    """
    if options is not None:
        return "best" if options.get("keep") == "best" else "last"
    valued = [one for one in entries if one["fold"] is None and one["best_value"] is not None]
    are_best = all(one["objective_value"] == one["best_value"] for one in valued)
    return "best" if are_best and any(one["best_epoch"] < one["epochs_done"] for one in valued) else "last"


def _targets(layout: Json | None) -> list[str] | None:
    """The columns that the models predict. None: the user is not the owner, who alone sees them."""
    if layout is None:
        return None
    outputs = layout.get("outputs")
    return [str(one.get("name")) for one in outputs if isinstance(one, dict)] if isinstance(outputs, list) else None


def settings_of(plan: Json, entries: Sequence[Json]) -> dict[str, str]:
    """What the run was asked to do, by name."""
    settings = {name: text_of(plan[name]) for name in PLAN}
    settings |= {f"option {name}": text_of(value) for name, value in sorted((plan["options"] or {}).items())}
    values = defaultdict(list)
    for one in entries:
        for name, value in {"architecture": one["architecture"], **one["parameters"]}.items():
            values[name].append(value)
    return settings | {f"parameter {name}": _range(values[name]) for name in values}


def _range(values: Sequence[Any]) -> str:
    """``0.001 to 0.1``, or the values themselves"""
    different: list[Any] = list({text_of(value): value for value in values}.values())
    if len(different) > 3 and all(is_number(value) for value in different):
        return f"{min(different):.5g} to {max(different):.5g}"
    return ", ".join(sorted(map(text_of, different)))


def _leaderboard(entries: Sequence[Json]) -> list[Json]:
    words = differences([LeaderboardEntry(**one) for one in entries])
    return [{"words": words[one["configuration"]], **{name: one[name] for name in LEADERBOARD}} for one in entries]


def _parameters(entries: Sequence[Json]) -> list[Json]:
    """The parameters that differ, with a value for each of the compared models: a number, a text, or None."""
    described = [{"architecture": one["architecture"], **one["parameters"]} for one in entries]
    names = list(dict.fromkeys(name for one in described for name in one))
    models = [one["model"] for one in entries]
    found = []
    for name in names:
        values = [_axis_value(one.get(name)) for one in described]
        if len(set(values)) > 1:
            found.append({"name": name, "models": models, "values": values})
    return found


def _importance(parameters: Sequence[Json], entries: Sequence[Json], direction: str) -> list[Json]:
    """The parameters, the most important first. ``trend`` is positive if larger values go with better results."""
    results = {one["model"]: one["objective_value"] for one in entries if one["status"] != "failed"}
    sign = -1.0 if direction == "min" else 1.0
    found = []
    for one in parameters:
        both = [
            (value, sign * results[model])
            for model, value in zip(one["models"], one["values"])
            if _finite(results.get(model))
        ]
        share = importance([value for value, _ in both], [result for _, result in both])
        if share is not None:
            towards = trend([value for value, _ in both], [result for _, result in both])
            found.append({"name": one["name"], "share": share, "trend": towards, "configurations": len(both)})
    return sorted(found, key=lambda one: (-one["share"], one["name"]))


def _drawn(curves: Curves) -> list[Json]:
    """The curves as the page reads them, losses and validation first."""
    names = sorted(curves, key=lambda name: (not name.endswith(" loss"), not name.startswith("validation"), name))
    return [
        {
            "name": name,
            "curves": [
                {"model": model, "epochs": list(values), "values": list(values.values())}
                for model, values in curves[name].items()
            ],
        }
        for name in names
    ]


def curve_of(objective: str) -> str:
    """The name of the curves that have the values of an objective."""
    wanted = Objective(objective)
    return f"{DATASETS[wanted.dataset]} {wanted.metric}"


def best_against_time(
    points: Sequence[Json],
    values: dict[int, dict[int, float]],
    entries: Sequence[Json],
    direction: str,
    keep: str,
    zero: datetime,
) -> list[Json]:
    """Seconds after the start, value, model and epoch of the best result at each moment. The last is that of rank 1.

    ``reached``: when the epoch of this value ended; the value may have become the best one later, when another model
    got worse. In a run with folds, a result is a mean over the folds of a configuration, once each fold has a value.
    ``points``: the epochs in the order in which they ended. ``values``: of the objective, by model and epoch.
    """
    sign = 1 if direction == "min" else -1
    results = _Results(entries)
    latest: dict[int, float] = {}
    made: list[Json] = []  # every result, in the order of time
    ranked: list[tuple[float, int, int, int]] = []  # signed result, configuration, model, place in made; smallest first
    current: dict[int, int] = {}  # the place of a model's latest result
    found: list[Json] = []
    for point in points:
        model, value = point["model"], values.get(point["model"], {}).get(point["epoch"])
        if value is None or model not in results.counted:
            continue
        if keep == "best" and model in latest and sign * value >= sign * latest[model]:
            continue
        latest[model] = value
        result, shown = results.of(model, latest), results.shown(model)
        if result is None:
            continue
        seconds = round((point["trained_at"] - zero).total_seconds(), 3)
        current[shown] = len(made)
        heapq.heappush(ranked, (sign * result, results.configurations[model], shown, len(made)))
        made.append({"value": result, "model": shown, "epoch": point["epoch"], "reached": seconds})
        while current[ranked[0][2]] != ranked[0][3]:
            heapq.heappop(ranked)  # this model has a later result
        best = {"seconds": seconds, **made[ranked[0][3]]}
        if not found or best != {**found[-1], "seconds": seconds}:
            found.append(best)
    return found


class _Results:
    """Which models have a result, and what it is. Failed models and those of groups have none.

    In runs with folds, a result is the mean over the folds of a configuration; a copy of a model has one of its own.
    """

    def __init__(self, entries: Sequence[Json]) -> None:
        self.configurations = {one["model"]: one["configuration"] for one in entries}
        self.folds: dict[int, list[int]] = defaultdict(list)  # the models of the folds, by configuration
        self.whole: dict[int, int] = {}  # the model on all rows, by configuration
        failed = {one["model"] for one in entries if one["status"] == "failed"}
        alone = []
        for one in entries:
            if is_on_all_rows(one) and one["parent"] is None:
                self.whole[one["configuration"]] = one["model"]
            if one["fold"] is not None and one["group_number"] is None and one["parent"] is None:
                self.folds[one["configuration"]].append(one["model"])
            elif is_on_all_rows(one):
                alone.append(one)
        whole = {self.whole.get(key): models for key, models in self.folds.items()}
        self.counted = {one["model"] for one in alone if one["model"] not in whole} - failed
        for model, models in whole.items():
            if not failed & {model, *models}:
                self.counted.update(models)

    def of(self, model: int, latest: dict[int, float]) -> float | None:
        """The result that a value of this model gives, if there is one."""
        models = self.folds.get(self.configurations[model], ())
        if model not in models:
            return latest[model]
        return statistics.fmean(latest[one] for one in models) if all(one in latest for one in models) else None

    def shown(self, model: int) -> int:
        """The model with this result on the leaderboard."""
        configuration = self.configurations[model]
        return self.whole.get(configuration, model) if model in self.folds.get(configuration, ()) else model


def _axis_value(value: Any) -> float | str | None:
    return value if value is None or is_number(value) else text_of(value)


def _place(entry: Json) -> tuple[bool, int, int, int]:
    """The order of the leaderboard: the models on all rows come before those of groups."""
    return entry["group_number"] is not None, entry["group_number"] or 0, entry["rank"], entry["model"]


def is_on_all_rows(entry: Json) -> bool:
    """Whether a model of the leaderboard is trained neither on folds nor on a group."""
    return entry["fold"] is None and entry["group_number"] is None


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)
