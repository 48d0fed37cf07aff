"""How the rows of a query are read for a model: what is decided once for all queries with the same columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cerebro_db.core.errors import BadData
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql

from ..database.relations import Relation
from ..packing.rows import buffers, unseen_values
from ..packing.rows.preparation import SourceVariable, expression
from . import keys_and_outputs
from .chunks import at_a_time, bytes_per_row, gathered_arrays

if TYPE_CHECKING:
    from cerebro_db.core.protocol import BeginPrediction, BestClasses

    from ..models.calibrations import Applied
    from ..packing.related.reading import RelatedRows
    from ..packing.rows.unseen_values import Surprise


@dataclass
class Reading:
    """How the rows of a query with certain columns are read for a model, and what is made of its answers."""

    keys: dict[str, Sql]  # what may be the key of a row, as text, by its name
    inputs: list[SourceVariable]
    best: BestClasses | None
    outputs: str
    chunk: int  # rows; a chunk with fewer is the last one
    stored: Sql  # of each row: k0 … (the keys) and what the inputs are made of
    gathered: Sql  # of each chunk: rows, variables, ids0 … (the keys), n0 … (NULLs in what is filled), s0 … (the news)
    filled: list[str]  # what must not be NULL, in the words of an error
    news: list[Surprise]  # what is looked for in the rows
    order: BeginPrediction | None = None
    steps: int = 0  # of a window, each with a key and a prediction of its own
    fills: bool = False  # whether steps without a key fill a window
    beside: RelatedRows | None = None  # what gives the rows the columns of related tables
    mark: str | None = None  # of these tables
    plan: Any = None  # of ``few``, which takes longer to plan than to run

    def query(self, source: Relation) -> Sql:
        """The chunks of the rows of the caller's query."""
        if self.beside is not None:
            source = self.beside.rows_of(source)
        return self._chunks(source.rows)

    def _chunks(self, rows: Sql) -> Sql:
        return sql(
            "SELECT {gathered} FROM (SELECT {stored}, (row_number() OVER () - 1) / {chunk} AS turn"
            " FROM {rows} AS s ORDER BY turn) r GROUP BY turn ORDER BY turn",
            gathered=self.gathered,
            stored=self.stored,
            chunk=self.chunk,
            rows=rows,
        )

    @property
    def few(self) -> Sql | None:
        """As ``query``, of few rows: a statement whose parameter is their query.  None: it would not be the same."""
        if self.beside is None:
            return None
        columns = self.beside.passed
        if columns is None:
            return None
        listed = [sql("{name} {kind}", name=identifier(one.name), kind=one.cast) for one in columns]
        rows = sql("(SELECT * FROM cerebro_internal._rows_of($1) AS q ({listed}))", listed=joined(", ", listed))
        return self._chunks(sql("({query})", query=self.beside.query(rows)))

    def passed(self, rows: Sql) -> Sql:
        """The query that is the parameter of ``few``.  ``rows``: what stands after FROM."""
        assert self.beside is not None
        listed = [sql("q.{name}::{kind}", name=identifier(one.name), kind=one.cast) for one in self.beside.passed or ()]
        return sql("SELECT {listed} FROM {rows} AS q", listed=joined(", ", listed), rows=rows)

    def require_sound(self, chunk: dict[str, Any], ids: list[str | None], source: str) -> None:
        """An error if a row of a chunk cannot be predicted."""
        nulls = {name: chunk[f"n{place}"] for place, name in enumerate(self.filled)}
        of_key = 0 if self.fills else ids.count(None)
        for name, rows in {"the key": of_key, **nulls}.items():
            if rows:
                raise BadData(
                    f"{rows} rows have a NULL in {name}.", hint="Leave them out of the query, or fill them in."
                )
        unseen_values.require_none(self.news, chunk, source)


def reading_of(
    trained: Layout,
    inputs: list[SourceVariable],
    keys: dict[str, Sql],
    best: BestClasses | None,
    applied: Applied | None = None,
    *,
    key_bytes: int = 0,
    chosen: Sequence[Sequence[str | None]] = (),
    timed: bool = False,
) -> Reading:
    """How rows with these inputs and keys are read.  ``best``: None: the outputs themselves.

    ``key_bytes``: the size of a long key.  ``chosen``, ``timed``: as in ``keys_and_outputs.outputs_as_lines``.
    """
    names = list({column.name: None for variable in inputs for column in variable.columns})
    alias = {name: sql("c{place}", place=place) for place, name in enumerate(names)}
    filled = buffers.filled_columns(inputs)
    news = unseen_values.of(inputs, lambda column: alias[column.name])
    arrays = [expression(variable, lambda column: alias[column.name]) for variable in inputs]
    ids = [sql("array_agg(k{place}) AS ids{place}", place=place) for place in range(len(keys))]
    nulls = [
        sql("count(*) FILTER (WHERE {name} IS NULL) AS n{place}", name=alias[name], place=place)
        for place, name in enumerate(filled)
    ]
    stored = [
        *(sql("{key} AS k{place}", key=key, place=place) for place, key in enumerate(keys.values())),
        *(sql("{name} AS {alias}", name=identifier(name), alias=one) for name, one in alias.items()),
    ]
    return Reading(
        keys=keys,
        inputs=inputs,
        best=best,
        outputs=json.dumps(keys_and_outputs.outputs_as_lines(trained.outputs, applied, chosen, timed=timed)),
        chunk=at_a_time(bytes_per_row(trained) + key_bytes * (trained.steps or 1)),
        stored=joined(", ", stored),
        gathered=joined(
            ", ", [sql("count(*) AS rows"), gathered_arrays(arrays), *ids, *nulls, *unseen_values.counts(news)]
        ),
        filled=[f"column '{name}'" for name in filled],
        news=news,
        steps=trained.steps,
        fills=trained.windows is not None and trained.windows.rest != "drop",
    )
