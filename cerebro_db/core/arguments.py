"""The arguments that cerebro.pack and the three verbs share: name, SQL type, default and description.

The annotation of a field is the SQL type, and the text below it is the description in COMMENT ON FUNCTION.  The heads
of the SQL functions are made from these fields when the extension is assembled (embedded/heads.py).  docs/extending.md
says how to add an argument.
"""

from __future__ import annotations

from typing import Any, Optional

from .records import dataclass

# SQL types; None is NULL.
Text = Optional[str]
Table = Optional[str]  # the name of a table
Json = Optional[str]
Jsonb = Optional[str]
Whole = Optional[int]
Large = Optional[int]
Number = Optional[float]
Flag = Optional[bool]
SQL_TYPES = {
    "Text": "text", "Table": "text", "Json": "json", "Jsonb": "jsonb", "Whole": "integer", "Large": "bigint",
    "Number": "double precision", "Flag": "boolean",
}  # fmt: skip


@dataclass(frozen=True)
class PackingArguments:
    """How rows are packed: arguments of cerebro.pack, and of the verbs, which pack tables that are not packed."""

    inputs: Text = None
    """the input columns, separated by commas. NULL: all others. Keys, columns that number the rows and columns with
    one value are ignored, with a notice."""
    prepare: Json = None
    """what columns become, by name or by type, for instance {"zip": "category", "date": "ignore"}. A column of type
    bytea with pixels needs the shape of an image: {"photo": {"shape": [64, 64, 3]}}."""
    validation: Number = None
    """the share of the rows for validation, chosen by a hash of the key. A row stays on its side when other
    rows are added. Windows are divided by their subject or their time (docs/prepare.md). 0: none. NULL: 0.2, or none if
    there are folds or a validation_table."""
    validation_table: Table = None
    """a table with the rows for validation, instead of a share."""
    split_by: Text = None
    """a column, such as patient. All rows with the same value are on the same side."""
    split_at: Text = None
    """a column, such as a time; the rows with its largest values are for validation."""
    stratify: Flag = None
    """true takes the same share of the rows of each class for validation."""
    segments: Whole = None
    """as in cerebro.pack_plain."""
    sequence: Json = None
    """makes windows of consecutive rows, for instance {"by": "subject", "order": "ts", "length": 100, "step": 50}.
    No window has rows of two subjects. Its target is that of its last row, or the most frequent class with
    "target": "majority"; with "target": "each", "every": 10 each ten rows have one. With "horizon": 7 it is that of the
    row seven rows after its last row. "gap": "15 seconds", or the columns of "breaks", end windows. Without split_by
    and split_at, all windows of a subject are on the same side; with a horizon, the latest rows are for validation."""
    weights: Text = None
    """a column with the weight of each row in training."""
    class_weight: Text = None
    """balanced gives all classes the same weight in training."""
    folds: Whole = None
    """for cross-validation, the number of folds that the rows are divided into, by the same hash. A fit then trains one
    model of each configuration for each fold, on the rows of all other folds, and one model on all rows. split_by keeps
    all rows with the same value in one fold; stratify gives each fold the same share of each class. With group_by, each
    group has these models, too, and rows in all folds, or in as many as it has rows."""
    group_by: Text = None
    """columns, separated by commas. Rows with the same values are a group, which lies on one segment unless it has
    more rows than a segment's share. A fit then trains one model of each configuration for each group, and one on all
    rows. With a sequence, the columns are among those of its "by"."""
    related: Text = None
    """tables to read beside the source: auto follows declared foreign keys in both directions; a JSON object names
    tables by their paths, for instance {"orders": {"time": "ordered_at"}, "orders.items": {"unchanging": true}}
    (docs/related.md)."""
    as_of: Text = None
    """the column with the time of each row. Of related tables, only rows before that time are read."""


@dataclass(frozen=True)
class PackArguments(PackingArguments):
    """The arguments of ``cerebro.pack``."""

    source_table: Text = None
    output_table: Text = None
    target: Text = None
    """the columns to predict, separated by commas. real, double precision and numeric are numbers to predict, and so
    are integers with many different values. Other columns are class labels."""
    buffer_size: Whole = None
    """as in cerebro.pack_plain."""
    distribution_rules: Table = None
    """as in cerebro.pack_plain."""
    seed: Large = None
    """as in cerebro.pack_plain."""

    @property
    def recorded(self) -> dict[str, Any]:
        """What packing other rows in the same way needs: all arguments that are not NULL, except the tables."""
        return {name: value for name in RECORDED if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class VerbArguments(PackingArguments):
    """The arguments that all verbs have."""

    source_table: Text = None
    model_table: Text = None
    target: Text = None
    epochs: Whole = None
    budget: Text = None
    packed_table: Text = None
    objective: Text = None
    direction: Text = None
    stop_when: Text = None
    evaluate_every: Whole = None
    use_gpus: Flag = False
    run_name: Text = None
    description: Text = None
    options: Jsonb = None
    wait: Flag = True
    dry_run: Flag = False
    replace: Flag = False


@dataclass(frozen=True)
class SearchArguments(VerbArguments):
    """The arguments of ``cerebro.search``, which ``cerebro.train`` has, too."""

    space: Jsonb = None
    architectures: Jsonb = None
    method: Text = None
    max_configurations: Whole = None
    at_once: Whole = None
    start_from: Text = None


@dataclass(frozen=True)
class TrainArguments(SearchArguments):
    """The arguments of ``cerebro.train``."""

    refit: Flag = False


@dataclass(frozen=True)
class FitArguments(VerbArguments):
    """The arguments of ``cerebro.fit``."""

    configurations: Text = None
    warm_start: Flag = False


def kinds_of(record: type[PackingArguments]) -> dict[str, str]:
    """The annotations of a record's fields, without making the methods of the class, which is slow."""
    return {
        name: kind for one in reversed(record.__mro__) for name, kind in getattr(one, "__annotations__", {}).items()
    }


PACKING = tuple(kinds_of(PackingArguments))
# The arguments of cerebro.pack, except the tables.
RECORDED = {
    name: kind for name, kind in kinds_of(PackArguments).items() if name not in ("source_table", "output_table")
}
