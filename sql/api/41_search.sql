-- Search: runs whose configurations are proposed from a space while the run goes on.

CREATE OR REPLACE FUNCTION cerebro.search(
    source_table       text,
    model_table        text,
    space              jsonb,
    target             text    DEFAULT NULL,
    budget             text    DEFAULT NULL,
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
return api.search_space(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.search(
    text, text, jsonb, text, text, text, json, text, text, json, double precision, text, text, text, boolean, integer,
    integer, text, jsonb, text, integer, integer, integer, text, text, text, text, integer, boolean, text, text,
    jsonb, boolean, boolean, text, boolean
) IS
'Searches a space of configurations for the best model, and returns the number of the run. The method proposes
configurations while others train, and stops unpromising ones early. docs/search.md describes spaces and
methods. The models, their metrics and the views are those of cerebro.fit; cerebro.leaderboard shows the point of the
space of each model in its column chosen.

- space: a JSON object with the keys of a configuration of cerebro.fit. Each has a value or a dimension, for instance
  {"architecture": ["mlp", "resnet"], "units": {"choice": [64, 128]}, "optimizer": {"choice": ["Adam", "SGD"]},
  "learning_rate": {"log_uniform": [0.0001, 0.1]}}. A parameter of architectures applies to those that have it.
- architectures: as the key architecture of the space; or an object with the parameters of each kind, as in cerebro.train.
- method: the name of a method, or JSON with its parameters: {"name": "asha", "reduction": 4, "sampler": "tpe"}.
  docs/search.md describes the methods; an unknown name gets an error that lists them. NULL: asha.
- epochs: number of epochs of a model that is never stopped. NULL: as in cerebro.train.
- max_configurations: how many configurations are tried in all; of pbt, how many train at once. NULL: all points of a
  grid, or as many as the budget allows.
- at_once: how many models train or wait for a segment. NULL: twice the number of segments. If points are random
  or a grid and there is no budget: four times, and 16 times if segments have up to 5,000 rows each.
- start_from: past starts tpe from the results of your earlier runs on the same table, or on a table of the same shape.
  A NOTICE says which runs.
- evaluate_every: number of epochs between two evaluations. NULL: every epoch if there are rows for validation.
- group_by: as in cerebro.fit. The method compares models of one group, and stops them for this group alone. Which
  configurations are tried follows from the models on all rows.
- the other arguments: as in cerebro.fit.';
