-- From a table to a trained model in one call.

CREATE OR REPLACE FUNCTION cerebro.train(
    source_table       text,
    model_table        text,
    target             text    DEFAULT NULL,
    budget             text    DEFAULT '10 minutes',
    inputs             text    DEFAULT NULL,
    prepare            json    DEFAULT NULL,
    weights            text    DEFAULT NULL,
    class_weight       text    DEFAULT NULL,
    sequence           json    DEFAULT NULL,
    validation         double precision DEFAULT NULL,
    validation_table   text    DEFAULT NULL,
    split_by           text    DEFAULT NULL,
    split_at           text    DEFAULT NULL,
    stratify           boolean DEFAULT NULL,
    folds              integer DEFAULT NULL,
    segments           integer DEFAULT NULL,
    packed_table       text    DEFAULT NULL,
    architectures      jsonb   DEFAULT NULL,
    space              jsonb   DEFAULT NULL,
    method             text    DEFAULT NULL,
    epochs             integer DEFAULT NULL,
    max_configurations integer DEFAULT NULL,
    at_once            integer DEFAULT NULL,
    start_from         text    DEFAULT NULL,
    objective          text    DEFAULT NULL,
    direction          text    DEFAULT NULL,
    stop_when          text    DEFAULT NULL,
    evaluate_every     integer DEFAULT NULL,
    use_gpus           boolean DEFAULT false,
    run_name           text    DEFAULT NULL,
    description        text    DEFAULT NULL,
    options            jsonb   DEFAULT NULL,
    wait               boolean DEFAULT true,
    dry_run            boolean DEFAULT false,
    group_by           text    DEFAULT NULL,
    replace            boolean DEFAULT false
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.train(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.train(
    text, text, text, text, text, json, text, text, json, double precision, text, text, text, boolean, integer,
    integer, text, jsonb, jsonb, text, integer, integer, integer, text, text, text, text, integer, boolean, text,
    text, jsonb, boolean, boolean, text, boolean
) IS
'Trains a model on a table with columns of nearly any type, and returns the number of the run. It packs the table,
chooses architectures and a search space for the target, searches until the budget is used, and keeps the best epoch of
each model. The models are in model_table, which cerebro.predict takes. The best model is calibrated on the rows for
validation, as by cerebro.calibrate. Notices say what was decided; an argument overrides each decision. docs/train.md says
how the decisions are made.

- source_table: a table, a view or a foreign table, which is packed unless an earlier call has packed the same rows with
  the same arguments; or a packed table.
- target: the columns to predict, separated by commas.
- inputs, prepare, weights, class_weight, sequence, validation_table, split_by, split_at, segments: as in cerebro.pack.
- validation: the share of the rows for validation. NULL: a fifth of the rows, and at most 200,000 rows or windows.
- stratify: as in cerebro.pack. NULL: true if the target has few classes and the table at most 100,000 rows.
  With a sequence, NULL is false.
- folds: chooses the configuration by cross-validation with so many folds, as in cerebro.pack, instead of rows for
  validation. The models in the table are trained on all rows; cerebro.cross_validation shows mean and spread.
- group_by: as in cerebro.search. The best model is not calibrated then.
- packed_table: the name of the packed table. NULL: that of an earlier call, or that of model_table with the ending
  _packed, and a number if it is taken.
- architectures: a list of architectures, such as ["mlp"], or an object with the parameters of each kind, as in
  cerebro.architecture. A parameter "$units" is one of the space.
- space: as in cerebro.search. Each entry replaces the planned one of that name.
- method, max_configurations, at_once, start_from, evaluate_every: as in cerebro.search.
- epochs: number of epochs of a model that is never stopped. NULL: follows from the number of rows and the budget.
- budget: how long the call may take, for instance 2 hours; or limits as in cerebro.fit. It counts
  from the start of the call, but training has at least a tenth of it. Visits that have begun are completed, and at least one
  model completes an epoch. NULL: no limit.
- options: as in cerebro.fit; keep is best (with folds: last), unless it says otherwise.
- the other arguments: as in cerebro.fit.';
