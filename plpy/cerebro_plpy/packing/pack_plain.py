"""``cerebro.pack_plain`` and ``cerebro.pack_like``: pack a table's rows into buffers on the segments.

All of it happens in the caller's transaction: either the packed table and its summary exist afterwards, or neither.
"""

from __future__ import annotations

import time
from typing import Any

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.names import Name, split_list
from cerebro_db.core.packing import buffer_format, preparation
from cerebro_db.core.packing.packed_summary import PLAIN, SummaryColumns
from cerebro_db.core.packing.preparation import OneHot
from cerebro_db.core.sql import sql
from cerebro_db.core.texts import counted

from .. import platform
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Column, Relation
from ..platform import DistributionRule
from ..sessions import limits, warm_up
from . import labels, row_weights, same_as_training
from .pack_arguments import LikeArguments, PlainArguments
from .related.reading import Opens, completed, opens_none
from .rows import buffers, inputs_by_name, known_targets, variables, windowed
from .rows.argument_names import NATURAL, ArgumentWords
from .rows.preparation import SourceVariable, applied, find_shapes
from .rows.summary import PackJob, read_training

FAR_TOO_MANY = 2  # times as many segments as the rows repay


@entry
def pack_plain(db: Database, **arguments: Any) -> None:
    pack_training(db, PlainArguments(**arguments))


def pack_training(
    db: Database, given: PlainArguments, *, words: ArgumentWords = NATURAL, form: SummaryColumns = PLAIN
) -> None:
    begun = time.monotonic()
    source = relations.filled(db, given.source_table)
    output = free_output(db, given.output_table)
    check_buffer_size(given.buffer_size, words)
    divide_by = _divisor(given.divide_by, words)
    wanted = platform.segments_wanted(db, given.segments)
    rule = platform.of(db).distribution_rule(db, given.distribution_rules)
    classes = given.classes

    dependents, independents = _columns(db, source, given.target, given.inputs, words)
    normalized = preparation.divided_by(divide_by)
    ins = [applied(name, columns, normalized) for name, columns in variables.grouped(independents, words.inputs)]
    outs = [
        applied(one.name, [one], variables.output_preparation(one, form.numbers_are_labels, words.target))
        for one in dependents
    ]
    if form.numbers_are_labels:
        variables.allow_null_labels(ins, outs)
    else:
        source = known_targets.told(db, source, [one.name for one in dependents])
    variables.check_names(ins, outs)
    warm_up.everywhere(db)  # whoever packs a table wants to train soon
    rows = buffers.count(db, source, ins + outs)
    find_shapes(db, source, ins + outs)
    _find_labels(db, source, outs, classes, words)

    count = segments_of(db, wanted, rule, rows)
    job = PackJob(
        source=source,
        output=output,
        source_text=_text(given.source_table, source.name, form),
        output_text=_text(given.output_table, output, form),
        inputs=ins,
        outputs=outs,
        independents=[column.name for column in independents],
        divide_by=divide_by,
        rows=rows,
        geometry=geometry_of(ins + outs, rows, count, given.buffer_size, filled=form.numbers_are_labels),
        keys=platform.of(db).distribution_keys(db, count, rule),
        seed=drawn(db) if given.seed is None else given.seed,
        classes=[outs[i].shape[0] if n is None else n for i, n in enumerate(classes)] if classes else None,
        rule=rule,
        form=form,
    )
    buffers.write(db, job)
    tell(db, job, begun)


