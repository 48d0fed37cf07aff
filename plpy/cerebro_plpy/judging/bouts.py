"""``cerebro.bouts``: how long subjects stay in a class before another one begins."""

from __future__ import annotations

import json
import math
from typing import Any

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.sql import Sql, sql

from ..database.access import Database
from ..database.entry import entry
from . import timed_steps
from .timed_steps import TimedSteps

COLUMNS = ("subject_value", "day", "class", "valid_days", "worn_hours", "hours", "bouts", "mean_minutes",
           "usual_minutes", "alpha", "share_30", "share_60")  # fmt: skip


@entry
def bouts(
    db: Database,
    *,
    query: str | None,
    subject: str | None,
    step_time: str | None,
    class_column: str | None,
    step_seconds: float | None = None,
    valid_hours: float | None = 10,
) -> list[dict[str, Any]]:
    """A row for each subject, day and class, and one for each subject and class on all valid days."""
    wanted = timed_steps.named(subject, step_time, class_column, step_seconds)
    if valid_hours is None or not 0 <= valid_hours < math.inf:
        raise InvalidArgument(
            f"valid_hours is {'NULL' if valid_hours is None else valid_hours}; it must be 0 or more.",
            hint="A day is valid if it has so many worn hours.",
        )
    steps = timed_steps.of(db, query, "query", wanted)
    found = db.scan(_statement(steps, float(valid_hours)))
    steps.require_sound(json.loads(found[0]["faults"]))
    return [{name: row[name] for name in COLUMNS} for row in found if row["bouts"] is not None]


def _statement(steps: TimedSteps, valid_hours: float) -> Sql:
    """The rows, each with the faults of the steps; one without values if there are no bouts."""
    return sql(
        "WITH {tables}, "
        # The first step of each bout. The first one of the next bout says how many steps it has.
        "firsts AS ("
        "SELECT s.b, s.day, s.c, s.n, l.rows, l.seconds FROM {steps} AS s JOIN {lengths} AS l ON l.b = s.b"
        " WHERE s.n = 1 OR s.c IS DISTINCT FROM s.c_before OR s.day <> s.day_before OR {is_after_gap}), "
        "bouts AS ("
        "SELECT b, day, c, round(1000000 * seconds * (lead(n, 1, rows + 1) OVER (PARTITION BY b ORDER BY n) - n))"
        " / 1000000 AS seconds FROM firsts), "
        # Many bouts are equally long. This leaves few rows.
        "lengths AS ("
        "SELECT b, day, c, seconds, count(*) AS n, seconds * count(*) AS total FROM bouts WHERE c IS NOT NULL"
        " GROUP BY b, day, c, seconds), "
        "worn AS (SELECT b, day, sum(total) / 3600 AS hours FROM lengths GROUP BY b, day), "
        "whole AS (SELECT b, count(*) AS days, sum(hours) AS hours FROM worn WHERE hours >= {least} GROUP BY b), "
        "counted AS ("
        "SELECT t.*, (w.hours >= {least})::integer::bigint AS days, w.hours AS worn"
        " FROM lengths AS t JOIN worn AS w ON w.b = t.b AND w.day = t.day"
        " UNION ALL "
        "SELECT t.b, NULL, t.c, t.seconds, t.n, t.total, a.days, a.hours"
        " FROM lengths AS t JOIN worn AS w ON w.b = t.b AND w.day = t.day JOIN whole AS a ON a.b = t.b"
        " WHERE w.hours >= {least}), "
        "ranked AS ("
        "SELECT *, sum(total) OVER (g ORDER BY seconds DESC) AS longer, sum(total) OVER g AS whole,"
        " min(seconds) OVER g AS shortest FROM counted WINDOW g AS (PARTITION BY b, day, c)), "
        "found AS ("
        "SELECT b, day, c, max(days) AS days, max(worn) AS worn, sum(total) AS seconds, sum(n)::bigint AS bouts,"
        " max(seconds) FILTER (WHERE 2 * longer >= 0.999999999 * whole) AS usual,"
        " sum(n * ln(seconds / shortest)) AS logarithms,"
        " sum(total) FILTER (WHERE seconds >= 1800) AS half_hours,"
        " sum(total) FILTER (WHERE seconds >= 3600) AS whole_hours FROM ranked GROUP BY b, day, c) "
        "SELECT {faults}, f.b AS subject_value, f.day::text AS day, f.c AS class, f.days AS valid_days,"
        " f.worn AS worn_hours, f.seconds / 3600 AS hours, f.bouts, f.seconds / f.bouts / 60 AS mean_minutes,"
        " f.usual / 60 AS usual_minutes, 1 + f.bouts / NULLIF(f.logarithms, 0) AS alpha,"
        " COALESCE(f.half_hours, 0) / f.seconds AS share_30, COALESCE(f.whole_hours, 0) / f.seconds AS share_60"
        " FROM (SELECT 1) AS one LEFT JOIN found AS f ON true ORDER BY f.b, f.day NULLS LAST, f.c",
        tables=steps.tables,
        steps=steps.table("steps"),
        lengths=steps.table("lengths"),
        is_after_gap=steps.is_after_gap,
        least=valid_hours,
        faults=steps.faults("faults"),
    )
