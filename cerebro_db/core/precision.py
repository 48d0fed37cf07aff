"""In what numbers a model computes, said for a run: its layers' policies in the architecture that is trained.

A model's JSON has a policy per layer, so a policy for all that Keras may be told would change nothing.  What is put
into the architecture goes wherever that goes: hops, resume, replay, the model table, evaluate and predict.
"""

from __future__ import annotations

from typing import Any

from . import allowlist, models

Node = dict[str, Any]

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")  # weights are float32 with all of them
INNER_LAYERS = ("layer", "backward_layer", "cell")


def computed_in(model: Node, precision: str) -> Node:
    """The model with that policy for all layers that have one of these, but for its outputs: as Keras advises, their
    losses and probabilities stay float32."""
    made = _model(model, precision, True)
    # Keras forgets a model's own policy when it reads it; build.py does not, because small gradients depend on it.
    return {**made, "config": _with_policy(made["config"], precision)}


def _model(model: Node, precision: str, is_output: bool) -> Node:
    layers = model["config"]["layers"]
    if model["class_name"] == "Functional":
        names = models.outputs(model)
        ends = {place for place, layer in enumerate(layers) if layer["name"] in names}
    else:
        ends = {len(layers) - 1}
    made = [_layer(layer, precision, is_output and place in ends) for place, layer in enumerate(layers)]
    return {**model, "config": {**model["config"], "layers": made}}


def _layer(layer: Node, precision: str, is_output: bool) -> Node:
    if layer["class_name"] in allowlist.MODELS:
        return _model(layer, precision, is_output)
    if layer["class_name"] == "InputLayer":  # its dtype is that of rows
        return layer
    own = "float32" if is_output else precision
    config = _with_policy(layer["config"], own)
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
