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
