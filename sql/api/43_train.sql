-- From a table to a trained model in one call.

CREATE OR REPLACE FUNCTION cerebro.train(
@arguments@
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.train(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.train(@types@) IS
'Trains a model on a table with columns of nearly any type, and returns the number of the run. It packs the table,
chooses architectures and a search space for the target, searches until the budget is used, and keeps the best epoch of
each model. The models are in model_table, which cerebro.predict takes. The best model is calibrated on the rows for
validation, as by cerebro.calibrate. Notices say what was decided; an argument overrides each decision. docs/train.md says
how the decisions are made.

- source_table: a table, a view or a foreign table, which is packed unless an earlier call has packed the same rows with
  the same arguments; or a packed table.
- target: the columns to predict, separated by commas.
- @packing@: as in cerebro.pack.
- validation: the share of the rows for validation. NULL: a fifth of the rows, and at most 200,000 rows or windows.
- stratify: as in cerebro.pack. NULL: true if the target has few classes and the table at most 100,000 rows.
  With a sequence, NULL is false.
- folds: chooses the configuration by cross-validation with so many folds, as in cerebro.pack, instead of rows for
  validation. The models in the table are trained on all rows; cerebro.cross_validation shows mean and spread.
- group_by: as in cerebro.search. The best model is not calibrated then.
- packed_table: the name of the packed table, which stays until you drop it. NULL: that of an earlier call with the same
  rows, or a new table in the schema cerebro_data, which is dropped with the last model that was trained on it.
- architectures: a list of architectures, such as ["mlp"], or an object with the parameters of each kind, as in
  cerebro.architecture. A parameter "$units" is one of the space.
- space: as in cerebro.search. Each entry replaces the planned one of that name.
- method, max_configurations, at_once, start_from, evaluate_every: as in cerebro.search.
- epochs: number of epochs of a model that is never stopped. NULL: follows from the number of rows and the budget.
- budget: how long the call may take, for instance 2 hours; or limits as in cerebro.fit. It counts
  from the start of the call, but training has at least a tenth of it. Visits that have begun are completed, and at least one
  model completes an epoch. NULL: no limit.
- refit: true trains the best model, or the members of the ensemble, once more on all rows, those for validation included,
  for as many epochs as each needed. Predictions take the mean of the model before and the new one. Its figures are those
  of the model before, because no rows are left to judge it. Three tenths of the budget are kept back for it. Not for packed
  tables.
- options: as in cerebro.fit; keep is best, unless it says otherwise.
- the other arguments: as in cerebro.fit.';
