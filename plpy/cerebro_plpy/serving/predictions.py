"""The caller's table of predictions, made from the answers in a staging table."""

from __future__ import annotations

import json
from collections.abc import Sequence

from cerebro_db.core.layout import Variable
from cerebro_db.core.names import Name, quote

from .. import platform
from ..database.access import Database
from ..database.relations import Column


def write_classes(
    db: Database,
    staged: str,
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
        f"""
        CREATE TABLE {output.sql} AS
        SELECT id::{identity.type} AS {quote(identity.name)}, class_name, labels[1 + class::integer] AS class_value,
               prob::double precision AS prob {", rank" if ranks else ""}
          FROM (SELECT unnest(s.ids) AS id, o.class_name, o.labels, a.rank,
                       unnest(cerebro._reals(a.classes)) AS class, unnest(cerebro._reals(a.numbers)) AS prob
                  FROM {staged} s
                 CROSS JOIN LATERAL unnest(s.answers) AS a
                  JOIN jsonb_to_recordset(($1::text[])[1]::jsonb)
                       AS o (output integer, class_name text, labels text[]) USING (output)) answer
         WHERE {"true" if above is None else f"prob::double precision > {above!r}"}
        {platform.of(db).distributed_by(quote(identity.name))}
        """,
        [json.dumps(known)],
    )


def write_values(db: Database, staged: str, output: Name, identity: Column, outputs: Sequence[Variable]) -> None:
    """Regression: the numbers themselves, one column per dependent variable."""
    columns, numbers, joined = "", "", ""
    for place, variable in enumerate(outputs):
        width = f"(cardinality(n{place}) / rows)"
        if variable.shape == (1,):
            value = f"n{place}[1 + (place - 1) * {width}]::double precision"
        else:
            value = f"n{place}[1 + (place - 1) * {width} : place * {width}]::double precision[]"
        columns += f", {value} AS {quote('estimated_' + variable.name)}"
        numbers += f", a{place}.numbers AS n{place}"
        # A function in FROM is called once for all rows of a chunk.
        chosen = f"SELECT a.numbers FROM unnest(s.answers) AS a WHERE a.output = {place}"
        joined += f" CROSS JOIN LATERAL cerebro._reals(({chosen})) AS a{place} (numbers)"
    db.patiently(
        f"CREATE TABLE {output.sql} AS SELECT id::{identity.type} AS {quote(identity.name)}{columns}"
        f" FROM (SELECT unnest(s.ids) AS id, generate_series(1, s.rows) AS place, s.rows{numbers}"
        f" FROM {staged} s{joined}) answer"
        f" {platform.of(db).distributed_by(quote(identity.name))}"
    )
