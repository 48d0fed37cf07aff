"""The translation of Keras 2 architectures: the warnings, and what is refused.

tests/nn/test_legacy.py builds translated architectures with Keras.
"""

from __future__ import annotations

import pytest

from cerebro_db.core.architecture import keras2, keras_json
from cerebro_db.core.errors import InvalidArgument, Unsupported


def test_a_warning_about_a_layer_that_computes_something_else_in_keras_3():
    lstm = {"class_name": "LSTM", "config": {"units": 2, "batch_input_shape": [None, 3, 2]}}
    old = {"class_name": "Sequential", "config": [lstm], "keras_version": "2.2.4"}
    assert keras2.warnings(old) == []
    lstm["config"]["recurrent_activation"] = "hard_sigmoid"
    (text,) = keras2.warnings(old)
    assert "hard_sigmoid" in text
    assert keras2.warnings(keras_json.architecture(old)) == []


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"class_name": "LSTM", "config": {"units": 2, "time_major": True}}, "LSTM with time_major=True"),
        ({"class_name": "BatchNormalization", "config": {"axis": [1, 2]}}, "over several axes"),
        ({"class_name": "Conv2DTranspose", "config": {"filters": 1, "groups": 2}}, "Conv2DTranspose with groups=2"),
    ],
)
def test_what_keras_3_cannot_express_is_refused(layer, message):
    with pytest.raises(Unsupported, match=message):
        keras_json.architecture({"class_name": "Sequential", "config": [layer]})


def test_an_input_shape_that_is_not_a_list_is_refused():
    layer = {"class_name": "Dense", "config": {"units": 1, "input_shape": 5}}
    with pytest.raises(InvalidArgument, match="batch_shape: 5 is not a shape"):
        keras_json.architecture({"class_name": "Sequential", "config": [layer]})


def test_layers_shared_by_nested_models_are_refused():
    inner = [{"class_name": "Dense", "config": {"units": 1, "trainable": True}, "shared_object_id": 7}]
    model = {"class_name": "Sequential", "config": inner}
    with pytest.raises(Unsupported, match="shared by two nested models"):
        keras_json.architecture({"class_name": "Sequential", "config": [model, model]})
    nameless = {"class_name": "Dense", "inbound_nodes": [], "shared_object_id": 7}
    with pytest.raises(Unsupported, match="shared by two nested models"):
        keras_json.architecture({"class_name": "Sequential", "config": [nameless, nameless]})
