"""Freezing: which layers a number or a name means, what is refused, and where configurations and spaces have it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from test_building import KIND, NUMBERS, layout

from cerebro_db.core.architecture import keras_json, sources
from cerebro_db.core.architecture.freezing import with_frozen
from cerebro_db.core.architecture.sources import Kind
from cerebro_db.core.errors import CerebroError, InvalidArgument, UnsafeModel
from cerebro_db.core.parameters import changes, flat
from cerebro_db.core.search.spaces import flat_space, read_space

Json = dict[str, Any]


def layer(class_name: str, name: str, **config: Any) -> Json:
    return {"module": "keras.layers", "class_name": class_name, "config": {"name": name, **config}}


def sequential(name: str, *layers: Json, **config: Any) -> Json:
    return {"module": "keras", "class_name": "Sequential", "config": {"name": name, "layers": [*layers], **config}}


BODY = sequential(
    "body",
    layer("Conv2D", "conv_1", filters=4, kernel_size=3),
    layer("BatchNormalization", "norm_1"),
    layer("MaxPooling2D", "pool_1"),
    layer("Conv2D", "conv_2", filters=4, kernel_size=3),
    layer("Flatten", "flat"),
)
NETWORK = sequential(
    "network",
    layer("InputLayer", "rows", batch_shape=[None, 8, 8, 1]),
    BODY,
    layer("Dense", "wide", units=8),
    layer("Dropout", "drop", rate=0.2),
    layer("Dense", "out", units=3),
)
NAMES = ["conv_1", "norm_1", "conv_2", "wide", "out"]  # with weights


def leaves(model: Json) -> Iterator[Json]:
    for one in model["config"]["layers"]:
        if "layers" in one["config"]:
            yield from leaves(one)
        else:
            yield one["config"]


def frozen_in(model: Json) -> list[str]:
    return [config["name"] for config in leaves(model) if config.get("trainable") is False]


@pytest.mark.parametrize(
    ("frozen", "count"),
    [(0, 0), (1, 1), (2, 2), (4, 4), (-1, 4), (-4, 1), (-5, 0), ("body/conv_1", 1), ("conv_1", 1), ("norm_1", 2),
     ("body/pool_1", 2), ("flat", 3), ("body", 3), ("wide", 4), ("drop", 4)],
)  # fmt: skip
def test_a_number_counts_layers_with_weights_and_a_name_is_the_last_frozen_layer(frozen: Any, count: int) -> None:
    before = copy.deepcopy(NETWORK)
    made = with_frozen(NETWORK, frozen)
    assert before == NETWORK and frozen_in(made) == NAMES[:count]
    keras_json.architecture(made)
    assert (made == NETWORK) is (count == 0)  # what says nothing new is left out


def test_the_layers_behind_train_whatever_their_json_said() -> None:
    given = copy.deepcopy(NETWORK)
    for config in [*leaves(given), given["config"]["layers"][1]["config"]]:
        config["trainable"] = False
    for frozen in (0, 2):
        made = with_frozen(given, frozen)
        rest = {"pool_1", "flat", "drop", "rows"} & set(frozen_in(made))
        assert [name for name in frozen_in(made) if name not in rest] == NAMES[:frozen]
        assert made["config"]["layers"][1]["config"]["trainable"] is True


def test_the_layers_in_a_wrapper_are_frozen_with_it() -> None:
    lstm = layer("LSTM", "lstm", units=2)
    given = sequential(
        "series",
        layer("Bidirectional", "both", layer=lstm, backward_layer=copy.deepcopy(lstm)),
        layer("RNN", "cells", cell=layer("StackedRNNCells", "stack", cells=[layer("GRUCell", "cell", units=2)])),
        layer("TimeDistributed", "flat", layer=layer("Flatten", "inner")),
        layer("TimeDistributed", "each", layer=layer("Dense", "dense", units=2)),
        layer("Dense", "out", units=1),
    )
    assert json.dumps(with_frozen(given, 1)).count('"trainable": false') == 3
    assert json.dumps(with_frozen(given, 2)).count('"trainable": false') == 6
    assert json.dumps(with_frozen(given, "each")).count('"trainable": false') == 8
    assert json.dumps(with_frozen(with_frozen(given, -1), 0)).count("false") == 0


@pytest.mark.parametrize(
    ("frozen", "why", "hint"),
    [
        (5, "nothing would train. The architecture has 5 layers with weights", "0: all layers train"),
        ("out", "nothing would train", "all layers train"),
        (6, "cannot be 6: the architecture has 5 layers with weights", "the first five layers"),
        (-6, "cannot be -6: the architecture has 5 layers with weights", "the first five layers"),
        (2.0, "cannot be 2.0: it must be an integer or the name of a layer", "the first five layers"),
        (True, "it must be an integer or the name", "the first five layers"),
        ([1], "it must be an integer or the name", "the first five layers"),
        ("pool_2", "'pool_2': the architecture has no layer of this name",
         "Layers: body/conv_1, body/norm_1, body/pool_1, body/conv_2, body/flat, body, wide, drop, out."),
        ("", "has no layer of this name", "Layers: body/conv_1"),
        ("5", "has no layer of this name", "Layers: body/conv_1"),
    ],
)  # fmt: skip
def test_what_cannot_be_frozen_is_refused(frozen: Any, why: str, hint: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        with_frozen(NETWORK, frozen)
    assert why in error.value.message and hint in str(error.value.hint)


def test_a_name_that_several_layers_have() -> None:
    twice = sequential("twice", BODY, {**BODY, "config": {**BODY["config"], "name": "other"}}, layer("Dense", "out"))
    with pytest.raises(InvalidArgument, match="2 layers have this name") as error:
        with_frozen(twice, "flat")
    assert error.value.hint == "Layers: body/flat, other/flat."
    assert frozen_in(with_frozen(twice, "other/norm_1")) == [*NAMES[:3], *NAMES[:2]]


def test_an_architecture_of_any_source_has_it() -> None:
    columns = layout([NUMBERS], KIND)
    for source in (NETWORK, Kind("mlp", {}, "test", columns), Kind("resnet", {"units": "$n"}, "test", columns)):
        given = {name: 8 for name in sources.needed(source)}
        assert "frozen" in sources.parameters(source) and "frozen" not in sources.needed(source)
        assert frozen_in(sources.made(source, given)) == []
        assert len(frozen_in(sources.made(source, {**given, "frozen": 2}))) == 2
    with_parameter = copy.deepcopy(NETWORK)
    with_parameter["config"]["layers"][2]["config"]["units"] = "$wide"
    made = sources.made(with_parameter, {"wide": 7, "frozen": -1})
    assert made["config"]["layers"][2]["config"] == {"name": "wide", "units": 7, "trainable": False}
    with pytest.raises(UnsafeModel):  # the check comes first
        sources.made(sequential("bad", layer("Lambda", "run")), {"frozen": 1})


def test_numbers_of_a_group_are_not_counted_and_never_train() -> None:
    columns = layout([NUMBERS], KIND)
    for statistics in (0, 1):
        made = sources.made(Kind("mlp", {"group_statistics": statistics}, "test", columns), {"frozen": 0})
        assert frozen_in(made) == ["group_inputs_1"] * statistics
    one, other = (
        frozen_in(sources.made(Kind("mlp", {"group_statistics": statistics}, "test", columns), {"frozen": 2}))
        for statistics in (0, 1)
    )
    assert ["group_inputs_1", *one] == other


def test_no_other_parameter_of_an_architecture_has_its_name() -> None:
    with pytest.raises(InvalidArgument, match="'frozen' has the name of a parameter of training"):
        flat.require_parameters({"frozen"}, "test")
    # One that an earlier version has accepted goes on to mean what it meant.
    given = sequential("old", layer("Dense", "out", units="$frozen"))
    assert sources.made(given, {"frozen": 3})["config"]["layers"][0]["config"]["units"] == 3


def test_it_is_a_parameter_of_a_flat_configuration() -> None:
    found = flat.parts({"architecture": "net", "frozen": 2, "loss": "mse"}, sources.parameters(NETWORK), "test")
    assert found.arch_params == {"frozen": 2}
    compiled, fit = flat.parts({"optimizer": "SGD", "loss": "mse"}, (), "test").canonical()
    record = flat.flatten(found.arch_params, compiled, fit)
    assert record["frozen"] == 2 and flat.of_architecture(record) == {"frozen": 2}
    assert flat.recorded(record, "test") == (compiled, fit)
    with pytest.raises(InvalidArgument, match="no parameter 'frozn'") as error:
        flat.parts({"frozn": 2}, sources.parameters(NETWORK), "test")
    assert "frozen" in str(error.value.hint)
    with pytest.raises(CerebroError) as error:  # the state of a clone fits what its parent trains
        changes.changed(compiled, fit, {"frozen": 0})
    assert "frozen" in error.value.message and "warm_start" in str(error.value.hint)


def space(given: Any, **architectures: Any) -> read_space.Space:
    architectures = architectures or {"net": NETWORK}
    return read_space.read(
        flat_space.parted({"loss": "mse", "optimizer": "SGD", **given}, architectures, "space"), architectures
    )


def test_it_is_a_dimension_of_a_space() -> None:
    found = space({"frozen": {"choice": [0, "body", -1]}, "learning_rate": {"log_uniform": [0.001, 0.1]}})
    found.check()
    assert [one.name for one in found.dimensions] == ["frozen", "learning_rate"]
    drawn = [found.configuration({"frozen": frozen, "learning_rate": 0.01}) for frozen in (0, "body", -1)]
    assert [len(frozen_in(json.loads(one.architecture or ""))) for one in drawn] == [0, 3, 4]
    assert [one.arch_params for one in drawn] == [{"frozen": 0}, {"frozen": "body"}, {"frozen": -1}]
    whole = space({"frozen": {"integer": [0, 4]}})
    whole.check()
    assert whole.size() == 5 and whole.described()[0]["whole"]
    constant = space({"frozen": 2, "learning_rate": {"uniform": [0.1, 0.2]}})
    assert len(frozen_in(json.loads(constant.configuration({"learning_rate": 0.1}).architecture or ""))) == 2


def test_a_space_of_several_architectures() -> None:
    columns = layout([NUMBERS], KIND)
    both = {"net": NETWORK, "mlp": Kind("mlp", {}, "test", columns)}
    found = space({"frozen": {"choice": [0, 3], "when": {"architecture": "net"}}}, **both)
    found.check()
    assert {tuple(point.items()) for point in found.grid()} == {
        (("architecture", "net"), ("frozen", 0)), (("architecture", "net"), ("frozen", 3)), (("architecture", "mlp"),)
    }  # fmt: skip
    assert frozen_in(json.loads(found.configuration({"architecture": "mlp"}).architecture or "")) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"frozen": {"integer": [0, 5]}}, "search space, with frozen = 5: frozen cannot be 5: nothing would train"),
        ({"frozen": {"uniform": [0, 4]}}, "it must be an integer"),
        ({"frozen": {"choice": [0, "pool"]}}, "frozen cannot be 'pool': the architecture has no layer of this name"),
    ],
)
def test_a_space_is_checked_before_it_is_searched(given: Json, said: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        space(given).check()
    assert said in error.value.message
