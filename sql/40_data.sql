-- Packing: a table becomes buffers, spread over the segments.  Formats: docs/architecture.md.

-- The order in which a scan gives the rows is part of a packing: without parallel workers and without
-- joining a scan that another session has begun, it is the same each time.
CREATE FUNCTION cerebro.training_preprocessor_dl(
    source_table text,
    output_table text,
    dependent_varname text,
    independent_varname text,
    buffer_size integer DEFAULT NULL,
    normalizing_const real DEFAULT 1.0,
    num_classes integer[] DEFAULT NULL,
    distribution_rules text DEFAULT NULL,
    segments integer DEFAULT NULL,
    seed bigint DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off AS $py$
@cerebro@
return api.training_preprocessor_dl(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.training_preprocessor_dl(
    text, text, text, text, integer, real, integer[], text, integer, bigint) IS
'Packs a table or view for training: output_table holds its rows, shuffled, in buffers spread over the segments;
output_table_summary says what is in it.
Inputs: each array of numbers is one input; all plain number columns together are one input named features.
Arrays of smallint, integer or boolean stay integers and are divided by normalizing_const when read; all others
become float32, divided when packed.
Outputs: text, integers, booleans, dates and the like are classes (one-hot); real, double precision and numeric are
regression targets; arrays are taken as they are (integers as int16, others as float32).
num_classes: per output, room for classes that the table does not have; NULL counts those found.
segments: NULL takes the setting cerebro.segments, else one per GPU, else one per processor.
seed: the same seed on the same rows gives the same packing, in whatever order they lie and on any server, PostgreSQL or
Greenplum; NULL draws one, which the summary records.
distribution_rules, on Greenplum: all_segments, gpu_segments (those on hosts with GPUs), or a table whose column dbid
names the segments to use. On PostgreSQL it is ignored.';

CREATE FUNCTION cerebro.validation_preprocessor_dl(
    source_table text,
    output_table text,
    dependent_varname text,
    independent_varname text,
    training_preprocessor_table text,
    buffer_size integer DEFAULT NULL,
    distribution_rules text DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off AS $py$
@cerebro@
return api.validation_preprocessor_dl(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.validation_preprocessor_dl(text, text, text, text, text, integer, text) IS
'Packs a table or view for validation as training_preprocessor_table was packed: its normalizing constant, its
classes, as many segments. Columns may have other names, the shapes must be the same, and the labels must be among
those of the training table. Rows keep their order, where they have one: on PostgreSQL.';

-- MADlib's helpers for the bytes of packed tables.
CREATE FUNCTION cerebro.convert_array_to_bytea(var real[]) RETURNS bytea
LANGUAGE plpython3u IMMUTABLE AS $py$
@cerebro@
return api.array_to_bytes(plpy, *args, "f")
$py$;
COMMENT ON FUNCTION cerebro.convert_array_to_bytea(real[]) IS 'The values as little-endian float32, in C order.';

CREATE FUNCTION cerebro.convert_array_to_bytea(var smallint[]) RETURNS bytea
LANGUAGE plpython3u IMMUTABLE AS $py$
@cerebro@
return api.array_to_bytes(plpy, *args, "h")
$py$;
COMMENT ON FUNCTION cerebro.convert_array_to_bytea(smallint[]) IS 'The values as little-endian int16, in C order.';

CREATE FUNCTION cerebro.convert_bytea_to_real_array(var bytea) RETURNS real[]
LANGUAGE plpython3u IMMUTABLE AS $py$
@cerebro@
return api.bytes_to_array(plpy, *args, "f")
$py$;
COMMENT ON FUNCTION cerebro.convert_bytea_to_real_array(bytea) IS 'Little-endian float32 as an array of one dimension.';

CREATE FUNCTION cerebro.convert_bytea_to_smallint_array(var bytea) RETURNS smallint[]
LANGUAGE plpython3u IMMUTABLE AS $py$
@cerebro@
return api.bytes_to_array(plpy, *args, "h")
$py$;
COMMENT ON FUNCTION cerebro.convert_bytea_to_smallint_array(bytea) IS
'Little-endian int16 as an array of one dimension.';
