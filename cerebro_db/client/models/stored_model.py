"""Reads one trained model from a model table and the tables beside it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cerebro_db.core.documents import decoded
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.models import model_columns
from cerebro_db.core.models.model_columns import ModelColumns, Types
from cerebro_db.core.names import Name, split_list
from cerebro_db.core.sql import literal, quoted, shown

from ..database import RunsStatements
from ..errors import ClientError, NoSuchModel

# The columns of a table, with the names of those types that are the server's own.
COLUMNS = (
    "SELECT a.attname::text, CASE WHEN t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace"
    " THEN pg_catalog.format_type(t.oid, -1) END"
    " FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid"
    " WHERE a.attrelid = %s::pg_catalog.regclass AND a.attnum > 0 AND NOT a.attisdropped"
)
# Whoever may make tables in the schema of a model could put one beside it.
OTHERS = (
    "SELECT FROM pg_catalog.pg_class b, pg_catalog.pg_class t WHERE b.oid = pg_catalog.to_regclass(%s)"
    " AND t.oid = pg_catalog.to_regclass(%s) AND b.relowner <> t.relowner"
)
OF_A_GROUP: Types = {name: (type,) for name, type in model_columns.GROUPS_COLUMNS.items()}
TOLD = [name for name in OF_A_GROUP if name != "weights"]
ALIAS = "cerebro_row"  # no column has this name
REGISTRY = "cerebro_registry"  # the schema of registered models
TEXTS = ("text", "character varying", "character")
MOST_ROWS = 10_000  # of chunks in one statement
PIECE = 16 << 20  # bytes of weights in one statement
CURSORS = itertools.count()


@dataclass(frozen=True)
class OfGroup:
    """Which group a model belongs to. ``told``: what its row of ``_groups`` says, without the weights."""

    number: int
    key: str  # a JSON array of the group's values
    columns: tuple[str, ...]  # of group_by
    types: tuple[str, ...]
    told: dict[str, Any]

    def condition(self, types: Sequence[str]) -> str:
        """SQL for the rows of the group, as ``s``, whose columns of group_by have these types there.

        Whatever is not of the recorded type is compared as the text that its type writes: a cast or an operator may be
        anybody's function.
        """
        parts = []
        for there, (column, type, value) in zip(types, self.values()):
            named = f"s.{quoted(column)}"
            if value is None:
                parts.append(f"{named} IS NULL")
            elif type in TEXTS or there != type:
                written = f"pg_catalog.concat({named})"
                written = f"pg_catalog.rtrim({written}, ' ')" if there == "bpchar" else written
                parts.append(f"""{named} IS NOT NULL AND {written} COLLATE "C" = {shown(literal(value))}::text""")
            else:
                parts.append(f"{named} = {shown(literal(value))}::{type}")
        return " AND ".join(parts)

    def constants(self) -> Iterator[tuple[str, str]]:
        """Each column of group_by, with its value as SQL."""
        for column, type, value in self.values():
            type = "text" if type in TEXTS else type
            yield column, f"{'NULL' if value is None else shown(literal(value))}::{type}"

    def values(self) -> Iterator[tuple[str, str, str | None]]:
        """Column, type and value of each column of group_by."""
        return zip(self.columns, self.types, json.loads(self.key))


@dataclass(frozen=True)
class StoredModel:
    """A model as its tables have it. ``pieces`` reads the weights, so its transaction must go on until then."""

    database: RunsStatements
    table: Name
    configuration: int
    named: ModelColumns
    architecture: str  # Keras JSON; the server has checked it, but the table may have been changed since
    size: int  # bytes of all weights
    longest_chunk: int | None  # bytes, if the weights are in a table of their own
    referring: str | None  # the chunks with those of the frozen body that the model refers to, as FROM has them
    layout: dict[str, Any] | None
    calibration: str | None = None  # what cerebro.calibrate has kept, as JSON
    group_by: str | None = None  # the columns whose groups have models of their own beside this one
    group: OfGroup | None = None  # the model is that of a group

    @property
    def is_registered(self) -> bool:
        """Whether it is of a version of a registered model, whose weights are in tables of their own."""
        return self.table.schema == REGISTRY

    @property
    def input_shapes(self) -> list[list[int]] | None:
        return [entry["shape"] for entry in self.layout["inputs"]] if self.layout else None

    def pieces(self) -> Iterator[bytes]:
        """The weights piece by piece, in the order of ``get_weights()``, as little-endian float32."""
        number, key = quoted_in_statement(self.named.configuration), (self.configuration,)
        where = f" WHERE {number} = %s" if self.named.has_key else ""
        values: tuple[int, ...] = key if self.named.has_key else ()
        chunked = self.table.suffixed("_weights")
        if self.group is not None:
            chunked, where, values = (
                self.table.suffixed("_group_weights"),
                f"{where} AND group_number = %s",
                (*key, self.group.number),
            )
        if self.longest_chunk is not None:
            # One statement reads all chunks: there may be no index, and 2 GB can be 260,000 rows of 8 kB.
            chunks = (
                f"SELECT payload FROM {in_statement(chunked)}"
                f" {where or ' WHERE true'} AND payload IS NOT NULL ORDER BY start"
            )
            if self.referring is not None:
                chunks = (
                    f"SELECT COALESCE(w.payload, b.payload) FROM {self.referring}"
                    f" WHERE w.{number} = %s ORDER BY w.start, b.start"
                )
            cursor = f"cerebro_chunks_{next(CURSORS)}"  # who reads may stop before its end
            self.database.rows(f"DECLARE {cursor} NO SCROLL CURSOR FOR {chunks}", values)
            fetch = f"FETCH {min(MOST_ROWS, max(1, PIECE // max(1, self.longest_chunk)))} FROM {cursor}"
            while found := self.database.rows(fetch):
                yield b"".join(bytes(payload) for (payload,) in found)
            return
        table = self.table if self.group is None else self.table.suffixed("_groups")
        piece = f"SELECT substr({quoted_in_statement(self.named.weights)}, %s, %s) FROM {in_statement(table)}"
        for start in range(1, self.size + 1, PIECE):
            yield bytes(self.database.rows(piece + where, (start, PIECE, *values))[0][0])


def read(
    database: RunsStatements, model_table: str, configuration: int | None, group: str | None = None
) -> StoredModel:
    """The model of this configuration. Without a number, the best one by the run's objective.

    ``model_table``: the name of a table, or of a registered model, such as churn@production. ``group``: the value of a
    group, or a JSON array of its values; then the model is that of the group.
    """
    if "@" in model_table and '"' not in model_table:
        model_table = database.rows("SELECT cerebro.registered_table(%s)", (model_table,))[0][0]
    try:
        table = Name.parse(model_table, "model table")
        weights_table, summary_table = table.suffixed("_weights"), table.suffixed("_summary")
    except CerebroError as error:
        raise NoSuchModel(error.message, error.hint) from error
    if database.rows("SELECT to_regclass(%s) IS NULL", (table.quoted,))[0][0]:
        raise NoSuchModel(
            f"There is no table {table}.",
            "Give its schema too, or a run's number. SELECT cerebro.materialize(run, table) makes a run's table again.",
        )
    require_same_owner(database, table, "_summary", "_info")
    present = columns_of(database, table)
    named = model_columns.of(set(present))
    if named is None:
        raise NoSuchModel(f"The table {table} has no models.", "cerebro.models lists the model tables.")
    require_types(table, present, named.types)
    columns = columns_of(database, summary_table)
    require_there(summary_table, columns)
    require_types(summary_table, columns, {**named.types, **model_columns.OF_GROUPS})
    of_group = None if group is None else _of_group(database, table, configuration, group)
    if of_group is not None:
        configuration = of_group.told["configuration"]
    if configuration is None:
        configuration = best(database, table, named) if named.has_key else 1
    number, values = quoted_in_statement(named.configuration), (configuration,) if named.has_key else ()
    weights = quoted_in_statement(named.weights)
    found = database.rows(
        f"SELECT {quoted_in_statement(named.architecture)}::text, octet_length({weights})::bigint"
        f" FROM {in_statement(table)}{f' WHERE {number} = %s' if values else ''}",
        values,
    )
    if not found:
        raise NoSuchModel(
            f"The table {table} has no model of configuration {configuration}.",
            f"SELECT {number}, status, reason FROM {table.suffixed('_info')}; a configuration may have failed.",
        )
    architecture, size = found[0]
    longest, referring = None, None
    if of_group is not None:
        size = of_group.told["stored"]
        if table.schema == REGISTRY:
            longest = database.rows(
                f"SELECT COALESCE(max(octet_length(payload)), 0) FROM {in_statement(table.suffixed('_group_weights'))}"
                f" WHERE {number} = %s AND group_number = %s",
                (configuration, of_group.number),
            )[0][0]
    elif size is None:  # too large for one value
        require_same_owner(database, table, "_weights")
        chunked = columns_of(database, weights_table)
        require_there(weights_table, chunked)
        require_types(weights_table, chunked, named.types)
        if values and "body" in chunked:
            query = f"SELECT max(body) FROM {in_statement(weights_table)} WHERE {number} = %s AND payload IS NULL"
            (body,) = database.rows(query, values)[0]
            referring = None if body is None else _with_body(weights_table, number, body)
        length = "octet_length(COALESCE(w.payload, b.payload))" if referring else "octet_length(w.payload)"
        chunks = (
            f"SELECT COALESCE(sum({length}), 0)::bigint, COALESCE(max({length}), 0) FROM"
            f" {referring or f'{in_statement(weights_table)} w'}"
            f"{f' WHERE w.{number} = %s' if values else ''}"
        )
        size, longest = database.rows(chunks, values)[0]
        if table.schema == REGISTRY and not size:
            raise NoSuchModel(
                f"The version {table} has the model on all rows of another configuration than {configuration}.",
                "Leave the configuration out; the models of groups have configurations of their own.",
            )
    group_by = "group_by" if "group_by" in columns else "NULL"
    described = database.rows(f"SELECT layout, {group_by} FROM {summary_table.quoted}") or [(None, None)]
    layout, groups = described[0]
    kept = of_info(database, table, named, configuration, "calibration") if of_group is None else None
    return StoredModel(
        database=database, table=table, configuration=configuration, named=named, architecture=architecture, size=size,
        longest_chunk=longest, referring=referring, layout=layout, calibration=kept and json.dumps(kept),
        group_by=groups if of_group is None else None, group=of_group,
    )  # fmt: skip


def _with_body(table: Name, number: str, body: str) -> str:
    """The chunks ``w``, of which one refers to a frozen body, with the chunks ``b`` of this."""
    whole, which = in_statement(table), f" AND b.{number} IS NULL AND b.body = w.body"
    of = whole
    if table.schema == REGISTRY:  # the versions of a model have it in common
        of, which = in_statement(Name(REGISTRY, f"{table.table.rpartition('@')[0]}@body_{body[:16]}")), ""
    return f"{whole} w LEFT JOIN {of} b ON w.payload IS NULL{which}"


def _of_group(database: RunsStatements, table: Name, configuration: int | None, group: str) -> OfGroup:
    """The best model of a group, or that of the configuration."""
    summary, groups = table.suffixed("_summary"), table.suffixed("_groups")
    require_same_owner(database, table, "_groups")
    present = columns_of(database, groups)
    if (
        not model_columns.OF_GROUPS.keys() <= columns_of(database, summary).keys()
        or not OF_A_GROUP.keys() <= present.keys()
    ):
        raise NoSuchModel(f"The table {table} has no models of groups.", "Leave the group out.")
    require_types(groups, present, OF_A_GROUP)
    stored = "bytes" if table.schema == REGISTRY else "octet_length(weights)::bigint"
    found = database.rows(
        f"SELECT {', '.join(TOLD)}, {stored} FROM {in_statement(groups)}"
        " WHERE (group_value = %s OR group_key = %s) AND (%s OR configuration = %s)"
        f" ORDER BY group_key <> %s, {stored} IS NULL, rank, configuration LIMIT 1",
        (group, group, configuration is None, configuration, group),
    )
    if not found:
        some = database.rows(f"SELECT DISTINCT group_key FROM {groups.quoted} ORDER BY 1 LIMIT 5")
        which = "" if configuration is None else f" of configuration {configuration}"
        raise NoSuchModel(
            f"The table {groups} has no group {group!r}{which}.",
            f"A group is named by its group_value or group_key, such as {', '.join(one for (one,) in some)}.",
        )
    told = dict(zip((*TOLD, "stored"), found[0]))
    if told["stored"] is None:
        raise NoSuchModel(
            f"The group {group!r} has no model of its own: {told['reason'] or 'it was not trained'}.",
            "The model on all rows predicts its rows: leave the group out.",
        )
    described = database.rows(
        "SELECT group_by, ARRAY(SELECT CASE WHEN pg_catalog.to_regtype(t)::oid < 16384"
        " THEN pg_catalog.format_type(pg_catalog.to_regtype(t), NULL) END FROM pg_catalog.unnest(group_types)"
        f" WITH ORDINALITY AS u (t, place) ORDER BY place) FROM {summary.quoted}"
    )
    try:
        by, types = described[0] if described else (None, [])
        columns, values = tuple(split_list(by, "group_by")), decoded(told["group_key"], "group_key")
        known = isinstance(values, list) and all(one is None or isinstance(one, str) for one in values)
        if not known or not len(columns) == len(types) == len(values):
            raise ClientError(f"group_key in {groups} does not fit group_by and group_types in {summary}.")
    except CerebroError as error:
        raise ClientError(error.message, error.hint) from error
    # A type that is not the server's own counts as a text.
    return OfGroup(told["group_number"], told["group_key"], columns, tuple(one or TEXTS[0] for one in types), told)


def columns_of(database: RunsStatements, table: Name) -> dict[str, str | None]:
    """The columns of a table with their types, None for a type of a user; no columns if there is no such table."""
    if database.rows("SELECT to_regclass(%s) IS NULL", (table.quoted,))[0][0]:
        return {}
    return dict(database.rows(COLUMNS, (table.quoted,)))


def require_same_owner(database: RunsStatements, table: Name, *endings: str) -> None:
    """An error if a table beside this one has another owner, whose code would run when it is read."""
    for beside in map(table.suffixed, endings):
        if database.rows(OTHERS, (beside.quoted, table.quoted)):
            raise NoSuchModel(
                f"The table {beside} belongs to another user than {table}, so it is not read.",
                "All tables of a model have one owner. The owner of a table can say: ALTER TABLE … OWNER TO …;",
            )


def require_there(table: Name, present: Mapping[str, str | None]) -> None:
    """An error if a table of the model is gone: another user could make one of its name before it is read."""
    if not present:
        raise NoSuchModel(f"The table {table} is not there.", "Keep the tables of a model together.")


def require_types(table: Name, present: Mapping[str, str | None], wanted: Types) -> None:
    """An error if a column has another type than it should: its casts and operators may be anybody's functions."""
    for column, types in wanted.items():
        if column in present and present[column] not in types:
            raise not_ours(table, column, types)


