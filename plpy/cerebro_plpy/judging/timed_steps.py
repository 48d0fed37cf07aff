"""Steps at regular times that have a class, as SQL: what ``cerebro.bouts`` and ``cerebro.transitions`` share."""

from __future__ import annotations

import math
from typing import Any

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.names import split_list, written_list
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, constant, identifier, joined, sql
from cerebro_db.core.texts import counted

from ..database import relations
from ..database.access import Database
from ..database.relations import Column, Relation

TIMES = ("timestamp without time zone", "timestamp with time zone")
GAP = 1.5  # steps; a larger difference of two times is a gap
MILLISECONDS = 1000  # times that differ by less have the same difference


@dataclass(frozen=True)
class StepColumns:
    """The names in the arguments that both functions have."""

    subject: list[str]
    time: str
    label: str
    seconds: float | None


@dataclass(frozen=True)
class TimedSteps:
    """The steps of a query.  ``argument`` names the query in errors, and its tables in the statement."""

    source: Relation
    subject: list[Column]
    time: Column
    label: Column
    seconds: float | None
    argument: str

    def table(self, what: str) -> Sql:
        """A table of the statement: steps, lengths or faults."""
        return identifier(f"{self.argument}_{what}")

    @property
    def tables(self) -> Sql:
        """The queries that a statement begins with.

        ``steps``: each step with the subject (b), its class (c), day and time (e, in seconds), its number, and what
        the step before it has.  ``lengths``: each subject's number of steps, and the length of a step.  ``faults``: one
        row, with what is wrong.
        """
        return sql(
            # Greenplum computes them for each table that reads them. Kept by MATERIALIZED, some would wait for ever.
            "{steps} AS ("
            "SELECT q.b, q.c, q.day, q.e, row_number() OVER w AS n, q.e - lag(q.e) OVER w AS d,"
            " lag(q.c) OVER w AS c_before, lag(q.day) OVER w AS day_before"
            ' FROM (SELECT {by} COLLATE "C" AS b, s.{label}::text COLLATE "C" AS c, s.{time}::date AS day,'
            " CASE WHEN isfinite(s.{time}) THEN date_part('epoch', s.{time}) END AS e FROM {rows} AS s) AS q"
            " WINDOW w AS (PARTITION BY q.b ORDER BY q.e)), "
            "{differences} AS ("
            "SELECT b, round(d * {milliseconds}) AS ms, count(*) AS n, sum(d) AS seconds FROM {steps}"
            " WHERE d > 0 GROUP BY 1, 2), "
            # Exact to microseconds, as times are: 180 steps of 0.1 seconds are 18 seconds.
            "{lengths} AS ("
            "SELECT r.b, r.rows, COALESCE({given}, o.seconds, (SELECT sum(seconds) / sum(n) FROM {differences}"
            " GROUP BY ms ORDER BY sum(n) DESC, ms LIMIT 1)) AS seconds"
            " FROM (SELECT b, count(*) AS rows FROM {steps} GROUP BY b) AS r"
            " LEFT JOIN (SELECT DISTINCT ON (b) b, round(1000000 * seconds / n) / 1000000 AS seconds"
            " FROM {differences} ORDER BY b, n DESC, ms) AS o ON o.b = r.b), "
            "{faults} AS ("
            "SELECT count(*) AS rows, count(*) FILTER (WHERE b IS NULL) AS no_subject,"
            " count(*) FILTER (WHERE e IS NULL) AS no_time, count(*) FILTER (WHERE d = 0) AS again,"
            " min(b) FILTER (WHERE d = 0) AS whose,"
            " (SELECT min(b) FROM {lengths} WHERE seconds IS NULL) AS alone FROM {steps})",
            steps=self.table("steps"),
            differences=self.table("differences"),
            lengths=self.table("lengths"),
            faults=self.table("faults"),
            by=self._subject,
            label=identifier(self.label.name),
            time=identifier(self.time.name),
            rows=self.source.rows,
            milliseconds=MILLISECONDS,
            given=sql("{seconds}::float8", seconds=constant(self.seconds)),
        )

    @property
    def _subject(self) -> Sql:
        """The subject as a text; NULL if one of the columns is."""
        texts = [sql("s.{name}::text", name=identifier(one.name)) for one in self.subject]
        if len(texts) == 1:
            return sql("({text})", text=texts[0])
        return sql(
            "(CASE WHEN {known} THEN pg_catalog.jsonb_build_array({texts})::text END)",
            known=joined(" AND ", (sql("{text} IS NOT NULL", text=one) for one in texts)),
            texts=joined(", ", texts),
        )

    def require_sound(self, found: dict[str, Any]) -> None:
        """An error for what the row of ``faults`` has.  Its columns are arguments of ``faults_of``."""
        subject, time = written_list(one.name for one in self.subject), self.time.name
        for rows, name in ((found["no_subject"], subject), (found["no_time"], time)):
            if rows:
                raise BadData(
                    f"{self.argument}: {counted(int(rows), 'row')} without a value in '{name}'.",
                    hint="Leave them out of the query: WHERE … IS NOT NULL.",
                )
        if found["again"]:
            raise BadData(
                f"{self.argument}: {counted(int(found['again']), 'row')} with the same '{time}' as another row of"
                f" '{subject}' = {found['whose']}.",
                hint="A subject has one step at a time. Do the rows have predictions of several models?",
            )
        if found["alone"] is not None:
            raise BadData(
                f"{self.argument}: how long a step is cannot be told from '{subject}' = {found['alone']}.",
                hint="Say it: step_seconds => 10.",
            )

    def faults(self, place: str) -> Sql:
        """The row of ``faults`` as one column of JSON."""
        return sql(
            "(SELECT pg_catalog.row_to_json(f)::text FROM {faults} AS f) AS {place}",
            faults=self.table("faults"),
            place=identifier(place),
        )

    @property
    def is_after_gap(self) -> Sql:
        """Whether there is a gap before a step ``s`` of a subject with the lengths ``l``."""
        return sql("s.d > {gap} * l.seconds", gap=GAP)


def named(
    subject: str | None, step_time: str | None, class_column: str | None, step_seconds: float | None
) -> StepColumns:
    """The columns that the arguments name, not compared with those of a query yet."""
    if step_seconds is not None and not 0 < step_seconds < math.inf:
        raise InvalidArgument(f"step_seconds is {step_seconds}; it must be more than 0.")
    return StepColumns(
        split_list(subject, "subject"), _one(step_time, "step_time"), _one(class_column, "class_column"), step_seconds
    )


def of(db: Database, query: str | None, argument: str, wanted: StepColumns) -> TimedSteps:
    """The steps of the query that an argument has."""
    source, present = relations.of_query(db, relations.require_query(db, query, argument))
    by = relations.named(db, source, wanted.subject, "The argument subject names it.", present)
    (time,) = relations.named(db, source, [wanted.time], "The argument step_time names it.", present)
    (label,) = relations.named(db, source, [wanted.label], "The argument class_column names it.", present)
    if time.type not in TIMES:
        raise InvalidArgument(
            f"{argument}: '{time.name}' has the type {time.shown}, and no timestamp.",
            hint="A query can convert it: SELECT to_timestamp(seconds) AS at, … .",
        )
    return TimedSteps(source, by, time, label, wanted.seconds, argument)


def _one(name: str | None, argument: str) -> str:
    names = split_list(name, argument)
    if len(names) != 1:
        raise InvalidArgument(f"{argument} names {len(names)} columns; it takes one.")
    return names[0]