def pack_validation(
    db: Database,
    given: LikeArguments,
    *,
    words: ArgumentWords = NATURAL,
    form: SummaryColumns = PLAIN,
    opens: Opens = opens_none,
) -> None:
    begun = time.monotonic()
    source = relations.filled(db, given.source_table)
    output = free_output(db, given.output_table)
    check_buffer_size(given.buffer_size, words)
    rule = platform.of(db).distribution_rule(db, given.distribution_rules)
    training = read_training(db, given.packed_table, words.packed_table, words.please)
    own, table = source, relations.existing(db, given.packed_table, argument=words.packed_table)
    source = completed(db, own, table, training.layout, opens)
    copy = None if source is own else source

    if inputs_by_name.matches(training.layout):
        present = relations.columns(db, source)
        names = split_list(given.target, words.target)
        dependents = variables.pick(present, names, words.target, source)
        inputs_by_name.require_all(training.layout, given.inputs, words.inputs)
        ins = inputs_by_name.found(training.layout, present, source.text)
        relations.require_readable(db, source, [*inputs_by_name.needed(training.layout, present), *dependents])
        same_as_training.require_same_number(training, ins, dependents, words)
    else:
        dependents, independents = _columns(db, source, given.target, given.inputs, words)
        groups = variables.grouped(independents, words.inputs)
        same_as_training.require_same_number(training, groups, dependents, words)
        ins = [
            same_as_training.input_as_trained(name, columns, trained)
            for (name, columns), trained in zip(groups, training.layout.inputs)
        ]
    outs = [
        same_as_training.output_as_trained(column, trained, form.numbers_are_labels, words.target)
        for column, trained in zip(dependents, training.layout.outputs)
    ]
    windows = training.layout.windows
    if form.numbers_are_labels:
        variables.allow_null_labels(ins, outs)
    elif windows is None:
        source = known_targets.told(db, source, [one.name for one in dependents])
    variables.check_names(ins, outs)
    rows = buffers.count(db, source, ins + ([] if windows else outs))
    find_shapes(db, source, ins + outs)
    labelled = source if windows is None else known_targets.having(source, [one.name for one in dependents])
    labels.match_all(db, labelled, outs, training.layout.outputs, training.text)
    if windows is not None:
        source, ins, outs, rows = windowed.gathered(db, source, relations.columns(db, source), windows, ins, outs)
    same_as_training.require_same_shapes(ins + outs, training.layout.inputs + training.layout.outputs, training.text)

    count = min(training.segments, rows)
    job = PackJob(
        source=source,
        output=output,
        source_text=_text(given.source_table, source.name, form),
        output_text=_text(given.output_table, output, form),
        inputs=ins,
        outputs=outs,
        independents=list(dict.fromkeys(name for variable in ins for name in variable.documented().columns)),
        divide_by=training.divide_by,
        rows=rows,
        geometry=geometry_of(ins + outs, rows, count, given.buffer_size, filled=form.numbers_are_labels),
        keys=platform.of(db).distribution_keys(db, count, rule),
        classes=training.classes,
        rule=rule,
        form=form,
        windows=windows,
        weight=row_weights.equal(outs[0].steps) if training.layout.weight else None,
        related=training.layout.related,
    )
    buffers.write(db, job)
    if copy is not None:
        db.execute(sql("DROP TABLE {copy}", copy=copy.sql))
    tell(db, job, begun)


# -- arguments -----------------------------------------------------------------------------------------


def free_output(db: Database, text: str | None) -> Name:
    return relations.new(db, text, ("_summary",))


def _text(given: str | None, name: Name, form: SummaryColumns) -> str:
    """A table's name for the summary: with its schema in plain ones, as the caller wrote it in others."""
    return str(name) if form is PLAIN else given or ""


def check_buffer_size(buffer_size: int | None, words: ArgumentWords = NATURAL) -> None:
    if buffer_size is not None and buffer_size <= 0:
        raise InvalidArgument(words.buffer_size, hint="NULL makes buffers of about 8 MB.")


def _divisor(value: float | None, words: ArgumentWords) -> float:
    if value is None or abs(value - 1.0) <= 1e-6:
        return 1.0
    if not preparation.LEAST_DIVISOR < value <= preparation.LARGEST_DIVISOR:
        raise InvalidArgument(
            words.divide_by,
            hint="Every input is divided by it: 255 for pixels, 1 to leave them as they are.",
        )
    return value


