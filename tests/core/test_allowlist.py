"""The allow-list: what is refused, and that the error names the place."""

from __future__ import annotations

import copy
import json
import pathlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_db.core.architecture import allowlist, keras_json, tables, values
from cerebro_db.core.errors import CerebroError, InvalidArgument, UnsafeModel
from cerebro_db.core.parameters.params import check_compile, compile_params

FIXTURES = sorted((pathlib.Path(__file__).parent.parent / "fixtures" / "keras2").glob("*.json"))


def layer(name: str, /, module: str = "keras.layers", **config) -> dict:
    return {"module": module, "class_name": name, "config": config, "registered_name": None}


def sequential(*layers: dict) -> dict:
    config = {"name": "s", "trainable": True, "layers": [layer("InputLayer", batch_shape=[None, 4]), *layers]}
    return {"module": "keras", "class_name": "Sequential", "config": config, "registered_name": None}


def functional(*layers: dict, **config) -> dict:
    inputs = {**layer("InputLayer", batch_shape=[None, 4], name="x"), "name": "x", "inbound_nodes": []}
    config = {"name": "f", "layers": [inputs, *layers], "input_layers": ["x", 0, 0], **config}
    return {
        "module": "keras.src.models.functional",
        "class_name": "Functional",
        "config": config,
        "registered_name": None,
    }


FUNCTION = {"module": "builtins", "class_name": "function", "config": "system", "registered_name": "function"}
LAMBDA = {"class_name": "__lambda__", "config": {"value": "4wEAAAA="}}


