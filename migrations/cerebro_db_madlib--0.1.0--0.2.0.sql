-- What is new in 0.2.0.

-- sql/madlib/10_preprocessing.sql
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

-- sql/madlib/20_definitions.sql
-- MADlib's functions for architectures, model selection tables and custom functions.

CREATE OR REPLACE FUNCTION @extschema@.load_keras_model(keras_model_arch_table varchar, model_arch json) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_load_keras_model($1, $2, NULL, NULL, NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.load_keras_model(
    keras_model_arch_table varchar, model_arch json, model_weights bytea
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_load_keras_model($1, $2, $3, NULL, NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.load_keras_model(
    keras_model_arch_table varchar, model_arch json, model_weights bytea, name text
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_load_keras_model($1, $2, $3, $4, NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.load_keras_model(
    keras_model_arch_table varchar, model_arch json, model_weights bytea, name text, description text
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_load_keras_model($1, $2, $3, $4, $5)
$$;

CREATE OR REPLACE FUNCTION @extschema@.load_keras_model(message varchar) RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('load_keras_model', $1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.load_keras_model() RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('load_keras_model', NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.delete_keras_model(keras_model_arch_table varchar, model_id integer) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_delete_keras_model($1, $2)
$$;

CREATE OR REPLACE FUNCTION @extschema@.delete_keras_model(message varchar) RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('delete_keras_model', $1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.delete_keras_model() RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('delete_keras_model', NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.generate_model_configs(
    model_arch_table      varchar,
    model_selection_table varchar,
    model_id_list         integer[],
    compile_params_grid   varchar,
    fit_params_grid       varchar,
    search_type           varchar DEFAULT 'grid',
    num_configs           integer DEFAULT NULL,
    random_state          integer DEFAULT NULL,
    object_table          varchar DEFAULT NULL
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_generate_model_configs($1, $2, $3, $4, $5, $6, $7, $8,
                                              cerebro_internal._madlib_object_table($9, '@extschema@'))
$$;

CREATE OR REPLACE FUNCTION @extschema@.load_model_selection_table(
    model_arch_table      varchar,
    model_selection_table varchar,
    model_id_list         integer[],
    compile_params_list   varchar[],
    fit_params_list       varchar[]
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_load_model_selection_table($1, $2, $3, $4, $5, NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.load_model_selection_table(
    model_arch_table      varchar,
    model_selection_table varchar,
    model_id_list         integer[],
    compile_params_list   varchar[],
    fit_params_list       varchar[],
    object_table          varchar
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_load_model_selection_table($1, $2, $3, $4, $5,
                                                  cerebro_internal._madlib_object_table($6, '@extschema@'))
$$;

CREATE OR REPLACE FUNCTION @extschema@.load_custom_function(object_table varchar, object bytea, name text)
RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_load_custom_function(cerebro_internal._madlib_object_table($1, '@extschema@'), $2, $3, NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.load_custom_function(
    object_table varchar, object bytea, name text, description text
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_load_custom_function(cerebro_internal._madlib_object_table($1, '@extschema@'), $2, $3, $4)
$$;

CREATE OR REPLACE FUNCTION @extschema@.load_custom_function(message varchar) RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('load_custom_function', $1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.load_custom_function() RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('load_custom_function', NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.delete_custom_function(object_table varchar, id integer) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_delete_custom_function(cerebro_internal._madlib_object_table($1, '@extschema@'), $2, NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.delete_custom_function(object_table varchar, name text) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_delete_custom_function(cerebro_internal._madlib_object_table($1, '@extschema@'), NULL, $2)
$$;

CREATE OR REPLACE FUNCTION @extschema@.delete_custom_function(message varchar) RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('delete_custom_function', $1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.delete_custom_function() RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('delete_custom_function', NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.load_top_k_accuracy_function(object_table varchar, k integer) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_load_top_k_accuracy_function(cerebro_internal._madlib_object_table($1, '@extschema@'), $2)
$$;

CREATE OR REPLACE FUNCTION @extschema@.load_top_k_accuracy_function(message varchar) RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('load_top_k_accuracy_function', $1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.load_top_k_accuracy_function() RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('load_top_k_accuracy_function', NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.top_k_categorical_acc_pickled(n integer, fn_name varchar) RETURNS bytea
LANGUAGE sql STABLE AS $$
SELECT pg_catalog.convert_to(pg_catalog.format('# %s is built in.', $2), 'UTF8')
$$;

-- sql/madlib/30_training.sql
-- MADlib's functions that train, evaluate and predict.  Each calls the function of the schema cerebro that does the work.

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_fit_multiple_model(
    source_table          varchar,
    model_output_table    varchar,
    model_selection_table varchar,
    num_iterations        integer
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_fit_multiple_model($1, $2, $3, $4)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_fit_multiple_model(
    source_table          varchar,
    model_output_table    varchar,
    model_selection_table varchar,
    num_iterations        integer,
    use_gpus              boolean
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_fit_multiple_model($1, $2, $3, $4, $5)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_fit_multiple_model(
    source_table          varchar,
    model_output_table    varchar,
    model_selection_table varchar,
    num_iterations        integer,
    use_gpus              boolean,
    validation_table      varchar
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_fit_multiple_model($1, $2, $3, $4, $5, $6)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_fit_multiple_model(
    source_table              varchar,
    model_output_table        varchar,
    model_selection_table     varchar,
    num_iterations            integer,
    use_gpus                  boolean,
    validation_table          varchar,
    metrics_compute_frequency integer
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_fit_multiple_model($1, $2, $3, $4, $5, $6, $7)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_fit_multiple_model(
    source_table              varchar,
    model_output_table        varchar,
    model_selection_table     varchar,
    num_iterations            integer,
    use_gpus                  boolean,
    validation_table          varchar,
    metrics_compute_frequency integer,
    warm_start                boolean
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_fit_multiple_model($1, $2, $3, $4, $5, $6, $7, $8)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_fit_multiple_model(
    source_table              varchar,
    model_output_table        varchar,
    model_selection_table     varchar,
    num_iterations            integer,
    use_gpus                  boolean,
    validation_table          varchar,
    metrics_compute_frequency integer,
    warm_start                boolean,
    name                      varchar
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_fit_multiple_model($1, $2, $3, $4, $5, $6, $7, $8, $9)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_fit_multiple_model(
    source_table              varchar,
    model_output_table        varchar,
    model_selection_table     varchar,
    num_iterations            integer,
    use_gpus                  boolean,
    validation_table          varchar,
    metrics_compute_frequency integer,
    warm_start                boolean,
    name                      varchar,
    description               varchar,
    use_caching               boolean DEFAULT false
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_fit_multiple_model($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_evaluate(
    model_table varchar, test_table varchar, output_table varchar
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_keras_evaluate($1, $2, $3)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_evaluate(
    model_table varchar, test_table varchar, output_table varchar, use_gpus boolean
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_keras_evaluate($1, $2, $3, $4)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_evaluate(
    model_table varchar, test_table varchar, output_table varchar, use_gpus boolean, mst_key integer
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_keras_evaluate($1, $2, $3, $4, $5)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_evaluate(message varchar) RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('madlib_keras_evaluate', $1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_evaluate() RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('madlib_keras_evaluate', NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_predict(
    model_table         varchar,
    test_table          varchar,
    id_col              varchar,
    independent_varname varchar,
    output_table        varchar,
    pred_type           varchar DEFAULT 'prob',
    use_gpus            boolean DEFAULT false,
    mst_key             integer DEFAULT NULL
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_keras_predict($1, $2, $3, $4, $5, $6, $7, $8)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_predict(
    model_table         varchar,
    test_table          varchar,
    id_col              varchar,
    independent_varname varchar,
    output_table        varchar,
    pred_type           integer,
    use_gpus            boolean DEFAULT false,
    mst_key             integer DEFAULT NULL
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_keras_predict($1, $2, $3, $4, $5, $6, $7, $8)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_predict(
    model_table         varchar,
    test_table          varchar,
    id_col              varchar,
    independent_varname varchar,
    output_table        varchar,
    pred_type           double precision,
    use_gpus            boolean DEFAULT false,
    mst_key             integer DEFAULT NULL
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_keras_predict($1, $2, $3, $4, $5, $6, $7, $8)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_predict(message varchar) RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('madlib_keras_predict', $1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_predict() RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('madlib_keras_predict', NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_predict_byom(
    model_arch_table    varchar,
    model_id            integer,
    test_table          varchar,
    id_col              varchar,
    independent_varname varchar,
    output_table        varchar,
    pred_type           varchar DEFAULT 'prob',
    use_gpus            boolean DEFAULT NULL,
    class_values        text[] DEFAULT NULL,
    normalizing_const   double precision DEFAULT NULL,
    dependent_count     integer DEFAULT 1
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_keras_predict_byom($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_predict_byom(
    model_arch_table    varchar,
    model_id            integer,
    test_table          varchar,
    id_col              varchar,
    independent_varname varchar,
    output_table        varchar,
    pred_type           integer,
    use_gpus            boolean DEFAULT NULL,
    class_values        text[] DEFAULT NULL,
    normalizing_const   double precision DEFAULT NULL
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_keras_predict_byom($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_predict_byom(
    model_arch_table    varchar,
    model_id            integer,
    test_table          varchar,
    id_col              varchar,
    independent_varname varchar,
    output_table        varchar,
    pred_type           double precision,
    use_gpus            boolean DEFAULT NULL,
    class_values        text[] DEFAULT NULL,
    normalizing_const   double precision DEFAULT NULL
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_keras_predict_byom($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_predict_byom(message varchar) RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('madlib_keras_predict_byom', $1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_predict_byom() RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('madlib_keras_predict_byom', NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_fit(
    source_table              varchar,
    model                     varchar,
    model_arch_table          varchar,
    model_id                  integer,
    compile_params            varchar,
    fit_params                varchar,
    num_iterations            integer,
    use_gpus                  boolean DEFAULT false,
    validation_table          varchar DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL,
    warm_start                boolean DEFAULT NULL,
    name                      varchar DEFAULT NULL,
    description               varchar DEFAULT NULL,
    object_table              varchar DEFAULT NULL
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_keras_fit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
                                 cerebro_internal._madlib_object_table($14, '@extschema@'))
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_fit(message varchar) RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('madlib_keras_fit', $1)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_fit() RETURNS varchar
LANGUAGE sql STABLE AS $$
SELECT cerebro_internal._madlib_usage('madlib_keras_fit', NULL)
$$;

CREATE OR REPLACE FUNCTION @extschema@.madlib_keras_automl(
    source_table              varchar,
    model_output_table        varchar,
    model_arch_table          varchar,
    model_selection_table     varchar,
    model_id_list             integer[],
    compile_params_grid       varchar,
    fit_params_grid           varchar,
    automl_method             varchar DEFAULT 'hyperband',
    automl_params             varchar DEFAULT NULL,
    random_state              integer DEFAULT NULL,
    object_table              varchar DEFAULT NULL,
    use_gpus                  boolean DEFAULT false,
    validation_table          varchar DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL,
    name                      varchar DEFAULT NULL,
    description               varchar DEFAULT NULL,
    use_caching               boolean DEFAULT false
) RETURNS void
LANGUAGE sql AS $$
SELECT cerebro_internal._madlib_keras_automl($1, $2, $3, $4, $5, $6, $7, $8, $9, $10,
                                    cerebro_internal._madlib_object_table($11, '@extschema@'), $12, $13, $14, $15, $16)
$$;

-- sql/madlib/40_general.sql
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

-- sql/madlib/50_tests.sql
-- Functions that MADlib's own test scripts call.

-- As in MADlib, a condition that is NULL does not fail: its test scripts compare elements that arrays do not have.
CREATE OR REPLACE FUNCTION @extschema@.assert(boolean, varchar) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT $1 THEN
        RAISE EXCEPTION 'Failed assertion: %', $2;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION @extschema@.assert_guc_value(text, text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.current_setting($1) OPERATOR(pg_catalog.<>) $2 THEN
        RAISE EXCEPTION 'Failed assertion: the setting % is %, not %', $1, pg_catalog.current_setting($1), $2;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION @extschema@.trap_error(text) RETURNS integer
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE $1;
    RETURN 0;
EXCEPTION WHEN OTHERS THEN
    RETURN 1;
END
$$;

CREATE OR REPLACE FUNCTION @extschema@.test_error_msg(text, text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE $1;
    RETURN false;
EXCEPTION WHEN OTHERS THEN
    RETURN pg_catalog.strpos(SQLERRM, $2) OPERATOR(pg_catalog.>) 0;
END
$$;

CREATE OR REPLACE FUNCTION @extschema@.test_input_table(text) RETURNS boolean
LANGUAGE sql AS $$
SELECT @extschema@.test_error_msg($1, 'NULL/empty input table name')
$$;

CREATE OR REPLACE FUNCTION @extschema@.test_output_table(text) RETURNS boolean
LANGUAGE sql AS $$
SELECT @extschema@.test_error_msg($1, 'NULL/empty output table name')
$$;

CREATE OR REPLACE FUNCTION @extschema@.relative_error(double precision, double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE AS $$
SELECT CASE WHEN $2 = 0 THEN abs($1) ELSE abs($1 - $2) / abs($2) END
$$;

-- Of vectors, by their Euclidean norms.
CREATE OR REPLACE FUNCTION @extschema@.relative_error(double precision[], double precision[]) RETURNS double precision
LANGUAGE sql IMMUTABLE AS $$
SELECT CASE WHEN sum(v.known ^ 2) = 0 THEN sqrt(sum(v.found ^ 2))
            ELSE sqrt(sum((v.found - v.known) ^ 2)) / sqrt(sum(v.known ^ 2))
       END
  FROM unnest($1, $2) AS v (found, known)
$$;

CREATE OR REPLACE FUNCTION @extschema@.__to_char(anyelement) RETURNS text
LANGUAGE sql STABLE AS $$
SELECT $1::text
$$;

CREATE OR REPLACE FUNCTION @extschema@.is_table_unlogged(text) RETURNS boolean
LANGUAGE sql STABLE AS $$
SELECT relpersistence = 'u' FROM pg_catalog.pg_class WHERE oid = $1::regclass
$$;

-- The extension supports no PostgreSQL before 11, and no Greenplum before 7.0.0.
CREATE OR REPLACE FUNCTION @extschema@.is_ver_gp_640_700_or_pg_11() RETURNS boolean
LANGUAGE sql STABLE AS $$
SELECT pg_catalog.current_setting('gp_role', true) IS NULL
$$;

-- sql/madlib/90_grants.sql
-- Everybody may call MADlib's functions, as there.  What they call in the schema cerebro takes the role cerebro_user.
GRANT USAGE ON SCHEMA @extschema@ TO PUBLIC;
-- Tables of custom functions are made in this schema, by those who may register functions.
GRANT CREATE ON SCHEMA @extschema@ TO cerebro_admin;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA @extschema@ TO PUBLIC;

