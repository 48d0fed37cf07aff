"""Columns of examples with very many related rows: an airport has all flights of a year, and each flight is an example.

To join each example with all its rows would take the product of both.  Here the rows of each key are numbered in the
order of time, and each has the sums of all rows up to it.  An example needs the number of rows before its time, which
is found by sorting its time among theirs: its sums are those of one row, and those of a window are the difference of
two.  The sums are of whole numbers, so they have the same bits as those over the joined rows.

The rows of one key are a crowd, and a row has one number for its crowd and its rank, so that joins have one condition.
With a second one, PostgreSQL 17 merges by the key alone, and that is the product again.
"""

from __future__ import annotations

from cerebro_db.core.packing.related import DIFFERENT, LAST, ManyRows, RelatedPlace
from cerebro_db.core.sql import Sql, identifier, joined, literal, sql

from . import formulas
from .derivation import Derivation
from .formulas import Sums, Within
from .latest_arrays import gathered

RANK, MOMENT, FIRST = sql("cerebro_rank"), sql("cerebro_moment"), sql("cerebro_first")
CROWD, PLACE = sql("cerebro_crowd"), sql("cerebro_place")
MOST_IN_CROWD = 1 << 33  # rows; so many places has each crowd
START = sql("{crowd} * {most}::bigint", crowd=CROWD, most=MOST_IN_CROWD)


class _OfRanks(Sums):
    """Sums up to a row of a rank; of a window, without those up to another rank.

    ``columns``: what has to be summed, by the names of the columns with the sums.
    """

    def __init__(self, derivation: Derivation, one: ManyRows) -> None:
        self.derivation, self.one = derivation, one
        self.columns: dict[str, Sql] = {}
        self.windows: list[float] = []
        self._equal: dict[tuple[int, str], str] = {}
        step = derivation.timed(one.path)
        assert step is not None
        self.time = derivation.time_of(step)
        self.fine = derivation.fine_of(one.path)

    def rows(self, within: Within) -> Sql:
        return self._between(RANK, within)

    def known(self, place: int, within: Within) -> Sql:
        return self._sum(f"k{place}", sql("count(v{place})", place=place), within)

    def total(self, place: int, what: str, within: Within) -> Sql:
        term = formulas.term(what, sql("v{place}", place=place), sql("t"))
        name = f"{what.replace(' ', '_')}{place}"
        return self._sum(name, sql("sum({term})", term=term), within)

    def end(self, place: int, *, largest: bool) -> Sql:
        function, name = (sql("max"), f"hi{place}") if largest else (sql("min"), f"lo{place}")
        self.columns[name] = sql("{function}(v{place})", function=function, place=place)
        return sql("c0.{name}", name=identifier(name))

    def equal(self, place: int, value: str, within: Within) -> Sql:
        name = self._equal.setdefault((place, value), f"n{len(self._equal)}")
        return self._sum(
            name, sql("count(*) FILTER (WHERE v{place} = {value})", place=place, value=literal(value)), within
        )

    def different(self, place: int) -> Sql:
        return self._sum(f"d{place}", sql("count(*) FILTER (WHERE d{place})", place=place), None)

    def age(self, *, last: bool) -> Sql:
        now = self.derivation.now(sql("p.{time}", time=self.derivation.time_name))
        return formulas.between(self.time, sql("c0.{name}", name=MOMENT if last else FIRST), now)

    def _sum(self, name: str, summed: Sql, within: Within) -> Sql:
        self.columns[name] = summed
        return self._between(identifier(name), within)

    def _between(self, name: Sql, within: Within) -> Sql:
        upto = sql("COALESCE(c0.{name}, 0)", name=name)
        if within is None:
            return upto
        if within not in self.windows:
            self.windows.append(within)
        window = 1 + self.windows.index(within)
        return sql("{upto} - COALESCE(c{window}.{name}, 0)", upto=upto, window=window, name=name)


