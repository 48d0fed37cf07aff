"""Columns of examples with few related rows each: the rows of each example are joined, and added up."""

from __future__ import annotations

from cerebro_db.core.packing.related import ManyRows
from cerebro_db.core.sql import Sql, identifier, joined, literal, sql

from . import formulas
from .derivation import Derivation, last_values
from .formulas import Sums, Within
from .latest_arrays import gathered


def aggregated(derivation: Derivation, one: ManyRows, examples: Sql) -> Sql:
    """One pass over the rows of a path: all aggregates but the last values."""
    names = joined(", ", derivation.keys_of(one.path))
    return sql(
        "SELECT {keys}, {found} FROM ({rows}) r GROUP BY {keys}",
        keys=names,
        found=joined(", ", derivation.aggregates(one, _OfRows(derivation.fine_of(one.path)))),
        rows=derivation.joined_rows(one.path, examples, list(derivation.read(one).values())),
    )


def latest(derivation: Derivation, one: ManyRows, examples: Sql) -> Sql:
    """The latest rows of a path, and the last values."""
    last, most = last_values(one), 1 if one.latest is None else one.latest.rows
    numbers, codes = derivation.arrays(one, derivation.age(one.path), derivation.value)
    values = [numbers, codes, derivation.order(one), *(derivation.last_value(each, derivation.value) for each in last)]
    names = joined(", ", derivation.keys_of(one.path))
    placed = sql(
        "SELECT r.*, row_number() OVER (PARTITION BY {keys} ORDER BY age, v2) AS n FROM ({rows}) r",
        keys=names,
        rows=derivation.joined_rows(one.path, examples, values),
    )
    found = [
        sql("(pg_catalog.array_agg(v{place}) FILTER (WHERE n = 1))[1] AS {name}",
            place=place, name=identifier(each.name))
        for place, each in enumerate(last, 3)
    ]  # fmt: skip
    return sql(
        "SELECT {keys}, {found} FROM ({placed}) q WHERE n <= {most} GROUP BY {keys}",
        keys=names,
        found=joined(", ", [*found, *gathered(one)]),
        placed=placed,
        most=most,
    )


class _OfRows(Sums):
    """Sums over the joined rows of an example: each of them is there."""

    def __init__(self, fine: int) -> None:
        self.fine = fine

    def rows(self, within: Within) -> Sql:
        return sql("count(*){chosen}", chosen=_chosen(within))

    def known(self, place: int, within: Within) -> Sql:
        return sql("count(v{place}){chosen}", place=place, chosen=_chosen(within))

    def total(self, place: int, what: str, within: Within) -> Sql:
        term = formulas.term(what, sql("v{place}", place=place), sql("t"))
        return sql("sum({term}){chosen}", term=term, chosen=_chosen(within))

    def end(self, place: int, *, largest: bool) -> Sql:
        return sql("{function}(v{place})", function=sql("max") if largest else sql("min"), place=place)

    def equal(self, place: int, value: str, within: Within) -> Sql:
        condition = sql("v{place} = {value}", place=place, value=literal(value))
        if within is not None:
            condition = sql("{condition} AND age <= {within}", condition=condition, within=within)
        return sql("count(*) FILTER (WHERE {condition})", condition=condition)

    def different(self, place: int) -> Sql:
        return sql("count(DISTINCT v{place})", place=place)

    def age(self, *, last: bool) -> Sql:
        return sql("{function}(age)", function=sql("min") if last else sql("max"))


def _chosen(within: Within) -> Sql:
    return sql("") if within is None else sql(" FILTER (WHERE age <= {within})", within=within)
