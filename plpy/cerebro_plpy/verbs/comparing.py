"""How well two models predict the same rows."""

from __future__ import annotations

import math
from collections import Counter

from cerebro_db.core.errors import InvalidArgument, WrongState
from cerebro_db.core.models import member_choice, metrics
from cerebro_db.core.models.metrics import MAX, MIN
from cerebro_db.core.sql import sql
from cerebro_db.core.texts import counted

from ..database.access import Database
from ..judging import evaluating
from ..judging.judged_rows import JudgingArguments, to_predict

BEST_IS: dict[str, str] = {
    **dict.fromkeys(("accuracy", "f1", "auc", "balanced_accuracy", "r2"), MAX),
    **dict.fromkeys(("log_loss", "ece", "rmse", "mse", "mae", "mape"), MIN),
}


# The rows of a query in the order of their numbers, which are the keys, as arrays: of each the actual value, and the
# prediction, or the probability of its class and whether that was predicted.
OF_NUMBERS = sql(
    "SELECT array_agg(value ORDER BY k) AS numbers, array_agg(actual ORDER BY k) AS actual"
    " FROM (SELECT (p.key_value::json ->> 0)::bigint AS k, (p.key_value::json ->> 1)::double precision AS actual,"
    " p.value FROM cerebro.predict($1, $2, $3) p) a WHERE actual IS NOT NULL AND $4 IS NOT NULL"
)
OF_CLASSES = sql(
    "SELECT array_agg(probability ORDER BY k) AS numbers, array_agg(hit ORDER BY k) AS hits,"
    " array_agg(actual ORDER BY k) AS actual FROM (SELECT k, actual,"
    " max(probability) FILTER (WHERE class IS NOT DISTINCT FROM actual) AS probability,"
    " bool_or(rank = 1 AND class IS NOT DISTINCT FROM actual) AS hit"
    " FROM (SELECT (p.key_value::json ->> 0)::bigint AS k, p.key_value::json ->> 1 AS actual, p.class, p.probability,"
    " p.rank FROM cerebro.predict($1, $2, $3, NULL, 1000000) p) a WHERE actual IS NOT NULL OR $4 GROUP BY k, actual) b"
)


def value(db: Database, metric: str, model: str, query: str) -> tuple[float, int]:
    """The metric, and the number of rows that it was measured on."""
    with db.naming("cerebro.evaluate"):
        found = {one.metric: one.value for one in evaluating.of_query(db, _judging("cerebro.evaluate", model, query))}
    if metric not in found:
        raise InvalidArgument(
            f"metric cannot be '{metric}' for this target.",
            hint=f"It has {', '.join(n for n in found if n != 'rows')}.",
        )
    known, rows = found[metric], int(found["rows"] or 0)
    if known is None:
        raise WrongState(
            f"{metric} has no value on {counted(rows, 'row')} of the query.",
            hint="query => 'SELECT …' names other rows, and metric another metric.",
        )
    return known, rows


def _judging(called: str, model: str, query: str) -> JudgingArguments:
    return JudgingArguments(function=called, model_table=model, query=query, target=None, key=None, wanted="any")


def standard_error(db: Database, metric: str, models: tuple[str, str], query: str, rows: int) -> float | None:
    """The standard error of the difference of the models in the metric; None: it cannot be computed.

    Both predict the same rows, so the differences of the rows count.  Metrics that are not means over rows are
    approximated: rmse and r2 by their derivatives; balanced_accuracy, f1 and auc as the share of right classes, in
    which each class counts alike; ece as the share of right classes.  ``rows``: how many the models were compared on.
    Rows of windows whose target is that of the majority cannot be told apart.
    """
    losses = [_losses(db, metric, model, query) for model in models]
    if not rows or any(len(one) != rows for one in losses):
        return None
    return member_choice.difference(*losses)[1]


def _losses(db: Database, metric: str, model: str, query: str) -> list[float]:
    """What each row adds to the metric, without its sign; an empty list if there are no rows."""
    judged = to_predict(db, _judging("cerebro.retrain", model, query))
    statement = OF_NUMBERS if judged["classes"] is None else OF_CLASSES
    (row,) = db.rows(
        statement, ("text", "text", "text", "boolean"), model, judged["rows_query"], judged["row_key"],
        bool(judged["null_is_class"]),
    )  # fmt: skip
    if row["numbers"] is None:
        return []
    if judged["classes"] is None:
        return _of_errors(metric, row["numbers"], row["actual"])
    if metric == "log_loss":
        return [-math.log(max(one or 0.0, metrics.LEAST_PROBABILITY)) for one in row["numbers"]]
    wrong = [0.0 if one else 1.0 for one in row["hits"]]
    if metric in ("accuracy", "ece"):
        return wrong
    frequency: Counter[str | None] = Counter(row["actual"])
    return [one * len(wrong) / (len(frequency) * frequency[its]) for one, its in zip(wrong, row["actual"])]


def _of_errors(metric: str, predicted: list[float], actual: list[float]) -> list[float]:
    errors = [one - truth for one, truth in zip(predicted, actual)]
    if metric == "mae":
        return [abs(one) for one in errors]
    if metric == "mape":
        return [abs(one / truth) if truth else 0.0 for one, truth in zip(errors, actual)]
    squares = [one * one for one in errors]
    mse = math.fsum(squares) / len(squares)
    middle = math.fsum(actual) / len(actual)
    unit = {
        "rmse": 2 * math.sqrt(mse),
        "r2": math.fsum((one - middle) ** 2 for one in actual) / len(actual),
    }.get(metric, 1.0)
    return [one / (unit or 1.0) for one in squares]
