-- Iris as users of MADlib train it: two architectures and a grid of parameters, trained at the same time.
-- The test that runs it has made the table iris_data (id, attributes, class_text).

SELECT madlib.train_test_split('iris_data', 'iris', 0.8, NULL, NULL, NULL, FALSE, TRUE);

SELECT madlib.training_preprocessor_dl('iris_train', 'iris_train_packed', 'class_text', 'attributes');
SELECT * FROM iris_train_packed_summary;

SELECT madlib.validation_preprocessor_dl('iris_test', 'iris_test_packed', 'class_text', 'attributes',
                                         'iris_train_packed');

SELECT madlib.load_keras_model('model_arch_library', $$
{"class_name": "Sequential", "keras_version": "2.1.6", "backend": "tensorflow", "config": [
  {"class_name": "Dense", "config": {"name": "dense_1", "trainable": true, "batch_input_shape": [null, 4],
   "dtype": "float32", "units": 10, "activation": "relu", "use_bias": true,
   "kernel_initializer": {"class_name": "VarianceScaling",
                          "config": {"scale": 1.0, "mode": "fan_avg", "distribution": "uniform", "seed": null}},
   "bias_initializer": {"class_name": "Zeros", "config": {}}, "kernel_regularizer": null, "bias_regularizer": null,
   "activity_regularizer": null, "kernel_constraint": null, "bias_constraint": null}},
  {"class_name": "Dense", "config": {"name": "dense_2", "trainable": true, "units": 3, "activation": "softmax",
   "use_bias": true, "kernel_regularizer": null, "bias_regularizer": null, "activity_regularizer": null,
   "kernel_constraint": null, "bias_constraint": null}}]}
$$::json, NULL, 'Sophie', 'A simple model');
SELECT madlib.load_keras_model('model_arch_library', $$
{"class_name": "Sequential", "keras_version": "2.1.6", "backend": "tensorflow", "config": [
  {"class_name": "Dense", "config": {"name": "dense_1", "batch_input_shape": [null, 4], "dtype": "float32",
   "units": 10, "activation": "relu"}},
  {"class_name": "Dense", "config": {"name": "dense_2", "units": 10, "activation": "relu"}},
  {"class_name": "Dense", "config": {"name": "dense_3", "units": 3, "activation": "softmax"}}]}
$$::json, NULL, 'Maria', 'Another simple model');

SELECT madlib.load_model_selection_table('model_arch_library', 'mst_table', ARRAY[1, 2],
    ARRAY[$$loss='categorical_crossentropy',optimizer='Adam(lr=0.1)',metrics=['accuracy']$$,
          $$loss='categorical_crossentropy',optimizer='Adam(lr=0.01)',metrics=['accuracy']$$],
    ARRAY[$$batch_size=4,epochs=1$$, $$batch_size=8,epochs=1$$]);
SELECT * FROM mst_table ORDER BY mst_key;

SELECT madlib.madlib_keras_fit_multiple_model('iris_train_packed', 'iris_multi_model', 'mst_table', 6, FALSE);
SELECT * FROM iris_multi_model_summary;
SELECT * FROM iris_multi_model_info ORDER BY training_metrics_final DESC, training_loss_final;
SELECT mst_key AS best FROM iris_multi_model_info ORDER BY training_loss_final LIMIT 1 \gset

SELECT madlib.madlib_keras_evaluate('iris_multi_model', 'iris_test_packed', 'iris_validate', NULL, :best);
SELECT * FROM iris_validate;

SELECT madlib.madlib_keras_predict('iris_multi_model', 'iris_test', 'id', 'attributes', 'iris_predict', 'response',
                                   FALSE, :best);
SELECT madlib.madlib_keras_predict('iris_multi_model', 'iris_test', 'id', 'attributes', 'iris_predict_prob', 'prob',
                                   FALSE, :best);
SELECT madlib.madlib_keras_predict('iris_multi_model', 'iris_test', 'id', 'attributes', 'iris_predict_two', 2, FALSE, :best);
SELECT madlib.madlib_keras_predict('iris_multi_model', 'iris_test', 'id', 'attributes', 'iris_predict_above', 0.5, FALSE,
                                   :best);
SELECT count(*) FROM iris_predict JOIN iris_test USING (id) WHERE iris_predict.class_value <> iris_test.class_text;

-- The same model as one's own: an architecture with weights.
SELECT madlib.load_keras_model('model_arch_library',
    (SELECT model_arch FROM iris_multi_model WHERE mst_key = :best),
    (SELECT model_weights FROM iris_multi_model WHERE mst_key = :best), 'trained');
SELECT madlib.madlib_keras_predict_byom('model_arch_library', 3, 'iris_test', 'id', 'attributes', 'iris_predict_byom',
    'prob', FALSE, ARRAY['Iris-setosa', 'Iris-versicolor', 'Iris-virginica']);

-- Again, with a validation table and its metrics in between, from the models of the first time.
SELECT madlib.madlib_keras_fit_multiple_model('iris_train_packed', 'iris_multi_model', 'mst_table', 4, FALSE,
                                              'iris_test_packed', 2, TRUE, 'Sophie L.', 'Model selection for iris', TRUE);
SELECT mst_key, model_id, compile_params, fit_params, metrics_elapsed_time, validation_metrics_final
  FROM iris_multi_model_info ORDER BY validation_loss_final;