def rows(derivation: Derivation, one: ManyRows, examples: Sql) -> Sql:
    """All columns of a path, by the keys and the time of the examples."""
    sums = _OfRanks(derivation, one)
    made = derivation.aggregates(one, sums)
    last = [each for each in one.aggregates if each.kind == LAST and each.of is not None]
    raw = _raw(one)
    for each in last:
        assert each.of is not None
        place = raw.index((each.of.path, each.of.column))
        value = derivation.last_value(each, lambda of: sql("c0.w{place}", place=place))  # noqa: B023
        made.append(sql("{value} AS {name}", value=value, name=identifier(each.name)))
    keys, time = derivation.plain_keys_of(one.path), derivation.time_name
    parts = [
        sql(
            "q AS (SELECT q.*, pg_catalog.dense_rank() OVER (ORDER BY {keys}) AS {crowd} FROM {examples} AS q)",
            keys=joined(", ", keys),
            crowd=CROWD,
            examples=examples,
        ),
        sql("c AS ({rows})", rows=_summed_up(derivation, one, sums)),
        sql("p AS ({ranks})", ranks=_ranks(derivation, one, sums)),
    ]
    joins = [_beside(number) for number in range(1 + len(sums.windows))]
    names = [sql("p.{name}", name=name) for name in [*keys, time]]
    found = sql(
        "SELECT {names}, {made} FROM p{joins}",
        names=joined(", ", names),
        made=joined(", ", made),
        joins=joined("", joins),
    )
    if one.latest is not None:
        parts.append(sql("l AS ({latest})", latest=_latest(derivation, one)))
        arrays = [sql("l.{name}", name=identifier(name)) for name in (one.latest.numbers, one.latest.codes) if name]
        same = joined(" AND ", [sql("l.{name} = f.{name}", name=name) for name in [*keys, time]])
        found = sql(
            "SELECT f.*, {arrays} FROM ({found}) f LEFT JOIN l ON {same}",
            arrays=joined(", ", arrays),
            found=found,
            same=same,
        )
    return sql("WITH {parts} {found}", parts=joined(", ", parts), found=found)


def _raw(one: ManyRows) -> list[tuple[str, str]]:
    """The columns whose values are needed as they are: those of the last and of the latest rows."""
    last = [(each.of.path, each.of.column) for each in one.aggregates if each.kind == LAST and each.of is not None]
    latest = [(each.path, each.column) for each in one.latest.prepared] if one.latest is not None else []
    return list(dict.fromkeys([*last, *latest]))


def _summed_up(derivation: Derivation, one: ManyRows, sums: _OfRanks) -> Sql:
    """The rows of the keys of all examples, each with its rank in the order of time, and the sums up to it."""
    keys = [*derivation.plain_keys_of(one.path), CROWD]
    step = derivation.timed(one.path)
    assert step is not None
    moment = derivation.moment(step)
    values = list(derivation.read(one, timeless=True).values())
    raw = [derivation.plain_value(RelatedPlace(path, column)) for path, column in _raw(one)]
    read = derivation.joined(
        one.path,
        sql("(SELECT DISTINCT {keys} FROM q)", keys=joined(", ", keys)),
        [CROWD],
        [
            sql("{moment} AS {name}", moment=moment, name=MOMENT),
            sql("{steps} AS t", steps=formulas.in_steps(sums.time, moment)),
            sql("{order} AS h", order=derivation.order(one)),
            *(sql("{value} AS v{place}", value=value, place=place) for place, value in enumerate(values)),
            *(sql("{value} AS w{place}", value=value, place=place) for place, value in enumerate(raw)),
        ],
        None,
    )
    firsts = [
        sql(
            "v{place} IS NOT NULL AND row_number() OVER (PARTITION BY {crowd}, v{place} ORDER BY {moment}, h DESC) = 1"
            " AS d{place}",
            place=place,
            crowd=CROWD,
            moment=MOMENT,
        )
        for place in sorted({derivation.place_of(one, each) for each in one.aggregates if each.kind == DIFFERENT})
    ]
    numbered = sql(
        "SELECT r.*{firsts} FROM ({read}) r WHERE {moment} IS NOT NULL",
        firsts=joined("", [sql(", {first}", first=first) for first in firsts]),
        read=read,
        moment=MOMENT,
    )
    summed = [sql("{made} OVER o AS {name}", made=made, name=identifier(name)) for name, made in sums.columns.items()]
    return sql(
        "SELECT {kept}, row_number() OVER o AS {rank}, {start} + row_number() OVER o AS {place},"
        " first_value({moment}) OVER o AS {first}{summed}"
        " FROM ({numbered}) r WINDOW o AS (PARTITION BY {crowd} ORDER BY {moment}, h DESC ROWS UNBOUNDED PRECEDING)",
        kept=joined(", ", [CROWD, MOMENT, *(sql("w{place}", place=place) for place in range(len(raw)))]),
        rank=RANK,
        start=START,
        place=PLACE,
        moment=MOMENT,
        first=FIRST,
        summed=joined("", [sql(", {one}", one=made) for made in summed]),
        numbered=numbered,
        crowd=CROWD,
    )


