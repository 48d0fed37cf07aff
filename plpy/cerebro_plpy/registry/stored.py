"""The model tables of a version: made once, and never changed."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from cerebro_db.core.errors import CerebroError, CorruptState
from cerebro_db.core.models.model_columns import (
    GROUPS_COLUMNS,
    INFO_COLUMNS,
    LATER_COLUMNS,
    MODEL_COLUMNS,
    SUMMARY_COLUMNS,
    SUMMARY_OF_GROUPS,
    SUMMARY_OF_ONE_GROUP,
    WEIGHTS_COLUMNS,
)
from cerebro_db.core.names import Name
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import identifier, joined, sql
from cerebro_db.core.sql_types import SqlType

from .. import platform
from ..database.access import Database
from ..database.polling import LISTEN_EVERY
from .steps import as_registry

# Who may use a model reads these; the weights are in tables of their own, which only readers of the model read.
GROUPS = "_groups"
USED = ("", "_info", "_summary", GROUPS)
WEIGHTS, GROUP_WEIGHTS = "_weights", "_group_weights"
READ = (WEIGHTS, GROUP_WEIGHTS)
GROUP_WEIGHTS_COLUMNS = {"group_number": "integer", "configuration": "integer", "start": "bigint", "payload": "bytea"}
BODY_COLUMNS = {"start": "bigint", "payload": "bytea", "__dist_key__": "integer"}
PIECE = 4 << 20  # bytes of weights in one statement
MOST_ROWS = 1000  # in one statement
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

    architectures: Mapping[int, str]  # by configuration
    infos: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]
    labels: Sequence[Labels]
    groups: Sequence[str] | None = None  # the rows of _groups, each as JSON; None: there are no models of groups


@dataclass(frozen=True)
class Piece:
    """Some of the weights of a model."""

    group_number: int | None  # None: of the model on all rows
    configuration: int
    start: int
    payload: bytes


def create(
    db: Database, table: Name, content: Content, batches: Iterable[Sequence[Piece]], *, refers: bool = False
) -> tuple[int, str]:
    """Make the tables; return the size and the SHA-256 of all weights.

    ``batches``: one statement stores each.  All of a batch are of models on all rows, or all are of models of groups.
    ``refers``: some weights are in a body, which ``refer`` stores.
    """
    as_registry(db, lambda registry: _make(registry, table, content, refers=refers))
    digest, size = hashlib.sha256(), 0
    for batch in batches:
        as_registry(db, lambda registry, batch=batch: _add(registry, table, batch))  # type: ignore[misc]
        for piece in batch:
            digest.update(piece.payload)
            size += len(piece.payload)
    return size, digest.hexdigest()


def cut(group_number: int | None, configuration: int, payloads: Iterable[bytes]) -> Iterator[list[Piece]]:
    """The weights of one model, in batches for ``create``."""
    start = 0
    for payload in payloads:
        for first in range(0, len(payload), PIECE):
            piece = payload[first : first + PIECE]
            yield [Piece(group_number, configuration, start, piece)]
            start += len(piece)


def cut_rows(configuration: int, rows: Iterable[tuple[int, bytes]]) -> Iterator[list[Piece]]:
    """Some of the weights of one model with their starts, in batches for ``create``."""
    for start, payload in rows:
        yield [Piece(None, configuration, start, payload)]


def refer(
    db: Database, table: Name, configuration: int, start: int, sha256: str, pieces: Callable[[], Iterator[bytes]]
) -> None:
    """Have a version refer to a frozen body, which the versions of its model have in common."""
    size, found = measured(pieces())  # whoever registers may have changed the table
    if found != sha256:
        raise CorruptState(
            f"the frozen body of configuration {configuration} is not the one that the table names",
            hint="Its rows were changed by hand. cerebro.materialize() makes the tables of a run anew.",
        )
    body = _body_table(table, sha256)

    def make(registry: Database) -> bool:
        if registry.value(sql("SELECT pg_catalog.to_regclass($1) IS NOT NULL"), ("text",), body.quoted):
            return False
        _create(registry, body, BODY_COLUMNS, "__dist_key__")
        _store_uncompressed(registry, body)
        return True

    if as_registry(db, make):
        at, insert = 0, sql("INSERT INTO {body} VALUES ($1, $2, 0)", body=body.sql)

        def add(piece: bytes) -> None:
            as_registry(db, lambda registry: registry.execute(insert, ("bigint", "bytea"), at, piece))

        for piece in pieces():
            add(piece)
            at += len(piece)
    row = sql("INSERT INTO {name} VALUES ($1, $2, NULL, 0, $3)", name=table.suffixed(WEIGHTS).sql)
    types = ("integer", "bigint", "text")
    as_registry(db, lambda registry: registry.execute(row, types, configuration, start, sha256))


def measured(pieces: Iterable[bytes]) -> tuple[int, str]:
    """Their bytes, and the SHA-256 of these."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()


