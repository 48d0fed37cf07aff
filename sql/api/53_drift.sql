-- Whether the rows of today are still like those that a model was trained on.

CREATE OR REPLACE FUNCTION cerebro.drift(model_table text, query text, related text DEFAULT NULL)
RETURNS TABLE (column_name text, is_target boolean, psi double precision, psi_by_chance double precision,
               jensen_shannon double precision, nulls double precision, nulls_in_training double precision, rows bigint,
               largest_change text)
LANGUAGE plpython3u
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.drift_rows(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.drift(@types@) IS
'Returns how far the rows of a query are from those that a model was trained on: a row for each column, the most different
one first. The rows are counted in bins where they are; no row leaves the database or is predicted. Packing keeps the bins:
ten parts of equal size of a number or date, the 20 most frequent values of a category, and NULL. Columns of texts that
become words, and arrays, are left out.

- model_table: a model table, a registered model such as ''churn@production'', or a table that cerebro.pack has made.
- query: a query that returns the input columns, for instance SELECT * FROM new_rows; or the name of a table: all its rows.
  If they have the target, that is compared, too.
- psi: the population stability index, the sum of (q - p) ln(q / p) over the bins, with the shares p of the training rows
  and q of these rows. Usual limits: below 0.1 little has changed, above 0.25 much has.
- psi_by_chance: about the psi that so few rows would have if nothing had changed. A psi that is not well above it says nothing.
- jensen_shannon: the Jensen-Shannon divergence in bits, from 0 (equal shares) to 1 (no bin has rows of both).
- nulls, nulls_in_training: the shares of the rows that are NULL.
- rows: how many rows the query returned.
- largest_change: the bin that adds most to psi, with its shares.';
