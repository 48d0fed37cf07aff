"""What is on record of visits and evaluations; ``unit_rows.py`` adds it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from cerebro_db.core.events import ENDINGS, Event
from cerebro_db.core.protocol import MetricStates
from cerebro_db.core.scheduling.schedule import Evaluate, Train
from cerebro_db.core.sql import joined, sql

from ....sessions.session import Rows, Statement
from .base import OF_ALL_ROWS, OWN, Part, counted_states, listed

WEIGHT = sql("COALESCE(weight, rows)")  # of the loss of an evaluation beside those of other parts


class UnitLog(Part):
    """What each unit of work has found, and how long it took."""

    def attempts(self, visits: Sequence[Train], worker_pid: int, began: datetime | None = None) -> Statement:
        """Record that visits of different models begin; returns when, if that is not given."""
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
        """(seconds since the run first began, value) of every complete epoch, in the order of time.

        Without the models of groups: values on other rows cannot be compared.
        """
        return [
            (seconds, value)
            for seconds, value in self._all(
                sql(
                    "SELECT extract(epoch FROM o.at - (SELECT min(at) FROM cerebro.event WHERE {own} AND event = {}))"
                    "::double precision AS seconds, o.value FROM cerebro.objective o"
                    " WHERE {own} AND {of_models} ORDER BY o.at",
                    own=OWN,
                    of_models=self._of_models(OF_ALL_ROWS),
                ),
                Event.STARTED.value,
                self.run,
            )
        ]

    def judged_rows(self) -> int:
        """On how many rows the models were evaluated that were evaluated on most of them; else those of an epoch."""
        return int(
            self._value(
                sql(
                    "SELECT COALESCE((SELECT max(s.rows) FROM (SELECT sum(COALESCE(e.sampled, e.rows)) AS rows"
                    "  FROM cerebro.evaluation e WHERE {own} GROUP BY e.model, e.epoch) s),"
                    " (SELECT r.rows_per_epoch FROM cerebro.run r WHERE {own}))",
                    own=OWN,
                ),
                self.run,
            )
        )

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
        """(model, epoch, dataset, part, weight, loss, metrics) of every evaluation.  Needs a recorder session."""
        return self._all(
            sql(
                "SELECT model, epoch, dataset, part, {weight} AS weight, loss, metrics FROM cerebro.evaluation"
                " WHERE {own}"
                " ORDER BY model, epoch, dataset, part",
                own=OWN,
                weight=WEIGHT,
            )
        )

    def evaluation_on_record(self, unit: Evaluate) -> tuple[float, float, dict[str, Any]] | None:
        """(weight, loss, metrics) of an evaluation, if it is committed."""
        found = self._all(
            sql(
                "SELECT {weight} AS weight, loss, metrics FROM cerebro.evaluation WHERE {own} AND model = {}"
                " AND epoch = {} AND dataset = {} AND part = {}",
                own=OWN,
                weight=WEIGHT,
            ),
            unit.model,
            unit.epoch,
            unit.dataset,
            unit.part,
        )
        return found[0] if found else None  # type: ignore[return-value]

    def hop_on_record(
        self, unit: Train
    ) -> tuple[int, float, dict[str, Any], int, str | None, MetricStates | None] | None:
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
