"""``cerebro.predict_into``: the predictions for a whole table or view, on all segments, in a new table."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import sql

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from . import execution, trained


@dataclass(frozen=True)
class IntoArguments:
    """The arguments of ``cerebro.predict_into``, in the order of the SQL function."""

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
def predict_into(db: Database, *arguments: Any) -> int:
    """Write the table; return the number of rows, or windows, that were predicted."""
    given = IntoArguments(*arguments)
    source = relations.existing(db, given.source_table)
    output = relations.new(db, given.output_table)
    with execution.place_for(db, source, False, sealed=trained.must_seal(db, given.model_table)) as predict:
        from . import by_group, calibrations, natural, predictions, table_rows  # only now: the trainer starts meanwhile
        from .remembered import read_model

        ranks = natural.require_top(given.top)
        wanted = calibrations.Wanted.of(given.coverage, given.calibrated, given.thresholds)
        model = read_model(db, given.model_table or "", given.configuration)
        by_group.require_whole(model, "cerebro.predict_into", "cerebro.predict() predicts the rows of a query.")
        named, present = f"'{source.text}'", relations.columns(db, source)
        inputs = natural.inputs_of(db, model.layout, present, named)
        columns = natural.key_columns(db, given.key, present, model.layout, source, named)
        if not columns:
            raise InvalidArgument(
                f"{named} has no column for the key: the model uses them, or they have NULLs or equal values.",
                hint="Add a column that numbers the rows, or name one of the columns: key => 'column'.",
            )
        applied = calibrations.applied(db, model, wanted)
        best = natural.best_classes(model.layout.outputs, ranks, applied)
        to_predict = table_rows.RowsToPredict(source, present, inputs, natural.key_of(columns), columns)
        staged = table_rows.answers(db, predict, model, to_predict, best)
    predictions.write_rows(db, staged, output, natural.outputs_as_json(model.layout.outputs, applied))
    rows = db.value(sql("SELECT COALESCE(sum(rows), 0)::bigint AS rows FROM {staged}", staged=staged))
    db.execute(sql("DROP TABLE {staged}", staged=staged))
    return int(rows)
