"""The variables that ``cerebro.pack`` makes of the columns, as cerebro_db.core.packing.columns decides by the training
rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.packing import columns as deciding
from cerebro_db.core.packing import images
from cerebro_db.core.packing.columns import NOTHING, OF_SINGLE_VALUES, POSSIBLE, Found, Ignored, Wish
from cerebro_db.core.packing.features import CategoryFeature, Feature, NumberFeature
from cerebro_db.core.packing.preparation import AsIs, ByColumn, Categories, Numbers, Preparation, Words
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import identifier, sql
from cerebro_db.core.sql_types import REALS

from ...database.access import Database
from ...database.relations import Column, Relation
from .. import copied_rows
from ..checked_arguments import CheckedColumns, family_of, hash_of_rows
from ..rows import unusable, variables
from ..rows.preparation import SourceVariable, applied
from . import codes, identifying_columns, leaks, new_values, sample, statistics, targets, texts
from .statistics import Looked


@dataclass(frozen=True)
class Prepared:
    """The inputs and outputs, the column of a row's key, what the rows tell about each column, and a sample of them."""

    inputs: list[SourceVariable]
    outputs: list[SourceVariable]
    key: str | None
    found: dict[str, Found]
    sample: Relation  # all rows, if they are few
    rows: int


def prepared(
    db: Database, training: Relation, others: Relation | None, asked: CheckedColumns, *, later: bool, copies: bool
) -> Prepared:
    """What the columns become, as the training rows ask for.

    ``others``: the rows for validation.  ``later``: they come after the rows for training.
    ``copies``: whether the sample may be a copy, which the caller drops.
    """
    looked: list[Looked] = []
    arrays: list[Column] = []
    pixels: list[SourceVariable] = []
    ignored: dict[str, Ignored] = {}
    for column in asked.inputs:
        family = family_of(column)
        if family is None:
            if asked.names(column.name):
                raise InvalidArgument(
                    f"the input '{column.name}' has the type {column.shown}, which cannot be prepared.",
                    hint="A view can convert it to a number, a text, a date or an array of numbers.",
                )
            ignored[column.name] = Ignored(f"its type {column.shown} cannot be prepared")
            continue
        deciding.require_possible(column.name, column.shown, family, asked.wish(column))
        if asked.wish(column).choice == "ignore":
            ignored[column.name] = Ignored("as prepare says")
        elif family == "array":
            arrays.append(column)
        elif family == "bytes" and asked.wish(column) is NOTHING:
            ignored[column.name] = _without_shape(db, training, column, asked)
        elif family == "bytes":
            shape, preparation = deciding.pixels(asked.wish(column))
            pixels.append(replace(applied(column.name, [column], preparation), shape=shape))
        else:
            looked.append(_looked(column, family, asked))
    goals = [
        replace(_looked(column, family, asked), whole=True)
        for column in asked.targets
        if (family := _known_family(column))
    ]
    most = max((wish.arguments.get("values", 0) for wish in asked.wishes.values()), default=0)
    total = statistics.totals(db, training, looked + goals)
    some = sample.varied(db, training, total["rows"], statistics.SAMPLE)
    if copies and some is not training:
        some = copied_rows.of_sample(db, some, asked.used, hash_of_rows(db, training))
    most = max(most, deciding.MOST_VALUES)
    both = statistics.of(db, training, some, looked + goals, total, most)
    found, of_targets = both[: len(looked)], both[len(looked) :]
    outs = _outputs(db, training, asked, goals, of_targets)
    identifying_columns.note(db, training, found, asked)
    found = codes.counted(db, training, looked, found, asked, most)
    if others is not None:
        new_values.note(db, others, later, found, asked)
    texts.note(db, some, total["rows"], found, asked)
    decided: list[tuple[str, Feature]] = []
    past_targets = {column.name for column in asked.targets}
    numbers_to_predict = all(one.preparation.target == "real" for one in outs)
    for one in found:
        past = asked.later and one.name in past_targets
        wish = asked.wishes.get(one.name, NOTHING)
        if past and numbers_to_predict:
            wish = deciding.in_its_unit(wish)
        became = deciding.decide(one, wish, asked.names(one.name) or past)
        if isinstance(became, Ignored):
            ignored[one.name] = became
        else:
            if one.name in asked.known:
                became = deciding.of_forecasts(became, one, wish)
            decided.append((one.name, became))
            _require_known(db, one, became)
            if not asked.wishes.get(one.name, NOTHING).names_column and (one.is_key or one.identifies):
                db.notice(
                    f"the input '{one.name}' identifies rows, and seldom says anything about other rows; leave it out"
                    " of inputs unless you mean it"
                )
    _tell(db, decided, ignored, found)
    new_values.tell(db, [one for one in found if one.name not in ignored], asked)
    if not decided and not arrays and not pixels:
        raise BadData(f"{training.text} has no column that can be an input.", hint="See the notices above.")
    by_column = {column.name: column for column in asked.inputs}
    ins = [
        applied(name, [by_column[one] for one, _ in pairs], _kind([feature for _, feature in pairs]))
        for name, pairs in deciding.inputs_of(decided)
    ]
    ins += [applied(column.name, [column], AsIs()) for column in arrays] + pixels
    known = [(name, feature) for name, feature in decided if name in asked.known]
    for name, pairs in deciding.inputs_of(known):
        columns, became_of = [by_column[one] for one, _ in pairs], _kind([feature for _, feature in pairs])
        ins.append(replace(applied(f"later_{name}", columns, became_of), later=asked.known_later))
    if not asked.later:  # what a row knows of itself says nothing about a later one that should not be known
        leaks.tell(db, some, [one for one in found if one.name not in ignored], outs, asked)
    key = asked.key or next((name for name, one in ignored.items() if one.identifies), None)
    return Prepared(ins, outs, key, {one.name: one for one in [*found, *of_targets]}, some, total["rows"])