def of_info(database: RunsStatements, table: Name, named: ModelColumns, configuration: int, column: str) -> Any:
    """A value of the model's row in ``_info``. None: there is no such table, column or row."""
    info = table.suffixed("_info")
    present = columns_of(database, info)
    if not {column, named.configuration} <= present.keys():
        return None
    require_types(info, present, named.types)
    found = database.rows(
        f"SELECT {column} FROM {in_statement(info)} WHERE {quoted_in_statement(named.configuration)} = %s",
        (configuration,),
    )
    return found[0][0] if found else None


def row_as_json(
    database: RunsStatements, table: Name, names: Iterable[str], labels: Iterable[str] = (), key: int | None = None
) -> str | None:
    """These columns of one row as a JSON object. ``key``: its configuration. ``labels``: columns that may be arrays of
    any type; a user's type becomes a text, because to_jsonb would run the cast of whoever owns it."""
    present = columns_of(database, table)
    parts = []
    for name in names:
        if name in present and present[name] is None:
            raise not_ours(table, name)
        parts += [f"s.{quoted_in_statement(name)}"] if name in present else []
    for name in labels:
        column = f"s.{quoted_in_statement(name)}"
        if name in present and present[name] is None:
            column = f"CASE WHEN {column} IS NOT NULL THEN {as_texts(column)} END AS {quoted_in_statement(name)}"
        parts += [column] if name in present else []
    where, values = ("", ()) if key is None else (" WHERE s.configuration = %s", (key,))
    found = database.rows(
        f"SELECT pg_catalog.to_jsonb({ALIAS})::text FROM"
        f" (SELECT {', '.join(parts)} FROM {in_statement(table)} s{where} LIMIT 1) {ALIAS}",
        values,
    )
    return found[0][0] if found else None