def test_allowed_parts_pass():
    allowlist.check(
        sequential(
            layer("Dense", units=4, activation="relu", kernel_initializer="he_normal", kernel_regularizer="l2"),
            layer("Bidirectional", layer=layer("LSTM", units=3, kernel_regularizer=None), merge_mode="concat"),
            layer("RNN", cell=layer("StackedRNNCells", cells=[layer("LSTMCell", units=2), layer("GRUCell", units=2)])),
            layer("Dropout", rate=0.5, seed=layer("SeedGenerator", "keras.random", name="g", seed=3)),
            sequential(layer("Dense", units=2, dtype="mixed_float16")),
            layer(
                "Dense",
                units=2,
                dtype=layer("DTypePolicy", "keras", name="float32"),
                kernel_initializer=layer("Orthogonal", "keras.initializers", gain=1.0, seed=1),
            ),
        )
    )


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        (layer("Lambda", function=LAMBDA), "config.layers[1]: the layer Lambda"),
        (layer("TFSMLayer", filepath="/tmp/x"), "config.layers[1]: the layer TFSMLayer"),
        (layer("StringLookup", vocabulary="/etc/passwd"), "config.layers[1]: the layer StringLookup"),
        (layer("TextVectorization"), "config.layers[1]: the layer TextVectorization"),
        (layer("TorchModuleWrapper"), "config.layers[1]: the layer TorchModuleWrapper"),
        (layer("JaxLayer"), "config.layers[1]: the layer JaxLayer"),
        (layer("Layer"), "config.layers[1]: the layer Layer"),
        (layer("Dense", "os", units=1), "config.layers[1]: Dense has the module os; it must be keras.layers"),
        (layer("Dense", "keras.src.layers.core.dense", units=1), "config.layers[1]: Dense has the module"),
        (layer("Multiply", "keras.src.ops.numpy"), "config.layers[1]: Multiply has the module keras.src.ops.numpy;"),
        (layer("get_file", "keras.utils", origin="http://x"), "config.layers[1]: the layer get_file"),
        ({"class_name": "Dense", "config": {"units": 1}}, "config.layers[1]: Dense has the module None;"),
        (
            {**layer("Dense", units=1), "registered_name": "evil>Dense"},
            "config.layers[1].registered_name: evil>Dense is not a class of Keras",
        ),
        (layer("Dense", units=1, activation=FUNCTION), "config.layers[1].config.activation: the activation system"),
        (layer("Dense", units=1, activation="evil>f"), "config.layers[1].config.activation: the activation evil>f"),
        (layer("Dense", units=1, activation=layer("Lambda")), "config.layers[1].config.activation"),
        (layer("LSTM", units=1, recurrent_activation=LAMBDA), "config.layers[1].config.recurrent_activation"),
        (layer("Dense", units=1, kernel_initializer=LAMBDA), "config.layers[1].config.kernel_initializer"),
        (layer("Dense", units=1, kernel_initializer="evil"), "the initializer evil is not on the list"),
        (
            layer("Dense", units=1, kernel_initializer=layer("Zeros", "os")),
            "config.layers[1].config.kernel_initializer: Zeros has the module os; it must be keras.initializers",
        ),
        (
            layer("Dense", units=1, kernel_initializer=layer("Constant", "keras.initializers", value=LAMBDA)),
            "config.layers[1].config.kernel_initializer.config.value: __lambda__ is not allowed here",
        ),
        (layer("Dense", units=1, bias_regularizer=FUNCTION), "config.layers[1].config.bias_regularizer"),
        (layer("Dense", units=1, activity_regularizer=FUNCTION), "config.layers[1].config.activity_regularizer"),
        (layer("Dense", units=1, bias_constraint=FUNCTION), "config.layers[1].config.bias_constraint"),
        (layer("Dense", units=1, dtype=FUNCTION), "config.layers[1].config.dtype"),
        (layer("Dense", units=1, dtype="string"), "the dtype string is not on the list"),
        (layer("Dense", units=FUNCTION), "config.layers[1].config.units: function is not allowed here"),
        (layer("Dense", units=[[{"class_name": "__typevar__"}]]), "config.layers[1].config.units[0][0]: __typevar__"),
        (layer("Dense", units=1, quantization_config=FUNCTION), "config.layers[1].config.quantization_config"),
        (layer("Dropout", rate=0.1, seed=FUNCTION), "config.layers[1].config.seed: the seed generator function"),
        (layer("TimeDistributed", layer=layer("Lambda")), "config.layers[1].config.layer: the layer Lambda"),
        (
            layer("Bidirectional", layer=layer("LSTM", units=1), backward_layer=layer("Lambda")),
            "config.layers[1].config.backward_layer: the layer Lambda",
        ),
        (
            layer("RNN", cell=layer("StackedRNNCells", cells=[layer("LSTMCell", units=1), layer("Lambda")])),
            "config.layers[1].config.cell.config.cells[1]: the layer Lambda",
        ),
        (sequential(layer("Lambda")), "config.layers[1].config.layers[1]: the layer Lambda"),
        (
            {**layer("Dense", units=1), "build_config": {"input_shape": LAMBDA}},
            "config.layers[1].build_config.input_shape: __lambda__",
        ),
    ],
)
def test_code_is_refused_in_a_layer(bad, place):
    with pytest.raises(UnsafeModel) as caught:
        allowlist.check(sequential(bad))
    assert caught.value.message.startswith(place) or place in caught.value.message
    json.dumps(caught.value.message)


