"""The optional arguments of the SQL functions that start runs, and the statements that call these functions.

``make reference`` writes the fields of the classes, from ``core/arguments.py``.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any, TypedDict, Union

from psycopg2 import sql
from psycopg2.extras import Json

from . import frames
from .errors import ClientError
from .sentence_encoders import WordPieces

# A statement that starts a run does not wait: libpq does not react to Ctrl-C while a statement runs.
WITHOUT_WAITING, DRY_RUN = "wait => false", "dry_run => true"
COLUMNS = ("inputs", "group_by", "target", "on_columns", "key")  # a list of names, or one text with commas between them
# What other tools call them.
OTHER_NAMES = {
    "label": "target", "labels": "target", "y": "target", "features": "inputs", "x": "inputs", "columns": "inputs",
    "model": "model_table", "table": "source_table", "trials": "max_configurations", "n_trials": "max_configurations",
    "max_trials": "max_configurations", "name": "run_name", "overwrite": "replace", "seed": "options",
}  # fmt: skip


class PackingArguments(TypedDict, total=False):
    """How rows are packed. An argument that is left out has the default of the SQL function."""

    inputs: str | Sequence[str]
    prepare: Mapping[str, Any]
    validation: float
    validation_table: str
    split_by: str
    split_at: str
    stratify: bool
    segments: int
    sequence: Mapping[str, Any]
    weights: str
    class_weight: str
    folds: int
    group_by: str | Sequence[str]
    related: str
    as_of: str


class PackArguments(PackingArguments, total=False):
    """The optional arguments of ``cerebro.pack``."""

    buffer_size: int
    distribution_rules: str
    seed: int


class SharedArguments(PackingArguments, total=False):
    """What the three verbs share."""

    target: str | Sequence[str]
    epochs: int
    budget: str | timedelta | Mapping[str, Any] | None
    packed_table: str
    objective: str
    direction: str
    stop_when: str
    evaluate_every: int
    use_gpus: bool
    run_name: str
    description: str
    options: Mapping[str, Any]
    replace: bool


class FitArguments(SharedArguments, total=False):
    """The optional arguments of ``cerebro.fit``."""

    warm_start: bool


class SearchArguments(SharedArguments, total=False):
    """The optional arguments of ``cerebro.search``."""

    architectures: Sequence[Any] | Mapping[str, Any]
    method: str | Mapping[str, Any]
    max_configurations: int
    at_once: int
    start_from: str


class TrainArguments(SearchArguments, total=False):
    """The optional arguments of ``cerebro.train``."""

    space: Mapping[str, Any]
    refit: bool


class TaskArguments(TypedDict, total=False):
    """The optional arguments of ``cerebro.make_task``."""

    on_columns: str | Sequence[str]
    key: str | Sequence[str]
    event_time: str
    starts: str | date
    ends: str | date
    entity_time: str
    active: str | timedelta
    validation: float


def call(
    function: str,
    needed: Mapping[str, Any],
    given: Mapping[str, Any],
    known: type[Any],
    *,
    more: str | None = WITHOUT_WAITING,
) -> tuple[sql.Composed, dict[str, Any]]:
    """The statement that calls a function, and its values.  ``known`` are the optional arguments, ``given`` some.

    ``more``: an argument that is not the user's.
    """
    if strange := sorted(set(given) - set(known.__annotations__)):
        raise TypeError("; ".join(unknown(name, [*needed, *known.__annotations__]) for name in strange))
    for name, value in {**needed, **given}.items():
        if frames.is_frame(value):
            raise ClientError(
                f"{name} is a DataFrame, and other sessions read the rows for training from a table.",
                "cerebro.add_frame(frame, 'people') makes one.",
            )
    values = {name: _sent(name, value) for name, value in {**needed, **given}.items()}
    named = sql.SQL(", ").join(
        sql.SQL("{} => {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in values
    )
    how = sql.SQL("" if more is None else f", {more}")
    return sql.SQL("SELECT cerebro.{}({}{})").format(sql.Identifier(function), named, how), values


def unknown(name: str, known: Sequence[str]) -> str:
    meant = OTHER_NAMES.get(name.lower()) or next(iter(difflib.get_close_matches(name, known, 1)), None)
    return f"there is no argument {name}" + (f"; did you mean {meant}?" if meant in known else "")


Related = Union[str, Mapping[str, str]]  # the related tables that a model reads, by their paths


def as_json(related: Related | None) -> str | None:
    return related if related is None or isinstance(related, str) else json.dumps(dict(related))


def listed(columns: str | Sequence[str] | None) -> str | None:
    """The names of columns as one text with commas."""
    if columns is None or isinstance(columns, str):
        return columns
    return ", ".join('"' + column.replace('"', '""') + '"' for column in columns)


def _sent(name: str, value: Any) -> Any:
    if isinstance(value, date):  # a datetime, too
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds"
    if name == "prepare" and isinstance(value, Mapping):
        value = {one: wish.prepared() if isinstance(wish, WordPieces) else wish for one, wish in value.items()}
    if name in COLUMNS and isinstance(value, (list, tuple)):
        return listed(value)
    return Json(value) if isinstance(value, (Mapping, list, tuple)) else value
