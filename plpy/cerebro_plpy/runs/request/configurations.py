"""The argument ``configurations`` of ``cerebro.fit``: flat configurations as JSON, as a query or as a table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from cerebro_db.core import documents, training_plan
from cerebro_db.core.architecture import keras_json, sources
from cerebro_db.core.architecture.sources import Kind
from cerebro_db.core.errors import CerebroError, InvalidArgument
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.parameters import flat, params
from cerebro_db.core.parameters.custom import Known
from cerebro_db.core.parameters.value_types import shown
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import sql

from ...database import relations
from ...database.access import Database
from ...database.relations import Relation
from ...definitions import added
from ...definitions.added import Named
from .request import Architecture, Configurations, FitConfiguration

WHERE = "configurations"
QUERY = re.compile(r"\s*(select|with|values|table)\b(?!\s*$)", re.IGNORECASE)
QUERY_EXAMPLE = (
    "The columns are named after parameters, and each row is a configuration: SELECT 'mlp' AS architecture,"
    " 64 AS units, rate AS learning_rate FROM unnest(ARRAY[0.01, 0.001]) rate."
)
OF_WRONG_QUERIES = ("42", "22", "0A")  # classes of SQLSTATE
UNNAMED = "?column?"
MOST = 10_000
OF_SELECTION = {"mst_key", "model_id", "compile_params", "fit_params"}


@dataclass(frozen=True)
class Listed:
    """A configuration as it was given, and the architecture that it names."""

    where: str
    given: dict[str, Any]
    architecture: Named


def read(db: Database, text: str | None) -> list[Listed] | Relation:
    """The configurations, as far as they can be checked without the packed rows; or a model selection table."""
    if text is None or not text.strip():
        raise InvalidArgument(
            f"{WHERE} must not be NULL or empty.",
            hint="""For instance '[{"learning_rate": 0.01}, {"learning_rate": 0.001}]', a query, or the name of a"""
            " table.",
        )
    if text.lstrip()[0] in "[{":
        found = documents.argument(text, WHERE)
        return _checked(db, found if isinstance(found, list) else [found])
    if QUERY.match(text):
        return _checked(db, _rows(db, _queried(db, text)), "row")
    table = relations.filled(db, text, argument="configurations")
    if set(relations.columns(db, table)) >= OF_SELECTION:
        return table
    return _checked(db, _rows(db, table, ordered=True), "row")


def _queried(db: Database, text: str) -> Relation:
    """The query, whose columns have names."""
    try:
        with db.savepoint():
            relation, columns = relations.of_query(db, text)
    except db.plpy.SPIError as error:
        if not error.sqlstate.startswith(OF_WRONG_QUERIES):
            raise
        raise InvalidArgument(f"{WHERE}: the query is wrong: {error.args[0]}.", hint=QUERY_EXAMPLE) from None
    if UNNAMED in columns:
        place = list(columns).index(UNNAMED) + 1
        raise InvalidArgument(f"{WHERE}: column {place} of the query has no name.", hint=QUERY_EXAMPLE)
    return relation


def _rows(db: Database, relation: Relation, *, ordered: bool = False) -> list[Any]:
    """Each row as an object.  A table has no order: its rows are ordered by their texts."""
    query = sql("SELECT pg_catalog.row_to_json(q)::text AS one FROM {rows} AS q", rows=relation.rows)
    if ordered:
        query = sql('SELECT one FROM ({query}) r ORDER BY one COLLATE "C"', query=query)
    texts = [row["one"] for row in db.scan(sql("{query} LIMIT {most}", query=query, most=MOST + 1))]
    return [documents.decoded(text, WHERE) for text in texts]


def _checked(db: Database, given: list[Any], each: str = "number") -> list[Listed]:
    """``each``: what one of them is, a row of a table or query, or the object of this number."""
    if not given and each == "row":
        raise InvalidArgument(f"{WHERE}: there is no row; each row is a configuration.", hint=QUERY_EXAMPLE)
    if not 1 <= len(given) <= MOST:
        raise InvalidArgument(f"{WHERE}: there are {len(given)} of them; it must be from 1 to {MOST:,}.")
    named: dict[str, Named] = {}
    found = []
    for number, one in enumerate(given, 1):
        where = f"{WHERE}: {each} {number}"
        if not isinstance(one, dict):
            raise InvalidArgument(f"{where} is {documents.shown(one)}; it must be an object.", hint=flat.EXAMPLE)
        found.append(checked(db, one, where, named))
    return found


def checked(db: Database, given: dict[str, Any], where: str, named: dict[str, Named]) -> Listed:
    """A flat configuration with the keys that it may have; ``named``: the architectures that are known already."""
    given = {name: value for name, value in given.items() if value is not None}
    value = given.get(flat.ARCHITECTURE, training_plan.ARCHITECTURE)
    text = json.dumps(value)
    if text not in named:
        named[text] = added.named(db, value, where)
    architecture = named[text]
    flat.parts(given, sources.parameters(architecture.source), where)
    if sources.is_grown(architecture.source):
        _require_no_steps(given, where)
    for name, several in flat.compounds(given, sources.single_valued([architecture.source])):
        raise InvalidArgument(
            f"{where}: {name} cannot be {shown(json.dumps(several))}: a configuration has one value for each of its"
            " parameters.",
            hint='Give a list of configurations, or call cerebro.search, whose space has {"choice": […]} for values to'
            " try.",
        )
    missing = sorted(sources.needed(architecture.source) - set(given))
    if missing:
        raise InvalidArgument(
            f"{where}: the architecture {documents.shown(architecture.label)} has the parameter {missing[0]}, which has"
            " no value here.",
            hint=f'Add "{missing[0]}".',
        )
    return Listed(where, given, architecture)


def _require_no_steps(given: Mapping[str, Any], where: str) -> None:
    """An error for what only the steps of an optimizer have."""
    for name in given:
        if name in flat.OF_STEPS or name in flat.OF_EVERY_ARCHITECTURE:
            raise InvalidArgument(
                f"{where}: trees have no {name}.",
                hint="They have rounds (how many trees), depth and rate (how much each tree counts).",
            )


@dataclass(frozen=True)
class BuiltConfiguration:
    """A configuration with its architecture, its parameters as they were given or filled in, and the canonical ones."""

    architecture: dict[str, Any]
    parts: flat.Parts
    compile: dict[str, Any]
    fit: dict[str, Any]


def built(one: Listed, layout: Layout | None, segments: int, objective: str | None, known: Known) -> BuiltConfiguration:
    """A configuration on these rows.

    ``layout``: None if the caller may not know it.
    """
    source = one.architecture.source
    if layout is not None:
        defaults = training_plan.defaults(layout, layout.rows, segments, objective)
    else:
        defaults = _of_unknown_rows(one)
    if sources.is_grown(source):
        defaults = {name: value for name, value in defaults.items() if name not in flat.OF_OPTIMIZERS}
    given = training_plan.completed(one.given, defaults)
    parts = flat.parts(given, sources.parameters(source), one.where)
    try:
        fitted = source.fitted(layout) if isinstance(source, Kind) and layout is not None else source
        made = sources.made(fitted, parts.arch_params)
        compiled, fit = params.compile_params(parts.compile_text, known), params.fit_params(parts.fit_text)
        return BuiltConfiguration(made, parts, compiled, fit)
    except CerebroError as error:
        if not error.message.startswith(one.where):
            error.message = f"{one.where}: {error.message}"
        raise


def _of_unknown_rows(one: Listed) -> dict[str, Any]:
    if isinstance(one.architecture.source, Kind) or "loss" not in one.given:
        raise InvalidArgument(
            f"{one.where}: the run is another user's, so what its rows need is not known here.",
            hint="Give the loss, and as the architecture JSON of Keras or the name of one that you have added.",
        )
    return {"optimizer": training_plan.OPTIMIZER, "weight_decay": training_plan.WEIGHT_DECAY}


def of_rows(listed: list[Listed], layout: Layout, segments: int, objective: str | None, known: Known) -> Configurations:
    """The configurations of a fit on these rows, numbered from 1."""
    found: list[FitConfiguration] = []
    architectures: dict[int, Architecture] = {}
    ids: dict[tuple[str, str], int] = {}
    for number, one in enumerate(listed, 1):
        made = built(one, layout, segments, objective, known)
        text, weights = json.dumps(made.architecture), one.architecture.weights
        key = text, one.architecture.label if weights is not None else ""
        if key not in ids:
            ids[key] = len(ids) + 1
            try:
                translated = keras_json.architecture(text)
            except CerebroError as error:
                error.message = f"{one.where}: {error.message}"
                raise
            architectures[ids[key]] = Architecture(one.architecture.label, text, translated, weights)
        found.append(
            FitConfiguration(
                key=number,
                model_id=ids[key],
                arch_params=made.parts.arch_params,
                compile_params=made.parts.compile_text,
                fit_params=made.parts.fit_text,
                compile=made.compile,
                fit=made.fit,
            )
        )
    return Configurations("configurations", found, architectures)
