"""What the functions that judge a trained model have in common.

They predict the rows of the user's query with keys that hold the actual value of the target, so that no join is needed.
"""

from __future__ import annotations

from typing import Any

from cerebro_db.core.errors import InvalidArgument, UndefinedColumn, Unsupported
from cerebro_db.core.names import split_list
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.packing.windows import Windows
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, literal, shown, sql
from cerebro_db.core.texts import or_null

from ..database import relations
from ..database.access import Database
from ..database.entry import INTERNAL, entry
from ..database.relations import Column, Relation
from ..definitions.references import model_ref
from ..models import calibrations
from ..models.model_cache import read_model
from ..models.trained import TrainedModel, class_labels
from ..predicting import related_rows
from ..predicting.keys_and_outputs import PAIR
from .actual_values import TEXT, Actual, actual_of

MOST_BINS = 1_000_000


@dataclass(frozen=True)
class JudgingArguments:
    """The arguments of ``cerebro_internal._judging``."""

    function: str  # that the user called
    model_table: str | None
    query: str | None
    target: str | None
    key: str | None
    # number; class, meaning all classes; one, with the class after a blank (no blank: the second of two); or any, which
    # takes numbers and classes, and of two classes the second
    wanted: str | None
    configuration: int | None = None
    bins: int | None = 1
    coverage: float | None = None  # as in cerebro.predict
    calibrated: bool | None = None
    thresholds: bool | None = False
    related: str | None = None


@entry(called=INTERNAL)
def judging(db: Database, **arguments: Any) -> list[dict[str, Any]]:
    """One row: the query with the key and the actual value of each row, and the class that is judged."""
    given = JudgingArguments(**arguments)
    db.called = given.function
    return [to_predict(db, given)]


def to_predict(db: Database, given: JudgingArguments) -> dict[str, Any]:
    if given.bins is None or not 1 <= given.bins <= MOST_BINS:
        raise InvalidArgument(f"bins must be at least 1, not {or_null(given.bins)}.", hint="10 is usual.")
    query = relations.require_query(db, given.query)
    model = read_model(db, model_ref(db, given.model_table), given.configuration)
    judged = judged_of(db, model, query, given.target)
    source, variable = judged.source, judged.variable
    wanted = calibrations.Wanted.of(given.coverage, given.calibrated, given.thresholds)
    # For their errors alone: those of cerebro.predict, which applies them, would name cerebro.predict.
    calibrations.applied(db, model, wanted)
    related_rows.needed(db, model.table, model.layout, judged.present, given.related)
    kind, blank, wanted_class = (given.wanted or "").partition(" ")  # a class may be an empty text
    is_number = variable.target == "real"
    if kind != "any" and is_number != (kind == "number"):
        raise InvalidArgument(
            f"the target '{variable.name}' is {'a number' if is_number else 'a class'}.",
            hint="cerebro.mistakes() returns the rows of which the model predicts a wrong class."
            if kind == "number"
            else "cerebro.evaluate() and cerebro.residuals() judge numbers.",
        )
    windows = model.layout.windows
    several = windows is not None and (windows.target == "majority" or windows.every > 1)
    if given.function == "cerebro.mistakes" and several:
        raise Unsupported(
            "the class of a window by majority, or of a step, is that of several rows, so there is no row to return.",
            hint="cerebro.confusion_matrix() and cerebro.class_metrics() judge such models.",
        )
    classes = None if is_number else class_labels(variable)
    judged_class = _class(variable, wanted_class if blank else None) if kind == "one" else None
    if kind == "any" and classes is not None and len(classes) == 2:
        judged_class = classes[1]
    pair_key = _key(given.key, judged.present)
    actual = actual_of(db, source, judged.present[variable.columns[0]], variable)
    return {
        "rows_query": shown(with_pairs(source.rows, actual, pair_key, variable, windows)),
        "row_key": PAIR,
        "of_target": variable.name,
        "class": judged_class,
        "null_is_class": classes is not None and None in classes,
        "classes": None if classes is None else len(classes),
    }


@dataclass(frozen=True)
class JudgedRows:
    """The rows of a query, and what is judged on them."""

    source: Relation
    present: dict[str, Column]
    variable: Variable  # the target


def judged_of(db: Database, model: TrainedModel, query: str, target: str | None) -> JudgedRows:
    """An error if the query does not have the target, or it cannot be judged."""
    source, present = relations.of_query(db, query)
    variable = judged_target(model.layout, target)
    if variable.columns[0] not in present:
        raise UndefinedColumn(
            f"the query does not have the target '{variable.columns[0]}'.",
            hint=f"Predictions are compared with it. {relations.has_columns(present)}",
        )
    return JudgedRows(source=source, present=present, variable=variable)


def judged_target(layout: Layout, target: str | None) -> Variable:
    """The target of this name, or the only one; an error if it cannot be judged."""
    variable = target_of(layout, target)
    if variable.target == "encoded" or (variable.target == "real" and variable.of_step != (1,)):
        raise Unsupported(f"the target '{variable.name}' is an array.", hint="Arrays cannot be judged.")
    return variable


def target_of(layout: Layout, target: str | None) -> Variable:
    names = [variable.name for variable in layout.outputs]
    wanted = split_list(target, "target") if target is not None else names
    if len(wanted) != 1 or wanted[0] not in names:
        raise InvalidArgument("target must be one of the targets of the model.", hint=f"They are: {', '.join(names)}.")
    return layout.outputs[names.index(wanted[0])]


def _key(key: str | None, present: dict[str, Column]) -> Sql:
    """The key of a row, as SQL: a column, or else the number of the row."""
    if key is None:
        return sql("(row_number() OVER ())::{text}", text=TEXT)
    (name, *more) = split_list(key, "key")
    if more or name not in present:
        raise UndefinedColumn(f"key must be one column of the query, not {key}.", hint=relations.has_columns(present))
    return sql("q.{name}::{text}", name=identifier(name), text=TEXT)


def with_pairs(rows: Sql, actual: Actual, key: Sql, variable: Variable, windows: Windows | None) -> Sql:
    """The rows, with their keys and actual values in another column.

    Of windows by majority, and of steps of several rows, the key is the place of the class: of classes that are equally
    frequent there, the first one is the target, and the texts of these pairs have the order of the classes.
    """
    number = variable.target == "real"
    if windows is None or windows.target == "last" or windows.every == 1 or number:
        pair = sql("pg_catalog.json_build_array({key}, {value})::{text}", key=key, value=actual.text, text=TEXT)
    else:
        labels = joined(", ", (literal(one) for one in class_labels(variable) if one is not None))
        pair = sql(
            "CASE WHEN {value} IS NOT NULL THEN pg_catalog.json_build_array(pg_catalog.to_char(COALESCE("
            "pg_catalog.array_position(ARRAY[{labels}]::{text}[], {value}), 99999), 'FM00000'), {value})::{text} END",
            value=actual.text,
            labels=labels,
            text=TEXT,
        )
    return actual.rows(rows, sql("{pair} AS {name}", pair=pair, name=identifier(PAIR)))


def _class(variable: Variable, given: str | None) -> str | None:
    known = class_labels(variable)
    if given is not None:
        if given not in known:
            raise InvalidArgument(
                f"'{variable.name}' has no class '{given}'.",
                hint=f"Classes: {', '.join(map(str, known[:20]))}.",
            )
        return given
    if len(known) != 2:
        raise InvalidArgument(
            f"class must be given: '{variable.name}' has {len(known)} classes.",
            hint=f"Classes: {', '.join(map(str, known[:20]))}.",
        )
    return known[1]
