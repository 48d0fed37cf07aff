"""``cerebro.transitions``: how many transitions between classes are predicted at the right time."""

from __future__ import annotations

import json
import math
from typing import Any

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.names import written_list
from cerebro_db.core.sql import Sql, sql
from cerebro_db.core.texts import counted

from ..database.access import Database
from ..database.entry import entry
from . import timed_steps
from .timed_steps import TimedSteps

COLUMNS = ("subject_value", "class_before", "class_after", "true_transitions", "predicted_transitions", "matched",
           "sensitivity", "predictive_value")  # fmt: skip
ROUNDING = 1e-6  # seconds; times are exact to microseconds, and their differences as numbers nearly so


@entry
def transitions(
    db: Database,
    *,
    truth: str | None,
    predicted: str | None,
    tolerance: float | None,
    subject: str | None,
    step_time: str | None,
    class_column: str | None,
    step_seconds: float | None = None,
) -> list[dict[str, Any]]:
    """A row for each kind of transition over all subjects, and one for each subject and kind."""
    wanted = timed_steps.named(subject, step_time, class_column, step_seconds)
    if tolerance is None or not 0 <= tolerance < math.inf:
        raise InvalidArgument(
            f"tolerance is {'NULL' if tolerance is None else tolerance}; it must be 0 or more seconds."
        )
    one, other = (timed_steps.of(db, *given, wanted) for given in ((truth, "truth"), (predicted, "predicted")))
    if one.time.type != other.time.type:
        raise InvalidArgument(
            f"'{one.time.name}' has the type {one.time.shown} in truth, and {other.time.shown} in predicted.",
            hint="A query can convert one of them: SELECT at AT TIME ZONE 'Europe/Paris' AS at, … .",
        )
    found = db.scan(_statement(one, other, float(tolerance)))
    for steps, name in ((one, "true_faults"), (other, "predicted_faults")):
        steps.require_sound(json.loads(found[0][name]))
    if not found[0]["shared"]:
        raise BadData(
            f"truth and predicted have no value of '{written_list(wanted.subject)}' in common.",
            hint="Are they of the same subjects, and written in the same way?",
        )
    for name, without in (("truth", "predicted"), ("predicted", "truth")):
        if left_out := int(found[0][f"in_{name}"]) - int(found[0]["shared"]):
            db.notice(f"left out: {counted(left_out, 'subject')} of {name} without rows in {without}")
    return [{name: row[name] for name in COLUMNS} for row in found if row["matched"] is not None]


def _statement(one: TimedSteps, other: TimedSteps, tolerance: float) -> Sql:
    """The rows, each with the faults of both queries; one without values if there are no transitions."""
    return sql(
        "WITH {one_tables}, {other_tables}, "
        "shared AS (SELECT o.b FROM {one_lengths} AS o JOIN {other_lengths} AS p ON p.b = o.b), "
        "moments AS ({one_moments} UNION ALL {other_moments}), "
        "kinds AS ("
        "SELECT b, c_before, c, array_agg(e ORDER BY e) FILTER (WHERE is_true) AS true_times,"
        " array_agg(e ORDER BY e) FILTER (WHERE NOT is_true) AS predicted_times FROM moments GROUP BY b, c_before, c), "
        "numbers AS ("
        "SELECT b, c_before, c, COALESCE(cardinality(true_times), 0) AS of_truth,"
        " COALESCE(cardinality(predicted_times), 0) AS of_predicted,"
        " cerebro_internal._matched(true_times, predicted_times, {tolerance}) AS matched FROM kinds), "
        "found AS ("
        "SELECT b, c_before, c, sum(of_truth)::bigint AS of_truth, sum(of_predicted)::bigint AS of_predicted,"
        " sum(matched)::bigint AS matched FROM numbers GROUP BY GROUPING SETS ((b, c_before, c), (c_before, c))) "
        "SELECT {true_faults}, {predicted_faults},"
        " (SELECT count(*) FROM shared) AS shared, (SELECT count(*) FROM {one_lengths}) AS in_truth,"
        " (SELECT count(*) FROM {other_lengths}) AS in_predicted,"
        " f.b AS subject_value, f.c_before AS class_before, f.c AS class_after, f.of_truth AS true_transitions,"
        " f.of_predicted AS predicted_transitions, f.matched,"
        " f.matched / NULLIF(f.of_truth, 0)::float8 AS sensitivity,"
        " f.matched / NULLIF(f.of_predicted, 0)::float8 AS predictive_value"
        " FROM (SELECT 1) AS one LEFT JOIN found AS f ON true ORDER BY f.b NULLS FIRST, f.c_before, f.c",
        one_tables=one.tables,
        other_tables=other.tables,
        one_moments=_moments(one, sql("true")),
        other_moments=_moments(other, sql("false")),
        tolerance=tolerance + ROUNDING,
        true_faults=one.faults("true_faults"),
        predicted_faults=other.faults("predicted_faults"),
        one_lengths=one.table("lengths"),
        other_lengths=other.table("lengths"),
    )


def _moments(steps: TimedSteps, is_true: Sql) -> Sql:
    """The steps that begin another class than that of the step before."""
    return sql(
        "SELECT s.b, s.c_before, s.c, s.e, {is_true} AS is_true FROM {steps} AS s JOIN {lengths} AS l ON l.b = s.b"
        " JOIN shared AS h ON h.b = s.b WHERE s.c <> s.c_before AND NOT {is_after_gap}",
        is_true=is_true,
        steps=steps.table("steps"),
        lengths=steps.table("lengths"),
        is_after_gap=steps.is_after_gap,
    )
