"""``cerebro.propagate``: each node of a graph gets the weighted sums of its neighbours' values as columns.

Hop k of a column holds what hop k - 1 holds of the neighbours; hop 0 is the column itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cerebro_db.core.errors import InvalidArgument, UndefinedTable, WrongState
from cerebro_db.core.names import Name, split_list, written_list
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, literal, sql
from cerebro_db.core.texts import counted

from .. import platform
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Column, Relation
from . import graph_tables, propagated_columns
from .graph_tables import EdgeColumns, Rules, Workspace
from .propagated_columns import Slice, name_at

SUMMARY = "_summary"  # ending of the table with the arguments
NEIGHBOURS = "_neighbours"  # ending of the table that tells whose neighbours have changed
MOST_HOPS = 10
SAME = 1e-12  # two fingerprints that differ by less, relatively, are the same sum in another order


@dataclass(frozen=True)
class PropagateArguments:
    """Those of ``cerebro.propagate``."""

    source_table: str | None
    edges_table: str | None
    output_table: str | None
    target: str | None = None
    columns: str | None = None
    hops: int | None = 2
    normalization: str | None = graph_tables.SYMMETRIC
    key: str | None = "id"
    edge_source: str | None = "source"
    edge_target: str | None = "target"
    edge_weight: str | None = None
    undirected: bool | None = True
    self_loops: bool | None = True
    append: bool | None = False


@dataclass(frozen=True)
class WantedPropagation:
    """The arguments, checked against the tables."""

    source: Relation
    present: dict[str, Column]
    key: Column
    columns: list[Column]
    slices: list[Slice]
    hops: int
    edges: EdgeColumns
    rules: Rules

    @property
    def names(self) -> list[str]:
        """The columns of the output table."""
        return [*self.present, *(name_at(one, hop) for hop in range(1, self.hops + 1) for one in self.columns)]

    @property
    def recorded(self) -> dict[str, str | None]:
        """What the summary has, as texts."""
        edges, rules = self.edges, self.rules
        return {
            "source_table": str(self.source.name),
            "edges_table": str(edges.table.name),
            "key": self.key.name,
            "edge_source": edges.source.name,
            "edge_target": edges.target.name,
            "edge_weight": edges.weight.name if edges.weight else None,
            "columns": written_list(one.name for one in self.columns),
            "hops": str(self.hops),
            "normalization": rules.normalization,
            "undirected": str(rules.undirected).lower(),
            "self_loops": str(rules.self_loops).lower(),
        }


@entry
def propagate(db: Database, **arguments: Any) -> int:
    """Write the output table, or bring it up to date; return the number of rows written."""
    given = PropagateArguments(**arguments)
    if given.append:
        return _append(db, given)
    output = relations.new(db, given.output_table, (SUMMARY, NEIGHBOURS))
    wanted = _checked(db, given)
    work = Workspace(db)
    nodes = graph_tables.nodes(work, wanted.source, wanted.key)
    edges = graph_tables.factors(work, nodes, wanted.edges, wanted.rules)
    levels = _levels(work, wanted, edges, nodes)
    db.patiently(
        sql(
            "CREATE TABLE {output} AS {rows} {by}",
            output=output.sql,
            rows=_rows(wanted, nodes, levels),
            by=platform.of(db).distributed_by(wanted.key.name),
        )
    )
    db.patiently(sql("ALTER TABLE {output} ADD PRIMARY KEY ({key})", output=output.sql, key=_key(wanted)))
    _record(db, wanted, output, graph_tables.fingerprints(work, nodes, edges))
    rows = _count(db, sql("SELECT count(*) AS rows FROM {nodes}", nodes=nodes))
    work.drop()
    if given.columns is None:
        db.notice(f"the columns {written_list(one.name for one in wanted.columns)} are propagated")
    return rows


# -- the arguments ------------------------------------------------------------------------------------------------


def _checked(db: Database, given: PropagateArguments) -> WantedPropagation:
    if given.hops is None or not 1 <= given.hops <= MOST_HOPS:
        raise InvalidArgument(f"hops is {_shown(given.hops)}; it must be from 1 to {MOST_HOPS}.")
    if given.normalization not in graph_tables.NORMALISATIONS:
        raise InvalidArgument(
            f"normalization is {_shown(given.normalization)}; it must be 'symmetric' or 'row'.",
            hint="row takes the mean of the neighbours. symmetric also counts neighbours with many edges less.",
        )
    for name in ("undirected", "self_loops"):
        if getattr(given, name) is None:
            raise InvalidArgument(f"{name} is NULL; it must be true or false.")
    source = relations.filled(db, given.source_table)
    table = relations.existing(db, given.edges_table, argument="edges_table")
    present = relations.columns(db, source)
    key = _column(db, source, given.key, "key")
    edges = EdgeColumns(
        table,
        _column(db, table, given.edge_source, "edge_source"),
        _column(db, table, given.edge_target, "edge_target"),
        None if given.edge_weight is None else _column(db, table, given.edge_weight, "edge_weight"),
    )
    _require_types(key, edges)
    columns = propagated_columns.chosen(db, source, present, key.name, given.columns, given.target)
    propagated_columns.require_names(source, present, columns, given.hops)
    relations.require_readable(db, source, present.values())
    slices = propagated_columns.slices(db, source, key, columns)
    rules = Rules(given.normalization, bool(given.undirected), bool(given.self_loops))
    return WantedPropagation(
        source=source,
        present=present,
        key=key,
        columns=columns,
        slices=slices,
        hops=given.hops,
        edges=edges,
        rules=rules,
    )


def _shown(value: object) -> str:
    return "NULL" if value is None else repr(value)


def _column(db: Database, table: Relation, name: str | None, argument: str) -> Column:
    names = split_list(name, argument)
    if len(names) != 1:
        raise InvalidArgument(f"{argument} names {len(names)} columns; it takes one.")
    (column,) = relations.require_columns(db, table, names, f"The argument {argument} names a column.")
    return column


def _require_types(key: Column, edges: EdgeColumns) -> None:
    """An error unless the ends of edges can be compared with the key."""
    for column, argument in ((edges.source, "edge_source"), (edges.target, "edge_target")):
        alike = column.category == key.category and key.category in "NS"
        if column.type != key.type and not alike:
            raise InvalidArgument(
                f"{argument}: '{column.name}' has the type {column.shown}, and the key '{key.name}' has {key.shown}.",
                hint="A view can convert one of them.",
            )
    if edges.weight is not None and edges.weight.category != "N":
        raise InvalidArgument(f"edge_weight: '{edges.weight.name}' has the type {edges.weight.shown}, not a number.")


# -- the values ---------------------------------------------------------------------------------------------------


def _key(wanted: WantedPropagation) -> Sql:
    return identifier(wanted.key.name)


def _levels(
    work: Workspace,
    wanted: WantedPropagation,
    edges: Sql,
    nodes: Sql,
    stored: Callable[[int, Slice], Sql] | None = None,
    only: Sql | None = None,
) -> list[list[Sql]]:
    """For each slice, its tables after 1, 2, … hops.

    ``stored``: a query of values that are not computed again.  ``only``: a condition on the nodes ``b`` whose own
    values are needed.
    """
    found = []
    for one in wanted.slices:
        query = sql(
            "SELECT b.n, {values} AS a FROM {rows} AS s JOIN {nodes} b ON b.key = s.{key}{only}",
            values=one.values(sql("s"), 0),
            rows=wanted.source.rows,
            nodes=nodes,
            key=_key(wanted),
            only=only or sql(""),
        )
        before, tables = work.table(query, "n"), []
        for hop in range(1, wanted.hops + 1):
            tables.append(graph_tables.hop(work, edges, before, one.width))
            before = tables[-1]
            if stored is not None and hop < wanted.hops:
                both = sql("SELECT n, a FROM {made} UNION ALL {stored}", made=before, stored=stored(hop, one))
                before = work.table(both, "n")
        found.append(tables)
    return found


def _rows(wanted: WantedPropagation, nodes: Sql, levels: Sequence[Sequence[Sql]], chosen: Sql | None = None) -> Sql:
    """The query of the output table's rows; ``chosen``: a table with the numbers of some nodes."""
    values = [sql("s.{name}", name=identifier(name)) for name in wanted.present]
    joins = [sql("JOIN {chosen} c ON c.n = b.n", chosen=chosen)] if chosen is not None else []
    for hop in range(1, wanted.hops + 1):
        for number, tables in enumerate(levels):
            joins.append(
                sql(
                    "LEFT JOIN {table} h{hop}_{number} ON h{hop}_{number}.n = b.n",
                    table=tables[hop - 1],
                    hop=hop,
                    number=number,
                )
            )
        values += [
            sql("{value} AS {name}", value=_value(wanted, one, hop), name=identifier(name_at(one, hop)))
            for one in wanted.columns
        ]
    return sql(
        "SELECT {values} FROM {rows} AS s JOIN {nodes} b ON b.key = s.{key} {joins}",
        values=joined(", ", values),
        rows=wanted.source.rows,
        nodes=nodes,
        key=_key(wanted),
        joins=joined(" ", joins),
    )


