-- General functions of MADlib that scripts with deep learning call, too.

CREATE OR REPLACE FUNCTION @extschema@.version() RETURNS text
LANGUAGE sql STABLE AS $$
SELECT pg_catalog.format('MADlib version: 2.1.0 (the deep-learning functions, by cerebro_db_madlib %s)', extversion)
  FROM pg_catalog.pg_extension WHERE extname OPERATOR(pg_catalog.=) 'cerebro_db_madlib'
$$;

CREATE OR REPLACE FUNCTION @extschema@.train_test_split(
    source_table           text,
    output_table           text,
    train_proportion       double precision,
    test_proportion        double precision DEFAULT NULL,
    grouping_cols          text             DEFAULT NULL,
    target_cols            text             DEFAULT NULL,
    with_replacement       boolean          DEFAULT false,
    separate_output_tables boolean          DEFAULT false
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._train_test_split($1, $2, $3, $4, $5, $6, $7, $8)
$$;

CREATE OR REPLACE FUNCTION @extschema@.train_test_split() RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('train_test_split', NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.train_test_split(message varchar) RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('train_test_split', $1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.array_scalar_mult(x anyarray, k anyelement) RETURNS anyarray
LANGUAGE sql IMMUTABLE STRICT AS $$
SELECT cerebro_internal._array_product($1, $2)
$$;

CREATE OR REPLACE FUNCTION @extschema@.array_square(x anyarray) RETURNS anyarray
LANGUAGE sql IMMUTABLE STRICT AS $$
SELECT cerebro_internal._array_product($1, NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.gpu_configuration(output_table text) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._gpu_configuration($1, NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.gpu_configuration(output_table text, source text) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._gpu_configuration($1, $2)
$$;

CREATE OR REPLACE FUNCTION @extschema@.gpu_configuration() RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('gpu_configuration', NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.gpu_info_tensorflow() RETURNS text[]
LANGUAGE sql AS $$
SELECT cerebro_internal._gpu_texts('tensorflow')
$$;

CREATE OR REPLACE FUNCTION @extschema@.gpu_info_nvidia() RETURNS text[]
LANGUAGE sql AS $$
SELECT cerebro_internal._gpu_texts('nvidia')
$$;

CREATE OR REPLACE FUNCTION @extschema@.hyperband_schedule(
    schedule_table varchar, r integer, eta integer DEFAULT 3, skip_last integer DEFAULT 0
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._hyperband_schedule($1, $2, $3, $4)
$$;
