"""Packed tables and model tables that MADlib has made: one call converts them for training and predicting."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from cerebro_db.core.errors import BadData, InvalidArgument, WrongState
from cerebro_db.core.events import RunStatus
from cerebro_db.core.layout import Layout, Partition, Variable
from cerebro_db.core.names import Name, quote
from cerebro_db.core.options import LAST
from cerebro_db.core.packing import ITEM_BYTES
from cerebro_db.core.preparation import Encoded, OneHot, Preparation, divided_by
from cerebro_db.core.texts import counted

from .. import platform
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Relation
from .packing import segments_of
from .summary import read_layout

MODULE = "convert_madlib_table"
OLD = "_madlib"  # the ending that the tables of MADlib get
PACKED = ("dependent_varname", "independent_varname", "normalizing_const", "buffer_size")


@entry
def convert_madlib_table(db: Database, table_name: str | None, packed_table: str | None) -> str:
    table = relations.existing(db, table_name, MODULE, argument="table_name", companions=("_summary", "_info"))
    summary = relations.find(db, table.name.suffixed("_summary"))
    described = relations.columns(db, summary) if summary is not None else {}
    if summary is None or not described or "layout" in described:
        why = "it is a table of cerebro_db already" if "layout" in described else "it has no summary"
        raise WrongState(
            f"{MODULE} error: '{table.text}' is not a packed table or a model table of MADlib's: {why}.",
            hint="Tables of architectures and model selection tables of MADlib's are used as they are.",
        )
    row = db.one(f"SELECT * FROM {summary.sql}")
    if row is None:
        raise BadData(f"{MODULE} error: the summary of '{table.text}' is empty.")
    if "model_weights" in relations.columns(db, table):
        return _convert_models(db, table, summary, row, packed_table)
    relations.require_columns(db, summary, list(PACKED), MODULE)
    if packed_table is not None:
        raise InvalidArgument(f"{MODULE} error: packed_table is for model tables, and '{table.text}' is packed.")
    if not isinstance(row["dependent_varname"], list) or not isinstance(row["independent_varname"], list):
        raise WrongState(
            f"{MODULE}: Input table '{table.text}' was preprocessed with an older version of the input preprocessor."
            " Please re-run the current version of input preprocessor on the dataset.",
            hint="training_preprocessor_dl() packs the rows again.",
        )
    return _convert_packed(db, table, summary, row)


# -- packed tables -------------------------------------------------------------------------------------


def _convert_packed(db: Database, table: Relation, summary: Relation, row: dict[str, Any]) -> str:
    inputs = [_input(db, table, name, row["normalizing_const"]) for name in row["independent_varname"]]
    outputs = [_output(db, table, summary, name) for name in row["dependent_varname"]]
    variables = [*inputs, *outputs]
    shapes = f"sum({quote(inputs[0].name + '_shape')}[1])::bigint"
    rows = int(db.value(f"SELECT {shapes} FROM {table.sql}"))
    count = segments_of(db, platform.segments_wanted(db, None, MODULE), platform.ALL, rows)
    here, keys = platform.of(db), platform.of(db).distribution_keys(db, count)
    old = table.name.suffixed(OLD)
    for name in (old, old.suffixed("_summary"), *here.partitions(table.name, count)):
        relations.require_free(db, name, MODULE)
    db.execute(f"ALTER TABLE {table.sql} RENAME TO {quote(old.table)}")
    db.execute(f"ALTER TABLE {summary.sql} RENAME TO {quote(old.suffixed('_summary').table)}")
    columns = [(one.name, "bytea") for one in variables]
    columns += [(one.name + "_shape", "integer[]") for one in variables]
    columns.append(("buffer_id", "integer"))
    here.make_packed_table(db, table.name, columns, keys)
    partitions, buffers = _copy(db, old, table.name, variables, [name for name, _ in columns], keys)
    layout = Layout(tuple(inputs), tuple(outputs), rows, tuple(partitions))
    db.execute(
        f"CREATE TABLE {table.name.suffixed('_summary').sql} AS SELECT s.*, $1 AS row_count, $2 AS segment_count,"
        f" NULL::bigint AS seed, $3::jsonb AS layout FROM {old.suffixed('_summary').sql} s"
        f" {here.distributed_by('source_table')}",
        ("bigint", "integer", "text"),
        rows,
        count,
        json.dumps(layout.to_json()),
    )
    return (
        f"{table.text} is packed for {counted(count, 'segment')} now: {counted(rows, 'row')} in"
        f" {counted(buffers, 'buffer')}, as they were. MADlib's table is {old.table}."
    )


def _copy(
    db: Database, old: Name, new: Name, variables: list[Variable], columns: list[str], keys: list[int]
) -> tuple[list[Partition], int]:
    """Copy the buffers to the segments in turn; the partitions that they make, and the number of buffers."""
    counts = [[0, 0, 0] for _ in keys]  # rows, buffers, bytes
    hashes = [hashlib.sha256() for _ in keys]
    places = ", ".join(f"${place + 2}" for place in range(len(columns)))
    types = ["integer", *["bytea"] * len(variables), *["integer[]"] * len(variables), "integer"]
    insert = f"INSERT INTO {new.sql} VALUES ($1, {places})"
    listed = ", ".join(map(quote, columns[:-1]))
    cursor, number = db.cursor(f"SELECT {listed} FROM {old.sql} ORDER BY buffer_id"), 0
    while found := list(cursor.fetch(1)):
        values, segment = list(found[0].values()), number % len(keys)
        payloads, shapes = values[: len(variables)], values[len(variables) :]
        rows = shapes[0][0] if shapes[0] else 0
        for variable, payload, shape in zip(variables, payloads, shapes):
            needed = rows * variable.elements * ITEM_BYTES[variable.dtype]
            if shape != [rows, *variable.shape] or payload is None or len(payload) != needed:
                raise BadData(
                    f"{MODULE} error: buffer {number} of '{old}' is damaged: column '{variable.name}' has"
                    f" {0 if payload is None else len(payload)} bytes for the shape {shape}; {needed} were expected.",
                    hint="Pack the rows again with training_preprocessor_dl().",
                )
            hashes[segment].update(payload)
            counts[segment][2] += len(payload)
        db.execute(insert, types, keys[segment], *payloads, *shapes, number)
        counts[segment][0] += rows
        counts[segment][1] += 1
        number += 1
    cursor.close()
    return [
        Partition(key, rows, buffers, size, digest.hexdigest())
        for key, (rows, buffers, size), digest in zip(keys, counts, hashes)
    ], number


def _input(db: Database, table: Relation, name: str, constant: float | None) -> Variable:
    prepared = divided_by(1.0 if constant is None else constant)
    return Variable(name, "float32", _shape(db, table, name), (name,), prepared)


def _output(db: Database, table: Relation, summary: Relation, name: str) -> Variable:
    column = relations.columns(db, summary).get(f"{name}_class_values")
    labels = None if column is None else db.value(f"SELECT {quote(column.name)}::text[] FROM {summary.sql}")
    prepared: Preparation = Encoded()
    if column is not None and labels is not None:
        known = [label for label in labels if label is not None]
        first = [None] if known and labels[0] is None else []
        prepared = OneHot(str(column.element), (*first, *known))
    return Variable(name, "int16", _shape(db, table, name), (name,), prepared)


def _shape(db: Database, table: Relation, name: str) -> tuple[int, ...]:
    """The shape of one row."""
    relations.require_columns(
        db, table, [name, f"{name}_shape", "buffer_id"], MODULE, "It should be a packed table of MADlib's."
    )
    shape = db.value(f"SELECT {quote(name + '_shape')} FROM {table.sql} ORDER BY buffer_id LIMIT 1")
    return tuple(shape[1:] if shape else ())


# -- model tables --------------------------------------------------------------------------------------


def _convert_models(
    db: Database, table: Relation, summary: Relation, row: dict[str, Any], packed_table: str | None
) -> str:
    """The summary gets the layout of the rows that the models were trained on; everything else stays."""
    given = packed_table or row.get("source_table")
    relations.existing(
        db, given, MODULE, "Name the packed table that the models were trained on.", argument="packed_table"
    )
    layout = read_layout(db, given, MODULE)
    for side, known in (("dependent_varname", layout.outputs), ("independent_varname", layout.inputs)):
        names = row.get(side) or []
        if len(names) != len(known):
            raise BadData(
                f"{MODULE} error: the models of '{table.text}' have {counted(len(names), 'variable')} as {side}, and"
                f" '{given}' has {len(known)}.",
                hint="packed_table names the table that they were trained on.",
            )
    without_rows = replace(layout, partitions=())
    columns = "ADD COLUMN run bigint, ADD COLUMN seed bigint, ADD COLUMN layout jsonb"
    db.execute(f"ALTER TABLE {summary.sql} {columns}")
    db.execute(f"UPDATE {summary.sql} SET layout = $1::jsonb", ("text",), json.dumps(without_rows.to_json()))
    info = relations.find(db, table.name.suffixed("_info"))
    if info is not None:
        db.execute(
            f"ALTER TABLE {info.sql} ADD COLUMN status text DEFAULT '{RunStatus.FINISHED.value}',"
            f" ADD COLUMN reason text, ADD COLUMN which text DEFAULT '{LAST}', ADD COLUMN epoch integer"
        )
    models = db.value(f"SELECT count(*) FROM {table.sql}")
    return (
        f"{counted(models, 'model')} of {table.text} can be evaluated, predicted with and trained on now. Columns were"
        f" added to {summary.text}{f' and {info.text}' if info is not None else ''}; nothing else has changed."
    )
