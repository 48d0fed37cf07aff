"""Packed tables as fitting and evaluating read them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cerebro_db.core.errors import BadData, WrongState
from cerebro_db.core.layout import DataSet

from ..database import relations
from ..database.access import Database
from ..database.relations import Relation
from ..platform import KEY
from .summary import parsed


@dataclass
class Packed:
    """A packed table and its summary."""

    relation: Relation
    summary: dict[str, Any]  # the summary's row without the layout
    layout: dict[str, Any]  # as JSON; it is known to be a Layout

    @property
    def dataset(self) -> DataSet:
        return DataSet(self.relation.sql, self.layout)


PLEASE = "Pack the rows with training_preprocessor_dl() or validation_preprocessor_dl() first."


def read(db: Database, table: str | None, module: str, *, argument: str, please: str = PLEASE) -> Packed:
    """The packed table of this name.  ``please``: what to do if it is none."""
    relation = relations.filled(db, table, module, please, argument=argument, companions=("_summary",))
    summary = relations.find(db, relation.name.suffixed("_summary"))
    if summary is None or "layout" not in relations.columns(db, summary):
        raise WrongState(f"{module} error: '{relation.text}' is not a packed table.", hint=please)
    row = db.one(f"SELECT * FROM {summary.sql}")
    if row is None:
        raise BadData(f"{module} error: the summary of '{relation.text}' is empty.", hint=please)
    layout = parsed(row["layout"], relation.text, module)
    # The summary of a model table has a layout, too.
    present = relations.columns(db, relation)
    for name in (KEY, "buffer_id", *(variable.name for variable in (*layout.inputs, *layout.outputs))):
        if name not in present:
            raise WrongState(
                f"{module} error: '{relation.text}' is not a packed table: it has no column '{name}'.", hint=please
            )
    return Packed(relation, {k: v for k, v in row.items() if k != "layout"}, json.loads(row["layout"]))


def require_same_shapes(trained: dict[str, Any], trained_on: str, other: Packed, module: str) -> None:
    """The rows of a table to validate or evaluate on must have the shapes of those that the model trained on."""
    for side in ("inputs", "outputs"):
        ours = [(v["shape"], v.get("kind")) for v in trained[side]]
        theirs = [(v["shape"], v.get("kind")) for v in other.layout[side]]
        if ours != theirs:
            raise BadData(
                f"{module} error: the {side} of '{other.relation.text}' have the shapes"
                f" {[s for s, _ in theirs]}, those of '{trained_on}' {[s for s, _ in ours]}.",
                hint="Pack it with validation_preprocessor_dl(), naming the training table.",
            )
        for ours_one, theirs_one in zip(trained[side], other.layout[side]):
            if "features" in ours_one["preparation"] and ours_one["preparation"] != theirs_one["preparation"]:
                raise BadData(
                    f"{module} error: the columns of '{other.relation.text}' were prepared differently from those of"
                    f" '{trained_on}' (input {ours_one['name']}).",
                    hint="Pack it with validation_preprocessor_dl(), naming the training table.",
                )
