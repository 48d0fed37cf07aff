"""A trained model, read from the output tables of a fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cerebro_db.core.architecture import reading
from cerebro_db.core.errors import InvalidArgument, UndefinedColumn, UndefinedObject, WrongState
from cerebro_db.core.layout import Layout, Variable
from cerebro_db.core.metrics import MAX
from cerebro_db.core.parameters import params
from cerebro_db.core.preparation import OneHot
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, sql

from .. import platform
from ..data import document_columns, weights
from ..data.summary import parsed, with_labels
from ..database import relations
from ..database.access import Database
from ..database.relations import Column, Relation
from ..definitions import custom_functions

COMPANIONS = ("_info", "_summary", "_weights")


@dataclass
class Model:
    """One trained model of a fit's output tables."""

    table: Relation
    key: int
    definition: dict[str, Any]
    layout: Layout  # of the packed table that it was trained on
    chunked: Relation | None  # the table of the weights if they are too large for one value
    key_column: Sql = weights.MST_KEY
    loss_type: str | None = None  # the names of loss and metrics in those tables
    metrics_type: list[str] | None = None

    def weights(self, db: Database) -> Iterator[bytes]:
        """The weights, piece by piece; Python never holds more than one piece."""
        return weights.pieces(db, *self._place())

    def version(self, db: Database) -> str | None:
        """Another one whenever the weights have changed; None if that cannot be said."""
        stored = self.chunked or self.table
        if stored.kind not in ("r", "p") or not platform.of(db).runs_functions_in_session:
            return None
        # Who may read only some columns may not read ctid and xmin.
        if not db.value(sql("SELECT pg_catalog.has_table_privilege($1::oid, 'SELECT')"), ("bigint",), stored.oid):
            return None
        return weights.version(db, *self._place())

    def _place(self) -> tuple[Sql, Sql | None, int, Sql]:
        return self.table.sql, self.chunked.sql if self.chunked is not None else None, self.key, self.key_column


OF_TABLE = ("mst_key", "model_arch", "model_weights")
OF_INFO = ("mst_key", "compile_params", "fit_params", "loss_type", "metrics_type", "functions")
RANKS = ("objective_value", "validation_loss_final", "training_loss_final")


def read_model(db: Database, text: str, key: int | None, *, best: bool = False) -> Model:
    """``best``: without a key, the model is read that is best by the objective of its run.

    Functions that read the best model call the key ``configuration``, the others ``mst_key``, as MADlib does.
    """
    word = "configuration" if best else "mst_key"
    table = relations.existing(db, text, argument="model_table", companions=COMPANIONS)
    present = relations.columns(db, table)
    document_columns.require(present, table.text)
    require_trained(table, present)
    info = relations.find(db, table.name.suffixed("_info"))
    summary = relations.find(db, table.name.suffixed("_summary"))
    described = relations.columns(db, summary) if summary is not None else {}
    document_columns.require(described, f"{table.text}_summary")
    if summary is not None and "mst_key" not in present:
        return _read_single(db, table, summary, key, word)
    if info is None or summary is None or "layout" not in described:
        raise UndefinedObject(
            f"Missing summary and/or info tables for {table.text}",
            hint="madlib_fit_multiple_model() and cerebro.materialize() make them; keep the three together.",
        )
    known = relations.columns(db, info)
    document_columns.require(known, f"{table.text}_info")
    for one, its, names in ((table, present, OF_TABLE), (info, known, OF_INFO), (summary, described, ("layout",))):
        relations.require_readable(db, one, [its[name] for name in names if name in its])
    if key is None and best:
        relations.require_readable(db, summary, [described[n] for n in ("direction",) if n in described])
        relations.require_readable(db, info, [known[name] for name in RANKS if name in known])
        key = next(iter(best_keys(db, table, info, summary, 1)), None)
        if key is None:
            raise WrongState(
                f"{table.text} has no model",
                hint=f"SELECT mst_key, status, reason FROM {info.name}; says why.",
            )
    if key is None:
        raise InvalidArgument(
            "Multi-model needs to pass mst_key", hint=f"SELECT mst_key, * FROM {info.name} lists the models."
        )
    row = db.one(
        sql(
            "SELECT t.compile_params, t.fit_params, t.loss_type, t.metrics_type, {pinned},"
            " m.model_arch::text AS arch, m.model_weights IS NULL AS large"
            " FROM {info} t JOIN {table} m USING (mst_key) WHERE mst_key = $1",
            pinned=_pinned(known),
            info=info.sql,
            table=table.sql,
        ),
        ("integer",),
        key,
    )
    if row is None:
        if db.value(sql("SELECT 1 FROM {info} WHERE mst_key = $1", info=info.sql), ("integer",), key):
            raise WrongState(
                f"{word} {key} left no model",
                hint=f"SELECT status, reason FROM {info.name} WHERE mst_key = {key}; says why.",
            )
        raise UndefinedObject(
            f"{word} {key} does not exist in the info table", hint=f"SELECT mst_key FROM {info.name};"
        )
    definition, trained_on = _definition(db, row), _layout(db, table, summary)
    chunked = _chunks(db, table) if row["large"] else None
    if row["large"] and (
        chunked is None
        or not db.value(
            sql("SELECT 1 FROM {chunked} WHERE mst_key = $1 LIMIT 1", chunked=chunked.sql), ("integer",), key
        )
    ):
        raise WrongState(f"model {key} of {table.text} has no weights")
    return Model(table, key, definition, trained_on, chunked, **_told(row))


