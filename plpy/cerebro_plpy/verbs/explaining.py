"""``cerebro.explain``: the rows that the run of a model kept for validation are the background of explanations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cerebro_db.core.errors import CerebroError

from ..database.access import Database
from ..database.entry import entry_of_rows
from ..judging import explaining
from ..judging.explaining import ExplainArguments
from ..models.trained import TrainedModel
from ..packing import packed
from ..packing.packed import Packed
from ..runs.record import own_runs


@entry_of_rows("cerebro.explain")
def explained(db: Database, **arguments: Any) -> Iterator[dict[str, Any]]:
    return explaining.explained(db, ExplainArguments(**arguments), lambda model: _kept(db, model))


def _kept(db: Database, model: TrainedModel) -> Packed | None:
    """The packed rows on which the run evaluated its models, if they are still there and the caller's."""
    run = own_runs.of_trained(db, model.table, model.layout)
    try:
        found = None if run is None else run.packed_validation(db)
        if found is None:
            return None
        table = packed.read(db, found.name.quoted, argument="validation_table")
        packed.require_same_shapes(model.layout, model.table.text, table)
        return table
    except CerebroError:
        return None
