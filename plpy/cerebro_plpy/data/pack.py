"""``cerebro.pack``: packs the rows of a table for training and for validation, with columns of nearly any type.

What the columns become is decided in cerebro_db.core.columns, from what data/statistics.py finds in the training rows.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from cerebro_db.core import documents
from cerebro_db.core.names import Name
from cerebro_db.core.preparation import OneHot
from cerebro_db.core.sql import sql
from cerebro_db.core.windows import Windows
from cerebro_db.core.windows import wanted as wanted_windows

from .. import platform
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Column, Relation
from ..platform import Rule
from ..sessions import warm_up
from . import agreement, buffers, by_name, labels, packing, row_weights, variables, windowed
from . import folds as folding
from .asked import asked_for, key_of, sides, split_of
from .choosing import prepared
from .preparation import SourceVariable, find_shapes
from .summary import Packing

VALIDATION = "_validation"  # ending of the packed table with the rows for validation


@entry
def pack(db: Database, *arguments: Any) -> None:
    begun = time.monotonic()
    job, others = planned(db, *arguments)
    buffers.write(db, job)
    packing.tell(db, job, begun)
    if others is not None:
        _pack_validation(db, job, others, job.output.suffixed(VALIDATION))


def planned(
    db: Database,
    source_text: str | None,
    output_text: str | None,
    target: str | None,
    inputs: str | None,
    prepare: str | None,
    validation: float | None,
    validation_table: str | None,
    split_by: str | None,
    split_at: str | None,
    stratify: bool | None,
    buffer_size: int | None,
    segments: int | None,
    distribution_rules: str | None,
    seed: int | None,
    sequence: str | None,
    weights: str | None,
    class_weight: str | None,
    folds: int | None,
) -> tuple[Packing, Relation | None]:
    """What is to be packed for training, with everything found in the rows, and the rows for validation."""
    source = relations.filled(db, source_text, argument="source")
    output = packing.free_output(db, output_text, "output")
    packing.check_buffer_size(buffer_size)
    wanted = platform.segments_wanted(db, segments)
    rule = platform.of(db).distribution_rule(db, distribution_rules)
    present = relations.columns(db, source)
    windows = _windows(sequence, present, source)
    divided = folding.asked_for(
        folds, present, source, target, validation, validation_table, split_by, split_at, stratify, windows
    )
    split = None
    if divided is None:
        split = split_of(present, source, target, validation, validation_table, split_by, split_at, stratify, windows)
    weight = row_weights.column_of(weights, present, source, target)
    if split is not None and split.at is not None:
        relations.require_readable(db, source, [split.at])
    apart = divided.by if divided is not None else split.by if split is not None else ()
    asked = asked_for(db, source, present, target, inputs, prepare, apart, windows, weight)
    training, others = sides(db, source, split, validation_table)
    if others is not None:
        for ending in ("", "_summary"):
            relations.require_free(db, output.suffixed(VALIDATION + ending))

    warm_up.everywhere(db)  # whoever packs a table wants to train soon
    ins, outs = prepared(db, training, asked)
    variables.check_names(ins, outs)
    row_weights.require_possible(class_weight, outs, weight is not None)
    rows = buffers.count(db, training, ins + ([] if windows else outs), may_surprise=False)
    find_shapes(db, training, ins + outs)
    for variable in outs:
        if isinstance(variable.preparation, OneHot):
            # In all rows: validation may have a class that no training row has.
            labels.find(db, source, variable, variable.preparation, None)
    if windows is not None:
        group = divided.group() if divided is not None else None
        training, ins, rows = windowed.gathered(db, training, windows, ins, outs, weight, group)
    job = _job(db, training, output, source_text, ins, outs, rows, buffer_size, wanted, rule, seed)
    job.windows = windows
    job.weight = row_weights.found(db, training, weight, class_weight is not None, outs[0])
    if divided is not None:
        job.fold = folding.found(db, training, divided, key_of(db, source), windows)
    return job, others


def _windows(sequence: str | None, present: dict[str, Column], source: Relation) -> Windows | None:
    if sequence is None:
        return None
    windows = wanted_windows(documents.argument(sequence, "sequence"), "sequence")
    windowed.require_columns(windows, present, source.text, "sequence")
    return windows


def _job(
    db: Database,
    training: Relation,
    output: Name,
    source_text: str | None,
    ins: list[SourceVariable],
    outs: list[SourceVariable],
    rows: int,
    buffer_size: int | None,
    wanted: int | None,
    rule: Rule,
    seed: int | None,
) -> Packing:
    count = packing.segments_of(db, wanted, rule, rows)
    if seed is None:
        seed = db.value(
            sql("SELECT pg_catalog.floor(pg_catalog.random() * 9007199254740992)::bigint")
        )  # obeys setseed()
    return Packing(
        source=training,
        output=output,
        source_text=source_text or "",
        output_text=str(output),
        inputs=ins,
        outputs=outs,
        independents=[name for variable in ins for name in variable.documented().columns],
        constant=1.0,
        rows=rows,
        geometry=packing.geometry_of(ins + outs, rows, count, buffer_size),
        buffer_size=buffer_size,
        keys=platform.of(db).distribution_keys(db, count, rule),
        seed=seed,
        rule=rule,
    )


def _pack_validation(db: Database, trained: Packing, source: Relation, output: Name) -> None:
    begun = time.monotonic()
    present = relations.columns(db, source)
    ins = by_name.found(trained.layout, present, source.text)
    for variable, like in zip(ins, trained.inputs):
        variable.dtype = like.dtype
    names = [variable.columns[0].name for variable in trained.outputs]
    columns = variables.pick(present, names, "target", source)
    relations.require_readable(db, source, [*by_name.needed(trained.layout, present), *columns])
    outs = [
        agreement.output_as_trained(column, variable.documented()) for column, variable in zip(columns, trained.outputs)
    ]
    windows = trained.windows
    rows = buffers.count(db, source, ins + ([] if windows else outs))
    find_shapes(db, source, ins + outs)
    for variable, like in zip(outs, trained.outputs):
        if isinstance(variable.preparation, OneHot):
            labels.match(db, source, variable, variable.preparation, trained.output_text)
            variable.shape = like.shape
    if windows is not None:
        source, ins, rows = windowed.gathered(db, source, windows, ins, outs, None)
    count = min(len(trained.keys), rows)
    job = replace(
        trained,
        source=source,
        source_text=source.text,
        output=output,
        output_text=str(output),
        inputs=ins,
        outputs=outs,
        weight=row_weights.equal() if trained.weight else None,
        rows=rows,
        geometry=packing.geometry_of(ins + outs, rows, count, trained.buffer_size),
        keys=platform.of(db).distribution_keys(db, count, trained.rule),
        seed=None,
        partitions=[],
    )
    buffers.write(db, job)
    packing.tell(db, job, begun)
