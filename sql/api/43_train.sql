-- From a table to a trained model in one call.

CREATE OR REPLACE FUNCTION cerebro.train(
    source           text,
    model            text,
    target           text     DEFAULT NULL,
    budget           interval DEFAULT '10 minutes',
    inputs           text     DEFAULT NULL,
    prepare          json     DEFAULT NULL,
    validation       double precision DEFAULT NULL,
    validation_table text     DEFAULT NULL,
    split_by         text     DEFAULT NULL,
    split_at         text     DEFAULT NULL,
    stratify         boolean  DEFAULT NULL,
    segments         integer  DEFAULT NULL,
    packed_table     text     DEFAULT NULL,
    architectures    jsonb    DEFAULT NULL,
    space            jsonb    DEFAULT NULL,
    method           text     DEFAULT NULL,
    epochs           integer  DEFAULT NULL,
    configurations   integer  DEFAULT NULL,
    at_once          integer  DEFAULT NULL,
    objective        text     DEFAULT NULL,
    direction        text     DEFAULT NULL,
    use_gpus         boolean  DEFAULT false,
    name             text     DEFAULT NULL,
    description      text     DEFAULT NULL,
    options          jsonb    DEFAULT NULL,
    stop_when        text     DEFAULT NULL,
    folds            integer  DEFAULT NULL,
    wait             boolean  DEFAULT true,
    dry_run          boolean  DEFAULT false,
    sequence         json     DEFAULT NULL,
    weights          text     DEFAULT NULL,
    class_weight     text     DEFAULT NULL
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.train(plpy, source=source, model=model, target=target, budget=budget, inputs=inputs, prepare=prepare,
                 validation=validation, validation_table=validation_table, split_by=split_by, split_at=split_at,
                 stratify=stratify, segments=segments, packed_table=packed_table, architectures=architectures,
                 space=space, method=method, epochs=epochs, configurations=configurations, at_once=at_once,
                 objective=objective, direction=direction, use_gpus=use_gpus, name=name, description=description,
                 options=options, stop_when=stop_when, wait=wait, dry_run=dry_run, folds=folds,
                 sequence=sequence, weights=weights, class_weight=class_weight)
$py$;
COMMENT ON FUNCTION cerebro.train(
    text, text, text, interval, text, json, double precision, text, text, text, boolean, integer, text, jsonb, jsonb, text,
    integer, integer, integer, text, text, boolean, text, text, jsonb, text, integer, boolean, boolean,
    json, text, text
) IS
'Trains a model on a table with columns of nearly any type, and returns the number of the run. It packs the table,
chooses architectures and a search space for the target, searches until the budget is used, and keeps the best epoch of
each model. The models are in the table model, which cerebro.predict takes. Notices say what was decided; an argument
overrides each decision. docs/tables.md says how the decisions are made.

- source: a table, a view or a foreign table; or a table that cerebro.pack has made, which is not packed again.
- target: the columns to predict, separated by commas.
- budget: how long the call may take, for instance 2 hours. A visit that has begun is completed. NULL: no limit.
- inputs, prepare, validation_table, split_by, split_at, segments, weights, class_weight: as in cerebro.pack.
- validation: the share of the rows for validation. NULL: a fifth of the rows, and at most 200,000 rows or windows.
- stratify: as in cerebro.pack. NULL: true if the target has few classes and the table at most 100,000 rows.
  With a sequence, NULL is false.
- packed_table: the name of the packed table. NULL: that of model with the ending _packed, and a number if it is taken.
- architectures: a list of kinds, such as ["mlp"], or an object with the parameters of each kind, as in
  cerebro.architecture. A parameter "$units" is one of the space.
- space: parts of a space as in cerebro.search, such as {"fit": {"batch_size": 64}, "compile": {"learning_rate":
  {"log_uniform": [0.001, 0.1]}}}. Each entry replaces the planned one of that name.
- method, configurations, at_once, objective, direction, stop_when: as in cerebro.search.
- epochs: number of epochs of a model that is never stopped. NULL: follows from the number of rows and the budget.
- options: as in cerebro.fit; keep is best (with folds: last), unless it says otherwise.
- wait: false returns as soon as the rows are packed and the run has begun.
- dry_run: true shows what would be decided, makes nothing, and returns NULL.
- folds: chooses the configuration by cross-validation with so many folds, as in cerebro.pack, instead of rows for
  validation. The models in the table are trained on all rows; cerebro.cross_validation shows mean and spread.
- sequence: makes windows of consecutive rows, as in cerebro.pack. A model reads a window as one row.';
