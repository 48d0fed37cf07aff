"""``cerebro.make_task``: a table of what will happen to each entity after several cut-off times, to train on.

One statement makes the table.  All that the target's expression reads are the events of one entity in one horizon.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from cerebro_db.core.errors import (
    BadData,
    InvalidArgument,
    InvalidSyntax,
    NotPermitted,
)
from cerebro_db.core.names import Name, written_list
from cerebro_db.core.packing import tasks
from cerebro_db.core.packing.tasks import Periods
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, literal, sql, sql_of_user
from cerebro_db.core.texts import counted, short

from .. import platform
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Column, Relation
from . import cut_offs, links
from .cut_offs import Intervals, Range, shown
from .links import Link

AS_OF, TARGET = "as_of", "target"
PAIRS = identifier("__cerebro_pairs")  # no table of a user's has these names
HIDDEN = "__cerebro_{}"


@dataclass(frozen=True)
class MakeTaskArguments:
    """Those of ``cerebro.make_task``."""

    entity_table: str | None
    event_table: str | None
    target: str | None
    output_table: str | None
    horizon: str | None
    every: str | None
    on_columns: str | None = None
    key: str | None = None
    event_time: str | None = None
    starts: str | None = None
    ends: str | None = None
    entity_time: str | None = None
    active: str | None = None
    validation: float | None = 0.2


@dataclass(frozen=True)
class LabelTask:
    """The arguments, checked against the tables."""

    output: Name
    link: Link
    time: Column
    entity_time: Column | None
    expression: str
    target: Sql  # the expression, in parentheses
    intervals: Intervals

    @property
    def events(self) -> Sql:
        """What the expression is computed over; its columns may have the table's name before them."""
        return sql("{rows} AS {alias}", rows=self.link.event.rows, alias=self.alias)

    @property
    def alias(self) -> Sql:
        return identifier(self.link.event.table)

    @property
    def as_of(self) -> Sql:
        """The name of the cut-off time beside the events, which the expression can use unless they have one, too."""
        return identifier(HIDDEN.format(AS_OF) if AS_OF in self.link.event_columns else AS_OF)

    @property
    def joined_by(self) -> Iterator[tuple[Sql, Column, Column]]:
        """Of each column of the key: its name beside the events, the column, and that of the events."""
        for place, (mine, theirs) in enumerate(zip(self.link.key, self.link.on)):
            yield identifier(HIDDEN.format(place)), mine, theirs


@entry
def make_task(db: Database, **arguments: Any) -> int:
    """Make the table; return its number of rows."""
    given = MakeTaskArguments(**arguments)
    output = relations.new(db, given.output_table)
    if given.validation is None or not 0 <= given.validation < 1:
        raise InvalidArgument(
            f"validation is {'NULL' if given.validation is None else given.validation}; it must be from 0 to below 1.",
            hint="It is the share of the cut-off times that are for validation.",
        )
    link = links.found(db, given.entity_table, given.event_table, given.on_columns, given.key)
    for column in link.key:
        if column.name in (AS_OF, TARGET):
            raise InvalidArgument(
                f"the key '{column.name}' of '{link.entity.text}' would stand beside a column of the same name.",
                hint="Name a view in which it has another name.",
            )
    time = links.time_of(db, link.event, link.event_columns, given.event_time, "event_time")
    entity_time = None
    if given.entity_time is not None:
        entity_time = links.time_of(db, link.entity, link.entity_columns, given.entity_time, "entity_time")
    lengths = cut_offs.intervals(db, time, horizon=given.horizon, every=given.every, active=given.active)
    task = LabelTask(
        output=output,
        link=link,
        time=time,
        entity_time=entity_time,
        expression=(given.target or "").strip(),
        target=_target(db, link, given.target),
        intervals=lengths,
    )
    wanted = Range(given.starts, given.ends, given.validation)
    periods = cut_offs.periods(db, link, time, lengths, wanted)
    return _made(db, task, periods)


# -- the target ---------------------------------------------------------------------------------------------------


