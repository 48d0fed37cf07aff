"""Decides what becomes of related rows, from a sample of the examples: the related plan.

Only rows that examples may read are looked at, so rows at or after the time of the last example change nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from cerebro_db.core.names import STATE_SCHEMA, Name, token
from cerebro_db.core.packing import columns as deciding
from cerebro_db.core.packing.columns import NOTHING, Found, Ignored, Wish
from cerebro_db.core.packing.distributions import Distribution, rounded, six_digits
from cerebro_db.core.packing.features import CategoryFeature, DateFeature, NumberFeature
from cerebro_db.core.packing.related import (
    COUNT,
    DIFFERENT,
    FARTHEST_STEP,
    LAST,
    SHARE,
    SINCE_FIRST,
    SINCE_LAST,
    Aggregate,
    Carried,
    Latest,
    ManyRows,
    PreparedPlace,
    Related,
    RelatedMeasure,
    RelatedPlace,
    column_name,
)
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.sql_types import DATES, INTEGERS

from ... import platform
from ...database import relations
from ...database.access import Database
from ...database.relations import Column, Relation
from ..columns import statistics
from ..columns.statistics import Looked
from ..rows import feature_sql
from . import deriving, steps
from .derivation import AGE, Examples
from .steps import Reached, StepsOrigin

EXAMPLES, FEWEST_EXAMPLES = 3000, 30  # in the sample
SAMPLED = 500_000  # related rows that the examples of a sample have, about: to sort a million takes two seconds
OF_EXAMPLE = 100  # rows of one example in the sample: some have a million
FEWEST_SAMPLED = 30_000  # rows in the sample, if the examples have so many
MOST_AGGREGATES = 160  # of all paths together
CROWD = 300  # rows of an example, on average: with more, rows are ranked
MOST_READ = 100_000_000  # related rows at the end of a path, each counted once for each example
LENGTHS = (4, 8, 16, 32)  # of the latest rows
USUAL_SHARE = 0.9  # of the examples have no more rows than that
WINDOWS = {  # what an age is measured in -> how long a window may be, and its name
    True: ((1 / 24, "1h"), (0.25, "6h"), (1, "1d"), (3, "3d"), (7, "7d"), (30, "30d"), (90, "90d"), (365, "365d"),
           (1826, "1826d")),
    False: tuple((float(one), f"last {one}")
                 for one in (1, 2, 3, 5, *(n * 10**k for k in range(1, 10) for n in (1, 3)))),
}  # fmt: skip
SHARES_OF_WINDOWS = (0.05, 0.2, 0.5)  # of the rows, that windows should have
FEWEST, MOST = 0.02, 0.8  # a window with fewer or more rows tells nothing that the others do not
MOST_SHARES, LEAST_SHARE = 6, 0.02
FINE = 1 << 16  # steps of a deviation
MOST_DIGITS = 4  # after the point
ROOM = 100  # other rows have numbers so much larger than those of the sample
MOST_CARRIED = 250  # columns of rows that examples refer to: so many fit into a row beside the others


@dataclass(frozen=True)
class LookedAt:
    """A column of related rows, as the sample shows it."""

    place: RelatedPlace
    column: Column
    found: Found
    feature: NumberFeature | DateFeature | CategoryFeature
    digits: int | None  # after the point, that all its numbers have at most; None: more than is counted


@dataclass(frozen=True)
class Sampled:
    """What a sample tells about the rows at the end of a path."""

    path: str
    rows: int
    most: int  # rows of an example that has as many as most have
    ages: Distribution | None  # None: rows have no time
    dated: bool  # whether ages are days, and not units of a number
    age: NumberFeature | None
    columns: list[LookedAt]


@dataclass(frozen=True)
class Decided:
    """A plan, and by path how many rows all examples read, and how many aggregates there could be."""

    plan: Related
    rows: dict[str, int]
    possible: dict[str, int]


def planned(
    db: Database, origin: StepsOrigin, examples: Examples, some: Callable[[int], Examples], reached: Sequence[Reached]
) -> Decided:
    """The plan, with the aggregates that matter most.  ``some``: a sample of so many examples."""
    bare = Related(tuple(one.step for one in reached), (), (), origin.as_of.name if origin.as_of else None)
    (counted,) = db.scan(sql("SELECT count(*) AS rows FROM {rows} AS s", rows=examples.rows))
    read = {one.path: _rows_read(db, bare, examples, reached, one) for one in reached if one.many}
    crowded = {path for path, rows in read.items() if rows > CROWD * counted["rows"] and bare.can_be_ranked(path)}
    reached = _without_crowds(db, reached, {path: rows for path, rows in read.items() if path not in crowded})
    bare = replace(bare, steps=tuple(one.step for one in reached))
    many = {one.path for one in reached if any(step.many for step in bare.chain(one.path))}
    dated = origin.as_of is not None and origin.as_of.type in DATES
    carried = [
        Carried(one.path, column.name, column_name(one.path, f"{column.name} since" if since else column.name), since)
        for one in reached
        if one.path not in many
        for column in one.read
        for since in ((False, True) if dated and column.type in DATES else (False,))
    ]
    if len(carried) > MOST_CARRIED:
        db.notice(
            f"related: {len(carried) - MOST_CARRIED} of {len(carried)} columns of rows that examples refer to are left"
            " out",
            """The entry "columns" of a table says which to read.""",
        )
        carried = carried[:MOST_CARRIED]
    found = []
    for one in reached:
        if one.many:
            each = max(1, read[one.path] // max(1, counted["rows"]))
            number = max(FEWEST_EXAMPLES, min(EXAMPLES, SAMPLED // each))
            sampled = _sampled(db, bare, some(number), max(OF_EXAMPLE, FEWEST_SAMPLED // number), reached, one)
            found.append(replace(_rows(one, sampled, bool(origin.as_of)), crowded=one.path in crowded))
    possible = {one.path: len(one.aggregates) for one in found}
    limits = _limits(possible)
    rows = tuple(_with_the_first(one, limits[one.path]) for one in found)
    plan = _with_different_names(replace(bare, carried=tuple(carried), rows=rows))
    return Decided(plan, {path: rows for path, rows in read.items() if path in many}, possible)


def _limits(possible: dict[str, int]) -> dict[str, int]:
    """How many aggregates each path may have: equally many, and what some paths do not need the others have."""
    limits, left = {}, MOST_AGGREGATES
    for place, (path, count) in enumerate(sorted(possible.items(), key=lambda one: one[1])):
        limits[path] = min(count, left // (len(possible) - place))
        left -= limits[path]
    return limits


def _with_the_first(one: ManyRows, most: int) -> ManyRows:
    """The aggregates that matter most, and the numbers that these are of."""
    aggregates = one.aggregates[:most]
    used = {(each.of.path, each.of.column) for each in aggregates if each.of is not None}
    measures = tuple(each for each in one.measures if (each.path, each.column) in used)
    return replace(one, aggregates=aggregates, measures=measures)


def _with_different_names(plan: Related) -> Related:
    """The plan, with a number after the name of a column that another column has."""
    names = Counter[str]()

    def different(name: str) -> str:
        names[name] += 1
        return name if names[name] == 1 else column_name(name, f"{names[name]}")

    rows = []
    for one in plan.rows:
        aggregates = tuple(replace(each, name=different(each.name)) for each in one.aggregates)
        latest = one.latest
        if latest is not None:
            codes = None if latest.codes is None else different(latest.codes)
            latest = replace(latest, numbers=different(latest.numbers), codes=codes)
        rows.append(replace(one, aggregates=aggregates, latest=latest))
    carried = tuple(replace(one, name=different(one.name)) for one in plan.carried)
    return replace(plan, carried=carried, rows=tuple(rows))


def _rows_read(db: Database, bare: Related, examples: Examples, reached: Sequence[Reached], end: Reached) -> int:
    (found,) = db.scan(deriving.rows_read(bare, examples, steps.opened(reached), end.path))
    return int(found["rows"])


def _without_crowds(db: Database, reached: Sequence[Reached], read: dict[str, int]) -> list[Reached]:
    """The tables without those of which an example has so many rows that all examples together would read too many."""
    left = [path for path, rows in read.items() if rows > MOST_READ]
    for path in left:
        if not any(path.startswith(f"{other}.") for other in left):
            db.notice(
                f"related: {path} is left out: the examples would read {read[path]:,} of its rows, and the limit is"
                f" {MOST_READ:,}",
                "Take fewer examples, or a view with the latest rows of the table.",
            )
    return [one for one in reached if not any(one.path == path or one.path.startswith(f"{path}.") for path in left)]


def _sampled(
    db: Database, bare: Related, examples: Examples, most: int, reached: Sequence[Reached], end: Reached
) -> Sampled:
    """``most``: so many rows of each of these examples."""
    inner = {step.path for step in bare.inner(end.path)}
    places, refer = [], set[RelatedPlace]()
    for one in reached:
        if one.path == end.path or one.path in inner:
            places += [(RelatedPlace(one.path, column.name), column) for column in one.read]
            refer |= {RelatedPlace(one.path, name) for name in relations.references(db, one.relation)}
    name = Name(STATE_SCHEMA, f"rows_{token()}")
    some = deriving.some_rows(bare, examples, steps.opened(reached), end.path, [place for place, _ in places], most)
    db.patiently(
        sql("CREATE UNLOGGED TABLE {name} AS {some} {by}", name=name.sql, some=some,
            by=platform.of(db).distributed_by(None))
    )  # fmt: skip
    sample = Relation(0, "", "", "r", False, end.path, copy=name)
    try:
        return _read(db, sample, end, _Places(places, refer), bare, examples)
    finally:
        db.execute(sql("DROP TABLE {name}", name=name.sql))


@dataclass(frozen=True)
class _Places:
    """The columns of related rows, and those of them that refer to another table."""

    columns: list[tuple[RelatedPlace, Column]]
    refer: set[RelatedPlace]


def _read(db: Database, sample: Relation, end: Reached, places: _Places, bare: Related, examples: Examples) -> Sampled:
    timed = any(step.time for step in bare.chain(end.path) if step.many)
    looked = [
        _looked(replace(column, name=f"v{number}"), place in places.refer)
        for number, (place, column) in enumerate(places.columns)
    ]
    (counted,) = db.scan(
        sql(
            "SELECT COALESCE(sum(m), 0)::bigint AS rows,"
            " COALESCE(percentile_disc({share}) WITHIN GROUP (ORDER BY m), 0) AS most"
            " FROM (SELECT max(m) AS m FROM {rows} AS s GROUP BY {keys}) g",
            share=USUAL_SHARE,
            rows=sample.rows,
            keys=deriving.keys(bare, examples, end.path),
        )
    )
    if not counted["rows"]:
        return Sampled(path=end.path, rows=0, most=0, ages=None, dated=True, age=None, columns=[])
    if timed:
        looked.append(Looked(AGE, "number", False))
    total = statistics.totals(db, sample, looked)
    found = statistics.of(db, sample, sample, looked, total)
    ages = found.pop() if timed else None
    read = []
    digits = _digits(db, sample, looked[: len(places.columns)])
    for (place, column), one, each in zip(places.columns, found, looked):
        one.name = place.column
        feature = _feature(one)
        if feature is not None:
            read.append(LookedAt(place, column, one, feature, digits.get(each.column.name)))
    age = deciding.decide(ages, Wish("number"), True) if ages is not None else None
    assert age is None or isinstance(age, NumberFeature)
    return Sampled(
        path=end.path, rows=counted["rows"], most=counted["most"], ages=ages.numbers if ages else None,
        dated=_is_dated(bare, end.path), age=age, columns=read,
    )  # fmt: skip


def _is_dated(bare: Related, path: str) -> bool:
    """Whether the rows at the end of a path have a date or time, and no number for it."""
    timed = [step for step in bare.chain(path) if step.many and step.time is not None]
    types = {column.name: column.type.name for column in timed[-1].columns} if timed else {}
    return not timed or types[timed[-1].time or ""] in DATES


def _digits(db: Database, sample: Relation, looked: Sequence[Looked]) -> dict[str, int]:
    """Of numbers with few digits after the point, such as prices, how many these are: their sums are exact."""
    names = [identifier(one.column.name) for one in looked if one.column.type in feature_sql.REALS]
    if not names:
        return {}
    counts = [
        sql(
            "max(pg_catalog.scale({name}::numeric)) FILTER (WHERE {name}::double precision NOT IN {not_finite})"
            " AS {name}",
            name=name,
            not_finite=feature_sql.NOT_FINITE,
        )
        for name in names
    ]
    (found,) = db.scan(sql("SELECT {counts} FROM {rows} AS s", counts=joined(", ", counts), rows=sample.rows))
    return {name: digits for name, digits in found.items() if digits is not None and digits <= MOST_DIGITS}


def _looked(column: Column, refers: bool) -> Looked:
    family = deciding.family_of(column.type, column.category, column.element)
    assert family is not None
    return Looked(column, family, refers or statistics.as_text(family, NOTHING), refers=refers)


def _feature(found: Found) -> NumberFeature | DateFeature | CategoryFeature | None:
    """What values become in the array of the latest rows; None: nothing."""
    wish = Wish(None, {"not_finite": "null"}) if found.not_finite else NOTHING
    feature = deciding.decide(found, wish, False)
    if isinstance(feature, Ignored) or not isinstance(feature, (NumberFeature, DateFeature, CategoryFeature)):
        return None
    return replace(feature, unknown="notice") if isinstance(feature, CategoryFeature) else feature


# -- what becomes of them ------------------------------------------------------------------------------------


def _rows(end: Reached, sampled: Sampled, has_time: bool) -> ManyRows:
    """What becomes of the rows at the end of a path, with all aggregates, those before that matter more."""
    measures = {one.place: measure for one in sampled.columns if (measure := _measure(one)) is not None}
    windows = _windows(sampled) if has_time else []
    latest = _latest(end, sampled)
    ranked = sorted(_aggregates(end, sampled, measures, windows, has_time), key=lambda one: one[0])
    # The last values are read with the latest rows, which have to be sorted.
    aggregates = tuple(one for _, one in ranked if latest is not None or one.kind != LAST)
    return ManyRows(end.path, tuple(measures.values()), aggregates, latest)


def _measure(one: LookedAt) -> RelatedMeasure | None:
    numbers = one.found.numbers
    if one.found.refers or one.found.family not in ("number", "money", "interval") or not numbers.rows:
        return None
    place = one.place
    largest = max(abs(numbers.low), abs(numbers.high))
    if one.found.type in ("smallint", "integer") or (one.found.type in INTEGERS and largest * ROOM <= FARTHEST_STEP):
        return RelatedMeasure(place.path, place.column, 0.0, 1.0)
    if one.digits is not None and largest * 10**one.digits * ROOM <= FARTHEST_STEP:
        return RelatedMeasure(place.path, place.column, 0.0, 10.0**-one.digits)
    moments = numbers.moments()
    if not moments.deviation:
        return None
    step = six_digits(moments.deviation / FINE)
    return RelatedMeasure(place.path, place.column, rounded(moments.mean, moments.deviation), step)


def _windows(sampled: Sampled) -> list[tuple[float, str]]:
    """The windows that have about these shares of the rows."""
    if sampled.ages is None:
        return []
    known = [(length, name, _share_below(sampled.ages, length)) for length, name in WINDOWS[sampled.dated]]
    fitting = [one for one in known if FEWEST <= one[2] <= MOST]
    chosen = []
    for wanted in SHARES_OF_WINDOWS:
        if fitting:
            length, name, _ = min(fitting, key=lambda one: abs(math.log(one[2] / wanted)))
            chosen.append((length, name))
    return sorted(set(chosen))


def _share_below(found: Distribution, limit: float) -> float:
    rows = 0.0
    for one in found.bins:
        if one.high <= limit:
            rows += one.rows
        elif one.low < limit:
            rows += one.rows * (limit - one.low) / (one.high - one.low)
    return rows / found.rows if found.rows else 0.0


def _aggregates(
    end: Reached,
    sampled: Sampled,
    measures: dict[RelatedPlace, RelatedMeasure],
    windows: Sequence[tuple[float, str]],
    has_time: bool,
) -> Iterator[tuple[int, Aggregate]]:
    """Each with its rank: those of lower ranks matter more."""

    def named(what: str) -> str:
        return column_name(end.path, what)

    timed = sampled.ages is not None
    yield 0, Aggregate(named(COUNT), COUNT)
    if end.time is not None:  # else the times are those of a step before
        yield 0, Aggregate(named(SINCE_LAST), SINCE_LAST)
        yield 3, Aggregate(named(SINCE_FIRST), SINCE_FIRST)
    for number, (length, name) in enumerate(windows):
        yield 1 + number, Aggregate(named(f"{COUNT} {name}"), COUNT, within=length)
    for one in sampled.columns:
        of, text = one.place, _shown(end.path, one.place)
        if of in measures:
            for rank, kind in enumerate(("mean", "sum", "largest", "least", "spread")):
                yield 1 + rank, Aggregate(named(f"{text} {kind}"), kind, of)
            if timed and has_time:
                yield 5, Aggregate(named(f"{text} trend"), "trend", of)
            for number, (length, name) in enumerate(windows):
                yield 3 + number, Aggregate(named(f"{text} mean {name}"), "mean", of, length)
                yield 4 + number, Aggregate(named(f"{text} sum {name}"), "sum", of, length)
        if isinstance(one.feature, CategoryFeature):
            values = _shares(one)
            for value in values:
                yield 2, Aggregate(named(f"{text} {SHARE} {value}"), SHARE, of, value=value)
            for value in values[:2] if windows else ():
                length, name = windows[-1]
                yield 5, Aggregate(named(f"{text} {SHARE} {value} {name}"), SHARE, of, length, value)
            if one.found.groups > MOST_SHARES:
                yield 4, Aggregate(named(f"{text} {DIFFERENT}"), DIFFERENT, of)
        if end.time is not None and not isinstance(one.feature, DateFeature):
            yield 2, Aggregate(named(f"{text} {LAST}"), LAST, of, as_text=one.found.refers)


def _shown(path: str, place: RelatedPlace) -> str:
    """A column in the name of an aggregate; of a row that is referred to, with the rest of its path."""
    return f"{place.path[len(path) + 1 :]}.{place.column}" if place.path != path else place.column


def _shares(one: LookedAt) -> list[str]:
    """The frequent values of a category; of two, one says all."""
    counted = one.found.values or [(str(int(bin.low)), round(bin.rows)) for bin in one.found.numbers.bins]
    counted = sorted(counted, key=lambda each: (-each[1], each[0]))
    found = [value for value, rows in counted if rows >= LEAST_SHARE * one.found.filled][:MOST_SHARES]
    return found[1:] if len(counted) == 2 and len(found) == 2 else found


def _latest(end: Reached, sampled: Sampled) -> Latest | None:
    wanted = end.wanted.latest
    rows = next((length for length in LENGTHS if length >= sampled.most), LENGTHS[-1]) if wanted is None else wanted
    if not rows or not sampled.rows:
        return None
    prepared = [PreparedPlace(one.place.path, one.place.column, _without_edges(one.feature)) for one in sampled.columns]
    codes = any(isinstance(one.feature, CategoryFeature) for one in prepared)
    return Latest(
        rows=rows,
        numbers=column_name(end.path, "latest numbers"),
        codes=column_name(end.path, "latest codes") if codes else None,
        prepared=tuple(prepared),
        age=None if sampled.age is None else replace(sampled.age, edges=()),
    )


def _without_edges(
    feature: NumberFeature | DateFeature | CategoryFeature,
) -> NumberFeature | DateFeature | CategoryFeature:
    """Bins are for an example's own numbers."""
    return feature if isinstance(feature, CategoryFeature) else replace(feature, edges=())


def examples_of(rows: Sql, columns: dict[str, Column], as_of: Column | None, *, again: bool) -> Examples:
    """``rows``: what stands after FROM."""
    time = None if as_of is None else sql("s.{name}", name=identifier(as_of.name))
    names = [column.name for column in columns.values() if column.readable]
    return Examples(rows, columns, names, time, as_of, again)
