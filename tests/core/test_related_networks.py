"""Architectures for rows with related tables: what each value of ``related`` reads, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cerebro_db.core.architecture import building, keras_json, trees
from cerebro_db.core.architecture.precision import computed_in
from cerebro_db.core.architecture.related import neighbourhoods
from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.packing.windows import Windows
from tests.core import shop, test_building

KINDS = [kind for kind in building.PARAMETERS if kind != "cnn"]
WITH_ENCODER = [kind for kind, its in building.PARAMETERS.items() if "encoder" in its]
IMAGE = test_building.IMAGE


def built(kind: str, layout: Layout = shop.SHOP, **parameters: Any) -> dict[str, Any]:
    return keras_json.architecture(json.dumps(building.architecture(kind, layout, parameters, "test")))


def layers(model: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {layer["name"]: layer for layer in model["config"]["layers"]}


def read_by(model: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The layers that are called on another."""
    return [one for one in layers(model).values() if f'["{name}", 0, 0]' in json.dumps(one["inbound_nodes"])]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("related", ["both", "aggregates", "neighbourhoods", "none"])
def test_each_kind_reads_what_it_is_told(kind: str, related: str) -> None:
    if (kind, related) == ("trees", "neighbourhoods"):
        with pytest.raises(BadData, match="trees cannot read the latest rows") as error:
            built(kind, related=related)
        assert error.value.hint
        return
    if kind == "cnn_lstm":
        with pytest.raises(BadData, match="cnn_lstm reads windows of rows .*. The packed table has none"):
            built(kind, related=related)
        return
    if kind in ("lstm", "conv1d") and related in ("aggregates", "none"):
        with pytest.raises(BadData, match=f"{kind} reads .*the latest rows of related tables. The packed table has"):
            built(kind, related=related)
        return
    model = built(kind, related=related)
    assert [name for name, _, _ in model["config"]["input_layers"]] == shop.NAMES
    inputs = [layers(model)[name]["config"]["dtype"] for name in shop.NAMES]
    assert inputs == ["float32", "int32", "float32", "int32", "float32"], "as all members of an ensemble have them"
    near = related in ("both", "neighbourhoods") and kind != "trees"
    assert [bool(read_by(model, name)) for name in shop.NAMES[2:]] == [near] * 3
    assert layers(model)["numbers"]["config"]["batch_shape"] == [None, 5]
    if related in ("both", "aggregates"):
        return
    spans = [
        one["inbound_nodes"][0]["args"][1][-1]["config"]
        for one in read_by(model, "numbers")
        if one["class_name"] == "GetItem"
    ]
    # Neighbourhoods leave aggregates out, and none all but the row's own columns.
    wanted = [(0, 1)] if related == "none" else [(0, 1), (3, 4)]
    assert [(span["start"], span["stop"]) for span in spans] == wanted and len(read_by(model, "numbers")) == len(wanted)
    sizes = [layer["config"]["input_dim"] for layer in layers(model).values() if layer["class_name"] == "Embedding"]
    own = [size for size in sizes if size == shop.STATUS.size]
    assert len(own) == (1 if related == "none" or kind == "trees" else 2) + (kind == "trees" and related == "both")


def test_codes_that_are_not_read_leave_one_element() -> None:
    model = built("mlp", related="none")
    (sliced,) = [one for one in read_by(model, "categories")]
    (taken,) = read_by(model, sliced["name"])
    assert sliced["inbound_nodes"][0]["args"][1][-1]["config"] == {"start": 1, "stop": 2, "step": None}
    assert taken["inbound_nodes"][0]["args"][1][-1] == 0


def test_numbers_of_a_group_are_measured_before_some_are_left_out() -> None:
    model = built("mlp", related="none", group_statistics=1)
    measured, taken = read_by(model, "numbers")
    assert {measured["class_name"], taken["class_name"]} == {"BatchNormalization", "GetItem"}


@pytest.mark.parametrize("kind", [*WITH_ENCODER, "lstm", "transformer", "conv1d"])
def test_no_weight_depends_on_the_number_of_places(kind: str) -> None:
    def sizes(places: int) -> str:
        layout = shop.with_places(places)
        if kind == "cnn":
            layout = replace(layout, inputs=(*layout.inputs, IMAGE))
        model = built(kind, layout)
        return json.dumps(
            [
                layer["config"]
                for layer in model["config"]["layers"]
                if layer["class_name"] in ("Dense", "EinsumDense", "Embedding", "GRU", "LSTM")
            ]
        )

    assert sizes(3) == sizes(9)


