"""Rows become buffers: read in packing order, encoded, and inserted into the packed table, in one pass."""

from __future__ import annotations

import hashlib
import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from cerebro_db.core.errors import BadData, InUse
from cerebro_db.core.packing import buffer_format
from cerebro_db.core.packing.layout import LARGEST_ID, Layout, Partition
from cerebro_db.core.records import dataclass, field
from cerebro_db.core.sql import Sql, identifier, joined, quoted, sql

from ... import platform
from ...database import relations
from ...database.access import Database
from ...database.relations import Relation
from ...platform import Pieces, RowsToPack
from . import counting, summary, unseen_values, unusable
from .preparation import PART, SourceVariable, hashed, packed_value, shuffled
from .summary import PackJob

CHUNK_BYTES, MOST_ROWS = 4 << 20, 65_536  # gathered at a time
MOST_PASSES = 8
MANY_ROWS = 50_000  # so many rows are prepared by parallel workers, if the server has some
ROWS_TO_TELL, TOLD_EVERY = 1_000_000, 5.0  # of a packing that takes long; seconds
LARGEST_STORED = 1500  # bytes of a row that is stored as it is; values of larger ones would lie apart
ONE_DIMENSION, ARRAY_HEADER = 20, 24  # bytes of the header of an array of one dimension: in bytea, and as it is stored
NO_ARRAY_OF_THEM = ("2202E", "22004")  # SQLSTATEs of array_agg


def filled_columns(variables: Sequence[SourceVariable]) -> list[str]:
    """The columns in which no value may be NULL."""
    return list({c.name: None for v in variables if not (v.may_be_null or v.preparation.features) for c in v.columns})


class Restart(Exception):
    """The table is not as it was when packing began.  The text is shown if that happens again and again."""


class Uneven(Exception):
    """No array can be made of these arrays: they have other sizes, NULLs, or only other lower bounds."""

    def __init__(self, error: Exception, arrays: Sequence[SourceVariable]) -> None:
        super().__init__(str(error))
        self.arrays = arrays


def count(
    db: Database,
    source: Relation,
    variables: Sequence[SourceVariable],
    *,
    may_surprise: bool = True,
    may_be_null: Collection[str] = (),
) -> int:
    """The number of rows; an error if one of their values cannot be packed.

    ``may_surprise``: these are not the rows in which the parameters were found.  ``may_be_null``: as unseen_values.of.
    """
    columns = filled_columns(variables)
    nulls = [
        sql("count(*) FILTER (WHERE {name} IS NULL) AS n{i}", name=identifier(name), i=i)
        for i, name in enumerate(columns)
    ]
    news = unseen_values.of(variables, may_be_null=may_be_null) if may_surprise else []
    found = counting.counted(db, source, [*nulls, *unseen_values.counts(news)])
    unseen_values.tell(db, source.text, news, found)
    for index, name in enumerate(columns):
        if found[f"n{index}"]:
            raise BadData(
                f"column '{name}' of table {source.text} is NULL in {found[f'n{index}']} of {found['rows']} rows.",
                hint=f"Leave them out (a view: WHERE {quoted(name)} IS NOT NULL) or fill them (COALESCE).",
            )
    return int(found["rows"])


@dataclass
class Written:
    """What a partition has so far."""

    key: int
    rows: int = 0
    buffers: int = 0
    size: int = 0  # bytes
    digest: Any = field(default_factory=hashlib.sha256)
    folds: Counter[int] = field(default_factory=Counter)

    def copy(self) -> Written:
        return replace(self, digest=self.digest.copy(), folds=self.folds.copy())

    def add(self, rows: int, payloads: Sequence[bytes], folds: Iterable[int]) -> None:
        self.rows += rows
        self.buffers += 1
        for payload in payloads:
            self.size += len(payload)
            self.digest.update(payload)
        self.folds.update(folds)


def write(db: Database, job: PackJob) -> None:
    """Create the packed table and its summary."""
    here = platform.of(db)
    for partition in here.partitions(job.output, len(job.keys)):
        relations.require_free(db, partition)

    def make() -> None:
        here.make_packed_table(db, job.output, _packed_columns(job), job.keys)
        _write_buffers(db, job, [Written(key) for key in job.keys])
        summary.write(db, job)

    _until_done(db, job, make)


