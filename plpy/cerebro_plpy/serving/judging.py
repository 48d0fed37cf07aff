"""Judges a trained model: what its functions have in common, and the importance of the input columns.

They predict the rows of the user's query with keys that hold the actual value of the target, so that no join is needed.
"""

from __future__ import annotations

from typing import Any

from cerebro_db.core.errors import BadData, InvalidArgument, UndefinedColumn, Unsupported
from cerebro_db.core.layout import Layout, Variable
from cerebro_db.core.names import literal, quote, split_list

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Column, Relation
from .trained import class_values, read_model

PAIR, NUMBER = "__cerebro_pair", "__cerebro_number"  # columns that the query gets
TEXT = "pg_catalog.text"
LEAST = 1e-7  # of a probability, as Keras clips it
MOST_REPEATS = 1000
MOST_BINS = 1_000_000


@entry
def judging(
    db: Database, module: str, model_text: str | None, query: str | None, target: str | None, key: str | None,
    wanted: str | None, bins: int | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """One row: the query with the key and the actual value of each row, and the class that is judged.

    ``wanted``: number; class, meaning all classes; or one, with the class after a blank (none: the second of two).
    """
    if bins is None or not 1 <= bins <= MOST_BINS:
        raise InvalidArgument(f"{module}: bins must be at least 1, not {bins}.", hint="10 is usual.")
    source, present, variable = _judged(db, module, model_text, query, target)
    kind, _, given = (wanted or "").partition(" ")
    if (variable.target == "real") != (kind == "number"):
        raise InvalidArgument(
            f"{module}: the target '{variable.name}' is {'a number' if variable.target == 'real' else 'a class'}.",
            hint="cerebro.residuals() judges numbers; the other functions judge classes.",
        )
    return [
        {
            "query": _with_pairs(source, variable, _key(key, present, module)),
            "key": PAIR,
            "target": variable.name,
            "class": _class(variable, given, module) if kind == "one" else None,
            "null_is_class": variable.target != "real" and None in class_values(variable),
        }
    ]


def _judged(
    db: Database, module: str, model_text: str | None, query: str | None, target: str | None
) -> tuple[Relation, dict[str, Column], Variable]:
    """The rows of the query, their columns, and the target."""
    if query is None or not query.strip():
        raise InvalidArgument(f"{module}: query must not be empty.", hint="For instance 'SELECT * FROM new_rows'.")
    layout = read_model(db, model_text or "", None, module, best=True).layout
    if layout.windows is not None and layout.windows.target == "majority":
        raise Unsupported(
            f"{module}: the model predicts what most rows of a window have, and a query gives the last row's value.",
            hint='Models with "target": "last" can be judged.',
        )
    source, present = relations.of_query(db, query)
    variable = _target(layout, target, module)
    if variable.columns[0] not in present:
        raise UndefinedColumn(
            f"{module}: the query does not have the target '{variable.columns[0]}'.",
            hint=f"Predictions are compared with it. {relations.has_columns(present)}",
        )
    if variable.target == "encoded" or (variable.target == "real" and variable.elements > 1):
        raise Unsupported(f"{module}: the target '{variable.name}' is an array.", hint="Arrays cannot be judged.")
    return source, present, variable


def _target(layout: Layout, target: str | None, module: str) -> Variable:
    names = [variable.name for variable in layout.outputs]
    wanted = split_list(target, f"{module}: target") if target is not None else names
    if len(wanted) != 1 or wanted[0] not in names:
        raise InvalidArgument(
            f"{module}: target must be one of the targets of the model.", hint=f"They are: {', '.join(names)}."
        )
    return layout.outputs[names.index(wanted[0])]


def _key(key: str | None, present: dict[str, Column], module: str) -> str:
    """The key of a row, as SQL: a column, or else the number of the row."""
    if key is None:
        return f"(row_number() OVER ())::{TEXT}"
    (name, *more) = split_list(key, f"{module}: key")
    if more or name not in present:
        raise UndefinedColumn(
            f"{module}: key must be one column of the query, not {key}.", hint=relations.has_columns(present)
        )
    return f"{quote(name)}::{TEXT}"


def _with_pairs(source: Relation, variable: Variable, key: str) -> str:
    actual = f"{quote(variable.columns[0])}::{TEXT}"
    return f"SELECT *, pg_catalog.json_build_array({key}, {actual})::{TEXT} AS {PAIR} FROM {source.rows} AS q"


def _class(variable: Variable, given: str, module: str) -> str | None:
    known = class_values(variable)
    if given:
        if given not in known:
            raise InvalidArgument(
                f"{module}: '{variable.name}' has no class '{given}'.",
                hint=f"Classes: {', '.join(map(str, known[:20]))}.",
            )
        return given
    if len(known) != 2:
        raise InvalidArgument(
            f"{module}: class must be given: '{variable.name}' has {len(known)} classes.",
            hint=f"Classes: {', '.join(map(str, known[:20]))}.",
        )
    return known[1]


# -- importance --------------------------------------------------------------------------------------------


@entry
def importance(
    db: Database,
    model_text: str | None,
    query: str | None,
    target: str | None,
    mst_key: int | None,
    repeats: int | None,
) -> list[dict[str, Any]]:
    module = "cerebro.importance"
    times = 1 if repeats is None else repeats
    if not 1 <= times <= MOST_REPEATS:
        raise InvalidArgument(f"{module}: repeats cannot be {times}.", hint=f"It must be from 1 to {MOST_REPEATS}.")
    source, present, variable = _judged(db, module, model_text, query, target)
    layout = read_model(db, model_text or "", mst_key, module, best=True).layout
    if layout.windows is None:  # of a window, only the last row needs the target
        _require_known(db, source, variable, module)
    before = _loss(db, model_text, source.rows, variable, mst_key, module)
    found = []
    for name in dict.fromkeys(name for one in layout.inputs for name in one.columns):
        rows = _exchanged(source, present, name)
        losses = [_loss(db, model_text, rows, variable, mst_key, module) for _ in range(times)]
        loss = sum(losses) / times
        found.append({"column_name": name, "importance": loss - before, "loss": loss, "loss_before": before})
    return sorted(found, key=lambda one: -one["importance"])


def _require_known(db: Database, source: Relation, variable: Variable, module: str) -> None:
    """Raise an error unless each row has a value of the target that predictions can be compared with."""
    column = quote(variable.columns[0])
    known, has, what = f"{column} IS NOT NULL", "is NULL", "value"
    if variable.target == "real":
        known += f" AND {column}::pg_catalog.float8 NOT IN ('NaN', 'Infinity', '-Infinity')"
        has, what = "is NULL, NaN or infinite", "number"
    (found,) = db.scan(f"SELECT count(*) AS rows, count(*) FILTER (WHERE {known}) AS known FROM {source.rows} AS q")
    if found["known"] < found["rows"]:
        raise BadData(
            f"{module}: the target '{variable.columns[0]}' {has} in {found['rows'] - found['known']} of"
            f" {found['rows']} rows.",
            hint=f"Predictions are compared with this {what}. Leave these rows out of the query.",
        )


def _exchanged(source: Relation, present: dict[str, Column], name: str) -> str:
    """The rows with the values of one column in random order."""
    others = ", ".join(f"a.{quote(one)}" for one in present if one != name)
    return (
        f"(SELECT {others + ', ' if others else ''}b.{quote(name)}"
        f" FROM (SELECT q.*, row_number() OVER () AS {NUMBER} FROM {source.rows} AS q) a"
        f" JOIN (SELECT q.{quote(name)}, row_number() OVER (ORDER BY pg_catalog.random()) AS {NUMBER}"
        f" FROM {source.rows} AS q) b USING ({NUMBER}))"
    )


def _loss(
    db: Database, model_text: str | None, rows: str, variable: Variable, mst_key: int | None, module: str
) -> float:
    """The mean squared error, or the mean cross-entropy."""
    actual = f"{quote(variable.columns[0])}::{TEXT}"
    query = f"SELECT *, {actual} AS {PAIR} FROM {rows} AS r"
    if variable.target == "real":
        loss = "pg_catalog.avg((p.key_value::pg_catalog.float8 - p.value) ^ 2)"
    else:
        right = f"CASE WHEN p.class = p.key_value THEN GREATEST(p.probability, {LEAST}) END"
        # A row has a probability for its class; classes that training did not have are left out of the sum.
        loss = f"-pg_catalog.sum(pg_catalog.ln({right})) / NULLIF(pg_catalog.count(*) FILTER (WHERE p.rank = 1), 0)"
    found = db.scan(
        f"SELECT {loss} AS loss FROM cerebro.predict({literal(model_text or '')}, {literal(query)}, '{PAIR}',"
        f" {'NULL' if mst_key is None else int(mst_key)}, 1000000) p WHERE p.target = {literal(variable.name)}"
    )
    if found[0]["loss"] is None:
        raise BadData(
            f"{module}: the query has no row with a value of the target '{variable.name}' that training had.",
            hint="Check the query: SELECT count(*) FROM (…) q.",
        )
    return float(found[0]["loss"])
