"""Rows whose target is NULL: they are left out of training and validation, and of what is appended."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro_db.core.errors import BadData
from cerebro_db.core.names import Name
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.texts import counted

from ...database import relations
from ...database.access import Database
from ...database.relations import Relation
from . import variables


def having(source: Relation, targets: Sequence[str]) -> Relation:
    """The rows that have a value in each of these columns."""
    return source.also(_known(targets))


def named(db: Database, source: Relation, targets: Sequence[str]) -> Relation:
    """As ``having``, after ``_require_readable``."""
    _require_readable(db, source, targets)
    return having(source, targets)


def named_and_told(db: Database, source: Relation, targets: Sequence[str]) -> Relation:
    """As ``told``, after ``_require_readable``."""
    _require_readable(db, source, targets)
    return told(db, source, targets)


def _require_readable(db: Database, source: Relation, targets: Sequence[str]) -> None:
    """An error if there are no such columns, or the user may not read them."""
    columns = variables.pick(relations.columns(db, source), list(targets), "target", source)
    relations.require_readable(db, source, columns)


def lacking(targets: Sequence[str]) -> Sql:
    """The condition of the other rows."""
    return sql("NOT ({known})", known=_known(targets))


def told(
    db: Database, source: Relation, targets: Sequence[str], what: str = "row", *, grouped: bool = False
) -> Relation:
    """The rows that have a value in each of these columns, after ``tell``."""
    tell(db, source, targets, what, grouped=grouped)
    return having(source, targets)


def tell(db: Database, source: Relation, targets: Sequence[str], what: str = "row", *, grouped: bool = False) -> None:
    """A notice that counts the other rows; an error if all rows are left out.  ``what``: what the rows are.

    ``grouped``: each group of rows gets a model.  A group without a target gets none, so nothing predicts its rows.
    """
    nulls = [
        sql("count(*) FILTER (WHERE {name} IS NULL) AS n{i}", name=identifier(name), i=i)
        for i, name in enumerate(targets)
    ]
    known = sql("count(*) FILTER (WHERE {known}) AS known", known=_known(targets))
    counts = joined(", ", [sql("count(*) AS rows"), known, *nulls])
    (found,) = db.scan(sql("SELECT {counts} FROM {rows} AS s", counts=counts, rows=source.rows))
    rows, left_out = found["rows"], found["rows"] - found["known"]
    if not left_out:
        return
    empty = [name for i, name in enumerate(targets) if found[f"n{i}"]]
    for i, name in enumerate(targets):
        if found[f"n{i}"] == rows:
            raise BadData(
                f"the target '{name}' is NULL in all {rows} {what}s of {source.text}.", hint="Name another column."
            )
    if left_out == rows:
        raise BadData(
            f"no {what} of {source.text} has a value of all targets: {', '.join(targets)}.",
            hint="Train a model for each target.",
        )
    hint = None
    if what == "row" and source.query is None and not grouped:
        where = " OR ".join(f"{Name(None, name)} IS NULL" for name in empty)
        query = f"SELECT * FROM {source.name} WHERE {where}".replace("'", "''")
        hint = f"The model predicts them: cerebro.predict(…, '{query}')."
    are = "is" if left_out == 1 else "are"
    whose = source.text if source.query is not None else Name.parse(source.text)
    db.notice(f"{counted(left_out, what)} of {whose} {are} left out, because {_nulls(empty)}", hint)


def _nulls(empty: Sequence[str]) -> str:
    return f"the target {empty[0]} is NULL" if len(empty) == 1 else f"one of the targets {', '.join(empty)} is NULL"


def _known(targets: Sequence[str]) -> Sql:
    return joined(" AND ", (sql("{name} IS NOT NULL", name=identifier(name)) for name in targets))