def _value(wanted: WantedPropagation, column: Column, hop: int) -> Sql:
    """The value of a column after some hops; 0 for a node without neighbours."""
    parts = []
    for number, place in propagated_columns.places(wanted.slices, column):
        if column.element is None:
            return sql("COALESCE(h{hop}_{number}.a[{place}], 0)", hop=hop, number=number, place=place)
        parts.append(
            sql(
                "COALESCE(h{hop}_{number}.a, pg_catalog.array_fill(0::double precision, ARRAY[{width}]))",
                hop=hop,
                number=number,
                width=wanted.slices[number].width,
            )
        )
    return joined(" || ", parts)


def _record(db: Database, wanted: WantedPropagation, output: Name, prints: Sql) -> None:
    """Make the summary, and the table by which a later call sees what has changed."""
    values = joined(
        ", ",
        (
            sql(
                "{value}::text AS {name}",
                value=sql("NULL") if value is None else literal(value),
                name=identifier(name),
            )
            for name, value in wanted.recorded.items()
        ),
    )
    by = platform.of(db).distributed_by
    db.execute(
        sql(
            "CREATE TABLE {name} AS SELECT {values} {by}",
            name=output.suffixed(SUMMARY).sql,
            values=values,
            by=by("source_table"),
        )
    )
    db.patiently(
        sql(
            "CREATE TABLE {name} AS SELECT key, f AS fingerprint FROM {prints} {by}",
            name=output.suffixed(NEIGHBOURS).sql,
            prints=prints,
            by=by("key"),
        )
    )


