"""What the columns of a model table and the tables beside it are called: in plain tables, and in those of MADlib."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, sql

from ..database.relations import Column
from . import document_columns


@dataclass(frozen=True)
class ModelColumns:
    """The names of the columns that functions read; all others have the same name in all model tables."""

    configuration: str  # of the model table, _info and _weights: the number of a configuration
    weights: str  # of the model table
    architecture: str
    loss_name: str  # of _info
    metric_names: str
    training_loss: str
    validation_loss: str
    size: str
    bytes_per_size: int
    model_table: str  # of _summary
    types: Mapping[str, tuple[str, ...]]  # those that columns may have
    has_key: bool = True  # False: the model table has one model, and no column with its number

    @property
    def key(self) -> Sql:
        """A model's number, as an expression over the model table."""
        return identifier(self.configuration) if self.has_key else sql("1")

    @property
    def of_table(self) -> tuple[str, ...]:
        """The columns without which a table is no model table of this form."""
        return (*((self.configuration,) if self.has_key else ()), self.weights, self.architecture)

    @property
    def figures(self) -> tuple[str, ...]:
        """The columns of _info that say which model is best, the most important first."""
        return ("objective_value", self.validation_loss, self.training_loss)

    @property
    def of_info(self) -> tuple[str, ...]:
        """The columns of _info that predicting and evaluating need."""
        return ("compile_params", "fit_params", self.loss_name, self.metric_names)


PLAIN = ModelColumns(
    "configuration", "weights", "architecture", "loss_name", "metric_names", "training_loss", "validation_loss",
    "bytes", 1, "model_table", document_columns.OF_MODELS,
)  # fmt: skip
MADLIB = ModelColumns(
    "mst_key", "model_weights", "model_arch", "loss_type", "metrics_type", "training_loss_final",
    "validation_loss_final", "model_size", 1024, "model", document_columns.OF_MADLIB,
)  # fmt: skip
# What madlib_keras_fit leaves: _summary has what _info has of several models.
MADLIB_SINGLE = replace(MADLIB, has_key=False)


def of(present: Collection[str]) -> ModelColumns | None:
    """Which names the columns of a table are; None: it is no model table."""
    return next((form for form in (PLAIN, MADLIB, MADLIB_SINGLE) if set(form.of_table) <= set(present)), None)


def require(present: Mapping[str, Column], table: str, form: ModelColumns) -> None:
    """An error for a column of another type than it should have."""
    document_columns.require(present, table, form.types)
