"""A graph in temporary tables: numbered nodes, and edges with the factors by which values pass along them.

The database computes everything, so memory is bounded by its settings: what does not fit into work_mem goes to disk.
"""

from __future__ import annotations

from cerebro_db.core.errors import BadData
from cerebro_db.core.names import token
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import Sql, identifier, joined, sql
from cerebro_db.core.texts import counted

from .. import platform
from ..database.access import Database
from ..database.relations import Column, Relation

SYMMETRIC, ROW = "symmetric", "row"
NORMALISATIONS = (SYMMETRIC, ROW)


@dataclass(frozen=True)
class EdgeColumns:
    """The table of edges, and its columns."""

    table: Relation
    source: Column
    target: Column
    weight: Column | None


@dataclass(frozen=True)
class Rules:
    """What the matrix is made of, and how it is normalised."""

    normalization: str
    undirected: bool
    self_loops: bool


class Workspace:
    """The temporary tables of one call.  ``drop`` drops them; after an error the transaction does."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._tables: list[Sql] = []

    def table(self, query: Sql, key: str) -> Sql:
        """A table of a query's rows, on Greenplum distributed by a column, with statistics for the planner."""
        name = identifier(f"cerebro_graph_{token()}")
        by = platform.of(self.db).distributed_by(key)
        self.db.patiently(sql("CREATE TEMPORARY TABLE {name} AS {query} {by}", name=name, query=query, by=by))
        made = sql("pg_temp.{name}", name=name)
        self._tables.append(made)
        self.db.patiently(sql("ANALYZE {made}", made=made))
        return made

    def drop(self) -> None:
        self.db.execute(sql("DROP TABLE {tables}", tables=joined(", ", self._tables)))


def nodes(work: Workspace, source: Relation, key: Column) -> Sql:
    """The nodes: ``n`` from 1, and ``key``.  An error for a key that is NULL or occurs twice."""
    db, name = work.db, identifier(key.name)
    made = work.table(
        sql("SELECT row_number() OVER () AS n, s.{name} AS key FROM {rows} AS s", name=name, rows=source.rows), "n"
    )
    (missing,) = db.scan(sql("SELECT count(*) AS rows FROM {made} WHERE key IS NULL", made=made))
    if missing["rows"]:
        raise BadData(
            f"source_table: the key '{key.name}' of '{source.text}' is NULL in {counted(int(missing['rows']), 'row')}.",
            hint="Each node needs a key of its own.",
        )
    twice = db.scan(
        sql("SELECT min(key::text) AS key FROM {made} GROUP BY {made}.key HAVING count(*) > 1 LIMIT 1", made=made)
    )
    if twice:
        raise BadData(
            f"source_table: '{source.text}' has several rows with the key '{key.name}' = {twice[0]['key']}.",
            hint="Each node needs a key of its own.",
        )
    return made


def factors(work: Workspace, nodes: Sql, edges: EdgeColumns, rules: Rules) -> Sql:
    """The edges ``s``, ``t``, with the factor ``c``: a value of node s counts c times at node t."""
    links = _links(work, nodes, edges)
    pairs = _pairs(work, nodes, links, rules, weighted=edges.weight is not None)
    into = sql("(SELECT t, sum(w) AS d FROM {pairs} GROUP BY t) AS i", pairs=pairs)
    if rules.normalization == ROW:
        return work.table(
            sql("SELECT e.s, e.t, e.w / i.d AS c FROM {pairs} e JOIN {into} USING (t)", pairs=pairs, into=into), "s"
        )
    return work.table(
        sql(
            "SELECT e.s, e.t, e.w / (sqrt(i.d) * sqrt(o.d)) AS c FROM {pairs} e JOIN {into} USING (t)"
            " JOIN (SELECT s, sum(w) AS d FROM {pairs} GROUP BY s) AS o USING (s)",
            pairs=pairs,
            into=into,
        ),
        "s",
    )


