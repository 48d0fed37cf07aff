-- A model with two inputs and two outputs, as users of MADlib train it.
-- The test that runs it has made the table iris_data (id, attributes, class_text).

CREATE TABLE iris_parts AS
SELECT id, attributes[1:2] AS sepal, attributes[3:4] AS petal, class_text,
       CASE WHEN attributes[1] > 5.8 THEN 'long' ELSE 'short' END AS length
  FROM iris_data;
SELECT madlib.train_test_split('iris_parts', 'iris_io', 0.8, NULL, NULL, NULL, FALSE, TRUE);

SELECT madlib.training_preprocessor_dl('iris_io_train', 'iris_io_packed', 'class_text, length', 'sepal, petal');
SELECT * FROM iris_io_packed_summary;
SELECT madlib.validation_preprocessor_dl('iris_io_test', 'iris_io_val', 'class_text, length', 'sepal, petal',
                                         'iris_io_packed');

SELECT madlib.load_keras_model('io_arch', $$
{"class_name": "Model", "keras_version": "2.2.4-tf", "backend": "tensorflow", "config": {"name": "model", "layers": [
  {"name": "sepals", "class_name": "InputLayer", "inbound_nodes": [],
   "config": {"name": "sepals", "batch_input_shape": [null, 2], "dtype": "float32", "sparse": false}},
  {"name": "petals", "class_name": "InputLayer", "inbound_nodes": [],
   "config": {"name": "petals", "batch_input_shape": [null, 2], "dtype": "float32", "sparse": false}},
  {"name": "concatenate", "class_name": "Concatenate",
   "config": {"name": "concatenate", "trainable": true, "dtype": "float32", "axis": -1},
   "inbound_nodes": [[["sepals", 0, 0, {}], ["petals", 0, 0, {}]]]},
  {"name": "hidden", "class_name": "Dense",
   "config": {"name": "hidden", "trainable": true, "dtype": "float32", "units": 16, "activation": "relu"},
   "inbound_nodes": [[["concatenate", 0, 0, {}]]]},
  {"name": "species", "class_name": "Dense",
   "config": {"name": "species", "trainable": true, "dtype": "float32", "units": 3, "activation": "softmax"},
   "inbound_nodes": [[["hidden", 0, 0, {}]]]},
  {"name": "size", "class_name": "Dense",
   "config": {"name": "size", "trainable": true, "dtype": "float32", "units": 2, "activation": "softmax"},
   "inbound_nodes": [[["hidden", 0, 0, {}]]]}],
 "input_layers": [["sepals", 0, 0], ["petals", 0, 0]], "output_layers": [["species", 0, 0], ["size", 0, 0]]}}
$$::json, NULL, 'two and two');

SELECT madlib.madlib_keras_fit('iris_io_packed', 'io_model', 'io_arch', 1,
    $$ loss='categorical_crossentropy', optimizer='Adam(lr=0.02)', metrics=['accuracy'] $$,
    $$ batch_size=8, epochs=2 $$, 10, FALSE, 'iris_io_val');
SELECT loss_type, metrics_type, training_loss_final, validation_loss_final FROM io_model_summary;

SELECT madlib.madlib_keras_evaluate('io_model', 'iris_io_packed', 'io_judged');
SELECT * FROM io_judged;
SELECT madlib.madlib_keras_predict('io_model', 'iris_io_test', 'id', 'sepal, petal', 'io_said', 'response');
SELECT class_name, count(*) FROM io_said GROUP BY 1 ORDER BY 1;
