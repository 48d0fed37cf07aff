"""The model tables of a version: made once, and never changed."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cerebro_db.core.errors import CerebroError
from cerebro_db.core.model_columns import INFO_COLUMNS, LATER_COLUMNS, MODEL_COLUMNS, SUMMARY_COLUMNS, WEIGHTS_COLUMNS
from cerebro_db.core.names import Name
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import identifier, joined, sql
from cerebro_db.core.sql_types import SqlType

from .. import platform
from ..database.access import Database
from ..database.polling import LISTEN_EVERY
from ..database.relations import Relation
from .steps import as_registry

# Who may use a model reads these; the weights are in a table of their own, which only readers of the model read.
USED = ("", "_info", "_summary")
WEIGHTS = "_weights"
PIECE = 4 << 20  # bytes of weights in one row
DEPENDED_ON, NOT_AVAILABLE = "2BP01", "55P03"
WAITS = 2.0  # seconds, for those who read a version that is to be removed


@dataclass(frozen=True)
class Labels:
    """The labels of one output that is a class."""

    column: str  # of the summary
    type: str  # of an element: one of the server's own types
    values: Sequence[str | None]


@dataclass(frozen=True)
class Content:
    """What a version has besides its weights.  The rows are JSON objects by column."""

    architecture: str
    info: Mapping[str, Any]
    summary: Mapping[str, Any]
    labels: Sequence[Labels]


def create(db: Database, table: Name, content: Content, pieces: Iterable[bytes]) -> tuple[int, str]:
    """Make the tables; return the size and the SHA-256 of the weights."""
    as_registry(db, lambda registry: _make(registry, table, content))
    digest, size = hashlib.sha256(), 0
    insert = sql("INSERT INTO {table} VALUES ($1, $2, $3, 0)", table=table.suffixed(WEIGHTS).sql)
    for piece in _cut(pieces):
        row = (content.info["configuration"], size, piece)
        as_registry(db, lambda registry, row=row: registry.execute(insert, ("integer", "bigint", "bytea"), *row))  # type: ignore[misc]
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()


def pieces(db: Database, table: Relation) -> Iterator[bytes]:
    """The weights, for the trainer of somebody who may use the model, and who may not read this table."""
    name = table.name.suffixed(WEIGHTS).sql
    starts = sql("SELECT start FROM {name} ORDER BY start", name=name)
    payload = sql("SELECT payload FROM {name} WHERE start = $1", name=name)
    for row in as_registry(db, lambda registry: registry.rows(starts)):
        start = row["start"]
        yield as_registry(db, lambda registry, start=start: registry.value(payload, ("bigint",), start))  # type: ignore[misc]


def lock(registry: Database, table: Name) -> bool:
    """Lock the tables of a version, if they are there and nobody reads them within a moment."""
    found = registry.rows(
        sql("SELECT pg_catalog.to_regclass(t) IS NOT NULL AS there, t FROM pg_catalog.unnest($1::text[]) t"),
        ("text[]",),
        [table.suffixed(ending).quoted for ending in (*USED, WEIGHTS)],
    )
    names = [Name.parse(row["t"]).sql for row in found if row["there"]]
    if not names:
        return True
    statement = sql("LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE NOWAIT", names=joined(", ", names))
    deadline = time.monotonic() + WAITS
    while True:
        try:
            with registry.savepoint():
                registry.execute(statement)
            return True
        except registry.plpy.SPIError as error:
            if error.sqlstate != NOT_AVAILABLE:
                raise
            if time.monotonic() > deadline:
                return False
        time.sleep(LISTEN_EVERY)


def remove(registry: Database, table: Name) -> None:
    """Drop the tables.  One on which objects of users depend is emptied."""
    for ending in (*USED, WEIGHTS):
        name = table.suffixed(ending).sql
        try:
            with registry.savepoint():
                registry.execute(sql("DROP TABLE {name}", name=name))
        except registry.plpy.SPIError as error:
            if error.sqlstate != DEPENDED_ON:
                raise
            registry.execute(sql("TRUNCATE {name}", name=name))


def rows(registry: Database, table: Name) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows of _info and _summary, as these tables have them: with values of the right types."""
    found = registry.one(
        sql(
            "SELECT pg_catalog.to_jsonb(i)::text AS info, pg_catalog.to_jsonb(s)::text AS summary"
            " FROM {info} i, {summary} s",
            info=table.suffixed("_info").sql,
            summary=table.suffixed("_summary").sql,
        )
    )
    assert found is not None
    return json.loads(found["info"]), json.loads(found["summary"])


def _cut(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield from (piece[start : start + PIECE] for start in range(0, len(piece), PIECE))


def _make(registry: Database, table: Name, content: Content) -> None:
    info = {**INFO_COLUMNS, **LATER_COLUMNS}
    labels = {one.column: f"{one.type}[]" for one in content.labels}
    if both := {*labels} & {*SUMMARY_COLUMNS}:
        raise CerebroError(
            f"a target's labels would be in the column {min(both)} of the summary, which has another use."
        )
    for ending, columns, key in (
        ("", MODEL_COLUMNS, "__dist_key__"),
        (WEIGHTS, WEIGHTS_COLUMNS, "__dist_key__"),
        ("_info", info, "configuration"),
        ("_summary", {**SUMMARY_COLUMNS, **labels}, "source_table"),
    ):
        _create(registry, table.suffixed(ending), columns, key)
    registry.execute(
        sql("ALTER TABLE {name} ALTER COLUMN payload SET STORAGE EXTERNAL", name=table.suffixed(WEIGHTS).sql)
    )
    registry.execute(
        sql("INSERT INTO {name} VALUES ($1, NULL, $2::pg_catalog.json, 0)", name=table.sql),
        ("integer", "text"),
        content.info["configuration"],
        content.architecture,
    )
    values = {one.column: one.values for one in content.labels}
    _fill(registry, table.suffixed("_info"), {name: content.info.get(name) for name in info})
    known = {name: content.summary.get(name) for name in SUMMARY_COLUMNS}
    _fill(registry, table.suffixed("_summary"), {**known, "model_table": str(table), **values})


def _create(registry: Database, name: Name, columns: Mapping[str, str], key: str) -> None:
    registry.execute(
        sql(
            "CREATE TABLE {name} ({columns}) {distributed_by}",
            name=name.sql,
            columns=joined(
                ", ",
                (sql("{one} {type}", one=identifier(one), type=SqlType(type).sql) for one, type in columns.items()),
            ),
            distributed_by=platform.of(registry).distributed_by(key),
        )
    )


def _fill(registry: Database, name: Name, values: Mapping[str, Any]) -> None:
    registry.execute(
        sql(
            "INSERT INTO {name} SELECT r.* FROM pg_catalog.json_populate_record(NULL::{name}, $1::pg_catalog.json) r",
            name=name.sql,
        ),
        ("text",),
        json.dumps(values),
    )
