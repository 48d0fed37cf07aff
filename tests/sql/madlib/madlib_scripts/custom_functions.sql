-- A loss and a metric of one's own, and top-k accuracy, as users of MADlib register and use them. The functions are
-- source text here, where MADlib takes pickled objects.
-- The test that runs it has made the packed table and the architectures of iris_fit_multiple.sql.

SELECT madlib.load_custom_function('custom_function_table', convert_to($$
def squared_error(y_true, y_pred):
    return ops.sum(ops.square(y_true - y_pred), axis=-1)
$$, 'UTF8'), 'squared_error', 'squared error');
SELECT madlib.load_custom_function('custom_function_table', convert_to($$
def rmse(y_true, y_pred):
    return ops.sqrt(ops.mean(ops.square(y_true - y_pred), axis=-1))
$$, 'UTF8'), 'rmse', 'root mean square error');
SELECT madlib.load_top_k_accuracy_function('custom_function_table', 2);
SELECT id, name, description FROM madlib.custom_function_table ORDER BY id;

SELECT madlib.generate_model_configs('model_arch_library', 'mst_custom', ARRAY[1, 2],
    $${'loss': ['squared_error'],
       'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.01]}],
       'metrics': [['rmse'], ['top_2_accuracy']]}$$,
    $${'batch_size': [8], 'epochs': [1]}$$, 'grid', NULL, NULL, 'custom_function_table');
SELECT * FROM mst_custom ORDER BY mst_key;
SELECT * FROM mst_custom_summary;

SELECT madlib.madlib_keras_fit_multiple_model('iris_train_packed', 'custom_models', 'mst_custom', 4, FALSE);
SELECT mst_key, loss_type, metrics_type, training_loss_final, training_metrics_final FROM custom_models_info
 ORDER BY training_loss_final;
SELECT madlib.madlib_keras_evaluate('custom_models', 'iris_test_packed', 'custom_judged', FALSE, 1);
SELECT * FROM custom_judged;

SELECT madlib.delete_custom_function('custom_function_table', 'rmse');
SELECT madlib.delete_custom_function('custom_function_table', 1);
SELECT madlib.delete_custom_function('custom_function_table', 'top_2_accuracy');