def add(db: Database, job: PackJob, layout: Layout) -> Layout:
    """Add the rows to the packed table that has this layout; returns the layout that it has then.

    ``job.keys``: the partitions that get rows.
    """
    if layout.end + job.geometry.buffers > LARGEST_ID:
        raise BadData(f"'{job.output}' has no room for more buffers.", hint="Pack all rows again.")
    before = [_as_written(db, job, one) for one in layout.partitions if one.key in job.keys]

    def make() -> None:
        # In the order of the keys, by which the new buffers are spread.
        begun = sorted((one.copy() for one in before), key=lambda one: job.keys.index(one.key))
        _write_buffers(db, job, begun, layout.end)

    _until_done(db, job, make)
    changed = {one.key: one for one in job.partitions}
    return replace(
        layout,
        rows=layout.rows + job.rows,
        partitions=tuple(changed.get(one.key, one) for one in layout.partitions),
        end=layout.end + job.geometry.buffers,
    )


def _as_written(db: Database, job: PackJob, partition: Partition) -> Written:
    """What a partition has; an error if it is not what was packed."""
    folds = Counter({fold: rows for fold, rows in enumerate(partition.folds, 1)})
    found = Written(partition.key, folds=folds, rows=partition.rows)
    columns = joined(", ", (sql("{name} AS v{i}", name=identifier(v.name), i=i) for i, v in enumerate(job.variables)))
    cursor = db.cursor(
        sql(
            "SELECT {columns} FROM {output} WHERE __dist_key__ = {key} ORDER BY buffer_id",
            columns=columns,
            output=job.output.sql,
            key=partition.key,
        )
    )
    while batch := cursor.fetch(1):
        found.add(0, [batch[0][f"v{i}"] or b"" for i in range(len(job.variables))], ())
    cursor.close()
    if (found.buffers, found.digest.hexdigest()) != (partition.buffers, partition.sha256):
        raise BadData(
            f"the rows in '{job.output}' are not those that were packed.",
            hint="The packed table was changed by hand. Pack all rows again.",
        )
    return found


def _until_done(db: Database, job: PackJob, make: Callable[[], None]) -> None:
    """A second pass is rare: a row needs a wider integer type, or others write to the table meanwhile."""
    reason = ""
    for _ in range(MOST_PASSES):
        try:
            with db.savepoint():
                make()
            return
        except Restart as again:
            reason = str(again)
            job.rows = count(db, job.source, job.variables)
            if not job.rows:
                raise BadData(f"{job.source.text} no longer has rows.", hint="At least one row is needed.") from None
            if job.place_groups is not None:
                job.place_groups()
            elif isinstance(job.geometry, buffer_format.Geometry):
                job.geometry = buffer_format.geometry(
                    job.rows, job.geometry.segments, job.geometry.buffer_size, job.geometry.filled
                )
        except Uneven as found:
            unusable.require_alike(db, job.source, found.arrays)
            if job.uneven:
                reason = f"the arrays of '{job.source.text}' change again and again ({found})"
            job.uneven = True
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


