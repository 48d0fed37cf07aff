"""The records of visits and evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from cerebro_db.core import metrics as metric_values
from cerebro_db.core.events import ENDINGS, Event
from cerebro_db.core.protocol import EvaluatedModel, MetricStates, TrainedMember
from cerebro_db.core.scheduling.schedule import Evaluate, Train
from cerebro_db.core.sql import joined, marks, sql

from ....sessions.session import Rows, Statement
from .base import OWN, Part, counted_states, listed, recordable


class UnitLog(Part):
    """What each unit of work has found, and how long it took."""

    def attempts(self, visits: Sequence[Train], worker_pid: int, began: datetime | None = None) -> Statement:
        """Record that visits begin; returns when, if that is not given."""
        moment = sql("clock_timestamp()") if began is None else sql("{}")
        rows = joined(", ", [sql("({}, {}, {}, {}, {}, {moment})", moment=moment)] * len(visits))
        values: list[Any] = []
        for visit in visits:
            values += [self.run, visit.model, visit.hop, visit.segment, worker_pid, *([] if began is None else [began])]
        insert = sql(
            "INSERT INTO cerebro.attempt (run, model, hop, segment, worker_pid, started_at) VALUES {rows}", rows=rows
        )
        if began is not None:
            return Statement(insert, values)
        return Statement(sql("{insert} RETURNING started_at", insert=insert), values, answers=True)

    def hop(
        self,
        visit: Train,
        trained: TrainedMember,
        *,
        began: datetime,
        slice_of_time: tuple[float, float],
        worker_pid: int,
        trainer_pid: int,
        seconds: Mapping[str, Any],
        shared_by: int,
        behind: datetime | None,
        saving: datetime | None = None,
    ) -> Statement:
        """Record a hop, in the transaction that stores its state.

        ``began`` is when its order began, and ``slice_of_time`` which part of the time since then was this visit's, as
        fractions.  The time since the transaction began, or since ``saving`` if it is given, counts as saving, divided
        among the ``shared_by`` visits of the order.  If the state is stored ``behind`` (the trainer has worked on the
        next unit since that moment, or has been free for it), the order's time ends at that moment, and each visit's
        share of the time since then follows its slice.
        """
        seconds = dict(seconds)
        saved, moment = seconds.pop("save", 0.0), behind or saving
        since = sql("now()") if moment is None else sql("{}")
        join = sql("+") if behind is None else sql(", 'behind',")
        return Statement(
            sql(
                "INSERT INTO cerebro.hop (run, model, hop, kind, epoch, segment, worker_pid, trainer_pid, rows, steps,"
                "  loss, metric_name, metric, metrics, metric_states, state_bytes, state_sha256, weights_offset,"
                "  weights_bytes, seconds, started_at, finished_at)"
                " SELECT {values}, {}::jsonb"
                "  || jsonb_build_object('save', {} {join} extract(epoch FROM clock.now - {since}) / {}),"
                "  clock.began + (clock.done - clock.began) * {},"
                "  clock.began + (clock.done - clock.began) * {} + (clock.now - clock.done) / {}"
                " FROM (SELECT t.*, coalesce({}::timestamptz, t.now) AS done"
                "         FROM (SELECT {}::timestamptz AS began, clock_timestamp() AS now) t) clock",
                values=marks(19),
                join=join,
                since=since,
            ),
            [
                self.run,
                visit.model,
                visit.hop,
                visit.kind.value,
                visit.epoch,
                visit.segment,
                worker_pid,
                trainer_pid,
                trained.rows,
                trained.steps,
                metric_values.loggable(trained.loss),
                *metric_values.first(trained.metrics),
                metric_values.to_json(trained.metrics),
                recordable(trained.metric_states),
                trained.state.bytes,
                trained.state.sha256,
                trained.state.weights_offset,
                trained.state.weights_bytes,
                json.dumps(seconds),
                saved,
                *([] if moment is None else [moment]),
                shared_by,
                *slice_of_time,
                shared_by,
                behind,
                began,
            ],
        )

    def evaluation(
        self,
        unit: Evaluate,
        evaluated: EvaluatedModel,
        metrics: Mapping[str, Any],
        *,
        began: datetime,
        slice_of_time: tuple[float, float],
        worker_pid: int,
        seconds: Mapping[str, float],
        of_groups: Sequence[Sequence[Any]] = (),
    ) -> Statement:
        """Record an evaluation of a part.  ``metrics`` are those of all parts if it is the last, else empty.

        ``began`` and ``slice_of_time`` are as in ``hop``.  ``of_groups``: as units/on_groups.py gives them.
        """
        # Until the extension is updated, the table of an earlier version has no such column; nor has it groups.
        column = (sql(", of_groups"), sql(" {}::jsonb,")) if of_groups else (sql(""), sql(""))
        return Statement(
            sql(
                "INSERT INTO cerebro.evaluation (run, model, epoch, dataset, part, segment, worker_pid,"
                " rows, loss, metric_name, metric, metrics, metric_states, seconds{column}, started_at, finished_at)"
                " SELECT {values}, {}::jsonb,{value}"
                "  clock.began + (clock.now - clock.began) * {}, clock.began + (clock.now - clock.began) * {}"
                " FROM (SELECT {}::timestamptz AS began, clock_timestamp() AS now) clock",
                values=marks(13),
                column=column[0],
                value=column[1],
            ),
            (
                self.run,
                unit.model,
                unit.epoch,
                unit.dataset,
                unit.part,
                unit.segment,
                worker_pid,
                evaluated.rows,
                metric_values.loggable(evaluated.loss),
                *metric_values.first(metrics),
                metric_values.to_json(metrics),
                recordable(evaluated.metric_states),
                json.dumps(seconds),
                *([json.dumps(of_groups)] if of_groups else []),
                *slice_of_time,
                began,
            ),
        )

    def objective(self, model: int, epoch: int, hop: int, value: float, kept: bool) -> Statement:
        """Record the objective of a complete epoch.  ``kept``: the same transaction keeps the state."""
        return self._insert("objective", {"model": model, "epoch": epoch, "hop": hop, "value": value, "kept": kept})

    def objectives(self, model: int | None = None) -> Rows:
        """(model, epoch, value, kept) of all epochs on record, or of one model's, in order."""
        return self._all(
            sql(
                "SELECT model, epoch, value, kept FROM cerebro.objective WHERE {own}{one} ORDER BY model, epoch",
                own=OWN,
                one=sql("") if model is None else sql(" AND model = {}"),
            ),
            *([] if model is None else [model]),
        )

    def objective_over_time(self) -> list[tuple[float, float]]:
        """(seconds since the run first began, value) of every complete epoch, in the order of time."""
        return [
            (seconds, value)
            for seconds, value in self._all(
                sql(
                    "SELECT extract(epoch FROM o.at - (SELECT min(at) FROM cerebro.event WHERE {own} AND event = {}))"
                    "::double precision AS seconds, o.value FROM cerebro.objective o WHERE {own} ORDER BY o.at",
                    own=OWN,
                ),
                Event.STARTED.value,
                self.run,
            )
        ]

    def trained_seconds(self) -> list[tuple[int, float, float, float]]:
        """(model, seconds of its visits, when the first and the last of them ended, in seconds since 1970)."""
        return [
            tuple(row)  # type: ignore[misc]
            for row in self._all(
                sql(
                    "SELECT model, sum(extract(epoch FROM finished_at - started_at))::double precision AS took,"
                    " extract(epoch FROM min(finished_at))::double precision AS first,"
                    " extract(epoch FROM max(finished_at))::double precision AS last"
                    " FROM cerebro.hop WHERE {own} GROUP BY model",
                    own=OWN,
                )
            )
        ]

    def counted_by_part(self) -> dict[tuple[int, int, str], dict[int, MetricStates]]:
        """Model, epoch, data set -> by part, what the metrics have counted, where no part has the metrics of all."""
        found: dict[tuple[int, int, str], dict[int, MetricStates]] = {}
        for model, epoch, dataset, part, counted in self._all(
            sql(
                "SELECT model, epoch, dataset, part, metric_states FROM (SELECT e.*,"
                "  bool_or(metrics <> '{{}}') OVER (PARTITION BY model, epoch, dataset) AS merged"
                " FROM cerebro.evaluation e WHERE {own}) e WHERE NOT merged",
                own=OWN,
            )
        ):
            states = counted_states(counted)
            if states is not None:
                found.setdefault((model, epoch, dataset), {})[part] = states
        return found

    def evaluated(self) -> dict[int, list[tuple[int, str, int]]]:
        """Model -> the (epoch, dataset, part) that were evaluated."""
        done: dict[int, list[tuple[int, str, int]]] = {}
        for model, *evaluation in self._all(
            sql("SELECT model, epoch, dataset, part FROM cerebro.evaluation WHERE {own}", own=OWN)
        ):
            done.setdefault(model, []).append(tuple(evaluation))  # type: ignore[arg-type]
        return done

    def hops(self) -> Rows:
        """(model, epoch, hop, rows, loss, metrics) of every hop.  Needs a recorder session."""
        return self._all(
            sql(
                "SELECT model, epoch, hop, rows, loss, metrics FROM cerebro.hop WHERE {own} ORDER BY model, hop",
                own=OWN,
            )
        )

    def evaluations(self) -> Rows:
        """(model, epoch, dataset, part, rows, loss, metrics) of every evaluation.  Needs a recorder session."""
        return self._all(
            sql(
                "SELECT model, epoch, dataset, part, rows, loss, metrics FROM cerebro.evaluation WHERE {own}"
                " ORDER BY model, epoch, dataset, part",
                own=OWN,
            )
        )

    def evaluation_on_record(self, unit: Evaluate) -> tuple[int, float, dict[str, Any]] | None:
        """(rows, loss, metrics) of an evaluation, if it is committed."""
        found = self._all(
            sql(
                "SELECT rows, loss, metrics FROM cerebro.evaluation WHERE {own} AND model = {} AND epoch = {}"
                " AND dataset = {} AND part = {}",
                own=OWN,
            ),
            unit.model,
            unit.epoch,
            unit.dataset,
            unit.part,
        )
        return found[0] if found else None  # type: ignore[return-value]

    def hop_on_record(self, unit: Train) -> tuple[int, float, dict[str, Any], int, str, MetricStates | None] | None:
        """(rows, loss, metrics, state_bytes, state_sha256, metric states) of a hop, if it is committed."""
        found = self._all(
            sql(
                "SELECT rows, loss, metrics, state_bytes, state_sha256, metric_states FROM cerebro.hop"
                " WHERE {own} AND model = {} AND hop = {}",
                own=OWN,
            ),
            unit.model,
            unit.hop,
        )
        if not found:
            return None
        *figures, counted = found[0]
        return (*figures, counted_states(counted))  # type: ignore[return-value]

    def driven_seconds(self) -> float:
        """How long sessions have driven the run, before the one that asks."""
        moments = self._all(
            sql(
                "SELECT event, extract(epoch FROM at)::double precision AS at FROM cerebro.event"
                " WHERE {own} AND event IN ({listed}) ORDER BY event_id",
                own=OWN,
                listed=listed((Event.STARTED, *ENDINGS)),
            )
        )
        seconds = 0.0
        for (event, began), (following, at) in zip(moments, moments[1:]):
            if event == Event.STARTED:
                # A session that was killed has no end on record: then its last heartbeat counts.
                ended = at if following != Event.STARTED else self._last_beat(began, at)
                seconds += max(0.0, ended - began)
        return seconds

    def _last_beat(self, since: float, until: float) -> float:
        last = self._value(
            sql(
                "SELECT extract(epoch FROM max(at))::double precision AS at FROM cerebro.heartbeat"
                " WHERE {own} AND at BETWEEN to_timestamp({}) AND to_timestamp({})",
                own=OWN,
            ),
            since,
            until,
        )
        return since if last is None else float(last)

    def unit_seconds(self) -> float:
        """How long the visits and evaluations on record have taken, in all."""
        took = sql("extract(epoch FROM finished_at - started_at)")
        return float(
            self.ask(
                sql(
                    "SELECT (COALESCE((SELECT sum({took}) FROM cerebro.hop WHERE {own}), 0)"
                    " + COALESCE((SELECT sum({took}) FROM cerebro.evaluation"
                    " WHERE {own}), 0))::double precision AS took",
                    took=took,
                    own=OWN,
                ),
                (self.run, self.run),
            )[0][0]
        )