def _without_shape(db: Database, training: Relation, column: Column, asked: CheckedColumns) -> Ignored:
    """Why a column of bytes is no input; an error if the user names it as one."""
    why, hint = "the shape of its bytes is not known", images.needs_shape(column.name)
    if (format := unusable.format_in(db, training, column)) is not None:
        why, hint = f"its values are {format} files", images.DECODE
    if asked.named:
        raise InvalidArgument(f"the input '{column.name}' of type {column.shown} cannot be used: {why}.", hint=hint)
    return Ignored(why, hint=hint)


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


def _looked(column: Column, family: str, asked: CheckedColumns) -> Looked:
    as_text = statistics.as_text(family, asked.wish(column))
    refers = column.name in asked.references
    # Columns that the user names, and keys of other tables, may become categories with few rows each: no sample.
    whole = refers or column.name in asked.keys_below or column.name in asked.wishes
    return Looked(column, family, as_text, column.name in asked.keys, refers, whole)


def _known_family(column: Column) -> str | None:
    """The family of a target whose values count; None for an array, bytes, or a type of the user's own."""
    family = family_of(column)
    return None if family in OF_SINGLE_VALUES else family


def _kind(prepared: Sequence[Feature]) -> Preparation:
    kinds: tuple[type[ByColumn], ...] = (Numbers, Categories, Words)
    (kind,) = [kind for kind in kinds if isinstance(prepared[0], kind.kinds)]
    return kind(tuple(prepared))


def _outputs(
    db: Database, training: Relation, asked: CheckedColumns, goals: Sequence[Looked], found: list[Found]
) -> list[SourceVariable]:
    known = {one.name: one for one in found}
    for looked, one in zip(goals, found):
        _count_exactly(db, training, looked, one, asked.wish(looked.column))
    outs = []
    for column in asked.targets:
        wish = asked.wish(column)
        if column.name in known:
            preparation = targets.decide(known[column.name], wish)
            if (text := targets.notice(known[column.name], preparation, wish)) is not None:
                db.notice(text)
        else:
            preparation = variables.output_preparation(column)
        quantiles = tuple(wish.arguments.get("quantiles", ()))
        if quantiles and (preparation.target != "real" or column.element is not None):
            raise InvalidArgument(
                f"the target '{column.name}' of type {column.shown} is no number, so it has no quantiles.",
                hint="Cast it to double precision in a view.",
            )
        outs.append(replace(applied(column.name, [column], preparation), quantiles=quantiles))
    return outs


def _count_exactly(db: Database, training: Relation, looked: Looked, found: Found, wish: Wish) -> None:
    """Count the different values of a target that may become classes: a bin of numbers holds many of them."""
    if looked.as_text or not found.numbers.rows or found.numbers.values is not None:
        return
    if found.type in REALS and wish.choice != "category":
        return
    name = identifier(found.name)
    (row,) = db.scan(sql("SELECT count(DISTINCT {name}) AS groups FROM {rows} AS s", name=name, rows=training.rows))
    found.groups = row["groups"]


def _tell(db: Database, decided: list[tuple[str, Feature]], ignored: dict[str, Ignored], found: list[Found]) -> None:
    became: dict[str, list[str]] = {}
    for name, feature in decided:
        transform = feature.transform if isinstance(feature, NumberFeature) and feature.transform != "standard" else ""
        became.setdefault(feature.prepared_as, []).append(name + (f" ({transform})" if transform else ""))
    if became:
        listed = "; ".join(f"{what}: {', '.join(names)}" for what, names in became.items())
        db.told(f"prepared as {listed}")
    families = {one.name: one.family for one in found}
    for name, ignoring in ignored.items():
        wish = json.dumps({name: POSSIBLE.get(families.get(name, ""), ("category",))[0]}, ensure_ascii=False)
        hint = f"prepare => '{wish}' makes it an input." if ignoring.identifies else ignoring.hint
        db.told(f"the column '{name}' is ignored: {ignoring.why}", hint)
    for one in found:
        if one.texts and one.look_like_numbers == one.texts and one.family == "text" and one.name not in ignored:
            db.notice(
                f"the column '{one.name}' is {one.shown}, but all its values are numbers; a view with"
                f" {one.name}::double precision makes it a number"
            )
