"""Rows become buffers: read in packing order, encoded, and inserted into the packed table, in one pass."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from cerebro_db.core import packing
from cerebro_db.core.errors import BadData, InUse
from cerebro_db.core.layout import Partition
from cerebro_db.core.sql import Sql, identifier, joined, quoted, sql

from .. import platform
from ..database import relations
from ..database.access import Cursor, Database
from ..database.relations import Relation
from ..platform import Pieces, RowsToPack
from . import summary, surprises, unusable
from .preparation import SourceVariable, expression, hashed, shuffled
from .summary import PackJob

BATCH_BYTES = 4 << 20  # of rows fetched at a time
MOST_PASSES = 8
MANY_ROWS = 50_000  # so many rows are prepared by parallel workers, if the server has some


def filled_columns(variables: Sequence[SourceVariable]) -> list[str]:
    """The columns in which no value may be NULL."""
    return list({c.name: None for v in variables if not (v.may_be_null or v.preparation.features) for c in v.columns})


class Restart(Exception):
    """The table is not as it was when packing began.  The text is shown if that happens again and again."""


def count(db: Database, source: Relation, variables: Sequence[SourceVariable], *, may_surprise: bool = True) -> int:
    """The number of rows; an error if one of their values cannot be packed.

    ``may_surprise``: these are not the rows in which the parameters were found.
    """
    columns = filled_columns(variables)
    nulls = [
        sql("count(*) FILTER (WHERE {name} IS NULL) AS n{i}", name=identifier(name), i=i)
        for i, name in enumerate(columns)
    ]
    news = surprises.of(variables) if may_surprise else []
    counted = joined(", ", [sql("count(*) AS rows"), *nulls, *surprises.counts(news)])
    (found,) = db.scan(sql("SELECT {counted} FROM {rows} AS s", counted=counted, rows=source.rows))
    surprises.tell(db, source.text, news, found)
    for index, name in enumerate(columns):
        if found[f"n{index}"]:
            raise BadData(
                f"column '{name}' of table {source.text} is NULL in {found[f'n{index}']} of {found['rows']} rows.",
                hint=f"Leave them out (a view: WHERE {quoted(name)} IS NOT NULL) or fill them (COALESCE).",
            )
    return int(found["rows"])


def write(db: Database, job: PackJob) -> None:
    """Create the packed table and its summary.

    A second pass is rare: a row needs a wider integer type, or others write to the table meanwhile.
    """
    reason = ""
    here = platform.of(db)
    for partition in here.partitions(job.output, len(job.keys)):
        relations.require_free(db, partition)
    for _ in range(MOST_PASSES):
        try:
            with db.savepoint():
                columns = _packed_columns(job)
                here.make_packed_table(db, job.output, columns, job.keys)
                _write_buffers(db, job, [column for column, _ in columns])
                summary.write(db, job)
            return
        except Restart as again:
            reason = str(again)
            job.rows = count(db, job.source, job.variables)
            if job.place_groups is not None:
                job.place_groups()
            elif isinstance(job.geometry, packing.Geometry):
                job.geometry = packing.geometry(
                    job.rows, job.geometry.segments, job.geometry.buffer_size, job.geometry.filled
                )
        except db.plpy.SPIError as error:
            if not db.is_error(error, "22003"):
                raise
            raise BadData(
                f"a value of table {job.source.text} is too large: {error}.",
                hint="Inputs become real (smaller integers: integer), integer outputs smallint.",
            ) from None
    raise InUse(
        f"{reason}.",
        hint="Pack a copy; or call cerebro.pack in a REPEATABLE READ transaction, as cerebro.train does by itself.",
    )


def _packed_columns(job: PackJob) -> list[tuple[str, str]]:
    values = [(variable.name, "bytea") for variable in job.variables]
    shapes = [(variable.name + "_shape", "integer[]") for variable in job.variables]
    return [*values, *shapes, ("buffer_id", "integer")]


def _write_buffers(db: Database, job: PackJob, columns: list[str]) -> None:
    geometry = job.geometry
    encoders = [variable.encoder() for variable in job.variables]
    rows_of, buffers_of, bytes_of = ([0] * len(job.keys) for _ in range(3))
    hashes = [hashlib.sha256() for _ in job.keys]
    folds_of: list[Counter[int]] = [Counter() for _ in job.keys]
    pieces: Counter[int] = Counter()  # of groups
    folds_of_pieces: Counter[tuple[int, int]] = Counter()
    insert, types = _insert(job, columns)
    step = max(1, min(10_000, BATCH_BYTES // sum(variable.wire_bytes_per_row for variable in job.variables)))
    cursor = _open(db, job)
    for number in range(min(geometry.buffers, geometry.rows)):
        rows, segment = geometry.size(number), geometry.segment(number)
        its = _fill(db, job, cursor, encoders, rows, step)
        pieces.update(its)
        payloads = [_take(db, job, variable, encoder) for variable, encoder in zip(job.variables, encoders)]
        shapes = [[rows, *variable.shape] for variable in job.variables]
        db.execute(insert, types, job.keys[segment], *payloads, *shapes, number)
        rows_of[segment] += rows
        buffers_of[segment] += 1
        for payload in payloads:
            bytes_of[segment] += len(payload)
            hashes[segment].update(payload)
        if job.fold is not None:
            folds_of[segment].update(payloads[-1])  # a byte is the fold of a row
            folds_of_pieces.update(zip(its, payloads[-1]))
    if len(cursor.fetch(1)):
        raise Restart(f"rows were added to '{job.source.text}' again and again")
    cursor.close()
    if job.groups is not None and not job.groups.has_rows(pieces):
        raise Restart(f"rows of '{job.source.text}' went to other groups again and again")
    job.partitions = [
        Partition(
            key,
            rows_of[segment],
            buffers_of[segment],
            bytes_of[segment],
            hashes[segment].hexdigest(),
            tuple(folds_of[segment][fold] for fold in range(1, job.folds + 1)),
            job.groups.of_segment(segment) if job.groups else (),
            job.groups.folds_of_segment(segment, folds_of_pieces, job.folds) if job.groups and job.folds else (),
        )  # fmt: skip
        for segment, key in enumerate(job.keys)
    ]


def _open(db: Database, job: PackJob) -> Cursor:
    """The rows, shuffled if there is a seed.

    The order follows from a hash of what tells a row apart, or else of the packed columns, and not from where a row
    lies: it is the same after a dump and restore, and on PostgreSQL and Greenplum.
    """
    names = list({column.name: None for variable in job.variables for column in variable.columns})
    alias = {name: sql("q.c{index}", index=index) for index, name in enumerate(names)}
    values = [
        sql("{value} AS v{i}", value=expression(v, lambda c: alias[c.name]), i=i) for i, v in enumerate(job.variables)
    ]
    stored = [sql("s.{name} AS c{index}", name=identifier(name), index=index) for index, name in enumerate(names)]
    order = sql("$1")
    if job.row_hash is not None:
        order = shuffled(job.row_hash, order)
    else:
        for variable in job.variables:
            order = hashed(variable, lambda c: sql("s.{name}", name=identifier(c.name)), order)
    # Arrays, and windows, which are arrays, are large and take little to prepare.
    costly = job.rows >= MANY_ROWS and not any(variable.is_array for variable in job.variables)
    pieces = None
    if job.groups is not None:
        group = job.groups.group(lambda c: sql("s.{name}", name=identifier(c.name)))
        pieces = Pieces(group, job.groups.piece)
    wanted = RowsToPack(job.source.rows, stored, values, order, job.seed, costly, pieces)
    return platform.of(db).rows_to_pack(db, wanted)


def _fill(
    db: Database, job: PackJob, cursor: Cursor, encoders: list[packing.Encoder], rows: int, step: int
) -> list[int]:
    """Read so many rows into the encoders; returns the piece of each row, if rows have groups."""
    pieces: list[int] = []
    while rows:
        batch = cursor.fetch(min(rows, step))
        if not len(batch):
            raise Restart(f"rows vanished from '{job.source.text}' again and again")
        if job.groups is not None:
            pieces += [row["p"] for row in batch]
        for index, (variable, encoder) in enumerate(zip(job.variables, encoders)):
            key = f"v{index}"
            try:
                encoder.add([row[key] for row in batch])
            except packing.Unusable as wrong:
                raise unusable.error_of(db, job.source, variable, wrong) from None
            except packing.UnknownLabel as label:
                raise Restart(f"new values came into '{variable.name}' again and again ('{label}')") from None
        rows -= len(batch)
    return pieces


def _take(db: Database, job: PackJob, variable: SourceVariable, encoder: packing.Encoder) -> bytes:
    """The bytes of a buffer's column."""
    try:
        return encoder.take()
    except packing.Unusable as wrong:
        raise unusable.error_of(db, job.source, variable, wrong) from None
    except packing.TooWide as wide:
        if not variable.preparation.widens:
            raise BadData(
                f"column '{variable.name}' of table {job.source.text} has values outside of -32768 to 32767.",
                hint="For regression convert the column to real[].",
            ) from None
        variable.dtype = wide.dtype
        raise Restart(f"the values of '{variable.name}' change") from None


def _insert(job: PackJob, columns: list[str]) -> tuple[Sql, tuple[str, ...]]:
    """The statement that inserts a buffer, and the types of its parameters."""
    number = len(job.variables)
    types = ("integer", *["bytea"] * number, *["integer[]"] * number, "integer")
    named = joined(", ", (identifier(column) for column in [platform.KEY, *columns]))
    places = joined(", ", (sql("${place}", place=place + 1) for place in range(len(types))))
    return sql(
        "INSERT INTO {output} ({named}) VALUES ({places})", output=job.output.sql, named=named, places=places
    ), types
