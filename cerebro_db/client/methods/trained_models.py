"""The methods of the client about trained models: list, predict, evaluate, drop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import select

from ..arguments import Related, as_json, listed
from ..database import DatabaseClient
from ..frames import Query
from ..orm import ModelTable
from ..row_lists import RowList


class Prediction(NamedTuple):
    """A row of ``cerebro.predict``. A number is in ``value``; a class in ``label``, with probability and rank.

    ``lower`` and ``upper`` are the ends of the interval of a number, if a coverage was given. ``forecast_for`` is the
    time that a forecast is for. ``quantiles`` are those that the model was trained for.
    """

    key_value: str
    target: str
    value: float | None
    label: str | None
    probability: float | None
    rank: int | None
    lower: float | None = None
    upper: float | None = None
    forecast_for: str | None = None
    quantiles: list[float] | None = None


class RowVector(NamedTuple):
    """A row of ``cerebro.embed``."""

    key_value: str
    vector: list[float]


class Evaluation(dict[str, float | None]):
    """The metrics of ``cerebro.evaluate`` by name; ``baselines``: those of an answer that is the same for every row."""

    def __init__(self, rows: Iterable[tuple[str, float | None, float | None]]) -> None:
        listed = list(rows)
        super().__init__((metric, value) for metric, value, _ in listed)
        self.baselines = {metric: baseline for metric, _, baseline in listed}


class CalibrationMeasure(NamedTuple):
    """A row of ``cerebro.calibrate``: a measure of the rows before and after."""

    target: str
    measure: str
    before: float | None
    after: float | None


class ColumnDrift(NamedTuple):
    """A row of ``cerebro.drift``: how far a column is from what it was in training."""

    column_name: str
    is_target: bool
    psi: float
    psi_by_chance: float
    jensen_shannon: float
    nulls: float
    nulls_in_training: float
    rows: int
    largest_change: str | None


class ModelMethods(DatabaseClient):
    """``configuration`` chooses a model of the table. Without it, the best one by the run's objective.

    ``coverage``, ``calibrated`` and ``thresholds`` need what ``calibrate`` has kept with the model.

    ``related`` names the related tables that the model reads, by their paths, such as {"orders": "shop.orders"}. A
    model of another role needs it; of your own model, the run knows them.
    """

    def models(self) -> RowList[ModelTable]:
        """The tables of trained models that you may read, the latest first."""
        latest = select(ModelTable).order_by(ModelTable.created_at.desc().nulls_last(), ModelTable.model_table)
        return RowList(ModelTable, self.objects(latest))

    def predict(
        self,
        model_table: str,
        query: Query,
        key: str | None = None,
        configuration: int | None = None,
        top: int = 1,
        *,
        coverage: float | None = None,
        calibrated: bool | None = None,
        thresholds: bool = False,
        probability_of: str | None = None,
        related: Related | None = None,
    ) -> RowList[Prediction]:
        """The predictions for the rows of a query. The comment of cerebro.predict describes the arguments."""
        rows = self.rows(
            "SELECT key_value, target, value, class, probability, rank, lower, upper, forecast_for, quantiles"
            " FROM cerebro.predict(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                model_table,
                query,
                key,
                configuration,
                top,
                coverage,
                calibrated,
                thresholds,
                probability_of,
                as_json(related),
            ),
        )
        return RowList(Prediction, map(Prediction._make, rows))

    def embed(
        self,
        model_table: str,
        query: Query,
        layer: str | None = None,
        key: str | None = None,
        configuration: int | None = None,
        *,
        related: Related | None = None,
    ) -> RowList[RowVector]:
        """What an inner layer gives for the rows of a query. The comment of cerebro.embed describes the arguments."""
        given = (model_table, query, layer, key, configuration, as_json(related))
        rows = self.rows("SELECT key_value, vector FROM cerebro.embed(%s, %s, %s, %s, %s, %s)", given)
        return RowList(RowVector, map(RowVector._make, rows))

    def predict_into(
        self,
        model_table: str,
        source_table: str,
        output_table: str,
        key: str | None = None,
        configuration: int | None = None,
        top: int = 1,
        *,
        coverage: float | None = None,
        calibrated: bool | None = None,
        thresholds: bool = False,
        probability_of: str | None = None,
        keep: str | Sequence[str] | None = None,
        related: Related | None = None,
    ) -> int:
        """Predicts a table or view on all segments into a new table, with the columns ``keep`` of the rows ("*": all).
        Returns the number of rows. The comment of cerebro.predict_into describes the arguments."""
        given = (model_table, source_table, output_table, key, configuration, top, coverage, calibrated, thresholds)
        places = ", ".join(["%s"] * (len(given) + 3))
        values = (*given, probability_of, listed(keep), as_json(related))
        return self.rows(f"SELECT cerebro.predict_into({places})", values)[0][0]

    def calibrate(
        self,
        model_table: str,
        query: Query | None = None,
        target: str | None = None,
        configuration: int | None = None,
        decide_by: str | None = "f1",
        *,
        related: Related | None = None,
    ) -> RowList[CalibrationMeasure]:
        """Keeps with a model how far its predictions can be trusted. Without a query, it takes the run's rows for
        validation. The comment of cerebro.calibrate describes the arguments."""
        given = (model_table, query, target, configuration, decide_by, as_json(related))
        called = "SELECT target, measure, before, after FROM cerebro.calibrate(%s, %s, %s, %s, %s, related => %s)"
        rows = self.rows(called, given)
        return RowList(CalibrationMeasure, map(CalibrationMeasure._make, rows))

    def evaluate(
        self,
        model_table: str,
        query: Query | None = None,
        target: str | None = None,
        configuration: int | None = None,
        *,
        coverage: float | None = None,
        calibrated: bool | None = None,
        thresholds: bool = False,
        related: Related | None = None,
    ) -> Evaluation:
        """The metrics of a model by name, on the rows of a query; without one, on the run's rows for validation. The
        attribute ``baselines`` of the result has those of a simple answer. The comment of cerebro.evaluate describes
        them."""
        given = (model_table, query, target, configuration, coverage, calibrated, thresholds, as_json(related))
        called = "SELECT metric, value, baseline FROM cerebro.evaluate(%s, %s, %s, %s, %s, %s, %s, %s)"
        return Evaluation(self.rows(called, given))

    def related_rows(self, model_table: str, query: Query, output_table: str, *, related: Related | None = None) -> int:
        """Writes the rows of a query into a new table, with the columns that the model reads of related tables. Returns
        the number of rows. The comment of cerebro.related_rows describes the arguments."""
        given = (model_table, query, output_table, as_json(related))
        return self.rows("SELECT cerebro.related_rows(%s, %s, %s, %s)", given)[0][0]

    def drift(self, model_table: str, query: Query, *, related: Related | None = None) -> RowList[ColumnDrift]:
        """How far the rows of a query are from those of training, the most different column first. The comment of
        cerebro.drift describes the measures."""
        columns = ", ".join(ColumnDrift._fields)
        rows = self.rows(f"SELECT {columns} FROM cerebro.drift(%s, %s, %s)", (model_table, query, as_json(related)))
        return RowList(ColumnDrift, map(ColumnDrift._make, rows))

    def drop_model(self, model_table: str) -> None:
        """Drops a table of trained models and the tables beside it. The run stays."""
        self.rows("SELECT cerebro.drop_model(%s)", (model_table,))
