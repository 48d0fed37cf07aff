"""Adapters at the door: which layers get them, what is refused, and where configurations and spaces have them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from test_building import KIND, NUMBERS, layout
from test_freezing import frozen_in, layer, sequential

from cerebro_db.core.architecture import keras_json, sources
from cerebro_db.core.architecture.adapters.document import KEY, PARTS, ends
from cerebro_db.core.architecture.ensembles import ensemble
from cerebro_db.core.architecture.sources import Kind
from cerebro_db.core.errors import InvalidArgument, Unsupported
from cerebro_db.core.parameters import changes, flat
from cerebro_db.core.search.spaces import flat_space, read_space

Json = dict[str, Any]


def block(number: int) -> list[Json]:
    return [
        layer("LayerNormalization", f"norm_{number}"),
        layer("Dense", f"wide_{number}", units=8),
        layer("Dense", f"narrow_{number}", units=4, use_bias=False),
    ]


NETWORK = sequential(
    "network",
    layer("InputLayer", "rows", batch_shape=[None, 6, 4]),
    sequential("body", *block(0), *block(1)),
    layer("GlobalAveragePooling1D", "mean"),
    layer("Dense", "out", units=3),
)
# A functional network with attention, as Keras writes it.
ATTENTION = {
    "class_name": "Functional",
    "module": "keras.src.models.functional",
    "config": {
        "name": "attending",
        "layers": [
            {**layer("InputLayer", "rows", batch_shape=[None, 6, 4]), "name": "rows", "inbound_nodes": []},
            {**layer("MultiHeadAttention", "attention", num_heads=2, key_dim=2), "name": "attention",
             "inbound_nodes": []},
            {**layer("Dense", "wide", units=8), "name": "wide", "inbound_nodes": []},
            {**layer("Dense", "out", units=3), "name": "out", "inbound_nodes": []},
        ],
        "input_layers": [["rows", 0, 0]],
        "output_layers": [["out", 0, 0]],
    },
}  # fmt: skip


def made(model: Json, **values: Any) -> Json:
    return sources.made(model, values)


def adapted(model: Json, **values: Any) -> list[str]:
    return [one["layer"] for one in made(model, **values)[KEY]]


def test_all_but_the_last_layer_is_frozen_and_has_the_adapters() -> None:
    before = copy.deepcopy(NETWORK)
    found = made(NETWORK, lora_rank=4, lora_alpha=8, lora_dropout=0.1)
    assert before == NETWORK
    assert frozen_in(found) == ["norm_0", "wide_0", "narrow_0", "norm_1", "wide_1", "narrow_1"]
    matrices = ["body/wide_0", "body/narrow_0", "body/wide_1", "body/narrow_1"]
    assert found[KEY] == [{"layer": one, "lora": 4, "alpha": 8, "dropout": 0.1} for one in matrices]
    assert keras_json.architecture(json.dumps(found)) == found  # a model table's architecture can be added
    assert {key: value for key, value in found.items() if key != KEY} == made(NETWORK, frozen=-1)


@pytest.mark.parametrize(
    ("equation", "found"),
    [("abc,cde->abde", ("c", "de")), ("abcd,cde->abe", ("cd", "e")), ("bf,fe->bfe", None), ("bf,f->bf", None),
     ("...x,xy->...y", None), ("ab,cd->abcd", None)],
)  # fmt: skip
def test_a_matrix_leads_from_an_input_to_an_output(equation: str, found: Any) -> None:
    assert ends(equation) == found


def test_what_is_frozen_already_stays_so_and_frozen_says_otherwise() -> None:
    given = copy.deepcopy(NETWORK)
    given["config"]["layers"][1]["config"]["layers"][1]["config"]["trainable"] = False
    assert adapted(given, lora_rank=2) == ["body/wide_0"]
    assert adapted(NETWORK, lora_rank=2, frozen=2) == ["body/wide_0"]
    assert frozen_in(made(NETWORK, lora_rank=2, frozen=2)) == ["norm_0", "wide_0"]
    assert made(NETWORK, lora_rank=0) == made(NETWORK, frozen=-1)  # the head alone, to compare


def test_queries_and_values_of_attention_are_the_usual_layers() -> None:
    assert adapted(ATTENTION, lora_rank=4) == ["attention/query", "attention/value"]
    assert adapted(ATTENTION, lora_rank=4, adapter_layers="attention, wide") == [
        *(f"attention/{part}" for part in PARTS), "wide",
    ]  # fmt: skip
    assert adapted(ATTENTION, bottleneck=4) == ["attention"]
    assert adapted(ATTENTION, biases=True) == [*(f"attention/{part}" for part in PARTS), "wide"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [("wide_0", ["body/wide_0"]), ("body/wide_*", ["body/wide_0", "body/wide_1"]), ("*_1", ["body/wide_1",
     "body/narrow_1"]), ("narrow_0,wide_1", ["body/narrow_0", "body/wide_1"]), ("body", ["body/wide_0",
     "body/narrow_0", "body/wide_1", "body/narrow_1"])],
)  # fmt: skip
def test_layers_are_named_by_patterns(pattern: str, names: list[str]) -> None:
    assert adapted(NETWORK, lora_rank=1, adapter_layers=pattern) == names


def test_only_layers_with_biases_get_them() -> None:
    assert adapted(NETWORK, biases=True) == ["body/norm_0", "body/wide_0", "body/norm_1", "body/wide_1"]
    both = made(NETWORK, biases=True, bottleneck=2, adapter_layers="wide_0")[KEY]
    assert both == [{"layer": "body/wide_0", "bias": True}, {"layer": "body/wide_0", "bottleneck": 2}]


@pytest.mark.parametrize(
    ("values", "said"),
    [({"lora_rank": -1}, "lora_rank cannot be -1"), ({"lora_rank": 2.0}, "lora_rank cannot be 2.0"),
     ({"lora_rank": True}, "lora_rank cannot be True"), ({"bottleneck": "4"}, "bottleneck cannot be 4"),
     ({"biases": 1}, "biases cannot be 1"), ({"lora_rank": 2, "lora_alpha": 0}, "lora_alpha cannot be 0"),
     ({"lora_rank": 2, "lora_dropout": 1}, "lora_dropout cannot be 1"), ({"lora_alpha": 2}, "there are none"),
     ({"lora_rank": 2, "adapter_layers": " , "}, "adapter_layers cannot be"),
     ({"lora_rank": 2, "adapter_layers": "nothing"}, "no frozen layer whose name is like 'nothing'"),
     ({"lora_rank": 2, "adapter_layers": "norm_0"}, "no frozen layer whose name is like 'norm_0'"),
     ({"lora_rank": 2, "frozen": 0}, "no frozen layer can have such an adapter")],
)  # fmt: skip
def test_what_cannot_be_is_refused(values: Json, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as refused:
        made(NETWORK, **values)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("adapters", "said"),
    [([], "must be a list"), ("x", "must be a list"), ([{"layer": "out"}], "with one of lora"),
     ([{"layer": "out", "lora": 2, "bias": True}], "with one of lora"), ([{"layer": "no", "lora": 2}], "no layer no"),
     ([{"layer": "body/norm_0", "lora": 2}], "no layer body/norm_0"), ([{"layer": "out", "lora": 0}], "lora cannot"),
     ([{"layer": "out", "lora": 2}] * 2, "already"), ([{"layer": "out", "lora": 2, "call": "x"}], "no key call"),
     ([{"layer": "out", "lora": 10**9}], "lora_rank cannot"), ([{"layer": "body/narrow_0", "bias": True}], "no layer")],
)  # fmt: skip
def test_a_list_of_adapters_is_checked_as_the_rest_of_a_document(adapters: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        keras_json.architecture({**NETWORK, KEY: adapters})
    inner = copy.deepcopy(NETWORK)
    inner["config"]["layers"][1][KEY] = [{"layer": "wide_0", "lora": 2}]
    with pytest.raises(InvalidArgument, match="no such key"):
        keras_json.architecture(inner)


def test_adapters_are_not_added_twice_and_are_no_members() -> None:
    found = made(NETWORK, lora_rank=2)
    with pytest.raises(Unsupported, match="already"):
        made(found, lora_rank=2)
    with pytest.raises(Unsupported, match="adapters"):
        ensemble([made(ATTENTION, lora_rank=2), ATTENTION])


def test_a_kind_and_a_space_have_them_like_any_other_parameter() -> None:
    kind = Kind("mlp", {}, "here").fitted(layout([NUMBERS], KIND))
    found = made(kind, units=8, layers=2, lora_rank=2)  # type: ignore[arg-type]
    assert found[KEY] and {one["lora"] for one in found[KEY]} == {2}
    assert sources.parameters(kind) > flat.ADAPTERS and sources.template(NETWORK, ["lora_rank"]) == NETWORK
    given = {"lora_rank": {"choice": [0, 2, 8]}, "loss": "mse", "learning_rate": {"log_uniform": [0.001, 0.1]}}
    space = read_space.read(flat_space.parted(given, {"net": NETWORK}, "space"), {"net": NETWORK})
    drawn = [space.configuration(one).architecture for one in space.probes()]
    ranks = {len(json.loads(one or "{}").get(KEY, [])) for one in drawn}
    assert ranks == {0, 4}


def test_a_clone_keeps_its_adapters() -> None:
    compiled = {"optimizer": {"class_name": "Adam", "config": {}}, "loss": "mse"}
    for name in sorted(flat.ADAPTERS):
        with pytest.raises(Unsupported, match=f"changes cannot contain {name}"):
            changes.changed(compiled, {}, {name: 2})
        with pytest.raises(InvalidArgument, match=name):
            flat.require_parameters([name], "here")
