"""Architectures saved by Keras 2, rewritten as Keras 3 reads them.

Keras 2 wrote a Sequential as a bare list of layers (until 2.2.4) or as a dictionary (later), kept the
input shape inside the first layer, called a functional model ``Model`` and described its graph with
nested lists.  Weight order and meaning stay; whatever has no equivalent in Keras 3 is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Callable

from .errors import InvalidArgument, Unsupported

Node = dict[str, Any]

MODELS = {"Sequential": "keras", "Functional": "keras.src.models.functional"}

# Where a serialized object may stand in a layer's arguments, and the module Keras 3 wants on it.
_MODULES = {"initializer": "keras.initializers", "regularizer": "keras.regularizers", "constraint": "keras.constraints"}
_LAYER_ARGUMENTS = ("layer", "backward_layer", "cell", "cells")

_RENAMED_CLASSES = {"Model": "Functional", "BatchNormalizationV1": "BatchNormalization",
                    "BatchNormalizationV2": "BatchNormalization", "ThresholdedReLU": "ReLU"}  # fmt: skip
_RENAMED_ARGUMENTS = {"LeakyReLU": {"alpha": "negative_slope"}, "ThresholdedReLU": {"theta": "threshold"}}

# Arguments of Keras 2 that Keras 3 no longer takes: (class or *, name) -> does the value matter?
_ANY: Callable[[Any], bool] = lambda value: True  # noqa: E731
_OFF: Callable[[Any], bool] = lambda value: not value  # noqa: E731
_GONE: dict[tuple[str, str], Callable[[Any], bool]] = {
    ("*", "batch_input_shape"): _ANY,  # an InputLayer says it
    ("*", "input_shape"): _ANY,
    ("*", "implementation"): _ANY,  # how, not what
    ("*", "time_major"): _OFF,
    ("*", "dynamic"): _OFF,
    ("*", "experimental_autocast"): _ANY,
    ("*", "input_dtype"): _ANY,
    ("*", "num_constants"): _OFF,
    ("Embedding", "input_length"): _ANY,
    ("Embedding", "activity_regularizer"): _OFF,
    ("BatchNormalization", "virtual_batch_size"): _OFF,
    ("BatchNormalization", "fused"): _ANY,
    ("BatchNormalization", "adjustment"): _OFF,
    ("MultiHeadAttention", "softmax_robust_masking"): _OFF,
    ("ActivityRegularization", "activity_regularizer"): _ANY,  # repeats l1 and l2
}
# These inherit Conv's arguments in Keras 2 without ever using them.
for _class, _unused in {
    "SeparableConv1D": "kernel",
    "SeparableConv2D": "kernel",
    "DepthwiseConv1D": "kernel",
    "DepthwiseConv2D": "kernel",
}.items():
    for _name in ("initializer", "regularizer", "constraint"):
        _GONE[_class, f"{_unused}_{_name}"] = _ANY
    _GONE[_class, "groups"] = lambda value: value in (None, 1)
for _class in ("DepthwiseConv1D", "DepthwiseConv2D"):
    _GONE[_class, "filters"] = _ANY
for _class in ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"):
    _GONE[_class, "groups"] = lambda value: value in (None, 1)
for _class in ("SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"):
    _GONE[_class, "noise_shape"] = _OFF
    _GONE[_class, "trainable"] = _ANY
for _name in ("query_shape", "key_shape", "value_shape"):
    _GONE["MultiHeadAttention", _name] = _ANY
for _class in ("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"):
    _GONE[_class, "unroll"] = _OFF

_RECURRENT = {"RNN", "SimpleRNN", "LSTM", "GRU", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D", "Bidirectional"}


def to_keras3(architecture: Node) -> Node:
    """The architecture as Keras 3 would have saved it; one that Keras 3 did save comes back as it is."""
    if not is_legacy(architecture):
        return architecture
    _refuse_layers_shared_across_models(architecture)
    return _layer(copy.deepcopy(architecture), "")


def is_legacy(architecture: Node) -> bool:
    """Was this written by Keras 2?  Keras 3 puts a module on everything and knows no batch_input_shape."""
    version = architecture.get("keras_version")
    if isinstance(version, str):
        return version.split(".")[0] in ("1", "2")
    return "module" not in architecture or any("batch_input_shape" in node for node in _dictionaries(architecture))


def warnings(architecture: Node) -> list[str]:
    """What will not behave exactly as it did under Keras 2, for the user to read."""
    if not is_legacy(architecture):
        return []
    found = []
    if any("hard_sigmoid" in node.values() for node in _dictionaries(architecture)):
        found.append(
            "the activation hard_sigmoid is x/6 + 1/2 in Keras 3 but was x/5 + 1/2 in Keras 2: "
            "weights trained under Keras 2 give slightly other outputs"
        )
    return found


# ---- layers ---------------------------------------------------------------------------------------


def _layer(node: Any, path: str) -> Node:
    if not isinstance(node, dict) or not isinstance(node.get("class_name"), str):
        raise InvalidArgument(f"{path or 'the architecture'} must be a layer or model: an object with a class_name")
    old_name: str = node["class_name"]
    name = _RENAMED_CLASSES.get(old_name, old_name)
    config = node.get("config")
    if name == "Sequential":
        config = _sequential(config, path)
    elif name == "Functional":
        config = _functional(config, path)
    elif isinstance(config, dict):
        config = _arguments(old_name, name, config, path)
    registered = node.get("registered_name")
    made = {
        "module": MODELS.get(name, "keras.layers"),
        "class_name": name,
        "config": config,
        # kept where it says "not one of Keras' own", so that the allow-list sees it
        "registered_name": None if registered in (name, old_name) else registered,
    }
    made.update({key: node[key] for key in ("name", "inbound_nodes") if key in node})
    return made


def _arguments(old_name: str, name: str, config: Node, path: str) -> Node:
    renamed = _RENAMED_ARGUMENTS.get(old_name, {})
    made: Node = {}
    for key, value in config.items():
        neutral = _GONE.get((name, key), _GONE.get(("*", key)))
        if name == "InputLayer" and key == "batch_input_shape":
            made["batch_shape"] = value
        elif name != "Embedding" and key == "input_dim":
            continue  # like input_shape
        elif neutral is not None:
            if not neutral(value):
                raise Unsupported(f"{_at(path, key)}: {old_name} with {key}={value!r} has no equivalent in Keras 3")
        elif key == "dtype":
            policy = _dtype(value)
            if policy is not None:
                made[key] = policy
        else:
            made[renamed.get(key, key)] = _argument(key, value, _at(path, key))
    if name == "BatchNormalization" and isinstance(made.get("axis"), list):
        if len(made["axis"]) != 1:
            raise Unsupported(f"{_at(path, 'axis')}: BatchNormalization over several axes is not in Keras 3")
        made["axis"] = made["axis"][0]
    if name in ("GRU", "GRUCell"):
        made.setdefault("reset_after", False)  # as it was before there was a choice
    return made


def _argument(key: str, value: Any, path: str) -> Any:
    kind = key.rpartition("_")[2]
    if isinstance(value, dict) and "class_name" in value:
        if kind in _MODULES:
            return _small_object(kind, value)
        if key in _LAYER_ARGUMENTS:
            return _layer(value, path)
    if key == "cells" and isinstance(value, list):
        return [_layer(cell, f"{path}[{index}]") for index, cell in enumerate(value)]
    return value


def _small_object(kind: str, value: Node) -> Node:
    """An initializer, regularizer or constraint."""
    config = value.get("config")
    if isinstance(config, dict) and kind == "initializer":
        config = {key: item for key, item in config.items() if key not in ("dtype", "verify_shape")}
        if config.get("distribution") == "normal":  # truncated, under its old name
            config["distribution"] = "truncated_normal"
    registered = value.get("registered_name")
    return {
        "module": _MODULES[kind],
        "class_name": value["class_name"],
        "config": {} if config is None else config,
        "registered_name": None if registered == value["class_name"] else registered,
    }


def _dtype(value: Any) -> Any:
    if isinstance(value, dict) and value.get("class_name") in ("Policy", "PolicyV1"):
        config = value.get("config")
        value = config.get("name") if isinstance(config, dict) else None
    return None if value in (None, "infer", "_infer") else value


# ---- models ---------------------------------------------------------------------------------------


def _sequential(config: Any, path: str) -> Node:
    if isinstance(config, list):  # Keras 2.2.4 and before
        config = {"layers": config}
    if not isinstance(config, dict) or not isinstance(config.get("layers"), list):
        raise InvalidArgument(f"{_at(path, 'config')} of a Sequential must hold a list of layers")
    layers = [_layer(layer, f"{_at(path, 'config')}.layers[{index}]") for index, layer in enumerate(config["layers"])]
    if layers and layers[0]["class_name"] != "InputLayer":
        shape, dtype = _input_of(config["layers"][0])
        shape = shape or config.get("build_input_shape")
        if shape:
            layers.insert(0, _input_layer(shape, dtype, layers[0]))
    made = {"name": config.get("name", "sequential"), "trainable": config.get("trainable", True)}
    dtype = _dtype(config.get("dtype"))
    return {**made, **({"dtype": dtype} if dtype else {}), "layers": layers}


def _input_of(layer: Node) -> tuple[Any, Any]:
    """The shape that Keras 2 kept in the first layer, or in the first layer of a model that comes first."""
    config = layer.get("config")
    inner = config.get("layers") if isinstance(config, dict) else config
    if layer["class_name"] == "Sequential" and inner:
        return _input_of(inner[0])
    if not isinstance(config, dict) or layer["class_name"] in ("Model", "Functional"):
        return None, None
    shape = config.get("batch_input_shape", config.get("batch_shape"))
    if shape is None and config.get("input_shape") is not None:
        shape = [None, *config["input_shape"]]
    if shape is None and layer["class_name"] != "Embedding" and config.get("input_dim") is not None:
        shape = [None, config["input_dim"]]
    dtype = _dtype(config.get("dtype"))
    return shape, dtype if isinstance(dtype, str) and not dtype.startswith("mixed_") else None


def _input_layer(shape: Any, dtype: Any, first: Node) -> Node:
    config = first["config"] if isinstance(first["config"], dict) else {}
    return {
        "module": "keras.layers",
        "class_name": "InputLayer",
        "config": {
            "batch_shape": shape,
            "dtype": dtype or "float32",
            "sparse": False,
            "ragged": False,
            "name": f"{config.get('name', 'layer')}_input",
        },
        "registered_name": None,
    }


def _functional(config: Any, path: str) -> Node:
    if not isinstance(config, dict) or not isinstance(config.get("layers"), list):
        raise InvalidArgument(f"{_at(path, 'config')} of a functional model must hold a list of layers")
    layers = [_layer(layer, f"{_at(path, 'config')}.layers[{index}]") for index, layer in enumerate(config["layers"])]
    graph = _Graph(layers, config, _at(path, "config"))
    for layer in layers:
        nodes = layer.get("inbound_nodes") or []
        if not isinstance(nodes, list):
            raise InvalidArgument(f"{_at(path, 'config')}: inbound_nodes must be a list")
        layer["inbound_nodes"] = [graph.call(layer["class_name"], node) for node in nodes]
    made = {"name": config.get("name", "model"), "trainable": config.get("trainable", True)}
    ends = {key: graph.ends(config.get(key)) for key in ("input_layers", "output_layers")}
    return {**made, "layers": layers, **ends}


class _Graph:
    """Rewrites the references ``[layer, call, output]`` between the layers of one functional model."""

    def __init__(self, layers: list[Node], config: Node, path: str) -> None:
        self.classes = {str(layer.get("name")): layer["class_name"] for layer in layers}
        self.path = path
        nodes = [layer.get("inbound_nodes") for layer in layers]
        calls = list(self.references([nodes, config.get("output_layers")]))
        # Keras 2 counts the calls of a nested model from 1 when its inputs are known, else from 0.
        self.from_one = {name for name, kind in self.classes.items() if kind in MODELS}
        self.from_one -= {name for name, call in calls if call == 0}

    def is_reference(self, value: Any) -> bool:
        return (
            isinstance(value, list)
            and len(value) in (3, 4)
            and isinstance(value[0], str)
            and value[0] in self.classes
            and all(isinstance(number, int) and not isinstance(number, bool) for number in value[1:3])
        )

    def references(self, value: Any) -> Iterator[tuple[str, int]]:
        if self.is_reference(value):
            yield value[0], value[1]
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from self.references(inner)

    def call(self, class_name: str, node: Any) -> Node:
        """One call of a layer: nested lists become the arguments of a Python call."""
        if isinstance(node, dict):
            return node
        inputs, options = self.inputs(node)
        if class_name in _RECURRENT and isinstance(inputs, list) and len(inputs) > 1:
            inputs, options["initial_state"] = inputs[0], inputs[1:]  # one call with [x, state…] in Keras 2
        return {"args": [inputs], "kwargs": options}

    def inputs(self, node: Any) -> tuple[Any, Node]:
        if self.is_reference(node):
            options = node[3] if len(node) == 4 and isinstance(node[3], dict) else {}
            kept = {key: self.tensors(value) for key, value in options.items() if value is not None}
            return self.tensors(node), kept
        if isinstance(node, list) and node and all(self.is_reference(item) for item in node):
            read = [self.inputs(item) for item in node]
            tensors = [tensor for tensor, _ in read]
            return tensors[0] if len(tensors) == 1 else tensors, read[0][1]
        raise InvalidArgument(f"{self.path}: {str(node)[:80]} in inbound_nodes cannot be read")

    def tensors(self, value: Any) -> Any:
        """References inside a value, as the tensors that Keras 3 expects."""
        if self.is_reference(value):
            call = value[1] - (value[0] in self.from_one)
            # shape and type are placeholders: Keras takes the tensor that the history names
            config = {"shape": [None], "dtype": "float32", "keras_history": [value[0], call, value[2]]}
            return {"class_name": "__keras_tensor__", "config": config}
        if isinstance(value, list):
            return [self.tensors(item) for item in value]
        if isinstance(value, dict):
            return {key: self.tensors(item) for key, item in value.items()}
        return value

    def ends(self, value: Any) -> Any:
        """Inputs or outputs; here Keras 3 counts the calls of a nested functional model from 1."""
        if self.is_reference(value):
            name, call, output = value[:3]
            from_zero = call - (name in self.from_one)
            return [name, from_zero + (self.classes[name] == "Functional"), output]
        if isinstance(value, list) and value:
            return self.ends(value[0]) if len(value) == 1 else [self.ends(item) for item in value]
        if isinstance(value, dict):
            return {key: self.ends(item) for key, item in value.items()}
        raise InvalidArgument(f"{self.path}: {str(value)[:80]} in input_layers or output_layers cannot be read")


# ---- walking --------------------------------------------------------------------------------------


def _dictionaries(value: Any) -> Iterator[Node]:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _refuse_layers_shared_across_models(architecture: Node) -> None:
    """Within one model sharing shows in the graph; across nested models only by this number."""
    seen: set[int] = set()
    for node in _dictionaries(architecture):
        number = node.get("shared_object_id")
        is_layer = "inbound_nodes" in node or isinstance(node.get("config"), dict) and "trainable" in node["config"]
        if isinstance(number, int) and is_layer:
            if number in seen:
                raise Unsupported(
                    f"layer {str(node['config'].get('name'))!r} is shared by two nested models",
                    hint="Save the architecture with Keras 3, or build it as one model.",
                )
            seen.add(number)


def _at(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
