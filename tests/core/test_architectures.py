"""From texts to configurations."""

from __future__ import annotations

import json
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_db.core import legacy, models
from cerebro_db.core.errors import CerebroError, InvalidArgument, InvalidSyntax, UnsafeModel, Unsupported

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures" / "keras2"


def fixture(name: str, form: str = "keras2") -> dict:
    return json.loads((FIXTURES / f"{name}.json").read_text())[form]


# as the oldest examples that users copy have it
IRIS = """{"class_name": "Sequential", "keras_version": "2.1.6", "backend": "tensorflow", "config": [
  {"class_name": "Dense", "config": {"name": "dense_1", "trainable": true, "batch_input_shape": [null, 4],
    "dtype": "float32", "units": 10, "activation": "relu", "use_bias": true,
    "kernel_initializer": {"class_name": "VarianceScaling", "config": {"scale": 1.0, "mode": "fan_avg",
      "distribution": "uniform", "seed": null}},
    "bias_initializer": {"class_name": "Zeros", "config": {}}, "kernel_regularizer": null,
    "bias_regularizer": null, "activity_regularizer": null, "kernel_constraint": null, "bias_constraint": null}},
  {"class_name": "Dense", "config": {"name": "dense_2", "trainable": true, "units": 3, "activation": "softmax"}}]}"""


def test_an_old_text_becomes_a_configuration():
    made = models.configuration(models.architecture(IRIS), "optimizer='Adam(lr=0.1)', loss='mse', metrics=['mae']", "")
    assert set(made) == {"architecture", "compile", "fit"}
    assert made["compile"]["metrics"] == ["mae"]
    assert made["fit"]["batch_size"] == 32
    first, second, third = made["architecture"]["config"]["layers"]
    assert first["class_name"] == "InputLayer" and first["config"]["batch_shape"] == [None, 4]
    assert second["module"] == "keras.layers" and "batch_input_shape" not in second["config"]
    assert second["config"]["kernel_initializer"]["module"] == "keras.initializers"
    assert third["config"]["units"] == 3
    json.dumps(made)


@pytest.mark.parametrize(
    ("name", "shapes", "units"),
    [
        ("iris_mlp", [[4]], [3]),
        ("cnn", [[10, 10, 1]], [3]),
        ("embedding", [[7]], [2]),
        ("bidirectional", [[5, 2]], [2]),
        ("activations", [[4]], [3]),
        ("nested_sequential", [[3]], [2]),
        ("first_is_a_model", [[5]], [2]),
        ("two_inputs_two_outputs", [[4], [3]], [2, 1]),
        ("nested_functional", [[4], [4]], [4, 3]),
        ("states", [[5, 3], [4, 3]], [2]),
        ("attention", [[5, 6]], [2]),
    ],
)
def test_shapes_can_be_read_off(name, shapes, units):
    for form in ("keras2", "older"):
        model = models.architecture(fixture(name, form))
        assert models.input_shapes(model) == shapes
        assert models.output_units(model) == units


def test_a_model_without_input_has_no_shape():
    model = models.architecture({"class_name": "Sequential", "config": [{"class_name": "Flatten", "config": {}}]})
    assert models.input_shapes(model) == []
    assert models.output_units(model) == [None]


def test_metrics_given_once_hold_for_every_output():
    model = models.architecture(fixture("two_inputs_two_outputs"))

    def metrics(text: str):
        return models.configuration(model, f"optimizer='sgd', loss='mse', metrics={text}", None)["compile"]["metrics"]

    assert metrics("['mae']") == [["mae"], ["mae"]]
    assert metrics("['mae', 'mse']") == [["mae", "mse"], ["mae", "mse"]]
    assert metrics("[['mae'], []]") == [["mae"], []]
    assert metrics("{'kind': ['mae']}") == {"kind": ["mae"]}
    assert metrics("[]") == []


def test_how_a_saved_model_was_compiled_is_left_behind():
    given = models.architecture(IRIS)
    saved = {**given, "compile_config": {"optimizer": "rmsprop"}, "keras_version": "3.15.1"}
    assert models.architecture(saved) == given
    assert models.architecture(json.dumps(given)) == given


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", InvalidSyntax, "not valid JSON: .* line 1, column 1"),
        ('{"class_name": ', InvalidSyntax, "line 1, column 16"),
        ('{"a": NaN}', InvalidSyntax, "NaN is not a number"),
        ("[1]", InvalidArgument, "must be a JSON object"),
        ('{"a": 1}', InvalidArgument, "object with a class_name"),
        ('{"a":' * 100 + "1" + "}" * 100, InvalidArgument, "nested more than 64 deep"),
        ("[" * 500_000, InvalidArgument, "nested more than 64 deep"),
        (" " * (17 << 20), InvalidArgument, "at most 16 MB"),
        ('{"class_name": "Lambda", "config": {}}', UnsafeModel, "Lambda"),
    ],
)
def test_refused_texts(text, error, message):
    with pytest.raises(error, match=message):
        models.architecture(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
        | st.fixed_dictionaries(
            {"class_name": st.sampled_from(["Sequential", "Model", "Dense", "Functional", "Bidirectional", "Lambda"])},
            optional={
                "config": inner,
                "module": st.sampled_from(["keras", "keras.layers", None]),
                "name": st.text(max_size=3),
                "inbound_nodes": inner,
                "registered_name": inner,
                "keras_version": st.just("2.2.4"),
            },
        )
        | st.fixed_dictionaries({"layers": inner}, optional={"input_layers": inner, "output_layers": inner})
    ),
    max_leaves=25,
)


@given(JSON)
def test_any_json_is_taken_or_refused_in_our_words(value):
    try:
        made = models.architecture(json.dumps(value))
    except CerebroError as error:
        assert len(error.message) < 600
    else:
        assert models.architecture(made) == made
        models.input_shapes(made), models.output_units(made)


def test_what_behaves_otherwise_under_keras_3_is_said():
    lstm = {"class_name": "LSTM", "config": {"units": 2, "batch_input_shape": [None, 3, 2]}}
    old = {"class_name": "Sequential", "config": [lstm], "keras_version": "2.2.4"}
    assert legacy.warnings(old) == []
    lstm["config"]["recurrent_activation"] = "hard_sigmoid"
    (text,) = legacy.warnings(old)
    assert "hard_sigmoid" in text
    assert legacy.warnings(models.architecture(old)) == []


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
        models.architecture({"class_name": "Sequential", "config": [layer]})


def test_layers_shared_by_nested_models_are_refused():
    inner = [{"class_name": "Dense", "config": {"units": 1, "trainable": True}, "shared_object_id": 7}]
    model = {"class_name": "Sequential", "config": inner}
    with pytest.raises(Unsupported, match="shared by two nested models"):
        models.architecture({"class_name": "Sequential", "config": [model, model]})
