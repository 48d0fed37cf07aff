"""How good a trained model is on the rows of a query or of a packed table, in one statement over its predictions.

Beside each metric is what a simple answer would get, as in cerebro_db/core/models/quality.py: the mean of the target in
these rows, their most frequent class, or how frequent each class is in them.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from cerebro_db.core.models import calibration
from cerebro_db.core.protocol import Calibrated
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, constant, literal, sql
from cerebro_db.core.texts import counted

from ..database.access import Database
from ..models import calibrations
from ..models.trained import TrainedModel
from . import samples
from .judged_rows import JudgingArguments, judged_target, to_predict
from .samples import Sample

# The rows of lines that are a parameter, each an array in JSON.
PACKED_NUMBERS = sql(
    "SELECT (v.line ->> 0)::double precision AS actual, (v.line ->> 1)::double precision AS value,"
    " (v.line ->> 2)::double precision AS lower, (v.line ->> 3)::double precision AS upper"
    " FROM (SELECT u::json AS line FROM unnest($1::text[]) AS u) v"
)
PACKED_CLASSES = sql(
    "SELECT v.line ->> 0 AS actual, v.line ->> 1 AS class, (v.line ->> 2)::double precision AS probability,"
    " (v.line ->> 3)::integer AS rank FROM (SELECT u::json AS line FROM unnest($1::text[]) AS u) v"
)


@dataclass(frozen=True)
class ComparedMetric:
    """None: these rows do not define the value, or no simple answer has one."""

    metric: str
    value: float | None
    baseline: float | None


def of_query(db: Database, given: JudgingArguments) -> list[ComparedMetric]:
    """The metrics in their order."""
    judged = to_predict(db, given)
    predictions = sql(
        # A query has it once: on Greenplum, it can read cerebro.predict only once.
        "cerebro.predict({model}, {rows}, {key}, {configuration}, {top}, {coverage}, {calibrated}, {thresholds},"
        " related => {related}) p"
        " WHERE p.target = {target}",
        model=constant(given.model_table),
        rows=literal(judged["rows_query"]),
        key=literal(judged["row_key"]),
        configuration=constant(given.configuration),
        top=1 if judged["classes"] is None else 1_000_000,
        coverage=constant(given.coverage),
        calibrated=constant(given.calibrated),
        thresholds=constant(given.thresholds),
        related=constant(given.related),
        target=literal(judged["of_target"]),
    )
    if judged["classes"] is None:
        rows = sql(
            "SELECT (p.key_value::json ->> 1)::double precision AS actual, p.value, p.lower, p.upper"
            " FROM {predictions}",
            predictions=predictions,
        )
        statement = _of_numbers(rows, given.coverage is not None)
    else:
        rows = sql(
            "SELECT p.key_value::json ->> 1 AS actual, p.class, p.probability, p.rank FROM {predictions}",
            predictions=predictions,
        )
        statement = _of_classes(rows, judged["classes"], judged["class"], judged["null_is_class"])
    return _metrics(db, statement)


def of_packed_table(db: Database, model: TrainedModel, table: str, given: JudgingArguments) -> list[ComparedMetric]:
    """The same for the rows of a packed table; of a large one, for a random sample."""
    variable = judged_target(model.layout, given.target)
    wanted = calibrations.Wanted.of(given.coverage, given.calibrated, given.thresholds)
    applied = calibrations.applied(db, model, wanted) or calibrations.Applied()
    ((_, sample),) = samples.of_packed_table(db, model, table, [variable])
    sample.tell_left_out(db)
    compared = len(sample.actual)
    of_all = "" if compared == sample.rows else f" a random sample of {compared:,} of"
    db.detail(f"evaluated on{of_all} the {counted(sample.rows, 'row')} for validation in {table}")
    return of_sample(db, sample, applied, covers=given.coverage is not None)


def of_sample(db: Database, sample: Sample, applied: calibrations.Applied, *, covers: bool) -> list[ComparedMetric]:
    """The metrics of rows that are predicted.  ``covers``: also those of the intervals."""
    if sample.labels is None:
        statement = _of_numbers(PACKED_NUMBERS, covers)
        lines = _numbers(sample, applied.intervals.get(sample.target))
    else:
        second = sample.labels[1] if len(sample.labels) == 2 else None
        statement = _of_classes(PACKED_CLASSES, len(sample.labels), second, None in sample.labels)
        lines = _classes(sample, sample.labels, applied.classes.get(sample.target))
    # As texts, because JSON has no infinite numbers.
    return _metrics(db, statement, [json.dumps([None if one is None else str(one) for one in line]) for line in lines])


def _numbers(sample: Sample, interval: tuple[list[float], list[float]] | None) -> Iterator[tuple[Any, ...]]:
    """The actual value, the predicted one, and the ends of its interval."""
    for actual, value in zip(sample.actual, sample.predicted):
        if interval is None:
            yield actual, value, None, None
        else:
            edges, halves = interval
            half = halves[bisect_right(edges, value)]
            yield actual, value, value - half, value + half


def _classes(
    sample: Sample, labels: list[str | None], calibrated: Calibrated | None
) -> Iterator[tuple[str | None, str | None, float, int]]:
    """For each row and class: the actual class, the class, its probability, and 1 for the class that is predicted."""
    for actual, its in zip(sample.actual, sample.probabilities()):
        scores = its = its if calibrated is None else calibration.tempered(its, calibrated.temperature)
        if calibrated is not None and calibrated.weights is not None:
            scores = [one * weight for one, weight in zip(its, calibrated.weights)]
        predicted = max(range(len(scores)), key=scores.__getitem__)
        for place, probability in enumerate(its):
            yield labels[actual], labels[place], probability, 1 if place == predicted else 2


def _metrics(db: Database, statement: Sql, *lines: list[str]) -> list[ComparedMetric]:
    # As texts, because JSON, which Greenplum makes of the rows, has no infinite numbers.
    found = db.scan(statement, *lines)
    return [ComparedMetric(row["metric"], _number(row["value"]), _number(row["baseline"])) for row in found]


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _of_numbers(rows: Sql, covers: bool) -> Sql:
    """The metrics of rows with actual, value, lower and upper.  The simple answer is the mean."""
    return sql(
        """
        SELECT m.metric, m.value::pg_catalog.text, m.baseline::pg_catalog.text
         FROM (SELECT count(*) AS n, avg(a.error ^ 2) AS mse, avg(abs(a.error)) AS mae,
               avg(abs(a.error / nullif(a.actual, 0))) AS mape,
               1 - sum(a.error ^ 2) / nullif(var_pop(a.actual) * count(*), 0) AS r2,
               avg((a.actual BETWEEN a.lower AND a.upper)::integer) AS covered, avg(a.upper - a.lower) AS width,
               var_pop(a.actual) AS spread, avg(abs(a.actual - a.mean)) AS distance,
               avg(abs((a.actual - a.mean) / nullif(a.actual, 0))) AS part
             FROM (SELECT p.actual, p.actual - p.value AS error, p.lower, p.upper, avg(p.actual) OVER () AS mean
                 FROM ({rows}) p
                WHERE p.actual IS NOT NULL) a) f
         CROSS JOIN LATERAL (VALUES (1, 'rmse', sqrt(f.mse), sqrt(f.spread)), (2, 'mse', f.mse, f.spread),
                      (3, 'mae', f.mae, f.distance), (4, 'mape', f.mape, f.part),
                      (5, 'r2', f.r2, CASE WHEN f.r2 IS NOT NULL THEN 0 END), (6, 'coverage', f.covered, NULL),
                      (7, 'interval_width', f.width, NULL), (8, 'rows', f.n, NULL))
               AS m (place, metric, value, baseline)
         WHERE {covers} OR m.metric NOT IN ('coverage', 'interval_width')
         ORDER BY m.place
        """,
        rows=rows,
        covers=constant(covers),
    )


def _of_classes(rows: Sql, classes: int, second: str | None, null_is_class: bool) -> Sql:
    """The metrics of rows with actual, class, probability and rank: one for each row that is judged and each class.

    The simple answer is the most frequent class; for the log loss it is how frequent each class is.

    A class that training did not have has the probability 0; the least probability is that of Keras.  auc is the share
    of correctly ordered pairs of a row with the class and a row without it.  A pair of an actual and a predicted class
    counts for both classes.
    """
    return sql(
        """
        SELECT m.metric, m.value::pg_catalog.text, m.baseline::pg_catalog.text
         FROM (SELECT max(c.n) AS n, max(c.hits) AS hits, max(c.known) AS known, max(c.logarithms) AS logarithms,
               avg(c.f1) FILTER (WHERE {classes} <> 2 OR c.class IS NOT DISTINCT FROM {second}) AS f1,
               avg(c.auc) FILTER (WHERE {classes} <> 2 OR c.class IS NOT DISTINCT FROM {second}) AS auc,
               avg(c.recall) AS recall, max(c.gaps) AS gaps,
               max(c.of_class) AS usual, count(c.of_class) AS occurring,
               sum(c.of_class * ln(c.of_class)) AS frequencies,
               max(c.of_class) FILTER (WHERE c.class IS NOT DISTINCT FROM {second}) AS of_second
             FROM (SELECT v.class,
                   max(l.n) FILTER (WHERE l.kind = 'all') AS n, max(l.hits) FILTER (WHERE l.kind = 'all') AS hits,
                   max(l.known) FILTER (WHERE l.kind = 'all') AS known,
                   max(l.logarithms) FILTER (WHERE l.kind = 'all') AS logarithms,
                   2 * sum(v.hits) FILTER (WHERE l.kind = 'pair')
                    / sum(l.n) FILTER (WHERE l.kind = 'pair')::double precision AS f1,
                   sum(v.hits) FILTER (WHERE l.kind = 'pair')
                    / sum(l.n) FILTER (WHERE l.kind = 'pair' AND v.for_actual)::double precision AS recall,
                   (sum(l.n) FILTER (WHERE l.kind = 'pair' AND v.for_actual))::double precision AS of_class,
                   sum(abs(l.sure - l.hits)) FILTER (WHERE l.kind = 'bin') AS gaps,
                   sum(l.known * (l.below + (l.answers - l.known) / 2.0)) FILTER (WHERE l.kind = 'probability')
                    / nullif(sum(l.known) FILTER (WHERE l.kind = 'probability')
                         * sum(l.answers - l.known) FILTER (WHERE l.kind = 'probability'), 0) AS auc
                 FROM (SELECT k.*, sum(k.answers - k.known) OVER (PARTITION BY k.kind, k.class ORDER BY k.probability)
                     - (k.answers - k.known) AS below
                     FROM (SELECT CASE grouping(a.actual, a.class, a.probability, a.bin)
                              WHEN 15 THEN 'all' WHEN 3 THEN 'pair' WHEN 14 THEN 'bin'
                              ELSE 'probability' END AS kind,
                           a.actual, a.class, a.probability, count(*) AS answers,
                           count(*) FILTER (WHERE a.rank = 1) AS n,
                           count(*) FILTER (WHERE a.rank = 1 AND a.is_right) AS hits,
                           count(*) FILTER (WHERE a.is_right) AS known,
                           sum(a.probability) FILTER (WHERE a.rank = 1) AS sure,
                           sum(ln(GREATEST(a.probability, 1e-7))) FILTER (WHERE a.is_right) AS logarithms
                         FROM (SELECT p.actual, p.class, p.probability, p.rank,
                               CASE WHEN p.rank = 1 THEN LEAST(floor(p.probability * 10), 9) END AS bin,
                               p.actual IS NOT DISTINCT FROM p.class AS is_right
                             FROM ({rows}) p
                            WHERE p.actual IS NOT NULL OR {null_is_class}) a
                        GROUP BY GROUPING SETS ((), (a.actual, a.class), (a.class, a.probability), (a.bin))) k) l
                CROSS JOIN LATERAL (VALUES (true, l.actual, l.hits), (false, l.class, 0)) AS v (for_actual, class, hits)
                WHERE CASE l.kind WHEN 'pair' THEN l.n > 0 ELSE NOT v.for_actual END
                GROUP BY v.class) c) t
         CROSS JOIN LATERAL (VALUES
          (1, 'accuracy', t.hits / nullif(t.n, 0)::double precision, t.usual / nullif(t.n, 0)),
          (2, 'log_loss', -(COALESCE(t.logarithms, 0) + (t.n - t.known) * ln(1e-7::double precision)) / nullif(t.n, 0),
           ln(nullif(t.n, 0)::double precision) - t.frequencies / nullif(t.n, 0)),
          (3, 'f1', t.f1, CASE WHEN t.f1 IS NULL THEN NULL
                               WHEN {classes} <> 2 THEN 2 * t.usual / (t.n + t.usual) / t.occurring
                               WHEN t.of_second = t.usual THEN 2 * t.usual / (t.n + t.usual) ELSE 0 END),
          (4, 'auc', t.auc::double precision, CASE WHEN t.auc IS NOT NULL THEN 0.5 END),
          (5, 'balanced_accuracy', t.recall, 1.0 / nullif(t.occurring, 0)),
          (6, 'ece', t.gaps / nullif(t.n, 0), NULL),
          (7, 'rows', t.n, NULL)) AS m (place, metric, value, baseline)
         ORDER BY m.place
        """,
        rows=rows,
        classes=classes,
        second=constant(second),
        null_is_class=constant(null_is_class),
    )