def _write_buffers(db: Database, job: PackJob, written: list[Written], first: int = 0) -> None:
    """``written``: what the partitions have already, in the order of the keys; ``first``: the first buffer_id."""
    geometry = job.geometry
    pieces: Counter[int] = Counter()  # of groups
    folds_of_pieces: Counter[tuple[int, int]] = Counter()
    insert, types = _insert(job, [column for column, _ in _packed_columns(job)])
    if geometry.rows >= ROWS_TO_TELL:
        db.progress(f"preparing and sorting {geometry.rows:,} rows")
    gathering, told, done = _Gathering(db, job), time.monotonic(), 0
    for number in range(min(geometry.buffers, geometry.rows)):
        rows, segment = geometry.size(number), geometry.segment(number)
        payloads, its = gathering.take(rows)
        pieces.update(its)
        shapes = [[rows, *variable.shape] for variable in job.variables]
        db.execute(insert, types, job.keys[segment], *payloads, *shapes, first + number)
        written[segment].add(rows, payloads, payloads[-1] if job.fold is not None else ())  # a byte is a row's fold
        if job.fold is not None:
            folds_of_pieces.update(zip(its, payloads[-1]))
        done += rows
        if done < geometry.rows and time.monotonic() - told > TOLD_EVERY:
            told = time.monotonic()
            db.progress(f"{done:,} of {geometry.rows:,} rows are packed")
    gathering.end()
    if job.groups is not None and not job.groups.has_rows(pieces):
        raise Restart(f"rows of '{job.source.text}' went to other groups again and again")
    job.partitions = [
        Partition(
            key=one.key,
            rows=one.rows,
            buffers=one.buffers,
            bytes=one.size,
            sha256=one.digest.hexdigest(),
            folds=tuple(one.folds[fold] for fold in range(1, job.folds + 1)),
            groups=job.groups.of_segment(segment) if job.groups else (),
            group_folds=job.groups.folds_of_segment(segment, folds_of_pieces, job.folds)
            if job.groups and job.folds
            else (),
        )  # fmt: skip
        for segment, one in enumerate(written)
    ]


class _Gathering:
    """Rows in packing order: gathered in chunks by the server, and taken in buffers."""

    def __init__(self, db: Database, job: PackJob) -> None:
        self.db, self.job = db, job
        self.encoders = [variable.encoder() for variable in job.variables]
        self.pieces = array("i")
        self.held = 0  # rows
        self.chunks = platform.of(db).rows_to_pack(db, _wanted(db, job))

    def take(self, rows: int) -> tuple[list[bytes], Sequence[int]]:
        """The packed values of the next rows, and the piece of each row if rows have groups."""
        while self.held < rows:
            if (chunk := self._next()) is None:
                raise Restart(f"rows vanished from '{self.job.source.text}' again and again")
            self._add(chunk)
        payloads = [self._packed(*one, rows) for one in zip(self.job.variables, self.encoders)]
        pieces, self.pieces = self.pieces[:rows], self.pieces[rows:]
        self.held -= rows
        return payloads, pieces

    def end(self) -> None:
        """There must be no more rows."""
        if self.held or self._next() is not None:
            raise Restart(f"rows were added to '{self.job.source.text}' again and again")

    def _next(self) -> dict[str, Any] | None:
        job = self.job
        try:
            return next(self.chunks, None)
        except self.db.plpy.SPIError as error:
            arrays = [one for one in job.variables if one.is_array]
            if not arrays or not any(self.db.is_error(error, state) for state in NO_ARRAY_OF_THEM):
                raise
            raise Uneven(error, arrays) from None

    def _add(self, chunk: dict[str, Any]) -> None:
        rows = chunk["rows"]
        for index, (variable, encoder) in enumerate(zip(self.job.variables, self.encoders)):
            try:
                if chunk.get(f"w{index}"):
                    raise buffer_format.Unusable("bytes")
                encoder.add(chunk[f"v{index}"], rows)
            except buffer_format.Unusable as wrong:
                raise unusable.error_of(self.db, self.job.source, variable, wrong) from None
            except buffer_format.UnknownLabel:
                label = unusable.unknown_label(self.db, self.job.source, variable)
                raise Restart(f"new values came into '{variable.name}' again and again ('{label}')") from None
        if self.job.groups is not None:
            self.pieces.frombytes(chunk["p"][ONE_DIMENSION:])
        self.held += rows

    def _packed(self, variable: SourceVariable, encoder: buffer_format.Encoder, rows: int) -> bytes:
        """The bytes of a buffer's column."""
        job = self.job
        try:
            return encoder.take(rows)
        except buffer_format.Unusable as wrong:
            raise unusable.error_of(self.db, job.source, variable, wrong) from None
        except buffer_format.TooWide as wide:
            if job.is_of_table:
                raise BadData(
                    f"column '{variable.name}' of table {job.source.text} has values that do not fit into"
                    f" {variable.dtype}, the type of the values in '{job.output}'.",
                    hint="Pack all rows again, old and new, with the function that packed the table.",
                ) from None
            if not variable.preparation.widens:
                raise BadData(
                    f"column '{variable.name}' of table {job.source.text} has values outside of -32768 to 32767.",
                    hint="For regression convert the column to real[].",
                ) from None
            variable.dtype = wide.dtype
            raise Restart(f"the values of '{variable.name}' change") from None


