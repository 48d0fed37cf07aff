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
SELECT cerebro_internal._madlib_training_preprocessor_dl($1, $2, $3, $4, $5, $6, $7, $8)
$$;

CREATE OR REPLACE FUNCTION @extschema@.training_preprocessor_dl(message varchar DEFAULT '') RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('training_preprocessor_dl', $1)
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
SELECT cerebro_internal._madlib_validation_preprocessor_dl($1, $2, $3, $4, $5, $6, $7)
$$;

CREATE OR REPLACE FUNCTION @extschema@.validation_preprocessor_dl(message varchar DEFAULT '') RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('validation_preprocessor_dl', $1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.convert_array_to_bytea(var real[]) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
SELECT cerebro_internal._convert_array_to_bytea($1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.convert_array_to_bytea(var smallint[]) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
SELECT cerebro_internal._convert_array_to_bytea($1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.convert_bytea_to_real_array(var bytea) RETURNS real[]
LANGUAGE sql IMMUTABLE AS $$
SELECT cerebro_internal._convert_bytea_to_real_array($1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.convert_bytea_to_smallint_array(var bytea) RETURNS smallint[]
LANGUAGE sql IMMUTABLE AS $$
SELECT cerebro_internal._convert_bytea_to_smallint_array($1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.array_to_bytea(anyarray) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF pg_catalog.pg_typeof($1)::pg_catalog.text NOT IN
       ('smallint[]', 'integer[]', 'bigint[]', 'real[]', 'double precision[]') THEN
        RAISE EXCEPTION 'array_to_bytea error: arrays of the type % are not converted.', pg_catalog.pg_typeof($1)
            USING ERRCODE = 'datatype_mismatch',
                  HINT = 'Cast it to smallint[], integer[], bigint[], real[] or double precision[].';
    END IF;
    RETURN cerebro_internal._element_bytes($1, 'array_to_bytea error');
END
$$;

CREATE OR REPLACE AGGREGATE @extschema@.agg_array_concat(real[]) (
    SFUNC = pg_catalog.array_cat, STYPE = real[], COMBINEFUNC = pg_catalog.array_cat
);

CREATE OR REPLACE AGGREGATE @extschema@.agg_array_concat(smallint[]) (
    SFUNC = pg_catalog.array_cat, STYPE = smallint[], COMBINEFUNC = pg_catalog.array_cat
);
