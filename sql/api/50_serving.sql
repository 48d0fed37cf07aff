-- Evaluating trained models and predicting with them.

-- Rows travel to the trainer, and predictions back, in chunks of bytes. A SQL function that handles single array elements
-- takes longer than the prediction itself.

CREATE OR REPLACE FUNCTION cerebro_internal._predict(rows bigint, variables bytea[]) RETURNS cerebro_internal._prediction[]
LANGUAGE plpython3u AS $py$
@cerebro@
return api.predict_chunk(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._predict(@types@) IS
'The predictions of this session''s model for a chunk of rows. variables: per input, the bytes of the arrays of all rows,
concatenated.';

-- PostgreSQL stores an array and a bytea value alike: a length, then the bytes. So byteasend, which copies a bytea value,
-- also copies an array.
CREATE OR REPLACE FUNCTION cerebro_internal._array_bytes(anyarray) RETURNS bytea
LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'byteasend';
COMMENT ON FUNCTION cerebro_internal._array_bytes(@types@) IS
'The bytes of an array as PostgreSQL stores it: its header and its elements.';

CREATE OR REPLACE FUNCTION cerebro_internal._bytes_array(bytea) RETURNS real[]
LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'byteasend';
COMMENT ON FUNCTION cerebro_internal._bytes_array(@types@) IS
'The reverse of _array_bytes for real[]. The server does not check the bytes, so no role may call this function '
'directly.';

CREATE OR REPLACE FUNCTION cerebro_internal._bytes_smallints(bytea) RETURNS smallint[]
LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'byteasend';
COMMENT ON FUNCTION cerebro_internal._bytes_smallints(@types@) IS
'As _bytes_array, for smallint[].';

CREATE OR REPLACE FUNCTION cerebro_internal._reals(numbers bytea) RETURNS real[]
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $plpgsql$
BEGIN  -- in PL/pgSQL, which keeps the plan for the next query of the session
    RETURN CASE WHEN octet_length($1) % 4 = 0 THEN
        -- the header of a real[] with that many elements, and then the numbers
        cerebro_internal._bytes_array(
            substring(cerebro_internal._array_bytes(array_fill(0::real, ARRAY[octet_length($1) / 4])) FOR 20) || $1)
        END;
END
$plpgsql$;
COMMENT ON FUNCTION cerebro_internal._reals(@types@) IS
'Converts numbers of four bytes each (float32, in the byte order of the machine) to an array.';

CREATE OR REPLACE FUNCTION cerebro_internal._smallints(numbers bytea) RETURNS smallint[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $sql$
SELECT CASE WHEN octet_length($1) % 2 = 0 THEN
       cerebro_internal._bytes_smallints(
           substring(cerebro_internal._array_bytes(array_fill(0::smallint, ARRAY[octet_length($1) / 2])) FOR 20) || $1)
       END
$sql$;
COMMENT ON FUNCTION cerebro_internal._smallints(@types@) IS
'As _reals, for numbers of two bytes each.';

CREATE OR REPLACE FUNCTION cerebro_internal._rows_of(query text) RETURNS SETOF record
LANGUAGE plpgsql STABLE ROWS 10 AS $$
BEGIN
    RETURN QUERY EXECUTE query;
END
$$;
COMMENT ON FUNCTION cerebro_internal._rows_of(@types@) IS
'The rows of a query, with the rights of the caller. A statement over it can be planned once for many queries.';

-- One row for each chunk of rows, so that the rows themselves are made by the server and not by Python.
CREATE OR REPLACE FUNCTION cerebro_internal._predict_rows(
    model_table text, query text, key text, configuration integer, top integer, coverage double precision,
    calibrated boolean, thresholds boolean, probability_of text, related text, times boolean
)
RETURNS TABLE (ids text[], outputs jsonb, answers cerebro_internal._prediction[])
LANGUAGE plpython3u AS $py$
@cerebro@
return api.predict_rows(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._predict_rows(@types@) IS
'The predictions for the rows of a query: a row for each chunk of them.';

CREATE OR REPLACE FUNCTION cerebro.predict(
    model_table   text,
    query         text,
    key           text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    top           integer DEFAULT 1,
    coverage      double precision DEFAULT NULL,
    calibrated    boolean DEFAULT NULL,
    thresholds    boolean DEFAULT false,
    probability_of text   DEFAULT NULL,
    related       text    DEFAULT NULL
) RETURNS TABLE (key_value text, target text, value double precision, class text, probability double precision,
                 rank integer, lower double precision, upper double precision, forecast_for text,
                 quantiles double precision[])
LANGUAGE sql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $sql$
SELECT CASE WHEN o.timed THEN (p.id::text[])[1] ELSE p.id END, o.name,
       CASE WHEN o.labels IS NULL THEN p.number::double precision END, o.labels[1 + p.class::integer],
       CASE WHEN o.labels IS NOT NULL THEN p.number::double precision END, a.rank,
       CASE WHEN o.pair IS NOT NULL THEN q.numbers[o.pair[1] * cardinality(s.ids) + p.place]::double precision
            ELSE p.number::double precision - o.halves[1 + width_bucket(p.number::double precision, o.edges)] END,
       CASE WHEN o.pair IS NOT NULL THEN q.numbers[o.pair[2] * cardinality(s.ids) + p.place]::double precision
            ELSE p.number::double precision + o.halves[1 + width_bucket(p.number::double precision, o.edges)] END,
       CASE WHEN o.timed THEN (p.id::text[])[2] END,
       CASE WHEN o.quantiles IS NOT NULL THEN
            ARRAY(SELECT q.numbers[g.place * cardinality(s.ids) + p.place]::double precision
                    FROM generate_series(0, cardinality(o.quantiles) - 1) AS g (place) ORDER BY g.place) END
  FROM cerebro_internal._predict_rows($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, true) s
 CROSS JOIN LATERAL unnest(s.answers) AS a
 CROSS JOIN LATERAL jsonb_to_recordset(s.outputs) AS o (output integer, name text, labels text[],
                                                        edges double precision[], halves double precision[],
                                                        wanted text[], most integer, timed boolean,
                                                        quantiles double precision[], pair integer[])
 -- the quantiles of all rows, the lowest ones first; OFFSET: they are made once
 CROSS JOIN LATERAL (SELECT CASE WHEN o.quantiles IS NOT NULL THEN cerebro_internal._reals(a.classes) END OFFSET 0) AS q (numbers)
 CROSS JOIN LATERAL ROWS FROM (unnest(s.ids),
                               unnest(CASE WHEN o.quantiles IS NULL THEN cerebro_internal._reals(a.classes) END),
                               unnest(cerebro_internal._reals(a.numbers)))
       WITH ORDINALITY AS p (id, class, number, place)
 WHERE o.output = a.output AND p.id IS NOT NULL
   AND CASE WHEN o.wanted IS NOT NULL THEN array_position(o.wanted, o.labels[1 + p.class::integer]) IS NOT NULL
            ELSE (a.rank > o.most) IS NOT TRUE END
$sql$;
COMMENT ON FUNCTION cerebro.predict(@types@) IS
'Returns the predictions of a trained model for the rows of a query, in the caller''s session. It writes no table: it
works in read-only transactions, and sees rows that the caller has not committed. The inputs are the columns of the
query with the names of the training columns; they are prepared as in training.

- model_table: the table of trained models.
- query: a query that returns the rows, for instance SELECT * FROM new_rows; or the name of a table: all its rows.
- key: the column that key_value returns, as text. NULL: a column that the model does not use, whose values differ in
  all rows; if there is none, the number of the row. A notice names it, unless it is the first column.
- configuration: the number of the configuration whose model predicts. NULL: the best one by the objective of
  the run; without an objective, the one with the lowest loss, on the validation table if there was one.
- top: how many classes of each row, the most probable first.
- coverage: the part of all values that lie from lower to upper, for instance 0.9. NULL: no intervals.
- calibrated: true returns calibrated probabilities, false those of the model. NULL: calibrated ones where cerebro.calibrate,
  as cerebro.train calls it, has found that this lowers the log loss of rows that the calibration has not seen.
- thresholds: true decides the class by the thresholds that are kept with the model: class and rank can differ from those by
  probability alone. The probabilities are calibrated.
- probability_of: a class, or several separated by commas: returns these classes with their probabilities in each row,
  instead of the most probable class. *: all classes.
- related: the related tables that the model reads, by their paths, for instance {"orders": "shop.orders"}. NULL: those that
  you named, or that auto followed, when you trained the model. For a model that another role trained, name all of them
  (docs/related.md). Related rows are read as of the time of each row; without that column, as of now. A query that has the
  columns of cerebro.related_rows needs no related tables.

coverage, calibrated and thresholds need what cerebro.calibrate has kept with the model. A number to predict is in value.
A class is in class, with its probability. A forecast has the key of the last row that it reads in key_value, and in
forecast_for, as text, the time that it is for: so many steps after the last row as the horizon says. A step is the most
frequent distance of two rows. NULL: the type of the column has no such late value. With a horizon of several rows, each has a
row. quantiles has those that the model was trained for, in rising order: value is the median, or the nearest one to it, and
coverage is that of two of them. Quantiles are calibrated, unless calibrated is false.';

CREATE OR REPLACE FUNCTION cerebro_internal._embedded(
    model_table text, query text, layer text, key text, configuration integer, related text
)
RETURNS TABLE (ids text[], numbers bytea)
LANGUAGE plpython3u AS $py$
@cerebro@
return api.embedded(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._embedded(@types@) IS
'The vectors for the rows of a query: a row for each chunk of them.';

CREATE OR REPLACE FUNCTION cerebro.embed(
    model_table   text,
    query         text,
    layer         text    DEFAULT NULL,
    key           text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    related       text    DEFAULT NULL
) RETURNS TABLE (key_value text, vector real[])
LANGUAGE sql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $sql$
SELECT p.id, q.numbers[1 + (p.place - 1) * q.width : p.place * q.width]
  FROM cerebro_internal._embedded($1, $2, $3, $4, $5, $6) s
 -- OFFSET: the array of all rows is made once
 CROSS JOIN LATERAL (SELECT cerebro_internal._reals(s.numbers),
                            octet_length(s.numbers) / 4 / cardinality(s.ids) OFFSET 0) AS q (numbers, width)
 CROSS JOIN LATERAL unnest(s.ids) WITH ORDINALITY AS p (id, place)
 WHERE p.id IS NOT NULL
$sql$;
COMMENT ON FUNCTION cerebro.embed(@types@) IS
'Returns a vector for each row of a query: what an inner layer of a trained model gives for it. Rows that are alike for the
model have vectors that are near to each other, so vectors find similar rows, and are inputs of other models. A cast makes a
type of pgvector of them: vector::vector(384), or vector::halfvec(384). It works in the caller''s session, as cerebro.predict.

- model_table, query, key, configuration, related: as in cerebro.predict. The target need not be among the columns.
- layer: the name of the layer. Of a layer in a model within the model, the names are separated by /. NULL: what enters the
  last layer with a matrix, the vector from which the model makes its answer; of an ensemble, those of its members joined.
  An error about a layer that does not exist names those that do.';

CREATE OR REPLACE FUNCTION cerebro.predict_into(
    model_table   text,
    source_table  text,
    output_table  text,
    key           text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    top           integer DEFAULT 1,
    coverage      double precision DEFAULT NULL,
    calibrated    boolean DEFAULT NULL,
    thresholds    boolean DEFAULT false,
    probability_of text   DEFAULT NULL,
    keep          text    DEFAULT NULL,
    related       text    DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.predict_into(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.predict_into(@types@) IS
'Predicts all rows of a table or view, and writes the predictions into a new table: a row for each row, with the key and
the predictions in columns of their own types. Returns the number of predicted rows, windows or steps. The inputs are the
columns with the names of the training columns; they are prepared as in training. On PostgreSQL, a table or materialized
view of more than 4 MB is predicted on all segments at the same time; all else is predicted in your own session. On
Greenplum, only what other sessions cannot see is predicted in your own session. Models of groups predict in your own
session, each row by the model of its group.

- model_table: the table of trained models.
- source_table: the table or view with the rows.
- output_table: the new table. It has the columns of the key, the columns of keep, and a column predicted_TARGET. A class
  has the type of the target, and its probability is in probability. A number is double precision, with lower and upper if
  coverage is given. Quantiles are in q10, q50 and so on. The time that a forecast is for is in forecast_for. If the model has several targets, the names of
  the columns of probabilities and intervals begin with that of the target.
- key: the column that tells the rows apart. NULL: the columns of the primary key or of another unique index; else
  a column that the model does not use, whose values differ in the first 1,000 rows.
- keep: further columns of the rows for the new table, separated by commas. *: all columns. Of a window or step, those of its
  last row.
- probability_of: a class, or several separated by commas: the probability of each is in a column probability_CLASS. *: all
  classes.
- top: how many of the most probable classes the table has for each row, one row for each; the column rank numbers them.
- configuration, coverage, calibrated, thresholds, related: as in cerebro.predict.';

CREATE OR REPLACE FUNCTION cerebro_internal._with_related(model_table text, query text, related text) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.with_related(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._with_related(@types@) IS
'A query for the rows of a query with the columns that a model reads of related tables.';

CREATE OR REPLACE FUNCTION cerebro.related_rows(
    model_table text, query text, output_table text, related text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.related_rows(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.related_rows(@types@) IS
'Writes the rows of a query into a new table, with the columns that a model reads of related tables beside their own columns.
Returns the number of rows. With these columns, cerebro.predict and the exported model need no related tables.

- model_table: the table of trained models, or a packed table.
- query: a query that returns the rows, with the keys that lead to related tables and the time of each row; or the name of a
  table.
- output_table: the new table.
- related: as in cerebro.predict.';

CREATE OR REPLACE FUNCTION cerebro.create_predictor(
    model_table text, function_name text, configuration integer DEFAULT NULL, replace boolean DEFAULT false,
    thresholds boolean DEFAULT false, related text DEFAULT NULL
) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.create_predictor(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.create_predictor(@types@) IS
'Creates a SQL function that predicts one row: its arguments are the input columns of a trained model, its result is the
number or the class. Returns how to call it. Each call predicts on its own; for many rows use cerebro.predict.

If the model reads windows, the function predicts one window. Each argument is an array with the values of its rows, in
their order.

If the model table has models of groups, the columns that tell the groups apart are the first arguments.

While a transaction replaces the model table, the function waits for it. Afterwards it predicts with the new table.

- model_table: the table of trained models.
- function_name: of the new function, with or without a schema. A call may leave out input columns, which are then NULL,
  but not the arrays of a window.
- configuration: the number of the configuration whose model predicts. NULL: the best one by the objective of
  the run; without an objective, the one with the lowest loss, on the validation table if there was one. The function
  chooses it in each call.
- replace: true replaces a function of that name that cerebro.create_predictor has made.
- thresholds: true decides the class by the thresholds that cerebro.calibrate has kept.
- related: as in cerebro.predict. The function reads these tables for whoever calls it, with the caller''s rights. Of a model
  that reads related tables, the arguments are the columns of the row itself, and the time of the row: NULL is now.';

CREATE OR REPLACE FUNCTION cerebro.calibrate(
    model_table   text,
    query         text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    decide_by     text    DEFAULT 'f1',
    seconds       double precision DEFAULT NULL,
    related       text    DEFAULT NULL
) RETURNS TABLE (target text, measure text, before double precision, after double precision)
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.calibrate(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.calibrate(@types@) IS
'Learns from rows that did not train a model how far its predictions can be trusted, and keeps that with the model, in the
column calibration of the table model_table_info. Then cerebro.predict gives intervals, calibrated probabilities and classes
by thresholds on request. Returns what it has found: for each measure the value on these rows before and after. A second
call replaces what the first one has kept of a target. Only the owner of the model table can call it.

- A number: quantiles of the errors (split conformal prediction). Half of 400 or more rows say how large the errors are for
  small and for large predictions. interval_width: the mean width of the intervals of a level.
- A class: one temperature for all probabilities, which leaves their order as it is, and thresholds of the classes.
  log_loss, the same cross-validated, ece (the expected calibration error), mean f1 and balanced_accuracy say what they change.
- model_table: the table of trained models.
- query: a query that returns rows with the inputs and the target, or the name of a table, which may be packed. NULL: the
  rows that the run took for validation. They have chosen the best model and the best epoch, so its errors on them are
  slightly too small.
- target: the column to calibrate for. NULL: all targets.
- configuration, related: as in cerebro.predict.
- decide_by: what the thresholds make as large as possible: f1 (the mean of F1 over the classes) or balanced_accuracy (the
  mean of the recall). Or a JSON object that says what it costs to miss a row of a class, for instance {"bad": 10}; 1 for the
  others. NULL: none.
- seconds: the time for it. When half of it is over, no further packed rows are predicted, and of the predictions as many
  are used as there is time for, but at least 1,000. cerebro.train gives what is left of its budget. NULL: all rows.';

CREATE OR REPLACE FUNCTION cerebro._require_window(length integer, given integer[]) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT length = ALL (given) OR pg_catalog.array_position(given, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'the model reads windows of % rows, and the arrays have % elements', length,
                        pg_catalog.array_to_string(given, ', ', '0')
              USING ERRCODE = 'invalid_parameter_value', HINT = 'Each array has the values of all rows, in their order.';
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION cerebro._require_window(@types@) IS
'True if all these lengths of arrays are that of a window; else an error.';

CREATE OR REPLACE FUNCTION cerebro.ensemble(
    model_table text, output_table text, members integer DEFAULT 8, all_join boolean DEFAULT false,
    seconds double precision DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.ensemble(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.ensemble(@types@) IS
'Makes one model of the best models of a run. Its predictions are the means of their predictions. Of a model and the
copies that go on from it, only the best one can join. All of the best models join, or all but the worst ones. The
exception: a search looks for the mean of some of them that predicts the validation rows of the run best. If its loss is
smaller by more than a standard error, only these join. If the run has another objective than this loss, the mean is taken
only if its objective on the validation rows is better than that of the best model. So the ensemble may be one model. The
tables output_table, output_table_info and output_table_summary are as those of cerebro.fit, with one model, configuration 1.

- model_table: the table of trained models. They need functional architectures, as cerebro.architecture makes them.
- output_table: the table to be made. NULL adds the ensemble to model_table, as its next configuration, if it has more than
  one member and is not there yet. Only the owner of the table can do that. This is what cerebro.train does.
- members: how many members there are at most.
- all_join: true makes the mean of so many of the best models, by the objective of the run. So does a run without
  validation rows, or of another role.
- seconds: when this time is over, no further model is compared with those that were. NULL: all are compared.';
