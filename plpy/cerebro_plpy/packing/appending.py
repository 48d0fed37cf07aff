"""``cerebro.append``: packs rows that arrived later, and adds them to a packed table.

The rows are prepared with the parameters of the packed table, and divided by its rule.  Their buffers come after the
existing ones.  So a run that began earlier goes on with the same rows: its layout ends before the new buffers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Optional

from cerebro_db.core import codec
from cerebro_db.core.codec import Within
from cerebro_db.core.errors import BadData, InUse, InvalidArgument, Unsupported, WrongState
from cerebro_db.core.names import Name
from cerebro_db.core.packing import buffer_format, drift
from cerebro_db.core.packing.division import Division
from cerebro_db.core.packing.drift import Profile
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.packing.packed_summary import Packing, SummaryColumns
from cerebro_db.core.packing.packed_summary import of as form_of
from cerebro_db.core.packing.preparation import Weight
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.sql_types import SqlType
from cerebro_db.core.texts import counted

from ..database import relations
from ..database.access import Database
from ..database.relations import Column, Relation
from . import (
    folds,
    labels,
    pack_plain,
    packed,
    row_weights,
    same_as_training,
)
from .columns import profiles
from .columns.profiles import Binned
from .pack import VALIDATION
from .packed import Packed
from .related.reading import Opens, completed
from .rows import (
    buffers,
    inputs_by_name,
    known_targets,
    splits,
    summary,
    variables,
    windowed,
)
from .rows.argument_names import NATURAL
from .rows.preparation import SourceVariable, find_shapes
from .rows.summary import PackJob, Training

DRIFTED = 0.25  # of the population stability index; docs/production.md#have-the-rows-changed
NEEDED = ["seed", "buffer_size", "rows"]  # columns of a summary, besides those that all functions read
PACK_ALL = "Pack all rows again, old and new, with cerebro.pack()."


@dataclass
class Target:
    """A packed table that gets rows."""

    packed: Packed
    layout: Layout
    training: Training
    form: SummaryColumns
    seed: int | None
    buffer_size: int
    added: int = 0  # rows

    @property
    def text(self) -> str:
        return self.packed.relation.text

    @property
    def name(self) -> Name:
        return self.packed.relation.name

    @property
    def summary(self) -> Name:
        return self.name.suffixed("_summary")


def append(db: Database, packed_table: str | None, source_table: str | None, divide: bool | None, opens: Opens) -> None:
    begun = time.monotonic()
    target = _target(db, packed_table, "packed_table")
    own = relations.filled(db, source_table)
    source = completed(db, own, target.packed.relation, target.layout, opens)
    copy = None if source is own else source
    targets = [variable.columns[0] for variable in target.training.layout.outputs]
    if target.layout.windows is None and not target.form.numbers_are_labels:
        source = known_targets.named_and_told(db, source, targets)
    division = _division(db, target, source, divide)
    others, folded, whole = None, target.layout.folds > 0, source
    if division is not None and not folded:
        beside = relations.beside(db, target.packed.relation, VALIDATION)
        if beside is None:
            relations.refuse_of_another(db, target.packed.relation, VALIDATION)
            raise WrongState(
                f"the packed table '{target.name.suffixed(VALIDATION)}' with the rows for validation is not there.",
                hint="divide => false adds all rows to those for training.",
            )
        others = _target(db, beside.name.quoted, "packed_table")
        present = relations.columns(db, source)
        source, kept = splits.divided(source, splits.condition_of(division, present, _hashed(division, present)))
        _add(db, others, kept, None, reaches_back=division.at is not None)
    _add(db, target, source, division if folded else None, reaches_back=False)
    if others is not None and target.layout.windows is None:
        _require_all(db, whole, (target, others))
    if copy is not None:
        db.execute(sql("DROP TABLE {copy}", copy=copy.sql))
    told = [f"{counted(one.layout.rows, 'row')} in {one.name}" for one in (target, others) if one is not None]
    db.notice(f"{' and '.join(told)} now, {time.monotonic() - begun:.1f} s")


# -- what there is -----------------------------------------------------------------------------------------


def _target(db: Database, text: str | None, argument: str) -> Target:
    """A packed table that nobody else adds rows to until this transaction ends."""
    table = packed.read(db, text, argument=argument).relation
    described = relations.existing(db, table.name.suffixed("_summary").quoted)
    for one in (table, described):
        relations.require_own(db, one, "add rows")
    relations.require_columns(db, described, NEEDED)
    listed = joined(", ", map(identifier, NEEDED))
    row = db.one(sql("SELECT {listed} FROM {summary} FOR UPDATE", listed=listed, summary=described.sql)) or {}
    found = packed.read(db, text, argument=argument)  # as the last one to add rows has left it
    layout = found.layout
    if layout.groups is not None:
        raise Unsupported(
            f"'{table.text}' was packed with group_by, and the rows of a group lie together.", hint=PACK_ALL
        )
    if not layout.partitions:
        raise BadData(f"the layout of '{table.text}' has no partitions.", hint=PACK_ALL)
    where = f"the summary of '{table.text}'"
    seed = codec.read(Optional[int], row["seed"], f"{where}: seed", PACK_ALL)
    size = codec.read(Annotated[int, Within(1, 2**31 - 1)], row["buffer_size"], f"{where}: buffer_size", PACK_ALL)
    training = summary.read_training(db, table.name.quoted, argument)
    form = form_of(relations.columns(db, described))
    return Target(found, layout, training, form, seed, size)


def _division(db: Database, target: Target, source: Relation, divide: bool | None) -> Division | None:
    """The rule that says which of the rows are for validation, or in which fold each of them is."""
    recorded = target.packed.summary.packing
    division = None if recorded is None else recorded.division
    if target.layout.folds and division is None:
        raise Unsupported(
            f"the folds of '{target.text}' follow from all of its rows together, because it was packed with split_by,"
            " stratify or a sequence.",
            hint=PACK_ALL,
        )
    if divide is False:
        if target.layout.folds:
            raise InvalidArgument(
                f"divide cannot be false: '{target.text}' has folds, and each row is in one of them.",
                hint="Leave divide out.",
            )
        return None
    if division is not None and division.is_of_folds != (target.layout.folds > 0):
        raise BadData(f"the summary of '{target.text}' contradicts itself about folds.", hint=PACK_ALL)
    if division is None:
        has_side = relations.beside(db, target.packed.relation, VALIDATION) is not None
        arguments = {} if recorded is None else recorded.arguments
        divided = recorded is not None and "validation_table" not in arguments and arguments.get("validation") != 0
        if divided and has_side:
            raise WrongState(
                f"'{target.text}' does not say how its rows were divided; an earlier version packed it.",
                hint="divide => false adds all rows to those for training.",
            )
        return None
    present = relations.columns(db, source)
    missing = [name for name in division.names if name not in present]
    if missing:
        raise BadData(
            f"{source.text} does not have the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}, by which"
            f" the rows of '{target.text}' were divided.",
            hint="Add them"
            + ("." if target.layout.folds else ", or add all rows to those for training with divide => false."),
        )
    relations.require_readable(db, source, [present[name] for name in division.names])
    return division


def _require_all(db: Database, source: Relation, sides: Iterable[Target]) -> None:
    """An error if the rows have changed between the passes of the two sides: then a row may be on none, or on both."""
    (found,) = db.scan(sql("SELECT count(*) AS rows FROM {rows} AS s", rows=source.rows))
    if found["rows"] != sum(one.added for one in sides):
        raise InUse(
            f"the rows of {source.text} changed while they were added.",
            hint="Call it in a REPEATABLE READ transaction. A view must have the same rows each time.",
        )


def _hashed(division: Division, present: Mapping[str, Column]) -> Sql:
    return splits.hash_of([present[name] for name in division.columns], splits.by_name) if division.columns else sql("")


# -- adding rows -------------------------------------------------------------------------------------------


def _add(db: Database, target: Target, source: Relation, division: Division | None, *, reaches_back: bool) -> None:
    """``division``: the rule that says in which fold a row is; ``reaches_back``: see ``windowed.of``."""
    if relations.is_empty(db, source):
        return
    job = _job(db, target, source, division, reaches_back=reaches_back)
    if job.rows:
        grown = _grown(db, target, source)
        target.layout = buffers.add(db, job, target.layout)
        target.added = job.rows
        _write_summary(db, target, grown, max(target.buffer_size, job.geometry.buffer_size))


def _job(db: Database, target: Target, source: Relation, division: Division | None, *, reaches_back: bool) -> PackJob:
    layout, present = target.training.layout, relations.columns(db, source)
    names = [variable.columns[0] for variable in layout.outputs]
    dependents = variables.pick(present, names, "target", source)
    ins = _inputs(target, source, present, dependents)
    needed = [*inputs_by_name.needed(layout, present), *dependents]
    relations.require_readable(db, source, needed)
    outs = [
        same_as_training.output_as_trained(column, trained, target.form.numbers_are_labels)
        for column, trained in zip(dependents, layout.outputs)
    ]
    if target.form.numbers_are_labels:
        variables.allow_null_labels(ins, outs)
    _require_types(source, ins, layout.inputs)
    windows = layout.windows
    rows = buffers.count(db, source, ins + ([] if windows else outs))
    find_shapes(db, source, ins + outs)
    labelled = source if windows is None else known_targets.having(source, [one.name for one in dependents])
    labels.match_all(db, labelled, outs, layout.outputs, target.text)
    column = _weight_column(db, target.layout, source, present)
    if windows is not None:
        source, ins, outs, rows = windowed.gathered(
            db, source, present, windows, ins, outs, weight=column, reaches_back=reaches_back, may_be_none=True
        )
    same_as_training.require_same_shapes([*ins, *outs], [*layout.inputs, *layout.outputs], target.text)
    # The partitions with the fewest rows get the first buffers, which are the larger ones.
    partitions = sorted(layout.partitions, key=lambda one: one.rows)[: max(1, rows)]
    return PackJob(
        source=source,
        output=target.name,
        source_text=source.text,
        output_text=target.text,
        inputs=ins,
        outputs=outs,
        independents=[],
        divide_by=target.training.divide_by,
        rows=rows,
        geometry=pack_plain.geometry_of(ins + outs, max(1, rows), len(partitions), None),
        keys=[one.key for one in partitions],
        seed=target.seed,
        windows=windows,
        weight=_weight(target.layout, column, outs[0]),
        fold=None if division is None else folds.of_division(division, layout.folds, present),
        is_of_table=True,
    )


def _inputs(
    target: Target, source: Relation, present: Mapping[str, Column], dependents: list[Column]
) -> list[SourceVariable]:
    layout = target.training.layout
    if inputs_by_name.matches(layout):
        return inputs_by_name.found(layout, dict(present), source.text)
    names = [name for variable in layout.inputs for name in variable.columns]
    groups = variables.grouped(variables.pick(dict(present), names, "inputs", source))
    same_as_training.require_same_number(target.training, groups, dependents, NATURAL)
    return [
        same_as_training.input_as_trained(name, columns, trained)
        for (name, columns), trained in zip(groups, layout.inputs)
    ]


def _require_types(source: Relation, inputs: list[SourceVariable], trained: tuple[Variable, ...]) -> None:
    """The packed values of an input have the type that they had before."""
    for variable, before in zip(inputs, trained):
        if variable.dtype != before.dtype and before.dtype in buffer_format.INTEGERS:
            raise BadData(
                f"the columns {', '.join(column.name for column in variable.columns)} of {source.text} are no integers,"
                " and those that were packed are.",
                hint=f"Cast them in a view, or do this: {PACK_ALL}",
            )
        variable.dtype = before.dtype


def _weight_column(db: Database, layout: Layout, source: Relation, present: Mapping[str, Column]) -> Column | None:
    """The column with the weights of the rows, if there is one."""
    if layout.weight is None or layout.weight.columns == (variables.WEIGHT,):
        return None
    names = list(layout.weight.columns)
    if isinstance(layout.weight.preparation, Weight) and layout.weight.preparation.labels:
        names.pop()  # the target
    if not names:
        return None
    (column,) = variables.pick(dict(present), names, "weights", source)
    relations.require_readable(db, source, [column])
    row_weights.require_usable(db, source, column)
    return column


def _weight(layout: Layout, column: Column | None, target: SourceVariable) -> SourceVariable | None:
    if layout.weight is None:
        return None
    assert isinstance(layout.weight.preparation, Weight)
    columns = [column] if column is not None else []
    if layout.weight.preparation.labels:
        columns.append(target.columns[0])
    if not columns:
        return row_weights.equal(target.steps)
    return row_weights.of(columns, layout.weight.preparation, target)


# -- the summary -------------------------------------------------------------------------------------------


def _grown(db: Database, target: Target, source: Relation) -> Packing | None:
    """What the summary says of packing, with the new rows in the profiles of the columns, some of which drift."""
    recorded = target.packed.summary.packing
    if recorded is None:
        return None
    present = relations.columns(db, source)
    binned = {one.column: Binned(present[one.column], one) for one in recorded.profiles if one.column in present}
    counts = dict(zip(binned, profiles.counted(db, source, list(binned.values()))))
    drifted = [one.column for one in recorded.profiles if _has_drifted(one, counts.get(one.column, []))]
    if drifted:
        db.notice(
            f"the values of {', '.join(drifted)} in {source.text} are distributed differently from the packed ones",
            "They are prepared with the parameters of those. cerebro.drift() says how they differ, and cerebro.pack()"
            " of all rows finds new parameters.",
        )
    return replace(
        recorded,
        fingerprint=None,
        profiles=tuple(_with_rows(one, counts.get(one.column), target.layout.rows) for one in recorded.profiles),
    )


def _has_drifted(profile: Profile, now: list[int]) -> bool:
    if not any(now):
        return False
    return drift.between(profile.rows, now).psi - drift.by_chance(profile.rows, now) > DRIFTED


def _with_rows(profile: Profile, now: list[int] | None, rows: int) -> Profile:
    """The profile with these rows counted, too.  Of many rows packing has counted a sample, whose share they have."""
    if now is None:
        return profile
    share = min(1.0, sum(profile.rows) / max(1, rows))
    return replace(profile, rows=tuple(before + round(share * more) for before, more in zip(profile.rows, now)))


def _write_summary(db: Database, target: Target, grown: Packing | None, buffer_size: int) -> None:
    present = relations.columns(db, relations.existing(db, target.summary.quoted))
    values: dict[str, tuple[str, Any]] = {
        "layout": ("jsonb", summary.written(target.layout)),
        "rows": ("bigint", target.layout.rows),
        "buffer_size": ("integer", buffer_size),
    }
    if grown is not None:
        values["packing"] = ("jsonb", json.dumps(codec.encode(grown)))
    if "fingerprint" in present:
        values["fingerprint"] = ("text", None)  # the rows are no longer those of one table
    changes = [
        sql("{name} = ${place}::{kind}", name=identifier(name), place=place, kind=SqlType(kind).sql)
        for place, (name, (kind, _)) in enumerate(values.items(), 1)
    ]
    db.execute(
        sql("UPDATE {summary} SET {changes}", summary=target.summary.sql, changes=joined(", ", changes)),
        [kind for kind, _ in values.values()],
        *(value for _, value in values.values()),
    )
