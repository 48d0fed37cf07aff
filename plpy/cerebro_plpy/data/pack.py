"""``cerebro.pack``: packs a table for training as it is, with names, dates, gaps and texts, and a part for validation.

What the columns become is decided in cerebro_db.core.columns, from what data/statistics.py finds in the training rows.
"""

from __future__ import annotations

import time
from dataclasses import replace

from cerebro_db.core.names import Name
from cerebro_db.core.preparation import OneHot

from .. import platform
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Relation
from ..platform import Rule
from ..sessions import warm_up
from . import agreement, buffers, by_name, labels, packing, variables
from .asked import PACK, asked_for, sides, split_of
from .choosing import prepared
from .preparation import SourceVariable, find_shapes
from .summary import Packing

VALIDATION = "_validation"  # ending of the packed table with the rows for validation


@entry
def pack(
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
) -> None:
    begun = time.monotonic()
    job, others = planned(
        db, source_text, output_text, target, inputs, prepare, validation, validation_table, split_by, split_at,
        stratify, buffer_size, segments, distribution_rules, seed,
    )  # fmt: skip
    buffers.write(db, job)
    packing.tell(db, job, begun)
    if others is not None:
        _pack_validation(db, job, others, job.output.suffixed(VALIDATION), buffer_size)


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
) -> tuple[Packing, Relation | None]:
    """What is to be packed for training, with everything found in the rows, and the rows for validation."""
    source = relations.filled(db, source_text, PACK, argument="source")
    output = packing.free_output(db, output_text, PACK)
    packing.check_buffer_size(buffer_size, PACK)
    wanted = platform.segments_wanted(db, segments, PACK)
    rule = platform.of(db).distribution_rule(db, distribution_rules, PACK)
    present = relations.columns(db, source)
    split = split_of(present, source, target, validation, validation_table, split_by, split_at, stratify)
    asked = asked_for(db, source, present, target, inputs, prepare, split)
    training, others = sides(db, source, asked, split, validation_table)
    if others is not None:
        for ending in ("", "_summary"):
            relations.require_free(db, output.suffixed(VALIDATION + ending), PACK)

    warm_up.everywhere(db)  # whoever packs a table wants to train soon
    ins, outs = prepared(db, training, asked)
    variables.check_names(ins, outs, PACK)
    rows = buffers.count(db, training, ins + outs, PACK)
    find_shapes(db, training, ins + outs, PACK)
    for variable in outs:
        if isinstance(variable.preparation, OneHot):
            # In all rows: validation may have a class that no training row has.
            labels.find(db, source, variable, variable.preparation, None, PACK)
    return _job(db, training, output, source_text, ins, outs, rows, buffer_size, wanted, rule, seed), others


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
        seed = db.value("SELECT pg_catalog.floor(pg_catalog.random() * 9007199254740992)::bigint")  # obeys setseed()
    return Packing(
        module=PACK,
        source=training,
        output=output,
        source_text=source_text or "",
        output_text=str(output),
        inputs=ins,
        outputs=outs,
        independents=[column.name for variable in ins for column in variable.columns],
        constant=1.0,
        rows=rows,
        geometry=packing.geometry_of(ins + outs, rows, count, buffer_size, PACK),
        keys=platform.of(db).distribution_keys(db, count, rule),
        seed=seed,
        rule=rule,
    )


def _pack_validation(db: Database, trained: Packing, source: Relation, output: Name, buffer_size: int | None) -> None:
    begun = time.monotonic()
    present = relations.columns(db, source)
    ins = by_name.found(trained.layout, present, source.text, PACK)
    for variable, like in zip(ins, trained.inputs):
        variable.dtype = like.dtype
    names = [variable.columns[0].name for variable in trained.outputs]
    columns = variables.pick(present, names, "target", source, PACK)
    outs = [
        agreement.output_as_trained(column, variable.documented(), PACK)
        for column, variable in zip(columns, trained.outputs)
    ]
    rows = buffers.count(db, source, ins + outs, PACK)
    find_shapes(db, source, ins + outs, PACK)
    for variable, like in zip(outs, trained.outputs):
        if isinstance(variable.preparation, OneHot):
            labels.match(db, source, variable, variable.preparation, trained.output_text, PACK)
            variable.shape = like.shape
    count = min(len(trained.keys), rows)
    job = replace(
        trained,
        source=source,
        source_text=source.text,
        output=output,
        output_text=str(output),
        inputs=ins,
        outputs=outs,
        rows=rows,
        geometry=packing.geometry_of(ins + outs, rows, count, buffer_size, PACK),
        keys=platform.of(db).distribution_keys(db, count, trained.rule),
        seed=None,
        partitions=[],
    )
    buffers.write(db, job)
    packing.tell(db, job, begun)