@pytest.mark.parametrize("bad", [LAMBDA, FUNCTION, layer("Dense", units=1), {"a": [{"b": LAMBDA}]}])
def test_code_is_refused_in_the_graph(bad):
    for node in (
        {"args": [bad], "kwargs": {}},
        {"args": [], "kwargs": {"mask": bad}},
        {"args": [{"class_name": "__keras_tensor__", "config": {"shape": bad}}], "kwargs": {}},
        [["x", 0, 0, {"mask": bad}]],
    ):
        dense = {**layer("Dense", units=1, name="d"), "name": "d", "inbound_nodes": [node]}
        with pytest.raises(UnsafeModel, match=r"config\.layers\[1\]\.inbound_nodes\[0\]"):
            allowlist.check(functional(dense, output_layers=["d", 0, 0]))
    with pytest.raises(UnsafeModel, match="config.output_layers"):
        allowlist.check(functional(output_layers=bad))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (layer("Dense", units=1, foo=1), "config.layers[1].config.foo: Dense takes no such argument"),
        (layer("Dense", units=1, weights=[[1.0]]), "config.weights: Dense takes no such argument"),
        (layer("Dense", units=2**41), "config.layers[1].config.units: 2199023255552 is too large"),
        (layer("Embedding", input_dim=2**21, output_dim=2**20), "this layer is too large"),
        (layer("Conv2D", filters=2**20, kernel_size=[2**11, 2**11]), "this layer is too large"),
        (layer("Reshape", target_shape=[2**14] * 3), "this layer is too large"),
        (layer("Dense", units=1, name="x" * 300), "cannot be a name"),
        (layer("Dense", units=1, name=3), "cannot be a name"),
        (layer("Dense", units=1, trainable="no"), "trainable must be true or false"),
        (layer("Dropout", rate=0.1, seed="x"), "seed must be a whole number"),
        (layer("EinsumDense", equation="a" * 2000), "contains a text of 2000 characters"),
        (layer("Dense", units=float("inf")), "not a finite number"),
        (layer("Dense", units={1, 2}), "contains a set, which is not a JSON value"),
        (layer("Dense", units=2**70), "more than 64 bits"),
        ({**layer("Dense", units=1), "compile_config": {"a": 1}}, "cannot contain compile parameters"),
        ({**layer("Dense", units=1), "spell": 1}, "config.layers[1].spell: a serialized layer has no such key"),
        ({**layer("Dense"), "config": [1]}, "config must be an object"),
        ("Dense", "must be an object with a class_name"),
        (layer("StackedRNNCells", cells=3), "must be a list of layers"),
        (layer("Dense", units="64"), "config.units must be a whole number of at least 1, not 64"),
        (layer("Dense", units=0), "config.units must be a whole number of at least 1, not 0"),
        (layer("Dense", units=True), "config.units must be a whole number of at least 1, not True"),
        (layer("Dense", units=[4]), "config.units must be a whole number of at least 1, not [4]"),
        (layer("Dense", units=4, use_bias="yes"), "config.use_bias must be true or false, not yes"),
        (
            layer("Conv2D", filters=2, kernel_size=[3, -3]),
            "kernel_size[1] must be a whole number of at least 1, or a list",
        ),
        (layer("Dropout", rate=7), "config.rate must be a number between 0 and 1, not 7"),
        (layer("Flatten", data_format=1), "config.data_format must be a text, not 1"),
        (layer("Reshape", target_shape=[2, "2"]), "target_shape[1] must be a whole number"),
        (layer("LeakyReLU", negative_slope="steep"), "negative_slope must be a number, not steep"),
        (layer("RandomZoom", height_factor=[0.1, "x"]), "height_factor[1] must be a number"),
        (layer("Dense", units=1, kernel_regularizer=layer("L2", "keras.regularizers", l2="x")), "l2 must be a number"),
    ],
)
def test_wrong_values_are_refused(bad, message):
    with pytest.raises(InvalidArgument) as caught:
        allowlist.check(sequential(bad))
    assert message in caught.value.message


def test_every_argument_of_the_tables_has_a_check():
    classes = (
        tables.LAYERS, tables.INITIALIZERS, tables.REGULARIZERS, tables.CONSTRAINTS, *tables.OPERATIONS.values()
    )  # fmt: skip
    named = {name for table in classes for arguments in table.values() for name in arguments}
    checked = {*values.VALUE_CHECKS, *allowlist.OBJECT_CHECKS}
    assert all(name in checked or name.rpartition("_")[2] in allowlist.OBJECT_CHECKS_BY_ENDING for name in named)
    assert not set(values.VALUE_CHECKS) & set(allowlist.OBJECT_CHECKS)
    typed = [name for names in tables.rows(tables.ARGUMENTS_ROWS).values() for name in names]
    assert len(typed) == len(set(typed)), "an argument has two value types"
    assert set(typed) <= named, "no class takes this argument"


