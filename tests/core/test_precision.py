"""Mixed precision: which layers of an architecture get the policy of the run."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from cerebro_db.core.architecture import allowlist
from cerebro_db.core.architecture.precision import computed_in

Json = dict[str, Any]


def layer(class_name: str, name: str, **config: Any) -> Json:
    return {"module": "keras.layers", "class_name": class_name, "config": {"name": name, **config}}


def model(name: str, *layers: Json, **config: Any) -> Json:
    return {"module": "keras", "class_name": "Sequential", "config": {"name": name, "layers": list(layers), **config}}


def policy(name: str) -> Json:
    return {"module": "keras", "class_name": "DTypePolicy", "config": {"name": name}, "registered_name": None}


def policies(node: Json) -> dict[str, Any]:
    """The policy of each layer, by its name, at any depth."""
    found: dict[str, Any] = {}
    config = node["config"]
    if "layers" not in config:
        found[config["name"]] = config["dtype"]["config"]["name"] if isinstance(config.get("dtype"), dict) else (
            config.get("dtype")
        )  # fmt: skip
    for inner in [*config.get("layers", []), *config.get("cells", []), *filter(None, [config.get("layer")])]:
        found |= policies(inner)
    return found


NESTED = model(
    "outer",
    layer("InputLayer", "rows", batch_shape=[None, 8, 4], dtype="float32"),
    layer("TimeDistributed", "each", layer=layer("Dense", "wrapped", units=3, dtype=policy("float32"))),
    layer("RNN", "walk", layer=None, cells=[layer("LSTMCell", "cell", units=2)]),
    model("inner", layer("Dense", "deep", units=4), layer("Dense", "exact", units=4, dtype="float64")),
    layer("Dense", "earlier", units=4, dtype=policy("mixed_float16")),
    model("head", layer("Dense", "hidden", units=4, dtype=policy("float32")), layer("Dense", "out", units=2)),
)


def test_all_layers_but_the_outputs() -> None:
    before = copy.deepcopy(NESTED)
    made = computed_in(NESTED, "mixed_bfloat16")
    assert before == NESTED
    assert made["config"]["dtype"] == "mixed_bfloat16"
    mixed = "mixed_bfloat16"
    assert policies(made) == {
        "rows": "float32", "each": mixed, "wrapped": mixed, "walk": mixed, "cell": mixed, "deep": mixed,
        "exact": "float64", "earlier": mixed, "hidden": mixed, "out": None,
    }  # fmt: skip
    assert computed_in(made, "mixed_bfloat16") == made


def test_float32_undoes_mixed_precision() -> None:
    there_and_back = policies(computed_in(computed_in(NESTED, "mixed_float16"), "float32"))
    assert set(there_and_back.values()) == {None, "float32", "float64"}
    plain = model("plain", layer("Dense", "hidden", units=4), layer("Dense", "out", units=2, dtype=policy("float32")))
    assert computed_in(plain, "float32") == plain


def test_layers_and_policies_without_names() -> None:
    def dense(**config: Any) -> Json:
        return {"module": "keras.layers", "class_name": "Dense", "config": {"units": 4, **config}}

    nameless: Json = {**policy("float32"), "config": {}}
    made = computed_in(model("plain", dense(), dense(dtype=nameless), dense(), dense(dtype=nameless)), "mixed_float16")
    allowlist.check(made)
    found = [layer["config"].get("dtype") for layer in made["config"]["layers"]]
    assert found == ["mixed_float16", "mixed_float16", "mixed_float16", nameless]


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16", "float32"])
def test_several_outputs_and_the_allow_list(precision: str) -> None:
    def tensor(name: str) -> Json:
        reference = {"shape": [None, 4], "dtype": "float32", "keras_history": [name, 0, 0]}
        return {"class_name": "__keras_tensor__", "config": reference}

    def node(one: Json, *called_on: str) -> Json:
        calls = [{"args": [tensor(name) for name in called_on], "kwargs": {}}] if called_on else []
        return {**one, "name": one["config"]["name"], "inbound_nodes": calls}

    made = computed_in(
        {
            "module": "keras.src.models.functional",
            "class_name": "Functional",
            "config": {
                "name": "model",
                "layers": [
                    node(layer("InputLayer", "rows", batch_shape=[None, 4], dtype="float32")),
                    node(layer("Dense", "hidden", units=4, dtype=policy("float32")), "rows"),
                    node(layer("Dense", "price", units=1, dtype=policy("float32")), "hidden"),
                    node(layer("Dense", "mood", units=3, dtype=policy("mixed_float16")), "hidden"),
                ],
                "input_layers": [["rows", 0, 0]],
                "output_layers": [["price", 0, 0], ["mood", 0, 0]],
            },
        },
        precision,
    )
    assert policies(made) == {"rows": "float32", "hidden": precision, "price": "float32", "mood": "float32"}
    allowlist.check(made)


def test_layers_with_statistics_of_a_group_are_exact() -> None:
    """They subtract and add means, for whose differences 16 bits have too few digits."""
    given = model(
        "m", layer("BatchNormalization", "group_inputs_1"), layer("Dense", "a"), layer("EinsumDense", "group_target_2"),
        layer("Activation", "out"),
    )  # fmt: skip
    assert policies(computed_in(given, "mixed_bfloat16")) == {
        "group_inputs_1": None, "a": "mixed_bfloat16", "group_target_2": None, "out": None,
    }  # fmt: skip