def _target(db: Database, link: Link, text: str | None) -> Sql:
    """The expression in parentheses; an error unless it is one aggregate of the events."""
    if text is None or not text.strip():
        raise InvalidArgument(
            "target must not be NULL or empty.",
            hint="It is an aggregate of the events in the horizon, for instance 'count(*) = 0' or 'sum(amount)'.",
        )
    # It runs with the caller's rights only, as a part of the caller's own statement.  Its last line may be a comment.
    expression = sql("({text}\n)", text=sql_of_user(text))
    events = sql("{rows} AS {alias} WHERE false", rows=link.event.rows, alias=identifier(link.event.table))
    # The expression may name as_of, which is one value for all events of a pair.
    given = sql(
        "SELECT {as_of} FROM (SELECT pg_catalog.now() AS {as_of}) AS {pairs}",
        as_of=identifier(HIDDEN.format(AS_OF) if AS_OF in link.event_columns else AS_OF),
        pairs=PAIRS,
    )
    alone = sql(
        "SELECT p.* FROM ({given}) AS {pairs} CROSS JOIN LATERAL (SELECT {target} AS target FROM {events}) AS p",
        given=given,
        pairs=PAIRS,
        target=expression,
        events=events,
    )
    # A text that closes the parenthesis before it is no expression within two of them.  HAVING allows no window
    # functions, which would look at other entities, and nothing that returns several rows.
    within = sql(
        "SELECT p.* FROM ({given}) AS {pairs} CROSS JOIN LATERAL"
        " (SELECT true FROM {events} HAVING ({target}) IS NOT NULL) AS p",
        given=given,
        pairs=PAIRS,
        target=expression,
        events=events,
    )
    with _explained(db, text):
        if relations.SEVERAL in text:
            db.refuse_several(alone)
        names = db.columns_of(alone)
        rows = db.scan(sql("SELECT count(*) AS rows FROM ({query}) AS q", query=alone))
        db.columns_of(within)
    if len(names) != 1:
        raise InvalidArgument(
            f"target: {shown(text)} is {counted(len(names), 'expression')}.", hint="A task has one target."
        )
    if not rows[0]["rows"]:
        raise InvalidArgument(
            f"target: {shown(text)} is no aggregate, so it has no value for several events, or for none.",
            hint="For instance 'count(*) = 0', 'sum(amount)' or '(array_agg(category ORDER BY ordered_at))[1]'.",
        )
    return sql("COALESCE({sum}, 0)", sum=expression) if tasks.is_sum(text) else expression


@contextlib.contextmanager
def _explained(db: Database, text: str) -> Iterator[None]:
    """Database errors about the expression name it, except those that say whose right is missing."""
    try:
        with db.savepoint():
            yield
    except db.plpy.SPIError as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if db.is_error(error, relations.OPENS_NO_CURSOR):
            raise InvalidSyntax(f"target: {shown(text)} is several statements.", hint="Write one expression.") from None
        if db.is_error(error, NotPermitted.sqlstate) or error.sqlstate[:2] not in ("42", "22", "0A"):
            raise
        raise InvalidArgument(
            f"target: {shown(text)} cannot be computed: {said}",
            hint="It is an expression over the columns of event_table, as in SELECT … GROUP BY: for instance"
            " 'count(*) = 0' or 'sum(amount)'.",
        ) from None


# -- the table ----------------------------------------------------------------------------------------------------


def _made(db: Database, task: LabelTask, periods: Periods) -> int:
    pairs = _pairs(task, periods)
    (possible,) = db.scan(sql("SELECT count(*) AS rows FROM {pairs} AS n", pairs=pairs))
    db.patiently(
        sql(
            "CREATE TABLE {output} AS SELECT * FROM ({rows}) AS r WHERE {target} IS NOT NULL {by}",
            output=task.output.sql,
            rows=_rows(task, pairs),
            target=identifier(TARGET),
            by=platform.of(db).distributed_by(task.link.key[0].name),
        )
    )
    names = [*(identifier(one.name) for one in task.link.key), identifier(AS_OF)]
    db.patiently(
        sql("ALTER TABLE {output} ADD PRIMARY KEY ({names})", output=task.output.sql, names=joined(", ", names))
    )
    # By this comment, related => 'auto' leaves the table out for other tables: its targets know what comes later.
    said = f"{tasks.MADE}{task.expression} of the events in {task.intervals.horizon} from as_of on"
    db.execute(
        sql(
            "COMMENT ON COLUMN {output}.{target} IS {said}",
            output=task.output.sql,
            target=identifier(TARGET),
            said=literal(said),
        )
    )
    refers = links.refer(db, task.output, task.link)
    db.patiently(sql("ANALYZE {output}", output=task.output.sql))
    return _tell(db, task, periods, possible["rows"], refers=refers)


