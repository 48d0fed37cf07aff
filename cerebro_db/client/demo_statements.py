"""The SQL statements of the demo."""

from __future__ import annotations

CREATE = """\
CREATE TABLE {table}
    (id integer PRIMARY KEY, image smallint[] NOT NULL, digit integer NOT NULL);"""
PACK = """\
SELECT cerebro.pack_plain(
    'digits_train', 'digits_packed', 'digit', 'image',
    divide_by => 16, segments => 2, seed => 1);"""
PACK_VALIDATION = """\
SELECT cerebro.pack_like(
    'digits_val', 'digits_val_packed', 'digit', 'image', 'digits_packed');"""
FIT = """\
SELECT cerebro.fit(
    'digits_packed', 'digits_models',
    $$SELECT architecture, optimizer, learning_rate, momentum, batch_size
        FROM unnest(ARRAY['mlp', 'cnn']) AS a (architecture),
             (VALUES ('Adam', 0.003, NULL), ('Adam', 0.001, NULL),
                     ('SGD',  0.1,   0.9),  ('SGD',  0.02,  0.9))
               AS o (optimizer, learning_rate, momentum),
             unnest(ARRAY[16, 32]) AS b (batch_size)$$,
    epochs => {epochs}, validation_table => 'digits_val_packed',
    evaluate_every => 1, run_name => 'digits', options => '{{"seed": 1}}');"""
LEADERBOARD = "SELECT * FROM cerebro.leaderboard WHERE run = {run} ORDER BY rank;"
PREDICT = """\
SELECT cerebro.predict_into(
    'digits_models', 'digits_val', 'digits_predicted', key => 'id',
    configuration => {configuration});"""
PREDICTED = """\
SELECT id, image, digit, predicted_digit, probability
  FROM digits_predicted JOIN digits_val USING (id)
 ORDER BY predicted_digit = digit, id;"""
TIME = """\
SELECT activity, seconds, share
  FROM cerebro.run_time WHERE run = {run} ORDER BY position;"""
