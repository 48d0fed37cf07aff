"""Packed tables and model tables that MADlib has made: one call converts them for training and predicting."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Annotated, Any

from cerebro_db.core import codec
from cerebro_db.core.codec import Identifier, Whole, Within, different
from cerebro_db.core.errors import BadData, InvalidArgument, InvalidName, WrongState
from cerebro_db.core.events import RunStatus
from cerebro_db.core.names import Name
from cerebro_db.core.options import LAST
from cerebro_db.core.packing.buffer_format import ITEM_BYTES
from cerebro_db.core.packing.layout import MOST_DIMENSIONS, Layout, Partition, Variable
from cerebro_db.core.packing.packed_summary import VARNAMES
from cerebro_db.core.packing.preparation import (
    MOST_COLUMNS,
    Divisor,
    Encoded,
    OneHot,
    Preparation,
    divided_by,
)
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import identifier, joined, literal, sql
from cerebro_db.core.sql_types import SqlType
from cerebro_db.core.texts import counted
from cerebro_plpy import platform
from cerebro_plpy.database import relations, types
from cerebro_plpy.database.access import Database
from cerebro_plpy.database.entry import entry
from cerebro_plpy.database.relations import Relation
from cerebro_plpy.packing.pack_plain import segments_of
from cerebro_plpy.packing.rows.summary import label_column, read_layout, written

OLD = "_madlib"  # the ending that the tables of MADlib get
PACKED = ("dependent_varname", "independent_varname", "normalizing_const", "buffer_size")


@entry
def convert_madlib_table(db: Database, table_name: str | None, packed_table: str | None) -> str:
    table = relations.existing(db, table_name, argument="table_name", companions=("_summary", "_info"))
    summary = relations.beside(db, table, "_summary")
    described = relations.columns(db, summary) if summary is not None else {}
    if summary is None or not described or "layout" in described:
        why = "it is a table of cerebro_db already" if "layout" in described else "it has no summary"
        raise WrongState(
            f"'{table.text}' is not a packed table or a model table of MADlib's: {why}.",
            hint="Tables of architectures and model selection tables of MADlib's are used as they are.",
        )
    row = db.one(sql("SELECT * FROM {summary}", summary=summary.sql))
    if row is None:
        raise BadData(f"the summary of '{table.text}' is empty.")
    if "model_weights" in relations.columns(db, table):
        return _convert_models(db, table, summary, row, packed_table)
    relations.require_columns(db, summary, list(PACKED))
    if packed_table is not None:
        raise InvalidArgument(f"packed_table is for model tables, and '{table.text}' is packed.")
    if not isinstance(row["dependent_varname"], list) or not isinstance(row["independent_varname"], list):
        raise WrongState(
            f"Input table '{table.text}' was preprocessed with an older version of the input preprocessor."
            " Please re-run the current version of input preprocessor on the dataset.",
            hint="cerebro.pack_plain() packs the rows again.",
        )
    return _convert_packed(db, table, summary, row)


# -- packed tables -------------------------------------------------------------------------------------


Columns = Annotated[tuple[Identifier, ...], Within(1, MOST_COLUMNS), different]
Shape = Annotated[list[Whole], Within(0, MOST_DIMENSIONS)]


@dataclass(frozen=True)
class Told:
    """What a summary of MADlib's says."""

    independent_varname: Columns
    dependent_varname: Columns
    normalizing_const: Divisor = 1.0
    lenient = True