def _links(work: Workspace, nodes: Sql, edges: EdgeColumns) -> Sql:
    """The rows of the table of edges, with the numbers of the nodes; an error for one that cannot be used."""
    weight = sql("1") if edges.weight is None else sql("e.{weight}", weight=identifier(edges.weight.name))
    source, target = (sql("e.{name}", name=identifier(one.name)) for one in (edges.source, edges.target))
    joins = sql(
        "FROM {rows} AS e LEFT JOIN {nodes} a ON a.key = {source} LEFT JOIN {nodes} b ON b.key = {target}",
        rows=edges.table.rows,
        nodes=nodes,
        source=source,
        target=target,
    )
    made = work.table(
        sql("SELECT a.n AS s, b.n AS t, {weight}::double precision AS w {joins}", weight=weight, joins=joins), "s"
    )
    wrong_weight = sql("(w IS NULL OR w < 0 OR w IN ('NaN', 'Infinity'))")
    (found,) = work.db.scan(
        sql(
            "SELECT count(*) FILTER (WHERE s IS NULL OR t IS NULL) AS unknown,"
            " count(*) FILTER (WHERE {wrong}) AS wrong FROM {made}",
            wrong=wrong_weight,
            made=made,
        )
    )
    if found["unknown"]:
        example = work.db.scan(
            sql(
                "SELECT {source}::text AS source, {target}::text AS target {joins}"
                " WHERE a.n IS NULL OR b.n IS NULL ORDER BY 1, 2 LIMIT 1",
                source=source,
                target=target,
                joins=joins,
            )
        )
        shown = example[0] if example else {"source": None, "target": None}
        from_, to = ("NULL" if shown[end] is None else shown[end] for end in ("source", "target"))
        raise BadData(
            f"edges_table: {counted(int(found['unknown']), 'edge')} of '{edges.table.text}' name nodes that the source"
            f" table does not have, for instance {edges.source.name} = {from_}, {edges.target.name} = {to}.",
            hint="Add the nodes, or name a view of the edges without these.",
        )
    if found["wrong"] and edges.weight is not None:
        raise BadData(
            f"edge_weight: '{edges.weight.name}' of '{edges.table.text}' is NULL, negative or not finite in"
            f" {counted(int(found['wrong']), 'row')}.",
            hint="A weight is a number from 0 on.",
        )
    return made


def _pairs(work: Workspace, nodes: Sql, links: Sql, rules: Rules, *, weighted: bool) -> Sql:
    """Each pair of connected nodes once: ``s``, ``t`` and the weight ``w``, which is above 0."""
    parts = [sql("SELECT s, t, w FROM {links} WHERE w > 0", links=links)]
    if rules.undirected:
        parts.append(sql("SELECT t, s, w FROM {links} WHERE w > 0 AND s <> t", links=links))
    if rules.self_loops:
        parts.append(
            sql(
                "SELECT n, n, 1 FROM {nodes} WHERE n NOT IN (SELECT s FROM {links} WHERE s = t AND w > 0)",
                nodes=nodes,
                links=links,
            )
        )
    return work.table(
        sql(
            "SELECT s, t, {weight} AS w FROM ({parts}) AS u GROUP BY s, t",
            weight=sql("sum(w)") if weighted else sql("1::double precision"),
            parts=joined(" UNION ALL ", parts),
        ),
        "s",
    )


def fingerprints(work: Workspace, nodes: Sql, edges: Sql) -> Sql:
    """A number ``f`` for each key that depends on the node's neighbours and their factors.

    Each key has a pseudo-random number, and f is what the first hop makes of these.
    """
    return work.table(
        sql(
            "SELECT b.n, b.key, COALESCE(h.f, 0) AS f FROM {nodes} b LEFT JOIN (SELECT e.t, sum(e.c *"
            ' (pg_catalog.hashtextextended(a.key::text COLLATE "C", 0) & 9007199254740991)::double precision'
            " / 9007199254740992) AS f FROM {edges} e JOIN {nodes} a ON a.n = e.s GROUP BY e.t) h ON h.t = b.n",
            nodes=nodes,
            edges=edges,
        ),
        "n",
    )


def hop(work: Workspace, edges: Sql, before: Sql, width: int) -> Sql:
    """The values ``a`` of each node ``n`` that has an edge into it, from the values of its neighbours."""
    # PostgreSQL finds an element of an array at once; to unnest and gather them takes five times as long.
    sums = joined(", ", (sql("sum(e.c * p.a[{place}])", place=place) for place in range(1, width + 1)))
    return work.table(
        sql(
            "SELECT e.t AS n, ARRAY[{sums}] AS a FROM {edges} e JOIN {before} p ON p.n = e.s GROUP BY e.t",
            sums=sums,
            edges=edges,
            before=before,
        ),
        "n",
    )