def _count(db: Database, query: Sql) -> int:
    (found,) = db.scan(query)
    return int(found["rows"])


# -- new nodes and edges ------------------------------------------------------------------------------------------


def _append(db: Database, given: PropagateArguments) -> int:
    """Write the rows of new nodes, and those that differ because of changed nodes and edges."""
    output = relations.existing(db, given.output_table, argument="output_table")
    db.patiently(sql("LOCK TABLE {output} IN SHARE ROW EXCLUSIVE MODE", output=output.sql))  # no two of them at a time
    wanted = _checked(db, given)
    _require_own(db, output)
    _require_same(db, wanted, output)
    work = Workspace(db)
    nodes = graph_tables.nodes(work, wanted.source, wanted.key)
    edges = graph_tables.factors(work, nodes, wanted.edges, wanted.rules)
    prints = graph_tables.fingerprints(work, nodes, edges)
    affected = _affected(work, wanted, output, nodes, edges, prints)
    into = work.table(
        sql("SELECT e.s, e.t, e.c FROM {edges} e JOIN {affected} c ON c.n = e.t", edges=edges, affected=affected), "s"
    )
    needed = work.table(sql("SELECT s AS n FROM {into} GROUP BY s", into=into), "n")

    def stored(hop: int, one: Slice) -> Sql:
        return sql(
            "SELECT b.n, {values} FROM {output} o JOIN {nodes} b ON b.key = o.{key}"
            " JOIN {needed} q ON q.n = b.n WHERE b.n NOT IN (SELECT c.n FROM {affected} c)",
            values=one.values(sql("o"), hop),
            output=output.sql,
            nodes=nodes,
            key=_key(wanted),
            needed=needed,
            affected=affected,
        )

    levels = _levels(work, wanted, into, nodes, stored, sql(" JOIN {needed} q ON q.n = b.n", needed=needed))
    before = _count(db, sql("SELECT count(*) AS rows FROM {output}", output=output.sql))
    gone = _delete(db, output.name, _key(wanted), nodes, affected)
    _delete(db, output.name.suffixed(NEIGHBOURS), sql("key"), nodes, affected)
    written = _count(db, sql("SELECT count(*) AS rows FROM {affected}", affected=affected))
    added = _count(db, sql("SELECT count(*) AS rows FROM {nodes}", nodes=nodes)) - (before - gone)
    db.patiently(
        sql(
            "INSERT INTO {output} ({names}) {rows}",
            output=output.sql,
            names=joined(", ", map(identifier, wanted.names)),
            rows=_rows(wanted, nodes, levels, affected),
        )
    )
    db.patiently(
        sql(
            "INSERT INTO {output} (key, fingerprint) SELECT p.key, p.f FROM {prints} p JOIN {affected} c ON c.n = p.n",
            output=output.name.suffixed(NEIGHBOURS).sql,
            prints=prints,
            affected=affected,
        )
    )
    work.drop()
    db.notice(f"{counted(added, 'row')} of '{output.text}' new, {written - added:,} computed again, {gone:,} removed")
    return written


def _require_own(db: Database, output: Relation) -> None:
    """The triggers of a table run with the rights of whoever writes into it."""
    for ending in ("", SUMMARY, NEIGHBOURS):
        table = relations.beside(db, output, ending)
        if table is not None:
            relations.require_own(db, table, "bring it up to date")


