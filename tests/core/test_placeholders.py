"""Architectures with parameters: values in their places, repeated blocks, and the check of what comes out."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from cerebro_db.core.architecture import keras_json, placeholders
from cerebro_db.core.errors import CerebroError, InvalidArgument, UnsafeModel

DENSE = {"class_name": "Dense", "config": {"name": "hidden", "units": "$width", "activation": "$activation"}}
TEMPLATE: dict[str, Any] = {
    "class_name": "Sequential",
    "config": {
        "name": "mlp",
        "layers": [
            {"class_name": "InputLayer", "config": {"batch_shape": [None, 4], "name": "in"}},
            {"repeat": "$depth", "layers": [DENSE, {"class_name": "Dropout", "config": {"rate": "$dropout"}}]},
            {"class_name": "Dense", "config": {"name": "out", "units": 3}},
        ],
    },
}
VALUES = {"width": 8, "activation": "relu", "depth": 2, "dropout": 0.5}


def layers(filled: dict[str, Any]) -> list[Any]:
    return [layer["config"].get("name", layer["class_name"]) for layer in filled["config"]["layers"]]


def test_its_names() -> None:
    assert placeholders.names(TEMPLATE) == set(VALUES)
    assert keras_json.parameters(json.dumps(TEMPLATE)) == ["activation", "depth", "dropout", "width"]
    assert keras_json.parameters(json.dumps(keras_json.architecture(placeholders.filled(TEMPLATE, VALUES)))) is None


def test_values_are_put_in_their_places_and_blocks_repeated() -> None:
    before = copy.deepcopy(TEMPLATE)
    filled = placeholders.filled(TEMPLATE, VALUES)
    assert before == TEMPLATE
    assert layers(filled) == ["in", "hidden_1", "Dropout", "hidden_2", "Dropout", "out"]
    assert filled["config"]["layers"][3]["config"] == {"name": "hidden_2", "units": 8, "activation": "relu"}
    keras_json.architecture(filled)


def test_a_block_may_be_left_out_or_stand_in_another() -> None:
    assert layers(placeholders.filled(TEMPLATE, {**VALUES, "depth": 0})) == ["in", "out"]
    block = {"repeat": 2, "layers": [{"repeat": "$n", "layers": [{"class_name": "Dense", "config": {"name": "d"}}]}]}
    filled = placeholders.filled({"class_name": "Sequential", "config": {"layers": [block]}}, {"n": 2})
    assert layers(filled) == ["d_1_1", "d_2_1", "d_1_2", "d_2_2"]


def test_a_block_of_a_model_within_a_model() -> None:
    """So a functional model can have repeated blocks, too."""
    inner = {"class_name": "Sequential", "config": {"name": "tower", "layers": [{"repeat": "$n", "layers": [DENSE]}]}}
    values = {"n": 3, "width": 4, "activation": "tanh"}
    filled = placeholders.filled({"class_name": "Functional", "config": {"layers": [inner]}}, values)
    assert layers(filled["config"]["layers"][0]) == ["hidden_1", "hidden_2", "hidden_3"]


def test_a_value_may_be_any_json_and_a_text_may_begin_with_a_dollar() -> None:
    template = {"a": "$shape", "b": "$$5", "c": "costs $5", "class_name": "$cell"}
    assert placeholders.filled(template, {"shape": [3, 3], "cell": "GRU"}) == {
        "a": [3, 3],
        "b": "$5",
        "c": "costs $5",
        "class_name": "GRU",
    }
    assert placeholders.filled({"a": "$x"}, {"x": "$y"}) == {"a": "$y"}, "values are not filled again"


@pytest.mark.parametrize(
    ("template", "values", "said"),
    [
        (TEMPLATE, {"width": 8}, "has parameters activation, depth, dropout without a value"),
        (TEMPLATE, {**VALUES, "heigth": 8}, "has no parameter heigth"),
        ({"a": 1}, {"width": 8}, "has no parameter width"),
        (TEMPLATE, {**VALUES, "depth": 1.5}, "config.layers[1].repeat must be a whole number of at least 0, not 1.5"),
        (TEMPLATE, {**VALUES, "depth": True}, "config.layers[1].repeat must be a whole number"),
        (TEMPLATE, {**VALUES, "depth": 10**9}, "more than 10000 layers"),
        ({"a": "$1"}, {}, "a: $1 is not the name of a parameter"),
        ({"a": "${x}"}, {}, "a: ${x} is not the name of a parameter"),
        (
            {"config": {"repeat": 2, "layers": [1]}},
            {},
            "config: a repeated block is allowed only in the list of layers",
        ),
        ({"layers": [{"repeat": 2, "layers": []}]}, {}, "layers[0].layers must be a list with at least one layer"),
    ],
)
def test_what_cannot_be_filled_says_where_and_why(template, values, said) -> None:
    with pytest.raises(InvalidArgument) as caught:
        placeholders.filled(template, values)
    assert said in caught.value.message


def test_nested_blocks_cannot_grow_without_bounds() -> None:
    block: Any = {"class_name": "Flatten", "config": {}}
    for _ in range(12):
        block = {"repeat": 10, "layers": [block]}
    with pytest.raises(InvalidArgument, match="more than 10000 layers"):
        placeholders.filled({"layers": [block]}, {})


def test_every_expansion_passes_the_allow_list() -> None:
    for name, value in (("activation", "keras>gelu"), ("width", {"class_name": "Lambda"}), ("width", 0)):
        filled = placeholders.filled(TEMPLATE, {**VALUES, name: value})
        with pytest.raises((UnsafeModel, InvalidArgument)):
            keras_json.architecture(filled)


def test_an_architecture_that_was_not_filled_is_refused() -> None:
    with pytest.raises(CerebroError) as caught:
        keras_json.architecture(json.dumps(TEMPLATE))
    assert "has parameters activation, depth, dropout, width without a value" in caught.value.message
    assert "gives values to the parameters" in str(caught.value.hint)
