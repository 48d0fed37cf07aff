"""Architectures for packed tables: the allow-list takes them, and parameters are checked.  tests/sql trains them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cerebro_db.core.architecture import building, keras_json, trees
from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.packing.features import CategoryFeature, DateFeature, NumberFeature, WordsFeature
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.packing.preparation import (
    AsIs,
    Categories,
    Encoded,
    Measured,
    Numbers,
    OneHot,
    Preparation,
    Real,
    Words,
)
from cerebro_db.core.packing.windows import Windows
from cerebro_db.core.sql_types import SqlType

EDGES = (-2.0, -0.5, 0.0, 0.5, 2.0)
AGE = NumberFeature("number", SqlType("real"), "standard", 40.0, 12.5, 38.0, True, "error", edges=EDGES)
BORN = DateFeature("date", SqlType("date"), ("year",), 18000.0, 300.0, False, (-1.0, 0.0, 1.5))
CITY = CategoryFeature("text", SqlType("text"), ("Rome", "Bonn"), (), 0, "notice")
LOGIN = CategoryFeature("text", SqlType("text"), (), (), 256, "notice")


def variable(name: str, preparation: Preparation, shape: tuple[int, ...], dtype: str = "float32") -> Variable:
    columns = tuple(f"c{place}" for place, _ in enumerate(preparation.features)) or (name,)
    return Variable(name, dtype, shape, columns, preparation)


NUMBERS = variable("numbers", Numbers((AGE, BORN)), (5,))
OLD_NUMBERS = variable("numbers", Numbers((replace(AGE, edges=()), BORN)), (5,))  # as version 0.1.0 packed them
CODES = variable("categories", Categories((CITY, LOGIN)), (2,), "int16")
TEXT = variable("review", Words((WordsFeature("text", SqlType("text"), 8, 100),)), (8,), "int32")
IMAGE = variable("Das Bild", AsIs(), (4, 4), "uint8")
KIND = variable("kind", OneHot(SqlType("text"), ("a", "b", "c")), (3,), "int16")
PRICE = variable("price", Measured(4000.0, 1500.0), (1,))
VECTOR = variable("vector", Real(), (2, 3))


def layout(inputs: list[Variable], *outputs: Variable) -> Layout:
    return Layout(tuple(inputs), outputs, 0, ())


ALL = layout([NUMBERS, CODES, TEXT, IMAGE], KIND, PRICE, VECTOR)
CURVE = variable("curve", AsIs(), (30,))
TALL = variable("tall", AsIs(), (9, 6, 3), "uint8")
EVERY = [NUMBERS, CODES, TEXT, IMAGE, CURVE, TALL]
ROWS_ALIKE = ("mlp", "resnet", "transformer", "trees")  # kinds that fit every table
FITTING = {"lstm": (TEXT, IMAGE, CURVE), "conv1d": (TEXT, IMAGE, CURVE), "cnn": (IMAGE, TALL), "cnn_lstm": ()}


def fits(kind: str, inputs: list[Variable]) -> bool:
    return kind in ROWS_ALIKE or any(one in FITTING[kind] for one in inputs)


@pytest.mark.parametrize("kind", building.PARAMETERS)
@pytest.mark.parametrize(
    "inputs", [*([one] for one in EVERY), [NUMBERS, CODES, TEXT, IMAGE], EVERY], ids=lambda some: some[-1].name
)
@pytest.mark.parametrize("output", [KIND, PRICE, VECTOR], ids=lambda one: one.name)
def test_the_allow_list_takes_them(kind: str, inputs: list[Variable], output: Variable) -> None:
    if not fits(kind, inputs):
        with pytest.raises(BadData, match=f"{kind} reads .* The packed table has none") as error:
            building.architecture(kind, layout(inputs, output), None, "test")
        assert inputs[0].name in error.value.message and error.value.hint
        return
    if kind == "trees" and output is VECTOR:
        with pytest.raises(BadData, match="trees predict one target, a class or a vector of numbers"):
            building.architecture(kind, layout(inputs, output), None, "test")
        return
    built = building.architecture(kind, layout(inputs, output), None, "test")
    read = keras_json.architecture(json.dumps(built))
    names = [name for name, _, _ in read["config"]["input_layers"]]
    assert names == [one.name if one.name != "Das Bild" else f"input_{place}" for place, one in enumerate(inputs, 1)]
    assert keras_json.outputs(read) == [output.name]
    assert built["compile_config"]["loss"] == ("categorical_crossentropy" if output is KIND else "mse")


def windowed(one: Variable) -> Variable:
    return replace(one, shape=(20, *one.shape))


@pytest.mark.parametrize("kind", [kind for kind in building.PARAMETERS if kind not in ("cnn", "trees")])
@pytest.mark.parametrize("inputs", [*([one] for one in EVERY), EVERY], ids=lambda some: some[-1].name)
def test_windows_are_read_by_all_kinds_but_cnn_and_trees(kind: str, inputs: list[Variable]) -> None:
    packed = replace(layout(list(map(windowed, inputs)), KIND), windows=Windows(("who",), ("at",), 20, 10, "last"))
    read = keras_json.architecture(json.dumps(building.architecture(kind, packed, None, "test")))
    assert [
        layer["config"]["batch_shape"] for layer in read["config"]["layers"] if "batch_shape" in layer["config"]
    ] == [[None, 20, *one.shape] for one in inputs]
    with pytest.raises(BadData, match="cnn reads images"):
        building.architecture("cnn", packed, None, "test")
    with pytest.raises(BadData, match="trees read rows, and these are windows of rows"):
        building.architecture("trees", packed, None, "test")
    assert not trees.fits(packed)


@pytest.mark.parametrize("kind", [kind for kind in building.PARAMETERS if kind not in ("cnn", "trees")])
@pytest.mark.parametrize("output", [KIND, PRICE, replace(PRICE, preparation=Real())], ids=["class", "number", "real"])
def test_a_target_of_steps_has_an_output_for_each(kind: str, output: Variable) -> None:
    target = replace(output, shape=(5, *output.shape), steps=5)
    windows = Windows(("who",), ("at",), 20, 20, "each", every=4)
    packed = replace(layout([windowed(NUMBERS), windowed(CODES)], target), windows=windows)
    for more in ({}, {"group_statistics": 1}):
        read = keras_json.architecture(json.dumps(building.architecture(kind, packed, more, "test")))
        assert keras_json.outputs(read) == [output.name]


def test_parts_of_a_window_have_the_same_rows() -> None:
    packed = replace(layout([windowed(NUMBERS)], KIND), windows=Windows(("who",), ("at",), 20, 20, "last"))
    with pytest.raises(BadData, match="rows cannot be 3: the 20 rows of a window are not so many parts") as error:
        building.architecture("cnn_lstm", packed, {"rows": 3}, "test")
    assert error.value.hint


def test_a_transformer_does_not_compare_too_many_tokens() -> None:
    long = replace(windowed(CURVE), shape=(5000, 30))
    packed = replace(layout([long], KIND), windows=Windows((), ("at",), 5000, 5000, "last"))
    with pytest.raises(BadData, match="5000 tokens of each row") as error:
        building.architecture("transformer", packed, None, "test")
    assert error.value.hint


@pytest.mark.parametrize("kind", ["transformer", "lstm", "conv1d", "cnn"])
def test_names_stay_to_be_filled_in(kind: str) -> None:
    free = [name for name in building.PARAMETERS[kind] if name not in building.STRUCTURE]
    built = building.architecture(kind, layout(EVERY, KIND), {name: f"${name}" for name in free}, "test")
    assert all(f'"${name}"' in json.dumps(built) for name in free)


def test_inner_layers_have_names_of_their_own() -> None:
    clash = variable("dense_1", OneHot(SqlType("text"), ("a", "b")), (2,), "int16")
    built = building.architecture("mlp", layout([NUMBERS], clash), None, "test")
    names = [layer["name"] for layer in built["config"]["layers"]]
    assert len(set(names)) == len(names) and built["config"]["output_layers"] == [["dense_1", 0, 0]]


def test_many_numbers_are_taken_as_they_are() -> None:
    many = variable("numbers", Numbers((AGE,) * 600), (1200,))
    read = json.dumps(building.architecture("mlp", layout([many], KIND), {"bins": 16}, "test"))
    assert "EinsumDense" not in read and "Rescaling" not in read
    few = building.architecture("mlp", layout([NUMBERS], KIND), {"embedding": 0}, "test")
    assert "EinsumDense" not in json.dumps(few)


def lines(built: dict[str, Any], elements: int) -> list[list[tuple[float, float]]]:
    """For each number, the slope and offset of the line in each bin."""
    (config,) = [layer["config"] for layer in built["config"]["layers"] if layer["class_name"] == "Rescaling"]
    each = list(zip(config["scale"], config["offset"]))
    return [each[place::elements] for place in range(elements)]


def test_bins_lie_between_quantiles() -> None:
    built = building.architecture("mlp", layout([NUMBERS], KIND), {"bins": 3, "embedding": 0}, "test")
    keras_json.architecture(json.dumps(built))
    age, missing, sine, cosine, days = lines(built, 5)
    # Of five edges, four at equal distances in the list: -2, -0.5, 0.5, 2.
    assert age == [(0.666667, 1.33333), (1.0, 0.5), (0.666667, -0.333333)]
    assert missing == [(0.0, 0.0)] * 3  # an indicator has no bins
    assert sine == cosine == [(1.45455, 1.45455), (1.6, 0.5), (1.45455, -0.454545)]
    assert days == [(1.0, 1.0), (0.666667, 0.0), (0.0, 0.0)]  # it has fewer edges
    assert "EinsumDense" not in json.dumps(built)
    functions = building.architecture("resnet", layout([NUMBERS], KIND), {"bins": 3}, "test")
    (layer,) = [one["config"] for one in functions["config"]["layers"] if one["class_name"] == "EinsumDense"]
    assert (layer["equation"], layer["output_shape"]) == ("btf,tfe->bfe", [5, 16])
    plain = building.architecture("mlp", layout([NUMBERS], KIND), None, "test")
    assert plain == building.architecture("mlp", layout([NUMBERS], KIND), {"bins": 0}, "test")


def test_a_table_without_quantiles_has_no_bins() -> None:
    old = layout([OLD_NUMBERS], KIND)
    with pytest.raises(BadData, match="bins cannot be 8: an earlier version has packed the table") as error:
        building.architecture("mlp", old, {"bins": 8}, "test")
    assert error.value.hint
    building.architecture("mlp", layout([CODES], KIND), {"bins": 8}, "test")


def ends(built: dict[str, Any]) -> list[str]:
    """The names of the layers that the output layer is called on, those of a concatenation one by one."""
    layers = {layer["name"]: layer for layer in built["config"]["layers"]}

    def called_on(name: str) -> list[str]:
        found = layers[name]["inbound_nodes"][0]["args"][0]
        return [one["config"]["keras_history"][0] for one in (found if isinstance(found, list) else [found])]

    (before,) = called_on(built["config"]["output_layers"][0][0])
    return called_on(before) if layers[before]["class_name"] == "Concatenate" else [before]


@pytest.mark.parametrize("kind", ["mlp", "resnet"])
def test_the_output_layer_reads_the_inputs_too(kind: str) -> None:
    packed = layout([NUMBERS], KIND)
    plain = {"embedding": 0}
    body, *inputs = ends(building.architecture(kind, packed, plain, "test"))
    assert inputs == ["numbers"]
    assert ends(building.architecture(kind, packed, {**plain, "linear": 0}, "test")) == [body]
    whole = building.architecture(kind, layout([NUMBERS, CODES], KIND), None, "test")
    names = {layer["name"]: layer["class_name"] for layer in whole["config"]["layers"]}
    assert [names[one] for one in ends(whole)][1:] == ["Concatenate"]  # the numbers, their bends and the codes


def test_a_linear_model_reads_the_inputs_once() -> None:
    assert ends(building.architecture("mlp", layout([NUMBERS], KIND), {"layers": 0, "embedding": 0}, "test")) == [
        "numbers"
    ]


@pytest.mark.parametrize("kind", [kind for kind in building.PARAMETERS if kind not in ("trees", "cnn_lstm")])
@pytest.mark.parametrize("output", [KIND, PRICE, VECTOR], ids=lambda one: one.name)
def test_only_output_layers_begin_with_zeros(kind: str, output: Variable) -> None:
    built = building.architecture(kind, layout(EVERY, output), None, "test")
    zeros = [
        layer for layer in built["config"]["layers"] if layer["config"].get("kernel_initializer") == building.ZEROS
    ]
    assert [layer["config"]["units"] for layer in zeros] == [output.elements]


def test_parameters_change_the_model_and_names_stay_to_be_filled_in() -> None:
    built = building.architecture(
        "mlp", layout([NUMBERS], KIND), {"layers": 2, "units": "$units", "dropout": 0}, "test"
    )
    dense = [layer["config"]["units"] for layer in built["config"]["layers"] if layer["class_name"] == "Dense"]
    assert dense == ["$units", "$units", 3] and "Dropout" not in json.dumps(built)
    wide = building.architecture("resnet", layout([NUMBERS], KIND), {"blocks": 1, "hidden": 7, "dropout": "$d"}, "test")
    assert [layer["config"].get("rate") for layer in wide["config"]["layers"] if "rate" in layer["config"]] == [
        "$d"
    ] * 2


@pytest.mark.parametrize(
    ("kind", "parameters", "says"),
    [
        ("forest", None, "there is no kind 'forest'"),
        ("mlp", [], "parameters must be a JSON object"),
        ("mlp", {"blocks": 2}, "mlp has no parameter 'blocks'"),
        ("mlp", {"layers": "$layers"}, "layers cannot be '$layers'"),
        ("mlp", {"units": 0}, "units cannot be 0"),
        ("mlp", {"linear": 2}, "linear cannot be 2"),
        ("mlp", {"bins": 33}, "bins cannot be 33"),
        ("mlp", {"bins": "$bins"}, "bins cannot be '$bins'"),
        ("lstm", {"bins": 8}, "lstm has no parameter 'bins'"),
        ("resnet", {"linear": "$linear"}, "linear cannot be '$linear'"),
        ("lstm", {"linear": 0}, "lstm has no parameter 'linear'"),
        ("mlp", {"units": 1.5}, "units cannot be 1.5"),
        ("mlp", {"units": True}, "units cannot be True"),
        ("mlp", {"dropout": 1}, "dropout cannot be 1"),
    ],
)
def test_what_makes_no_sense_is_refused(kind: str, parameters: Any, says: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        building.architecture(kind, ALL, parameters, "test")
    assert says in error.value.message and error.value.hint


def test_a_target_of_several_dimensions_is_refused() -> None:
    grid = variable("grid", Encoded(), (4, 4), "int16")
    with pytest.raises(BadData, match="the target grid has the shape") as error:
        building.architecture("mlp", layout([NUMBERS], grid), None, "test")
    assert error.value.hint


@pytest.mark.parametrize(
    ("inputs", "outputs", "parameters", "said"),
    [
        ([NUMBERS], [KIND, PRICE], {}, "trees predict one target"),
        ([replace(CURVE, shape=(5000,))], [KIND], {}, "trees read at most 4096 numbers of a row, and there are 5000"),
        ([NUMBERS], [KIND], {"rounds": 9000, "depth": 12}, "have 110,592,000 numbers in their leaves"),
    ],
)
def test_trees_are_refused(inputs: list[Variable], outputs: list[Variable], parameters: Any, said: str) -> None:
    with pytest.raises(BadData, match=said) as error:
        building.architecture("trees", layout(inputs, *outputs), parameters, "test")
    assert error.value.hint


def test_trees_are_known_by_their_layers() -> None:
    assert trees.are_grown(building.architecture("trees", layout(EVERY, KIND), None, "test"))
    assert not trees.are_grown(building.architecture("mlp", layout(EVERY, KIND), None, "test"))
    assert not any(
        map(
            trees.are_grown,
            (
                None,
                "",
                {},
                {"config": [1]},
                {"config": {"layers": 3}},
                {"config": {"layers": [3, {"class_name": "Embedding"}]}},
            ),
        )
    )
