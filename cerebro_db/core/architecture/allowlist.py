"""The gate between a user's JSON and Keras: an architecture may contain only what is on the allow-list.

Keras builds any class that a JSON names.  Therefore ``check`` walks through a Keras 3 architecture and compares every
class, module, argument and value with the tables of tables.py.  The error names the path of the first part that is not
in the tables.
"""

from __future__ import annotations

from typing import Any, Callable

from ..errors import InvalidArgument, UnsafeModel
from .adapters import document
from .limits import MOST_LAYERS, check_limits, too_many_layers
from .messages import at, shown, unsafe
from .tables import (
    ACTIVATIONS,
    CONSTRAINT_NAMES,
    CONSTRAINTS,
    INITIALIZER_NAMES,
    INITIALIZERS,
    LAYERS,
    MODELS,
    MODULES,
    OPERATIONS,
    POLICIES,
    REGULARIZER_NAMES,
    REGULARIZERS,
    Table,
    words,
)
from .values import VALUE_CHECKS, check_call, check_layer_size, check_plain, is_name, is_whole

# The keys beside the arguments: of every serialized object, and those that a layer may have in addition.
_OBJECT_KEYS = words("class_name module registered_name config compile_config")
_LAYER_KEYS = words("name inbound_nodes build_config shared_object_id")


def check(architecture: Any) -> None:
    """Raise UnsafeModel or InvalidArgument unless everything in the architecture is on the allow-list."""
    check_limits(architecture)
    name = architecture.get("class_name") if isinstance(architecture, dict) else architecture
    if not isinstance(architecture, dict) or not isinstance(name, str) or name not in MODELS:
        raise unsafe("", f"a model must be Sequential or Functional, not {shown(name)}", str(name))
    _Walk().layer(document.without(architecture), "")
    if document.KEY in architecture:
        document.require_sound(architecture)


class _Walk:
    """One walk through an architecture, which counts its layers."""

    def __init__(self) -> None:
        self.layers = 0

    def layer(self, node: Any, path: str, graph: bool = False) -> None:
        """A layer.  A model within a model is also a layer; an operation on tensors is a node of a graph only."""
        self.layers += 1
        if self.layers > MOST_LAYERS:
            raise too_many_layers()
        name = _class_name(node, path)
        config_path = at(path, "config")
        if name in MODELS:
            self.model(_checked_config(node, path, MODELS, name, "model", _LAYER_KEYS), name, config_path)
        elif graph and str(node.get("module")) in OPERATIONS:
            module = node["module"]
            self.arguments(
                _checked_config(node, path, OPERATIONS[module], module, "operation", _LAYER_KEYS), config_path
            )
        else:
            config = _checked_config(node, path, LAYERS, "layer", "layer", _LAYER_KEYS)
            self.arguments(config, config_path)
            check_layer_size(config, config_path)
        for key in ("inbound_nodes", "build_config"):
            check_call(node.get(key), at(path, key))

    def model(self, config: dict[str, Any], name: str, path: str) -> None:
        layers = config.get("layers")
        if not isinstance(layers, list) or not layers:
            raise InvalidArgument(f"{path}.layers must be a list with at least one layer")
        for key in ("input_layers", "output_layers") if name == "Functional" else ():
            if not config.get(key):
                raise InvalidArgument(f"{path}.{key} is missing")
        for index, layer in enumerate(layers):
            self.layer(layer, f"{path}.layers[{index}]", graph=name == "Functional")
            if name == "Functional" and not is_name(layer.get("name")):
                raise InvalidArgument(f"{path}.layers[{index}] has no name")
        self.arguments({key: value for key, value in config.items() if key != "layers"}, path)

    def arguments(self, config: dict[str, Any], path: str) -> None:
        for name, value in config.items():
            if name in VALUE_CHECKS:
                VALUE_CHECKS[name](value, f"{path}.{name}")
            else:
                check_object = OBJECT_CHECKS.get(name) or OBJECT_CHECKS_BY_ENDING[name.rpartition("_")[2]]
                check_object(self, value, f"{path}.{name}")

    # ---- arguments that can contain objects ----

    def inner_layer(self, value: Any, path: str) -> None:
        if value is not None:
            self.layer(value, path)

    def inner_layers(self, value: Any, path: str) -> None:
        if not isinstance(value, list):
            raise InvalidArgument(f"{path} must be a list of layers")
        for index, cell in enumerate(value):
            self.layer(cell, f"{path}[{index}]")

    def initializer(self, value: Any, path: str) -> None:
        self._name_or_object(value, path, INITIALIZERS, INITIALIZER_NAMES, "initializer")

    def regularizer(self, value: Any, path: str) -> None:
        self._name_or_object(value, path, REGULARIZERS, REGULARIZER_NAMES, "regularizer")

    def constraint(self, value: Any, path: str) -> None:
        self._name_or_object(value, path, CONSTRAINTS, CONSTRAINT_NAMES, "constraint")

    def _name_or_object(self, value: Any, path: str, table: Table, names: frozenset[str], category: str) -> None:
        if isinstance(value, dict):
            self.arguments(_checked_config(value, path, table, category, category), at(path, "config"))
        elif value is not None and not (isinstance(value, str) and (value in names or value in table)):
            raise _not_allowed(path, category, value)

    def activation(self, value: Any, path: str) -> None:
        if value is not None and not (isinstance(value, str) and value in ACTIVATIONS):
            name = value.get("config", value.get("class_name")) if isinstance(value, dict) else value
            raise _not_allowed(path, "activation", name)

    def dtype(self, value: Any, path: str) -> None:
        if isinstance(value, dict):
            table = {"DTypePolicy": frozenset({"name"})}
            value = _checked_config(value, path, table, "policy", "dtype policy").get("name")
        if value is not None and not (isinstance(value, str) and value in POLICIES):
            raise _not_allowed(path, "dtype", value)

    def seed(self, value: Any, path: str) -> None:
        if isinstance(value, dict):
            table = {"SeedGenerator": frozenset({"name", "seed"})}
            config = _checked_config(value, path, table, "generator", "seed generator")
            check_plain(config.get("name"), at(path, "config.name"))
            value = config.get("seed")
        if value is not None and not is_whole(value):
            raise InvalidArgument(f"{path} must be a whole number")


