-- Search: runs whose configurations are proposed from a space while the run goes on.

CREATE OR REPLACE FUNCTION cerebro.search(
@arguments@
) RETURNS bigint
LANGUAGE plpython3u AS $py$
@cerebro@
return api.search_space(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.search(@types@) IS
'Searches a space of configurations for the best model, and returns the number of the run. The method proposes
configurations while others train, and stops unpromising ones early. docs/train.md describes spaces and
methods. The models, their metrics and the views are those of cerebro.fit; cerebro.leaderboard shows the point of the
space of each model in its column chosen.

- space: a JSON object with the keys of a configuration of cerebro.fit. Each has a value or a dimension, for instance
  {"architecture": ["mlp", "resnet"], "units": {"choice": [64, 128]}, "optimizer": {"choice": ["Adam", "SGD"]},
  "learning_rate": {"log_uniform": [0.0001, 0.1]}}. A parameter of architectures applies to those that have it.
- architectures: as the key architecture of the space; or an object with the parameters of each kind, as in cerebro.train.
- method: the name of a method, or JSON with its parameters: {"name": "asha", "reduction": 4, "sampler": "tpe"}.
  docs/train.md describes the methods; an unknown name gets an error that lists them. NULL: asha.
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