def _body_table(table: Name, sha256: str) -> Name:
    """The body with this checksum, of the versions of the model whose version has these tables."""
    return Name(table.schema, f"{table.table.rpartition('@')[0]}@body_{sha256[:16]}")


def bodies(registry: Database, table: Name) -> list[Name]:
    """The tables of the bodies that a version refers to."""
    if WEIGHTS not in endings(registry, table):
        return []
    rows = registry.rows(
        sql(
            "SELECT DISTINCT pg_catalog.to_jsonb(w) ->> 'body' AS body FROM {name} w WHERE payload IS NULL",
            name=table.suffixed(WEIGHTS).sql,
        )
    )
    return [_body_table(table, row["body"]) for row in rows]


def pieces(
    db: Database, table: Name, configuration: int, group_number: int | None = None, *, sealed: bool
) -> Iterator[bytes]:
    """The weights of the model on all rows, or of that of a group.

    ``sealed``: they go to a sealed worker of somebody who may use the model, and who may not read these tables.
    """
    ending, which, given = WEIGHTS, sql("configuration = $2"), [configuration]
    if group_number is not None:
        ending, which = GROUP_WEIGHTS, sql("configuration = $2 AND group_number = $3")
        given.append(group_number)
    statement = sql(
        "SELECT start, payload FROM {name} WHERE start >= $1 AND {which} ORDER BY start LIMIT 1",
        name=table.suffixed(ending).sql,
        which=which,
    )
    types, start = ("bigint", *("integer" for _ in given)), 0

    def piece(reader: Database) -> dict[str, Any] | None:
        return reader.one(statement, types, start, *given)

    def read(step: Callable[[Database], Any]) -> Any:
        return as_registry(db, step) if sealed else step(db)

    while (row := read(piece)) is not None:
        if row["payload"] is not None:
            yield row["payload"]
            start = row["start"] + len(row["payload"])
            continue
        refers = sql(
            "SELECT body FROM {name} WHERE start = $1 AND {which}", name=table.suffixed(ending).sql, which=which
        )
        of = (refers, types, row["start"], *given)
        body = _body_table(table, read(lambda reader, of=of: reader.value(*of)))  # type: ignore[misc]
        start = row["start"]
        for part in _body_pieces(body, read):
            yield part
            start += len(part)


def _body_pieces(body: Name, read: Callable[[Callable[[Database], Any]], Any]) -> Iterator[bytes]:
    statement, at = sql("SELECT payload FROM {body} WHERE start = $1", body=body.sql), 0
    while (part := read(lambda reader, at=at: reader.value(statement, ("bigint",), at))) is not None:  # type: ignore[misc]
        yield part
        at += len(part)


def endings(registry: Database, table: Name) -> list[str]:
    """Which tables a version has."""
    found = registry.rows(
        sql(
            "SELECT e FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[])) AS u (t, e)"
            " WHERE pg_catalog.to_regclass(t) IS NOT NULL"
        ),
        ("text[]", "text[]"),
        [table.suffixed(ending).quoted for ending in (*USED, *READ)],
        [*USED, *READ],
    )
    return [row["e"] for row in found]


def lock(registry: Database, table: Name) -> bool:
    """Lock the tables of a version, if they are there and nobody reads them within a moment."""
    names = [table.suffixed(ending).sql for ending in endings(registry, table)]
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
    for ending in endings(registry, table):
        drop(registry, table.suffixed(ending))


def drop(registry: Database, table: Name) -> None:
    """Drop a table, or empty one on which objects of users depend."""
    try:
        with registry.savepoint():
            registry.execute(sql("DROP TABLE {name}", name=table.sql))
    except registry.plpy.SPIError as error:
        if error.sqlstate != DEPENDED_ON:
            raise
        registry.execute(sql("TRUNCATE {name}", name=table.sql))


