"""The architectures and the SQL statements of the demo."""

from __future__ import annotations

import json
from typing import Any

# --- two architectures, as model.to_json() of Keras 3 returns them ------------------------------------------


def _layer(class_name: str, /, **config: Any) -> dict[str, Any]:
    return {"module": "keras.layers", "class_name": class_name, "config": config, "registered_name": None}


def _sequential(name: str, *layers: dict[str, Any]) -> str:
    shape = _layer("InputLayer", batch_shape=[None, 8, 8], dtype="float32", name="image")
    config = {"name": name, "trainable": True, "layers": [shape, *layers], "build_input_shape": [None, 8, 8]}
    return json.dumps({"module": "keras", "class_name": "Sequential", "config": config, "registered_name": None})


MLP = _sequential(
    "mlp",
    _layer("Flatten", name="pixels"),
    _layer("Dense", name="hidden_1", units=128, activation="relu"),
    _layer("Dense", name="hidden_2", units=64, activation="relu"),
    _layer("Dense", name="digit", units=10, activation="softmax"),
)
CNN = _sequential(
    "cnn",
    _layer("Reshape", name="pixels", target_shape=[8, 8, 1]),
    _layer("Conv2D", name="strokes", filters=16, kernel_size=[3, 3], padding="same", activation="relu"),
    _layer("MaxPooling2D", name="smaller", pool_size=[2, 2]),
    _layer("Conv2D", name="shapes", filters=32, kernel_size=[3, 3], padding="same", activation="relu"),
    _layer("Flatten", name="all"),
    _layer("Dense", name="digit", units=10, activation="softmax"),
)

# --- the statements ----------------------------------------------------------------------------------------

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
CONFIGURE = """\
SELECT cerebro.generate_model_configs(
    'digits_arch', 'digits_configs', ARRAY[1, 2],
    $${'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']],
       'optimizer_params_list': [
           {'optimizer': ['Adam'], 'lr': [0.003, 0.001]},
           {'optimizer': ['SGD'], 'lr': [0.1, 0.02], 'momentum': [0.9]}]}$$,
    $${'batch_size': [16, 32]}$$);"""
FIT = """\
SELECT cerebro.fit(
    'digits_packed', 'digits_models', 'digits_configs', epochs => {epochs},
    validation_table => 'digits_val_packed', evaluate_every => 1,
    run_name => 'digits', options => '{{"seed": 1}}');"""
LEADERBOARD = "SELECT * FROM cerebro.leaderboard WHERE run = {run} ORDER BY rank;"
PREDICT = """\
SELECT cerebro.predict_into(
    'digits_models', 'digits_val', 'digits_predicted', key => 'id',
    configuration => {configuration});"""
PREDICTED = """\
SELECT id, image, digit, class, probability
  FROM digits_predicted JOIN digits_val ON key_value = id::text
 ORDER BY class = digit::text, id;"""
TIME = """\
SELECT activity, seconds, share
  FROM cerebro.run_time WHERE run = {run} ORDER BY place;"""
