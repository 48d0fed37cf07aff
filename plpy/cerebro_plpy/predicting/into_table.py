"""``cerebro.predict_into``: the predictions for a whole table or view, on all segments, in a new table."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, sql

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..definitions.references import ModelRef, model_ref
from ..models import trained
from . import execution, staging

if TYPE_CHECKING:
    from cerebro_db.core.names import Name

    from ..database.relations import Column, Relation
    from ..models.trained import ModelTables, TrainedModel


@dataclass(frozen=True)
class IntoArguments:
    """The arguments of ``cerebro.predict_into``."""

    model_table: str | None
    source_table: str | None
    output_table: str | None
    key: str | None
    configuration: int | None
    top: int | None
    coverage: float | None = None
    calibrated: bool | None = None
    thresholds: bool | None = False
    probability_of: str | None = None
    keep: str | None = None
    related: str | None = None


@entry
def predict_into(db: Database, **arguments: Any) -> int:
    """Write the table; return the number of rows, windows or steps that were predicted."""
    given = IntoArguments(**arguments)
    source = relations.existing(db, given.source_table)
    output = relations.new(db, given.output_table)
    ref = model_ref(db, given.model_table)
    tables = trained.tables_of(db, ref)
    # The summary says whether the models of groups belong to this model.
    answered = None if tables.groups is None else _by_group(db, given, ref, tables, source)
    staged, write = answered or _by_one_model(db, given, ref, tables, source)
    write(output)
    rows = db.value(
        sql(
            "SELECT COALESCE(sum((SELECT count(u.id) FROM pg_catalog.unnest(s.ids) AS u (id))), 0)::bigint"
            " FROM {staged} s",
            staged=staged,
        )
    )
    db.execute(sql("DROP TABLE {staged}", staged=staged))
    return int(rows)


def _by_one_model(
    db: Database, given: IntoArguments, ref: ModelRef, tables: ModelTables, source: Relation
) -> tuple[Sql, Callable[[Name], None]]:
    """The table with the answers, and what writes the user's table from it."""
    sealed, memory_mb = tables.must_seal(db), tables.memory_mb(db)
    with contextlib.ExitStack() as stack:
        predict = stack.enter_context(execution.place_for(db, source, False, sealed=sealed, memory_mb=memory_mb))
        from ..models import calibrations
        from ..models.model_cache import read_model
        from . import keys_and_outputs, output_columns, table_rows  # only now: the trainer starts meanwhile

        wanted = calibrations.Wanted.of(given.coverage, given.calibrated, given.thresholds)
        model = read_model(db, ref, given.configuration, tables)
        present = relations.columns(db, source)
        columns = output_columns.of_rows(db, model, source, present, given.key, given.keep)
        rows = _completed(db, model, source, present, given.related)
        if rows is not source:  # a copy, which only this session sees
            stack.close()
            predict = stack.enter_context(execution.place_for(db, rows, False, sealed=sealed, memory_mb=memory_mb))
            present = relations.columns(db, rows)
        inputs = keys_and_outputs.inputs_of(db, model.layout, present, f"'{source.text}'")
        applied = calibrations.applied(db, model, wanted)
        table = output_columns.of_outputs(model.layout, columns, applied, given.top, given.probability_of)
        to_predict = table_rows.RowsToPredict(
            table=rows,
            present=present,
            inputs=inputs,
            key=columns.identity,
            key_columns=list(columns.keys),
            also=list(columns.read),
            key_bytes=columns.bytes_per_row(db, rows),
        )
        staged = table_rows.answers(db, predict, model, to_predict, table.best)
    if rows is not source:
        db.execute(sql("DROP TABLE {rows}", rows=rows.sql))
    return staged, partial(table.write, db, staged)


def _completed(
    db: Database, model: TrainedModel, source: Relation, present: dict[str, Column], related: str | None
) -> Relation:
    """A copy of the rows with the columns of related tables, if the model reads some; else the rows themselves."""
    from . import related_rows

    beside = related_rows.rows_of(db, model.table, model.layout, source, present, related)
    return source if beside is None else beside.copied(db, source, again=True)


def _by_group(
    db: Database, given: IntoArguments, ref: ModelRef, tables: ModelTables, source: Relation
) -> tuple[Sql, Callable[[Name], None]] | None:
    """The same with models of groups, in the caller's session; None: the model table has none."""
    from ..models import calibrations
    from ..models.model_cache import read_model
    from . import by_group, output_columns

    wanted = calibrations.Wanted.of(given.coverage, given.calibrated, given.thresholds)
    model = read_model(db, ref, given.configuration, tables)
    if model.grouped is None:
        return None
    by_group.require_plain(wanted, given.model_table)
    present = relations.columns(db, source)
    columns = output_columns.of_rows(db, model, source, present, given.key, given.keep)
    table = output_columns.of_outputs(model.layout, columns, None, given.top, given.probability_of)
    completed = _completed(db, model, source, present, given.related)
    rows = by_group.RowsOfGroups(
        completed,
        relations.columns(db, completed),
        f"'{source.text}'",
        list(columns.keys),
        columns.identity,
        columns.bytes_per_row(db, source),
    )
    staged = execution.create_temporary(db)
    for chunk in by_group.predicted(db, model, rows, given.configuration, table.best):
        db.execute(staging.add(staged), staging.ADDED, 0, len(chunk["ids"]), chunk["ids"], chunk["answers"])
    if completed is not source:
        db.execute(sql("DROP TABLE {rows}", rows=completed.sql))
    return staged, partial(table.write, db, staged)
