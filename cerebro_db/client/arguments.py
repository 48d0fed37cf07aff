"""The optional arguments of the SQL functions that start runs, and the statements that call these functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypedDict

from psycopg2 import sql
from psycopg2.extras import Json


class FitArguments(TypedDict, total=False):
    """The optional arguments of ``cerebro.submit``. An argument that is left out has the default of the function."""

    use_gpus: bool
    validation_table: str
    metrics_compute_frequency: int
    warm_start: bool
    name: str
    description: str
    use_caching: bool
    options: dict[str, Any]


class SearchArguments(TypedDict, total=False):
    """The optional arguments of ``cerebro.search``. An argument that is left out has the default of the function."""

    method: str | Mapping[str, Any]
    configurations: int
    objective: str
    direction: str
    budget: Mapping[str, Any]
    at_once: int
    start_from: str
    validation_table: str
    evaluate_every: int
    use_gpus: bool
    name: str
    description: str
    options: dict[str, Any]
    stop_when: str


class TrainArguments(TypedDict, total=False):
    """The optional arguments of ``cerebro.train``. An argument that is left out has the default of the function."""

    target: str
    budget: str | timedelta | None
    inputs: str
    prepare: Mapping[str, Any]
    validation: float
    validation_table: str
    split_by: str
    split_at: str
    stratify: bool
    segments: int
    packed_table: str
    architectures: Sequence[str] | Mapping[str, Any]
    space: Mapping[str, Any]
    method: str | Mapping[str, Any]
    epochs: int
    configurations: int
    at_once: int
    objective: str
    direction: str
    use_gpus: bool
    name: str
    description: str
    options: Mapping[str, Any]
    stop_when: str
    folds: int
    sequence: Mapping[str, Any]
    weights: str
    class_weight: str


def call(
    function: str, needed: Mapping[str, Any], given: Mapping[str, Any], known: type[Any]
) -> tuple[sql.Composed, dict[str, Any]]:
    """The statement that calls a function, and its values.  ``known`` are the optional arguments, ``given`` some."""
    if unknown := sorted(set(given) - set(known.__annotations__)):
        raise TypeError(f"there is no argument {', '.join(unknown)}")
    values = {
        name: Json(value) if isinstance(value, (Mapping, list, tuple)) else value
        for name, value in {**needed, **given}.items()
    }
    named = sql.SQL(", ").join(
        sql.SQL("{} => {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in values
    )
    return sql.SQL("SELECT cerebro.{}({})").format(sql.Identifier(function), named), values
