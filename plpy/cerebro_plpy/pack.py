"""Packing a table: rows in shuffled order into buffers, dealt over the segments, in one pass.

All of it happens in the caller's transaction: either the packed table and its summary are there, or nothing is.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from cerebro_db.core import packing
from cerebro_db.core.errors import BadData, InUse, InvalidArgument
from cerebro_db.core.names import Name, quote, split_list

from . import engine, tables, variables
from .db import Database, entry
from .dialect import is_greenplum
from .summary import Packing, Training, read_training, write_summary
from .tables import Relation
from .variables import Variable

TRAINING, VALIDATION = "training_preprocessor_dl", "validation_preprocessor_dl"
BATCH_BYTES = 4 << 20  # of rows in hand at a time
MOST_PASSES = 8
SMALLEST_CONSTANT = 1e-37  # what inputs are multiplied by, 1 / constant, is a float32


class Restart(Exception):
    """What was assumed about the table does not hold; the reason is shown when it happens again and again."""


@entry
def training_preprocessor_dl(
    db: Database,
    source_table: str | None,
    output_table: str | None,
    dependent_varname: str | None,
    independent_varname: str | None,
    buffer_size: int | None = None,
    normalizing_const: float | None = None,
    num_classes: list[int | None] | None = None,
    distribution_rules: str | None = None,
    segments: int | None = None,
    seed: int | None = None,
) -> None:
    begun = time.monotonic()
    source = tables.filled(db, source_table, TRAINING)
    output = _free_output(db, output_table, TRAINING)
    _check_buffer_size(buffer_size, TRAINING)
    constant = _constant(normalizing_const)
    wanted = engine.segments_wanted(db, segments, TRAINING)
    rule = engine.distribution_rule(db, distribution_rules, TRAINING)

    dependents, independents = _columns(db, source, dependent_varname, independent_varname, TRAINING)
    ins = variables.inputs(independents, constant, TRAINING)
    outs = [variables.output(column, TRAINING) for column in dependents]
    variables.check_names(ins, outs, TRAINING)
    rows = _count(db, source, ins + outs, TRAINING)
    variables.find_shapes(db, source, ins + outs, TRAINING)
    _find_classes(db, source, outs, num_classes)

    count = _segments(db, wanted, rule, rows)
    if seed is None:
        seed = db.value("SELECT pg_catalog.floor(pg_catalog.random() * 9007199254740992)::bigint")  # obeys setseed()
    job = Packing(
        TRAINING, source, output, source_table or "", output_table or "", ins, outs,
        [column.name for column in independents], constant, rows,
        _geometry(ins + outs, rows, count, buffer_size, TRAINING), engine.distribution_keys(db, count, rule), seed,
        [outs[i].shape[0] if n is None else n for i, n in enumerate(num_classes)] if num_classes else None, rule,
    )  # fmt: skip
    _pack(db, job)
    _tell(db, job, begun)


@entry
def validation_preprocessor_dl(
    db: Database,
    source_table: str | None,
    output_table: str | None,
    dependent_varname: str | None,
    independent_varname: str | None,
    training_preprocessor_table: str | None,
    buffer_size: int | None = None,
    distribution_rules: str | None = None,
) -> None:
    begun = time.monotonic()
    source = tables.filled(db, source_table, VALIDATION)
    output = _free_output(db, output_table, VALIDATION)
    _check_buffer_size(buffer_size, VALIDATION)
    rule = engine.distribution_rule(db, distribution_rules, VALIDATION)
    training = read_training(db, training_preprocessor_table, VALIDATION)

    dependents, independents = _columns(db, source, dependent_varname, independent_varname, VALIDATION)
    ins = variables.inputs(independents, training.constant, VALIDATION)
    outs = [variables.output(column, VALIDATION) for column in dependents]
    _same_number(training, ins, outs)
    for index, variable in enumerate(outs):
        _as_in_training(variable, training.outputs[index], training.class_type(index))
    for variable, trained in zip(ins, training.inputs):
        if "int" in variable.dtype and trained["dtype"] in packing.INTEGERS:
            variable.dtype = trained["dtype"]
    variables.check_names(ins, outs, VALIDATION)
    rows = _count(db, source, ins + outs, VALIDATION)
    variables.find_shapes(db, source, ins + outs, VALIDATION)
    for index, variable in enumerate(outs):
        if variable.kind == "class":
            _known_classes(db, source, variable, training, index)
    _same_shapes(training, ins, outs)

    count = min(training.segments, rows)
    job = Packing(
        VALIDATION, source, output, source_table or "", output_table or "", ins, outs,
        [column.name for column in independents], training.constant, rows,
        _geometry(ins + outs, rows, count, buffer_size, VALIDATION), engine.distribution_keys(db, count, rule), None,
        training.num_classes, rule,
    )  # fmt: skip
    _pack(db, job)
    _tell(db, job, begun)


# -- arguments -----------------------------------------------------------------------------------------


def _free_output(db: Database, text: str | None, module: str) -> Name:
    return tables.new(db, text, module, ("_summary",))


def _check_buffer_size(buffer_size: int | None, module: str) -> None:
    if buffer_size is not None and buffer_size <= 0:
        raise InvalidArgument(
            f"{module}: The buffer size has to be a positive integer or NULL.",
            hint="NULL makes buffers of about 8 MB.",
        )


def _constant(value: float | None) -> float:
    if value is None or abs(value - 1.0) <= 1e-6:
        return 1.0
    if not SMALLEST_CONSTANT < value < float("inf"):
        raise InvalidArgument(
            f"{TRAINING}: The normalizing constant has to be a positive integer or NULL.",
            hint="Every input is divided by it: 255 for pixels, 1 to leave them as they are.",
        )
    return value


def _columns(
    db: Database, source: Relation, dependent: str | None, independent: str | None, module: str
) -> tuple[list[tables.Column], list[tables.Column]]:
    dependents = split_list(dependent, f"{module} error: dependent_varname")
    independents = split_list(independent, f"{module} error: independent_varname")
    present = tables.columns(db, source)
    return (
        variables.pick(present, dependents, "dependent_varname", source, module),
        variables.pick(present, independents, "independent_varname", source, module),
    )


def _segments(db: Database, wanted: int | None, rule: engine.Rule, rows: int) -> int:
    if wanted is None:
        return min(rule.segments(db), rows)
    if wanted > rows:
        raise InvalidArgument(
            f"{TRAINING} error: {wanted} segments are too many for {rows} rows.",
            hint=f"Each segment needs a row: segments => {rows} at most.",
        )
    return wanted


def _geometry(
    packed: list[Variable], rows: int, segments: int, buffer_size: int | None, module: str
) -> packing.Geometry:
    widest = max(variable.bytes_per_row for variable in packed)
    wanted = buffer_size or packing.default_rows_per_buffer(widest, rows, segments)
    geometry = packing.geometry(rows, segments, wanted)
    if geometry.buffer_size * widest > packing.LARGEST_BYTES:
        raise InvalidArgument(
            f"{module} error: a buffer of {geometry.buffer_size} rows of {widest} bytes is too large for one value.",
            hint=f"buffer_size => {max(1, packing.TARGET_BYTES // widest)} is a good choice.",
        )
    return geometry


def _find_classes(db: Database, source: Relation, outs: list[Variable], num_classes: list[int | None] | None) -> None:
    declared = num_classes or [None] * len(outs)
    if len(declared) != len(outs):
        raise InvalidArgument(
            f"{TRAINING} error: num_classes has {len(declared)} elements for {len(outs)} dependent variables.",
            hint="Give one element per dependent variable; NULL counts the values found.",
        )
    for variable, number in zip(outs, declared):
        if variable.kind == "class":
            variables.find_classes(db, source, variable, number, TRAINING)
        elif number is not None and number != variable.shape[-1]:
            raise InvalidArgument(
                f"{TRAINING} error: num_classes says {number} for '{variable.name}', "
                f"whose values have shape {list(variable.shape)}.",
                hint="NULL takes the values as they are.",
            )


# -- agreement with the training table ------------------------------------------------------------------


def _same_number(training: Training, ins: list[Variable], outs: list[Variable]) -> None:
    for argument, here, there in (
        ("independent_varname", ins, training.inputs),
        ("dependent_varname", outs, training.outputs),
    ):
        if len(here) != len(there):
            raise InvalidArgument(
                f"{VALIDATION} error: {argument} makes {len(here)} variables; table {training.text} has {len(there)}.",
                hint=f"There they are: {', '.join(variable['name'] for variable in there)}.",
            )


def _as_in_training(variable: Variable, trained: dict[str, Any], label_type: str | None) -> None:
    """Labels are compared in the training column's type; vectors must be vectors of the same kind."""
    column = variable.columns[0]
    if trained["kind"] == "class" and column.element is None and label_type:
        variable.kind, variable.dtype, variable.label_type = "class", "int16", label_type
    elif trained["kind"] == "real" and (column.element or column.type) in variables.NUMBERS:
        variable.kind, variable.dtype = "real", "float32"
    elif trained["kind"] != variable.kind:
        raise InvalidArgument(
            f"{VALIDATION} error: column '{variable.name}' of type {column.shown} does not fit "
            f"the training table's '{trained['name']}' ({trained['kind']}).",
            hint="Cast it to the type of the training data, in a view if need be.",
        )


