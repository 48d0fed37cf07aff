"""The variables that ``cerebro.pack`` makes of the columns, as cerebro_db.core.columns decides by the training rows."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro_db.core import columns as deciding
from cerebro_db.core.columns import NOTHING, Found, Ignored
from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.features import CategoryFeature, Feature, NumberFeature
from cerebro_db.core.preparation import AsIs, ByColumn, Categories, Numbers, OneHot, Preparation, Words
from cerebro_db.core.sql import identifier, sql

from ..database.access import Database
from ..database.relations import Column, Relation
from . import statistics, targets, variables
from .asked import AskedColumns, family_of
from .preparation import SourceVariable, applied
from .statistics import Looked


def prepared(
    db: Database, training: Relation, asked: AskedColumns
) -> tuple[list[SourceVariable], list[SourceVariable]]:
    """The inputs and outputs, with the preparations that the training rows ask for."""
    looked: list[Looked] = []
    arrays: list[Column] = []
    ignored: dict[str, str] = {}
    for column in asked.inputs:
        family = family_of(column)
        if family is None:
            if asked.named:
                raise InvalidArgument(
                    f"the input '{column.name}' has the type {column.shown}, which cannot be prepared.",
                    hint="A view can convert it to a number, a text, a date or an array of numbers.",
                )
            ignored[column.name] = f"its type {column.shown} cannot be prepared"
            continue
        deciding.require_possible(column.name, column.shown, family, asked.wish(column))
        if asked.wish(column).choice == "ignore":
            ignored[column.name] = "as prepare says"
        elif family == "array":
            arrays.append(column)
        else:
            looked.append(_looked(column, family, asked))
    goals = [_looked(column, family, asked) for column in asked.targets if (family := _known_family(column))]
    most = max((wish.arguments.get("values", 0) for wish in asked.wishes.values()), default=0)
    found = statistics.of(db, training, looked + goals, max(most, deciding.MOST_VALUES))
    outs = _outputs(db, asked, found[len(looked) :])
    _find_row_numbers(db, training, found[: len(looked)], asked)
    decided: list[tuple[str, Feature]] = []
    for one in found[: len(looked)]:
        became = deciding.decide(one, asked.wishes.get(one.name, NOTHING), asked.named)
        if isinstance(became, Ignored):
            ignored[one.name] = became.why
        else:
            decided.append((one.name, became))
            _require_known(db, one, became)
    _tell(db, decided, ignored, found[: len(looked)])
    if not decided and not arrays:
        raise BadData(f"{training.text} has no column that can be an input.", hint="See the notices above.")
    by_column = {column.name: column for column in asked.inputs}
    ins = [
        applied(name, [by_column[one] for one, _ in pairs], _kind([feature for _, feature in pairs]))
        for name, pairs in deciding.inputs_of(decided)
    ]
    ins += [applied(column.name, [column], AsIs()) for column in arrays]
    return ins, outs


def _find_row_numbers(db: Database, training: Relation, found: list[Found], asked: AskedColumns) -> None:
    """Note the columns that number the rows.  All rows are looked at: those for training are a part of the numbers."""
    for one in found:
        if one.may_number_the_rows and one.name not in asked.wishes and one.name not in asked.keys:
            name = identifier(one.name)
            (close,) = db.scan(
                sql(
                    "SELECT max({name})::numeric - min({name}) + 1 = count({name})"
                    " AND count({name}) = count(*) AS numbers"
                    " FROM {training}",
                    name=name,
                    training=training.sql,
                )
            )
            if close["numbers"]:
                (whole,) = db.scan(
                    sql(
                        "SELECT count(*) = count(DISTINCT {name}) AS numbers FROM {training}",
                        name=name,
                        training=training.sql,
                    )
                )
                one.numbers_the_rows = whole["numbers"]


def _require_known(db: Database, found: Found, feature: Feature) -> None:
    """A notice, or an error if that is the wish, for values of the training rows that have no code."""
    if not isinstance(feature, CategoryFeature) or feature.buckets:
        return
    without = found.groups - len(feature.values) - len(feature.rare)
    if without > 0:
        what = f"{without} of the {found.groups} values of column '{found.name}' have no code"
        if feature.unknown == "error":
            raise BadData(
                f"{what}.", hint="A larger number of values, or buckets for the others, gives each value a code."
            )
        db.notice(f"{what} and count as unknown")


def _looked(column: Column, family: str, asked: AskedColumns) -> Looked:
    as_text = statistics.as_text(family, asked.wish(column))
    return Looked(column, family, as_text, column.name in asked.keys, column.name in asked.references)


def _known_family(column: Column) -> str | None:
    """The family of a target whose values count; None for an array, or a type of the user's own."""
    family = family_of(column)
    return None if family == "array" else family


def _kind(prepared: Sequence[Feature]) -> Preparation:
    kinds: tuple[type[ByColumn], ...] = (Numbers, Categories, Words)
    (kind,) = [kind for kind in kinds if isinstance(prepared[0], kind.kinds)]
    return kind(tuple(prepared))


def _outputs(db: Database, asked: AskedColumns, found: list[Found]) -> list[SourceVariable]:
    known = {one.name: one for one in found}
    outs = []
    for column in asked.targets:
        wish = asked.wish(column)
        if column.name in known:
            preparation = targets.decide(known[column.name], wish)
        else:
            preparation = variables.output_preparation(column)
        if column.type in deciding.INTEGERS and not isinstance(preparation, OneHot) and wish is NOTHING:
            db.notice(
                f"'{column.name}' is predicted as a number, because it has many different integers;"
                f' prepare => \'{{"{column.name}": "category"}}\' makes classes of them'
            )
        outs.append(applied(column.name, [column], preparation))
    return outs


def _tell(db: Database, decided: list[tuple[str, Feature]], ignored: dict[str, str], found: list[Found]) -> None:
    became: dict[str, list[str]] = {}
    for name, feature in decided:
        transform = feature.transform if isinstance(feature, NumberFeature) and feature.transform != "standard" else ""
        became.setdefault(feature.prepared_as, []).append(name + (f" ({transform})" if transform else ""))
    if became:
        listed = "; ".join(f"{what}: {', '.join(names)}" for what, names in became.items())
        db.notice(f"prepared as {listed}")
    for name, why in ignored.items():
        db.notice(f"the column '{name}' is ignored: {why}")
    for one in found:
        if one.texts and one.look_like_numbers == one.texts and one.family == "text" and one.name not in ignored:
            db.notice(
                f"the column '{one.name}' is {one.shown}, but all its values are numbers; a view with"
                f" {one.name}::double precision makes it a number"
            )
