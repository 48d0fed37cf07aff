"""The optional arguments of the SQL functions that start runs, and the statements that call these functions.

``make reference`` writes the fields of the classes, from ``core/arguments.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypedDict

from psycopg2 import sql
from psycopg2.extras import Json


class SharedArguments(TypedDict, total=False):
    """What the three verbs share. An argument that is left out has the default of the SQL function."""

    inputs: str
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
    group_by: str
    target: str
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


def call(
    function: str, needed: Mapping[str, Any], given: Mapping[str, Any], known: type[Any], *, dry_run: bool = False
) -> tuple[sql.Composed, dict[str, Any]]:
    """The statement that starts a run, and its values.  ``known`` are the optional arguments, ``given`` some.

    ``dry_run``: the statement that says what the run would do.
    """
    if unknown := sorted(set(given) - set(known.__annotations__)):
        raise TypeError(f"there is no argument {', '.join(unknown)}")
    values = {name: _sent(value) for name, value in {**needed, **given}.items()}
    named = sql.SQL(", ").join(
        sql.SQL("{} => {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in values
    )
    # The statement does not wait: libpq does not react to Ctrl-C while a statement runs.
    how = sql.SQL("dry_run => true" if dry_run else "wait => false")
    return sql.SQL("SELECT cerebro.{}({}, {})").format(sql.Identifier(function), named, how), values


def _sent(value: Any) -> Any:
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds"
    return Json(value) if isinstance(value, (Mapping, list, tuple)) else value