def _require_same(db: Database, wanted: WantedPropagation, output: Relation) -> None:
    """An error unless the table was made with the same arguments and the same columns."""
    summary = relations.beside(db, output, SUMMARY)
    if summary is None or relations.beside(db, output, NEIGHBOURS) is None:
        raise UndefinedTable(
            f"append: '{output.text}' has no tables {SUMMARY} and {NEIGHBOURS} beside it.",
            hint="Only a table that cerebro.propagate has made can be brought up to date.",
        )
    recorded = wanted.recorded
    if not relations.columns(db, summary).keys() >= recorded.keys():
        raise WrongState(f"append: '{summary.name}' is no summary of cerebro.propagate.")
    names = joined(", ", map(identifier, recorded))
    rows = db.scan(sql("SELECT {names} FROM {summary} LIMIT 1", names=names, summary=summary.sql))
    made = rows[0] if rows else {}
    for name, value in recorded.items():
        if made.get(name) != value:
            raise InvalidArgument(
                f"append: '{output.text}' was made with {name} = {made.get(name) or 'NULL'}, and this call has"
                f" {value or 'NULL'}.",
                hint="Give the same arguments, or make another table.",
            )
    if list(relations.columns(db, output)) != wanted.names:
        raise WrongState(
            f"append: the columns of '{wanted.source.text}' are not those from which '{output.text}' was made.",
            hint="Make a new table.",
        )


def _affected(work: Workspace, wanted: WantedPropagation, output: Relation, nodes: Sql, edges: Sql, prints: Sql) -> Sql:
    """The numbers of the nodes whose rows are written: those within so many hops of what has changed."""
    propagated = {one.name for one in wanted.columns}
    both = sql(
        "FROM {rows} AS s JOIN {nodes} b ON b.key = s.{key} LEFT JOIN {output} o ON o.{key} = b.key",
        rows=wanted.source.rows,
        nodes=nodes,
        key=_key(wanted),
        output=output.sql,
    )
    changed = work.table(
        sql(
            "SELECT b.n {both} WHERE o.{key} IS NULL OR {differ}",
            both=both,
            key=_key(wanted),
            differ=joined(" OR ", (_differs(one.name, as_text=one.vector is not None) for one in wanted.columns)),
        ),
        "n",
    )
    others = [name for name in wanted.present if name not in propagated]
    found = work.table(
        sql(
            "SELECT n FROM {changed} UNION SELECT e.t FROM {edges} e JOIN {changed} c ON c.n = e.s"
            " UNION SELECT p.n FROM {prints} p LEFT JOIN {neighbours} q ON q.key = p.key"
            " WHERE q.fingerprint IS NULL"
            " OR abs(p.f - q.fingerprint) > {same} * greatest(abs(p.f), abs(q.fingerprint))",
            changed=changed,
            edges=edges,
            prints=prints,
            neighbours=output.name.suffixed(NEIGHBOURS).sql,
            same=SAME,
        ),
        "n",
    )
    for _ in range(1, wanted.hops):
        found = work.table(
            sql(
                "SELECT n FROM {found} UNION SELECT e.t FROM {edges} e JOIN {found} c ON c.n = e.s",
                found=found,
                edges=edges,
            ),
            "n",
        )
    # Rows of which only other columns differ: nothing of their neighbours changes.
    differ = joined(" OR ", (_differs(name, as_text=True) for name in others))
    return work.table(
        sql("SELECT n FROM {found} UNION SELECT b.n {both} WHERE {differ}", found=found, both=both, differ=differ), "n"
    )


def _differs(name: str, *, as_text: bool = False) -> Sql:
    """Whether a column differs; ``as_text``: by its text, because not every type can be compared."""
    kind = sql("::text") if as_text else sql("")
    return sql("(s.{n}){kind} IS DISTINCT FROM (o.{n}){kind}", n=identifier(name), kind=kind)


def _delete(db: Database, table: Name, key: Sql, nodes: Sql, affected: Sql) -> int:
    """Delete the rows that are written again, and those of nodes that are gone; return the number of the latter."""
    where = sql("NOT EXISTS (SELECT FROM {nodes} b WHERE b.key = o.{key})", nodes=nodes, key=key)
    gone = _count(db, sql("SELECT count(*) AS rows FROM {table} o WHERE {where}", table=table.sql, where=where))
    db.patiently(sql("DELETE FROM {table} o WHERE {where}", table=table.sql, where=where))
    db.patiently(
        sql(
            "DELETE FROM {table} o USING {nodes} b JOIN {affected} c ON c.n = b.n WHERE b.key = o.{key}",
            table=table.sql,
            nodes=nodes,
            affected=affected,
            key=key,
        )
    )
    return gone
