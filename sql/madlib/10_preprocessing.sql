-- MADlib's functions for packing tables.  Each calls the function of the schema cerebro that does the work.

CREATE OR REPLACE FUNCTION @extschema@.training_preprocessor_dl(
    source_table        varchar,
    output_table        varchar,
    dependent_varname   varchar,
    independent_varname varchar,
    buffer_size         integer   DEFAULT NULL,
    normalizing_const   real      DEFAULT 1.0,
    num_classes         integer[] DEFAULT NULL,
    distribution_rules  text      DEFAULT NULL
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro._madlib_training_preprocessor_dl($1, $2, $3, $4, $5, $6, $7, $8)
$$;

CREATE OR REPLACE FUNCTION @extschema@.training_preprocessor_dl(message varchar DEFAULT '') RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro._madlib_usage('training_preprocessor_dl', $1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.validation_preprocessor_dl(
    source_table                varchar,
    output_table                varchar,
    dependent_varname           varchar,
    independent_varname         varchar,
    training_preprocessor_table varchar,
    buffer_size                 integer DEFAULT NULL,
    distribution_rules          text    DEFAULT NULL
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro._madlib_validation_preprocessor_dl($1, $2, $3, $4, $5, $6, $7)
$$;

CREATE OR REPLACE FUNCTION @extschema@.validation_preprocessor_dl(message varchar DEFAULT '') RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro._madlib_usage('validation_preprocessor_dl', $1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.convert_array_to_bytea(var real[]) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
SELECT cerebro.convert_array_to_bytea($1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.convert_array_to_bytea(var smallint[]) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
SELECT cerebro.convert_array_to_bytea($1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.convert_bytea_to_real_array(var bytea) RETURNS real[]
LANGUAGE sql IMMUTABLE AS $$
SELECT cerebro.convert_bytea_to_real_array($1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.convert_bytea_to_smallint_array(var bytea) RETURNS smallint[]
LANGUAGE sql IMMUTABLE AS $$
SELECT cerebro.convert_bytea_to_smallint_array($1)
$$;

-- Where the elements begin is in the second word of the array, which counts four bytes more; it is 0 for an array without
-- a map of NULLs, whose header is three words, then the size and the lower bound of each dimension.
CREATE OR REPLACE FUNCTION @extschema@.array_to_bytea(anyarray) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    bytes bytea := cerebro._array_bytes($1);
    start integer := 0;
BEGIN
    IF pg_catalog.pg_typeof($1)::pg_catalog.text NOT IN
       ('smallint[]', 'integer[]', 'bigint[]', 'real[]', 'double precision[]') THEN
        RAISE EXCEPTION 'array_to_bytea error: arrays of the type % are not converted.', pg_catalog.pg_typeof($1)
            USING ERRCODE = 'datatype_mismatch',
                  HINT = 'Cast it to smallint[], integer[], bigint[], real[] or double precision[].';
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.unnest($1) AS u (e) WHERE e IS NULL) THEN
        RAISE EXCEPTION 'array_to_bytea error: an element is NULL.'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'array_remove() or coalesce() can help.';
    END IF;
    FOR place IN REVERSE 7..4 LOOP
        start := 256 * start + pg_catalog.get_byte(bytes, place);
    END LOOP;
    RETURN pg_catalog.substring(
        bytes, CASE start WHEN 0 THEN 13 + 8 * coalesce(pg_catalog.array_ndims($1), 0) ELSE start - 3 END);
END
$$;

CREATE OR REPLACE AGGREGATE @extschema@.agg_array_concat(real[]) (
    SFUNC = pg_catalog.array_cat, STYPE = real[], COMBINEFUNC = pg_catalog.array_cat
);

CREATE OR REPLACE AGGREGATE @extschema@.agg_array_concat(smallint[]) (
    SFUNC = pg_catalog.array_cat, STYPE = smallint[], COMBINEFUNC = pg_catalog.array_cat
);