def test_only_models_at_the_top():
    for top in (layer("Dense", units=1), {"class_name": "Model"}, None, [], "Sequential"):
        with pytest.raises(UnsafeModel, match="a model must be Sequential or Functional"):
            allowlist.check(top)
    for empty in ({}, {"layers": []}, {"layers": 3}):
        with pytest.raises(InvalidArgument, match="at least one layer"):
            allowlist.check({"module": "keras", "class_name": "Sequential", "config": empty})
    with pytest.raises(InvalidArgument, match=r"config\.layers\[1\] has no name"):
        allowlist.check(functional(layer("Dense", units=1), output_layers=["x", 0, 0]))


def test_very_many_layers_and_very_deep_layers_are_refused():
    with pytest.raises(InvalidArgument, match="more than 10000 layers"):
        allowlist.check(sequential(*[layer("Flatten")] * 10_000))
    deep = layer("Dense", units=1)
    for _ in range(5000):
        deep = layer("TimeDistributed", layer=deep)
    with pytest.raises(InvalidArgument, match="nested more than 64 levels deep"):
        allowlist.check(sequential(deep))


def test_hints_say_what_to_do_instead():
    with pytest.raises(UnsafeModel) as caught:
        allowlist.check(sequential(layer("Lambda")))
    assert "Rescaling" in caught.value.hint


def test_compile_parameters_must_be_canonical():
    made = compile_params("optimizer='SGD(lr=0.1, decay=0.1)', loss='Huber(delta=2)', metrics=['AUC(curve=PR)', 'acc']")
    check_compile(made)
    for change in (
        {"loss": "kullback_leibler_divergence"},
        {"optimizer": {"class_name": "Adam", "config": {"lr": 1}}},
        {"optimizer": {"class_name": "Adam", "config": {}, "module": "keras.optimizers"}},
    ):
        with pytest.raises(UnsafeModel):
            check_compile({**made, **change})
    for change in ({"loss": FUNCTION}, {"metrics": [LAMBDA]}, {"loss": "evil>loss"}, {"jit_compile": True}):
        with pytest.raises(CerebroError):
            check_compile({**made, **change})


