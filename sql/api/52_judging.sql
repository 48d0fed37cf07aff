-- How good a trained model is, as plain rows: the predictions for the rows of a query beside the values that they have.
--
-- What cerebro_internal._judging returns goes through a variable: on Greenplum, the arguments of cerebro.predict cannot come from
-- another table of the query.

CREATE OR REPLACE FUNCTION cerebro_internal._judging(
    function text, model_table text, query text, target text, key text, wanted text, configuration integer,
    bins integer DEFAULT 1, coverage double precision DEFAULT NULL, calibrated boolean DEFAULT NULL,
    thresholds boolean DEFAULT false, related text DEFAULT NULL
) RETURNS TABLE (rows_query text, row_key text, of_target text, class text, null_is_class boolean, classes integer)
LANGUAGE plpython3u AS $py$
@cerebro@
return api.judging(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._judging(@types@) IS
'What the functions that judge a model give to cerebro.predict. Each row_key of rows_query is an array in JSON: the key of the
row and the value that the target has. classes: how many the target has; NULL: it is a number.';

CREATE OR REPLACE FUNCTION cerebro.evaluate(
    model_table   text,
    query         text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    coverage      double precision DEFAULT NULL,
    calibrated    boolean DEFAULT NULL,
    thresholds    boolean DEFAULT false,
    related       text    DEFAULT NULL
) RETURNS TABLE (metric text, value double precision, baseline double precision)
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.evaluate(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.evaluate(@types@) IS
'Returns how good a trained model is: a row for each metric, with what an answer gets that is the same for every row. It writes
no table.

- query: as in cerebro.confusion_matrix. NULL: the rows for validation that the run of the model kept, if it is a run of yours.
  These rows chose the best model, so it is slightly worse on new rows. More than 50,000 rows (of many classes, 500,000
  probabilities) are judged by a random sample, which is the same in each call.
- Of a class: accuracy, log_loss (probabilities below 1e-7 count as 1e-7), f1, auc, balanced_accuracy (the mean of the
  recall over the actual classes) and ece. With two classes, f1 and auc are those of the second class; with more, the means
  over the classes that occur (each class against all others). ece, the expected calibration error, is the mean distance
  between the probability of the predicted class and how often it is right, in ten bins of this probability.
- Of a number: rmse, mse, mae, mape (as a part of 1, over the rows whose target is not 0) and r2. With the argument coverage
  also coverage, the part of the rows whose target is in its interval, and interval_width, the mean width.
- rows: how many rows were compared. Rows whose target is NULL are left out, unless NULL is a class of the model. A class
  that training did not have counts as a wrong prediction with the probability 0.
- baseline: what the simplest answer gets. Of a number it is the mean of these rows, of a class the most frequent class of these
  rows. The log_loss is that of the frequencies of the classes as probabilities. NULL: the metric has no baseline.
- A metric is NULL if these rows do not define it, for instance auc if they have one class only.
- coverage, calibrated, thresholds, related: as in cerebro.predict; the metrics are those of such predictions.
- model_table, target, configuration: as in cerebro.confusion_matrix. A window is compared with the
  target that packing gives it: that of its last row, or the majority.';

CREATE OR REPLACE FUNCTION cerebro_internal._validation_sample(model_table text, configuration integer) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.validation_sample(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._validation_sample(@types@) IS
'What the page about a model shows of the rows for validation of its run, as JSON: for each target the predicted and the
actual values of at most 50,000 rows, and some rows as examples, with the values of their columns.';

CREATE OR REPLACE FUNCTION cerebro_internal._validation_explained(
    model_table text, configuration integer, numbers integer[]
) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.validation_explained(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._validation_explained(@types@) IS
'What the page about a model shows of its examples, as JSON: by target and number of the row, what the columns add to the
prediction, compared with other rows for validation.';

CREATE OR REPLACE FUNCTION cerebro.confusion_matrix(
    model_table   text,
    query         text,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    thresholds    boolean DEFAULT false,
    related       text    DEFAULT NULL
) RETURNS TABLE (actual text, predicted text, count bigint, share double precision)
LANGUAGE plpgsql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $$
#variable_conflict use_column
DECLARE
    judged record;
BEGIN
    SELECT * INTO judged FROM cerebro_internal._judging('cerebro.confusion_matrix', $1, $2, $3, NULL, 'class', $4,
                                               thresholds => $5, related => $6);
    RETURN QUERY
    SELECT g.actual, g.predicted, g.n, g.n / sum(g.n) OVER (PARTITION BY g.actual)::double precision
      FROM (SELECT p.key_value::json ->> 1 AS actual, p.class AS predicted, count(*) AS n
              FROM cerebro.predict($1, judged.rows_query, judged.row_key, $4, thresholds => $5, related => $6) p
             WHERE p.target = judged.of_target
             GROUP BY 1, 2) g
     ORDER BY 1, 2;
END
$$;
COMMENT ON FUNCTION cerebro.confusion_matrix(@types@) IS
'Returns how many rows of each class a trained model predicts as which class. share is the part of the rows of the actual
class. Values of the target are read in the type that it had in training, so that 0 is the class 0.0 of a numeric. A value
that no class has is shown as text.

- model_table: the table of trained models.
- query: a query that returns rows with the inputs and the target, for instance SELECT * FROM new_rows; or the name of a
  table: all its rows.
- target: the column that is judged. NULL: the only target of the model.
- configuration, thresholds, related: as in cerebro.predict.';

CREATE OR REPLACE FUNCTION cerebro.class_metrics(
    model_table   text,
    query         text,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    thresholds    boolean DEFAULT false,
    related       text    DEFAULT NULL
) RETURNS TABLE (class text, "precision" double precision, recall double precision, f1 double precision, rows bigint,
                 predicted bigint)
LANGUAGE plpgsql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $$
#variable_conflict use_column
DECLARE
    judged record;
BEGIN
    SELECT * INTO judged FROM cerebro_internal._judging('cerebro.class_metrics', $1, $2, $3, NULL, 'class', $4, thresholds => $5,
                                               related => $6);
    RETURN QUERY
    SELECT c.class, c.hits / nullif(c.predicted, 0)::double precision, c.hits / nullif(c.n, 0)::double precision,
           2 * c.hits / (c.n + c.predicted)::double precision, c.n, c.predicted
      FROM (SELECT v.class, sum(v.hits)::bigint AS hits, sum(v.n)::bigint AS n, sum(v.predicted)::bigint AS predicted
              FROM (SELECT p.key_value::json ->> 1 AS actual, p.class, count(*) AS n
                      FROM cerebro.predict($1, judged.rows_query, judged.row_key, $4, thresholds => $5, related => $6) p
                     WHERE p.target = judged.of_target
                     GROUP BY 1, 2) g
             CROSS JOIN LATERAL (VALUES
                 (g.actual, CASE WHEN g.actual IS NOT DISTINCT FROM g.class THEN g.n ELSE 0 END, g.n, 0),
                 (g.class, 0, 0, g.n)) AS v (class, hits, n, predicted)
             WHERE g.actual IS NOT NULL OR judged.null_is_class
             GROUP BY 1) c
     ORDER BY 1;
END
$$;
COMMENT ON FUNCTION cerebro.class_metrics(@types@) IS
'Returns for each class of the rows of a query how good a trained model is: the precision (which part of the rows predicted as
the class has it), the recall (which part of the rows with the class is predicted as it), F1, how many rows have the class,
and as how many it is predicted. Rows whose target is NULL are left out, unless NULL is a class of the model.

- model_table, query, target, configuration, thresholds, related: as in cerebro.confusion_matrix.';

CREATE OR REPLACE FUNCTION cerebro_internal._scored(
    function text, model_table text, query text, class text, target text, configuration integer, bins integer DEFAULT 1,
    calibrated boolean DEFAULT NULL, related text DEFAULT NULL
) RETURNS TABLE (positive integer, probability double precision)
LANGUAGE plpgsql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $$
#variable_conflict use_column
DECLARE
    judged record;
BEGIN
    SELECT * INTO judged FROM cerebro_internal._judging($1, $2, $3, $5, NULL, concat_ws(' ', 'one', $4), $6, $7,
                                               calibrated => $8, related => $9);
    RETURN QUERY
    SELECT ((p.key_value::json ->> 1) IS NOT DISTINCT FROM judged.class)::integer, p.probability
      FROM cerebro.predict($2, judged.rows_query, judged.row_key, $6, 1000000, calibrated => $8, related => $9) p
     WHERE p.target = judged.of_target AND p.class IS NOT DISTINCT FROM judged.class
       AND ((p.key_value::json ->> 1) IS NOT NULL OR judged.null_is_class);
END
$$;
COMMENT ON FUNCTION cerebro_internal._scored(@types@) IS
'The probability of a class for each row of a query, and whether the row has the class (1 or 0).';

CREATE OR REPLACE FUNCTION cerebro.roc_curve(
    model_table   text,
    query         text,
    class         text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    related       text    DEFAULT NULL
) RETURNS TABLE (threshold double precision, true_positive_rate double precision, false_positive_rate double precision)
LANGUAGE sql AS $sql$
SELECT g.probability, sum(g.positives) OVER higher / nullif(sum(g.positives) OVER (), 0)::double precision,
       sum(g.n - g.positives) OVER higher / nullif(sum(g.n - g.positives) OVER (), 0)::double precision
  FROM (SELECT s.probability, sum(s.positive) AS positives, count(*) AS n
          FROM cerebro_internal._scored('cerebro.roc_curve', $1, $2, $3, $4, $5, related => $6) s GROUP BY 1) g
WINDOW higher AS (ORDER BY g.probability DESC)
 ORDER BY 1 DESC
$sql$;
COMMENT ON FUNCTION cerebro.roc_curve(@types@) IS
'Returns the ROC curve of a class: for each threshold, which part of the rows with the class, and of those without it,
has at least this probability. Rates are NULL if there are no such rows. Rows whose target is NULL are left out, unless
NULL is a class of the model.

- class: the class, as text. NULL: the second one of a target with two classes.
- model_table, query, target, configuration, related: as in cerebro.confusion_matrix.';

CREATE OR REPLACE FUNCTION cerebro.precision_recall(
    model_table   text,
    query         text,
    class         text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    related       text    DEFAULT NULL
) RETURNS TABLE (threshold double precision, "precision" double precision, recall double precision, f1 double precision)
LANGUAGE sql AS $sql$
SELECT c.probability, c.found / c.n, c.found / nullif(c.positives, 0), 2 * c.found / nullif(c.n + c.positives, 0)
  FROM (SELECT g.probability, sum(g.positives) OVER higher::double precision AS found, sum(g.n) OVER higher AS n,
               sum(g.positives) OVER () AS positives
          FROM (SELECT s.probability, sum(s.positive) AS positives, count(*) AS n
                  FROM cerebro_internal._scored('cerebro.precision_recall', $1, $2, $3, $4, $5, related => $6) s GROUP BY 1) g
        WINDOW higher AS (ORDER BY g.probability DESC)) c
 ORDER BY 1 DESC
$sql$;
COMMENT ON FUNCTION cerebro.precision_recall(@types@) IS
'Returns for each threshold of a class''s probability the precision (which part of the rows at or above it has the class),
the recall (which part of the rows with the class is at or above it), and F1.

- model_table, query, class, target, configuration, related: as in cerebro.roc_curve.';

CREATE OR REPLACE FUNCTION cerebro.calibration(
    model_table   text,
    query         text,
    class         text    DEFAULT NULL,
    bins          integer DEFAULT 10,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    calibrated    boolean DEFAULT NULL,
    related       text    DEFAULT NULL
) RETURNS TABLE (bin integer, predicted double precision, actual double precision, count bigint)
LANGUAGE sql AS $sql$
SELECT b.bin, avg(b.probability), avg(b.positive)::double precision, count(*)
  FROM (SELECT LEAST(floor(s.probability * $4), $4 - 1)::integer + 1 AS bin, s.probability, s.positive
          FROM cerebro_internal._scored('cerebro.calibration', $1, $2, $3, $5, $6, $4, $7, $8) s) b
 GROUP BY 1
 ORDER BY 1
$sql$;
COMMENT ON FUNCTION cerebro.calibration(@types@) IS
'Returns, for bins of the probability of a class, the mean probability and the part of the rows that have the class. They
are equal if the probabilities are right. Bins without rows are left out.

- bins: how many bins from 0 to 1.
- calibrated: as in cerebro.predict.
- model_table, query, class, target, configuration, related: as in cerebro.roc_curve.';

CREATE OR REPLACE FUNCTION cerebro.residuals(
    model_table   text,
    query         text,
    key           text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    related       text    DEFAULT NULL
) RETURNS TABLE (key_value text, actual double precision, predicted double precision, residual double precision)
LANGUAGE plpgsql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $$
#variable_conflict use_column
DECLARE
    judged record;
BEGIN
    SELECT * INTO judged FROM cerebro_internal._judging('cerebro.residuals', $1, $2, $4, $3, 'number', $5, related => $6);
    RETURN QUERY
    SELECT p.key_value::json ->> 0, (p.key_value::json ->> 1)::double precision, p.value,
           (p.key_value::json ->> 1)::double precision - p.value
      FROM cerebro.predict($1, judged.rows_query, judged.row_key, $5, related => $6) p
     WHERE p.target = judged.of_target;
END
$$;
COMMENT ON FUNCTION cerebro.residuals(@types@) IS
'Returns for each row of a query the number that the target has, the number that a trained model predicts, and the
difference: actual - predicted.

- key: the column that key_value returns, as text. NULL: the number of the row.
- model_table, query, target, configuration, related: as in cerebro.confusion_matrix.';

CREATE OR REPLACE FUNCTION cerebro.mistakes(
    model_table   text,
    query         text,
    key           text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    thresholds    boolean DEFAULT false,
    related       text    DEFAULT NULL
) RETURNS TABLE (key_value text, actual text, predicted text, probability double precision)
LANGUAGE plpgsql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $$
#variable_conflict use_column
DECLARE
    judged record;
BEGIN
    SELECT * INTO judged FROM cerebro_internal._judging('cerebro.mistakes', $1, $2, $4, $3, 'class', $5, thresholds => $6,
                                               related => $7);
    RETURN QUERY
    SELECT p.key_value::json ->> 0, p.key_value::json ->> 1, p.class, p.probability
      FROM cerebro.predict($1, judged.rows_query, judged.row_key, $5, thresholds => $6, related => $7) p
     WHERE p.target = judged.of_target AND (p.key_value::json ->> 1) IS DISTINCT FROM p.class
       AND ((p.key_value::json ->> 1) IS NOT NULL OR judged.null_is_class)
     ORDER BY p.probability DESC, 1;
END
$$;
COMMENT ON FUNCTION cerebro.mistakes(@types@) IS
'Returns the rows of a query whose class a trained model predicts wrongly, those first of which the model is surest. Rows
whose target is NULL are left out, unless NULL is a class of the model. probability: that of the predicted class. Models of
windows whose target is that of the majority are refused: no single row has it.

- key: the column that key_value returns, as text. NULL: the number of the row.
- model_table, query, target, configuration, thresholds, related: as in cerebro.confusion_matrix.';

CREATE OR REPLACE FUNCTION cerebro.importance(
    model_table   text,
    query         text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    repeats       integer DEFAULT 1,
    related       text    DEFAULT NULL
) RETURNS TABLE (column_name text, importance double precision, loss double precision, loss_before double precision)
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.importance(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.importance(@types@) IS
'Returns how much a trained model needs each input column, the most important first: by how much its loss grows if the
values of the column are shuffled among the rows.

- query: a query that returns rows with the inputs and the target, or the name of a packed table that cerebro.pack,
  cerebro.pack_plain or cerebro.pack_like has made. NULL: the rows for validation that the run of the model kept, if it is
  a run of yours; they are the rows of a packed table. The rows of a query are predicted in this session, once
  for each column and shuffle; the loss is the mean squared error of a number, and the mean cross-entropy of a class. The
  rows of a packed table are evaluated on their segments, and values are shuffled among the rows of a segment. The loss
  is that of madlib.madlib_keras_evaluate. All numbers that a column became are shuffled together, an array as a whole, and of
  a window the values of all its rows. The row PATH.* has the columns of one related table, shuffled together. The shuffles are
  the same in each call.
- target: as in cerebro.confusion_matrix. With a packed table, NULL takes the loss of all targets.
- repeats: over how many random shuffles of each column the loss is averaged, from 1 to 1000.
- model_table, configuration, related: as in cerebro.confusion_matrix.';

CREATE OR REPLACE FUNCTION cerebro_internal._explained(
    model_table text, query text, key text, target text, wanted text, configuration integer, background text,
    related text
)
RETURNS TABLE (key_value text, target text, class text, column_name text, value text, contribution double precision,
               base double precision, prediction double precision)
LANGUAGE plpython3u AS $py$
@cerebro@
return api.explained(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro_internal._explained(@types@) IS
'What cerebro.explain returns. wanted: its argument class.';

CREATE OR REPLACE FUNCTION cerebro.explain(
    model_table   text,
    query         text,
    key           text    DEFAULT NULL,
    target        text    DEFAULT NULL,
    class         text    DEFAULT NULL,
    configuration integer DEFAULT NULL,
    background    text    DEFAULT NULL,
    related       text    DEFAULT NULL
) RETURNS TABLE (key_value text, target text, class text, column_name text, value text, contribution double precision,
                 base double precision, prediction double precision)
LANGUAGE sql
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $sql$
SELECT e.key_value, e.target, e.class, e.column_name, e.value, e.contribution, e.base, e.prediction
  FROM cerebro_internal._explained($1, $2, $3, $4, $5, $6, $7, $8) e
$sql$;
COMMENT ON FUNCTION cerebro.explain(@types@) IS
'Explains predictions: returns for each row of a query, and each input column, what the column''s value adds to the
prediction. base is the mean prediction of other rows, the background. The contributions of all columns of a row add up
to prediction - base. They are Shapley values: a contribution is the mean change of the prediction when the column changes
from the value of a background row to that of the row, over all orders in which the columns may change.

With at most 10 columns, the contributions in few rows are exact. In many rows their error is at most 0.02 as a rule; of a
number, 0.02 of the standard deviation of its predictions. With more columns they are estimates; the fewer rows a call
explains, the more exact they are. Two calls return the same numbers.

What is explained is the number, or the probability of a class as cerebro.predict returns it. An
array, an image, or the values of a column in all rows of a window count as one column. value is NULL if it takes more
than 400 bytes as stored. Models of groups explain each row by the model of its group.

- model_table, configuration, related: as in cerebro.predict.
- query: a query that returns the rows, for instance SELECT * FROM new_rows LIMIT 100; or the name of a table. Each row is
  predicted hundreds or thousands of times.
- key: the column that key_value returns, as text. NULL: a unique key, or else a column that the model does not use, whose
  values differ in the first 1,000 rows; if there is none, the number of the row.
- target: the target whose predictions are explained. NULL: all targets.
- class: the class whose probability is explained. NULL: of each row the predicted class.
- background: a query that returns the background, at most 1,024 rows; or the name of a table. More of them take longer.
  NULL: 16 of 512 rows for validation, whose predictions are spread as those of the 512. If these rows cannot be read, or
  the run had none, 16 of the first 512 rows of the query, which must not all be equal; a notice says so.';
