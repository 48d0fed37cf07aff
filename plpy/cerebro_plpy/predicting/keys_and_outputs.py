"""What ``cerebro.predict`` and ``cerebro.predict_into`` have in common: inputs, key and form of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cerebro_db.core.errors import BadData, InvalidArgument, UndefinedColumn, Unsupported
from cerebro_db.core.names import split_list
from cerebro_db.core.packing.columns import OF_SINGLE_VALUES, family_of
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.protocol import BestClasses
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.sql_types import LABELS
from cerebro_db.core.texts import or_null

from ..database import relations
from ..database.access import Database
from ..database.relations import Column, Relation, counted_names
from ..models.trained import class_labels
from ..packing.rows import inputs_by_name, variables
from ..packing.rows.preparation import SourceVariable, applied
from .trainers import with_quantiles

if TYPE_CHECKING:
    from ..models.calibrations import Applied

PAIR = "__cerebro_pair"  # the column that the functions which judge a model add to a query
KEY_FAMILIES = (("number", *LABELS), ("text",))  # of the types of columns, the most usual first
REAL = ("real", "double precision")
MOST_CANDIDATES = 3  # each takes about 0.5 µs per row
ALL = "*"
MOST_CLASSES = 500  # of a target; a query has two columns for each of them
LONGEST_KEY = 400  # bytes as stored
ROWS_OF_A_LOOK = 1000  # the first ones


def require_top(top: int | None) -> int:
    """How many classes of each row are returned."""
    if top is not None and top < 1:
        raise InvalidArgument(f"top cannot be {or_null(top)}.", hint="1 returns the most probable class of each row.")
    return top or 1


def inputs_of(db: Database, trained: Layout, present: dict[str, Column], rows: str) -> list[SourceVariable]:
    """The model's inputs, found by their names.  ``rows``: what an error calls the rows."""
    if inputs_by_name.matches(trained):
        return inputs_by_name.found(trained, present, rows)
    known = [name for variable in trained.inputs for name in variable.columns]
    if missing := [name for name in known if name not in present]:
        raise inputs_by_name.lacks(rows, missing)
    return as_trained(db, trained, [present[name] for name in known])


def as_trained(db: Database, trained: Layout, columns: list[Column]) -> list[SourceVariable]:
    """The model's inputs, made of these columns with the preparations of the layout.

    Columns that have the names of the training columns are matched by name.  Columns of which none has such a name are
    taken in their order.
    """
    known = [name for variable in trained.inputs for name in variable.columns]
    names = [column.name for column in columns]
    groups = variables.grouped(columns)
    if set(names) == set(known):
        by_name = {column.name: column for column in columns}
        in_order = variables.grouped([by_name[name] for name in known])
        if in_order != groups:
            db.notice(f"the columns were put into the order of the training data: {', '.join(known)}")
        groups = in_order
    elif set(names) & set(known):
        raise _mismatch(trained, names)
    if len(groups) != len(trained.inputs):
        raise _mismatch(trained, names)
    inputs = []
    for (_, own), variable in zip(groups, trained.inputs):
        if own[0].element is None and variable.elements != len(own):
            raise _mismatch(trained, names)
        source = applied(variable.name, own, variable.preparation)
        source.shape = variable.shape
        inputs.append(source)
    return inputs


def _mismatch(trained: Layout, names: list[str]) -> BadData:
    inputs = ", ".join(
        variable.name if variable.columns == (variable.name,) else f"{variable.name} ({', '.join(variable.columns)})"
        for variable in trained.inputs
    )
    return BadData(
        f"independent_varname names {', '.join(names)}, but the model was trained on the inputs {inputs}.",
        hint="Name the training columns, in any order; or, in their order, columns of which none has such a name.",
    )


def named_key(key: str, present: dict[str, Column], rows: str) -> str:
    """The column that the argument ``key`` names."""
    (name, *more) = split_list(key, "key")
    if more or name not in present:
        raise UndefinedColumn(f"key must be one column of {rows}, not {key}.", hint=relations.has_columns(present))
    return name


def key_candidates(present: dict[str, Column], trained: Layout) -> list[str]:
    """The columns that may tell rows apart: the model does not use them.

    Those of types that are usual for keys come first: numbers, then texts.  The moment of loading a row is none.
    """
    used = {name for variable in (*trained.inputs, *trained.outputs) for name in variable.columns}
    place = trained.windows.read if trained.windows else ()
    others = [one for name, one in present.items() if one.readable and name not in used and name not in place]
    families = {one.name: family_of(one.type, one.category, one.element) for one in others}
    possible = [one for one in others if families[one.name] not in OF_SINGLE_VALUES]

    def rank(one: Column) -> int:
        kinds = (i for i, kinds in enumerate(KEY_FAMILIES) if families[one.name] in kinds and one.type not in REAL)
        return next(kinds, len(KEY_FAMILIES))

    return [one.name for one in sorted(possible, key=rank)[:MOST_CANDIDATES]]


def candidate(name: str) -> Sql:
    """The value of a column as a key, as text; NULL for a long one, which is no key and would take much memory."""
    return sql(
        "CASE WHEN pg_catalog.pg_column_size({name}) <= {longest} THEN {name}::text END",
        name=identifier(name),
        longest=LONGEST_KEY,
    )


