-- Trained models on other rows.

CREATE TYPE cerebro._prediction AS (id text, output integer, probabilities real[]);

CREATE FUNCTION cerebro._row_in(id text, variables bytea[]) RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.row_in(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._row_in(text, bytea[]) IS 'Takes one row to be predicted.';

CREATE FUNCTION cerebro._predictions_out() RETURNS SETOF cerebro._prediction
LANGUAGE plpython3u AS $py$
@cerebro@
return api.predictions_out(plpy)
$py$;
COMMENT ON FUNCTION cerebro._predictions_out() IS 'What the model says about the rows that came in.';

CREATE FUNCTION cerebro.madlib_keras_evaluate(
    model_table  text,
    test_table   text,
    output_table text,
    use_gpus     boolean DEFAULT false,
    mst_key      integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.keras_evaluate(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.madlib_keras_evaluate(text, text, text, boolean, integer) IS
'Loss and metric of one trained model on a packed table, computed on all of its segments at once; leaves one row in OUTPUT_TABLE.';

CREATE FUNCTION cerebro.madlib_keras_predict(
    model_table         text,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           text    DEFAULT 'prob',
    use_gpus            boolean DEFAULT false,
    mst_key             integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.keras_predict(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.madlib_keras_predict(text, text, text, text, text, text, boolean, integer) IS
'Predictions of one trained model for the rows of a table or view, unpacked as they are.
 pred_type: prob (every class with its probability and rank) or response (the best class only).
 A regression model leaves one column estimated_<name> per dependent variable.';

CREATE FUNCTION cerebro.madlib_keras_predict(
    model_table         text,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           integer,
    use_gpus            boolean DEFAULT false,
    mst_key             integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.keras_predict(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.madlib_keras_predict(text, text, text, text, text, integer, boolean, integer) IS
'The same for the so many best classes of each row.';

CREATE FUNCTION cerebro.madlib_keras_predict(
    model_table         text,
    test_table          text,
    id_col              text,
    independent_varname text,
    output_table        text,
    pred_type           double precision,
    use_gpus            boolean DEFAULT false,
    mst_key             integer DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.keras_predict(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.madlib_keras_predict(text, text, text, text, text, double precision, boolean, integer) IS
'The same for the classes whose probability is above a threshold.';