def _convert_packed(db: Database, table: Relation, summary: Relation, row: dict[str, Any]) -> str:
    told = codec.decode(Told, row, f"the summary of '{table.text}'", BadData)
    inputs = [_input(db, table, name, told.normalizing_const) for name in told.independent_varname]
    outputs = [_output(db, table, summary, name) for name in told.dependent_varname]
    variables = [*inputs, *outputs]
    shapes = sql("sum({shape}[1])::bigint", shape=identifier(inputs[0].name + "_shape"))
    rows = int(db.value(sql("SELECT {shapes} FROM {table}", shapes=shapes, table=table.sql)))
    count = segments_of(db, platform.segments_wanted(db, None), platform.ALL, rows)
    here, keys = platform.of(db), platform.of(db).distribution_keys(db, count)
    old = table.name.suffixed(OLD)
    for name in (old, old.suffixed("_summary"), *here.partitions(table.name, count)):
        relations.require_free(db, name)
    db.execute(sql("ALTER TABLE {table} RENAME TO {name}", table=table.sql, name=identifier(old.table)))
    db.execute(
        sql(
            "ALTER TABLE {summary} RENAME TO {name}",
            summary=summary.sql,
            name=identifier(old.suffixed("_summary").table),
        )
    )
    columns = [(one.name, "bytea") for one in variables]
    columns += [(one.name + "_shape", "integer[]") for one in variables]
    columns.append(("buffer_id", "integer"))
    here.make_packed_table(db, table.name, columns, keys)
    partitions, buffers = _copy(db, old, table.name, variables, [name for name, _ in columns], keys)
    layout = Layout(tuple(inputs), tuple(outputs), rows, tuple(partitions))
    db.execute(
        sql(
            "CREATE TABLE {new} AS SELECT s.*, $1 AS rows, $2 AS segments,"
            " NULL::bigint AS seed, $3::jsonb AS layout FROM {old} s"
            " {distributed_by}",
            new=table.name.suffixed("_summary").sql,
            old=old.suffixed("_summary").sql,
            distributed_by=here.distributed_by("source_table"),
        ),
        ("bigint", "integer", "text"),
        rows,
        count,
        written(layout),
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
    places = joined(", ", (sql("${place}", place=place + 2) for place in range(len(columns))))
    types = ["integer", *["bytea"] * len(variables), *["integer[]"] * len(variables), "integer"]
    insert = sql("INSERT INTO {new} VALUES ($1, {places})", new=new.sql, places=places)
    listed = joined(", ", map(identifier, columns[:-1]))
    cursor, number = db.cursor(sql("SELECT {listed} FROM {old} ORDER BY buffer_id", listed=listed, old=old.sql)), 0
    while found := list(cursor.fetch(1)):
        values, segment = list(found[0].values()), number % len(keys)
        payloads, shapes = values[: len(variables)], values[len(variables) :]
        rows = shapes[0][0] if shapes[0] else 0
        for variable, payload, shape in zip(variables, payloads, shapes):
            needed = rows * variable.elements * ITEM_BYTES[variable.dtype]
            if shape != [rows, *variable.shape] or payload is None or len(payload) != needed:
                raise BadData(
                    f"buffer {number} of '{old}' is damaged: column '{variable.name}' has"
                    f" {0 if payload is None else len(payload)} bytes for the shape {shape}; {needed} were expected.",
                    hint="Pack the rows again with cerebro.pack_plain().",
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


def _input(db: Database, table: Relation, name: str, constant: float) -> Variable:
    return Variable(name, "float32", _shape(db, table, name), (name,), divided_by(constant))


def _output(db: Database, table: Relation, summary: Relation, name: str) -> Variable:
    present = relations.columns(db, summary)
    labels = label_column(db, summary, present, name)
    prepared: Preparation = Encoded()
    if labels is not None:
        element = SqlType(str(present[name + VARNAMES.labels].element))
        known = [label for label in labels if label is not None]
        first = [None] if known and labels[0] is None else []
        prepared = OneHot(types.settled(db, element), (*first, *known))
    return Variable(name, "int16", _shape(db, table, name), (name,), prepared)


def _shape(db: Database, table: Relation, name: str) -> tuple[int, ...]:
    """The shape of one row."""
    relations.require_columns(
        db, table, [name, f"{name}_shape", "buffer_id"], "It should be a packed table of MADlib's."
    )
    column = f"{name}_shape"
    row = db.one(
        sql("SELECT {column} FROM {table} ORDER BY buffer_id LIMIT 1", column=identifier(column), table=table.sql)
    )
    shape: list[int] = codec.read(Shape, row[column] if row else [], f"table '{table.text}': {column}")
    return tuple(shape[1:])


# -- model tables --------------------------------------------------------------------------------------


def _convert_models(
    db: Database, table: Relation, summary: Relation, row: dict[str, Any], packed_table: str | None
) -> str:
    """The summary gets the layout of the rows that the models were trained on; everything else stays."""
    if not (packed_table or "").strip():  # whoever wrote the summary has chosen the table that it names
        raise InvalidName(
            f"packed_table must not be NULL or empty: '{table.text}' has models.",
            hint="Name the packed table that the models were trained on."
            + (f" The summary says {row['source_table']}." if row.get("source_table") else ""),
        )
    relations.existing(db, packed_table, argument="packed_table")
    layout = read_layout(db, packed_table)
    for side, known in (("dependent_varname", layout.outputs), ("independent_varname", layout.inputs)):
        names = row.get(side) or []
        if len(names) != len(known):
            raise BadData(
                f"the models of '{table.text}' have {counted(len(names), 'variable')} as {side}, and"
                f" '{packed_table}' has {len(known)}.",
                hint="packed_table names the table that they were trained on.",
            )
    without_rows = replace(layout, partitions=())
    db.execute(
        sql(
            "ALTER TABLE {summary} ADD COLUMN run bigint, ADD COLUMN seed bigint, ADD COLUMN layout jsonb",
            summary=summary.sql,
        )
    )
    db.execute(sql("UPDATE {summary} SET layout = $1::jsonb", summary=summary.sql), ("text",), written(without_rows))
    info = relations.beside(db, table, "_info")
    if info is not None:
        db.execute(
            sql(
                "ALTER TABLE {info} ADD COLUMN status text DEFAULT {finished},"
                " ADD COLUMN reason text, ADD COLUMN which text DEFAULT {last}, ADD COLUMN epoch integer",
                info=info.sql,
                finished=literal(RunStatus.FINISHED.value),
                last=literal(LAST),
            )
        )
    models = db.value(sql("SELECT count(*) FROM {table}", table=table.sql))
    return (
        f"{counted(models, 'model')} of {table.text} can be evaluated, predicted with and trained on now. Columns were"
        f" added to {summary.text}{f' and {info.text}' if info is not None else ''}; nothing else has changed."
    )
