"""The rows that the units of an order add to the log: a statement for each table, not for each row.

A statement takes its rows as one JSON document.  An order may have hundreds of short units.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from cerebro_db.core import codec
from cerebro_db.core.models import metrics as metric_values
from cerebro_db.core.protocol import EvaluatedModel, OutgoingState, TrainedVisit
from cerebro_db.core.records import dataclass, field
from cerebro_db.core.scheduling.schedule import Evaluate, Train
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.sql_types import SqlType

from ....sessions.session import Statement
from .base import recordable

Row = dict[str, Any]
SliceOfTime = tuple[float, float]  # of the time of an order, as fractions

FIGURES = {
    "rows": "bigint", "loss": "double precision", "metric_name": "text", "metric": "double precision",
    "metrics": "text", "metric_states": "text", "seconds": "text", "starts": "double precision",
    "ends": "double precision",
}  # fmt: skip
HOP = {
    "model": "integer", "hop": "integer", "kind": "text", "epoch": "integer", "segment": "integer", "steps": "bigint",
    "state_bytes": "bigint", "state_sha256": "text", "weights_offset": "bigint", "weights_bytes": "bigint",
    "frozen": "jsonb", "saved": "double precision", **FIGURES,
}  # fmt: skip
EVALUATION = {
    "model": "integer", "epoch": "integer", "dataset": "text", "part": "integer", "segment": "integer",
    "of_groups": "jsonb", "sampled": "bigint", "weight": "double precision", **FIGURES,
}  # fmt: skip
OBJECTIVE = {
    "model": "integer", "epoch": "integer", "hop": "integer", "value": "double precision", "kept": "boolean",
}  # fmt: skip


@dataclass(frozen=True)
class OrderOnRecord:
    """What the log says of an order that has trained or evaluated.

    ``began`` is when it began.  The time since the transaction began, or since ``saving`` if it is given, counts as
    saving, divided among the ``shared_by`` units.  If the states are stored ``behind`` (the trainer has worked on the
    next unit since that moment, or has been free for it), the order's time ends at that moment, and each unit's share
    of the time since then follows its slice.
    """

    began: datetime
    worker_pid: int
    trainer_pid: int | None = None
    shared_by: int = 1
    behind: datetime | None = None
    saving: datetime | None = None


@dataclass
class UnitRows:
    """The rows of the units of one order."""

    run: int
    order: OrderOnRecord
    _hops: list[Row] = field(default_factory=list)
    _evaluations: list[Row] = field(default_factory=list)
    _objectives: list[Row] = field(default_factory=list)

    def hop(
        self,
        visit: Train,
        trained: TrainedVisit,
        state: OutgoingState,
        *,
        stored: bool,
        slice_of_time: SliceOfTime,
        seconds: Mapping[str, Any],
    ) -> None:
        """``stored``: whether the state that the visit has left is stored; else the next visit has taken it over."""
        seconds = dict(seconds)
        self._hops.append(
            {
                "model": visit.model,
                "hop": visit.hop,
                "kind": visit.kind.value,
                "epoch": visit.epoch,
                "segment": visit.segment,
                "steps": trained.steps,
                "state_bytes": state.bytes,
                "state_sha256": state.sha256 if stored else None,
                "weights_offset": state.weights_offset,
                "weights_bytes": state.weights_bytes,
                "saved": seconds.pop("save", 0.0),
                **({"frozen": codec.encode(state.frozen)} if state.frozen is not None and stored else {}),
                **_figures(trained, trained.metrics, seconds, slice_of_time),
            }
        )

    def evaluation(
        self,
        unit: Evaluate,
        evaluated: EvaluatedModel,
        metrics: Mapping[str, Any],
        *,
        slice_of_time: SliceOfTime,
        seconds: Mapping[str, float],
        of_groups: Sequence[Sequence[Any]] = (),
        sampled: int | None = None,
    ) -> None:
        """``metrics`` are those of all parts if this is the last, else empty.

        ``of_groups``: as units/on_groups.py gives them.  ``sampled``: how many of the part's rows; None: all.
        """
        weight = evaluated.weight(sampled)
        self._evaluations.append(
            {
                "model": unit.model,
                "epoch": unit.epoch,
                "dataset": unit.dataset,
                "part": unit.part,
                "segment": unit.segment,
                **({"of_groups": of_groups} if of_groups else {}),
                **({} if sampled is None else {"sampled": sampled}),
                **({} if weight == evaluated.rows else {"weight": weight}),
                **_figures(evaluated, metrics, seconds, slice_of_time),
            }
        )

    def objective(self, model: int, epoch: int, hop: int, value: float, kept: bool) -> None:
        """The objective of a complete epoch.  ``kept``: the same transaction keeps the state."""
        self._objectives.append({"model": model, "epoch": epoch, "hop": hop, "value": value, "kept": kept})

    def statements(self) -> list[Statement]:
        """What adds the rows, in the transaction that stores the states."""
        made = (self._of_hops, self._of_evaluations, self._of_objectives)
        rows = (self._hops, self._evaluations, self._objectives)
        return [statement() for statement, its in zip(made, rows) if its]

    def _of_hops(self) -> Statement:
        order = self.order
        moment = order.behind or order.saving
        return Statement(
            sql(
                "INSERT INTO cerebro.hop (run, model, hop, kind, epoch, segment, worker_pid, trainer_pid, rows, steps,"
                "  loss, metric_name, metric, metrics, metric_states, state_bytes, state_sha256, weights_offset,"
                "  weights_bytes, frozen, seconds, started_at, finished_at)"
                " SELECT {run}, model, hop, kind, epoch, segment, {}, {}, rows, steps,"
                "  loss, metric_name, metric, metrics::jsonb, metric_states, state_bytes, state_sha256, weights_offset,"
                "  weights_bytes, frozen, seconds::jsonb"
                "  || jsonb_build_object('save', saved {join} extract(epoch FROM clock.now - {since}) / {}),"
                "  clock.began + (clock.done - clock.began) * starts,"
                "  clock.began + (clock.done - clock.began) * ends + (clock.now - clock.done) / {}"
                " FROM (SELECT t.*, coalesce({}::timestamptz, t.now) AS done"
                "         FROM (SELECT {}::timestamptz AS began, clock_timestamp() AS now) t) clock,"
                "  pg_catalog.jsonb_to_recordset({}) AS h ({columns})",
                run=self.run,
                join=sql("+") if order.behind is None else sql(", 'behind',"),
                since=sql("now()") if moment is None else sql("{}"),
                columns=_typed(HOP),
            ),
            [
                order.worker_pid,
                order.trainer_pid,
                *([] if moment is None else [moment]),
                order.shared_by,
                order.shared_by,
                order.behind,
                order.began,
                json.dumps(self._hops),
            ],
        )

    def _of_evaluations(self) -> Statement:
        order = self.order
        return Statement(
            sql(
                "INSERT INTO cerebro.evaluation (run, model, epoch, dataset, part, segment, worker_pid,"
                " rows, loss, metric_name, metric, metrics, metric_states, seconds, of_groups, sampled, weight,"
                "  started_at, finished_at)"
                " SELECT {run}, model, epoch, dataset, part, segment, {}, rows, loss, metric_name, metric,"
                "  metrics::jsonb, metric_states, seconds::jsonb, of_groups, sampled, weight,"
                "  clock.began + (clock.done - clock.began) * starts, clock.began + (clock.done - clock.began) * ends"
                " FROM (SELECT t.*, coalesce({}::timestamptz, t.now) AS done"
                "         FROM (SELECT {}::timestamptz AS began, clock_timestamp() AS now) t) clock,"
                "  pg_catalog.jsonb_to_recordset({}) AS e ({columns})",
                run=self.run,
                columns=_typed(EVALUATION),
            ),
            [order.worker_pid, order.behind, order.began, json.dumps(self._evaluations)],
        )

    def _of_objectives(self) -> Statement:
        return Statement(
            sql(
                "INSERT INTO cerebro.objective (run, model, epoch, hop, value, kept)"
                " SELECT {run}, model, epoch, hop, value, kept"
                " FROM pg_catalog.jsonb_to_recordset({}) AS o ({columns})",
                run=self.run,
                columns=_typed(OBJECTIVE),
            ),
            [json.dumps(self._objectives)],
        )


def _figures(
    found: TrainedVisit | EvaluatedModel, metrics: Mapping[str, Any], seconds: Mapping[str, Any], of_time: SliceOfTime
) -> Row:
    name, value = metric_values.first(metrics)
    loss = metric_values.loggable(found.loss)
    return {
        "rows": found.rows,
        "loss": loss if math.isfinite(loss) else str(loss),  # JSON has no number for it
        "metric_name": name,
        "metric": value,
        "metrics": metric_values.to_json(metrics),
        "metric_states": recordable(found.metric_states),
        "seconds": json.dumps(seconds),
        "starts": of_time[0],
        "ends": of_time[1],
    }


def _typed(columns: Mapping[str, str]) -> Sql:
    return joined(
        ", ", (sql("{name} {kind}", name=identifier(name), kind=SqlType(kind).sql) for name, kind in columns.items())
    )
