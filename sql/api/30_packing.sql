-- Packing: a table becomes buffers of rows, spread over the segments.  docs/architecture.md describes the format.

-- The order in which a scan returns the rows affects the packed table. Without parallel workers, and without
-- synchronized scans (joining a scan that another session has begun), the order is the same each time.
CREATE OR REPLACE FUNCTION cerebro.pack_plain(
    source_table text,
    output_table text,
    target text,
    inputs text,
    buffer_size integer DEFAULT NULL,
    divide_by real DEFAULT 1.0,
    classes integer[] DEFAULT NULL,
    segments integer DEFAULT NULL,
    distribution_rules text DEFAULT NULL,
    seed bigint DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.pack_plain(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.pack_plain(@types@) IS
'Packs columns as they are: a table or view whose columns are numbers, arrays of numbers and labels already.
output_table receives the rows, shuffled, in buffers that are spread over the segments; OUTPUT_TABLE_summary describes
them. cerebro.pack also takes columns of other types, and splits the rows.

- target: columns to predict, separated by commas. Text, integers, booleans, dates and the like are class
  labels and become one-hot vectors. real, double precision and numeric are regression targets. Arrays are stored as
  they are (integers as int16, others as float32).
- inputs: input columns, separated by commas. Each array of numbers is one input of the model. All plain
  number columns together are one input named features. Arrays of smallint, integer or boolean stay integers and are
  divided by divide_by when they are read. All other inputs become float32 and are divided when they are packed.
- buffer_size: rows per buffer. NULL chooses it from the size of the rows.
- divide_by: the inputs are divided by it.
- classes: number of classes per column of target, where the model has room for more classes than the table
  contains. NULL: the number of classes in the table.
- segments: number of segments. NULL: the setting cerebro.segments, else one per GPU, else one per
  processor; on PostgreSQL a table gets at most one segment per 500 rows. Without an argument, it is at most what
  cerebro.set_limits(max_segments) allows the user.
- distribution_rules: on Greenplum, the segments to use: all_segments, gpu_segments (segments on hosts with GPUs), or
  the name of a table whose column dbid lists segments. Ignored on PostgreSQL.
- seed: the same seed and the same rows give the same packed table, whatever the order of the rows in the source and
  whether on PostgreSQL or Greenplum. NULL draws a seed, which the summary records.';

CREATE OR REPLACE FUNCTION cerebro.pack_like(
    source_table text,
    output_table text,
    target text,
    inputs text,
    packed_table text,
    buffer_size integer DEFAULT NULL,
    distribution_rules text DEFAULT NULL,
    related text DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.pack_like(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.pack_like(@types@) IS
'Packs other rows as a packed table was packed, for validation: the same preparation, the same classes, the same number
of segments. The columns may have other names, but must have the same
shapes, and every class label must occur in packed_table. On PostgreSQL the rows keep their order if they have
one.

- packed_table: the packed table with the rows for training.
- inputs: NULL if cerebro.pack has packed packed_table. The inputs are then the columns that have the
  names of the training columns, and are prepared as these were.';
