"""``cerebro.pack``: packs the rows of a table for training and for validation, with columns of nearly any type.

What the columns become is decided in cerebro_db.core.packing.columns, from what packing/columns/statistics.py finds in
the training rows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from cerebro_db.core import documents
from cerebro_db.core.arguments import PackArguments
from cerebro_db.core.names import Name
from cerebro_db.core.packing.packed_summary import Packing
from cerebro_db.core.packing.preparation import OneHot
from cerebro_db.core.packing.related import Related
from cerebro_db.core.packing.windows import Windows
from cerebro_db.core.packing.windows import wanted as wanted_windows
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, sql

from .. import platform
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Column, Relation
from ..platform import DistributionRule
from ..sessions import warm_up
from . import (
    copied_rows,
    labels,
    pack_plain,
    row_weights,
    same_as_training,
)
from . import folds as folding
from .checked_arguments import CheckedColumns, asked_for, hash_of_rows, key_of, sides, split_of, with_kept_shapes
from .columns import profiles, target_means
from .columns.chosen_variables import prepared
from .folds import Folds
from .related import source as related
from .related.source import ReadBeside
from .rows import (
    buffers,
    inputs_by_name,
    known_targets,
    splits,
    subgroups,
    variables,
    windowed,
)
from .rows.preparation import SourceVariable, find_shapes, shuffled
from .rows.splits import Split
from .rows.subgroups import Placed
from .rows.summary import PackJob

VALIDATION = "_validation"  # ending of the packed table with the rows for validation


@dataclass(frozen=True)
class WantedPacking:
    """What is to be packed, and how: the arguments, checked against the columns of the source."""

    given: PackArguments
    source: Relation
    segments: int | None  # None: packing decides
    rule: DistributionRule
    windows: Windows | None
    folds: Folds | None
    group_by: tuple[Column, ...]  # the columns that tell the groups apart; none: rows have no groups
    split: Split | None
    weight: Column | None
    asked: CheckedColumns
    beside: ReadBeside | None = None  # what is read of related tables; the source is a copy then

    @property
    def known(self) -> list[str]:
        """The columns in which a NULL leaves the row out.  Of windows, those with such a target are left out later."""
        return [column.name for column in self.asked.targets] if self.windows is None else []

    @property
    def related(self) -> Related | None:
        return None if self.beside is None else self.beside.plan

    @property
    def is_validated(self) -> bool:
        """Whether there are rows for validation beside those for training."""
        return self.split is not None or self.given.validation_table is not None

    def completed(self, db: Database) -> Callable[[Relation], Relation]:
        """Gives rows of another table the columns that the source has of related tables."""
        return (lambda other: other) if self.beside is None else partial(self.beside.of, db)


@entry
def pack(db: Database, **arguments: Any) -> None:
    write(db, checked(db, PackArguments(**arguments)))


def write(db: Database, wanted: WantedPacking, fingerprint: str | None = None) -> Name:
    """Make the packed tables; return the name of the one for training."""
    begun = time.monotonic()
    job, others = planned(db, wanted)
    job.fingerprint = fingerprint
    if job.packing is not None:
        job.packing = replace(job.packing, fingerprint=fingerprint)
    with contextlib.nullcontext() if fingerprint is None else db.as_steps():  # else a verb packs, which says less
        _write(db, wanted, job, others, begun)
    return job.output


def _write(db: Database, wanted: WantedPacking, job: PackJob, others: Relation | None, begun: float) -> None:
    buffers.write(db, job)
    pack_plain.tell(db, job, begun)
    if others is not None:
        # Of rows that are divided by time, a window with a later target may have rows from before the division.
        back = wanted.windows is not None and wanted.windows.horizon > 0
        back = back and wanted.split is not None and wanted.split.at is not None
        _pack_validation(db, job, others, job.output.suffixed(VALIDATION), reaches_back=back)
    drop_copies(db, wanted.source, job.source, others)


def drop_copies(db: Database, *rows: Relation | None) -> None:
    for copy in {one.copy: one for one in rows if one is not None}.values():
        copied_rows.drop(db, copy)


def checked(db: Database, given: PackArguments) -> WantedPacking:
    source = relations.filled(db, given.source_table)
    pack_plain.check_buffer_size(given.buffer_size)
    wanted = platform.segments_wanted(db, given.segments)
    rule = platform.of(db).distribution_rule(db, given.distribution_rules)
    beside = related.asked_for(db, source, given)
    if beside is not None:
        source = beside.of(db, source)
    present = relations.columns(db, source)
    given = with_kept_shapes(db, source, present, given)
    windows = _windows(given.sequence, present, source)
    divided = folding.asked_for(given, present, source, windows)
    group_by = subgroups.asked_for(given, present, source, windows)
    split = None if divided is not None else split_of(given, present, source, windows)
    if split is not None and split.is_random:
        split = replace(split, groups=group_by)
    weight = row_weights.column_of(given.weights, present, source, given.target)
    if split is not None and split.at is not None:
        relations.require_readable(db, source, [split.at])
    apart = divided.by if divided is not None else split.by if split is not None else ()
    entity = () if beside is None else beside.entity
    asked = asked_for(db, source, given, [*apart, *group_by, *entity], windows, weight)
    if windows is None:
        source = known_targets.having(source, [column.name for column in asked.targets])
    return WantedPacking(
        given=given,
        source=source,
        segments=wanted,
        rule=rule,
        windows=windows,
        folds=divided,
        group_by=group_by,
        split=split,
        weight=weight,
        asked=asked,
        beside=beside,
    )


def planned(db: Database, wanted: WantedPacking, *, copies: bool = True) -> tuple[PackJob, Relation | None]:
    """What is to be packed for training, with everything found in the rows, and the rows for validation.

    ``copies``: whether the rows may be copied first; the caller drops the copy.  A dry run makes no table.
    """
    windows, divided, asked = wanted.windows, wanted.folds, wanted.asked
    if windows is not None:
        target_means.refuse(asked)
    class_weight = wanted.given.class_weight
    output = pack_plain.free_output(db, wanted.given.output_table)
    source = replace(wanted.source, condition=None)
    if copies:
        source = _perhaps_copied(db, wanted, source)
    if wanted.known:
        source = known_targets.told(db, source, wanted.known, grouped=bool(wanted.group_by))
    divided_rows = sides(db, source, wanted.split, wanted.given.validation_table, wanted.known, wanted.completed(db))
    training, others = divided_rows.training, divided_rows.validation
    if wanted.known and others is not None and wanted.given.validation_table is not None:
        whole = replace(others, condition=None)
        known_targets.tell(db, whole, wanted.known, grouped=bool(wanted.group_by))
    if others is not None:
        for ending in ("", "_summary"):
            relations.require_free(db, output.suffixed(VALIDATION + ending))
        if wanted.group_by:
            subgroups.require_types(wanted.group_by, relations.columns(db, others), f"table {others.text}")

    warm_up.everywhere(db)  # whoever packs a table wants to train soon
    later = wanted.split is not None and wanted.split.at is not None
    decided = prepared(db, training, others, asked, later=later, copies=copies)
    ins, outs = decided.inputs, decided.outputs
    variables.check_names(ins, outs)
    row_weights.require_possible(class_weight, outs, wanted.weight is not None)
    rows = decided.rows
    if not set(buffers.filled_columns(ins + ([] if windows else outs))) <= set(wanted.known):
        rows = buffers.count(db, training, ins + ([] if windows else outs), may_surprise=False)
    find_shapes(db, training, ins + outs)
    packing = Packing(
        wanted.given.recorded,
        None,
        profiles.of(db, decided.sample, ins + outs, decided.found),
        folding.division_of(divided, key_of(db, source)) if divided is not None else divided_rows.division,
    )
    if decided.sample.copy != training.copy:
        copied_rows.drop(db, decided.sample)
    for variable in outs:
        if isinstance(variable.preparation, OneHot):
            # In all rows: validation may have a class that no training row has. A row of a window may have none.
            labelled = known_targets.having(source, [variable.columns[0].name])
            labels.find(db, labelled, variable, variable.preparation, None)
    if windows is not None:
        group = divided.group() if divided is not None else None
        present = relations.columns(db, source)
        subjects = [present[name] for name in windows.by] if wanted.group_by else []
        training, ins, outs, rows = windowed.gathered(
            db, training, present, windows, ins, outs, weight=wanted.weight, group=group, subjects=subjects
        )
    fold, part = None, None
    if divided is not None:
        fold = folding.found(db, training, divided, key_of(db, source), windows, wanted.group_by)
    if windows is None:
        part = _part(db, training, wanted, fold)
        ins = target_means.added(db, training, decided, asked, part)
        variables.check_names(ins, outs)
    count = pack_plain.segments_of(db, wanted.segments, wanted.rule, rows)
    job = PackJob(
        source=training,
        output=output,
        source_text=str(source.name),
        output_text=str(output),
        inputs=ins,
        outputs=outs,
        independents=list(dict.fromkeys(name for variable in ins for name in variable.documented().columns)),
        divide_by=1.0,
        rows=rows,
        geometry=pack_plain.geometry_of(ins + outs, rows, count, wanted.given.buffer_size),
        buffer_size=wanted.given.buffer_size,
        keys=platform.of(db).distribution_keys(db, count, wanted.rule),
        seed=pack_plain.drawn(db) if wanted.given.seed is None else wanted.given.seed,
        rule=wanted.rule,
        windows=windows,
        weight=row_weights.found(db, training, wanted.weight, class_weight is not None, outs[0]),
        key=decided.key,
        packing=packing,
        fold=fold,
        part=part,
        row_hash=None if windows and not wanted.group_by else hash_of_rows(db, training),
        related=wanted.related,
    )
    if wanted.group_by:
        order = _order(job)
        _place_groups(db, job, lambda: subgroups.found(db, training, wanted.group_by, count, order))
        assert job.groups is not None
        subgroups.tell(db, job.groups)
    return job, others


def _part(db: Database, training: Relation, wanted: WantedPacking, fold: SourceVariable | None) -> Sql:
    """The part of a row for training, for target_means.py: its fold, or else by the hash that divides the rows.

    Rows that are kept together when rows are divided are in one part.
    """
    if fold is not None and fold.made is not None:
        return fold.made(splits.by_name)
    split = wanted.split
    hashed = hash_of_rows(db, training)
    if split is not None and split.by:
        hashed = splits.whole_hash_of(split.by, splits.by_name)
    return splits.part_of(hashed, target_means.PARTS)


def _order(job: PackJob) -> Sql:
    """The number by which the rows of a job are sorted."""
    assert job.row_hash is not None and job.seed is not None
    return shuffled(job.row_hash, sql("{seed}::bigint", seed=job.seed))


def _place_groups(db: Database, job: PackJob, find: Callable[[], Placed]) -> None:
    """Place the groups of a job, now and whenever its rows have changed while they were packed."""

    def place() -> None:
        job.groups = find()
        sizes = job.groups.rows_of_segments
        job.rows = sum(sizes)
        job.keys = platform.of(db).distribution_keys(db, len(sizes), job.rule)
        job.geometry = pack_plain.geometry_of(
            job.inputs + job.outputs, sum(sizes), len(sizes), job.buffer_size, rows_of=sizes
        )

    job.place_groups = place
    place()


def _perhaps_copied(db: Database, wanted: WantedPacking, source: Relation) -> Relation:
    """The source; with a copy of its rows and their hashes if a hash divides them and the copy saves time."""
    split, asked = wanted.split, wanted.asked
    if split is None or split.at is not None or wanted.windows is not None:
        return source
    others = (wanted.weight, split.stratify)
    columns = [*asked.used, *split.by, *wanted.group_by, *(column for column in others if column is not None)]
    costly = len(key_of(db, source)) > splits.FEW_COLUMNS
    if not copied_rows.is_worth_it(db, source, columns, costly):
        return source
    return copied_rows.with_hashes(db, source, columns, hash_of_rows(db, source))


def _windows(sequence: str | None, present: dict[str, Column], source: Relation) -> Windows | None:
    if sequence is None:
        return None
    windows = wanted_windows(documents.argument(sequence, "sequence"), "sequence")
    windowed.require_columns(windows, present, source.text, "sequence")
    return windows


def _pack_validation(db: Database, trained: PackJob, source: Relation, output: Name, *, reaches_back: bool) -> None:
    begun = time.monotonic()
    present = relations.columns(db, source)
    ins = inputs_by_name.found(trained.layout, present, source.text)
    for variable, like in zip(ins, trained.inputs):
        variable.dtype = like.dtype
    names = [variable.columns[0].name for variable in trained.outputs]
    columns = variables.pick(present, names, "target", source)
    relations.require_readable(db, source, [*inputs_by_name.needed(trained.layout, present), *columns])
    outs = [
        same_as_training.output_as_trained(column, variable.documented())
        for column, variable in zip(columns, trained.outputs)
    ]
    windows = trained.windows
    groups, order = trained.groups, sql("")
    if groups is not None:
        # The same expression for the order as that of the training rows, so that the same limits divide a group.
        hashed = hash_of_rows(db, source)
        order = shuffled(hashed, sql("{seed}::bigint", seed=trained.seed or 0))
        source = subgroups.of_validation(db, source, groups, order, present)
    rows = buffers.count(db, source, ins + ([] if windows else outs))
    find_shapes(db, source, ins + outs)
    labels.match_all(db, known_targets.having(source, names), outs, trained.outputs, trained.output_text)
    if windows is not None:
        subjects = [present[name] for name in windows.by] if groups is not None else []
        source, ins, outs, rows = windowed.gathered(
            db, source, present, windows, ins, outs, subjects=subjects, reaches_back=reaches_back
        )
        if groups is not None:
            order = shuffled(hash_of_rows(db, source), sql("{seed}::bigint", seed=trained.seed or 0))
    same_as_training.require_same_shapes([*ins, *outs], [*trained.inputs, *trained.outputs], trained.output_text)
    count = min(len(trained.keys), rows)
    job = replace(
        trained,
        source=source,
        source_text=str(source.name),
        output=output,
        output_text=str(output),
        inputs=ins,
        outputs=outs,
        weight=row_weights.equal(outs[0].steps) if trained.weight else None,
        rows=rows,
        geometry=pack_plain.geometry_of(ins + outs, rows, count, trained.buffer_size),
        keys=platform.of(db).distribution_keys(db, count, trained.rule),
        seed=None if groups is None else trained.seed,
        row_hash=None if groups is None else hash_of_rows(db, source),
        partitions=[],
        part=None,
        packing=None,
        uneven=False,
    )
    if groups is not None:
        rows_of_groups, known = source, groups
        _place_groups(db, job, lambda: subgroups.counted_again(db, rows_of_groups, known, order, training=False))
    buffers.write(db, job)
    pack_plain.tell(db, job, begun)
