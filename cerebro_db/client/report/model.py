"""What a report says about the model of a run: how good it is, what it reads, and how to predict with it.

The rows for validation are predicted for this. Only a model of the current user is read: the name of the table is the
one that this user gave, and the view ``cerebro.models`` says whose it is now.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Engine

from cerebro_db.core.errors import CerebroError
from cerebro_db.core.names import Name
from cerebro_db.core.packing.features import (
    CategoryFeature,
    DateFeature,
    Feature,
    MeansFeature,
    NumberFeature,
    WordsFeature,
)
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.packing.preparation import Divided, Measured, OneHot, Pixels
from cerebro_db.core.sql import literal, shown
from cerebro_db.core.texts import short

from ..display.terminal import FUNCTION
from ..errors import Cancelled, ClientError, translated
from . import figures

Json = dict[str, Any]
Kept = dict[tuple[Any, ...], Json]

MOST_KEPT = 50
PREDICTED_WITHIN = 120  # seconds; the server takes fewer rows if they take more than 30
EXPLAINED_WITHIN, IMPORTANCE_WITHIN = 15, 20  # seconds
MOST_COLUMNS = 1000
MOST_CATEGORIES = 8  # that are named
MEMBERS = re.compile(r"^the mean of configurations ([0-9, ]+) of ")

MODEL = """
SELECT model_table, chosen_configuration, made_of, quality, rows, configurations, bytes, created_at
  FROM cerebro.models
 WHERE run = %s AND owner = current_user AND model_table = %s
"""
VERSIONS = """
SELECT registered_model, version, aliases, configuration, registered_at, registered_by, quality, unregistered_at
  FROM cerebro.registered_versions
 WHERE run = %s AND model_table = %s AND registered_by = current_user
 ORDER BY registered_model, version DESC LIMIT 50