def _pairs(task: LabelTask, periods: Periods) -> Sql:
    """Each entity at each cut-off time at which it is there: the key, ``as_of``, and ``until``."""
    link, kind = task.link, task.time.cast

    def moment(text: str | None) -> Sql:
        return sql("NULL::{kind}", kind=kind) if text is None else sql("{text}::{kind}", text=literal(text), kind=kind)

    times = joined(
        ", ",
        (
            sql(
                "({as_of}, {until}, {since})", as_of=moment(one.as_of), until=moment(one.until), since=moment(one.since)
            )
            for one in periods.all
        ),
    )
    conditions = [sql("true")]
    if task.entity_time is not None:
        conditions.append(sql("s.{time} <= c.as_of", time=identifier(task.entity_time.name)))
    if task.intervals.active is not None:
        conditions.append(
            sql(
                "EXISTS (SELECT FROM {rows} AS a WHERE {same} AND a.{time} >= c.since AND a.{time} < c.as_of)",
                rows=link.event.rows,
                same=joined(
                    " AND ",
                    (
                        sql("a.{theirs} = s.{mine}", theirs=identifier(theirs.name), mine=identifier(mine.name))
                        for _, mine, theirs in task.joined_by
                    ),
                ),
                time=identifier(task.time.name),
            )
        )
    return sql(
        "(SELECT {keys}, c.as_of AS {as_of}, c.until AS {until} FROM {rows} AS s"
        " CROSS JOIN (VALUES {times}) AS c (as_of, until, since) WHERE {conditions})",
        keys=joined(
            ", ", (sql("s.{mine} AS {name}", mine=identifier(mine.name), name=name) for name, mine, _ in task.joined_by)
        ),
        as_of=task.as_of,
        until=identifier(HIDDEN.format("until")),
        rows=link.entity.rows,
        times=times,
        conditions=joined(" AND ", conditions),
    )


def _rows(task: LabelTask, pairs: Sql) -> Sql:
    """The query of the rows.  A pair without events has one row in the join, so its target is computed of none."""
    keys = list(task.joined_by)
    grouped = [*(sql("{p}.{name}", p=PAIRS, name=name) for name, _, _ in keys), sql("{p}.{n}", p=PAIRS, n=task.as_of)]
    return sql(
        "SELECT {keys}, {p}.{as_of} AS {named}, CASE WHEN count({alias}.{first}) = 0"
        " THEN (SELECT {target} FROM {events} WHERE false) ELSE {target} END AS {column}"
        " FROM {pairs} AS {p} LEFT JOIN {events} ON {same}"
        " AND {alias}.{time} >= {p}.{as_of} AND {alias}.{time} < {p}.{until} GROUP BY {grouped}",
        keys=joined(
            ", ",
            (sql("{p}.{name} AS {mine}", p=PAIRS, name=name, mine=identifier(mine.name)) for name, mine, _ in keys),
        ),
        p=PAIRS,
        as_of=task.as_of,
        named=identifier(AS_OF),
        alias=task.alias,
        first=identifier(task.link.on[0].name),
        target=task.target,
        events=task.events,
        column=identifier(TARGET),
        pairs=pairs,
        same=joined(
            " AND ",
            (
                sql(
                    "{alias}.{theirs} = {p}.{name}",
                    alias=task.alias,
                    theirs=identifier(theirs.name),
                    p=PAIRS,
                    name=name,
                )
                for name, _, theirs in keys
            ),
        ),
        time=identifier(task.time.name),
        until=identifier(HIDDEN.format("until")),
        grouped=joined(", ", grouped),
    )


# -- the notices --------------------------------------------------------------------------------------------------


def _tell(db: Database, task: LabelTask, periods: Periods, possible: int, *, refers: bool) -> int:
    """Say what was made, and the call that comes next; return the number of rows."""
    link, output = task.link, task.output
    counts = db.scan(
        sql(
            "SELECT {as_of}::text AS as_of, count(*) AS rows FROM {output} GROUP BY {as_of} ORDER BY {output}.{as_of}",
            as_of=identifier(AS_OF),
            output=output.sql,
        )
    )
    rows = sum(int(one["rows"]) for one in counts)
    if not rows:
        raise BadData(
            f"the target {shown(task.expression)} is NULL for all {possible:,} pairs of an entity and a cut-off time."
            if possible
            else f"no entity of '{link.entity.text}' is there at any cut-off time.",
            hint="A longer horizon or another target may have values." if possible else "Check entity_time and active.",
        )
    (found,) = db.scan(
        sql(
            "SELECT count(*) AS entities FROM (SELECT FROM {output} GROUP BY {keys}) AS q",
            output=output.sql,
            keys=joined(", ", (identifier(one.name) for one in link.key)),
        )
    )
    entities = int(found["entities"])
    whole = f"from {counts[0]['as_of']} to {counts[-1]['as_of']}" if len(counts) > 1 else counts[0]["as_of"]
    db.notice(
        f"'{output}' has {counted(rows, 'row')}: {entities:,} of '{link.entity.text}' at"
        f" {counted(len(counts), 'cut-off time')}, {whole}; {_of_target(db, task, rows)}"
    )
    if possible > rows:
        db.notice(
            f"{counted(possible - rows, 'row')} without a target (NULL) left out",
            "COALESCE in the target gives such rows a value.",
        )
    apart = {one.as_of for one in periods.validation}
    after = sum(int(one["rows"]) for one in counts if one["as_of"] in apart)
    share = ""
    if after and after < rows:
        last = int([one for one in counts if one["as_of"] not in apart][-1]["rows"])
        left = f"; {counted(periods.left_out, 'cut-off time')} before left out" if periods.left_out else ""
        db.notice(
            f"the last {counted(len(periods.validation), 'cut-off time')}, from {periods.validation[0].as_of}, with"
            f" {counted(after, 'row')} for validation{left}: no training target uses events from that time"
        )
        share = _share(rows - after - last, last, after)
    if task.entity_time is None and task.intervals.active is None:
        _mention_entity_time(db, link)
    split = f", split_at => '{AS_OF}'{share}" if after else f", split_by => {_text(written_list([link.key[0].name]))}"
    models = Name(None, f"{output.table}_models")
    related = _related(task, refers=refers)
    db.notice(
        "next: "
        f"SELECT cerebro.train({_text(str(output))}, {_text(str(models))}, target => '{TARGET}',"
        f" as_of => '{AS_OF}'{split}, related => {related});"
    )
    return rows


