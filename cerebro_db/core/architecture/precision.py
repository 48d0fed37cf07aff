"""Mixed precision: sets the dtype policies of an architecture's layers to the precision of a run.

Keras has a global policy, but the JSON of a layer contains the layer's own policy, which takes precedence.  So the
run's precision is written into the architecture.  It then holds for hops, resume, replay, evaluate and predict, and in
the model table.
"""

from __future__ import annotations

from typing import Any

from ..options import PRECISIONS
from . import keras_json, trees
from .graph import needs_all_digits
from .tables import MODELS, OPERATIONS

Node = dict[str, Any]

INNER_LAYERS = ("layer", "backward_layer", "cell")


def computed_in(model: Node, precision: str) -> Node:
    """A copy of the model whose layers have this policy, if their own policy is one of PRECISIONS.

    The output layers get float32, as Keras recommends, so that losses and probabilities are computed in float32.  So do
    layers that bring numbers near 0, or away from it: 16 bits have too few digits for the difference.
    """
    if trees.are_grown(model):  # numbers of leaves and distances from thresholds need all digits
        return model
    converted = _model(model, precision, True)
    # Keras ignores a model's own policy when it reads the JSON. nn/models/build.py reads it, for loss scaling.
    return {**converted, "config": _with_policy(converted["config"], precision)}


def _model(model: Node, precision: str, is_output: bool) -> Node:
    layers = model["config"]["layers"]
    if model["class_name"] == "Functional":
        names = keras_json.outputs(model)
        output_places = {place for place, layer in enumerate(layers) if layer["name"] in names}
    else:
        output_places = {len(layers) - 1}
    converted = [_layer(layer, precision, is_output and place in output_places) for place, layer in enumerate(layers)]
    return {**model, "config": {**model["config"], "layers": converted}}


def _layer(layer: Node, precision: str, is_output: bool) -> Node:
    if layer["class_name"] in MODELS:
        return _model(layer, precision, is_output)
    # The dtype of an input is that of the rows; an operation computes in the dtype of its tensors.
    if layer["class_name"] == "InputLayer" or layer.get("module") in OPERATIONS:
        return layer
    exact = is_output or needs_all_digits(str(layer["config"].get("name")))
    config = _with_policy(layer["config"], "float32" if exact else precision)
    for key in INNER_LAYERS:
        if isinstance(config.get(key), dict):
            config[key] = _layer(config[key], precision, is_output)
    if config.get("cells"):
        config["cells"] = [_layer(cell, precision, is_output) for cell in config["cells"]]
    return {**layer, "config": config}


def _with_policy(config: Node, wanted: str) -> Node:
    policy = config.get("dtype")
    name = policy["config"].get("name") if isinstance(policy, dict) else policy
    if name == wanted or (name or "float32") not in PRECISIONS or (name is None and wanted == "float32"):
        return dict(config)
    return {**config, "dtype": wanted}