"""
FOREIGN = "The model belongs to another user. This page predicts with a model, so only the owner gets it."
NOT_YET = "The run has made no model yet."
GONE = "The table of the model is gone, is in use, or has the models of another run now."


def read(engine: Engine, run: Json, plan: Json, *, examples: bool, kept: Kept | None = None) -> Json:
    """``why``: why there is nothing to say. ``run`` and ``plan``: rows of ``cerebro.runs`` and ``cerebro.run_plan``.

    ``kept``: what earlier calls have computed of models, which is not computed again.
    """
    with translated(), engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor:
            return ModelReader(cursor, {} if kept is None else kept).read(run, plan, examples)


class ModelReader:
    def __init__(self, cursor: Any, kept: Kept) -> None:
        self.cursor, self.kept = cursor, kept

    def read(self, run: Json, plan: Json, examples: bool) -> Json:
        if not self.rows("SELECT %s = current_user", (run["owner"],))[0]["?column?"]:
            return {"why": FOREIGN}
        table = run["model_table"]
        found = self.rows(MODEL, (run["run"], table))
        if not found:
            return {"why": NOT_YET if run["status"] in ("created", "running", "finishing") else GONE}
        (model,) = found
        configuration = model["chosen_configuration"]
        layout = _layout(plan["layout"])
        page: Json = {
            "why": None,
            **{name: model[name] for name in ("model_table", "made_of", "quality", "bytes")},
            "configuration": configuration,
            "members": _members(model["made_of"]),
            "rows": {"training": plan["rows_per_epoch"], "validation": _rows_of(plan["validation_layout"])},
            "columns": [] if layout is None else columns_of(layout, examples),
            "windows": None if layout is None else windows_of(layout),
            "statements": [] if layout is None else statements_of(layout, table, run["source_table"]),
            "packed_tables": [plan["packed_table"], plan["validation_table"]],
            "versions": self.rows(VERSIONS, (run["run"], table)),
        }
        key = (run["run"], run["owner"], repr(sorted(model.items())))
        if key not in self.kept:
            judged = self._judged(table, configuration, examples)
            why = judged["judged_why"]
            self._explain(table, configuration, judged["targets"])
            judged["importance"] = self._importance(table, configuration, why)
            if why is not None:
                return page | judged
            while len(self.kept) >= MOST_KEPT:
                del self.kept[next(iter(self.kept))]
            self.kept[key] = judged
        return page | self.kept[key]

    def _judged(self, table: str, configuration: int, examples: bool) -> Json:
        """How good the model is on the rows for validation, or why it cannot be judged."""
        try:
            with self.within(PREDICTED_WITHIN):
                called = "SELECT cerebro_internal._validation_sample(%s, %s) AS sample"
                said = json.loads(self.rows(called, (table, configuration))[0]["sample"])
        except ClientError as error:
            return {"targets": [], "judged_why": _why(error, PREDICTED_WITHIN)}
        return {
            "targets": [target_of(one, examples) for one in said["targets"]],
            "judged_why": None,
            "not_judged": said["not_judged"],
        }

    def _explain(self, table: str, configuration: int, targets: list[Json]) -> None:
        """Give each example what its columns add to the prediction, unless that takes long or this model has none."""
        rows = [
            (target["target"], row) for target in targets for examples in target["examples"] for row in examples["rows"]
        ]
        if not rows:
            return
        numbers = sorted({row["number"] for _, row in rows})
        called = "SELECT cerebro_internal._validation_explained(%s, %s, %s) AS explained"
        try:
            with self.within(EXPLAINED_WITHIN):
                said = json.loads(self.rows(called, (table, configuration, numbers))[0]["explained"])
        except ClientError:
            return
        for target, row in rows:
            found = said.get(target, {}).get(str(row["number"]))
            if found and all(map(math.isfinite, [found["base"], *(value for _, value in found["pushes"])])):
                row["pushed"] = found

    def _importance(self, table: str, configuration: int, why: str | None) -> Json:
        if why is not None:
            return {"columns": [], "why": why}
        called = "SELECT column_name, importance, loss_before FROM cerebro.importance(%s, configuration => %s)"
        try:
            with self.within(IMPORTANCE_WITHIN):
                return {"columns": self.rows(called, (table, configuration))[:MOST_COLUMNS], "why": None}
        except ClientError as error:
            why = _why(error, IMPORTANCE_WITHIN)
            return {"columns": [], "why": f"{why} To compute it: SELECT * FROM cerebro.importance({_text(table)});"}

    def rows(self, statement: str, values: tuple[Any, ...]) -> list[Json]:
        with translated():
            self.cursor.execute(statement, values)
            names = [column.name for column in self.cursor.description]
            return [dict(zip(names, row)) for row in self.cursor.fetchall()]

    @contextlib.contextmanager
    def within(self, seconds: int) -> Iterator[None]:
        """A statement that takes longer is cancelled."""
        before = self.rows("SHOW statement_timeout", ())[0]["statement_timeout"]
        self.rows("SELECT pg_catalog.set_config('statement_timeout', %s, false)", (f"{seconds}s",))
        try:
            yield
        finally:
            self.rows("SELECT pg_catalog.set_config('statement_timeout', %s, false)", (before,))


def _why(error: ClientError, seconds: int) -> str:
    if isinstance(error, Cancelled):
        return f"It was not ready within {seconds} seconds."
    message = FUNCTION.sub("", error.message)
    return message[:1].upper() + message[1:]


# -- pure ----------------------------------------------------------------------------------------------------


def _layout(document: Any) -> Layout | None:
    """None: the owner has written something else there."""
    try:
        return Layout.from_json(document)
    except CerebroError:
        return None


def _rows_of(document: Any) -> int | None:
    layout = _layout(document)
    return None if layout is None else layout.rows


def _members(made_of: str | None) -> list[int]:
    found = MEMBERS.match(made_of or "")
    return [int(number) for number in re.findall(r"\d{1,9}", found[1])] if found else []


def columns_of(layout: Layout, examples: bool) -> list[Json]:
    """Each column that the model reads or predicts, and what is made of it."""
    found = []
    for variable in layout.inputs:
        features = variable.preparation.features
        for place, column in enumerate(variable.columns):
            feature = features[place] if features else None
            type, prepared = (
                _as_array(variable) if feature is None else (str(feature.type), _prepared(feature, examples))
            )
            found.append({"column": column, "use": "input", "type": type, "prepared": prepared})
    for variable in layout.outputs:
        type, prepared = _target(variable, examples)
        found.append({"column": ", ".join(variable.columns), "use": "target", "type": type, "prepared": prepared})
    if layout.weight is not None:
        found.append({"column": ", ".join(layout.weight.columns), "use": "weight of the row", "type": None,
                      "prepared": "how much a row counts in training"})  # fmt: skip
    return found[:MOST_COLUMNS]


def _as_array(variable: Variable) -> tuple[str | None, str]:
    size = " x ".join(map(str, variable.shape))
    if isinstance(variable.preparation, Pixels):
        return "bytea", f"an image of {size}"
    by = f", divided by {variable.preparation.by:g}" if isinstance(variable.preparation, Divided) else ""
    return None, ("a number as it is" if variable.elements == 1 else f"an array of {size}") + by


def _prepared(feature: Feature, examples: bool) -> str:
    if isinstance(feature, NumberFeature):
        ways = {"standard": "standardised", "log": "its logarithm, standardised", "quantile": "by its rank"}
        usual = f" (mean {short(feature.mean)}, deviation {short(feature.deviation)})"
        told = f"a number, {ways[feature.transform]}{usual if feature.transform == 'standard' else ''}"
        return told + ("; NULL is marked" if feature.missing else "")
    if isinstance(feature, DateFeature):
        parts = [*feature.cycles, *(["days since then"] if feature.deviation else [])]
        return f"a date: {', '.join(parts)}" + ("; NULL is marked" if feature.missing else "")
    if isinstance(feature, CategoryFeature):
        return (
            f"a category of {len(feature.values)} values"
            + _some(feature.values, examples)
            + (f", {len(feature.rare)} rare ones together" if feature.rare else "")
        )
    if isinstance(feature, MeansFeature):
        return f"means of the target over rows with the same value, of {len(feature.values)} values"
    if isinstance(feature, WordsFeature):
        return f"a text, its first {feature.length} words"
    return feature.prepared_as


def _target(variable: Variable, examples: bool) -> tuple[str | None, str]:
    preparation = variable.preparation
    if isinstance(preparation, OneHot):
        labels = ["NULL" if one is None else one for one in preparation.labels]
        return str(preparation.type), f"{len(labels)} classes" + _some(labels, examples)
    if isinstance(preparation, Measured):
        mean, deviation = short(preparation.mean), short(preparation.deviation)
        return None, f"a number (mean {mean}, deviation {deviation} in training)"
    return None, "a number" if variable.elements == 1 else f"an array of {' x '.join(map(str, variable.shape))}"


def _some(values: Any, examples: bool) -> str:
    if not examples or not values:
        return ""
    return f": {', '.join(values[:MOST_CATEGORIES])}{', …' if len(values) > MOST_CATEGORIES else ''}"


def windows_of(layout: Layout) -> Json | None:
    windows = layout.windows
    if windows is None:
        return None
    return {"by": list(windows.by), "order": list(windows.order), "length": windows.length, "step": windows.step,
            "horizon": windows.horizon}  # fmt: skip


def statements_of(layout: Layout, table: str, source: str) -> list[Json]:
    """How to predict with the model, in SQL and in Python, with the columns that it reads."""
    inputs = [column for variable in layout.inputs for column in variable.columns]
    named = [*([layout.key] if layout.key else []), *(layout.windows.columns if layout.windows else ()), *inputs]
    listed = ", ".join(str(Name(None, column)) for column in dict.fromkeys(named))
    query = f"SELECT {listed} FROM {source}" + ("" if layout.windows else " LIMIT 10")
    key = f", key => {_text(str(Name(None, layout.key)))}" if layout.key else ""
    of_python = f", key={str(Name(None, layout.key))!r}" if layout.key else ""
    return [
        {"language": "SQL", "text": f"SELECT * FROM cerebro.predict({_text(table)}, {_text(query)}{key});"},
        {"language": "Python", "text": f"cerebro.predict({table!r}, {query!r}{of_python})"},
    ]


def _text(value: str) -> str:
    return shown(literal(value))


def target_of(said: Json, examples: bool) -> Json:
    """What the page shows of one target. ``said``: what the server says of the rows."""
    labels = said["labels"]
    known: dict[str, tuple[float, float]]
    found: Json = {name: said[name] for name in ("target", "labels", "rows", "without_target", "last_known")}
    found["compared"] = len(said["actual"])
    if labels is None:
        actual, predicted = figures.finite(said["actual"], said["predicted"])
        known = figures.intervals_of_numbers(actual, predicted)
        found |= {
            "interval": said.get("interval"),
            "scatter": figures.scatter(actual, predicted),
            "residuals": figures.residuals(actual, predicted),
        }
    else:
        actual, predicted, sure, of_actual = figures.finite(
            said["actual"], said["predicted"], said["sure"], said["known"]
        )
        right = [one == other for one, other in zip(actual, predicted)]
        known = figures.intervals_of_classes(actual, predicted, of_actual, len(labels))
        after = said.get("calibrated")
        found |= {
            "confusion": figures.confusion(labels, actual, predicted),
            "reliability": figures.reliability(sure, right),
            "calibrated": after and {
                **{name: after[name] for name in ("temperature", "log_loss", "ece")},
                "reliability": figures.reliability(after["sure"], right) if len(after["sure"]) == len(right) else [],
            },
        }  # fmt: skip
        if len(labels) == 2:
            scores = [p if one else 1 - p for one, p in zip(actual, of_actual)]
            found["curves"] = figures.curves(scores, actual)
    found["metrics"] = [
        {**one, "low": known.get(one["metric"], (None, None))[0], "high": known.get(one["metric"], (None, None))[1]}
        for one in said["metrics"]
        if one["metric"] != "rows"
    ]
    found["examples"] = said["examples"] if examples else []
    return found