OBJECT_CHECKS: dict[str, Callable[[_Walk, Any, str], None]] = {
    "dtype": _Walk.dtype,
    "seed": _Walk.seed,
    "layer": _Walk.inner_layer,
    "backward_layer": _Walk.inner_layer,
    "cell": _Walk.inner_layer,
    "cells": _Walk.inner_layers,
}
OBJECT_CHECKS_BY_ENDING: dict[str, Callable[[_Walk, Any, str], None]] = {
    "initializer": _Walk.initializer,
    "regularizer": _Walk.regularizer,
    "constraint": _Walk.constraint,
    "activation": _Walk.activation,
}


def _checked_config(
    node: dict[str, Any],
    path: str,
    table: Table,
    modules: str,
    category: str,
    more_keys: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """The arguments of a serialized object.  Its class, its module and the names of its arguments are in the tables."""
    name = _class_name(node, path)
    if name not in table:
        raise _not_allowed(path, category, name, name)
    module = node.get("module")
    if not isinstance(module, str) or module not in MODULES[modules]:
        allowed = " or ".join(sorted(MODULES[modules]))
        raise unsafe(
            path, f"{name} has the module {shown(module)}; it must be {allowed}", "TFOpLambda" if module else ""
        )
    registered = node.get("registered_name")
    if registered not in (None, name):
        raise unsafe(at(path, "registered_name"), f"{shown(registered)} is not a class of Keras")
    if node.get("compile_config"):
        raise InvalidArgument(f"{at(path, 'compile_config')}: an architecture cannot contain compile parameters")
    for key in node:
        if key not in _OBJECT_KEYS | more_keys:
            raise InvalidArgument(f"{at(path, key)}: a serialized {category} has no such key")
    config = node.get("config")
    if not isinstance(config, dict):
        raise InvalidArgument(f"{at(path, 'config')} must be an object")
    for key in config:
        if key not in table[name]:
            raise InvalidArgument(
                f"{at(path, 'config')}.{key}: {name} takes no such argument",
                hint=f"{name} takes {', '.join(sorted(table[name]))}." if table[name] else None,
            )
    return config


def _not_allowed(path: str, category: str, value: Any, class_name: str = "") -> UnsafeModel:
    names = category[:-1] + "ies" if category.endswith("y") else category + "s"
    return unsafe(path, f"the {category} {shown(value)} is not on the list of allowed {names}", class_name)


def _class_name(node: Any, path: str) -> str:
    if not isinstance(node, dict) or not isinstance(node.get("class_name"), str):
        raise InvalidArgument(f"{path or 'the architecture'} must be an object with a class_name")
    return node["class_name"]
