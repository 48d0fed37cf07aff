-- The ways to list configurations: a grid, grids per optimizer, random draws, more rows later, and a table by hand.
-- The test that runs it has made the table model_arch_library, with two architectures for iris.

SELECT madlib.generate_model_configs('model_arch_library', 'mst_grid', ARRAY[1, 2],
    $$ {'loss': ['categorical_crossentropy'],
        'optimizer_params_list': [ {'optimizer': ['Adam'], 'lr': [0.001, 0.01, 0.1]} ],
        'metrics': ['accuracy']} $$,
    $$ {'batch_size': [4, 8], 'epochs': [1]} $$, 'grid');
SELECT * FROM mst_grid ORDER BY mst_key;

SELECT madlib.generate_model_configs('model_arch_library', 'mst_per_optimizer', ARRAY[1, 2],
    $$ {'loss': ['categorical_crossentropy'],
        'optimizer_params_list': [ {'optimizer': ['SGD']},
                                   {'optimizer': ['SGD'], 'lr': [0.0001, 0.001], 'momentum': [0.95]},
                                   {'optimizer': ['Adam'], 'lr': [0.001, 0.01], 'epsilon': [1e-6]} ],
        'metrics': ['accuracy']} $$,
    $$ {'batch_size': [64, 128], 'epochs': [10]} $$);

SELECT madlib.generate_model_configs('model_arch_library', 'mst_random', ARRAY[1, 2],
    $$ {'loss': ['categorical_crossentropy'],
        'optimizer_params_list': [ {'optimizer': ['SGD'], 'lr': [0.0001, 0.1, 'log'], 'momentum': [0.9, 0.99, 'log_near_one']},
                                   {'optimizer': ['Adam', 'RMSprop'], 'lr': [0.001, 0.1, 'linear']} ],
        'metrics': ['accuracy']} $$,
    $$ {'batch_size': [4, 8, 16], 'epochs': [1]} $$, 'random', 12, 19);

-- More rows for a table that is there.
SELECT madlib.load_model_selection_table('model_arch_library', 'mst_more', ARRAY[1],
    ARRAY[$$loss='categorical_crossentropy', optimizer='Adam(lr=0.1)', metrics=['accuracy']$$],
    ARRAY[$$batch_size=4, epochs=1$$]);
SELECT madlib.generate_model_configs('model_arch_library', 'mst_more', ARRAY[1],
    $$ {'loss': ['categorical_crossentropy'], 'optimizer_params_list': [ {'optimizer': ['Adam'], 'lr': [0.01]} ],
        'metrics': ['accuracy']} $$,
    $$ {'batch_size': [8], 'epochs': [1]} $$);

-- A table by hand.
CREATE TABLE mst_by_hand (mst_key serial, model_id integer, compile_params varchar, fit_params varchar,
                          UNIQUE (model_id, compile_params, fit_params));
INSERT INTO mst_by_hand (model_id, compile_params, fit_params) VALUES
    (1, $$loss='categorical_crossentropy',optimizer='Adam(lr=0.1)',metrics=['accuracy']$$, $$batch_size=4,epochs=1$$),
    (2, $$loss='categorical_crossentropy',optimizer='Adam(lr=0.01)',metrics=['top_2_accuracy']$$, $$batch_size=8,epochs=1$$);
CREATE TABLE mst_by_hand_summary (model_arch_table varchar, object_table varchar);
INSERT INTO mst_by_hand_summary VALUES ('model_arch_library', NULL);
SELECT madlib.madlib_keras_fit_multiple_model('iris_train_packed', 'iris_by_hand', 'mst_by_hand', 1, FALSE, NULL, NULL,
                                              FALSE, 'by hand', NULL, TRUE);
SELECT mst_key, metrics_type, training_metrics_final FROM iris_by_hand_info ORDER BY mst_key;
