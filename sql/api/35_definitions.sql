-- Architectures, and the model selection tables that list configurations of them.

CREATE OR REPLACE FUNCTION cerebro.load_keras_model(
    keras_model_arch_table text,
    model_arch             json,
    model_weights          bytea DEFAULT NULL,
    name                   text  DEFAULT NULL,
    description            text  DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.load_keras_model(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.load_keras_model(text, json, bytea, text, text) IS
'Adds an architecture to a table of architectures, and creates the table if it does not exist. model_arch is what
model.to_json() returns in Keras 2 or Keras 3. Architectures with layers that can execute code (Lambda and others) are
refused. An architecture can have parameters: "units": "$width" stands for a value, and in the list of layers of a
Sequential model {"repeat": "$depth", "layers": [...]} stands for layers that are repeated. generate_model_configs and
cerebro.search give them values.

- model_weights: the arrays of model.get_weights(), flattened and concatenated, as float32. Training starts from them.
  NULL: training starts from random weights.';

CREATE OR REPLACE FUNCTION cerebro.delete_keras_model(keras_model_arch_table text, model_id integer) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.delete_keras_model(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.delete_keras_model(text, integer) IS
'Deletes an architecture from a table of architectures. The table itself stays, even when it is empty.';

CREATE OR REPLACE FUNCTION cerebro.load_model_selection_table(
    model_arch_table      text,
    model_selection_table text,
    model_id_list         integer[],
    compile_params_list   text[],
    fit_params_list       text[],
    object_table          text DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.load_model_selection_table(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.load_model_selection_table(text, text, integer[], text[], text[], text) IS
'Creates a model selection table with one configuration for every combination of a model id, a compile_params text and
a fit_params text.';

CREATE OR REPLACE FUNCTION cerebro.generate_model_configs(
    model_arch_table      text,
    model_selection_table text,
    model_id_list         integer[],
    compile_params_grid   text,
    fit_params_grid       text,
    search_type           text    DEFAULT 'grid',
    num_configs           integer DEFAULT NULL,
    random_state          integer DEFAULT NULL,
    object_table          text    DEFAULT NULL,
    arch_params_grid      text    DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.generate_model_configs(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.generate_model_configs(
    text, text, integer[], text, text, text, integer, integer, text, text) IS
'Creates a model selection table from grids of parameters, or adds configurations to an existing one. Configurations
that the table already contains are not added again.

- search_type: grid adds every combination of the values. random adds num_configs combinations drawn at random.
- compile_params_grid, fit_params_grid: dictionaries of lists, for instance $${''loss'': [''mse''],
  ''optimizer_params_list'': [{''optimizer'': [''Adam''], ''lr'': [0.01, 0.001]}]}$$ and
  $${''batch_size'': [32], ''epochs'': [1]}$$. In a random search a list [low, high, ''linear''] is a distribution to draw
  from; instead of ''linear'' it may say ''log'' or ''log_near_one''.
- random_state: seed of the random search. The same seed draws the same configurations.
- arch_params_grid: values of the parameters of architectures ("units": "$width"), for instance
  $${''width'': [16, 64], ''depth'': [1, 2, 3]}$$. Each architecture with values becomes a row of model_arch_table.';
