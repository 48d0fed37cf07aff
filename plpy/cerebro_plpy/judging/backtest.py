"""``cerebro.backtest``: how good the forecasts of a model were from one time after the other.

One statement forecasts from the last rows of each series, and compares what was forecast with the rows that came.
"""

from __future__ import annotations

from typing import Any

from cerebro_db.core.errors import BadData, InvalidArgument, Unsupported
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.packing.windows import Windows
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, literal, quoting, sql
from cerebro_db.core.sql_types import DATES, INTEGERS

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Column, Relation
from ..definitions.references import ModelRef, model_ref
from ..models.model_cache import read_model
from ..packing.rows import windowed
from . import drift

MOST_ORIGINS = 1000  # of each series
KEY = identifier("__cerebro_origin")
COLUMNS = ("step", "origins", "forecasts", "mase", "naive_mase", "wql", "coverage", "wanted_coverage", "mean_width")


@dataclass(frozen=True)
class BacktestArguments:
    """The arguments of ``cerebro.backtest``."""

    model_table: str | None
    query: str | None
    origins: int | None
    season: int | None
    apart: int | None
    configuration: int | None
    calibrated: bool | None


@entry
def backtest(db: Database, **arguments: Any) -> list[dict[str, Any]]:
    """A row for each step of the forecasts, and first one for all of them."""
    given = BacktestArguments(**arguments)
    query = relations.require_query(db, given.query)
    ref = model_ref(db, given.model_table)
    layout = read_model(db, ref, given.configuration).layout
    windows = _windows_of(layout)
    rows = _Rolling(
        layout,
        windows,
        origins=_whole("origins", given.origins, 10, MOST_ORIGINS),
        season=_whole("season", given.season, windows.season or 1, 1_000_000),
        apart=_whole("apart", given.apart, windows.steps or 1, 1_000_000),
    )
    source, present = relations.of_query(db, query)
    _require_columns(present, layout, windows)
    windowed.require_usable(db, source, windows, [], windows.rows + windows.horizon)
    _tell_trained(db, ref, rows, source, present)
    found = db.scan(rows.statement(source, present[windows.order[0]], given))
    if not found[0]["forecasts"]:
        raise BadData(
            f"no series of the query has {windows.rows + windows.horizon} rows: {windows.rows} to read, and"
            f" {windows.horizon} with the target '{layout.outputs[0].name}' to compare with.",
            hint="Give a query with more rows of each series.",
        )
    return [{name: row[name] for name in COLUMNS} for row in found]


def _whole(name: str, value: int | None, usual: int, most: int) -> int:
    if value is not None and not 1 <= value <= most:
        raise InvalidArgument(f"{name} cannot be {value}.", hint=f"It must be from 1 to {most:,}.")
    return usual if value is None else value


def _windows_of(layout: Layout) -> Windows:
    windows = layout.windows
    if windows is None or not windows.horizon:
        raise Unsupported(
            "the model forecasts nothing: it was trained without a horizon.",
            hint='cerebro.train(…, sequence => \'{"order": "day", "length": 28, "horizon": [1, 7]}\') makes one that'
            " does.",
        )
    if len(layout.outputs) > 1 or layout.outputs[0].target != "real" or layout.outputs[0].of_step != (1,):
        raise Unsupported(
            "a backtest is for models that forecast one number.", hint="cerebro.evaluate() judges others."
        )
    if len(windows.order) > 1 or windows.may_break:
        raise Unsupported(
            "a backtest is for series of one order without breaks.", hint="cerebro.evaluate() judges such models."
        )
    return windows


def _require_columns(present: dict[str, Column], layout: Layout, windows: Windows) -> None:
    target = layout.outputs[0].columns[0]
    for name in (target, *windows.read):
        if name not in present:
            raise InvalidArgument(f"the query does not have the column '{name}'.", hint=relations.has_columns(present))
    order = present[windows.order[0]]
    if order.type not in (*DATES, *INTEGERS):
        raise Unsupported(
            f"the order '{order.name}' has the type {order.shown}, so forecasts have no time.",
            hint="Order the rows by a date, a timestamp or an integer.",
        )


