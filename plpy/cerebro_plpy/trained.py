"""A trained model, read from the output tables of a fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cerebro_db.core import models, params
from cerebro_db.core.errors import InvalidArgument, UndefinedObject, WrongState

from . import functions, tables
from .db import Database
from .results import weight_pieces
from .tables import Relation


@dataclass
class Model:
    """One trained model of a fit's output tables."""

    table: Relation
    key: int
    definition: dict[str, Any]
    layout: dict[str, Any]
    class_values: dict[str, list[str | None]]
    normalizing_const: float
    weights_bytes: int
    chunked: Relation | None  # where the weights are if they are too large for one value

    def weights(self, db: Database) -> Iterator[bytes]:
        """Piece by piece: a piece is all of it that Python ever holds."""
        return weight_pieces(db, self.table.sql, self.chunked.sql if self.chunked is not None else None, self.key)


def read_model(db: Database, text: str, key: int | None, module: str) -> Model:
    table = tables.existing(db, text, module, argument="model_table")
    tables.require_columns(db, table, ["model_weights", "model_arch"], module)
    info = tables.find(db, table.name.suffixed("_info"))
    summary = tables.find(db, table.name.suffixed("_summary"))
    if info is None or summary is None or "layout" not in tables.columns(db, summary):
        raise UndefinedObject(
            f"{module}: Missing summary and/or info tables for {table.text}",
            hint="madlib_fit_multiple_model() and cerebro.materialize() make them; keep the three together.",
        )
    if key is None:
        raise InvalidArgument(
            f"{module}: Multi-model needs to pass mst_key", hint=f"SELECT mst_key, * FROM {info.name} lists the models."
        )
    row = db.one(
        "SELECT i.compile_params, i.fit_params, concat_ws(' ', i.loss_type, i.metrics_type::text) AS pinned,"
        " m.model_arch::text AS arch, octet_length(m.model_weights) AS size"
        f" FROM {info.sql} i JOIN {table.sql} m USING (mst_key) WHERE mst_key = $1",
        ("integer",),
        key,
    )
    if row is None:
        if db.value(f"SELECT 1 FROM {info.sql} WHERE mst_key = $1", ("integer",), key):
            raise WrongState(
                f"{module}: mst_key {key} left no model",
                hint=f"SELECT status, reason FROM {info.name} WHERE mst_key = {key}; says why.",
            )
        raise UndefinedObject(
            f"{module}: mst_key {key} does not exist in the info table", hint=f"SELECT mst_key FROM {info.name};"
        )
    architecture = models.architecture(row["arch"])
    known = functions.known(db, pinned=row["pinned"])  # the versions that it was trained with
    compiled = models.for_outputs(params.compile_params(row["compile_params"], known), architecture)
    definition = {"architecture": architecture, "compile": compiled, "fit": params.fit_params(row["fit_params"])}
    facts = db.one(f"SELECT * FROM {summary.sql}") or {}
    layout = json.loads(facts["layout"])
    values = {
        output["name"]: facts.get(f"{output['name']}_class_values") or []
        for output in layout["outputs"]
        if output["kind"] == "class"
    }
    size, chunked = row["size"], None
    if size is None:
        chunked = tables.find(db, table.name.suffixed("_weights"))
        if chunked is None:
            raise WrongState(f"{module}: model {key} of {table.text} has no weights")
        size = db.value(f"SELECT sum(octet_length(payload)) FROM {chunked.sql} WHERE mst_key = $1", ("integer",), key)
    return Model(table, key, definition, layout, values, facts.get("normalizing_const") or 1.0, size, chunked)
