"""Windows of rows as a relation: a row for each window, with an array for each input and the columns that are kept.

The rows are prepared one by one, by the same SQL as rows without windows, and then gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.packing.columns import OF_SINGLE_VALUES, family_of
from cerebro_db.core.packing.preparation import OneHot
from cerebro_db.core.packing.windows import Windows
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.sql_types import BYTES
from cerebro_db.core.texts import counted

from ...database import relations
from ...database.access import Database
from ...database.relations import Column, Relation
from . import buffers, known_targets, splits, unusable
from .preparation import SourceVariable, value

KEY_NAME = "__cerebro_key"
KEY = identifier(KEY_NAME)
GROUP = Column("__cerebro_group", "bigint", "bigint", "N", None)
HASH = identifier("__cerebro_hash")
PLACE = Column("__cerebro_place", "bigint", "bigint", "N", None)  # of a window within its subject


def inputs_of(inputs: Sequence[SourceVariable], windows: Windows) -> list[SourceVariable]:
    """The inputs as the relation of windows has them: each is one array, or the pixels of all rows."""
    return [
        replace(
            one,
            columns=[_column(one, _named(one, i, windows))],
            gathered=tuple(column.name for column in one.columns),
            shape=(windows.length, *one.shape),
        )
        for i, one in enumerate(inputs)
    ]


def of(
    source: Relation,
    windows: Windows,
    inputs: Sequence[SourceVariable],
    targets: Sequence[Column] = (),
    *,
    weight: Column | None = None,
    key: Sql | None = None,
    key_of_most: bool = False,
    group: Sql | None = None,
    subjects: Sequence[Column] = (),
    needs_target: bool = True,
    reaches_back: bool = False,
) -> Relation:
    """The windows that lie within the rows of ``source`` as a whole.

    With a horizon, the target and the key of a window are those of a later row of its subject. A window is left out if
    there is no such row, or if a condition leaves this row out.  Without ``needs_target``, the later row does not
    matter, and the key is that of the window's last row.  ``reaches_back``: the condition is that of the later row
    alone, because a forecast may know all rows before.

    Rows are numbered before a condition of the source leaves rows out, so the rows of a window are consecutive. A
    window with a row that is left out is left out itself.  ``weight``: a column of which a window has the value of its
    last row.  ``key``: SQL that gives the key of that row, or of most rows (``key_of_most``).  ``group``: SQL that
    gives a number; a window of rows with different numbers is left out, the others have theirs in the column GROUP.
    ``subjects``: the columns of ``by``, which the windows keep, and with them a hash in the column HASH.
    """
    all_kept = [*targets, *([weight] if weight else [])]
    arrays = [value(one, lambda column: identifier(column.name)) for one in inputs]
    kept = [sql("{value}::{type}", value=one.array(identifier(one.name)), type=one.cast) for one in all_kept]
    whole = [one for one in (key, group) if one is not None]
    # Groups are told apart byte by byte, whatever the collation or type of a text says of equality.
    texts = {one.name for one in subjects if one.category == "S"}
    by = [
        sql('({name}::text COLLATE "C")', name=identifier(name)) if name in texts else identifier(name)
        for name in windows.by
    ]
    partition = sql("PARTITION BY {by} ", by=joined(", ", by)) if by else sql("")
    # Rows of the same moment have an order, too.
    order = joined(", ", [*map(identifier, windows.order), *arrays, *kept, *whole])
    horizon, condition = windows.horizon if needs_target else 0, source.condition or sql("true")

    def later(value: Sql) -> Sql:
        """The value of the row at the horizon."""
        return sql("lead({value}, {horizon}) OVER o", value=value, horizon=horizon) if horizon else value

    columns = [
        *(sql("{value} AS a{i}", value=one, i=i) for i, one in enumerate(arrays)),
        *(
            sql("{value} AS t{i}", value=one if column is weight else later(one), i=i)
            for i, (one, column) in enumerate(zip(kept, all_kept))
        ),
        *([sql("{key} AS k", key=later(key))] if key is not None else []),
        *([sql("{group} AS g, {later} AS h", group=group, later=later(group))] if group is not None else []),
        *(sql("{name} AS b{i}", name=name, i=i) for i, name in enumerate(by)),
        sql("row_number() OVER o - 1 AS n"),
        sql("({condition}) AS chosen, {later} AS known", condition=condition,
            later=later(sql("({condition})", condition=condition))),
    ]  # fmt: skip
    length, step = windows.length, windows.step
    at_the_end = sql("FILTER (WHERE r.n = w.place * {step} + {last})", step=step, last=length - 1)
    gathered = [
        sql(
            "{aggregate} ORDER BY r.n) AS {name}",
            aggregate=sql("string_agg(r.a{i}, ''", i=i) if one.is_pixels else sql("array_agg(r.a{i}", i=i),
            name=identifier(_named(one, i, windows)),
        )
        for i, one in enumerate(inputs)
    ]
    for i, column in enumerate(all_kept):
        if windows.target == "majority" and column is not weight:
            chosen = sql("mode() WITHIN GROUP (ORDER BY r.t{i})", i=i)
        elif column.element is not None:
            chosen = sql("min(r.t{i}) {at_the_end}", i=i, at_the_end=at_the_end)
        else:
            chosen = sql("(array_agg(r.t{i}) {at_the_end})[1]", i=i, at_the_end=at_the_end)
        gathered.append(sql("{chosen} AS {name}", chosen=chosen, name=identifier(column.name)))
    if key is not None and key_of_most:
        gathered.append(sql("COALESCE(mode() WITHIN GROUP (ORDER BY r.k COLLATE \"C\"), '[]') AS {key}", key=KEY))
    elif key is not None:
        gathered.append(sql("(array_agg(r.k) {at_the_end})[1] AS {key}", at_the_end=at_the_end, key=KEY))
    gathered += [sql("min(r.g) AS {name}", name=identifier(GROUP.name))] if group is not None else []
    if subjects:
        place_of = {one.name: sql("r.b{i}", i=i) for i, one in enumerate(subjects)} | {PLACE.name: sql("w.place")}
        known = {column.name for column in all_kept}  # a target or weight that is in ``by`` is the same in all rows
        gathered += [
            sql("{value} AS {name}", value=place_of[one.name], name=identifier(one.name))
            for one in subjects
            if one.name not in known
        ]
        hashed = splits.whole_hash_of([*subjects, PLACE], lambda column: place_of[column.name])
        gathered.append(sql("{hashed} AS {name}", hashed=hashed, name=HASH))
    groups = joined(", ", [*(sql("r.b{i}", i=i) for i in range(len(by))), sql("w.place")])
    query = sql(
        "SELECT {gathered} FROM (SELECT {columns} FROM {rows} AS s WINDOW o AS ({partition}ORDER BY {order})) r"
        " CROSS JOIN LATERAL generate_series(GREATEST(0, (r.n - {overlap}) / {step}), r.n / {step}) AS w (place)"
        " GROUP BY {groups} HAVING count(*) = {length}{chosen} AND bool_and(r.known) {at_the_end}"
        "{alike}",
        gathered=joined(", ", gathered),
        columns=joined(", ", columns),
        partition=partition,
        order=order,
        at_the_end=at_the_end,
        chosen=sql("") if reaches_back else sql(" AND bool_and(r.chosen)"),
        rows=replace(source, condition=None).rows,
        overlap=length - step,
        step=step,
        groups=groups,
        length=length,
        alike=sql(" AND min(r.g) = max(r.g) AND min(r.h) {at_the_end} = max(r.g)", at_the_end=at_the_end)
        if group is not None
        else sql(""),
    )
    return replace(source, oid=0, condition=None, query=query, row_hash=HASH if subjects else None)


def _named(variable: SourceVariable, place: int, windows: Windows) -> str:
    """The name of the column of an input; a column of ``by`` keeps its own."""
    return f"__cerebro_rows_{place}" if variable.name in windows.by else variable.name


def _column(variable: SourceVariable, name: str) -> Column:
    if variable.is_pixels:
        return Column(name, BYTES, BYTES, "U", None)
    element = "real" if variable.wire_dtype == "float32" else "integer"
    return Column(name, f"{element}[]", f"{element}[]", "A", element)


def gathered(
    db: Database,
    source: Relation,
    windows: Windows,
    inputs: list[SourceVariable],
    outputs: list[SourceVariable],
    *,
    weight: Column | None = None,
    group: Sql | None = None,
    subjects: Sequence[Column] = (),
    reaches_back: bool = False,
    may_be_none: bool = False,
) -> tuple[Relation, list[SourceVariable], int]:
    """The windows to pack, their inputs, and how many there are; an error if they cannot be made.

    ``reaches_back``: only the row with a window's target has to fulfil the condition of the source.
    ``may_be_none``: there need not be a window.
    """
    require_target(windows, outputs)
    require_usable(db, source, windows, inputs, 1 if reaches_back else windows.length + windows.horizon)
    targets = [column for one in outputs for column in one.columns]
    found = of(
        source, windows, inputs, targets, weight=weight, group=group, subjects=subjects, reaches_back=reaches_back
    )
    ins = inputs_of(inputs, windows)
    names = [column.name for column in targets]
    if not relations.is_empty(db, replace(source, condition=known_targets.lacking(names))):
        found = known_targets.told(db, found, names, "window")
    rows = buffers.count(db, found, ins + outputs)
    if not rows and not may_be_none:
        raise none_found(source, windows)
    later = f", with the target {counted(windows.horizon, 'row')} later" if windows.horizon else ""
    db.told(f"{counted(rows, 'window')} of {windows.length} rows{later}")
    return found, ins, rows


def to_predict(
    db: Database,
    source: Relation,
    windows: Windows,
    inputs: list[SourceVariable],
    key: Sql,
    *,
    subjects: Sequence[Column] = (),
    judged: bool = False,
) -> tuple[Relation, list[SourceVariable]]:
    """The windows, with the key of each in the column KEY, and their inputs.

    ``judged``: the keys have the targets of the rows; a window has the key of the row that its target is from.
    """
    require_usable(db, source, windows, inputs, windows.length + (windows.horizon if judged else 0))
    most = judged and windows.target == "majority"
    found = of(source, windows, inputs, key=key, key_of_most=most, subjects=subjects, needs_target=judged)
    return found, inputs_of(inputs, windows)


# -- what has to hold ----------------------------------------------------------------------------------------


def require_columns(windows: Windows, present: dict[str, Column], table: str, where: str) -> None:
    for entry, names in (("by", windows.by), ("order", windows.order)):
        for name in names:
            if name not in present:
                raise InvalidArgument(
                    f"{table} does not have the column '{name}' of {entry}.",
                    hint=f"It has the columns: {', '.join(list(present)[:20])}.",
                )
            column = present[name]
            if family_of(column.type, column.category, column.element) in OF_SINGLE_VALUES:
                raise InvalidArgument(
                    f"{entry} cannot be the column '{name}' of type {column.shown}.",
                    hint="Take a number, a text or a time.",
                )


def require_usable(
    db: Database, source: Relation, windows: Windows, inputs: Sequence[SourceVariable], rows: int
) -> None:
    """An error if the order of a row is not known, or arrays cannot be put together.

    A notice tells of subjects with fewer than so many rows, which a window needs: nothing else would.
    """
    nulls = [
        sql("count(*) FILTER (WHERE {name} IS NULL) AS n{i}", name=identifier(name), i=i)
        for i, name in enumerate(windows.columns)
    ]
    by = joined(", ", map(identifier, windows.by))
    (found,) = db.scan(
        sql(
            "SELECT count(*) FILTER (WHERE g.rows > 0) AS subjects,"
            " count(*) FILTER (WHERE g.rows > 0 AND g.rows < {length}) AS short, sum(g.rows)::bigint AS rows, {sums}"
            " FROM (SELECT count(*) AS rows, {nulls} FROM {rows} AS s{grouped}) g",
            length=rows,
            sums=joined(", ", (sql("sum(g.n{i})::bigint AS n{i}", i=i) for i in range(len(nulls)))),
            nulls=joined(", ", nulls),
            rows=source.rows,
            grouped=sql(" GROUP BY {by}", by=by) if by else sql(""),
        )
    )
    for place, name in enumerate(windows.columns):
        if found[f"n{place}"]:
            raise BadData(
                f"column '{name}' of sequence is NULL in {found[f'n{place}']} of {found['rows']} rows.",
                hint="Leave these rows out with a view: their place in a window is not known.",
            )
    if found["short"]:
        who = (
            f"{found['short']} of {found['subjects']} subjects ({', '.join(windows.by)})"
            if windows.by
            else f"{source.text}"
        )
        have = "has" if found["short"] == 1 else "have"
        db.notice(f"{who} {have} fewer than {counted(rows, 'row')}, which make no window")
    unusable.require_alike(db, source, [one for one in inputs if one.is_large])


def require_target(windows: Windows, outputs: Sequence[SourceVariable]) -> None:
    for one in outputs:
        if windows.target == "majority" and not isinstance(one.preparation, OneHot):
            raise InvalidArgument(
                f"the target '{one.name}' is a number; only classes have a majority.",
                hint='"target": "last" takes the number of the last row of a window.',
            )


def none_found(source: Relation, windows: Windows) -> BadData:
    whose = f" of one {', '.join(windows.by)}" if windows.by else ""
    side = " on one side of the division" if source.condition else ""
    return BadData(
        f"{source.text} does not have {windows.length + windows.horizon} consecutive rows{whose}{side}.",
        hint=f"Choose a smaller length{' or horizon' if windows.horizon else ''}"
        + (", or divide the rows in another way." if side else "."),
    )
