"""The cut-off times of ``cerebro.make_task``: which there are, and which of them are for validation."""

from __future__ import annotations

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.names import written_list
from cerebro_db.core.packing import tasks
from cerebro_db.core.packing.tasks import CutOff, Periods
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, literal, sql
from cerebro_db.core.texts import counted, shortened

from ..database.access import Database
from ..database.relations import Column
from . import links
from .links import Link

LONGEST_INTERVAL = "1000 years"
EXAMPLES = {"horizon": "90 days", "every": "30 days", "active": "180 days"}


@dataclass(frozen=True)
class Intervals:
    """The lengths of time as texts, and whether all of them are whole days."""

    horizon: str
    every: str
    active: str | None
    whole_days: bool


def intervals(db: Database, time: Column, *, horizon: str | None, every: str | None, active: str | None) -> Intervals:
    """The arguments as intervals; an error for one that is none, or that is not above 0."""
    texts = {"horizon": horizon, "every": every, "active": active}
    written: dict[str, str] = {}
    whole = True
    for argument, text in texts.items():
        if text is None and argument == "active":
            continue
        example = f"For instance '{EXAMPLES[argument]}' or '3 months'."
        if text is None or not text.strip():
            raise InvalidArgument(f"{argument} must not be NULL or empty.", hint=example)
        try:
            with db.savepoint():
                found = db.one(
                    sql(
                        "SELECT i > '0'::interval AS positive, i <= {longest}::interval AS short,"
                        " i = pg_catalog.date_trunc('day', i) AS whole, i::text AS written"
                        " FROM (SELECT pg_catalog.justify_hours($1::pg_catalog.interval) AS i) AS q",
                        longest=literal(LONGEST_INTERVAL),
                    ),
                    ("text",),
                    text,
                )
        except db.plpy.SPIError as error:
            if not error.sqlstate.startswith("22"):
                raise
            raise InvalidArgument(f"{argument}: {shown(text)} is no interval.", hint=example) from None
        assert found is not None
        if not found["positive"] or not found["short"]:
            raise InvalidArgument(
                f"{argument} is {shown(text)}; it must be above 0, and at most {LONGEST_INTERVAL}.", hint=example
            )
        if not found["whole"] and time.type == links.DATE:
            raise InvalidArgument(
                f"{argument} is {shown(text)}, and the time '{time.name}' is a date: only whole days are known.",
                hint=example,
            )
        whole = whole and found["whole"]
        written[argument] = found["written"]
    return Intervals(written["horizon"], written["every"], written.get("active"), whole)


@dataclass(frozen=True)
class Bounds:
    """Where the cut-off times begin and end; ``forwards``: whether they are counted from the first one."""

    starts: str
    ends: str
    forwards: bool
    last: str  # the last event, or now if events are later
    known: int  # the same in microseconds


@dataclass(frozen=True)
class Range:
    """The arguments starts, ends and validation."""

    starts: str | None
    ends: str | None
    share: float


def periods(db: Database, link: Link, time: Column, lengths: Intervals, wanted: Range) -> Periods:
    """The cut-off times for training and for validation.  Notices say what may surprise."""
    bounds = _bounds(db, link, time, lengths, wanted)
    cut_offs = _cut_offs(db, time, lengths, bounds)
    late = sum(one.ends > bounds.known for one in cut_offs)
    if late:
        db.notice(
            f"the horizons of {counted(late, 'cut-off time')} end after the last event, {bounds.last}: their targets"
            " may be incomplete"
        )
    share = wanted.share
    if not share:
        return Periods(cut_offs, [], 0)
    found = tasks.divided(cut_offs, share)
    if found is None:
        db.notice(
            f"there {'is' if len(cut_offs) == 1 else 'are'} {counted(len(cut_offs), 'cut-off time')} and no earlier one"
            f" whose horizon of {lengths.horizon} ends before the last one begins, so no rows are set apart for"
            " validation by time",
            "A shorter horizon, an earlier starts or more history gives a validation by time. Without it, split_by with"
            " the key keeps all rows of an entity on one side.",
        )
        return Periods(cut_offs, [], 0)
    return found


