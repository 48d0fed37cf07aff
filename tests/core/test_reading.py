"""Reading architectures: the accepted texts, the refused ones, and what a model says about its outputs."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_db.core.architecture import keras_json
from cerebro_db.core.errors import CerebroError, InvalidArgument, InvalidSyntax, UnsafeModel
from cerebro_db.core.parameters.params import compile_params

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures" / "keras2"


def fixture(name: str, form: str = "keras2") -> dict:
    return json.loads((FIXTURES / f"{name}.json").read_text())[form]


# The form of the oldest examples, which users still copy
IRIS = """{"class_name": "Sequential", "keras_version": "2.1.6", "backend": "tensorflow", "config": [
  {"class_name": "Dense", "config": {"name": "dense_1", "trainable": true, "batch_input_shape": [null, 4],
    "dtype": "float32", "units": 10, "activation": "relu", "use_bias": true,
    "kernel_initializer": {"class_name": "VarianceScaling", "config": {"scale": 1.0, "mode": "fan_avg",
      "distribution": "uniform", "seed": null}},
    "bias_initializer": {"class_name": "Zeros", "config": {}}, "kernel_regularizer": null,
    "bias_regularizer": null, "activity_regularizer": null, "kernel_constraint": null, "bias_constraint": null}},
  {"class_name": "Dense", "config": {"name": "dense_2", "trainable": true, "units": 3, "activation": "softmax"}}]}"""


def test_an_old_text_becomes_an_architecture_of_keras_3():
    model = keras_json.architecture(IRIS)
    first, second, third = model["config"]["layers"]
    assert first["class_name"] == "InputLayer" and first["config"]["batch_shape"] == [None, 4]
    assert second["module"] == "keras.layers" and "batch_input_shape" not in second["config"]
    assert second["config"]["kernel_initializer"]["module"] == "keras.initializers"
    assert third["config"]["units"] == 3
    json.dumps(model)


def input_shapes(model: dict) -> list:
    layers = model["config"]["layers"]
    found = [layer["config"]["batch_shape"][1:] for layer in layers if layer["class_name"] == "InputLayer"]
    return found or input_shapes(layers[0])


@pytest.mark.parametrize(
    ("name", "shapes", "outputs"),
    [
        ("iris_mlp", [[4]], ["dense_2"]),
        ("cnn", [[10, 10, 1]], ["dense"]),
        ("embedding", [[7]], ["dense"]),
        ("bidirectional", [[5, 2]], ["dense"]),
        ("activations", [[4]], ["softmax"]),
        ("nested_sequential", [[3]], ["dense_3"]),
        ("first_is_a_model", [[5]], ["dense_2"]),
        ("two_inputs_two_outputs", [[4], [3]], ["kind", "size"]),
        ("nested_functional", [[4], [4]], ["inner", "stack"]),
        ("states", [[5, 3], [4, 3]], ["time_distributed"]),
        ("attention", [[5, 6]], ["dense"]),
    ],
)
def test_inputs_and_outputs_of_old_models(name, shapes, outputs):
    for form in ("keras2", "older"):
        model = keras_json.architecture(fixture(name, form))
        assert input_shapes(model) == shapes
        assert keras_json.outputs(model) == outputs


def test_a_flat_list_of_metrics_is_repeated_for_each_output():
    two_outputs, one_output = keras_json.architecture(fixture("two_inputs_two_outputs")), keras_json.architecture(IRIS)

    def metrics(text: str, model: dict = two_outputs):
        given = compile_params(f"optimizer='sgd', loss='mse', metrics={text}")
        return keras_json.for_outputs(given, model)["metrics"]

    assert metrics("['mae']", one_output) == ["mae"]
    assert metrics("['mae']") == [["mae"], ["mae"]]
    assert metrics("['mae', 'mse']") == [["mae", "mse"], ["mae", "mse"]]
    assert metrics("[['mae'], []]") == [["mae"], []]
    assert metrics("{'kind': ['mae']}") == {"kind": ["mae"]}
    assert metrics("[]") == []


def test_what_keras_saves_beside_the_architecture_is_dropped():
    given = keras_json.architecture(IRIS)
    saved = {**given, "compile_config": {"optimizer": "rmsprop"}, "keras_version": "3.15.1"}
    assert keras_json.architecture(saved) == given
    assert keras_json.architecture(json.dumps(given)) == given


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", InvalidSyntax, "not valid JSON: .* line 1, column 1"),
        ('{"class_name": ', InvalidSyntax, "line 1, column 16"),
        ('{"a": NaN}', InvalidSyntax, "NaN is not a number"),
        ("[1]", InvalidArgument, "must be a JSON object"),
        ('{"a": 1}', InvalidArgument, "object with a class_name"),
        ('{"a":' * 100 + "1" + "}" * 100, InvalidArgument, "nested more than 64 levels deep"),
        ("[" * 500_000, InvalidArgument, "nested more than 64 levels deep"),
        (" " * (17 << 20), InvalidArgument, "at most 16 MB"),
        ('{"class_name": "Lambda", "config": {}}', UnsafeModel, "Lambda"),
    ],
)
def test_refused_texts(text, error, message):
    with pytest.raises(error, match=message):
        keras_json.architecture(text)


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
def test_any_json_is_accepted_or_refused_with_an_error_of_ours(value):
    try:
        model = keras_json.architecture(json.dumps(value))
    except CerebroError as error:
        assert len(error.message) < 600
    else:
        assert keras_json.architecture(model) == model
        assert keras_json.outputs(model)


def test_the_units_of_the_outputs() -> None:
    dense = {"class_name": "Dense", "config": {"name": "d", "units": 3}}
    softmax = {"class_name": "Softmax", "config": {"name": "s"}}
    flat = {"class_name": "Flatten", "config": {"name": "f"}}
    assert keras_json.widths({"class_name": "Sequential", "config": {"layers": [dense, softmax]}}) == [3]
    assert keras_json.widths({"class_name": "Sequential", "config": {"layers": [flat]}}) == [None]

    def after(layer: dict[str, Any], *names: str) -> dict[str, Any]:
        args = [{"class_name": "__keras_tensor__", "config": {"keras_history": [name, 0, 0]}} for name in names]
        return {**layer, "inbound_nodes": [{"args": args, "kwargs": {}}]}

    both = {"class_name": "Add", "config": {"name": "a"}}
    layers = [flat, after(dense, "f"), after(softmax, "d"), after(both, "d", "f")]
    outputs = [["s", 0, 0], ["d", 0, 0], ["a", 0, 0]]
    model = {"class_name": "Functional", "config": {"layers": layers, "output_layers": outputs}}
    assert keras_json.widths(model) == [3, 3, None]
