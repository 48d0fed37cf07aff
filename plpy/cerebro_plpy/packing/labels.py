"""The class labels of a column: found when a training table is packed, known when others are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.packing import buffer_format
from cerebro_db.core.packing.columns import IN_A_ZONE, need_a_zone
from cerebro_db.core.packing.layout import Variable
from cerebro_db.core.packing.preparation import OneHot
from cerebro_db.core.sql import identifier, sql

from ..database.access import Database
from ..database.relations import Relation
from .rows.argument_names import NATURAL, ArgumentWords
from .rows.preparation import SourceVariable, label_text


def find(
    db: Database,
    source: Relation,
    variable: SourceVariable,
    one_hot: OneHot,
    declared: int | None,
    words: ArgumentWords = NATURAL,
) -> None:
    """Set the labels of a variable to those of its column, sorted, and the class of every spelling of a label.

    ``declared``: the number of classes that the user wants room for.
    """
    column, kind = identifier(variable.columns[0].name), one_hot.type
    try:
        rows = db.scan(
            sql(
                """
            SELECT label, pg_catalog.dense_rank() OVER (ORDER BY sample NULLS FIRST) - 1 AS class
            FROM (SELECT DISTINCT {label} AS label, {column} AS sample
                  FROM {rows} AS s) AS labels
            ORDER BY class, label LIMIT {most}
            """,
                label=label_text(column, kind),
                column=column,
                rows=source.rows,
                most=buffer_format.MOST_CLASSES + 1,
            )
        )
    except db.plpy.SPIError as error:
        if not db.is_error(error, "42883"):
            raise
        raise InvalidArgument(
            f"invalid {words.target} ('{variable.name}'): labels of type {one_hot.type} cannot be sorted.",
            hint="A view can convert them to text.",
        ) from None
    variable.spellings = {row["label"]: row["class"] for row in rows}
    firsts = {row["class"]: row["label"] for row in reversed(rows)}  # the first spelling stands for the class
    labels = tuple(firsts[number] for number in sorted(firsts))
    if len(labels) > buffer_format.MOST_CLASSES:
        raise BadData(
            f"column '{variable.name}' has more than {buffer_format.MOST_CLASSES} different values.",
            hint="For regression convert it to real; a key is no label.",
        )
    if declared is not None and declared < len(labels):
        raise InvalidArgument(
            f"Invalid {words.classes} value specified. It must be equal to or greater than "
            f"distinct class values found in table ({len(labels)}).",
            hint=f"{words.classes} has one element per column to predict; NULL counts the values found.",
        )
    if declared is not None and declared > buffer_format.MOST_CLASSES:
        raise InvalidArgument(
            f"{words.classes} says {declared}; a variable has at most {buffer_format.MOST_CLASSES} classes.",
            hint=f"{words.classes} has one element per column to predict; NULL counts the values found.",
        )
    variable.preparation, variable.shape = replace(one_hot, labels=labels), (declared or len(labels),)


def match(db: Database, source: Relation, variable: SourceVariable, one_hot: OneHot, training: str) -> None:
    """Set the class of every spelling of a label, by the labels of the training table."""
    if need_a_zone(variable.columns[0].type, one_hot.type.name):
        raise InvalidArgument(
            f"column '{variable.name}' of type {variable.columns[0].shown} cannot be read as {one_hot.type.name}, the"
            " type of the training labels: it depends on the time zone.",
            hint=IN_A_ZONE,
        )
    column, kind = identifier(variable.columns[0].name), one_hot.type
    try:
        rows = db.scan(
            sql(
                """
            SELECT label, pg_catalog.array_position($1::text[]::{array}, sample) - 1 AS class
            FROM (SELECT DISTINCT {label} AS label, {column}::{kind} AS sample
                  FROM {rows} AS s) AS labels
            ORDER BY sample, label LIMIT {most}
            """,
                array=kind.array.sql,
                kind=kind.sql,
                label=label_text(column, kind),
                column=column,
                rows=source.rows,
                most=buffer_format.MOST_CLASSES + 1,
            ),
            list(one_hot.labels),
        )
    except db.plpy.SPIError as error:
        if error.sqlstate[:2] not in ("22", "42"):
            raise
        raise InvalidArgument(
            f"column '{variable.name}' of type {variable.columns[0].shown} cannot be read as"
            f" {kind.name}, the type of the training labels: {error}.",
            hint="Cast it in a view of the source table.",
        ) from None
    variable.spellings = {row["label"]: row["class"] for row in rows if row["class"] is not None}
    unknown = [row["label"] for row in rows if row["class"] is None]
    if unknown:
        number = variable.columns[0].category == "N"
        raise BadData(
            f"the class values in {source.text} ({_shown([*variable.spellings, *unknown], number)}) "
            f"should be a subset of class values in {training} ({_shown(one_hot.labels, number)})",
            detail=f"Only in {source.text}: {_shown(unknown, number)}",
            hint="Pack a training table that has all classes, or leave these rows out.",
        )


def match_all(
    db: Database,
    source: Relation,
    variables: Sequence[SourceVariable],
    trained: Sequence[Variable | SourceVariable],
    training: str,
) -> None:
    """``match`` for each variable with classes, which gets the shape of the trained one."""
    for variable, like in zip(variables, trained):
        if isinstance(variable.preparation, OneHot):
            match(db, source, variable, variable.preparation, training)
            variable.shape = like.of_step


def _shown(labels: Sequence[str | None], number: bool) -> str:
    """Labels, as a Python list; a long list is cut."""
    shown = [label if number and label is not None else repr(label) for label in labels[:50]]
    return "[" + ", ".join(shown) + (", …" if len(labels) > 50 else "") + "]"
