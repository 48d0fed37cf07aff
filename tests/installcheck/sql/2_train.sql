-- A fit and a search on a table of 150 rows.
\set iris :repository '/cerebro_db/embedded/iris.sql'
\i :iris
SELECT cerebro.fit('iris', 'fitted', '[{"learning_rate": 0.05, "units": 32}, {"units": 8}]',
                   target => 'species', epochs => 20, options => '{"seed": 1}') > 0 AS fitted;
SELECT cerebro.search('iris', 'found', '{"units": {"choice": [8, 16]}, "learning_rate": {"log_uniform": [0.01, 0.1]}}',
                      target => 'species', max_configurations => 3, epochs => 3, options => '{"seed": 1}') > 0 AS searched;
SELECT model_table, status, configurations FROM cerebro.runs ORDER BY run;
SELECT rank, epochs_done, status, validation_loss < 1.1 AS has_learned
  FROM cerebro.leaderboard WHERE model_table = 'public.fitted' ORDER BY rank;