def as_texts(array: str) -> str:
    """SQL for an array of texts: what the elements of an array are written as."""
    return (
        "ARRAY(SELECT CASE WHEN u.label IS NOT NULL THEN pg_catalog.concat(u.label) END"
        f" FROM pg_catalog.unnest({array}) WITH ORDINALITY AS u (label, place) ORDER BY u.place)"
    )


def not_ours(table: Name, column: str, types: Sequence[str] = ()) -> NoSuchModel:
    which = f"another type than {' or '.join(types)}" if types else "a type that a user has made"
    return NoSuchModel(f"The column {column} of {table} has {which}.", "cerebro_db has not made this table.")


def best(database: RunsStatements, table: Name, named: ModelColumns) -> int:
    """The best configuration by the objective of the run, as cerebro.predict chooses it."""
    info = table.suffixed("_info")
    present = columns_of(database, info)
    require_there(info, present)
    require_types(info, present, named.types)
    directions = database.rows(f"SELECT direction FROM {table.suffixed('_summary').quoted} LIMIT 1")
    order = "DESC" if directions == [("max",)] else "ASC"
    first, *others = map(quoted, named.figures)
    number = quoted(named.configuration)
    found = database.rows(
        f"SELECT i.{number} FROM {info.quoted} i JOIN {table.quoted} m USING ({number})"
        f" ORDER BY i.{first} {order} NULLS LAST,"
        f" {', '.join(f'i.{one} NULLS LAST' for one in others)}, i.{number} LIMIT 1"
    )
    if not found:
        raise NoSuchModel(
            f"The table {table} has no model.",
            f"SELECT {number}, status, reason FROM {info}; says why.",
        )
    return found[0][0]


def in_statement(table: Name) -> str:
    """The name in a statement with parameters, in which psycopg2 wants % doubled."""
    return table.quoted.replace("%", "%%")


def quoted_in_statement(column: str) -> str:
    return quoted(column).replace("%", "%%")
