"""``cerebro.predict_into``: the predictions for a whole table or view, on all segments, in a new table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, sql

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..definitions.references import ModelRef, model_ref
from ..models import trained
from . import execution, staging

if TYPE_CHECKING:
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
    calibrated: bool | None = False
    thresholds: bool | None = False


@entry
def predict_into(db: Database, **arguments: Any) -> int:
    """Write the table; return the number of rows, or windows, that were predicted."""
    given = IntoArguments(**arguments)
    source = relations.existing(db, given.source_table)
    output = relations.new(db, given.output_table)
    ref = model_ref(db, given.model_table)
    tables = trained.tables_of(db, ref)
    # The summary says whether the models of groups belong to this model.
    answered = None if tables.groups is None else _by_group(db, given, ref, tables, source)
    staged, outputs = answered or _by_one_model(db, given, ref, tables, source)
    from . import predictions  # only now, as in _by_one_model

    predictions.write_rows(db, staged, output, outputs)
    rows = db.value(sql("SELECT COALESCE(sum(rows), 0)::bigint AS rows FROM {staged}", staged=staged))
    db.execute(sql("DROP TABLE {staged}", staged=staged))
    return int(rows)


def _by_one_model(
    db: Database, given: IntoArguments, ref: ModelRef, tables: ModelTables, source: Relation
) -> tuple[Sql, str]:
    """The table with the answers, and the outputs that they are of."""
    sealed, memory_mb = tables.must_seal(db), tables.memory_mb(db)
    with execution.place_for(db, source, False, sealed=sealed, memory_mb=memory_mb) as predict:
        from ..models import calibrations
        from ..models.model_cache import read_model
        from . import keys_and_outputs, table_rows  # only now: the trainer starts meanwhile

        ranks = keys_and_outputs.require_top(given.top)
        wanted = calibrations.Wanted.of(given.coverage, given.calibrated, given.thresholds)
        model = read_model(db, ref, given.configuration, tables)
        present = relations.columns(db, source)
        inputs = keys_and_outputs.inputs_of(db, model.layout, present, f"'{source.text}'")
        columns = _key(db, given, model, source, present)
        applied = calibrations.applied(db, model, wanted)
        best = keys_and_outputs.best_classes(model.layout.outputs, ranks, applied)
        to_predict = table_rows.RowsToPredict(source, present, inputs, keys_and_outputs.key_of(columns), columns)
        staged = table_rows.answers(db, predict, model, to_predict, best)
    return staged, keys_and_outputs.outputs_as_json(model.layout.outputs, applied)


def _by_group(
    db: Database, given: IntoArguments, ref: ModelRef, tables: ModelTables, source: Relation
) -> tuple[Sql, str] | None:
    """The same with models of groups, in the caller's session; None: the model table has none."""
    from ..models import calibrations
    from ..models.model_cache import read_model
    from . import by_group, keys_and_outputs

    ranks = keys_and_outputs.require_top(given.top)
    wanted = calibrations.Wanted.of(given.coverage, given.calibrated, given.thresholds)
    model = read_model(db, ref, given.configuration, tables)
    if model.grouped is None:
        return None
    by_group.require_plain(wanted, given.model_table)
    present = relations.columns(db, source)
    columns = _key(db, given, model, source, present)
    rows = by_group.RowsOfGroups(source, present, f"'{source.text}'", columns)
    best = keys_and_outputs.best_classes(model.layout.outputs, ranks)
    staged = execution.create_temporary(db)
    for chunk in by_group.predicted(db, model, rows, given.configuration, best):
        db.execute(staging.add(staged), staging.ADDED, 0, len(chunk["ids"]), chunk["ids"], chunk["answers"])
    return staged, keys_and_outputs.outputs_as_json(model.layout.outputs)


def _key(
    db: Database, given: IntoArguments, model: TrainedModel, source: Relation, present: dict[str, Column]
) -> list[str]:
    from . import keys_and_outputs

    named = f"'{source.text}'"
    columns = keys_and_outputs.key_columns(db, given.key, present, model.layout, source, named)
    if not columns:
        raise InvalidArgument(
            f"{named} has no column for the key: the model uses them, or they have NULLs or equal values.",
            hint="Add a column that numbers the rows, or name one of the columns: key => 'column'.",
        )
    return columns