def _known_classes(db: Database, source: Relation, variable: Variable, training: Training, index: int) -> None:
    levels = training.labels(index)
    known, unknown = variables.match_classes(db, source, variable, levels, VALIDATION)
    if unknown:
        number = variable.columns[0].category == "N"
        raise BadData(
            f"{VALIDATION}: the class values in {source.text} ({variables.show_labels(list(known) + unknown, number)}) "
            f"should be a subset of class values in {training.text} ({variables.show_labels(levels, number)})",
            detail=f"Only in {source.text}: {variables.show_labels(unknown, number)}",
            hint="Pack a training table that has all classes, or leave these rows out.",
        )
    variable.labels, variable.indices = levels, known
    variable.shape = tuple(training.outputs[index]["shape"])


def _same_shapes(training: Training, ins: list[Variable], outs: list[Variable]) -> None:
    for variable, trained in zip(ins + outs, training.inputs + training.outputs):
        if list(variable.shape) != trained["shape"]:
            raise BadData(
                f"{VALIDATION} error: column '{variable.name}' has shape {list(variable.shape)}; "
                f"'{trained['name']}' of table {training.text} has {trained['shape']}.",
                hint="Training and validation data need the same shapes.",
            )


# -- the rows ------------------------------------------------------------------------------------------


def _count(db: Database, source: Relation, packed: list[Variable], module: str) -> int:
    """How many rows there are; a NULL among their values is an error."""
    columns = list({column.name: None for variable in packed for column in variable.columns})
    nulls = [f"count(*) FILTER (WHERE {quote(name)} IS NULL) AS n{i}" for i, name in enumerate(columns)]
    (found,) = db.scan(f"SELECT count(*) AS rows, {', '.join(nulls)} FROM {source.sql}")
    for index, name in enumerate(columns):
        if found[f"n{index}"]:
            raise BadData(
                f"{module} error: column '{name}' of table {source.text} is NULL in {found[f'n{index}']} "
                f"of {found['rows']} rows.",
                hint=f"Leave them out (a view: WHERE {quote(name)} IS NOT NULL) or fill them (COALESCE).",
            )
    return int(found["rows"])