def _share(before: int, last: int, after: int) -> str:
    """The argument with which ``split_at`` divides the rows as they were meant; none where its default does."""
    rows = before + last + after
    if after < 0.2 * rows < after + last:
        return ""
    return f", validation => {tasks.share_at(before, last, after):.10g}"


def _of_target(db: Database, task: LabelTask, rows: int) -> str:
    """What the target is like, for people."""
    (column,) = relations.named(db, relations.there(db, task.output, str(task.output)), [TARGET])
    name, table = identifier(TARGET), task.output.sql
    if column.category == "N":
        (found,) = db.scan(
            sql(
                "SELECT avg({n})::double precision AS mean, min({n})::double precision AS least,"
                " max({n})::double precision AS most FROM {table}",
                n=name,
                table=table,
            )
        )
        return f"the target has the mean {short(found['mean'])}, from {short(found['least'])} to {short(found['most'])}"
    if column.type == "boolean":
        (found,) = db.scan(sql("SELECT count(*) FILTER (WHERE {n}) AS rows FROM {table}", n=name, table=table))
        return f"the target is true in {100 * int(found['rows']) / rows:.3g} % of them"
    (found,) = db.scan(
        sql(
            "SELECT v, count(*) AS rows, count(*) OVER () AS different FROM (SELECT {n}::text AS v FROM {table}) AS q"
            " GROUP BY v ORDER BY count(*) DESC, v LIMIT 1",
            n=name,
            table=table,
        )
    )
    return (
        f"the target has {counted(int(found['different']), 'value')}; the most frequent one, {shown(found['v'])}, is in"
        f" {100 * int(found['rows']) / rows:.3g} % of them"
    )


def _mention_entity_time(db: Database, link: Link) -> None:
    times = [one.name for one in links.times(link.entity_columns)]
    if times:
        db.notice(
            f"each row of '{link.entity.text}' has a row at every cut-off time, also before the entity existed",
            f"If {' or '.join(times)} says since when it exists: entity_time => {_text(written_list(times[:1]))}.",
        )


def _related(task: LabelTask, *, refers: bool) -> str:
    """The argument ``related`` of the call that comes next."""
    link, as_of = task.link, task.time.type
    known = [one.type for one in links.times(link.entity_columns)]
    if refers and link.is_declared and known == [as_of] and len(links.times(link.event_columns)) == 1:
        return "'auto'"
    first, second = _label(link.entity), _label(link.event)
    entity: dict[str, Any] = {} if link.entity.text == first else {"table": str(link.entity.name)}
    events: dict[str, Any] = {} if link.event.text == second else {"table": str(link.event.name)}
    if not refers:
        entity["on"] = {one.name: one.name for one in link.key}
    if not link.is_declared:
        events["on"] = {mine.name: theirs.name for _, mine, theirs in task.joined_by}
    if task.entity_time is not None and task.entity_time.type == as_of:
        entity["time"] = task.entity_time.name
    else:  # nobody has said that its rows do not change, so no column is read
        entity.update(unchanging=True, columns="")
    events["time"] = task.time.name
    return _text(json.dumps({first: entity, f"{first}.{second}": events}, ensure_ascii=False))


def _label(table: Relation) -> str:
    """What a path calls a table: its name, without the dots that separate the parts of a path."""
    return table.table.replace(".", "_")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
