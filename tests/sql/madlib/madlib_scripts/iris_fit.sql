-- One model for iris: trained, evaluated, applied; then with validation, warm start, and from the weights of another.
-- The test that runs it has made the tables iris_train_packed, iris_test_packed, iris_test and model_arch_library.

SELECT madlib.madlib_keras_fit('iris_train_packed', 'iris_model', 'model_arch_library', 1,
    $$ loss='categorical_crossentropy', optimizer='Adam(lr=0.02)', metrics=['accuracy'] $$,
    $$ batch_size=8, epochs=1 $$, 12);
SELECT * FROM iris_model_summary;

SELECT madlib.madlib_keras_evaluate('iris_model', 'iris_test_packed', 'iris_model_validate');
SELECT * FROM iris_model_validate;

SELECT madlib.madlib_keras_predict('iris_model', 'iris_test', 'id', 'attributes', 'iris_model_predict', 'response');
SELECT count(*) FROM iris_model_predict JOIN iris_test USING (id) WHERE class_value <> class_text;

-- Again with other parameters: a validation table, metrics after every second iteration, from the weights so far.
SELECT madlib.madlib_keras_fit('iris_train_packed', 'iris_model', 'model_arch_library', 1,
    $$ loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['acc'] $$,
    $$ batch_size=8, epochs=1 $$, 3, FALSE, 'iris_test_packed', 2, TRUE, 'Sophie L.', 'Simple MLP for iris');

-- Transfer learning: the weights become those of an architecture, whose first layer no longer learns.
UPDATE model_arch_library SET model_weights = iris_model.model_weights FROM iris_model WHERE model_id = 1;
UPDATE model_arch_library
   SET model_arch = replace(model_arch::text, '"name": "dense_1", "trainable": true', '"name": "dense_1", "trainable": false')::json
 WHERE model_id = 1;
SELECT madlib.madlib_keras_fit('iris_train_packed', 'iris_model_transfer', 'model_arch_library', 1,
    $$ loss='categorical_crossentropy', optimizer='SGD(lr=0.001)', metrics=['accuracy'] $$,
    $$ batch_size=16, epochs=1 $$, 1);
