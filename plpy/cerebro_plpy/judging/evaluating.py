"""``cerebro.evaluate``: how good a trained model is on the rows of a query, in one statement over its predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cerebro_db.core.sql import Sql, constant, literal, sql

from ..database.access import Database
from ..database.entry import entry
from .judged_rows import JudgingArguments, to_predict


@entry
def evaluate(db: Database, **arguments: Any) -> list[dict[str, Any]]:
    """A row for each metric."""
    given = JudgingArguments(function="cerebro.evaluate", key=None, wanted="any", **arguments)
    return [{"metric": metric, "value": value} for metric, value in metrics_of(db, given).items()]


def metrics_of(db: Database, given: JudgingArguments) -> dict[str, float | None]:
    """The metrics in their order; None: these rows do not define it."""
    judged = to_predict(db, given)
    statement = _of_numbers(given, judged) if judged["classes"] is None else _of_classes(given, judged)
    # As texts, because JSON, which Greenplum makes of the rows, has no infinite numbers.
    return {row["metric"]: None if row["value"] is None else float(row["value"]) for row in db.scan(statement)}


def _predictions(given: JudgingArguments, judged: Mapping[str, Any], top: int) -> Sql:
    """The predictions as SQL.  A query has it once: on Greenplum, it can read cerebro.predict only once."""
    return sql(
        "cerebro.predict({model}, {rows}, {key}, {configuration}, {top}, {coverage}, {calibrated}, {thresholds})",
        model=constant(given.model_table),
        rows=literal(judged["rows_query"]),
        key=literal(judged["row_key"]),
        configuration=constant(given.configuration),
        top=top,
        coverage=constant(given.coverage),
        calibrated=constant(given.calibrated),
        thresholds=constant(given.thresholds),
    )


def _of_numbers(given: JudgingArguments, judged: Mapping[str, Any]) -> Sql:
    return sql(
        """
        SELECT m.metric, m.value::pg_catalog.text
         FROM (SELECT count(*) AS n, avg(a.error ^ 2) AS mse, avg(abs(a.error)) AS mae,
               avg(abs(a.error / nullif(a.actual, 0))) AS mape,
               1 - sum(a.error ^ 2) / nullif(var_pop(a.actual) * count(*), 0) AS r2,
               avg((a.actual BETWEEN a.lower AND a.upper)::integer) AS covered, avg(a.upper - a.lower) AS width
             FROM (SELECT p.actual, p.actual - p.value AS error, p.lower, p.upper
                 FROM (SELECT (p.key_value::json ->> 1)::double precision AS actual, p.value, p.lower, p.upper
                     FROM {predictions} p
                    WHERE p.target = {target}) p
                WHERE p.actual IS NOT NULL) a) f
         CROSS JOIN LATERAL (VALUES (1, 'rmse', sqrt(f.mse)), (2, 'mse', f.mse), (3, 'mae', f.mae), (4, 'mape', f.mape),
                      (5, 'r2', f.r2), (6, 'coverage', f.covered), (7, 'interval_width', f.width),
                      (8, 'rows', f.n)) AS m (place, metric, value)
         WHERE {covers} OR m.metric NOT IN ('coverage', 'interval_width')
         ORDER BY m.place
        """,
        predictions=_predictions(given, judged, 1),
        target=literal(judged["of_target"]),
        covers=constant(given.coverage is not None),
    )


def _of_classes(given: JudgingArguments, judged: Mapping[str, Any]) -> Sql:
    """The innermost rows are one for each row of the query and each class.

    A class that training did not have has the probability 0; the least probability is that of Keras.  auc is the share
    of correctly ordered pairs of a row with the class and a row without it.  A pair of an actual and a predicted class
    counts for both classes.
    """
    return sql(
        """
        SELECT m.metric, m.value::pg_catalog.text
         FROM (SELECT max(c.n) AS n, max(c.hits) AS hits, max(c.known) AS known, max(c.logarithms) AS logarithms,
               avg(c.f1) FILTER (WHERE {classes} <> 2 OR c.class IS NOT DISTINCT FROM {second}) AS f1,
               avg(c.auc) FILTER (WHERE {classes} <> 2 OR c.class IS NOT DISTINCT FROM {second}) AS auc,
               avg(c.recall) AS recall, max(c.gaps) AS gaps
             FROM (SELECT v.class,
                   max(l.n) FILTER (WHERE l.kind = 'all') AS n, max(l.hits) FILTER (WHERE l.kind = 'all') AS hits,
                   max(l.known) FILTER (WHERE l.kind = 'all') AS known,
                   max(l.logarithms) FILTER (WHERE l.kind = 'all') AS logarithms,
                   2 * sum(v.hits) FILTER (WHERE l.kind = 'pair')
                    / sum(l.n) FILTER (WHERE l.kind = 'pair')::double precision AS f1,
                   sum(v.hits) FILTER (WHERE l.kind = 'pair')
                    / sum(l.n) FILTER (WHERE l.kind = 'pair' AND v.for_actual)::double precision AS recall,
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
                             FROM (SELECT p.key_value::json ->> 1 AS actual, p.class, p.probability,
                                   p.rank
                                 FROM {predictions} p
                                WHERE p.target = {target}) p
                            WHERE p.actual IS NOT NULL OR {null_is_class}) a
                        GROUP BY GROUPING SETS ((), (a.actual, a.class), (a.class, a.probability), (a.bin))) k) l
                CROSS JOIN LATERAL (VALUES (true, l.actual, l.hits), (false, l.class, 0)) AS v (for_actual, class, hits)
                WHERE CASE l.kind WHEN 'pair' THEN l.n > 0 ELSE NOT v.for_actual END
                GROUP BY v.class) c) t
         CROSS JOIN LATERAL (VALUES
          (1, 'accuracy', t.hits / nullif(t.n, 0)::double precision),
          (2, 'log_loss', -(COALESCE(t.logarithms, 0) + (t.n - t.known) * ln(1e-7::double precision)) / nullif(t.n, 0)),
          (3, 'f1', t.f1),
          (4, 'auc', t.auc::double precision),
          (5, 'balanced_accuracy', t.recall),
          (6, 'ece', t.gaps / nullif(t.n, 0)),
          (7, 'rows', t.n)) AS m (place, metric, value)
         ORDER BY m.place
        """,
        predictions=_predictions(given, judged, 1_000_000),
        target=literal(judged["of_target"]),
        classes=judged["classes"],
        second=constant(judged["class"]),
        null_is_class=constant(judged["null_is_class"]),
    )
