"""A model on all rows is evaluated on the rows of each group, too: its figures say which groups need no model.

With folds, that is the model of each fold, on those rows of the group that are in the fold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cerebro_db.core.events import DataSetName
from cerebro_db.core.models.metrics import loggable, number
from cerebro_db.core.protocol import EvaluatedModel, ModelState, Span
from cerebro_db.core.records import dataclass
from cerebro_db.core.scheduling.plan import Evaluate

from ..record.run import Run


@dataclass(frozen=True)
class OnGroup:
    """The evaluation of a model on those rows of a part that belong to a group."""

    group_number: int
    span: Span

    def of(self, state: ModelState) -> ModelState:
        return replace(state, span=self.span)


def wanted(run: Run, unit: Evaluate) -> list[OnGroup]:
    """What an order evaluates beside a unit: of a model on all rows the groups that have models of their own."""
    asked = run.models[unit.model].asked
    if not (asked.group_number is None and run.source.has_groups and unit.dataset == DataSetName.VALIDATION):
        return []
    data, known = run.data(unit.dataset), set(run.groups)
    if asked.fold is not None:
        known = {group for group in known if unit.part in data.rows_for(asked.fold, group, trained=False)}
    return [
        OnGroup(group, Span(*data.spans[unit.part, group]))
        for group, _ in data.partitions[unit.part].groups
        if group in known
    ]


def with_seconds(mine: EvaluatedModel, beside: Sequence[EvaluatedModel]) -> EvaluatedModel:
    """The result of a unit, with the seconds of what was evaluated beside it."""
    seconds = dict(mine.seconds)
    for other in beside:
        for stage, took in other.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + took
    return replace(mine, seconds=seconds)


def on_record(metric: str, found: Sequence[tuple[OnGroup, EvaluatedModel]]) -> list[list[Any]]:
    """For each group its number, its rows, the loss, and the value, total and count of the ``metric``.

    The total and the count are there if the metric is a mean over rows: then a group on several parts has the mean of
    all of them.
    """
    figures = []
    for one, mine in found:
        if mine.error is not None:
            continue
        total, count = mine.metric_states.means.get(metric, (None, None))
        values = mine.loss, number(mine.metrics.get(metric)), total, count
        figures.append([one.group_number, mine.rows, *map(_finite, values)])
    return figures


def _finite(value: float | None) -> float | None:
    found = None if value is None else loggable(value)
    return found if found is not None and math.isfinite(found) else None