def rows(registry: Database, table: Name, configuration: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows of _info and _summary, as these tables have them: with values of the right types."""
    found = registry.one(
        sql(
            "SELECT pg_catalog.to_jsonb(i)::text AS info, pg_catalog.to_jsonb(s)::text AS summary"
            " FROM {info} i, {summary} s WHERE i.configuration = $1",
            info=table.suffixed("_info").sql,
            summary=table.suffixed("_summary").sql,
        ),
        ("integer",),
        configuration,
    )
    assert found is not None
    return json.loads(found["info"]), json.loads(found["summary"])


def _make(registry: Database, table: Name, content: Content, *, refers: bool) -> None:
    info = {**INFO_COLUMNS, **LATER_COLUMNS}
    labels = {one.column: f"{one.type}[]" for one in content.labels}
    of_groups = SUMMARY_OF_GROUPS if content.groups is not None else SUMMARY_OF_ONE_GROUP
    summary = {**SUMMARY_COLUMNS, **of_groups}
    if both := {*labels} & {*summary}:
        raise CerebroError(
            f"a target's labels would be in the column {min(both)} of the summary, which has another use."
        )
    for ending, columns, key in (
        ("", MODEL_COLUMNS, "__dist_key__"),
        (WEIGHTS, {**WEIGHTS_COLUMNS, **({"body": "text"} if refers else {})}, "__dist_key__"),
        ("_info", info, "configuration"),
        ("_summary", {**summary, **labels}, "source_table"),
    ):
        _create(registry, table.suffixed(ending), columns, key)
    _store_uncompressed(registry, table.suffixed(WEIGHTS))
    if content.groups is not None:
        _create(registry, table.suffixed(GROUPS), GROUPS_COLUMNS, "group_number")
        _create(registry, table.suffixed(GROUP_WEIGHTS), GROUP_WEIGHTS_COLUMNS, "group_number")
        _store_uncompressed(registry, table.suffixed(GROUP_WEIGHTS))
        _add_key(registry, table.suffixed(GROUPS), "group_number")
        _add_key(registry, table.suffixed(GROUP_WEIGHTS), "group_number", "configuration", "start")
        for first in range(0, len(content.groups), MOST_ROWS):
            _fill(registry, table.suffixed(GROUPS), content.groups[first : first + MOST_ROWS])
    for configuration, architecture in content.architectures.items():
        registry.execute(
            sql("INSERT INTO {name} VALUES ($1, NULL, $2::pg_catalog.json, 0)", name=table.sql),
            ("integer", "text"),
            configuration,
            architecture,
        )
    rows = [json.dumps({name: one.get(name) for name in info}) for one in content.infos]
    _fill(registry, table.suffixed("_info"), rows)
    values = {one.column: one.values for one in content.labels}
    known = {name: content.summary.get(name) for name in summary}
    _fill(registry, table.suffixed("_summary"), [json.dumps({**known, "model_table": str(table), **values})])


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


def _store_uncompressed(registry: Database, name: Name) -> None:
    registry.execute(sql("ALTER TABLE {name} ALTER COLUMN payload SET STORAGE EXTERNAL", name=name.sql))


def _add_key(registry: Database, name: Name, *columns: str) -> None:
    listed = joined(", ", map(identifier, columns))
    registry.execute(sql("ALTER TABLE {name} ADD PRIMARY KEY ({columns})", name=name.sql, columns=listed))


def _fill(registry: Database, name: Name, rows: Sequence[str]) -> None:
    """Insert rows that are JSON objects by column."""
    registry.execute(
        sql(
            "INSERT INTO {name} SELECT r.*"
            " FROM pg_catalog.json_populate_recordset(NULL::{name}, $1::pg_catalog.json) r",
            name=name.sql,
        ),
        ("text",),
        f"[{', '.join(rows)}]",
    )


def _add(registry: Database, table: Name, batch: Sequence[Piece]) -> None:
    """Insert weights: all of models on all rows, or all of models of groups."""
    of_groups = batch[0].group_number is not None
    registry.execute(
        sql(
            "INSERT INTO {name} (configuration, start, payload, {number}) SELECT * FROM ROWS FROM"
            " (pg_catalog.unnest($1::integer[]), pg_catalog.unnest($2::bigint[]), pg_catalog.unnest($3::bytea[]),"
            " pg_catalog.unnest($4::integer[])) u",
            name=table.suffixed(GROUP_WEIGHTS if of_groups else WEIGHTS).sql,
            number=identifier("group_number" if of_groups else "__dist_key__"),
        ),
        ("integer[]", "bigint[]", "bytea[]", "integer[]"),
        [piece.configuration for piece in batch],
        [piece.start for piece in batch],
        [piece.payload for piece in batch],
        [piece.group_number or 0 for piece in batch],
    )
