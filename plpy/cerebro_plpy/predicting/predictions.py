"""The caller's table of predictions, made from the answers in a staging table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cerebro_db.core.names import Name
from cerebro_db.core.packing.layout import Variable
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql

from .. import platform
from ..database.access import Database
from ..database.relations import Column


def write_classes(
    db: Database,
    staged: Sql,
    output: Name,
    identity: Column,
    labels: dict[str, list[str | None]],
    *,
    ranks: bool,
    above: float | None,
) -> None:
    """A row for each id, output and class.  The trainer has chosen the classes, except by a lowest probability."""
    known = [
        {"output": place, "class_name": name, "labels": classes} for place, (name, classes) in enumerate(labels.items())
    ]
    db.patiently(
        sql(
            """
        CREATE TABLE {output} AS
        SELECT id::{type} AS {name}, class_name, labels[1 + class::integer] AS class_value,
               prob::double precision AS prob{rank}
          FROM (SELECT unnest(s.ids) AS id, o.class_name, o.labels, a.rank,
                       unnest(cerebro_internal._reals(a.classes)) AS class,
                       unnest(cerebro_internal._reals(a.numbers)) AS prob
                  FROM {staged} s
                 CROSS JOIN LATERAL unnest(s.answers) AS a
                  JOIN jsonb_to_recordset(($1::text[])[1]::jsonb)
                       AS o (output integer, class_name text, labels text[]) USING (output)) answer
         WHERE {wanted}
        {distributed_by}
        """,
            output=output.sql,
            type=identity.cast,
            name=identifier(identity.name),
            rank=sql(", rank") if ranks else sql(""),
            staged=staged,
            wanted=sql("true") if above is None else sql("prob::double precision > {above}", above=above),
            distributed_by=platform.of(db).distributed_by(identity.name),
        ),
        [json.dumps(known)],
    )


def write_values(db: Database, staged: Sql, output: Name, identity: Column, outputs: Sequence[Variable]) -> None:
    """Regression: the numbers themselves, one column per dependent variable."""
    columns: list[Sql] = []
    numbers: list[Sql] = []
    calls: list[Sql] = []
    for place, variable in enumerate(outputs):
        width = sql("(cardinality(n{place}) / rows)", place=place)
        if variable.shape == (1,):
            value = sql("n{place}[1 + (place - 1) * {width}]::double precision", place=place, width=width)
        else:
            value = sql(
                "n{place}[1 + (place - 1) * {width} : place * {width}]::double precision[]", place=place, width=width
            )
        columns.append(sql(", {value} AS {name}", value=value, name=identifier("estimated_" + variable.name)))
        numbers.append(sql(", a{place}.numbers AS n{place}", place=place))
        # A function in FROM is called once for all rows of a chunk.
        chosen = sql("SELECT a.numbers FROM unnest(s.answers) AS a WHERE a.output = {place}", place=place)
        calls.append(
            sql(
                " CROSS JOIN LATERAL cerebro_internal._reals(({chosen})) AS a{place} (numbers)",
                chosen=chosen,
                place=place,
            )
        )
    db.patiently(
        sql(
            "CREATE TABLE {output} AS SELECT id::{type} AS {name}{columns}"
            " FROM (SELECT unnest(s.ids) AS id, generate_series(1, s.rows) AS place, s.rows{numbers}"
            " FROM {staged} s{calls}) answer"
            " {distributed_by}",
            output=output.sql,
            type=identity.cast,
            name=identifier(identity.name),
            columns=joined("", columns),
            numbers=joined("", numbers),
            staged=staged,
            calls=joined("", calls),
            distributed_by=platform.of(db).distributed_by(identity.name),
        )
    )


@dataclass(frozen=True)
class Lines:
    """The answers for the rows of a chunk, line by line: for each output and rank the classes and the numbers.

    ``top``: how many rows the table has for each row; ``wide``: of the outputs whose lines are all read.
    """

    outputs: Sequence[dict[str, Any]]
    top: int
    wide: Sequence[int]

    def of(self, place: int, line: dict[str, Any]) -> list[Sql]:
        """The lines of an output, as columns: c0_1, n0_1 and so on."""
        if line["labels"] is None:
            found = [_line("numbers", "n", place, 1, sql("true"))]
            return [*found, *(_quantile(place, number) for number in range(len(line["quantiles"] or ())))]
        if self.top > 1:
            wanted = [(1, sql("a.rank = g.rank"))]
        else:
            ranks = range(1, len(line["labels"]) + 1) if place in self.wide else (1,)
            wanted = [(rank, sql("a.rank = {rank}", rank=rank)) for rank in ranks]
        return [
            _line(what, letter, place, rank, condition)
            for rank, condition in wanted
            for what, letter in (("classes", "c"), ("numbers", "n"))
        ]

    def by_class(self, place: int) -> Sql:
        """The probabilities of all classes of a wide output in the order of the classes, as the column p0 and so on."""
        ranks = range(1, len(self.outputs[place]["labels"]) + 1)
        classes, numbers = (
            joined(", ", [identifier(f"{letter}{place}_{rank}") for rank in ranks]) for letter in ("c", "n")
        )
        return sql(
            ", ARRAY(SELECT u.number FROM unnest(ARRAY[{classes}], ARRAY[{numbers}]) AS u (class, number)"
            " ORDER BY u.class) AS {name}",
            classes=classes,
            numbers=numbers,
            name=identifier(f"p{place}"),
        )


def _quantile(place: int, number: int) -> Sql:
    """The quantile with this number of all rows: the quantiles of an output lie one after the other."""
    return sql(
        ", unnest((SELECT r.numbers[1 + {number} * pg_catalog.cardinality(s.ids) :"
        " (1 + {number}) * pg_catalog.cardinality(s.ids)]"
        " FROM (SELECT cerebro_internal._reals(a.classes) AS numbers"
        " FROM unnest(s.answers) AS a WHERE a.output = {place} OFFSET 0) r)) AS {name}",
        number=number,
        place=place,
        name=identifier(f"q{place}_{number}"),
    )


def _line(what: str, letter: str, place: int, rank: int, condition: Sql) -> Sql:
    return sql(
        ", unnest(cerebro_internal._reals((SELECT a.{what} FROM unnest(s.answers) AS a WHERE a.output = {place}"
        " AND {condition}))) AS {name}",
        what=identifier(what),
        place=place,
        condition=condition,
        name=identifier(f"{letter}{place}_{rank}"),
    )


def write_rows(
    db: Database, staged: Sql, output: Name, columns: Sequence[Sql], lines: Lines, distributed: str | None
) -> None:
    """The table of ``cerebro.predict_into``: a row for each row that was predicted, or for each rank of its classes.

    ``columns``: with their names, over ``r`` (the texts ``k`` of the row's id, the rank, the lines, and the
    probabilities by class) and the outputs ``o0`` and so on.
    """
    read = sql("SELECT o.labels, o.edges, o.halves FROM jsonb_to_recordset(($1::text[])[1]::jsonb) AS o"
               " (output integer, labels text[], edges double precision[], halves double precision[])")  # fmt: skip
    described = [
        sql(" CROSS JOIN ({read} WHERE o.output = {place}) AS o{place}", read=read, place=place)
        for place in range(len(lines.outputs))
    ]
    rows = sql(
        "SELECT unnest(s.ids)::text[] AS k, g.rank{numbers}"
        " FROM {staged} s CROSS JOIN generate_series(1, {top}) AS g (rank)",
        numbers=joined("", [one for place, line in enumerate(lines.outputs) for one in lines.of(place, line)]),
        staged=staged,
        top=lines.top,
    )
    if lines.wide:  # OFFSET: else the planner would sort the classes again for each column
        arrays = joined("", map(lines.by_class, lines.wide))
        rows = sql("SELECT q.*{arrays} FROM ({rows}) q OFFSET 0", arrays=arrays, rows=rows)
    db.patiently(
        sql(
            "CREATE TABLE {output} AS SELECT {listed} FROM ({rows}) r{described} WHERE r.k IS NOT NULL"
            " {distributed_by}",  # steps without an id fill a window
            output=output.sql,
            listed=joined(", ", columns),
            rows=rows,
            described=joined("", described),
            distributed_by=platform.of(db).distributed_by(distributed),
        ),
        [json.dumps(lines.outputs)],
    )
