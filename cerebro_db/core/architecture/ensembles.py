"""One model made of several: each member is a layer, and each output is the mean of the members' outputs.

The weights of such a model are those of its members, one after the other.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from ..errors import Unsupported
from .adapters import document
from .graph import Graph, node, tensor

Json = dict[str, Any]


def ensemble(members: Sequence[Json]) -> Json:
    """The architecture of the ensemble.  The members are functional models with the same inputs and outputs."""
    for one in members:
        if document.KEY in one:
            raise Unsupported(
                "a member has adapters, which an ensemble cannot hold.", hint="Choose members without adapters."
            )
        if one["class_name"] != "Functional":
            raise Unsupported(
                f"a member is a {one['class_name']} model, not a functional model.",
                hint="Use functional architectures. cerebro.architecture() makes such ones.",
            )
    first, *others = [_ends(one) for one in members]
    if any(other != first for other in others):
        raise Unsupported("the inputs or outputs of the members differ.")
    inputs, outputs = json.loads(first)
    graph = Graph(set())
    for layer in inputs:
        graph.layers.append(layer)
        graph.inputs.append(layer["name"])
    called: Any = [tensor(name) for name in graph.inputs]
    names = []
    for number, one in enumerate(members, 1):
        config = {**copy.deepcopy(one["config"]), "name": f"member_{number}"}
        names.append(config["name"])
        graph.layers.append(
            {
                **node("keras.src.models.functional", "Functional", config, [{"args": [called], "kwargs": {}}]),
                "registered_name": "Functional",
            }
        )
    for place, name in enumerate(outputs):
        means = [tensor(member, place) for member in names]
        graph.layers.append(node("keras.layers", "Average", {"name": name}, [{"args": [means], "kwargs": {}}]))
        graph.output(name)
    return graph.model("ensemble", members[0].get("compile_config") or {})


def members_of(architecture: Json) -> list[Json]:
    """The architectures that an ensemble was made of, as they were but for their names."""
    layers = {layer["config"].get("name"): layer for layer in architecture["config"]["layers"]}
    found: list[Json] = []
    while (layer := layers.get(f"member_{len(found) + 1}")) is not None:
        found.append({name: layer[name] for name in ("module", "class_name", "config")})
    return found


def _ends(member: Json) -> str:
    """The input layers, in the order of the inputs, and the names of the outputs, as text that can be compared."""
    layers = {one["name"]: one for one in member["config"]["layers"]}
    inputs, outputs = ([one[0] for one in _listed(member["config"][key])] for key in ("input_layers", "output_layers"))
    return json.dumps([[layers[name] for name in inputs], outputs], sort_keys=True)


def _listed(ends: Any) -> list[Any]:
    """``["x", 0, 0]`` stands for a list of one."""
    return [ends] if ends and isinstance(ends[0], str) else ends
