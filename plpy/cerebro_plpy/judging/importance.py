"""``cerebro.importance``: how much a trained model needs each input column.

The rows are those of a query, which the caller's session predicts once for each column, or those of a packed table,
which the trainers of its segments evaluate.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from cerebro_db.core.architecture import keras_json
from cerebro_db.core.errors import BadData, InvalidArgument, Unsupported
from cerebro_db.core.models.metrics import LEAST_PROBABILITY, LOSS, mean
from cerebro_db.core.names import is_name
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.protocol import MOST_REPEATS, Exchange, InputElements
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, literal, quoting, sql

from ..database import relations
from ..database.access import Database
from ..database.relations import Column, Relation
from ..definitions.references import ModelRef, model_ref
from ..models.model_cache import read_model
from ..models.trained import TrainedModel
from ..packing import packed
from ..packing.rows import known_targets
from ..packing.rows.preparation import hash_of_row, shuffled
from ..predicting import related_rows
from ..predicting.keys_and_outputs import PAIR
from .actual_values import Actual, actual_of
from .judged_rows import judged_of, target_of, with_pairs

NUMBER = identifier("__cerebro_number")  # a column that the query gets
ALL_OF_PATH = ".*"  # ends the name of all columns of a related table
SEED = 0  # of the orders in which rows get the values of others


@dataclass(frozen=True)
class ImportanceArguments:
    """The arguments of ``cerebro.importance``."""

    model_table: str | None
    query: str | None
    target: str | None
    configuration: int | None
    repeats: int | None
    related: str | None = None


def importance(db: Database, given: ImportanceArguments) -> list[dict[str, Any]]:
    """A row for each input column, the most important first."""
    query, target, configuration, repeats = given.query, given.target, given.configuration, given.repeats
    times = 1 if repeats is None else repeats
    if not 1 <= times <= MOST_REPEATS:
        raise InvalidArgument(f"repeats cannot be {times}.", hint=f"It must be from 1 to {MOST_REPEATS}.")
    ref = model_ref(db, given.model_table)
    if query is not None and is_name(query) and packed.is_packed(db, relations.existing(db, query, argument="query")):
        before, losses = _of_packed_table(db, ref, query, target, configuration, times)
    else:
        before, losses = _of_query(db, ref, given, times)
    found = [
        {"column_name": name, "importance": loss - before, "loss": loss, "loss_before": before}
        for name, loss in losses.items()
    ]
    return sorted(found, key=lambda one: -one["importance"])


# -- a packed table ----------------------------------------------------------------------------------------


def _of_packed_table(
    db: Database, ref: ModelRef, table: str, target: str | None, configuration: int | None, repeats: int
) -> tuple[float, dict[str, float]]:
    """The loss of the rows as they are, and for each column the loss with its values exchanged."""
    from ..predicting import teams
    from . import evaluating_team  # only now: what they import takes a new session longer than a small query

    model = read_model(db, ref, configuration)
    chosen = None if target is None else target_of(model.layout, target)
    please = f"Name a packed table that fits the model, or give a query: 'SELECT * FROM {table.strip()}'."
    test = packed.read(db, table, argument="query", please=please)
    packed.require_same_shapes(model.layout, model.table.text, test)
    elements = _elements(test.layout)
    for path, names in _of_paths(test.layout, elements).items():
        elements[path] = [one for name in names for one in elements[name]]
    exchanges = [Exchange(each, SEED, repeats) for each in elements.values()]
    with evaluating_team.evaluating(db, test, None, model.memory_mb) as (team, parts):
        counted = teams.again_if_lost(
            team, lambda: teams.evaluate_exchanges(db, team, model, test.dataset, parts, exchanges)
        )
    loss = LOSS
    if chosen is not None and len(model.layout.outputs) > 1:
        place, packed_targets = model.layout.outputs.index(chosen), [one.name for one in test.layout.outputs]
        loss = _name_of_loss(keras_json.outputs(model.definition["architecture"]), packed_targets, place)
        if loss not in counted[0]:
            raise Unsupported(
                f"the model has no loss of the target '{chosen.name}' alone.",
                hint="Without target, the loss is that of all targets.",
            )
    before, *losses = (mean(*means[loss]) for means in counted)
    return before, dict(zip(elements, losses))


def _elements(layout: Layout) -> dict[str, list[InputElements]]:
    """What each source column became."""
    found: dict[str, list[InputElements]] = {}
    for variable in layout.inputs:
        for column, start, width in variable.places:
            found.setdefault(column, []).append(InputElements(variable.name, start, width))
    return found


def _of_paths(layout: Layout, columns: Collection[str]) -> dict[str, list[str]]:
    """Of each path to a related table with several of these columns: the name of all of them, and which they are."""
    found: dict[str, list[str]] = {}
    for name in columns:
        path = None if layout.related is None else layout.related.path_of(name)
        if path is not None:
            found.setdefault(path + ALL_OF_PATH, []).append(name)
    return {path: names for path, names in found.items() if len(names) > 1}


def _name_of_loss(outputs: list[str], targets: list[str], place: int) -> str:
    """The name that Keras gives to the loss of one of several targets."""
    by_name = sorted(outputs) == sorted(targets)  # else a model's outputs are the targets in their order
    return f"{targets[place] if by_name else outputs[place]}_loss"


# -- a query -----------------------------------------------------------------------------------------------


def _of_query(db: Database, ref: ModelRef, given: ImportanceArguments, repeats: int) -> tuple[float, dict[str, float]]:
    """The same.  Each loss is that of a prediction of all rows."""
    query, configuration = relations.require_query(db, given.query), given.configuration
    model = read_model(db, ref, configuration)
    layout = model.layout
    judged = judged_of(db, model, query, given.target)
    source, present, variable = judged.source, judged.present, judged.variable
    copy = _copied(db, model, source, present, given.related)
    if copy is not None:
        source, present = copy, relations.columns(db, copy)
    actual = actual_of(db, source, present[variable.columns[0]], variable)
    exchanged = {name: [name] for one in layout.inputs for name in one.columns}
    exchanged.update(_of_paths(layout, exchanged))
    if variable.columns[0] in exchanged:
        raise Unsupported(
            f"the target '{variable.name}' is an input, too, and the query would exchange both.",
            hint="Name a packed table instead of a query. The view cerebro.run_plan has its name: validation_table.",
        )
    if layout.windows is None:  # of a window, only the last row needs the target
        source = known_targets.told(db, source, [variable.columns[0]])
        _require_known(db, source, variable, actual)

    def loss(rows: Sql) -> float:
        query = with_pairs(rows, actual, sql("NULL"), variable, layout.windows)
        return _loss(db, ref, query, variable, configuration)

    before = loss(source.rows)
    losses = {}
    for name, columns in exchanged.items():
        losses[name] = sum(loss(_exchanged(source, present, columns, SEED + i)) for i in range(repeats)) / repeats
    if copy is not None:
        db.execute(sql("DROP TABLE {copy}", copy=copy.sql))
    return before, losses


def _copied(
    db: Database, model: TrainedModel, source: Relation, present: dict[str, Column], related: str | None
) -> Relation | None:
    """A copy of the rows with the columns of related tables, which are not made anew for each exchange; None: none."""
    rows = related_rows.rows_of(db, model.table, model.layout, source, present, related)
    return None if rows is None else rows.copied(db, source, again=False)


def _require_known(db: Database, source: Relation, variable: Variable, actual: Actual) -> None:
    """Raise an error unless each row has a value of the target that predictions can be compared with."""
    known, has, what = sql("{value} IS NOT NULL", value=actual.value), "is NULL", "value"
    if variable.target == "real":
        known = sql("{known} AND {value} NOT IN ('NaN', 'Infinity', '-Infinity')", known=known, value=actual.value)
        has, what = "is NULL, NaN or infinite", "number"
    (found,) = db.scan(
        sql(
            "SELECT count(*) AS rows, count(*) FILTER (WHERE {known}) AS known FROM {rows} AS q",
            known=known,
            rows=source.rows,
        )
    )
    if found["known"] < found["rows"]:
        raise BadData(
            f"the target '{variable.columns[0]}' {has} in {found['rows'] - found['known']} of {found['rows']} rows.",
            hint=f"Predictions are compared with this {what}. Leave these rows out of the query.",
        )


def _exchanged(source: Relation, present: dict[str, Column], names: list[str], seed: int) -> Sql:
    """The rows with the values of these columns, together, in the random order of this seed.

    Both orders follow from the values of the rows: a query returns the same rows in another order the next time.
    """
    others = joined("", (sql("a.{name}, ", name=identifier(one)) for one in present if one not in names))

    def numbered(order: int) -> Sql:
        hashed = hash_of_row(list(present.values()), lambda one: sql("q.{name}", name=identifier(one.name)))
        place = shuffled(hashed, sql("{n}", n=order))
        return sql("row_number() OVER (ORDER BY {place}) AS {number}", place=place, number=NUMBER)

    return sql(
        "(SELECT {others}{theirs} FROM (SELECT q.*, {own} FROM {rows} AS q) a"
        " JOIN (SELECT {columns}, {exchanged} FROM {rows} AS q) b USING ({number}))",
        others=others,
        theirs=joined(", ", (sql("b.{name}", name=identifier(name)) for name in names)),
        columns=joined(", ", (sql("q.{name}", name=identifier(name)) for name in names)),
        own=numbered(seed),
        exchanged=numbered(seed + 1),
        number=NUMBER,
        rows=source.rows,
    )


def _loss(db: Database, ref: ModelRef, query: Sql, variable: Variable, configuration: int | None) -> float:
    """The mean squared error, or the mean cross-entropy, of a query with pairs."""
    known = sql("(p.key_value::pg_catalog.json OPERATOR(pg_catalog.->>) 1)")
    if variable.target == "real":
        loss = sql("pg_catalog.avg(({known}::pg_catalog.float8 - p.value) ^ 2)", known=known)
    else:
        right = sql(
            "CASE WHEN p.class = {known} THEN GREATEST(p.probability, {least}) END",
            known=known,
            least=LEAST_PROBABILITY,
        )
        # A row has a probability for its class; classes that training did not have are left out of the sum.
        loss = sql(
            "-pg_catalog.sum(pg_catalog.ln({right})) / NULLIF(pg_catalog.count(*) FILTER (WHERE p.rank = 1), 0)",
            right=right,
        )
    found = db.scan(
        sql(
            "SELECT {loss} AS loss FROM cerebro.predict({model}, {query}, {pair},"
            " {key}, 1000000) p WHERE p.target = {name} AND {known} IS NOT NULL",
            loss=loss,
            known=known,
            model=literal(ref.given),
            query=quoting(query),
            pair=literal(PAIR),
            key=sql("NULL") if configuration is None else configuration,
            name=literal(variable.name),
        )
    )
    if found[0]["loss"] is None:
        raise BadData(
            f"the query has no row with a value of the target '{variable.name}' that training had.",
            hint="Check the query: SELECT count(*) FROM (…) q.",
        )
    return float(found[0]["loss"])
