"""``_packed_rows`` of SQL: the packed rows of a verb, packed now unless the user has a packed table of these rows.

The summary of a table that is packed here has a fingerprint: a hash of the rows, and of all else that decides what
packing makes of them.  Its caller runs it in a REPEATABLE READ transaction, so the rows of the fingerprint are those
that are packed.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from cerebro_db import __version__
from cerebro_db.core import codec, documents
from cerebro_db.core.arguments import PackArguments
from cerebro_db.core.errors import DuplicateTable
from cerebro_db.core.names import Name, StoredName
from cerebro_db.core.packing.related import Related
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.sql_types import BYTES, WITH_ZONE

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Column, Relation
from . import checked_arguments, pack, pack_plain
from .pack import VALIDATION, WantedPacking
from .rows import feature_sql
from .rows.preparation import NUMBERS
from .rows.summary import read_layout

OF_FIXED_SIZE = ("boolean", "smallint", "integer", "bigint", "real", "double precision")
MANY = 8  # columns of numbers of one type
DOCUMENTS = ("prepare", "sequence")  # arguments that are JSON
# Arguments that the fingerprint has in another form, or that do not change the packed rows.
OTHERWISE = ("source_table", "output_table", "target", "inputs", "validation_table", "segments", "distribution_rules")


@entry(called="cerebro.pack")
def packed_rows(db: Database, also_in: str | None, **arguments: Any) -> str:
    """The name of the packed table.  ``also_in``: a further schema to look in.  None: only the output table counts."""
    given = PackArguments(**arguments)
    wanted = pack.checked(db, given)
    output = relations.qualified(db, Name.parse(given.output_table, "output_table"))
    fingerprint = fingerprint_of(db, wanted)
    kept = _kept(db, output, fingerprint, wanted.is_validated, also_in)
    if kept is not None and _related(read_layout(db, kept.quoted).related) != _related(wanted.related):
        kept = None  # somebody has written another table into its layout
    if also_in is None and kept is None and relations.find(db, output) is not None:
        raise DuplicateTable(
            f"the packed table '{output}' exists, and was packed from other rows or with other arguments.",
            hint="Choose another name.",
        )
    if kept is not None:
        pack.drop_copies(db, wanted.source)
    return (kept or pack.write(db, wanted, fingerprint)).quoted


def _related(plan: Related | None) -> list[tuple[str, StoredName]]:
    return [] if plan is None else [(step.path, step.table) for step in plan.steps]


# -- the fingerprint -----------------------------------------------------------------------------------------


def fingerprint_of(db: Database, wanted: WantedPacking) -> str:
    """Equal for two calls only if they pack the same rows in the same way, but for a seed that is drawn."""
    source, used = wanted.source, _used(db, wanted)
    document: dict[str, Any] = {
        "version": __version__,
        "arguments": arguments_of(wanted.given),
        "segments": wanted.segments or {"at most": pack_plain.most_segments(db, wanted.rule)},
        "rule": wanted.rule.contents,
        "target": [column.name for column in wanted.asked.targets],
        "inputs": [column.name for column in wanted.asked.inputs],
        "named": wanted.asked.named,
        "keys": sorted(wanted.asked.keys),
        "references": sorted(wanted.asked.references),
        "keys below": sorted(wanted.asked.keys_below),
        "source": _of_rows(db, source, used),
    }
    if wanted.given.validation_table is not None:
        others = relations.existing(db, wanted.given.validation_table, argument="validation_table")
        others = wanted.completed(db)(others)
        present = relations.columns(db, others)
        names = {column.name for column in used}
        document["validation"] = _of_rows(db, others, [one for one in present.values() if one.name in names])
        pack.drop_copies(db, others)
    if wanted.related is not None:
        document["related"] = codec.encode(wanted.related)
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()


def arguments_of(arguments: PackArguments) -> dict[str, Any]:
    """An argument that is added to the record later changes nothing where it is not given."""
    given = asdict(arguments)
    return {
        name: documents.argument(given[name], name) if name in DOCUMENTS else given[name]
        for name in sorted(given)
        if name not in OTHERWISE and given[name] is not None
    }


def _used(db: Database, wanted: WantedPacking) -> list[Column]:
    """The columns whose values decide what is packed, and on which side of a split a row is."""
    present = relations.columns(db, wanted.source)
    found = [*wanted.asked.targets, *wanted.asked.inputs]
    if wanted.weight is not None:
        found.append(wanted.weight)
    if wanted.windows is not None:
        found += [present[name] for name in wanted.windows.read]
    found += wanted.group_by
    if wanted.folds is not None:
        found += wanted.folds.by or checked_arguments.key_of(db, wanted.source)
    if wanted.split is not None:
        at = [wanted.split.at] if wanted.split.at is not None else []
        found += at or wanted.split.by or checked_arguments.key_of(db, wanted.source)
    return list({column.name: column for column in found}.values())


def _of_rows(db: Database, relation: Relation, columns: list[Column]) -> dict[str, Any]:
    """The name of a table, these columns, and a hash of their values that does not depend on the order of the rows."""
    (row,) = db.scan(
        sql(
            "SELECT count(*) AS rows, sum(pg_catalog.hashtextextended({row}::text, 0))::text AS hashes"
            " FROM {rows} AS s",
            row=sql("ROW({values})", values=joined(", ", _exact(columns))),
            rows=relation.rows,
        )
    )
    listed = [[column.name, column.type, column.shown] for column in columns]
    return {"table": relation.name.quoted, "columns": listed, **row}


def _exact(columns: Iterable[Column]) -> list[Sql]:
    """Values whose texts tell a row of these columns from all others.

    To write many numbers as text takes several times as long as to hash the bytes of an array of them.
    """
    arrays, others = [], []
    numbers: dict[str, list[Sql]] = defaultdict(list)
    for column in columns:
        name = sql("s.{name}", name=identifier(column.name))
        if column.element in NUMBERS:
            arrays.append(column.array(name))
        elif column.type == BYTES:
            others.append(sql("pg_catalog.sha256({name})", name=name))
        elif column.type in OF_FIXED_SIZE:
            numbers[column.type].append(sql("{name}::{type}", name=name, type=column.cast))
        elif column.type == WITH_ZONE:  # its text depends on the session's time zone
            others.append(sql("pg_catalog.date_part('epoch', {name})", name=name))
        else:
            text = feature_sql.may_hold_moments(column)
            others.append(sql("cerebro_internal._text_in_utc({name})", name=name) if text else name)
    for names in numbers.values():
        if len(names) < MANY:
            others += names
        else:
            arrays.append(sql("ARRAY[{names}]", names=joined(", ", names)))
    return others + [sql("pg_catalog.sha256(cerebro_internal._array_bytes({array}))", array=array) for array in arrays]


# -- tables that there are -----------------------------------------------------------------------------------


def _kept(db: Database, output: Name, fingerprint: str, validated: bool, also_in: str | None) -> Name | None:
    """A packed table of these rows in the schema of the output or in the other one; the oldest there, or none."""
    for schema in dict.fromkeys((output.schema, also_in or output.schema)):
        own = _own(db, schema)
        for table in own:
            parts = [Name(schema, table)]
            if also_in is None and table != output.table:
                continue
            if validated:
                parts.append(parts[0].suffixed(VALIDATION))
            if all(part.table in own and _has(db, part, fingerprint) for part in parts):
                return parts[0]
    return None


def _own(db: Database, schema: str | None) -> list[str]:
    """The packed tables with a fingerprint, the oldest first, that belong to the current user, as their summaries do.

    A superuser has the rights of every owner, and others may have those of a group; their tables are not the user's.
    """
    rows = db.rows(
        sql("""
        SELECT t.relname::pg_catalog.text AS name
          FROM pg_catalog.pg_class t
          JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
          JOIN pg_catalog.pg_roles r ON r.oid = t.relowner
          JOIN pg_catalog.pg_class s ON s.relnamespace = t.relnamespace AND s.relowner = t.relowner
           AND s.relname::pg_catalog.text = t.relname::pg_catalog.text || '_summary'
          JOIN pg_catalog.pg_attribute a ON a.attrelid = s.oid AND a.attname = 'fingerprint' AND NOT a.attisdropped
         WHERE n.nspname = $1 AND r.rolname = current_user AND s.relkind = 'r' AND t.relkind IN ('r', 'p')
         ORDER BY t.oid
        """),
        ("text",),
        schema,
    )
    return [row["name"] for row in rows]


def _has(db: Database, table: Name, fingerprint: str) -> bool:
    """Whether a packed table has this fingerprint, and all buffers that its summary says."""
    summary = table.suffixed("_summary").sql
    if not db.rows(
        sql("SELECT 1 AS one FROM {summary} WHERE fingerprint::text = $1", summary=summary), ("text",), fingerprint
    ):
        return False
    layout = read_layout(db, table.quoted)
    (found,) = db.scan(sql("SELECT count(*) AS buffers FROM {table}", table=table.sql))
    return bool(found["buffers"] == sum(partition.buffers for partition in layout.partitions))
