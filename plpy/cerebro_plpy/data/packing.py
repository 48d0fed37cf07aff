"""``training_preprocessor_dl`` and ``validation_preprocessor_dl``: pack a table's rows into buffers on the segments.

All of it happens in the caller's transaction: either the packed table and its summary exist afterwards, or neither.
"""

from __future__ import annotations

import time
from typing import Any

from cerebro_db.core import packing, preparation
from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.names import Name, split_list
from cerebro_db.core.preparation import OneHot
from cerebro_db.core.sql import sql
from cerebro_db.core.texts import counted

from .. import platform
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Column, Relation
from ..platform import Rule
from ..sessions import warm_up
from . import agreement, buffers, by_name, labels, row_weights, variables, windowed
from .preparation import SourceVariable, applied, find_shapes
from .summary import Packing, read_training

TRAINING, VALIDATION = "training_preprocessor_dl", "validation_preprocessor_dl"
FAR_TOO_MANY = 2  # times as many segments as the rows repay


@entry(called="training_preprocessor_dl error")
def training_preprocessor_dl(db: Database, *arguments: Any) -> None:
    _pack_training(db, *arguments)


@entry(called="validation_preprocessor_dl error")
def validation_preprocessor_dl(db: Database, *arguments: Any) -> None:
    _pack_validation(db, *arguments)


@entry(called="training_preprocessor_dl error")
def madlib_training_preprocessor_dl(db: Database, *arguments: Any) -> None:
    """As MADlib packs: numbers to predict are classes, NULL is a class, inputs are float32."""
    _pack_training(db, *arguments, madlib=True)


@entry(called="validation_preprocessor_dl error")
def madlib_validation_preprocessor_dl(db: Database, *arguments: Any) -> None:
    _pack_validation(db, *arguments, madlib=True)


def _pack_training(
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
    *,
    madlib: bool = False,
) -> None:
    begun = time.monotonic()
    source = relations.filled(db, source_table)
    output = free_output(db, output_table)
    check_buffer_size(buffer_size)
    constant = _constant(normalizing_const)
    wanted = platform.segments_wanted(db, segments)
    rule = platform.of(db).distribution_rule(db, distribution_rules)

    dependents, independents = _columns(db, source, dependent_varname, independent_varname)
    normalized = preparation.divided_by(constant)
    ins = [applied(name, columns, normalized) for name, columns in variables.grouped(independents)]
    outs = [applied(one.name, [one], variables.output_preparation(one, madlib)) for one in dependents]
    if madlib:
        variables.as_madlib_packs(ins, outs)
    variables.check_names(ins, outs)
    warm_up.everywhere(db)  # whoever packs a table wants to train soon
    rows = buffers.count(db, source, ins + outs)
    find_shapes(db, source, ins + outs)
    _find_labels(db, source, outs, num_classes)

    count = segments_of(db, wanted, rule, rows)
    if seed is None:
        seed = db.value(
            sql("SELECT pg_catalog.floor(pg_catalog.random() * 9007199254740992)::bigint")
        )  # obeys setseed()
    job = Packing(
        source=source,
        output=output,
        source_text=source_table or "",
        output_text=output_table or "",
        inputs=ins,
        outputs=outs,
        independents=[column.name for column in independents],
        constant=constant,
        rows=rows,
        geometry=geometry_of(ins + outs, rows, count, buffer_size, filled=madlib),
        keys=platform.of(db).distribution_keys(db, count, rule),
        seed=seed,
        num_classes=[outs[i].shape[0] if n is None else n for i, n in enumerate(num_classes)] if num_classes else None,
        rule=rule,
    )
    buffers.write(db, job)
    tell(db, job, begun)


def _pack_validation(
    db: Database,
    source_table: str | None,
    output_table: str | None,
    dependent_varname: str | None,
    independent_varname: str | None,
    training_preprocessor_table: str | None,
    buffer_size: int | None = None,
    distribution_rules: str | None = None,
    *,
    madlib: bool = False,
) -> None:
    begun = time.monotonic()
    source = relations.filled(db, source_table)
    output = free_output(db, output_table)
    check_buffer_size(buffer_size)
    rule = platform.of(db).distribution_rule(db, distribution_rules)
    training = read_training(db, training_preprocessor_table)

    if by_name.matches(training.layout):
        present = relations.columns(db, source)
        names = split_list(dependent_varname, "dependent_varname")
        dependents = variables.pick(present, names, "dependent_varname", source)
        by_name.require_all(training.layout, independent_varname, "independent_varname")
        ins = by_name.found(training.layout, present, source.text)
        relations.require_readable(db, source, [*by_name.needed(training.layout, present), *dependents])
        agreement.require_same_number(training, ins, dependents)
    else:
        dependents, independents = _columns(db, source, dependent_varname, independent_varname)
        groups = variables.grouped(independents)
        agreement.require_same_number(training, groups, dependents)
        ins = [
            agreement.input_as_trained(name, columns, trained)
            for (name, columns), trained in zip(groups, training.layout.inputs)
        ]
    outs = [
        agreement.output_as_trained(column, trained, madlib)
        for column, trained in zip(dependents, training.layout.outputs)
    ]
    if madlib:
        variables.as_madlib_packs(ins, outs)
    variables.check_names(ins, outs)
    windows = training.layout.windows
    rows = buffers.count(db, source, ins + ([] if windows else outs))
    find_shapes(db, source, ins + outs)
    for variable, trained in zip(outs, training.layout.outputs):
        if isinstance(variable.preparation, OneHot):
            labels.match(db, source, variable, variable.preparation, training.text)
            variable.shape = trained.shape
    if windows is not None:
        source, ins, rows = windowed.gathered(db, source, windows, ins, outs, None)
    agreement.require_same_shapes(training, ins, outs)

    count = min(training.segments, rows)
    job = Packing(
        source=source,
        output=output,
        source_text=source_table or "",
        output_text=output_table or "",
        inputs=ins,
        outputs=outs,
        independents=[name for variable in ins for name in variable.documented().columns],
        constant=training.constant,
        rows=rows,
        geometry=geometry_of(ins + outs, rows, count, buffer_size, filled=madlib),
        keys=platform.of(db).distribution_keys(db, count, rule),
        num_classes=training.num_classes,
        rule=rule,
        windows=windows,
        weight=row_weights.equal() if training.layout.weight else None,
    )
    buffers.write(db, job)
    tell(db, job, begun)