def _ranks(derivation: Derivation, one: ManyRows, sums: _OfRanks) -> Sql:
    """Of each example the place of the last row before its time, n0, and before each of its windows, n1, n2, …"""
    keys, time = derivation.plain_keys_of(one.path), derivation.time_name
    now = derivation.now(time)
    starts = [now, *(formulas.before(sums.time, now, within) for within in sums.windows)]
    of_examples = [
        sql(
            "SELECT {keys}, {crowd}, {start} AS x, 0 AS is_row, {time}, {number} AS cut FROM q",
            keys=joined(", ", keys),
            crowd=CROWD,
            start=start,
            time=time,
            number=number,
        )
        for number, start in enumerate(starts)
    ]
    stream = sql(
        "{examples} UNION ALL SELECT {nothing}, {crowd}, {moment}, 1, NULL, NULL FROM c",
        examples=joined(" UNION ALL ", of_examples),
        nothing=joined(", ", [sql("NULL")] * len(keys)),
        crowd=CROWD,
        moment=MOMENT,
    )
    ranked = sql(
        "SELECT s.*, {start}"
        " + sum(is_row) OVER (PARTITION BY {crowd} ORDER BY x, is_row ROWS UNBOUNDED PRECEDING) AS n FROM ({stream}) s",
        start=START,
        crowd=CROWD,
        stream=stream,
    )
    counts = [sql("max(n) FILTER (WHERE cut = {number}) AS n{number}", number=number) for number in range(len(starts))]
    return sql(
        "SELECT {keys}, {time}, {counts} FROM ({ranked}) s WHERE is_row = 0 AND x IS NOT NULL GROUP BY {keys}, {time}",
        keys=joined(", ", keys),
        time=time,
        counts=joined(", ", counts),
        ranked=ranked,
    )


def _beside(number: int) -> Sql:
    return sql(" LEFT JOIN c AS c{number} ON c{number}.{place} = p.n{number}", number=number, place=PLACE)


def _latest(derivation: Derivation, one: ManyRows) -> Sql:
    """The arrays of the latest rows of each example."""
    assert one.latest is not None
    keys, time, raw = derivation.plain_keys_of(one.path), derivation.time_name, _raw(one)
    step = derivation.timed(one.path)
    assert step is not None
    now = sql("p.{time}", time=time)

    def value_of(place: RelatedPlace) -> Sql:
        value = sql("c.w{place}", place=raw.index((place.path, place.column)))
        return derivation.known(place, value, now)

    age = formulas.between(derivation.time_of(step), sql("c.{moment}", moment=MOMENT), derivation.now(now))
    numbers, codes = derivation.arrays(one, age, value_of)
    names = [sql("p.{name}", name=name) for name in [*keys, time]]
    read = sql(
        "SELECT {names}, g.n, {numbers} AS v0, {codes} AS v1 FROM p"
        " CROSS JOIN pg_catalog.generate_series(1, {most}) AS g (n)"
        " JOIN c ON c.{place} = p.n0 - g.n + 1",
        names=joined(", ", names),
        numbers=numbers,
        codes=codes,
        most=one.latest.rows,
        place=PLACE,
    )
    return sql(
        "SELECT {names}, {arrays} FROM ({read}) r GROUP BY {names}",
        names=joined(", ", [*keys, time]),
        arrays=joined(", ", gathered(one)),
        read=read,
    )
