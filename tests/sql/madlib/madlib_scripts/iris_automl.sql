-- Iris as users of MADlib search: Hyperband, then hyperopt, then predictions with the best model.
-- The test that runs it has made the table iris_data (id, attributes, class_text).

SELECT madlib.train_test_split('iris_data', 'iris', 0.8, NULL, NULL, NULL, FALSE, TRUE);
SELECT madlib.training_preprocessor_dl('iris_train', 'iris_train_packed', 'class_text', 'attributes');
SELECT madlib.validation_preprocessor_dl('iris_test', 'iris_test_packed', 'class_text', 'attributes',
                                         'iris_train_packed');
SELECT madlib.load_keras_model('model_arch_library', $$
{"class_name": "Sequential", "keras_version": "2.1.6", "backend": "tensorflow", "config": [
  {"class_name": "Dense", "config": {"name": "dense_1", "batch_input_shape": [null, 4], "dtype": "float32",
   "units": 10, "activation": "relu"}},
  {"class_name": "Dense", "config": {"name": "dense_2", "units": 10, "activation": "relu"}},
  {"class_name": "Dense", "config": {"name": "dense_3", "units": 3, "activation": "softmax"}}]}
$$::json, NULL, 'Sophie', 'MLP with 2 hidden layers');
SELECT madlib.load_keras_model('model_arch_library', $$
{"class_name": "Sequential", "keras_version": "2.1.6", "backend": "tensorflow", "config": [
  {"class_name": "Dense", "config": {"name": "dense_1", "batch_input_shape": [null, 4], "dtype": "float32",
   "units": 16, "activation": "relu"}},
  {"class_name": "Dense", "config": {"name": "dense_2", "units": 3, "activation": "softmax"}}]}
$$::json, NULL, 'Maria', 'MLP with 1 hidden layer');

-- What Hyperband is going to do.
SELECT madlib.hyperband_schedule('hb_schedule', 9, 3, 0);
SELECT * FROM hb_schedule ORDER BY s DESC, i;

SELECT madlib.madlib_keras_automl('iris_train_packed', 'automl_output', 'model_arch_library', 'automl_mst_table',
    ARRAY[1, 2],
    $${'loss': ['categorical_crossentropy'],
       'optimizer_params_list': [
         {'optimizer': ['Adam'], 'lr': [0.001, 0.1, 'log']},
         {'optimizer': ['RMSprop'], 'lr': [0.001, 0.1, 'log']}],
       'metrics': ['accuracy']}$$,
    $${'batch_size': [4, 8], 'epochs': [1]}$$,
    'hyperband', 'R=9, eta=3, skip_last=0', 42, NULL, FALSE, 'iris_test_packed', 3, 'hyperband', 'iris, by rounds');
SELECT * FROM automl_output_summary;
SELECT mst_key, s, i, metrics_iters, training_loss_final, validation_loss_final, validation_metrics_final
  FROM automl_output_info ORDER BY validation_loss_final LIMIT 5;
SELECT * FROM automl_mst_table;
SELECT * FROM automl_mst_table_summary;
SELECT mst_key AS best FROM automl_mst_table \gset

SELECT madlib.madlib_keras_evaluate('automl_output', 'iris_test_packed', 'automl_validate', FALSE, :best);
SELECT * FROM automl_validate;
SELECT madlib.madlib_keras_predict('automl_output', 'iris_test', 'id', 'attributes', 'automl_predict', 'response', FALSE,
                                   :best);
SELECT count(*) AS wrong FROM automl_predict JOIN iris_test USING (id) WHERE class_value <> class_text;

-- hyperopt chooses each configuration by what it has learned from those before.
SELECT madlib.madlib_keras_automl('iris_train_packed', 'hyperopt_output', 'model_arch_library', 'hyperopt_mst_table',
    ARRAY[1, 2],
    $${'loss': ['categorical_crossentropy'],
       'optimizer_params_list': [{'optimizer': ['Adam', 'SGD'], 'lr': [0.001, 0.1, 'log']}],
       'metrics': ['accuracy']}$$,
    $${'batch_size': [8], 'epochs': [1]}$$,
    'hyperopt', 'num_configs=12, num_iterations=2, algorithm=tpe');
SELECT * FROM hyperopt_output_summary;
SELECT mst_key AS best FROM hyperopt_mst_table \gset
SELECT madlib.madlib_keras_predict('hyperopt_output', 'iris_test', 'id', 'attributes', 'hyperopt_predict', 'prob', FALSE,
                                   :best);
