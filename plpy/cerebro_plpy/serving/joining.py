"""Which models an ensemble is made of: a model joins only if the validation rows are predicted better with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from cerebro_db.core.architecture import reading
from cerebro_db.core.architecture.ensembles import ensemble as mean_of
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.events import DataSetName
from cerebro_db.core.metrics import LOSS, number
from cerebro_db.core.records import dataclass
from cerebro_db.core.search.objective import Objective
from cerebro_db.core.sql import sql

from ..data import packed, visibility
from ..data.packed import Packed
from ..database import relations
from ..database.access import Database
from ..database.relations import Relation
from . import teams
from .evaluate import evaluating
from .trained import TrainedModel, read

COLUMNS = ("validation_table", "objective", "direction")  # of the summary


@dataclass
class Together:
    """Several models as one: their architecture, and their weights one after the other."""

    members: list[TrainedModel]

    @property
    def definition(self) -> dict[str, Any]:
        first, *others = (one.definition for one in self.members)
        if not others:
            return first
        architecture = json.dumps(mean_of([one["architecture"] for one in (first, *others)]))
        return {**first, "architecture": reading.architecture(architecture)}

    def weights(self, db: Database) -> Iterator[bytes]:
        return (piece for one in self.members for piece in one.weights(db))


@dataclass
class Measure:
    """What decides: the objective of the run on its validation rows, or else their loss."""

    rows: Packed
    objective: Objective
    of_run: bool  # else the run has another objective, which no validation rows measure


@dataclass
class Joined:
    keys: list[int]
    value: float | None  # of the objective
    loss: float | None
    alone: float | None  # the value of the first model alone


def measure_of(db: Database, table: Relation, summary: Relation, best: int) -> Measure | None:
    """None, with a notice, if the models cannot be judged on the validation rows of the run."""
    present = relations.columns(db, summary)
    found = None
    if set(COLUMNS) <= set(present):
        relations.require_readable(db, summary, [present[name] for name in COLUMNS])
        found = db.one(sql("SELECT validation_table, objective, direction FROM {summary} LIMIT 1", summary=summary.sql))
    if found is None or found["validation_table"] is None:
        db.notice("the run has no validation rows, so all members join")
        return None
    try:
        visibility.refuse_transaction(db)
        rows = packed.read(db, found["validation_table"], argument="validation_table")
        packed.require_same_shapes(read(db, table.name.quoted, best)[0].layout.to_json(), table.text, rows)
    except CerebroError as error:
        db.notice(f"the models cannot be judged on the validation rows, so all members join: {error.message}")
        return None
    objective = Objective(found["objective"], found["direction"])
    of_run = objective.dataset == DataSetName.VALIDATION
    return Measure(rows, objective if of_run else Objective(f"val_{LOSS}"), of_run)


def joined(db: Database, table: str, keys: Sequence[int], measure: Measure) -> Joined:
    """The first model, and those after it with which the mean is better than without them."""
    models = {key: read(db, table, key)[0] for key in keys}
    data = measure.rows.dataset
    with evaluating(db, measure.rows, False, models[keys[0]].memory_mb) as (team, parts):

        def judged(chosen: list[int]) -> tuple[float | None, float | None]:
            together = Together([models[key] for key in chosen])
            loss, metrics = teams.again_if_lost(team, lambda: teams.evaluate(db, team, together, data, parts))
            named = measure.objective.metric
            return number(loss if named == LOSS else metrics.get(named)), number(loss)

        value, loss = judged([keys[0]])
        best = Joined([keys[0]], value, loss, value)
        for key in keys[1:]:
            value, loss = judged([*best.keys, key])
            score, before = measure.objective.score(value), measure.objective.score(best.value)
            if score is not None and (before is None or score < before):
                best = Joined([*best.keys, key], value, loss, best.alone)
    return best
