-- Architectures, and the tables of configurations made of them.

CREATE FUNCTION cerebro.load_keras_model(
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
'Adds an architecture, as Keras 2 or Keras 3 writes it with model.to_json(), to a table that is made on first use.
Architectures with layers that could run code (Lambda and the like) are refused.
model_weights: all of model.get_weights() flattened, one after the other, as float32; training starts from them.';

CREATE FUNCTION cerebro.delete_keras_model(keras_model_arch_table text, model_id integer) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.delete_keras_model(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.delete_keras_model(text, integer) IS
'Deletes an architecture. The table stays when it was the last.';

CREATE FUNCTION cerebro.load_model_selection_table(
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
'Makes a table with one configuration for each model id with each compile_params with each fit_params.';

CREATE FUNCTION cerebro.generate_model_configs(
    model_arch_table      text,
    model_selection_table text,
    model_id_list         integer[],
    compile_params_grid   text,
    fit_params_grid       text,
    search_type           text    DEFAULT 'grid',
    num_configs           integer DEFAULT NULL,
    random_state          integer DEFAULT NULL,
    object_table          text    DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.generate_model_configs(plpy, *args)
$py$;
COMMENT ON FUNCTION cerebro.generate_model_configs(
    text, text, integer[], text, text, text, integer, integer, text) IS
'Makes a table of configurations, or adds to it: all combinations of the values in the grids (search_type grid), or
num_configs drawn from them (random), where a value [low, high, ''linear'' | ''log'' | ''log_near_one''] is a
distribution. The grids are dictionaries of lists: $${''loss'': [''mse''], ''optimizer_params_list'':
[{''optimizer'': [''Adam''], ''lr'': [0.01, 0.001]}]}$$, $${''batch_size'': [32], ''epochs'': [1]}$$.
Configurations that are in the table already are not added again.';
