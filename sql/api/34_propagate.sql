-- Propagated features of graphs. docs/experts.md describes them.

-- Without parallel workers: PostgreSQL takes minutes to merge the pairs of nodes that each worker has found.
CREATE OR REPLACE FUNCTION cerebro.propagate(
    source_table text,
    edges_table text,
    output_table text,
    target text DEFAULT NULL,
    columns text DEFAULT NULL,
    hops integer DEFAULT 2,
    normalization text DEFAULT 'symmetric',
    key text DEFAULT 'id',
    edge_source text DEFAULT 'source',
    edge_target text DEFAULT 'target',
    edge_weight text DEFAULT NULL,
    undirected boolean DEFAULT true,
    self_loops boolean DEFAULT true,
    append boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.propagate(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.propagate(@types@) IS
'Gives each node of a graph its neighbours'' values as columns, for cerebro.pack, train and fit. output_table receives all
columns of source_table, and for each propagated column x the columns x_hop_1, x_hop_2 and so on: hop 1 is a weighted sum
of the neighbours'' x, hop 2 one of their x_hop_1. OUTPUT_TABLE_summary has the arguments, OUTPUT_TABLE_neighbours what
append needs. It returns the number of rows written.

- source_table: the nodes, a row for each.
- edges_table: a row for each edge. An edge must not name a node that source_table does not have.
- target: the columns to predict, separated by commas. They are not propagated, but copied.
- columns: the columns to propagate, separated by commas: numbers, and arrays of numbers of one length. NULL: all columns of
  real, double precision and numeric, and arrays of numbers, but key and target.
- hops: from 1 to 10.
- normalization: row divides the weight of an edge by the sum of the weights of all edges into the same node, so that values are
  means. symmetric divides it by the square roots of that sum and of the sum at the edge''s other end.
- key: the column of source_table that identifies nodes. It becomes the primary key of output_table.
- edge_source, edge_target: the columns of edges_table with the keys of an edge''s two nodes.
- edge_weight: a column of edges_table with weights from 0 on. Weights of the same pair are added. NULL: all pairs weigh 1,
  also those that are listed several times.
- undirected: true lets values pass in both directions of an edge. false: only from edge_source to edge_target.
- self_loops: true gives each node that has no edge to itself one with the weight 1, so that its own value counts.
- append: true brings a table up to date that the same call has made: it writes the rows of new nodes, computes again those
  within hops of nodes and edges that have changed, and removes those of nodes that are gone. The result equals a new table.';
