"""The checked arguments of ``cerebro.pack``: the columns, what they shall become, and the division of the rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from cerebro_db.core import documents
from cerebro_db.core.arguments import PackArguments
from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.names import split_list
from cerebro_db.core.packing import columns as deciding
from cerebro_db.core.packing import images
from cerebro_db.core.packing.columns import NOTHING, Wish
from cerebro_db.core.packing.division import Division
from cerebro_db.core.packing.windows import Windows, quantiles_of
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, sql

from ..database import lineage, relations
from ..database.access import Database
from ..database.relations import Column, Relation
from .rows import known_targets, splits, variables
from .rows.splits import Split

PIXELS = Wish("pixels")
SHARE = 0.2  # of the rows for validation, if the user says nothing


@dataclass
class CheckedColumns:
    """The columns that the arguments name."""

    targets: list[Column]
    inputs: list[Column]
    named: bool  # the user listed the inputs
    wishes: dict[str, Wish]
    keys: set[str]  # columns that are unique on their own
    references: set[str]
    key: str | None  # the column of the table's key, if that is one column
    keys_below: set[str]  # of a view: they show a key of a table, whose rows may be there several times
    later: bool  # the targets are those of later rows
    known: tuple[str, ...] = ()  # columns of later rows that are inputs, too
    known_later: int = 0  # how many rows later
    made: frozenset[str] = frozenset()  # columns of related tables, which no user names

    def names(self, column: str) -> bool:
        """Whether the user listed an input, so that it should be one."""
        return column in self.known or (self.named and column not in self.made)

    def wish(self, column: Column) -> Wish:
        return self.wishes.get(column.name, NOTHING)

    @property
    def used(self) -> list[Column]:
        """The columns whose values packing reads."""
        return [*self.targets, *(one for one in self.inputs if self._is_prepared(one))]

    def _is_prepared(self, column: Column) -> bool:
        family, wish = family_of(column), self.wish(column)
        return family is not None and wish.choice != "ignore" and not (family == "bytes" and wish is NOTHING)


def split_of(
    given: PackArguments, present: dict[str, Column], source: Relation, windows: Windows | None
) -> Split | None:
    """How the rows are divided; None: they are not.  By default a fifth of them are for validation.

    Windows are divided by their subject, so that no row is on both sides.  They are divided by their time if there is
    only one subject, if they have groups (which may have one subject each), and if they forecast a later row.
    """
    share, split_by, split_at, stratify = given.validation, given.split_by, given.split_at, given.stratify
    if given.validation_table is not None and share:
        raise InvalidArgument("validation and validation_table cannot be used together.", hint="Leave one of them out.")
    share = 0.0 if given.validation_table is not None else SHARE if share is None else share
    if not 0.0 <= share < 1.0:
        raise InvalidArgument(
            f"validation must be a share from 0 to 1, not {share!r}.",
            hint="0.2 keeps a fifth of the rows for validation; validation_table names a table of its own.",
        )
    used = [name for name in ("split_by", "split_at", "stratify") if getattr(given, name)]
    if len(used) > 1:
        raise InvalidArgument(f"{' and '.join(used)} cannot be used together.", hint="Choose one of them.")
    if used and not share:
        raise InvalidArgument(f"{used[0]} needs a share for validation.", hint="For instance validation => 0.2.")
    if stratify and windows is not None:
        raise InvalidArgument(
            "stratify and sequence cannot be used together.",
            hint="Divide the windows with split_by or split_at.",
        )
    if not share:
        return None
    if windows is not None and not used:
        if windows.by and not windows.horizon and given.group_by is None:
            return Split(share, tuple(present[name] for name in windows.by), None, None)
        return Split(share, (), present[windows.order[0]], None)

    by = (variables.pick_one(present, split_by, "split_by", source),) if split_by else ()
    at = variables.pick_one(present, split_at, "split_at", source) if split_at else None
    classes = variables.target_to_stratify(present, given.target, source) if stratify else None
    return Split(share, by, at, classes)


def asked_for(
    db: Database,
    source: Relation,
    given: PackArguments,
    apart: Sequence[Column],
    windows: Windows | None,
    weight: Column | None,
) -> CheckedColumns:
    """``apart``: columns that divide the rows; they are no inputs unless ``inputs`` names them."""
    present = relations.columns(db, source)
    wanted = variables.pick(present, split_list(given.target, "target"), "target", source)
    for column in wanted:
        if windows is not None and column.name in windows.known:
            raise InvalidArgument(
                f"sequence: the target '{column.name}' cannot be known before.", hint="Leave it out of known."
            )
    later = windows is not None and windows.horizon > 0  # what the target was until now is an input then
    if given.inputs is not None:
        chosen = variables.pick(present, split_list(given.inputs, "inputs"), "inputs", source)
        for column in chosen:
            if column in wanted and not later:
                raise InvalidArgument(
                    f"the target '{column.name}' is among the inputs.", hint="Leave it out of inputs."
                )
    else:
        others = [
            *([] if later else wanted),
            *apart,
            *(present[name] for name in (windows.read if windows else ())),
            *([weight] if weight else []),
        ]
        chosen = [one for one in present.values() if one not in others and one not in source.more]
    chosen += [present[name] for name in (windows.known if windows else ()) if present[name] not in chosen]
    chosen += [one for one in source.more if one not in chosen]
    relations.require_readable(
        db, source, [*wanted, *chosen, *apart, *([weight] if weight else []),
                     *(present[name] for name in (windows.read if windows else ()))],
    )  # fmt: skip
    key = relations.unique_key(db, source)
    families = {name: (one.type, family_of(one)) for name, one in present.items()}
    wishes = deciding.wishes(documents.argument(given.prepare, "prepare"), families, "prepare")
    _require_quantiles_of(wishes, wanted)
    if given.sequence is not None:
        quantiles = quantiles_of(documents.argument(given.sequence, "sequence"), "sequence")
        for column in wanted if quantiles else ():
            wish = wishes.get(column.name, NOTHING)
            arguments = {**wish.arguments, "quantiles": list(quantiles)}
            wishes[column.name] = replace(wish, choice=wish.choice or "number", arguments=arguments)
    return CheckedColumns(
        targets=wanted,
        inputs=chosen,
        named=given.inputs is not None,
        wishes=wishes,
        keys=relations.keys(db, source),
        references=relations.references(db, source) | lineage.references_below(db, source),
        key=key[0] if len(key) == 1 else None,
        keys_below=lineage.keys_below(db, source),
        later=later,
        known=windows.known if windows is not None else (),
        known_later=windows.reach if windows is not None else 0,
        made=frozenset(column.name for column in source.more),
    )


def _require_quantiles_of(wishes: dict[str, Wish], targets: Sequence[Column]) -> None:
    for name, wish in wishes.items():
        if "quantiles" in wish.arguments and name not in [column.name for column in targets]:
            raise InvalidArgument(
                f"prepare: '{name}' is not a target, so it has no quantiles.",
                hint=f"""The target: {", ".join(f"'{column.name}'" for column in targets)}.""",
            )


def with_kept_shapes(db: Database, source: Relation, present: dict[str, Column], given: PackArguments) -> PackArguments:
    """The arguments, whose ``prepare`` has the shapes of images that cerebro images wrote into comments of columns.

    So the shapes are on record: rows of another table can be packed in the same way.
    """
    of_bytes = [name for name, column in present.items() if family_of(column) == "bytes"]
    if not of_bytes:
        return given
    document = documents.argument(given.prepare, "prepare")
    wishes = deciding.wishes(document, {name: (one.type, family_of(one)) for name, one in present.items()}, "prepare")
    inputs = present if given.inputs is None else split_list(given.inputs, "inputs")
    lacking = {
        name: wish.arguments for name in of_bytes
        if name in inputs and (wish := wishes.get(name, PIXELS)).choice == PIXELS.choice
        and "shape" not in wish.arguments
    }  # fmt: skip
    comments = relations.comments(db, source) if lacking else {}
    kept = {
        name: {"as": PIXELS.choice, "shape": shape, **arguments}
        for name, arguments in lacking.items()
        if (shape := images.shape_of(comments.get(name, ""))) is not None
    }
    return replace(given, prepare=json.dumps({**(document or {}), **kept})) if kept else given


def family_of(column: Column) -> str | None:
    return deciding.family_of(column.type, column.category, column.element)


def may_stratify(db: Database, source: Relation, target: str | None, most: int, share: float) -> bool:
    """Whether the target is one column of at most so many labels, and this share of one of them is a row or more."""
    names = split_list(target, "target")
    (column, *more) = variables.pick(relations.columns(db, source), names, "target", source)
    relations.require_readable(db, source, [column, *more])
    if more or column.element is not None or column.type in deciding.REALS:
        return False
    try:
        (found,) = db.scan(
            sql(
                "SELECT count(*) AS values, max(n) AS most"
                " FROM (SELECT count(*) AS n FROM {rows} AS s GROUP BY {name}) d",
                name=identifier(column.name),
                rows=source.rows,
            )
        )
    except db.plpy.SPIError as error:
        if not db.is_error(error, "42883"):
            raise
        return False  # values of such a type cannot be compared; packing says so
    return bool(found["values"] <= most and found["most"] * share >= 1)


@dataclass(frozen=True)
class Sides:
    training: Relation
    validation: Relation | None
    division: Division | None  # None: rows are not divided, or each group of rows is divided by itself


def sides(
    db: Database,
    source: Relation,
    split: Split | None,
    validation_table: str | None,
    known: Sequence[str],
    completed: Callable[[Relation], Relation],
) -> Sides:
    """The rows for training, and those for validation.  ``known``: the columns that are NULL in none of them.

    ``completed``: gives rows of another table the columns that the source has of related tables.
    """
    if validation_table is not None:
        others = relations.filled(db, validation_table, argument="validation_table")
        if others.oid == source.oid:
            raise InvalidArgument(
                "validation_table is the source itself, so training would see all rows for validation.",
                hint="validation => 0.2 keeps a fifth of the rows for validation.",
            )
        others = completed(others)
        if known:
            others = known_targets.named(db, others, known)
        return Sides(source, others, None)
    if split is None:
        return Sides(source, None, None)
    columns, hashed = hashed_to_divide(db, source, split)
    division = None
    if split.groups:
        condition = split.of_each_group(db, source, hashed)
    else:
        division = split.division(db, source, columns, hashed)
        condition = splits.condition_of(division, relations.columns(db, source), hashed)
    training, validation = splits.divided(source, condition)
    for side, what in ((training, "training"), (validation, "validation")):
        if relations.is_empty(db, side):
            raise BadData(
                f"no row of {source.text} is left for {what}.",
                hint="Choose another share or column to divide by, or validation => 0 to keep all rows for training.",
            )
    return Sides(training, validation, division)


def hashed_to_divide(db: Database, source: Relation, split: Split) -> tuple[Sequence[Column], Sql]:
    """The columns by whose hash the rows are divided, and the hash."""
    if split.by:
        return split.by, splits.hash_of(split.by, splits.by_name)
    return key_of(db, source), splits.within_steps(hash_of_rows(db, source))


def hash_of_rows(db: Database, source: Relation) -> Sql:
    """The hash of what tells a row apart, 64 bits."""
    return source.row_hash or splits.whole_hash_of(key_of(db, source), splits.by_name)


def key_of(db: Database, source: Relation) -> list[Column]:
    """The columns that tell rows apart: of a unique key, or all that the user may read, whichever are inputs.

    The inputs alone may have few different values.
    """
    present = relations.columns(db, source)
    own = [one for one in present.values() if one not in source.more]
    return relations.readable_key(db, source) or [one for one in own if one.readable]