def paths(value, path=()):
    """The path of every part of a JSON value."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths(inner, (*path, key))


EVIL = [LAMBDA, FUNCTION, layer("Lambda", function=LAMBDA), layer("TFSMLayer", filepath="/x"), {"class_name": "f>g"}]


@settings(deadline=None)
@given(st.sampled_from(FIXTURES), st.integers(0, 2**32), st.sampled_from(EVIL))
def test_no_part_of_a_real_model_can_be_replaced_by_code(path, seed, evil):
    """Code at a random path of a valid architecture, as a value or under a new key, never passes."""
    model = keras_json.architecture(json.loads(path.read_text())["keras2"])
    chosen = random.Random(seed).choice([part for part in paths(model) if part])
    changed = copy.deepcopy(model)
    inside = changed
    for key in chosen[:-1]:
        inside = inside[key]
    inside[chosen[-1]] = copy.deepcopy(evil)
    with pytest.raises(CerebroError):
        allowlist.check(changed)
    inside[chosen[-1]] = {"new": evil}
    with pytest.raises(CerebroError):
        allowlist.check(changed)


# -- operations on tensors -------------------------------------------------------------------------------


def tensor(name: str = "x") -> dict:
    return {
        "class_name": "__keras_tensor__",
        "config": {"shape": [None, 4], "dtype": "float32", "keras_history": [name, 0, 0]},
    }


def index(start=None, stop=None, step=None, **more) -> dict:
    return {"class_name": "__slice__", "config": {"start": start, "stop": stop, "step": step, **more}}


def operation(name: str, /, *args, module: str = "numpy", **config) -> dict:
    node = layer(name, f"keras.src.ops.{module}", name="y", **config)
    return {**node, "name": "y", "inbound_nodes": [{"args": list(args), "kwargs": {}}]}


ELLIPSIS = {"class_name": "__ellipsis__", "config": {}}


@pytest.mark.parametrize(
    "node",
    [
        operation("Add", tensor(), tensor()),
        operation("Subtract", 1.0, tensor()),
        operation("GetItem", tensor(), [index(), 0]),
        operation("GetItem", tensor(), [ELLIPSIS, index(1, -1, 2), None]),
        operation("Concatenate", [tensor(), tensor()], axis=-1),
        operation("Mean", tensor(), axis=[1], keepdims=True),
        operation("Clip", tensor(), x_min=0, x_max=1.5),
        operation("Reshape", tensor(), newshape=[-1, 2, 2]),
        operation("Softmax", tensor(), axis=-1, module="nn"),
        operation("Cast", tensor(), dtype="float16", module="core"),
        operation("Rsqrt", tensor(), module="math"),
    ],
)
def test_operations_on_tensors_are_nodes_of_a_graph(node):
    allowlist.check(functional(node, output_layers=["y", 0, 0]))
    with pytest.raises(UnsafeModel, match="has the module|is not on the list"):
        allowlist.check(sequential(node))
    with pytest.raises(UnsafeModel, match="has the module|is not on the list"):
        allowlist.check(sequential(layer("TimeDistributed", layer=node)))


@pytest.mark.parametrize(
    ("node", "place"),
    [
        (operation("Map", tensor(), module="core"), "the operation Map is not on the list"),
        (operation("Softmax", tensor()), "the operation Softmax is not on the list"),  # of another module
        (operation("Add", tensor(), module="numpy.os"), "the module keras.src.ops.numpy.os"),
        (operation("Mean", tensor(), axis=FUNCTION), "config.layers[1].config.axis"),
        (operation("Mean", tensor(), fn="x"), "Mean takes no such argument"),
        (operation("Cast", tensor(), dtype="object", module="core"), "the dtype object"),
        (operation("Add", tensor(), FUNCTION), "inbound_nodes[0].args[1]"),
        (
            operation("Add", tensor(), {"class_name": "__numpy__", "config": {"value": [1], "dtype": "int8"}}),
            "__numpy__",
        ),
        (operation("GetItem", tensor(), [index(start=FUNCTION)]), "an index has whole numbers only"),
        (operation("GetItem", tensor(), [index(start=2**50)]), "too large"),
        (operation("GetItem", tensor(), [index(more=1)]), "an index has whole numbers only"),
        (operation("GetItem", tensor(), [{"class_name": "__slice__", "config": []}]), "not an index"),
        (operation("GetItem", tensor(), [{**index(), "module": "os"}]), "not an index"),
        (operation("GetItem", tensor(), [{**ELLIPSIS, "config": {"x": 1}}]), "an index has whole numbers only"),
    ],
)
def test_what_is_no_operation_on_tensors_is_refused(node, place):
    with pytest.raises((UnsafeModel, InvalidArgument)) as caught:
        allowlist.check(functional(node, output_layers=["y", 0, 0]))
    assert place in str(caught.value)


def test_a_vocabulary_is_a_list_of_numbers():
    allowlist.check(sequential(layer("IntegerLookup", vocabulary=[3, 5], vocabulary_dtype="int64")))
    allowlist.check(sequential(layer("Hashing", num_bins=7, salt=[1, 2])))
    for bad in ("/etc/passwd", ["/etc/passwd"], FUNCTION, [FUNCTION]):
        with pytest.raises((UnsafeModel, InvalidArgument), match="vocabulary"):
            allowlist.check(sequential(layer("IntegerLookup", vocabulary=bad)))
