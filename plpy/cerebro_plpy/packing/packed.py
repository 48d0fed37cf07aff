"""Packed tables as fitting and evaluating read them."""

from __future__ import annotations

from cerebro_db.core.errors import BadData, WrongState
from cerebro_db.core.names import with_ending
from cerebro_db.core.packing.layout import DataSet, Layout
from cerebro_db.core.packing.packed_summary import PackedSummary
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import sql

from ..database import relations
from ..database.access import Database
from ..database.relations import Relation
from ..platform import KEY
from .rows.summary import columns_of_summary, parsed


@dataclass
class Packed:
    """A packed table and its summary."""

    relation: Relation
    summary: PackedSummary
    layout: Layout
    planned: bool = False  # a dry run would pack it: the sizes of its partitions are about right, and no hash is known

    @property
    def dataset(self) -> DataSet:
        return DataSet(self.relation.name.quoted, self.layout)


PLEASE = "Pack the rows with cerebro.pack() or cerebro.pack_like() first."
CONVERT = "cerebro.convert_madlib_table() converts a table that Apache MADlib has packed."


def is_packed(db: Database, table: Relation) -> bool:
    """Whether it has the columns of a packed table, and a summary with a layout."""
    if not {KEY, "buffer_id"} <= set(relations.columns(db, table)):
        return False
    summary = relations.beside(db, table, "_summary")
    return summary is not None and "layout" in relations.columns(db, summary)


def read(db: Database, table: str | None, *, argument: str, please: str = PLEASE) -> Packed:
    """The packed table of this name.  ``please``: what to do if it is none."""
    relation = relations.filled(db, table, please, argument=argument, companions=("_summary",))
    summary = relations.beside(db, relation, "_summary")
    if summary is None or "layout" not in relations.columns(db, summary):
        if summary is None:
            relations.refuse_of_another(db, relation, "_summary")
        more = _missing(relation, argument) if summary is None else ""
        hint = please if summary is None else f"{please} {CONVERT}"
        raise WrongState(f"'{relation.text}' is not a packed table.{more}", hint=hint)
    relations.require_columns(db, summary, ["layout"])
    row = db.one(sql("SELECT layout FROM {summary}", summary=summary.sql))
    if row is None:
        raise BadData(f"the summary of '{relation.text}' is empty.", hint=please)
    layout = parsed(db, row["layout"], relation.text)
    # The summary of a model table has a layout, too.
    present = relations.columns(db, relation)
    needed = (KEY, "buffer_id", *(variable.name for variable in (*layout.inputs, *layout.outputs)))
    for name in needed:
        if name not in present:
            raise WrongState(f"'{relation.text}' is not a packed table: it has no column '{name}'.", hint=please)
    relations.require_readable(db, relation, [present[name] for name in needed])
    described = columns_of_summary(db, summary, layout, relation.text)
    return Packed(relation, described, layout)


def _missing(relation: Relation, argument: str) -> str:
    """What is said of a table without a summary."""
    kind, _, table = argument.partition("_")
    if table != "table":
        return ""
    return (
        f" Input table '{with_ending(relation.text, '_summary')}' does not exist. Please ensure that the {kind} table"
        f" ({relation.text}) has been preprocessed by the image preprocessor."
    )


def require_same_shapes(trained: Layout, trained_on: str, other: Packed) -> None:
    """The rows of a table to validate or evaluate on must have the shapes of those that the model trained on."""
    # Vectors of as many elements as there are classes stand for labels, and labels for such vectors.
    alike = {"encoded": "class"}
    sides = {
        "inputs": (trained.inputs, other.layout.inputs),
        "outputs": (trained.outputs, other.layout.outputs),
    }
    for side, variables in sides.items():
        ours, theirs = (
            [(list(one.shape), alike.get(str(one.target), one.target)) for one in variables_of_one]
            for variables_of_one in variables
        )
        if ours != theirs:
            raise BadData(
                f"the {side} of '{other.relation.text}' have the shapes"
                f" {[s for s, _ in theirs]}, those of '{trained_on}' {[s for s, _ in ours]}.",
                hint="Pack it with cerebro.pack_like(), naming the training table.",
            )
        for ours_one, theirs_one in zip(*variables):
            if ours_one.preparation.features and ours_one.preparation != theirs_one.preparation:
                raise BadData(
                    f"the columns of '{other.relation.text}' were prepared differently from those of"
                    f" '{trained_on}' (input {ours_one.name}).",
                    hint="Pack it with cerebro.pack_like(), naming the training table.",
                )