def _pack(db: Database, job: Packing) -> None:
    """Several passes are rare: a later row needs a wider integer, or others write to the table meanwhile."""
    reason = ""
    for partition in engine.partitions(job.output, len(job.keys)):
        tables.require_free(db, partition, job.module)
    for _ in range(MOST_PASSES):
        try:
            with db.savepoint():
                columns = _packed_columns(job)
                engine.make_packed_table(db, job.output, columns, job.keys)
                _write_buffers(db, job, [column for column, _ in columns])
                write_summary(db, job)
            return
        except Restart as again:
            reason = str(again)
            job.rows = _count(db, job.source, job.variables, job.module)
            job.geometry = packing.geometry(job.rows, job.geometry.segments, job.geometry.buffer_size)
        except db.plpy.SPIError as error:
            if not db.is_error(error, "22003"):
                raise
            raise BadData(
                f"{job.module} error: a value of table {job.source.text} is too large: {error}.",
                hint="Inputs become real (smaller integers: integer), integer outputs smallint.",
            ) from None
    raise InUse(f"{job.module} error: {reason}.", hint="Pack a copy, or in a REPEATABLE READ transaction.")


def _packed_columns(job: Packing) -> list[tuple[str, str]]:
    values = [(variable.name, "bytea") for variable in job.variables]
    shapes = [(variable.name + "_shape", "integer[]") for variable in job.variables]
    return [*values, *shapes, ("buffer_id", "integer")]