@pytest.mark.parametrize("kind", WITH_ENCODER)
@pytest.mark.parametrize(("encoder", "has"), [("attention", "MultiHeadAttention"), ("gru", "GRU"), ("mean", None)])
def test_an_encoder_reads_each_neighbourhood(kind: str, encoder: str, has: str | None) -> None:
    layout = replace(shop.SHOP, inputs=(*shop.SHOP.inputs, IMAGE)) if kind == "cnn" else shop.SHOP
    classes = [layer["class_name"] for layer in built(kind, layout, encoder=encoder)["config"]["layers"]]
    found = [one for one in classes if one in ("MultiHeadAttention", "GRU")]
    assert found == ([has] * 2 if has else []) and classes.count("Log1p") == 2
    assert neighbourhoods.OF_ENCODER.every == ("attention", "gru", "mean")


def test_angles_are_computed_with_all_digits() -> None:
    """The place 200 times a speed has no digit after the point left in 16 bits."""
    mixed = computed_in(built("mlp", encoder="attention"), "mixed_bfloat16")
    policies = {
        name.rpartition("_")[0]: layer["config"].get("dtype")
        for name, layer in layers(mixed).items()
        if layer["class_name"] in ("Rescaling", "Multiply")
    }
    assert policies == {"angles": None, "multiply": "mixed_bfloat16"}


@pytest.mark.parametrize(
    ("layout", "kind", "parameters", "error", "says"),
    [
        (test_building.ALL, "mlp", {"related": "none"}, InvalidArgument, "the packed rows have nothing of related"),
        (test_building.ALL, "mlp", {"encoder": "gru"}, InvalidArgument, "the packed rows have no neighbourhoods"),
        (shop.without_neighbourhoods(), "mlp", {"encoder": "gru"}, InvalidArgument, "have no neighbourhoods"),
        (shop.without_neighbourhoods(), "mlp", {"related": "neighbourhoods"}, BadData, "the packed rows have none"),
        (shop.SHOP, "mlp", {"related": "all"}, InvalidArgument, "related cannot be 'all'"),
        (shop.SHOP, "mlp", {"related": 1}, InvalidArgument, "related cannot be 1"),
        (shop.SHOP, "mlp", {"related": "$related"}, InvalidArgument, r"related cannot be '\$related'"),
        (shop.SHOP, "mlp", {"encoder": ["gru"]}, InvalidArgument, r"encoder cannot be \['gru'\]"),
        (shop.SHOP, "mlp", {"units": "both"}, InvalidArgument, "units cannot be 'both'"),
        (shop.SHOP, "transformer", {"encoder": "gru"}, InvalidArgument, "transformer has no parameter 'encoder'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    layout: Layout, kind: str, parameters: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as raised:
        building.architecture(kind, layout, parameters, "test")
    assert raised.value.hint  # type: ignore[attr-defined]


def test_defaults_can_be_given_where_nothing_is_related() -> None:
    plain = building.architecture("mlp", test_building.ALL, None, "test")
    given = {"related": "both", "encoder": neighbourhoods.OF_ENCODER.default}
    assert building.architecture("mlp", test_building.ALL, given, "test") == plain


def test_rows_without_a_column_of_their_own() -> None:
    layout = replace(shop.SHOP, inputs=(shop.ORDER_NUMBERS, shop.ORDER_CODES))
    assert built("mlp", layout) and built("transformer", layout) and not trees.fits(layout)
    with pytest.raises(BadData, match="there is nothing to read") as error:
        built("mlp", layout, related="none")
    assert error.value.hint
    with pytest.raises(BadData, match="there is nothing to read"):
        built("trees", layout)


def test_windows_have_no_neighbourhoods() -> None:
    def windowed(one: Variable) -> Variable:
        return replace(one, shape=(20, *one.shape))

    layout = replace(
        shop.SHOP, inputs=tuple(map(windowed, shop.SHOP.inputs)), windows=Windows((), ("at",), 20, 10, "last")
    )
    with pytest.raises(BadData, match="windows of rows cannot have neighbourhoods") as error:
        built("lstm", layout)
    assert error.value.hint


def test_trees_are_counted_without_neighbourhoods() -> None:
    assert trees.fits(shop.with_places(256)) and trees.work(shop.SHOP, 1) == trees.work(shop.with_places(256), 1)
