-- What the functions of the extension cerebro_db_madlib call, beside the functions that users of cerebro call, too.

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_usage(name text, message text) RETURNS text
LANGUAGE plpython3u STABLE AS $py$
@cerebro@
return api.madlib_usage(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_usage(@types@) IS
'The help of a function of MADlib''s: a summary, or for the message usage its arguments, or for example an example.';

CREATE OR REPLACE FUNCTION cerebro_internal._hyperband_schedule(schedule_table text, r integer, eta integer, skip_last integer)
RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.hyperband_schedule(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._hyperband_schedule(@types@) IS
'Writes the rounds of a Hyperband search into a new table: bracket s, round i, configurations n_i, iterations r_i.';

CREATE OR REPLACE FUNCTION cerebro_internal._train_test_split(
    source_table           text,
    output_table           text,
    train_proportion       double precision,
    test_proportion        double precision,
    grouping_cols          text,
    target_cols            text,
    with_replacement       boolean,
    separate_output_tables boolean
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.train_test_split(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._train_test_split(@types@) IS
'Draws the rows of a training and of a test table from a table, in each group in the same proportion.';

CREATE OR REPLACE FUNCTION cerebro_internal._gpu_texts(source text) RETURNS text[]
LANGUAGE plpython3u AS $py$
@cerebro@
return api.gpu_texts(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._gpu_texts(@types@) IS
'The GPUs of the host on which the function runs, described as TensorFlow or as nvidia-smi would (source).';

CREATE OR REPLACE FUNCTION cerebro_internal._gpu_configuration(output_table text, source text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.gpu_configuration(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._gpu_configuration(@types@) IS
'Writes the GPUs of every host into a new table: hostname and gpu_descr.';

-- The query of the elements in their order becomes, dimension by dimension from the last, a query of arrays.
CREATE OR REPLACE FUNCTION cerebro_internal._array_product(x anyarray, k anyelement) RETURNS anyarray
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    query  text := 'SELECT e OPERATOR(pg_catalog.*) coalesce($2, e) AS v, n - 1 AS n'
                   ' FROM pg_catalog.unnest($1) WITH ORDINALITY AS u (e, n)';
    size   integer;
    result x%TYPE := x;
BEGIN
    IF pg_catalog.array_ndims(x) IS NULL THEN
        RETURN x;
    END IF;
    FOR place IN REVERSE pg_catalog.array_ndims(x)..1 LOOP
        size := pg_catalog.array_length(x, place);
        query := pg_catalog.format('SELECT pg_catalog.array_agg(v ORDER BY n) AS v, n / %s AS n FROM (%s) q'
                                   ' GROUP BY n / %s', size, query, size);
    END LOOP;
    EXECUTE 'SELECT v FROM (' || query || ') q' INTO result USING x, k;
    RETURN result;
END
$$;
COMMENT ON FUNCTION cerebro_internal._array_product(@types@) IS
'The array with each element multiplied by k, or by itself if k is NULL. The dimensions stay.';

-- The functions of the same names without _madlib_, as MADlib has them.

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_training_preprocessor_dl(
    source_table        text,
    output_table        text,
    dependent_varname   text,
    independent_varname text,
    buffer_size         integer,
    normalizing_const   real,
    num_classes         integer[],
    distribution_rules  text
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_training_preprocessor_dl(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_training_preprocessor_dl(@types@) IS
'training_preprocessor_dl as MADlib has it: numbers to predict are classes, NULL is a class, inputs become float32.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_validation_preprocessor_dl(
    source_table                text,
    output_table                text,
    dependent_varname           text,
    independent_varname         text,
    training_preprocessor_table text,
    buffer_size                 integer,
    distribution_rules          text
) RETURNS void
LANGUAGE plpython3u
SET synchronize_seqscans = off SET max_parallel_workers_per_gather = 0 SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_validation_preprocessor_dl(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_validation_preprocessor_dl(@types@) IS
'validation_preprocessor_dl as MADlib has it: labels may be NULL if some of the training table are, or vectors of as many '
'classes.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_load_keras_model(
    keras_model_arch_table text, model_arch json, model_weights bytea, name text, description text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_load_keras_model(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_load_keras_model(@types@) IS
'load_keras_model as MADlib has it: any JSON and any weights are stored, and checked when they are used.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_delete_keras_model(keras_model_arch_table text, model_id integer)
RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_delete_keras_model(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_delete_keras_model(@types@) IS
'delete_keras_model as MADlib has it: drops the table with its last architecture.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_load_model_selection_table(
    model_arch_table      text,
    model_selection_table text,
    model_id_list         integer[],
    compile_params_list   text[],
    fit_params_list       text[],
    object_table          text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_load_model_selection_table(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_load_model_selection_table(@types@) IS
'load_model_selection_table as MADlib has it: fit parameters may have a callback TensorBoard, which has no effect.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_generate_model_configs(
    model_arch_table      text,
    model_selection_table text,
    model_id_list         integer[],
    compile_params_grid   text,
    fit_params_grid       text,
    search_type           text,
    num_configs           integer,
    random_state          integer,
    object_table          text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_generate_model_configs(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_generate_model_configs(@types@) IS
'generate_model_configs as MADlib has it: a selection table whose summary is gone gets a new one, and fit '
'parameters may have a callback TensorBoard, which has no effect.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_fit_multiple_model(
    source_table              text,
    model_output_table        text,
    model_selection_table     text,
    num_iterations            integer,
    use_gpus                  boolean DEFAULT false,
    validation_table          text    DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL,
    warm_start                boolean DEFAULT false,
    name                      text    DEFAULT NULL,
    description               text    DEFAULT NULL,
    use_caching               boolean DEFAULT true
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_fit_multiple_model(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_fit_multiple_model(@types@) IS
'madlib_fit_multiple_model as MADlib has it: the tables have the names of tables, losses and metrics as they were written.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_evaluate(
    model_table  text,
    test_table   text,
    output_table text,
    use_gpus     boolean DEFAULT false,
    mst_key      integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_keras_evaluate(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_evaluate(@types@) IS
'Computes the loss and the metric of a trained model on a packed table, on all of its segments at the same time.
output_table receives one row.

- mst_key: the model to evaluate, where model_table contains several.';

-- Ids are on their way as texts, which have to be the very same values when they are read.
CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_predict(
    model_table         text,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           text    DEFAULT 'prob',
    use_gpus            boolean DEFAULT false,
    mst_key             integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_predict(@types@) IS
'Predicts with a trained model for the rows of a table or view, which need not be packed. output_table receives the
predictions with the values of id_col. A regression model writes one column estimated_<name> per dependent variable.

- independent_varname: the input columns, separated by commas. NULL, for a model trained on what cerebro.pack packed:
  the columns that have the names of the training columns. They are prepared as in training.
- pred_type: prob writes all classes of each row, with probability and rank. response writes the most probable class
  only.
- mst_key: the model to predict with, where model_table contains several.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_predict(
    model_table         text,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           integer,
    use_gpus            boolean DEFAULT false,
    mst_key             integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_predict(@types@) IS
'As madlib_keras_predict with pred_type prob, but for each row only the pred_type most probable classes.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_predict(
    model_table         text,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           double precision,
    use_gpus            boolean DEFAULT false,
    mst_key             integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_predict(@types@) IS
'As madlib_keras_predict with pred_type prob, but only the classes whose probability is above pred_type (0.0 to 1.0).';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_predict_byom(
    model_arch_table    text,
    model_id            integer,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           text,
    use_gpus            boolean,
    class_values        text[],
    normalizing_const   double precision,
    dependent_count     integer
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict_byom(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_predict_byom(@types@) IS
'Predicts with an architecture and weights of a table of architectures: madlib_keras_predict_byom.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_predict_byom(
    model_arch_table    text,
    model_id            integer,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           integer,
    use_gpus            boolean,
    class_values        text[],
    normalizing_const   double precision,
    dependent_count     integer
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict_byom(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_predict_byom(@types@) IS
'Predicts with an architecture and weights of a table of architectures: madlib_keras_predict_byom.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_predict_byom(
    model_arch_table    text,
    model_id            integer,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           double precision,
    use_gpus            boolean,
    class_values        text[],
    normalizing_const   double precision,
    dependent_count     integer
) RETURNS void
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.madlib_keras_predict_byom(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_predict_byom(@types@) IS
'Predicts with an architecture and weights of a table of architectures: madlib_keras_predict_byom.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_fit(
    source_table              text,
    model                     text,
    model_arch_table          text,
    model_id                  integer,
    compile_params            text,
    fit_params                text,
    num_iterations            integer,
    use_gpus                  boolean,
    validation_table          text,
    metrics_compute_frequency integer,
    warm_start                boolean,
    name                      text,
    description               text,
    object_table              text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_keras_fit(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_fit(@types@) IS
'Trains one model, as a run with one configuration; its table has one row, and its summary the contents of MADlib''s.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_keras_automl(
    source_table              text,
    model_output_table        text,
    model_arch_table          text,
    model_selection_table     text,
    model_id_list             integer[],
    compile_params_grid       text,
    fit_params_grid           text,
    automl_method             text,
    automl_params             text,
    random_state              integer,
    object_table              text,
    use_gpus                  boolean,
    validation_table          text,
    metrics_compute_frequency integer,
    name                      text,
    description               text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_keras_automl(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_keras_automl(@types@) IS
'A search by MADlib''s Hyperband or hyperopt, as a run; its tables have the contents of MADlib''s, and the selection table has '
'the best configuration.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_object_table(name text, schema text) RETURNS text
LANGUAGE plpython3u STABLE AS $py$
@cerebro@
return api.madlib_object_table(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_object_table(@types@) IS
'The name of a table of custom functions, with this schema if it has none.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_load_custom_function(
    object_table text, object bytea, name text, description text
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_load_custom_function(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_load_custom_function(@types@) IS
'Registers a custom function from its source text, and lists it in a table as MADlib has it. For cerebro_admin. Pickled '
'objects are refused.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_delete_custom_function(object_table text, id integer, name text) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_delete_custom_function(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_delete_custom_function(@types@) IS
'Retires the custom function with this id, or else this name, and deletes it from a table as MADlib has it. For '
'cerebro_admin.';

CREATE OR REPLACE FUNCTION cerebro_internal._madlib_load_top_k_accuracy_function(object_table text, k integer) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.madlib_load_top_k_accuracy_function(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._madlib_load_top_k_accuracy_function(@types@) IS
'Lists the metric top_<k>_accuracy, which is built in, in a table as MADlib has it.';

CREATE OR REPLACE FUNCTION cerebro.convert_madlib_table(table_name text, packed_table text DEFAULT NULL) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.convert_madlib_table(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.convert_madlib_table(@types@) IS
$doc$Makes a table that Apache MADlib has made usable here, and says what it did.

A packed table is copied, buffer by buffer as it is, into a table of the same name; MADlib's table gets the ending _madlib.
The summary of a model table (of madlib_keras_fit, madlib_keras_fit_multiple_model or madlib_keras_automl) gets further
columns; the weights stay as they are. Tables of architectures and model selection tables need no conversion.

- table_name: the table; its summary has the ending _summary.
- packed_table: for a model table, the packed table that the models were trained on. It must have been converted or packed
  here. For a packed table, NULL.

SELECT cerebro.convert_madlib_table('iris_train_packed');
SELECT cerebro.convert_madlib_table('iris_model', 'iris_train_packed');$doc$;

-- MADlib's functions for the bytes of packed tables. They copy bytes, because PL/Python would make an object of each number
-- and hear no cancel meanwhile.
CREATE OR REPLACE FUNCTION cerebro_internal._convert_array_to_bytea(var real[]) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN cerebro_internal._element_bytes(var, 'convert_array_to_bytea');
END
$$;
COMMENT ON FUNCTION cerebro_internal._convert_array_to_bytea(@types@) IS
'Converts an array to bytes: little-endian float32 values in C order.';

CREATE OR REPLACE FUNCTION cerebro_internal._convert_array_to_bytea(var smallint[]) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN cerebro_internal._element_bytes(var, 'convert_array_to_bytea');
END
$$;
COMMENT ON FUNCTION cerebro_internal._convert_array_to_bytea(@types@) IS
'Converts an array to bytes: little-endian int16 values in C order.';

-- Where the elements begin is in the second word of the array, which counts four bytes more; it is 0 for an array without
-- a map of NULLs, whose header is three words, then the size and the lower bound of each dimension.
CREATE OR REPLACE FUNCTION cerebro_internal._element_bytes(elements anyarray, function text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    bytes bytea := cerebro_internal._array_bytes(elements);
    start integer := 0;
BEGIN
    FOR place IN REVERSE 7..4 LOOP
        start := 256 * start + pg_catalog.get_byte(bytes, place);
    END LOOP;
    IF start = 0 THEN
        RETURN pg_catalog.substring(bytes, 13 + 8 * COALESCE(pg_catalog.array_ndims(elements), 0));
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.unnest(elements) AS u (e) WHERE e IS NULL) THEN
        RAISE EXCEPTION '%: an element is NULL.', function
            USING ERRCODE = 'null_value_not_allowed', HINT = 'coalesce() or array_remove() can help.';
    END IF;
    RETURN pg_catalog.substring(bytes, start - 3);
END
$$;
COMMENT ON FUNCTION cerebro_internal._element_bytes(@types@) IS
'The bytes of an array''s elements, in the byte order of the machine. function: what an error names.';

CREATE OR REPLACE FUNCTION cerebro_internal._convert_bytea_to_real_array(var bytea) RETURNS real[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    PERFORM cerebro_internal._require_whole(var, 4);
    RETURN cerebro_internal._reals(var);
END
$$;
COMMENT ON FUNCTION cerebro_internal._convert_bytea_to_real_array(@types@) IS
'Converts little-endian float32 values to an array with one dimension.';

CREATE OR REPLACE FUNCTION cerebro_internal._convert_bytea_to_smallint_array(var bytea) RETURNS smallint[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    PERFORM cerebro_internal._require_whole(var, 2);
    RETURN cerebro_internal._smallints(var);
END
$$;
COMMENT ON FUNCTION cerebro_internal._convert_bytea_to_smallint_array(@types@) IS
'Converts little-endian int16 values to an array with one dimension.';

CREATE OR REPLACE FUNCTION cerebro_internal._require_whole(bytes bytea, size integer) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF COALESCE(size < 1, true) THEN
        RAISE EXCEPTION 'size must be at least 1, not %', size USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF pg_catalog.octet_length(bytes) % size <> 0 THEN
        RAISE EXCEPTION 'convert_bytea: % bytes are not a whole number of values of % bytes.',
                        pg_catalog.octet_length(bytes), size
            USING ERRCODE = 'data_exception', HINT = 'Convert the bytes of one variable of one buffer.';
    END IF;
END
$$;
COMMENT ON FUNCTION cerebro_internal._require_whole(@types@) IS
'Raises an error unless the bytes are a whole number of values of this size.';
