"""What the columns of a model table and the tables beside it are called, in two forms."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ..records import dataclass
from ..sql import Sql, identifier, sql
from ..sql_types import INTEGERS, REALS, TEXTS

Types = Mapping[str, tuple[str, ...]]

COMPANIONS = ("_info", "_summary", "_weights", "_groups")  # endings of the tables beside a model table

LISTS = tuple(f"{one}[]" for one in TEXTS)
DOCUMENTS = ("json", "jsonb", *TEXTS)
SHARED: Types = {
    **dict.fromkeys(("start", "epoch", "memory_mb"), INTEGERS),
    **dict.fromkeys(("direction", "source_table", "body"), TEXTS),
    "layout": DOCUMENTS,
    "functions": LISTS,
    "objective_value": REALS,
    "payload": ("bytea",),
}
OF_MODELS: Types = {
    **SHARED,
    **dict.fromkeys(("configuration", "model", "run"), INTEGERS),
    "model_table": TEXTS,
    "weights": ("bytea",),
    "architecture": DOCUMENTS,
    "parameters": DOCUMENTS,
    "calibration": DOCUMENTS,
    "members": DOCUMENTS,
    "quality": DOCUMENTS,
    "loss_name": TEXTS,
    "metric_names": LISTS,
    **dict.fromkeys(("validation_loss", "training_loss"), REALS),
}
# Model tables numbered by model selection tuples (mst_key), tables of architectures, and model selection tables.
OF_MST: Types = {
    **SHARED,
    **dict.fromkeys(("mst_key", "model_id"), INTEGERS),
    **dict.fromkeys(("compile_params", "fit_params", "loss_type", "name", "model_arch_table"), TEXTS),
    "metrics_type": LISTS,
    **dict.fromkeys(("validation_loss_final", "training_loss_final"), REALS),
    "model_weights": ("bytea",),
    "model_arch": DOCUMENTS,
}


# What is read of the summary of a run with groups, and of its table of the models of groups.
OF_GROUPS: Types = {"group_by": TEXTS, "group_types": LISTS, "new_groups": TEXTS}
GROUP_COLUMNS: Types = {
    **dict.fromkeys(("configuration", "group_number", "rank"), INTEGERS),
    "group_key": TEXTS,
    "weights": ("bytea",),
}


def has_groups(columns: Collection[str]) -> bool:
    """Whether a table with these columns is one of models of groups, and not one that has its name by chance."""
    return set(columns) >= GROUP_COLUMNS.keys()


# The columns of plain tables, with their types.
MODEL_COLUMNS = {"configuration": "integer", "weights": "bytea", "architecture": "json", "__dist_key__": "integer"}
WEIGHTS_COLUMNS = {"configuration": "integer", "start": "bigint", "payload": "bytea", "__dist_key__": "integer"}
RESULTS = {
    **dict.fromkeys(("status", "reason", "which"), "text"),
    "epoch": "integer",
    **dict.fromkeys(("objective_value", "validation_loss", "validation_metric"), "double precision"),
    **dict.fromkeys(("training_loss", "training_metric"), "double precision"),
}
INFO_COLUMNS = {
    "configuration": "integer",
    "model": "integer",
    **RESULTS,
    "architecture": "text",  # its name
    "parameters": "jsonb",  # all others, flat
    "loss_name": "text",
    "metric_names": "text[]",
    "functions": "text[]",  # the versions of custom functions that the model was trained with
    "bytes": "bigint",
}
# Of _info: cerebro.calibrate() fills the first one and the last one (core/models/quality.py), and an ensemble has the
# second one (core/models/member_choice.py).
LATER_COLUMNS = {"calibration": "jsonb", "members": "jsonb", "quality": "jsonb"}
GROUPS_COLUMNS = {
    "configuration": "integer",
    "group_number": "integer",
    "group_value": "text",
    "group_key": "text",  # as the SQL of a row's group gives it (packing/rows/subgroups.py)
    "rows": "bigint",
    "model": "integer",
    "rank": "integer",  # within the group; of the best model of the configuration
    **RESULTS,
    "bytes": "bigint",
    "weights": "bytea",
}
SUMMARY_COLUMNS = {  # and one with the labels of each output that is a class
    "run": "bigint",
    **dict.fromkeys(("run_name", "description", "model_table", "source_table", "packed_table"), "text"),
    **dict.fromkeys(("validation_table", "target", "inputs"), "text"),
    **dict.fromkeys(("epochs", "evaluate_every"), "integer"),
    "seed": "bigint",
    **dict.fromkeys(("objective", "direction", "which"), "text"),
    "fold": "integer",
    **dict.fromkeys(("started_at", "ended_at"), "timestamptz"),
    "cerebro_version": "text",
    "layout": "jsonb",
    "packing": "jsonb",  # core/packing/packed_summary.py; NULL for tables that an earlier version packed
    "memory_mb": "integer",  # of the run's options: what a trainer may use; NULL: as the role's limit says
}
SUMMARY_OF_GROUPS = {"group_by": "text", "group_types": "text[]", "new_groups": "text"}  # beside a table _groups
SUMMARY_OF_ONE_GROUP = {"group_key": "text"}  # of a table whose only model is that of a group


@dataclass(frozen=True)
class ModelColumns:
    """The names of the columns that functions read; all others have the same name in all model tables."""

    configuration: str  # of the model table, _info and _weights: the number of a configuration
    weights: str  # of the model table
    architecture: str
    parameters: tuple[str, ...]  # of _info: those of compile and fit
    loss_name: str
    metric_names: str
    training_loss: str
    validation_loss: str
    size: str
    bytes_per_size: int
    model_table: str  # of _summary
    types: Types  # of columns
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
        return (*self.parameters, self.loss_name, self.metric_names)


PLAIN = ModelColumns(
    configuration="configuration", weights="weights", architecture="architecture", parameters=("parameters",),
    loss_name="loss_name", metric_names="metric_names", training_loss="training_loss",
    validation_loss="validation_loss", size="bytes", bytes_per_size=1, model_table="model_table", types=OF_MODELS,
)  # fmt: skip
MST = ModelColumns(
    configuration="mst_key", weights="model_weights", architecture="model_arch",
    parameters=("compile_params", "fit_params"), loss_name="loss_type", metric_names="metrics_type",
    training_loss="training_loss_final", validation_loss="validation_loss_final", size="model_size",
    bytes_per_size=1024, model_table="model", types=OF_MST,
)  # fmt: skip
MST_SINGLE = replace(MST, has_key=False)  # _summary has what _info has of several models


def of(present: Collection[str]) -> ModelColumns | None:
    """Which names the columns of a table are; None: it is no model table."""
    return next((form for form in (PLAIN, MST, MST_SINGLE) if set(form.of_table) <= set(present)), None)
