"""How many layers of a model keep their weights: ``frozen``, a parameter that every architecture has.

Layers with weights are counted, in the order of Keras' ``model.layers``; those of a model within the model count one by
one.  So each number is another model, and a Sequential model counts as the functional model of the same layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import InvalidArgument
from ..parameters.flat import FROZEN
from .graph import measures_group
from .messages import shown
from .precision import INNER_LAYERS
from .tables import MODELS, OPERATIONS, words

Json = dict[str, Any]

HINT = (
    "5: the first five layers with weights do not train; 0: all layers train; -1: only the last one trains;"
    ' "pool2": the layers up to this one do not train.'
)
WITH_WEIGHTS = words("""
    Dense EinsumDense Embedding PReLU Conv1D Conv2D Conv3D Conv1DTranspose Conv2DTranspose Conv3DTranspose
    DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D
    BatchNormalization RMSNormalization SpectralNormalization
    RNN SimpleRNN LSTM GRU ConvLSTM1D ConvLSTM2D ConvLSTM3D Bidirectional MultiHeadAttention GroupQueryAttention
""")
MOST_LISTED = 30  # layers in a hint


def with_frozen(model: Json, frozen: Any) -> Json:
    """The architecture (of Keras 3) with its first layers frozen; all others train, whatever their JSON said.

    ``frozen``: how many layers with weights; negative: all but so many; a text: the name of the last one.
    """
    ends = list(_ends(model, "", 0))
    count = ends[-1][1] if ends else 0
    first = _first(ends, count, frozen)
    if first == count:
        raise InvalidArgument(
            f"{FROZEN} cannot be {shown(frozen)}: nothing would train. The architecture has {_counted(count)}.",
            hint=HINT,
        )
    made, _ = _flagged(model, 0, first)
    return made


def any_frozen(model: Json) -> bool:
    """Whether the JSON of a layer says that it does not train."""
    return any(
        any_frozen(layer) if layer["class_name"] in MODELS else layer["config"].get("trainable") is False
        for layer in model["config"]["layers"]
    )


def _first(ends: list[tuple[str, int]], count: int, frozen: Any) -> int:
    """How many layers with weights do not train."""
    if isinstance(frozen, str):
        return _up_to(ends, frozen)
    if type(frozen) is not int:
        raise InvalidArgument(
            f"{FROZEN} cannot be {shown(frozen)}: it must be an integer or the name of a layer.", hint=HINT
        )
    if not -count <= frozen <= count:
        raise InvalidArgument(f"{FROZEN} cannot be {frozen}: the architecture has {_counted(count)}.", hint=HINT)
    return frozen if frozen >= 0 else count + frozen


def _up_to(ends: list[tuple[str, int]], name: str) -> int:
    """How many layers with weights there are up to the layer of this name."""
    exact = [end for end in ends if end[0] == name]
    found = exact or [end for end in ends if end[0].endswith(f"/{name}")]
    if len(found) == 1:
        return found[0][1]
    listed = [path for path, _ in found or ends]
    more = ", …" if len(listed) > MOST_LISTED else ""
    problem = f"{len(found)} layers have this name" if found else "the architecture has no layer of this name"
    raise InvalidArgument(
        f"{FROZEN} cannot be '{shown(name)}': {problem}.", hint=f"Layers: {', '.join(listed[:MOST_LISTED])}{more}."
    )


def _counted(count: int) -> str:
    return "1 layer with weights" if count == 1 else f"{count or 'no'} layers with weights"


def _ends(model: Json, within: str, before: int) -> Iterator[tuple[str, int]]:
    """The path of each layer, and how many layers with weights there are up to and with it."""
    for layer in model["config"]["layers"]:
        path = within + str(layer["config"].get("name", layer["class_name"]))
        if layer["class_name"] in MODELS:
            for inner in _ends(layer, f"{path}/", before):
                yield inner
                before = inner[1]
            yield path, before
        elif _is_layer(layer):
            before += _has_weights(layer)
            yield path, before


def _is_layer(node: Json) -> bool:
    return node["class_name"] != "InputLayer" and node.get("module") not in OPERATIONS


def _has_weights(layer: Json) -> bool:
    """Whether a layer counts.  The numbers that a model takes from the rows of its group never train."""
    name, config = layer["class_name"], layer["config"]
    if measures_group(str(config.get("name"))):
        return False
    if name in MODELS:  # in a wrapper
        return any(map(_has_weights, config["layers"]))
    if name == "TimeDistributed":
        return _has_weights(config["layer"])
    if name in ("LayerNormalization", "GroupNormalization"):
        return bool(config.get("center", True) or config.get("scale", True))
    if name == "Attention":
        return bool(config.get("use_scale") or config.get("score_mode") == "concat")
    if name == "AdditiveAttention":
        return bool(config.get("use_scale", True))
    return name in WITH_WEIGHTS


def _flagged(model: Json, before: int, first: int) -> tuple[Json, int]:
    """A model whose layers train from the layer number ``first`` on, and how many layers there are up to its end."""
    layers = []
    for layer in model["config"]["layers"]:
        if layer["class_name"] in MODELS:
            made, before = _flagged(layer, before, first)
        elif _is_layer(layer) and not measures_group(str(layer["config"].get("name"))):
            counts = _has_weights(layer)
            made, before = _trains(layer, not counts or before >= first), before + counts
        else:
            made = layer
        layers.append(made)
    config = {**model["config"], "layers": layers}
    if config.get("trainable") is False:  # it would hold for all layers in it
        config["trainable"] = True
    return {**model, "config": config}, before


def _trains(layer: Json, trains: bool) -> Json:
    """The layer with its flag, and those of the layers in it; a flag that says nothing new is left out."""
    if not _is_layer(layer):
        return layer
    config = dict(layer["config"])
    if not trains or config.get("trainable") is False:
        config["trainable"] = trains
    for key in INNER_LAYERS:
        if isinstance(config.get(key), dict):
            config[key] = _trains(config[key], trains)
    for key in ("cells", "layers"):
        if config.get(key):
            config[key] = [_trains(inner, trains) for inner in config[key]]
    return {**layer, "config": config}
