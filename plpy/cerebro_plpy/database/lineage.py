"""Which column of which table a column of a view shows, as far as the definitions of views say it.

PostgreSQL keeps the query of a view as a tree, and notes for each result column of a query the column that it shows
unchanged.  The tree is read as text: braces are nested, and a backslash stands before each brace in a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cerebro_db.core.sql import Sql, sql

from .access import Database
from .relations import Relation

Shown = dict[int, tuple[int, int]]
_BRACES = re.compile(r"\\.|[{}]", re.S)
_ENTRY = re.compile(r"TARGETENTRY .*?:resno (\d+) .*:ressortgroupref \d+ :resorigtbl (\d+) :resorigcol (-?\d+) ", re.S)


def keys_below(db: Database, relation: Relation) -> set[str]:
    """The columns of a view that show a column which is unique on its own in its table."""
    return _with(
        db,
        relation,
        sql("""
        SELECT 1 FROM pg_catalog.pg_index i
         WHERE i.indrelid = o.relation::oid AND i.indkey[0] = o.number AND i.indisunique AND i.indnkeyatts = 1
               AND i.indpred IS NULL
        """),
    )


def references_below(db: Database, relation: Relation) -> set[str]:
    """The columns of a view that show a column which refers to another table on its own."""
    return _with(
        db,
        relation,
        sql("""
        SELECT 1 FROM pg_catalog.pg_constraint c
         WHERE c.conrelid = o.relation::oid AND c.conkey = ARRAY[o.number]::int2[] AND c.contype = 'f'
        """),
    )


def _with(db: Database, relation: Relation, condition: Sql) -> set[str]:
    found = origins(db, relation)
    if not found:
        return set()
    rows = db.rows(
        sql(
            "SELECT o.name FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS o (name, relation, number)"
            " WHERE EXISTS ({condition})",
            condition=condition,
        ),
        ("text[]", "bigint[]", "bigint[]"),
        list(found),
        [table for table, _ in found.values()],
        [number for _, number in found.values()],
    )
    return {row["name"] for row in rows}


def origins(db: Database, relation: Relation) -> dict[str, tuple[int, int]]:
    """For each column of a view that shows a table's column unchanged: the table's oid and the column's number."""
    if not relation.oid or (shown := _shown(db, relation.oid)) is None:
        return {}
    known: dict[int, Shown | None] = {relation.oid: shown}
    found = {}
    for name, number in _names(db, relation.oid).items():
        table, column = relation.oid, number
        while table:
            if table not in known:
                known[table] = _shown(db, table)
            of_view = known[table]
            if of_view is None:
                found[name] = table, column
                break
            table, column = of_view.get(column, (0, 0))
    return found


def _names(db: Database, view: int) -> dict[str, int]:
    rows = db.rows(
        sql(
            "SELECT a.attname::pg_catalog.text AS name, a.attnum::pg_catalog.int8 AS number"
            " FROM pg_catalog.pg_attribute a WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped"
        ),
        ("bigint",),
        view,
    )
    return {row["name"]: row["number"] for row in rows}


def _shown(db: Database, relation: int) -> Shown | None:
    """Of each column of a view the table, or view, and the column that its own query shows; None for a table."""
    tree = db.value(
        sql(
            "SELECT r.ev_action::pg_catalog.text FROM pg_catalog.pg_rewrite r"
            " WHERE r.ev_class = $1::oid AND r.ev_type = '1'"
        ),
        ("bigint",),
        relation,
    )
    return None if tree is None else dict(shown_by(tree))


def shown_by(tree: str) -> Iterator[tuple[int, tuple[int, int]]]:
    """Of the result columns of a query: number, table, and the table's column."""
    depth, start, entry = 0, 0, ""
    for brace in _BRACES.finditer(tree):
        if brace[0] not in "{}":
            continue
        if depth == 2:  # the query itself is at depth 1, its result columns and what else it consists of at depth 2
            entry += tree[start : brace.start()]
        depth += 1 if brace[0] == "{" else -1
        start = brace.end()
        if depth == 1:
            if (found := _ENTRY.match(entry)) and int(found[2]):
                yield int(found[1]), (int(found[2]), int(found[3]))
            entry = ""