def _write_buffers(db: Database, job: Packing, columns: list[str]) -> None:
    geometry, packed = job.geometry, job.variables
    encoders = [variable.encoder() for variable in packed]
    totals = [{"rows": 0, "buffers": 0, "bytes": 0} for _ in job.keys]
    hashes = [hashlib.sha256() for _ in job.keys]
    insert, types = _insert(job, columns)
    step = max(1, min(10_000, BATCH_BYTES // sum(variable.wire_bytes_per_row for variable in packed)))
    cursor = _open(db, job)
    for number in range(min(geometry.buffers, geometry.rows)):
        rows, segment = geometry.size(number), geometry.segment(number)
        _fill(db, job, cursor, encoders, rows, step)
        payloads = [_take(db, job, variable, encoder) for variable, encoder in zip(packed, encoders)]
        shapes = [[rows, *variable.shape] for variable in packed]
        db.execute(insert, types, job.keys[segment], *payloads, *shapes, number)
        total = totals[segment]
        total["rows"] += rows
        total["buffers"] += 1
        for payload in payloads:
            total["bytes"] += len(payload)
            hashes[segment].update(payload)
    if len(cursor.fetch(1)):
        raise Restart(f"rows were added to '{job.source.text}' again and again")
    cursor.close()
    job.partitions = [
        {"key": key, **total, "sha256": digest.hexdigest()} for key, total, digest in zip(job.keys, totals, hashes)
    ]


def _open(db: Database, job: Packing) -> Any:
    """The rows, shuffled when there is a seed.

    The inner query sorts what the table stores (large values stay where they are); the outer one
    converts row by row.  The order is that of a hash of the seed and of what is packed, not of where a row
    lies: it is the same after a dump and restore, and on PostgreSQL and Greenplum, which has no order of rows
    and therefore sorts also those of a validation table.
    """
    names = list({column.name: None for variable in job.variables for column in variable.columns})
    alias = {name: f"q.c{index}" for index, name in enumerate(names)}
    values = [f"{v.expression(lambda c: alias[c.name])} AS v{i}" for i, v in enumerate(job.variables)]
    stored = ", ".join(f"s.{quote(name)} AS c{index}" for index, name in enumerate(names))
    if job.seed is None and not is_greenplum(db):
        return db.cursor(f"SELECT {', '.join(values)} FROM (SELECT {stored} FROM {job.source.sql} AS s) AS q")
    order = "$1"
    for variable in job.variables:
        order = variable.hash(lambda c: f"s.{quote(c.name)}", order)
    rows = f"SELECT {stored}, {order} AS n FROM {job.source.sql} AS s"
    if not is_greenplum(db):
        query = f"SELECT {', '.join(values)} FROM ({rows} ORDER BY n) AS q"
        return db.cursor(query, ("bigint",), job.seed or 0)
    # The order is said twice, sorted once: Greenplum merges what its segments sorted only if the outer query asks for
    # it. A row of NULLs comes first, so that sorting can be waited for.
    nothing = ", ".join(["NULL"] * len(names))
    rows += f" UNION ALL SELECT {nothing}, NULL::bigint"
    query = f"SELECT {', '.join(values)} FROM ({rows} ORDER BY n NULLS FIRST) AS q ORDER BY q.n NULLS FIRST"
    cursor = db.cursor(query, ("bigint",), job.seed or 0)
    cursor.wait()
    return cursor


def _fill(db: Database, job: Packing, cursor: Any, encoders: list[Any], rows: int, step: int) -> None:
    while rows:
        batch = cursor.fetch(min(rows, step))
        if not len(batch):
            raise Restart(f"rows vanished from '{job.source.text}' again and again")
        for index, (variable, encoder) in enumerate(zip(job.variables, encoders)):
            key = f"v{index}"
            try:
                encoder.add([row[key] for row in batch])
            except packing.Unusable as wrong:
                raise variables.unusable(db, job.source, variable, wrong, job.module) from None
            except packing.UnknownLabel as label:
                raise Restart(f"new values came into '{variable.name}' again and again ('{label}')") from None
        rows -= len(batch)


def _take(db: Database, job: Packing, variable: Variable, encoder: Any) -> bytes:
    try:
        payload: bytes = encoder.take()
        return payload
    except packing.Unusable as wrong:
        raise variables.unusable(db, job.source, variable, wrong, job.module) from None
    except packing.TooWide as wide:
        if variable.kind is not None:
            raise BadData(
                f"{job.module} error: column '{variable.name}' of table {job.source.text} "
                "has values outside of -32768 to 32767.",
                hint="For regression convert the column to real[].",
            ) from None
        variable.dtype = wide.dtype
        raise Restart(f"the values of '{variable.name}' change") from None


def _insert(job: Packing, columns: list[str]) -> tuple[str, tuple[str, ...]]:
    count = len(job.variables)
    types = ("integer", *["bytea"] * count, *["integer[]"] * count, "integer")
    named = ", ".join(quote(column) for column in [engine.KEY, *columns])
    places = ", ".join(f"${place + 1}" for place in range(len(types)))
    return f"INSERT INTO {job.output.sql} ({named}) VALUES ({places})", types


def _tell(db: Database, job: Packing, begun: float) -> None:
    size = sum(partition["bytes"] for partition in job.partitions)
    buffers = sum(partition["buffers"] for partition in job.partitions)
    db.notice(
        f"{job.module}: {counted(job.rows, 'row')} in {counted(buffers, 'buffer')}"
        f" on {counted(len(job.keys), 'segment')}, "
        f"{size / 1e6:.1f} MB, {time.monotonic() - begun:.1f} s"
    )


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