def _wanted(db: Database, job: PackJob) -> RowsToPack:
    """The rows, shuffled if there is a seed.

    The order follows from a hash of what tells a row apart, or else of the packed columns, and not from where a row
    lies: it is the same after a dump and restore, and on PostgreSQL and Greenplum.
    """
    names = list({column.name: None for variable in job.variables for column in variable.columns})
    alias = {name: sql("q.c{index}", index=index) for index, name in enumerate([*names, PART.name])}
    values = [
        sql("{value} AS v{i}", value=packed_value(v, lambda c: alias[c.name], uneven=job.uneven), i=i)
        for i, v in enumerate(job.variables)
    ]
    stored = [sql("s.{name} AS c{index}", name=identifier(name), index=index) for index, name in enumerate(names)]
    if job.part is not None:
        stored.append(sql("{part} AS c{index}", part=job.part, index=len(names)))
    order = sql("{seed}::bigint", seed=job.seed or 0)
    if job.row_hash is not None:
        order = shuffled(job.row_hash, order)
    else:
        for variable in job.variables:
            order = hashed(variable, lambda c: sql("s.{name}", name=identifier(c.name)), order)
    pieces = None
    if job.groups is not None:
        group = job.groups.group(lambda c: sql("s.{name}", name=identifier(c.name)))
        pieces = Pieces(group, job.groups.piece)
    size = sum(variable.wire_bytes_per_row for variable in job.variables)
    # Arrays, pixels, and windows, which are one of the two, are large and take little to prepare.
    stored_size = size + ARRAY_HEADER * len(job.variables)
    many = job.rows >= MANY_ROWS and stored_size <= LARGEST_STORED and not any(one.is_large for one in job.variables)
    return RowsToPack(
        source=job.source.rows,
        placed=job.source.placed_rows,
        stored=stored,
        values=values,
        gathered=partial(_aggregates, job.variables),
        order=order,
        seed=job.seed,
        chunk=max(1, min(MOST_ROWS, CHUNK_BYTES // size)),
        are_many=many,
        rows=job.rows,
        differ=job.row_hash is not None and relations.is_keyed(db, job.source),
        pieces=pieces,
    )


def _aggregates(variables: Sequence[SourceVariable], order: Sql) -> list[Sql]:
    """What a chunk has of each variable: an array of the values of its rows, or their bytes."""
    found = []
    for i, variable in enumerate(variables):
        if not variable.is_pixels:
            found.append(
                sql("cerebro_internal._array_bytes(pg_catalog.array_agg(r.v{i}{order})) AS v{i}", i=i, order=order)
            )
            continue
        # Values of a wrong size are left out: they may be so large that a chunk of them is larger than any value.
        right = sql("pg_catalog.octet_length(r.v{i}) = {size}", i=i, size=buffer_format.elements(variable.shape))
        found.append(
            sql("pg_catalog.string_agg(r.v{i}, ''::bytea{order}) FILTER (WHERE {right}) AS v{i}",
                i=i, order=order, right=right)
        )  # fmt: skip
        found.append(sql("count(*) FILTER (WHERE ({right}) IS NOT TRUE) AS w{i}", right=right, i=i))
    return found


def _insert(job: PackJob, columns: list[str]) -> tuple[Sql, tuple[str, ...]]:
    """The statement that inserts a buffer, and the types of its parameters."""
    number = len(job.variables)
    types = ("integer", *["bytea"] * number, *["integer[]"] * number, "integer")
    named = joined(", ", (identifier(column) for column in [platform.KEY, *columns]))
    places = joined(", ", (sql("${place}", place=place + 1) for place in range(len(types))))
    return sql(
        "INSERT INTO {output} ({named}) VALUES ({places})", output=job.output.sql, named=named, places=places
    ), types