def _bounds(db: Database, link: Link, time: Column, lengths: Intervals, wanted: Range) -> Bounds:
    """The first and the last cut-off time; what is not given follows from the first and last event."""
    kind = time.cast
    (found,) = db.scan(
        sql(
            "SELECT count(*) AS rows, count(*) FILTER (WHERE t IS NULL) AS missing,"
            " min(t)::text AS first, LEAST(max(t), {now})::text AS last, max(t) > {now} AS future"
            " FROM (SELECT {time} AS t FROM {rows} AS s WHERE {known}) AS q WHERE t IS NULL OR pg_catalog.isfinite(t)",
            time=sql("s.{name}", name=identifier(time.name)),
            now=sql("pg_catalog.now()::{kind}", kind=kind),
            rows=link.event.rows,
            known=joined(" AND ", (sql("s.{name} IS NOT NULL", name=identifier(one.name)) for one in link.on)),
        )
    )
    if found["missing"] == found["rows"]:
        raise BadData(
            f"event_table: no event of '{link.event.text}' has both {written_list(one.name for one in link.on)} and a"
            f" '{time.name}'."
        )
    if found["missing"]:
        db.notice(
            f"{counted(int(found['missing']), 'event')} of '{link.event.text}' without '{time.name}' count nowhere"
        )
    if found["future"] and wanted.ends is None:
        db.notice(
            f"events of '{link.event.text}' after now are not counted as history: the last one is taken as of now"
        )
    horizon = sql("{text}::pg_catalog.interval", text=literal(lengths.horizon))
    whole = sql("true") if lengths.whole_days else sql("false")
    starts = _moment(db, wanted.starts, "starts", kind)
    ends = _moment(db, wanted.ends, "ends", kind)
    (row,) = db.scan(
        sql(
            "SELECT starts::text AS starts, ends::text AS ends, ends < starts AS short,"
            " (pg_catalog.date_part('epoch', {last}::{kind}) * 1000000)::bigint AS known FROM (SELECT"
            " COALESCE({starts}, ({first}::{kind} + {horizon})::{kind}) AS starts,"
            " COALESCE({ends}, CASE WHEN {whole} THEN pg_catalog.date_trunc('day', {last}::{kind} - {horizon})"
            " ELSE {last}::{kind} - {horizon} END::{kind}) AS ends) AS q",
            starts=starts,
            ends=ends,
            first=literal(found["first"]),
            last=literal(found["last"]),
            horizon=horizon,
            whole=whole,
            kind=kind,
        )
    )
    if row["short"] and wanted.starts is not None and wanted.ends is not None:
        raise InvalidArgument(
            f"ends is {shown(wanted.ends)}, and that is before starts, {shown(wanted.starts)}.",
            hint="The first cut-off time is starts, and the last one is ends or one just before it.",
        )
    if row["short"]:
        raise BadData(
            f"no cut-off time has a complete target: the first one would be {row['starts']}, and the last one"
            f" {row['ends']}.",
            detail=f"The events of '{link.event.text}' are from {found['first']} to {found['last']}. By default the"
            " first cut-off time is one horizon after the first event, and the last one is one horizon before the"
            " last event.",
            hint=f"Choose a horizon shorter than {lengths.horizon}, or other starts and ends.",
        )
    return Bounds(row["starts"], row["ends"], wanted.starts is not None, found["last"], row["known"])


def _moment(db: Database, text: str | None, argument: str, kind: Sql) -> Sql:
    """A time that the user gives, as a constant; SQL's NULL without one."""
    if text is None:
        return sql("NULL::{kind}", kind=kind)
    try:
        with db.savepoint():
            found = db.value(
                sql("SELECT CASE WHEN pg_catalog.isfinite($1::{kind}) THEN $1::{kind}::text END", kind=kind),
                ("text",),
                text,
            )
    except db.plpy.SPIError as error:
        if not error.sqlstate.startswith("22"):
            raise
        found = None
    if found is None:
        raise InvalidArgument(f"{argument}: {shown(text)} is no time.", hint="For instance '2025-01-01'.")
    return sql("{found}::{kind}", found=literal(found), kind=kind)


def _cut_offs(db: Database, time: Column, lengths: Intervals, bounds: Bounds) -> list[CutOff]:
    """The cut-off times in their order."""
    kind = time.cast
    every = sql("{every}::pg_catalog.interval", every=literal(lengths.every))
    starts, ends = (sql("{text}::{kind}", text=literal(text), kind=kind) for text in (bounds.starts, bounds.ends))
    moment = sql("{starts} + n * {every}", starts=starts, every=every)
    if not bounds.forwards:
        moment = sql("{ends} - n * {every}", ends=ends, every=every)
    rows = db.scan(
        sql(
            "SELECT m::text AS as_of, (m + {horizon})::{kind}::text AS until, (m - {active})::{kind}::text AS since,"
            " (pg_catalog.date_part('epoch', m) * 1000000)::bigint AS at,"
            " (pg_catalog.date_part('epoch', (m + {horizon})::{kind}) * 1000000)::bigint AS ends"
            " FROM (SELECT ({moment})::{kind} AS m FROM pg_catalog.generate_series(0, {count}) AS g (n)) AS q"
            " WHERE m BETWEEN {starts} AND {ends} ORDER BY m",
            moment=moment,
            count=_at_most(starts, ends, every),
            starts=starts,
            ends=ends,
            horizon=sql("{text}::pg_catalog.interval", text=literal(lengths.horizon)),
            active=sql("NULL::pg_catalog.interval")
            if lengths.active is None
            else sql("{text}::pg_catalog.interval", text=literal(lengths.active)),
            kind=kind,
        )
    )
    if len(rows) > tasks.MOST_CUT_OFFS:
        raise InvalidArgument(
            f"every is {shown(lengths.every)}, which gives more than {tasks.MOST_CUT_OFFS:,} cut-off times from"
            f" {bounds.starts} to {bounds.ends}.",
            hint="Choose a longer interval, or a later starts.",
        )
    found = [CutOff(**row) for row in rows]
    for before, after in zip(found, found[1:]):
        if after.at <= before.at or after.ends <= before.ends:
            raise InvalidArgument(f"every is {shown(lengths.every)}; its parts must not have different signs.")
    return found


def _at_most(starts: Sql, ends: Sql, every: Sql) -> Sql:
    """How many times an interval fits, or a few more: a month counts as 30 days, and none has fewer than 28."""
    return sql(
        "LEAST({most}, 2 + 1.1 * pg_catalog.date_part('epoch', {ends}::timestamp - {starts}::timestamp)"
        " / pg_catalog.date_part('epoch', {every}))::integer",
        most=tasks.MOST_CUT_OFFS,
        starts=starts,
        ends=ends,
        every=every,
    )


def shown(text: str) -> str:
    """What a user wrote, on one line."""
    return f"'{shortened(' '.join(text.split()), 200)}'"
