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
