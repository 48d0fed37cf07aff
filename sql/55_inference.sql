-- Trained models on other rows.

-- Rows go to the trainer, and answers come back, many at a time, as bytes that nobody looks at on the way: an element
-- that passes through a function of its own takes longer than to predict with it.

-- What a model says of a chunk of rows, at one of its outputs: all numbers, or each row's class of some rank.
CREATE TYPE cerebro._prediction AS (output integer, rank integer, classes bytea, numbers bytea);

CREATE FUNCTION cerebro._predict(rows bigint, variables bytea[]) RETURNS cerebro._prediction[]
LANGUAGE plpython3u AS $py$
@cerebro@
return api.predict_chunk(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro._predict(bigint, bytea[]) IS
'What the model says of so many rows; per input, the bytes of their arrays one after the other.';

-- An array is bytes after its length, as bytea is, so a function that copies the one copies the other.
CREATE FUNCTION cerebro._array_bytes(anyarray) RETURNS bytea
LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'byteasend';
COMMENT ON FUNCTION cerebro._array_bytes(anyarray) IS 'An array as it lies in memory, header and elements.';

CREATE FUNCTION cerebro._bytes_array(bytea) RETURNS real[]
LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'byteasend';
COMMENT ON FUNCTION cerebro._bytes_array(bytea) IS
'What _array_bytes makes of a real[], as that again; the server believes it, so nobody may call it.';

CREATE FUNCTION cerebro._reals(numbers bytea) RETURNS real[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $sql$
SELECT CASE WHEN octet_length($1) % 4 = 0 THEN
       -- the header is that of an array of that many numbers
       cerebro._bytes_array(substring(cerebro._array_bytes(array_fill(0::real, ARRAY[octet_length($1) / 4])) FOR 20) || $1)
       END
$sql$;
COMMENT ON FUNCTION cerebro._reals(bytea) IS 'Numbers of four bytes each, as an array.';

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