@dataclass(frozen=True)
class _Rolling:
    """The origins: of each series, the last rows after which all rows to forecast are known, at equal distances."""

    layout: Layout
    windows: Windows
    origins: int
    season: int
    apart: int

    @property
    def _target(self) -> Sql:
        return sql("{name}::double precision", name=identifier(self.layout.outputs[0].columns[0]))

    def numbered(self, source: Relation) -> Sql:
        """The rows with their series (b), places (n), targets (y), and the last place with a target (last)."""
        by = joined(", ", [sql("q.{name}::text", name=identifier(name)) for name in self.windows.by])
        series = sql("ARRAY[{by}]::text[]::text", by=by) if by else sql("''::text")
        return sql(
            "SELECT r.*, max(r.__cerebro_n) FILTER (WHERE r.__cerebro_y IS NOT NULL)"
            " OVER (PARTITION BY r.__cerebro_b) AS __cerebro_last FROM ("
            "SELECT q.*, {series} AS __cerebro_b, q.{target} AS __cerebro_y,"
            " row_number() OVER (PARTITION BY {series} ORDER BY q.{order}) AS __cerebro_n FROM {rows} AS q) r",
            series=series,
            target=self._target,
            order=identifier(self.windows.order[0]),
            rows=source.rows,
        )

    @property
    def is_origin(self) -> Sql:
        return sql(
            "r.__cerebro_n >= {length} AND r.__cerebro_n <= r.__cerebro_last - {horizon}"
            " AND (r.__cerebro_last - {horizon} - r.__cerebro_n) % {apart} = 0"
            " AND (r.__cerebro_last - {horizon} - r.__cerebro_n) / {apart} < {origins}",
            horizon=self.windows.horizon,
            apart=self.apart,
            origins=self.origins,
            length=self.windows.rows,
        )

    def statement(self, source: Relation, order: Column, given: BacktestArguments) -> Sql:
        windows, output = self.windows, self.layout.outputs[0]
        back = windows.horizon + self.apart * (self.origins - 1) + windows.rows
        asked = sql(
            "SELECT r.*, CASE WHEN {is_origin} THEN ARRAY[r.__cerebro_b, r.__cerebro_n::text]::text[]::text"
            " ELSE '' END AS {key}"
            " FROM ({numbered}) r WHERE r.__cerebro_n > r.__cerebro_last - {back}"
            " AND r.__cerebro_n <= r.__cerebro_last",
            is_origin=self.is_origin,
            key=KEY,
            numbered=self.numbered(source),
            back=back,
        )
        levels = list(output.quantiles) or [0.5]
        several, none = len(levels) > 1, sql("NULL::double precision")
        first = windows.nearest or windows.horizon
        quantiles = sql("p.quantiles") if output.quantiles else sql("ARRAY[p.value]")
        return sql(
            "WITH numbered AS (SELECT r.__cerebro_b AS b, r.__cerebro_n AS n, r.__cerebro_y AS y,"
            " r.__cerebro_last AS last FROM ({numbered}) r), "
            # How far the season before was wrong in the rows before the first origin: the unit of errors.
            "scales AS (SELECT d.b, avg(abs(d.y - d.before)) AS scale FROM (SELECT r.b, r.n, r.y, r.last,"
            " lag(r.y, {season}) OVER (PARTITION BY r.b ORDER BY r.n) AS before FROM numbered r) d"
            " WHERE d.n <= d.last - {horizon} - {apart} * {more} GROUP BY d.b), "
            "forecasts AS (SELECT (p.key_value::text[])[1] AS b, (p.key_value::text[])[2]::bigint AS origin,"
            " {before} + row_number() OVER (PARTITION BY p.key_value ORDER BY p.forecast_for::{type}) AS step,"
            " {quantiles} AS levels FROM cerebro.predict({model}, {asked}, {key_name}, {configuration},"
            " calibrated => {calibrated}) p WHERE p.key_value <> ''), "
            "compared AS (SELECT f.*, y.y, s.scale,"
            " f.levels[{middle}] AS value, f.levels[1] AS low, f.levels[{count}] AS high,"
            " abs(y.y - v.y) AS naive,"
            " (SELECT sum(GREATEST(u.level * (y.y - u.value), (u.level - 1) * (y.y - u.value)))"
            " FROM unnest(ARRAY[{listed}]::double precision[], f.levels) AS u (level, value)) AS pinball"
            " FROM forecasts f JOIN numbered y ON y.b = f.b AND y.n = f.origin + f.step"
            " LEFT JOIN scales s ON s.b = f.b"
            " LEFT JOIN numbered v ON v.b = f.b"
            " AND v.n = f.origin + f.step - {season} * ((f.step + {season} - 1) / {season})"
            " WHERE y.y IS NOT NULL) "
            "SELECT c.step::integer AS step, count(DISTINCT c.origin) AS origins, count(*) AS forecasts,"
            " avg(abs(c.y - c.value) / NULLIF(c.scale, 0)) AS mase, avg(c.naive / NULLIF(c.scale, 0)) AS naive_mase,"
            " 2 * sum(c.pinball) / {count} / NULLIF(sum(abs(c.y)), 0) AS wql,"
            " {coverage} AS coverage, {wanted} AS wanted_coverage, {width} AS mean_width"
            " FROM compared c GROUP BY GROUPING SETS ((), (c.step)) ORDER BY c.step NULLS FIRST",
            numbered=self.numbered(source),
            season=self.season,
            horizon=windows.horizon,
            apart=self.apart,
            more=self.origins - 1,
            before=first - 1,
            type=order.cast,
            quantiles=quantiles,
            model=literal(given.model_table or ""),
            asked=quoting(asked),
            key_name=literal("__cerebro_origin"),
            configuration=sql("NULL") if given.configuration is None else given.configuration,
            calibrated=sql("NULL") if given.calibrated is None else sql("true") if given.calibrated else sql("false"),
            middle=1 + (output.middle if output.quantiles else 0),
            count=len(levels),
            listed=joined(", ", map(literal, map(repr, levels))),
            coverage=sql("avg((c.y BETWEEN c.low AND c.high)::integer)::double precision") if several else none,
            wanted=sql("{part}::double precision", part=literal(repr(round(levels[-1] - levels[0], 9))))
            if several
            else none,
            width=sql("avg(c.high - c.low)") if several else none,
        )


def _tell_trained(db: Database, ref: ModelRef, rows: _Rolling, source: Relation, present: dict[str, Column]) -> None:
    """A notice if forecasts are for rows that trained the model: their errors are smaller than those to come."""
    packing = drift.read_packing(db, ref)
    division = None if packing is None else packing.division
    order = present[rows.windows.order[0]]
    if division is None or division.moment is None or division.at != order.name:
        db.notice("nothing says which rows trained the model: give a query whose last rows are later than those")
        return
    (found,) = db.scan(
        sql(
            "SELECT count(*) AS origins, count(*) FILTER (WHERE r.{order} < {moment}::{type}) AS before"
            " FROM ({numbered}) r WHERE {is_origin}",
            order=identifier(order.name),
            moment=literal(division.moment),
            type=order.cast,
            numbered=rows.numbered(source),
            is_origin=rows.is_origin,
        )
    )
    if found["before"]:
        db.notice(
            f"{found['before']} of {found['origins']} origins are before {division.moment}, up to which rows trained"
            " the model: these forecasts are better than those to come",
            "Fewer origins, or a model that was trained with a larger share for validation.",
        )