def key_columns(
    db: Database, key: str | None, present: dict[str, Column], trained: Layout, source: Relation, rows: str
) -> list[str]:
    """The columns of a row's key: the named one, or those of a unique key, or one whose values are different.

    A window has the key of its last row; without such a column, its place.  Empty: the rows have none.
    """
    if key is not None:
        return [named_key(key, present, rows)]
    unique = relations.unique_key(db, source) if source.oid else []
    if unique and all(present[name].readable for name in unique):
        return unique
    candidates = key_candidates(present, trained)
    different = [sql("count(DISTINCT {value} COLLATE \"C\") AS d{i}", value=candidate(name), i=i)
                 for i, name in enumerate(candidates)]  # fmt: skip
    if different:
        some = sql("SELECT {names} FROM {rows} AS s LIMIT {most}", names=joined(", ", map(identifier, candidates)),
                   rows=source.rows, most=ROWS_OF_A_LOOK)  # fmt: skip
        (found,) = db.scan(sql("SELECT count(*) AS n, {different} FROM ({some}) s",
                               different=joined(", ", different), some=some))  # fmt: skip
        for i, name in enumerate(candidates):
            if found[f"d{i}"] == found["n"]:
                tell_key(db, name, candidates)
                return [name]
    return list(trained.windows.columns) if trained.windows else []


def tell_key(db: Database, chosen: str | None, candidates: list[str]) -> None:
    """A notice if the key is not the first candidate.  None: it is the number of the row."""
    if not candidates or chosen == candidates[0]:
        return
    which = f"the column '{chosen}'" if chosen is not None else "the number of the row"
    same = candidates if chosen is None else candidates[: candidates.index(chosen)]
    have = "have" if len(same) > 1 else "has"
    db.notice(
        f"key_value is {which}: {counted_names('column', same)} {have} NULLs or long values, or the same value in"
        " several rows",
        "key => '…' names a column.",
    )


def key_of(columns: list[str]) -> Sql:
    """The key of a row, as text."""
    if len(columns) == 1:
        return sql("{name}::text", name=identifier(columns[0]))
    return sql("concat_ws(', ', {columns})", columns=joined(", ", map(identifier, columns)))


def classes_of(outputs: tuple[Variable, ...], probability_of: str | None, ranks: int) -> list[list[str | None]]:
    """Of each output, the classes that the argument names: one, some separated by commas, or * for all."""
    if probability_of is None:
        return [[] for _ in outputs]
    if ranks > 1:
        raise InvalidArgument(
            "top and probability_of cannot be used together.", hint="probability_of => '*' has all classes."
        )
    wanted = probability_of.strip()
    known: list[list[str | None]] = [[] if is_number(one) else class_labels(one) for one in outputs]
    if not any(known):
        raise InvalidArgument(
            "probability_of: the model predicts a number, which has no classes.",
            hint="coverage => 0.9 gives an interval.",
        )
    whole = next((one for one in (probability_of, wanted) if any(one in its for its in known)), None)
    names = [one.strip() for one in wanted.split(",")] if whole is None else [whole]
    found = [[one for one in its if wanted == ALL or one in names] for its in known]
    if wanted != ALL and (missing := [one for one in names if not any(one in its for its in found)]):
        listed = ", ".join(map(str, [one for its in known for one in its][:20]))
        commas = any("," in str(one) for its in known for one in its)
        alone = " A class with a comma in its name cannot be listed with others: name it alone." if commas else ""
        raise InvalidArgument(
            f"probability_of: the model has no class '{missing[0]}'.", hint=f"Classes: {listed}.{alone}"
        )
    if any(its and len(all_of) > MOST_CLASSES for its, all_of in zip(found, known)):
        raise InvalidArgument(
            f"probability_of needs a target with at most {MOST_CLASSES} classes.",
            hint="top => 10 gives the ten most probable classes of each row.",
        )
    return found


def best_classes(
    outputs: tuple[Variable, ...], ranks: int | None, applied: Applied | None = None
) -> BestClasses | None:
    """None: the outputs are numbers, without quantiles."""
    if any(is_number(variable) and variable.of_step != (1,) for variable in outputs):
        raise Unsupported(
            "the model predicts arrays.",
            hint="madlib.madlib_keras_predict() writes a table of such predictions (docs/madlib.md).",
        )
    shifts = None if applied is None else applied.shifts
    if all(map(is_number, outputs)):
        return with_quantiles(outputs, None, shifts)
    labels = [None if is_number(one) else len(class_labels(one)) for one in outputs]
    corrected = None if applied is None else [applied.classes.get(one.name) for one in outputs]
    return with_quantiles(outputs, BestClasses(labels, ranks, corrected if any(corrected or ()) else None), shifts)


def outputs_as_lines(
    outputs: tuple[Variable, ...],
    applied: Applied | None = None,
    chosen: Sequence[Sequence[str | None]] = (),
    *,
    timed: bool = False,
) -> list[dict[str, Any]]:
    """The outputs as SQL reads them from JSON: their places, names and labels; no labels: a number.

    ``chosen``: of each output, the classes that are returned; empty: the most probable one.  ``timed``: keys are pairs
    of a key and the time that a forecast is for.

    A number with an interval also has its half widths, and the edges of the bins of predictions that have them; or the
    places of the quantiles that are its ends.
    """
    pairs = {} if applied is None else applied.pairs
    intervals = {} if applied is None else applied.intervals
    found: list[dict[str, Any]] = []
    for place, variable in enumerate(outputs):
        labels = None if is_number(variable) else class_labels(variable)
        edges, halves = intervals.get(variable.name, (None, None))
        found.append({"output": place, "name": variable.name, "labels": labels, "edges": edges, "halves": halves,
                      "wanted": (chosen[place] or None) if any(chosen) else None,
                      "most": 1 if any(chosen) else None, "timed": timed,
                      "quantiles": list(variable.quantiles) or None, "pair": pairs.get(variable.name)})  # fmt: skip
    return found


def is_number(variable: Variable) -> bool:
    return variable.target == "real"
