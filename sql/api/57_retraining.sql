-- Next month: the registered configuration on new rows, promoted only if it wins.

CREATE OR REPLACE FUNCTION cerebro.retrain(
    registered_model text,
    alias            text    DEFAULT 'production',
    source_table     text    DEFAULT NULL,
    query            text    DEFAULT NULL,
    metric           text    DEFAULT NULL,
    margin           double precision DEFAULT 0,
    epochs           integer DEFAULT NULL,
    use_gpus         boolean DEFAULT false,
    if_unchanged     boolean DEFAULT false,
    wait             boolean DEFAULT true,
    validation_table text    DEFAULT NULL,
    budget           text    DEFAULT NULL,
    standard_errors  double precision DEFAULT 1
) RETURNS TABLE (run bigint, version integer, metric text, before double precision, after double precision,
                 promoted boolean)
LANGUAGE plpython3u
SET synchronize_seqscans = off SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.retrain(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.retrain(@types@) IS
'Trains the configuration of a registered model on the rows that its table has now, and compares the new model with the
version that the alias names, on the same rows. It registers the new model as a version, and moves the alias to it if it is
better. It returns one row, or none if there was nothing to do: the rows are those of the version or of the last call, or
another session retrains the same model. So a scheduler can call it as often as it likes.

- registered_model, alias: the version to retrain, for instance ''churn'' and ''production''.
- source_table: the rows to train on. NULL: the table that you named when you trained the version. If another role trained
  it, if it was imported, or if the call named packed rows, say which table. The rows are packed with the arguments of that
  time, but with the means, categories and quantiles of today.
- query: the rows for the comparison, with the inputs and the target: a query, or the name of a table. NULL: the rows of
  source_table that are for validation. A hash of the key chooses them, so those of the old rows did not train the old
  model, either; docs/production.md#retrain-in-one-call names the exceptions.
- metric: a metric of cerebro.evaluate. NULL: that of the objective of the version''s run; else log_loss or rmse.
- margin: how much better the new model must be in this metric.
- epochs: NULL: as many as the best state of the version was trained for.
- use_gpus: as in cerebro.fit.
- if_unchanged: true trains although the rows have not changed.
- wait: false returns as soon as the run is on record, and only its number; another session does the rest.
- validation_table: a table with the rows for validation. NULL: the one that you named when you trained the version, or, if
  it had none, a part of source_table. As for source_table, you name it if another role trained the version.
- budget: how long the new model may be trained, for instance ''10 minutes'', as in cerebro.fit. NULL: without epochs, the
  budget of the version''s run.
- standard_errors: the new model must be better by more than so many standard errors of the difference. 0: margin alone
  decides.

A version that is an ensemble gets a new ensemble: its members are trained one by one, and cerebro.ensemble chooses among them.

before and after are the metric of the old and the new model. cerebro.registry_history has the same, in the reason of each
event. The model table and the packed tables of the call are dropped at its end.';
