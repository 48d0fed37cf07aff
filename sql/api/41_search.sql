-- Search: runs whose configurations are proposed from a space while the run goes on.

CREATE OR REPLACE FUNCTION cerebro.search(
    source_table     text,
    model_table      text,
    arch_table       text,
    space            jsonb,
    epochs           integer,
    method           text    DEFAULT 'asha',
    configurations   integer DEFAULT NULL,
    objective        text    DEFAULT NULL,
    direction        text    DEFAULT NULL,
    budget           jsonb   DEFAULT NULL,
    at_once          integer DEFAULT NULL,
    start_from       text    DEFAULT NULL,
    validation_table text    DEFAULT NULL,
    evaluate_every   integer DEFAULT NULL,
    use_gpus         boolean DEFAULT false,
    name             text    DEFAULT NULL,
    description      text    DEFAULT NULL,
    options          jsonb   DEFAULT NULL,
    stop_when        text    DEFAULT NULL,
    wait             boolean DEFAULT true
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.search(plpy, source_table, model_table, arch_table, space, epochs, method, configurations, at_once, start_from,
                  validation_table, evaluate_every, use_gpus, name, description, options, objective=objective,
                  direction=direction, budget=budget, stop_when=stop_when, wait=wait)
$py$;
COMMENT ON FUNCTION cerebro.search(
    text, text, text, jsonb, integer, text, integer, text, text, jsonb, integer, text, text, integer, boolean, text, text,
    jsonb, text, boolean
) IS
'Searches a space of configurations for the best model, and returns the number of the run. The method proposes
configurations while others train, and stops unpromising ones early. docs/search.md describes spaces and
methods. The models, their metrics and the views are those of cerebro.fit; cerebro.leaderboard shows the point of the
space of each model in its column chosen.

- space: a JSON object, for instance {"architecture": [1, 2], "compile": {"loss": "mse", "optimizer":
  {"choice": ["Adam", "SGD"]}, "learning_rate": {"log_uniform": [0.0001, 0.1]}}, "fit": {"batch_size":
  {"choice": [16, 32]}}}. architecture lists model ids of arch_table; left out: all of them.
- epochs: number of epochs of a model that is never stopped.
- method: the name of a method, or JSON with its parameters: {"name": "asha", "reduction": 4, "sampler": "tpe"}. The
  methods are random, grid, tpe, evolution, asha, halving, hyperband, median, patience, threshold and pbt.
- configurations: how many configurations are tried in all; of pbt, how many train at once. NULL: all points of a grid,
  or as many as the budget allows.
- objective, direction: the metric to optimize, such as val_accuracy, and min or max; as in the options of a fit.
- budget: when to end: a JSON object with seconds, unit_hours, hops or configurations.
- at_once: how many models train or wait for a segment. NULL: twice the number of segments. If points are random
  or a grid and there is no budget: four times, and 16 times if segments have up to 5,000 rows each.
- start_from: past starts tpe from the results of your earlier runs on the same table, or on a table of the same shape.
  A NOTICE says which runs.
- evaluate_every: number of epochs between two evaluations. NULL: every epoch if there is a validation table.
- stop_when, options and the other arguments: as in cerebro.fit.
- wait: false returns at once, as cerebro.submit does.';