def _columns(
    db: Database, source: Relation, target: str | None, inputs: str | None, words: ArgumentWords
) -> tuple[list[Column], list[Column]]:
    present = relations.columns(db, source)
    names = split_list(target, words.target), split_list(inputs, words.inputs)
    outs = variables.pick(present, names[0], words.target, source)
    ins = variables.pick(present, names[1], words.inputs, source)
    variables.require_apart(ins, outs, words)
    relations.require_readable(db, source, [*outs, *ins])
    for key in relations.keys(db, source) & {column.name for column in ins}:
        db.notice(
            f"the input '{key}' is a key of {source.text}. Its values tell rows apart and seldom say anything"
            f" about other rows; leave it out of {words.inputs} unless you mean it."
        )
    return outs, ins


def most_segments(db: Database, rule: DistributionRule) -> int:
    """The number of segments of a large table whose user asks for no number: a run of the user may have so many."""
    allowed = limits.segments_allowed(db)
    most = platform.of(db).segments(db, rule)
    return most if allowed is None else max(1, min(most, allowed))


def segments_of(db: Database, wanted: int | None, rule: DistributionRule, rows: int) -> int:
    here = platform.of(db)
    if wanted is None:
        most = most_segments(db, rule)
        count = min(here.segments(db, rule, rows), rows, most)
        if count < most:
            db.detail(
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
    rows_of: tuple[int, ...] | None = None,
) -> buffer_format.Geometry | buffer_format.PlacedGeometry:
    """``rows_of``: the rows of each segment, if they are given."""
    widest = max(variable.bytes_per_row for variable in packed)
    wanted = buffer_size or buffer_format.default_rows_per_buffer(widest, rows, segments)
    geometry: buffer_format.Geometry | buffer_format.PlacedGeometry
    if rows_of is not None:
        geometry = buffer_format.PlacedGeometry(rows_of, wanted)
    else:
        geometry = buffer_format.geometry(rows, segments, wanted, filled)
    if geometry.buffer_size * widest > buffer_format.LARGEST_BYTES:
        raise InvalidArgument(
            f"a buffer of {geometry.buffer_size} rows of {widest} bytes is too large for one value.",
            hint=f"buffer_size => {max(1, buffer_format.TARGET_BYTES // widest)} is a good choice.",
        )
    return geometry


def _find_labels(
    db: Database, source: Relation, outs: list[SourceVariable], classes: list[int | None] | None, words: ArgumentWords
) -> None:
    declared = classes or [None] * len(outs)
    if len(declared) != len(outs):
        raise InvalidArgument(
            f"{words.classes} has {len(declared)} elements for {len(outs)} columns to predict.",
            hint="Give one element per column to predict; NULL counts the values found.",
        )
    for variable, number in zip(outs, declared):
        if isinstance(variable.preparation, OneHot):
            labels.find(db, source, variable, variable.preparation, number, words)
        elif number is not None and number != variable.shape[-1]:
            raise InvalidArgument(
                f"{words.classes} says {number} for '{variable.name}', whose values have shape {list(variable.shape)}.",
                hint="NULL takes the values as they are.",
            )


def drawn(db: Database) -> int:
    """A seed by chance, which obeys setseed()."""
    return int(db.value(sql("SELECT pg_catalog.floor(pg_catalog.random() * 9007199254740992)::bigint")))


# -- the message at the end ----------------------------------------------------------------------------


def tell(db: Database, job: PackJob, begun: float) -> None:
    size = sum(partition.bytes for partition in job.partitions)
    buffer_count = sum(partition.buffers for partition in job.partitions)
    db.told(
        f"{counted(job.rows, 'row')} in {counted(buffer_count, 'buffer')}"
        f" on {counted(len(job.keys), 'segment')}, "
        f"{size / 1e6:.1f} MB, {time.monotonic() - begun:.1f} s"
    )