def require_trained(table: Relation, present: dict[str, Column]) -> None:
    """An error unless these are the columns of a table of trained models."""
    for name in ("model_weights", "model_arch"):
        if name not in present:
            raise UndefinedColumn(
                f"'{table.text}' is not a table of trained models: it has no column {name}.",
                hint="cerebro.train() and cerebro.fit() make such tables.",
            )


def best_keys(db: Database, table: Relation, info: Relation, summary: Relation, most: int) -> list[int]:
    """The models that are best by the objective of their run, the best first."""
    largest = db.value(sql("SELECT direction FROM {summary} LIMIT 1", summary=summary.sql)) == MAX
    rows = db.rows(
        sql(
            "SELECT i.mst_key FROM {info} i JOIN {table} m USING (mst_key)"
            " ORDER BY i.objective_value {order} NULLS LAST,"
            " i.validation_loss_final NULLS LAST, i.training_loss_final NULLS LAST, i.mst_key LIMIT $1",
            info=info.sql,
            table=table.sql,
            order=sql("DESC") if largest else sql("ASC"),
        ),
        ("integer",),
        most,
    )
    return [row["mst_key"] for row in rows]


def _read_single(db: Database, table: Relation, summary: Relation, key: int | None, word: str) -> Model:
    """The model of a table that madlib_keras_fit has made."""
    if key is not None:
        raise InvalidArgument(f"Single model should not pass {word}", hint=f"Leave {word} out.")
    relations.require_columns(db, summary, ["compile_params", "fit_params", "layout"])
    present, its = relations.columns(db, summary), relations.columns(db, table)
    relations.require_readable(db, summary, [present[name] for name in OF_INFO if name in present])
    relations.require_readable(db, table, [its[name] for name in OF_TABLE if name in its])
    row = db.one(
        sql(
            "SELECT t.compile_params, t.fit_params, t.loss_type, t.metrics_type, {pinned},"
            " m.model_arch::text AS arch, m.model_weights IS NULL AS large"
            " FROM {summary} t, {table} m",
            pinned=_pinned(present),
            summary=summary.sql,
            table=table.sql,
        )
    )
    if row is None:
        raise WrongState(f"Input table '{table.text}' is empty!")
    chunked = _chunks(db, table) if row["large"] else None
    definition, trained_on = _definition(db, row), _layout(db, table, summary)
    return Model(table, 1, definition, trained_on, chunked, weights.ONLY, **_told(row))


def _chunks(db: Database, table: Relation) -> Relation | None:
    """The table of the weights that are too large for one value."""
    found = relations.find(db, table.name.suffixed("_weights"))
    if found is not None:
        document_columns.require(relations.columns(db, found), f"{table.text}_weights")
    return found


def _pinned(present: dict[str, Column]) -> Sql:
    """The versions of custom functions that a model was trained with; older tables have no column for them."""
    functions = sql("t.functions::text") if "functions" in present else sql("NULL")
    return sql("concat_ws(' ', t.loss_type, t.metrics_type::text, {functions}) AS pinned", functions=functions)


def _told(row: dict[str, Any]) -> dict[str, Any]:
    return {column: row[column] for column in ("loss_type", "metrics_type")}


def _definition(db: Database, row: dict[str, Any]) -> dict[str, Any]:
    architecture = reading.architecture(row["arch"])
    known = custom_functions.known(db, pinned=row["pinned"])  # in the versions that the model was trained with
    compiled = reading.for_outputs(params.compile_params(row["compile_params"], known), architecture)
    return {
        "architecture": architecture,
        "compile": compiled,
        "fit": params.fit_params(row["fit_params"], tensorboard=True),
    }


def _layout(db: Database, table: Relation, summary: Relation) -> Layout:
    """The layout of the packed table that the model was trained on, with the labels that the summary has now."""
    layout = db.value(sql("SELECT layout FROM {summary}", summary=summary.sql))
    if layout is None:
        raise WrongState(f"{table.text}_summary has no layout", hint="cerebro.materialize() makes the tables anew.")
    return with_labels(db, summary, parsed(db, layout, f"{table.text}_summary"))


def class_values(output: Variable) -> list[str | None]:
    """What a prediction calls each class: its label (None for NULL), or its number for a class without one."""
    labels = output.preparation.labels if isinstance(output.preparation, OneHot) else ()
    width = output.shape[-1] if output.shape else 1
    return [*labels, *map(str, range(len(labels), width))]
