"""Windows of rows as a relation: a row for each window, with an array for each input and the columns that are kept.

The rows are prepared one by one, by the same SQL as rows without windows, and then gathered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.packing.buffer_format import elements
from cerebro_db.core.packing.columns import OF_SINGLE_VALUES, family_of
from cerebro_db.core.packing.preparation import OneHot
from cerebro_db.core.packing.windows import Windows
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.sql_types import BYTES
from cerebro_db.core.texts import counted

from ...database import relations
from ...database.access import Database
from ...database.relations import Column, Relation
from . import buffers, known_targets, splits, steps, stretches, unusable
from .preparation import SourceVariable, value

MOST_MEANS = 200  # numbers of an input
KEY_NAME = "__cerebro_key"
KEY = identifier(KEY_NAME)
GROUP = Column("__cerebro_group", "bigint", "bigint", "N", None)
HASH_NAME = "__cerebro_hash"
HASH = identifier(HASH_NAME)
LONGEST_STRETCH = 1 << 32  # windows
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
    outputs: Sequence[SourceVariable] = (),
    *,
    weight: Column | None = None,
    key: Sql | None = None,
    key_of_all: steps.KeyOfAll | None = None,
    group: Sql | None = None,
    subjects: Sequence[Column] = (),
    needs_target: bool = True,
    reaches_back: bool = False,
    breaks: stretches.Breaks = stretches.NONE,
) -> Relation:
    """The windows that lie within the rows of ``source`` as a whole.

    With a horizon, the target and the key of a window are those of a later row of its subject. A window is left out if
    there is no such row, or if a condition leaves this row out.  Without ``needs_target``, the later row does not
    matter, and the key is that of the window's last row.  ``reaches_back``: the condition is that of the later row
    alone, because a forecast may know all rows before.

    Rows are numbered before a condition of the source leaves rows out, so the rows of a window are consecutive. A
    window with a row that is left out is left out itself.  ``weight``: a column of which a window has the value of its
    last row.  ``key``: SQL that gives the key of that row.  ``key_of_all``: what else makes one key of those of all
    rows.  ``group``: SQL that gives a number; a window of rows with different numbers is left out, the others have
    theirs in the column GROUP.  Of windows with steps, keys, weights and ``outputs`` are arrays with an element for
    each step: a step has of its rows what a window else has of all.
    ``subjects``: the columns of ``by``, which the windows keep, and with them a hash in the column HASH.
    ``breaks``: where the rows of a subject begin anew.

    Rows after the last whole window of a stretch make another one if the windows want it (``rest``): with rows from
    before them, or with their last row again and again.  These other rows have neither a target nor a key there.
    """
    targets = [] if windows.steps else [column for one in outputs for column in one.columns]
    all_kept = [*targets, *([weight] if weight else [])]
    labelled = outputs if windows.steps else ()
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
    ahead, reach = windows.nearest > 0, horizon or windows.reach
    frame = sql("(o ROWS BETWEEN {nearest} FOLLOWING AND {horizon} FOLLOWING)",
                nearest=windows.nearest, horizon=windows.horizon)  # fmt: skip

    def later(value: Sql) -> Sql:
        """The value of the row at the horizon, or those of all later rows up to it, as an array."""
        if horizon and ahead:
            return sql("array_agg({value}) OVER {frame}", value=value, frame=frame)
        return farthest(value)

    def farthest(value: Sql, rows: int = horizon) -> Sql:
        return sql("lead({value}, {rows}) OVER o", value=value, rows=rows) if rows else value

    def known_later() -> Sql:
        """Whether the condition holds for the later rows, which have to be there."""
        holds = farthest(sql("({condition})", condition=condition), reach)
        if horizon and ahead and source.condition is not None:
            return sql("{holds} AND bool_and({condition}) OVER {frame}", holds=holds, condition=condition, frame=frame)
        return holds

    columns = [
        # Windows that reach beyond the last row are left out, but not before they are gathered.
        *(sql("COALESCE({value}, {own}) AS a{i}", value=farthest(one, variable.later), own=one, i=i)
          if variable.later else sql("{value} AS a{i}", value=one, i=i)
          for i, (one, variable) in enumerate(zip(arrays, inputs))),
        *(
            sql("{value} AS t{i}", value=one if column is weight and not ahead else later(one), i=i)
            for i, (one, column) in enumerate(zip(kept, all_kept))
        ),
        *(sql("{value} AS e{i}", value=later(steps.value_of_row(one)) if ahead else steps.value_of_row(one), i=i)
          for i, one in enumerate(labelled)),
        *([sql("{key} AS k", key=later(key))] if key is not None else []),
        *([sql("{group} AS g, {later} AS h", group=group, later=farthest(group))] if group is not None else []),
        *(sql("{name} AS b{i}", name=name, i=i) for i, name in enumerate(by)),
        sql("row_number() OVER o - 1 AS n"),
        sql("({condition}) AS chosen, {later} AS known", condition=condition, later=known_later()),
        *([sql("{before} AS before, {left_out} AS left_out", before=breaks.before, left_out=breaks.left_out)]
          if windows.may_break else []),
    ]  # fmt: skip
    length, step = windows.length, windows.step
    fills = windows.rest != "drop"
    nested = windows.may_break or fills or windows.mean > 0
    n = sql("r.m") if nested else sql("r.n")
    at = sql("w.at") if fills else n

    def own(value: Sql) -> Sql:
        """The value, unless the row is there to fill a window."""
        return sql("CASE WHEN w.own THEN {value} END", value=value) if fills else value

    at_the_end = sql("FILTER (WHERE {n} = w.place * {step} + {last})", n=n, step=step, last=length - 1)
    gathered = [
        sql(
            "{aggregate} ORDER BY {at}) AS {name}",
            aggregate=sql("string_agg(r.a{i}, ''", i=i) if one.is_pixels else sql("array_agg(r.a{i}", i=i),
            at=at,
            name=identifier(_named(one, i, windows)),
        )
        for i, one in enumerate(inputs)
    ]
    of_windows = [_named(one, i, windows) for i, one in enumerate(inputs)]  # columns
    of_steps: list[Sql] = []  # the columns that have an element for each step
    for i, one in enumerate(labelled):
        if ahead:
            gathered.append(sql("min(r.e{i}) {at_the_end} AS e{i}", at_the_end=at_the_end, i=i))
        else:
            gathered.append(sql("array_agg({value} ORDER BY {at}) AS e{i}", value=own(sql("r.e{i}", i=i)), at=at, i=i))
        of_steps.append(sql("{array} AS {name}", array=steps.values(one, sql("q.e{i}", i=i), windows),
                            name=identifier(one.columns[0].name)))  # fmt: skip
    for i, column in enumerate(all_kept):
        if windows.steps:
            of_all = sql("min(r.t{i}) {at_the_end}", at_the_end=at_the_end, i=i)
            if not ahead:
                of_all = sql("array_agg(r.t{i} ORDER BY {at})", at=at, i=i)
            gathered.append(sql("{of_all} AS t{i}", of_all=of_all, i=i))
            of_steps.append(sql("{array} AS {name}", array=steps.lasts(sql("q.t{i}", i=i), windows),
                                name=identifier(column.name)))  # fmt: skip
            continue
        if windows.target == "majority" and column is not weight:
            chosen = sql("mode() WITHIN GROUP (ORDER BY r.t{i})", i=i)
        elif column.element is not None:
            chosen = sql("min(r.t{i}) {at_the_end}", i=i, at_the_end=at_the_end)
        else:
            chosen = sql("(array_agg(r.t{i}) {at_the_end})[1]", i=i, at_the_end=at_the_end)
        gathered.append(sql("{chosen} AS {name}", chosen=chosen, name=identifier(column.name)))
    if key is not None and ahead:
        gathered.append(sql("min(r.k) {at_the_end} AS k", at_the_end=at_the_end))
        of_steps.append(sql("q.k AS {key}", key=KEY))
    elif key is not None and windows.steps:
        gathered.append(sql("array_agg({value} ORDER BY {at}) AS k", value=own(sql("r.k")), at=at))
        keys = steps.lasts(sql("q.k"), windows)
        if key_of_all is not None and windows.every > 1:
            keys = steps.of_each(sql("q.k"), windows, key_of_all(sql("u.value")))
        elif windows.rest != "drop":
            keys = steps.of_each(sql("q.k"), windows, steps.LAST_KNOWN)
        of_steps.append(sql("{keys} AS {key}", keys=keys, key=KEY))
    elif key is not None and key_of_all is not None:
        gathered.append(sql("{key_of_all} AS {key}", key_of_all=key_of_all(sql("r.k")), key=KEY))
    elif key is not None:
        gathered.append(sql("(array_agg(r.k) {at_the_end})[1] AS {key}", at_the_end=at_the_end, key=KEY))
    if group is not None:
        gathered.append(sql("min(r.g) AS {name}", name=identifier(GROUP.name)))
        of_windows.append(GROUP.name)
    if subjects:
        place = sql("w.place")
        if windows.may_break:
            place = sql("(r.stretch * {most}::bigint + w.place)", most=LONGEST_STRETCH)
        place_of = {one.name: sql("r.b{i}", i=i) for i, one in enumerate(subjects)} | {PLACE.name: place}
        # A target or weight that is in ``by`` is the same in all rows.
        there = {column.name for column in (*all_kept, *(column for one in labelled for column in one.columns))}
        gathered += [
            sql("{value} AS {name}", value=place_of[one.name], name=identifier(one.name))
            for one in subjects
            if one.name not in there
        ]
        hashed = splits.whole_hash_of([*subjects, PLACE], lambda column: place_of[column.name])
        gathered.append(sql("{hashed} AS {name}", hashed=hashed, name=HASH))
        of_windows += [*(one.name for one in subjects if one.name not in there), HASH_NAME]
    stretch = [sql("r.stretch")] if windows.may_break else []
    groups = joined(", ", [*(sql("r.b{i}", i=i) for i in range(len(by))), *stretch, sql("w.place")])
    numbered = sql(
        "SELECT {columns} FROM {rows} AS s WINDOW o AS ({partition}ORDER BY {order})",
        columns=joined(", ", columns),
        rows=replace(source, condition=None).rows,
        partition=partition,
        order=order,
    )
    if nested:
        numbered = _in_stretches(numbered, len(by), windows, reach)
    if windows.mean:
        listed = [f"b{i}" for i in range(len(by))] + [f"t{i}" for i in range(len(all_kept))]
        listed += [f"e{i}" for i in range(len(labelled))] + (["k"] if key is not None else [])
        listed += ["g", "h"] if group is not None else []
        numbered = _means(numbered, windows, inputs, listed)
    known = (
        sql("")
        if fills
        else sql(
            " AND bool_and({known}) {at_the_end}",
            known=sql("r.kept") if nested else sql("r.known"),
            at_the_end=at_the_end,
        )
    )
    query = sql(
        "SELECT {gathered} FROM ({numbered}) r"
        " CROSS JOIN LATERAL {places}{there}"
        " GROUP BY {groups} HAVING count(*) = {length}{chosen}{known}"
        "{alike}",
        gathered=joined(", ", gathered),
        numbered=numbered,
        places=_with_rest(windows)
        if fills
        else sql(
            "generate_series(GREATEST(0, ({n} - {overlap}) / {step}), {n} / {step}) AS w (place)",
            n=n,
            overlap=length - step,
            step=step,
        ),
        known=known,
        chosen=sql("") if reaches_back else sql(" AND bool_and(r.chosen)"),
        there=sql(" WHERE NOT r.left_out") if windows.may_break else sql(""),
        groups=groups,
        length=length,
        alike=sql("")
        if group is None
        else sql(" AND min(r.g) = max(r.g)")
        if fills
        else sql(" AND min(r.g) = max(r.g) AND min(r.h) {at_the_end} = max(r.g)", at_the_end=at_the_end),
    )
    if of_steps:
        whole = [sql("q.{name}", name=identifier(name)) for name in of_windows]
        # A query with WITH keeps its arrays as columns. As parts of the subqueries that read them, which weights do,
        # Greenplum would compute them before there is a row, and crash.
        query = sql(
            "WITH nothing AS (SELECT) SELECT {columns} FROM ({query}) q",
            columns=joined(", ", [*whole, *of_steps]),
            query=query,
        )
    return replace(source, oid=0, condition=None, query=query, row_hash=HASH if subjects else None)


def _in_stretches(numbered: Sql, by: int, windows: Windows, horizon: int) -> Sql:
    """The rows, numbered within their stretches, with the size of the stretch.  ``by``: the number of columns b0 …"""
    subject = [sql("b{i}", i=i) for i in range(by)]
    partition = sql("PARTITION BY {subject} ", subject=joined(", ", subject)) if subject else sql("")
    rows = numbered
    if windows.may_break:
        rows = sql(
            "SELECT s.*, count(*) FILTER (WHERE s.before) OVER ({partition}ORDER BY s.n) AS stretch FROM ({rows}) s",
            partition=partition,
            rows=numbered,
        )
        subject.append(sql("stretch"))
    known = sql("s.known")
    if horizon and windows.may_break:
        known = sql(
            "s.known AND lead(s.stretch, {horizon}) OVER ({partition}ORDER BY s.n) = s.stretch",
            horizon=horizon,
            partition=partition,
        )
    whole = sql("PARTITION BY {subject}", subject=joined(", ", subject)) if subject else sql("")
    return sql(
        "SELECT s.*, {known} AS kept, row_number() OVER ({whole}{order}) - 1 AS m, count(*) OVER ({whole}) AS size"
        " FROM ({rows}) s",
        known=known,
        whole=whole,
        order=sql(" ORDER BY s.n"),
        rows=rows,
    )


def _means(rows: Sql, windows: Windows, inputs: Sequence[SourceVariable], listed: Sequence[str]) -> Sql:
    """A row for so many rows: the means of their prepared inputs, and what the last one has in these columns."""
    stretch = ["stretch"] if windows.may_break else []
    subject = [name for name in listed if name.startswith("b")] + stretch
    means = [
        sql("ARRAY[{elements}]::real[] AS a{i}", i=i,
            elements=joined(", ", (sql("avg(s.a{i}[{place}])", i=i, place=place)
                                   for place in range(1, 1 + elements(one.shape)))))
        for i, one in enumerate(inputs)
    ]  # fmt: skip
    lasts = [
        sql("(array_agg(s.{name} ORDER BY s.m DESC))[1] AS {name}", name=identifier(name))
        for name in listed
        if name not in subject
    ]
    whole = sql(" HAVING count(*) = {mean}", mean=windows.mean) if windows.rest == "drop" else sql("")
    return sql(
        "SELECT {columns}, s.m / {mean} AS m, {size} AS size, bool_and(s.chosen) AS chosen,"
        " bool_and(s.kept) AS kept{there}"
        " FROM ({rows}) s GROUP BY {groups}{whole}",
        columns=joined(", ", [*means, *lasts, *(sql("s.{name}", name=identifier(name)) for name in subject)]),
        mean=windows.mean,
        # All rows of a stretch have its size.
        size=sql("(min(s.size) + {more}) / {mean}", more=windows.mean - 1, mean=windows.mean),
        there=sql(", bool_or(s.left_out) AS left_out") if windows.may_break else sql(""),
        rows=rows,
        groups=joined(", ", [*(sql("s.{name}", name=identifier(name)) for name in subject),
                             sql("s.m / {mean}", mean=windows.mean)]),
        whole=whole,
    )  # fmt: skip


def _with_rest(windows: Windows) -> Sql:
    """The windows of a row, with its place in each and whether it counts there.

    The last window of a stretch that they do not fill begins where the one before ends, or, to wrap, so many rows
    before the end as it has, in whole steps.  The last row fills what is left.
    """
    length, every = windows.length, windows.every
    begun = sql("r.size / {length} * {length}", length=length)  # rows in whole windows
    start = begun
    if windows.rest == "wrap":
        start = sql("GREATEST(0, (r.size + {every} - 1) / {every} * {every} - {length})", every=every, length=length)
    # Of a row's windows the first one has the row at its own place.  A UNION of them is more than Greenplum can plan.
    return sql(
        "generate_series(1::bigint, CASE WHEN r.m < {begun} THEN 1 ELSE 0 END"
        " + CASE WHEN r.size % {length} = 0 OR r.m < {start} THEN 0"
        " WHEN r.m = r.size - 1 THEN {start} + {length} - r.m ELSE 1 END) AS g (i)"
        " CROSS JOIN LATERAL (SELECT"
        " CASE WHEN r.m < {begun} AND g.i = 1 THEN r.m / {length} ELSE r.size / {length} END AS place,"
        " CASE WHEN r.m >= {begun} THEN r.m - {start} + g.i - 1"
        " WHEN g.i = 1 THEN r.m % {length} ELSE r.m - {start} END AS at,"
        " g.i = 1 AS own) AS w",
        length=length,
        begun=begun,
        start=start,
    )


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
    present: Mapping[str, Column],
    windows: Windows,
    inputs: list[SourceVariable],
    outputs: list[SourceVariable],
    *,
    weight: Column | None = None,
    group: Sql | None = None,
    subjects: Sequence[Column] = (),
    reaches_back: bool = False,
    may_be_none: bool = False,
) -> tuple[Relation, list[SourceVariable], list[SourceVariable], int]:
    """The windows to pack, their inputs and outputs, and how many there are; an error if they cannot be made.

    ``reaches_back``: only the row with a window's target has to fulfil the condition of the source.
    ``may_be_none``: there need not be a window.
    """
    require_target(windows, outputs)
    require_means(windows, inputs)
    least = 1 if reaches_back or windows.rest != "drop" else windows.rows + windows.horizon
    require_usable(db, source, windows, inputs, least)
    targets = [column for one in outputs for column in one.columns]
    found = of(
        source,
        windows,
        inputs,
        outputs,
        weight=weight,
        group=group,
        subjects=subjects,
        reaches_back=reaches_back,
        breaks=stretches.of(db, windows, present),
    )
    ins, outputs = inputs_of(inputs, windows), steps.outputs_of(outputs, windows)
    names = [column.name for column in targets]
    if not relations.is_empty(db, replace(source, condition=known_targets.lacking(names))):
        found = known_targets.told(db, found, names, "window")
    rows = buffers.count(db, found, [*ins, *outputs])
    if not rows and not may_be_none:
        raise none_found(source, windows)
    db.told(f"{counted(rows, 'window')} of {windows.length} rows{_targets(windows)}")
    return found, ins, outputs, rows


def _targets(windows: Windows) -> str:
    """What windows have as targets, after their number and length."""
    if windows.nearest:
        return f", with the targets of the rows {windows.nearest} to {windows.horizon} rows later"
    if windows.horizon:
        return f", with the target {counted(windows.horizon, 'row')} later"
    return f" in {windows.steps} steps" if windows.steps else ""


def to_predict(
    db: Database,
    source: Relation,
    present: Mapping[str, Column],
    windows: Windows,
    inputs: list[SourceVariable],
    key: Sql,
    *,
    subjects: Sequence[Column] = (),
    judged: bool = False,
    numbers: bool = False,
) -> tuple[Relation, list[SourceVariable]]:
    """The windows, with the key of each in the column KEY, and their inputs.

    ``judged``: the keys have the targets of the rows; a window has the key of the row that its target is from.
    ``numbers``: these targets are numbers.

    Windows with steps have an array of keys there.  They do not overlap, so that each step is predicted once.  Those
    that forecast several later rows do; ``key`` may depend on the number of rows, as ``steps.of_later`` has it.
    """
    if windows.every:
        windows = replace(windows, step=windows.length)
    least = 1 if windows.rest != "drop" else windows.rows + (windows.horizon if judged else windows.reach)
    require_usable(db, source, windows, inputs, least)
    if windows.rest != "drop" and not judged:
        _require_keys(db, source, key)
    if windows.nearest and not judged:
        key = steps.of_later(key, windows)
    of_all = None
    if judged and windows.target != "last":
        of_all = steps.mean_pair if numbers else steps.most_frequent_pair
    found = of(
        source,
        windows,
        inputs,
        key=key,
        key_of_all=of_all,
        subjects=subjects,
        needs_target=judged,
        breaks=stretches.of(db, windows, present),
    )
    return found, inputs_of(inputs, windows)


# -- what has to hold ----------------------------------------------------------------------------------------


def require_columns(windows: Windows, present: dict[str, Column], table: str, where: str) -> None:
    named = ("by", windows.by), ("order", windows.order), ("breaks", windows.breaks), ("known", windows.known)
    for entry, names in named:
        for name in names:
            if name not in present:
                raise InvalidArgument(
                    f"{table} does not have the column '{name}' of {entry}.",
                    hint=f"It has the columns: {', '.join(list(present)[:20])}.",
                )
            column = present[name]
            if entry != "known" and family_of(column.type, column.category, column.element) in OF_SINGLE_VALUES:
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


def _require_keys(db: Database, source: Relation, key: Sql) -> None:
    """An error if a row has no key: steps without one are those of rows that fill a window."""
    (found,) = db.scan(
        sql("SELECT count(*) FILTER (WHERE {key} IS NULL) AS nulls FROM {rows} AS s", key=key, rows=source.rows)
    )
    if found["nulls"]:
        raise BadData(
            f"{found['nulls']} rows have a NULL in the key.", hint="Leave them out of the query, or fill them in."
        )


def require_target(windows: Windows, outputs: Sequence[SourceVariable]) -> None:
    if windows.steps and len(outputs) > 1:
        which = "a horizon of several rows" if windows.nearest else '"target": "each"'
        raise InvalidArgument(
            f"{which} needs a single target, not {len(outputs)}.", hint="Pack a table for each target."
        )
    for one in outputs:
        if windows.steps and one.columns[0].element is not None:
            raise InvalidArgument(
                f"the target '{one.name}' is an array; each step of a window has one class or number.",
                hint="Pack a table for each element.",
            )
        if windows.target == "majority" and not isinstance(one.preparation, OneHot):
            raise InvalidArgument(
                f"the target '{one.name}' is a number; only classes have a majority.",
                hint='"target": "last" takes the number of the last row of a window.',
            )


def require_means(windows: Windows, inputs: Sequence[SourceVariable]) -> None:
    for one in inputs:
        plain = one.wire_dtype == "float32" and len(one.shape) == 1 and elements(one.shape) <= MOST_MEANS
        if windows.mean and not plain:
            raise InvalidArgument(
                f"the input '{one.name}' has no mean: with \"mean\", inputs are numbers, or arrays of at most"
                f" {MOST_MEANS} real numbers.",
                hint="Name the inputs, or cast small integers in arrays to real.",
            )


def none_found(source: Relation, windows: Windows) -> BadData:
    whose = f" of one {', '.join(windows.by)}" if windows.by else ""
    side = " on one side of the division" if source.condition else ""
    return BadData(
        f"{source.text} does not have {windows.rows + windows.horizon} consecutive rows{whose}{side}.",
        hint=f"Choose a smaller length{' or horizon' if windows.horizon else ''}"
        + (", or divide the rows in another way." if side else "."),
    )
