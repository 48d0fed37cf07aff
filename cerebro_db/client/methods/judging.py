"""The methods of the client that judge a model by the rows of a query: curves, tables of mistakes, importance."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..arguments import Related, as_json
from ..database import DatabaseClient
from ..frames import Query
from ..row_lists import RowList


class ColumnImportance(NamedTuple):
    """A row of ``cerebro.importance``: how much the loss grows when the values of a column are shuffled."""

    column_name: str
    importance: float
    loss: float
    loss_before: float


class ClassPair(NamedTuple):
    """A row of ``cerebro.confusion_matrix``: how many rows of a class are predicted as a class."""

    actual: str
    predicted: str
    rows: int
    share: float


class ClassMetrics(NamedTuple):
    """A row of ``cerebro.class_metrics``."""

    label: str
    precision: float | None
    recall: float | None
    f1: float | None
    rows: int
    predicted: int


class RocPoint(NamedTuple):
    """A row of ``cerebro.roc_curve``: the rates if all rows from a probability on are taken for the class."""

    threshold: float
    true_positive_rate: float | None
    false_positive_rate: float | None


class PrecisionPoint(NamedTuple):
    """A row of ``cerebro.precision_recall``, as of a ROC curve."""

    threshold: float
    precision: float | None
    recall: float | None
    f1: float | None


class Residual(NamedTuple):
    """A row of ``cerebro.residuals``: a number, what is predicted, and the difference."""

    key_value: str
    actual: float
    predicted: float
    residual: float


class Contribution(NamedTuple):
    """A row of ``cerebro.explain``: what a column adds to the prediction of a row, compared with the base."""

    key_value: str
    target: str
    label: str | None
    column_name: str
    value: str | None
    contribution: float
    base: float
    prediction: float


class Mistake(NamedTuple):
    """A row of ``cerebro.mistakes``: its actual class, and another one with its probability, which is predicted."""

    key_value: str
    actual: str | None
    predicted: str | None
    probability: float


class JudgingMethods(DatabaseClient):
    """``query`` returns rows with the inputs and the target. The name of a table and a pandas.DataFrame are as good.
    ``label``: the class, by default the second one of two. ``target`` is needed if the model predicts several columns.
    ``related``: as in ``predict``.
    """

    def importance(
        self,
        model_table: str,
        query: Query | None = None,
        target: str | None = None,
        configuration: int | None = None,
        repeats: int = 1,
        *,
        related: Related | None = None,
    ) -> RowList[ColumnImportance]:
        """How much the model needs each column, the most important first. Without ``query``, on the run's rows for
        validation. The name of a packed table is that of its rows here."""
        selected = "column_name, importance, loss, loss_before"
        given = (model_table, query, target, configuration, repeats, as_json(related))
        return self._judged(ColumnImportance, selected, "importance", given)

    def explain(
        self,
        model_table: str,
        query: Query,
        key: str | None = None,
        target: str | None = None,
        label: str | None = None,
        *,
        configuration: int | None = None,
        background: Query | None = None,
        related: Related | None = None,
    ) -> RowList[Contribution]:
        """What each column adds to the prediction of each row. ``query`` needs no target; ``label``: the class, by
        default the predicted one; ``background``: a query with the rows to compare with."""
        given = (model_table, query, key, target, label, configuration, background, as_json(related))
        selected = "key_value, target, class, column_name, value, contribution, base, prediction"
        return self._judged(Contribution, selected, "explain", given)

    def confusion_matrix(
        self,
        model_table: str,
        query: Query,
        target: str | None = None,
        configuration: int | None = None,
        *,
        thresholds: bool = False,
        related: Related | None = None,
    ) -> RowList[ClassPair]:
        """How many rows of each class are predicted as each class."""
        given = (model_table, query, target, configuration, thresholds, as_json(related))
        return self._judged(ClassPair, "actual, predicted, count, share", "confusion_matrix", given)

    def class_metrics(
        self,
        model_table: str,
        query: Query,
        target: str | None = None,
        configuration: int | None = None,
        *,
        thresholds: bool = False,
        related: Related | None = None,
    ) -> RowList[ClassMetrics]:
        """Precision, recall and F1 of each class."""
        given = (model_table, query, target, configuration, thresholds, as_json(related))
        selected = 'class, "precision", recall, f1, rows, predicted'
        return self._judged(ClassMetrics, selected, "class_metrics", given)

    def roc_curve(
        self,
        model_table: str,
        query: Query,
        label: str | None = None,
        target: str | None = None,
        configuration: int | None = None,
        *,
        related: Related | None = None,
    ) -> RowList[RocPoint]:
        """The ROC curve of a class."""
        given = (model_table, query, label, target, configuration, as_json(related))
        return self._judged(RocPoint, "threshold, true_positive_rate, false_positive_rate", "roc_curve", given)

    def precision_recall(
        self,
        model_table: str,
        query: Query,
        label: str | None = None,
        target: str | None = None,
        configuration: int | None = None,
        *,
        related: Related | None = None,
    ) -> RowList[PrecisionPoint]:
        """Precision and recall of a class, for each threshold of its probability."""
        given = (model_table, query, label, target, configuration, as_json(related))
        return self._judged(PrecisionPoint, 'threshold, "precision", recall, f1', "precision_recall", given)

    def residuals(
        self,
        model_table: str,
        query: Query,
        key: str | None = None,
        target: str | None = None,
        configuration: int | None = None,
        *,
        related: Related | None = None,
    ) -> RowList[Residual]:
        """Of each row the number, what is predicted, and the difference."""
        given = (model_table, query, key, target, configuration, as_json(related))
        return self._judged(Residual, "key_value, actual, predicted, residual", "residuals", given)

    def mistakes(
        self,
        model_table: str,
        query: Query,
        key: str | None = None,
        target: str | None = None,
        configuration: int | None = None,
        *,
        thresholds: bool = False,
        related: Related | None = None,
    ) -> RowList[Mistake]:
        """The rows whose class is predicted wrongly, those first of which the model is surest."""
        given = (model_table, query, key, target, configuration, thresholds, as_json(related))
        return self._judged(Mistake, "key_value, actual, predicted, probability", "mistakes", given)

    def _judged(self, kind: Any, selected: str, function: str, given: tuple[Any, ...]) -> RowList[Any]:
        places = ", ".join(["%s"] * len(given))
        return RowList(kind, map(kind._make, self.rows(f"SELECT {selected} FROM cerebro.{function}({places})", given)))
