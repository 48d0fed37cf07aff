"""The caller's table of predictions, made from the answers in a staging table."""

from __future__ import annotations

import json
from collections.abc import Sequence

from cerebro_db.core.names import Name
from cerebro_db.core.packing.layout import Variable
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


def write_rows(db: Database, staged: Sql, output: Name, outputs: str) -> None:
    """The rows that cerebro.predict returns.  ``outputs``: their places, names and labels, as JSON."""
    db.patiently(
        sql(
            """
        CREATE TABLE {output} AS
        SELECT id AS key_value, name AS target,
               CASE WHEN labels IS NULL THEN number::double precision END AS value,
               labels[1 + class::integer] AS class,
               CASE WHEN labels IS NOT NULL THEN number::double precision END AS probability, rank,
               number::double precision - halves[1 + width_bucket(number::double precision, edges)] AS lower,
               number::double precision + halves[1 + width_bucket(number::double precision, edges)] AS upper
          FROM (SELECT unnest(s.ids) AS id, o.name, o.labels, o.edges, o.halves, a.rank,
                       unnest(cerebro_internal._reals(a.classes)) AS class,
                       unnest(cerebro_internal._reals(a.numbers)) AS number
                  FROM {staged} s
                 CROSS JOIN LATERAL unnest(s.answers) AS a
                  JOIN jsonb_to_recordset(($1::text[])[1]::jsonb)
                       AS o (output integer, name text, labels text[], edges double precision[],
                             halves double precision[]) USING (output)) answer
        {distributed_by}
        """,
            output=output.sql,
            staged=staged,
            distributed_by=platform.of(db).distributed_by("key_value"),
        ),
        [outputs],
    )