# -- arguments -----------------------------------------------------------------------------------------


def free_output(db: Database, text: str | None, argument: str = "output_table") -> Name:
    return relations.new(db, text, ("_summary",), argument=argument)


def check_buffer_size(buffer_size: int | None) -> None:
    if buffer_size is not None and buffer_size <= 0:
        raise InvalidArgument(
            "The buffer size has to be a positive integer or NULL.",
            hint="NULL makes buffers of about 8 MB.",
        )


def _constant(value: float | None) -> float:
    if value is None or abs(value - 1.0) <= 1e-6:
        return 1.0
    if not preparation.LEAST_DIVISOR < value <= preparation.LARGEST_DIVISOR:
        raise InvalidArgument(
            "The normalizing constant has to be a positive integer or NULL.",
            hint="Every input is divided by it: 255 for pixels, 1 to leave them as they are.",
        )
    return value


def _columns(
    db: Database, source: Relation, dependent: str | None, independent: str | None
) -> tuple[list[Column], list[Column]]:
    dependents = split_list(dependent, "dependent_varname")
    independents = split_list(independent, "independent_varname")
    present = relations.columns(db, source)
    outputs = variables.pick(present, dependents, "dependent_varname", source)
    inputs = variables.pick(present, independents, "independent_varname", source)
    variables.require_apart(inputs, outputs)
    relations.require_readable(db, source, [*outputs, *inputs])
    for key in relations.keys(db, source) & {column.name for column in inputs}:
        db.notice(
            f"the input '{key}' is a key of {source.text}. Its values tell rows apart and seldom say anything"
            " about other rows; leave it out of independent_varname unless you mean it."
        )
    return outputs, inputs


def segments_of(db: Database, wanted: int | None, rule: Rule, rows: int) -> int:
    here = platform.of(db)
    if wanted is None:
        count, most = min(here.segments(db, rule, rows), rows), here.segments(db, rule)
        if count < most:
            db.notice(
                f"{counted(count, 'segment')}, because {counted(rows, 'row')} would not repay the trainers of {most};"
                " the argument segments sets another number"
            )
        return count
    if wanted > rows:
        raise InvalidArgument(
            f"{wanted} segments are too many for {rows} rows.",
            hint=f"Each segment needs a row: segments => {rows} at most.",
        )
    enough = here.segments_that_pay(rows)
    if enough is not None and wanted > FAR_TOO_MANY * enough:
        db.notice(
            f"{wanted} segments are many for {counted(rows, 'row')}: each has a trainer, which takes seconds to start"
            f" and to build every model; segments => {enough} is likely to be faster"
        )
    return wanted


def geometry_of(
    packed: list[SourceVariable],
    rows: int,
    segments: int,
    buffer_size: int | None,
    *,
    filled: bool = False,
) -> packing.Geometry:
    widest = max(variable.bytes_per_row for variable in packed)
    wanted = buffer_size or packing.default_rows_per_buffer(widest, rows, segments)
    geometry = packing.geometry(rows, segments, wanted, filled)
    if geometry.buffer_size * widest > packing.LARGEST_BYTES:
        raise InvalidArgument(
            f"a buffer of {geometry.buffer_size} rows of {widest} bytes is too large for one value.",
            hint=f"buffer_size => {max(1, packing.TARGET_BYTES // widest)} is a good choice.",
        )
    return geometry


def _find_labels(
    db: Database, source: Relation, outs: list[SourceVariable], num_classes: list[int | None] | None
) -> None:
    declared = num_classes or [None] * len(outs)
    if len(declared) != len(outs):
        raise InvalidArgument(
            f"num_classes has {len(declared)} elements for {len(outs)} dependent variables.",
            hint="Give one element per dependent variable; NULL counts the values found.",
        )
    for variable, number in zip(outs, declared):
        if isinstance(variable.preparation, OneHot):
            labels.find(db, source, variable, variable.preparation, number)
        elif number is not None and number != variable.shape[-1]:
            raise InvalidArgument(
                f"num_classes says {number} for '{variable.name}', whose values have shape {list(variable.shape)}.",
                hint="NULL takes the values as they are.",
            )


# -- the message at the end ----------------------------------------------------------------------------


def tell(db: Database, job: Packing, begun: float) -> None:
    size = sum(partition.bytes for partition in job.partitions)
    buffer_count = sum(partition.buffers for partition in job.partitions)
    db.notice(
        f"{counted(job.rows, 'row')} in {counted(buffer_count, 'buffer')}"
        f" on {counted(len(job.keys), 'segment')}, "
        f"{size / 1e6:.1f} MB, {time.monotonic() - begun:.1f} s"
    )
