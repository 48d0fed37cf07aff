"""Architectures that Keras 2 saved, rewritten as Keras 3 saves them.

Keras 2 wrote a Sequential as a list of layers (until 2.2.4) or as a dictionary (later).  It kept the input shape in the
first layer, called a functional model ``Model``, and described its graph with nested lists.  The translation keeps the
order and the meaning of the weights.  What has no equivalent in Keras 3 is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from ..errors import InvalidArgument, Unsupported
from .keras2_arguments import RENAMED, dropped
from .keras2_graph import Keras2Graph
from .messages import at, shown

Node = dict[str, Any]

_MODEL_MODULES = {"Sequential": "keras", "Functional": "keras.src.models.functional"}
# The last word of an argument's name -> the module of the object in it
_MODULES = {"initializer": "keras.initializers", "regularizer": "keras.regularizers", "constraint": "keras.constraints"}
_LAYER_ARGUMENTS = ("layer", "backward_layer", "cell", "cells")

_RENAMED_CLASSES = {"Model": "Functional", "BatchNormalizationV1": "BatchNormalization",
                    "BatchNormalizationV2": "BatchNormalization", "ThresholdedReLU": "ReLU"}  # fmt: skip


def to_keras3(architecture: Node) -> Node:
    """The architecture as Keras 3 saves it.  An architecture that Keras 3 saved is returned unchanged."""
    if not is_legacy(architecture):
        return architecture
    _refuse_layers_shared_across_models(architecture)
    return _layer(copy.deepcopy(architecture), "")


def is_legacy(architecture: Node) -> bool:
    """Whether Keras 2 wrote this.  Keras 3 gives every object a module, and has no argument batch_input_shape."""
    version = architecture.get("keras_version")
    if isinstance(version, str):
        return version.split(".")[0] in ("1", "2")
    return "module" not in architecture or any("batch_input_shape" in node for node in _dictionaries(architecture))


def warnings(architecture: Node) -> list[str]:
    """Warnings for the user about layers that compute something else in Keras 3 than in Keras 2."""
    if not is_legacy(architecture):
        return []
    found = []
    if any("hard_sigmoid" in node.values() for node in _dictionaries(architecture)):
        found.append(
            "the activation hard_sigmoid is x/6 + 1/2 in Keras 3, but was x/5 + 1/2 in Keras 2: "
            "weights that were trained with Keras 2 give slightly different outputs"
        )
    return found


# ---- layers ---------------------------------------------------------------------------------------


def _layer(node: Any, path: str) -> Node:
    if not isinstance(node, dict) or not isinstance(node.get("class_name"), str):
        raise InvalidArgument(f"{path or 'the architecture'} must be a layer or model, an object with a class_name")
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
    translated = {
        "module": _MODEL_MODULES.get(name, "keras.layers"),
        "class_name": name,
        "config": config,
        # The name of a class that is not from Keras is kept, so that the allow-list refuses it.
        "registered_name": None if registered in (name, old_name) else registered,
    }
    translated.update({key: node[key] for key in ("name", "inbound_nodes") if key in node})
    return translated


def _arguments(old_name: str, name: str, config: Node, path: str) -> Node:
    renamed = RENAMED.get(old_name, {})
    translated: Node = {}
    for key, value in config.items():
        may_be_dropped = dropped(name, key)
        if name == "InputLayer" and key == "batch_input_shape":
            translated["batch_shape"] = value
        elif name != "Embedding" and key == "input_dim":
            continue  # It is the size of a one-dimensional input_shape.
        elif may_be_dropped is not None:
            if not may_be_dropped(value):
                raise Unsupported(f"{at(path, key)}: {old_name} with {key}={value!r} has no equivalent in Keras 3")
        elif key == "dtype":
            policy = _dtype(value)
            if policy is not None:
                translated[key] = policy
        else:
            translated[renamed.get(key, key)] = _argument(key, value, at(path, key))
    if name == "BatchNormalization" and isinstance(translated.get("axis"), list):
        if len(translated["axis"]) != 1:
            raise Unsupported(f"{at(path, 'axis')}: BatchNormalization over several axes has no equivalent in Keras 3")
        translated["axis"] = translated["axis"][0]
    if name in ("GRU", "GRUCell"):
        translated.setdefault("reset_after", False)  # The only behaviour before Keras had this argument.
    return translated


def _argument(key: str, value: Any, path: str) -> Any:
    category = key.rpartition("_")[2]
    if isinstance(value, dict) and "class_name" in value:
        if category in _MODULES:
            return _object(category, value)
        if key in _LAYER_ARGUMENTS:
            return _layer(value, path)
    if key == "cells" and isinstance(value, list):
        return [_layer(cell, f"{path}[{index}]") for index, cell in enumerate(value)]
    return value


def _object(category: str, value: Node) -> Node:
    """An initializer, regularizer or constraint."""
    config = value.get("config")
    if isinstance(config, dict) and category == "initializer":
        config = {key: item for key, item in config.items() if key not in ("dtype", "verify_shape")}
        if config.get("distribution") == "normal":  # In Keras 2, this was the truncated normal distribution.
            config["distribution"] = "truncated_normal"
    registered = value.get("registered_name")
    return {
        "module": _MODULES[category],
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
    if isinstance(config, list):  # until Keras 2.2.4
        config = {"layers": config}
    if not isinstance(config, dict) or not isinstance(config.get("layers"), list):
        raise InvalidArgument(f"{at(path, 'config')} of a Sequential must contain a list of layers")
    layers = [_layer(layer, f"{at(path, 'config')}.layers[{index}]") for index, layer in enumerate(config["layers"])]
    if layers and layers[0]["class_name"] != "InputLayer":
        shape, dtype = _input_shape(config["layers"][0])
        shape = shape or config.get("build_input_shape")
        if shape:
            layers.insert(0, _input_layer(shape, dtype, layers[0]))
    translated = {"name": config.get("name", "sequential"), "trainable": config.get("trainable", True)}
    dtype = _dtype(config.get("dtype"))
    return {**translated, **({"dtype": dtype} if dtype else {}), "layers": layers}


def _input_shape(layer: Node) -> tuple[Any, Any]:
    """The input shape and its dtype, from the first layer.  If this is a Sequential, from the first layer in it."""
    config = layer.get("config")
    inner = config.get("layers") if isinstance(config, dict) else config
    if layer["class_name"] == "Sequential" and inner:
        return _input_shape(inner[0])
    if not isinstance(config, dict) or layer["class_name"] in ("Model", "Functional"):
        return None, None
    shape = config.get("batch_input_shape", config.get("batch_shape"))
    if shape is None and config.get("input_shape") is not None:
        given = config["input_shape"]
        shape = [None, *given] if isinstance(given, list) else given  # The allow-list refuses what is not a list.
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
        raise InvalidArgument(f"{at(path, 'config')} of a functional model must contain a list of layers")
    layers = [_layer(layer, f"{at(path, 'config')}.layers[{index}]") for index, layer in enumerate(config["layers"])]
    graph = Keras2Graph(layers, config, at(path, "config"))
    for layer in layers:
        nodes = layer.get("inbound_nodes") or []
        if not isinstance(nodes, list):
            raise InvalidArgument(f"{at(path, 'config')}: inbound_nodes must be a list")
        layer["inbound_nodes"] = [graph.call(layer["class_name"], node) for node in nodes]
    translated = {"name": config.get("name", "model"), "trainable": config.get("trainable", True)}
    ends = {key: graph.ends(config.get(key)) for key in ("input_layers", "output_layers")}
    return {**translated, "layers": layers, **ends}


# ---- the whole architecture -----------------------------------------------------------------------


def _dictionaries(value: Any) -> Iterator[Node]:
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            yield value
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)


def _refuse_layers_shared_across_models(architecture: Node) -> None:
    """A layer that two nested models share would become two layers.

    Keras 2 marks it with the same shared_object_id in both.  A layer that is shared within one model is in its graph.
    """
    seen: set[int] = set()
    for node in _dictionaries(architecture):
        number, config = node.get("shared_object_id"), node.get("config")
        settings = config if isinstance(config, dict) else {}
        if isinstance(number, int) and ("inbound_nodes" in node or "trainable" in settings):
            if number in seen:
                raise Unsupported(
                    f"layer {shown(settings.get('name'))!r} is shared by two nested models",
                    hint="Save the architecture with Keras 3, or build it as one model.",
                )
            seen.add(number)
