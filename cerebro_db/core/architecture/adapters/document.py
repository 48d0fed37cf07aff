"""Adapters as parameters that every architecture has, and in the document of an architecture.

``lora_rank`` adds to a layer's matrix the product of two narrow ones, ``bottleneck`` a small network behind a layer,
``biases`` a number to each bias.  The document of an architecture lists them beside its layers, whose own weights are
those without adapters.  The trainer adds them when it has built the layers (layers.py).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import InvalidArgument, Unsupported
from ...parameters.flat import ADAPTER_LAYERS, ADAPTERS, BIASES, BOTTLENECK, LORA_ALPHA, LORA_DROPOUT, LORA_RANK
from ..messages import shown
from ..tables import MODELS

Json = dict[str, Any]

KEY = "adapters"  # of the document, beside "config"
LAYER, RATE = "layer", "dropout"  # of one adapter, beside its sort with its size
LORA, BIAS = "lora", "bias"
ALPHA = "alpha"
DEFAULT_LAYERS = "*/query, */value"
PARTS = ("query", "key", "value", "output")  # the layers in an attention that have weights
ATTENTIONS = ("MultiHeadAttention", "GroupQueryAttention")
MATRICES = ("Dense", "EinsumDense")
CONVOLUTIONS = ("Conv1D", "Conv2D", "Conv3D", "DepthwiseConv1D", "DepthwiseConv2D")
# No BatchNormalization: one that trains takes the statistics of the batch.
WITH_BIASES = (*MATRICES, *CONVOLUTIONS, "LayerNormalization")
CLASSES = {
    LORA: (*MATRICES, "Embedding"),
    BIAS: WITH_BIASES,
    BOTTLENECK: (*MATRICES, *ATTENTIONS, "LayerNormalization"),
}
MOST_RANK, MOST_UNITS, MOST_LAYERS = 1024, 65536, 10_000
HINT = (
    f'For instance {{"{LORA_RANK}": 8}}, {{"{BOTTLENECK}": 16}} or {{"{BIASES}": true}}; "{ADAPTER_LAYERS}":'
    ' "encoder*/query, head" names the layers.'
)


def wanted(values: Mapping[str, Any]) -> bool:
    """Whether parameters ask for adapters; each of their values is checked."""
    for name, least, most in ((LORA_RANK, 0, MOST_RANK), (BOTTLENECK, 0, MOST_UNITS)):
        value = values.get(name, 0)
        if type(value) is not int or not least <= value <= most:
            raise _wrong(name, value, f"it must be an integer from {least} to {most:,}; 0: none")
    alpha, rate = values.get(LORA_ALPHA, 1), values.get(LORA_DROPOUT, 0)
    if not _is_number(alpha) or not 0 < alpha <= 1e6:
        raise _wrong(LORA_ALPHA, alpha, "it must be a number above 0, of at most 1,000,000")
    if not _is_number(rate) or not 0 <= rate < 1:
        raise _wrong(LORA_DROPOUT, rate, "it must be a number from 0 to below 1")
    if type(values.get(BIASES, False)) is not bool:
        raise _wrong(BIASES, values[BIASES], "it must be true or false")
    layers = values.get(ADAPTER_LAYERS, "*")
    if not isinstance(layers, str) or not _patterns(layers):
        raise _wrong(ADAPTER_LAYERS, layers, "it must be a text with names of layers")
    found = bool(values.get(LORA_RANK) or values.get(BOTTLENECK) or values.get(BIASES))
    if not found and not {LORA_RANK, BOTTLENECK, BIASES} & set(values):
        name = next(name for name in (LORA_ALPHA, LORA_DROPOUT, ADAPTER_LAYERS) if name in values)
        raise InvalidArgument(f"{name} belongs to adapters, and there are none.", hint=HINT)
    return found


def with_adapters(model: Json, values: Mapping[str, Any]) -> Json:
    """The architecture (of Keras 3), some of whose layers are frozen, with adapters in these.

    Without ``adapter_layers``, the low-rank products are those of the queries and values of all attention, or without
    attention those of all matrices; small networks are behind all attention, or else behind all matrices; and all
    biases train.
    """
    if KEY in model:
        raise Unsupported(
            "the architecture has adapters already.", hint="Add the architecture without its key adapters."
        )
    frozen = [(path, one) for path, one in _layers(model, "") if one["config"].get("trainable") is False]
    found: list[Json] = []
    rank, units = values.get(LORA_RANK), values.get(BOTTLENECK)
    if rank:
        alpha, rate = values.get(LORA_ALPHA, rank), values.get(LORA_DROPOUT, 0)
        for path in _chosen(frozen, LORA, LORA_RANK, values, f"{DEFAULT_LAYERS}"):
            found.append({LAYER: path, LORA: rank, ALPHA: alpha, **({RATE: rate} if rate else {})})
    if values.get(BIASES):
        found += [{LAYER: path, BIAS: True} for path in _chosen(frozen, BIAS, BIASES, values, "*")]
    if units:
        found += [{LAYER: path, BOTTLENECK: units} for path in _chosen(frozen, BOTTLENECK, BOTTLENECK, values, None)]
    return {**model, KEY: found}


def _chosen(
    frozen: list[tuple[str, Json]], sort: str, parameter: str, values: Mapping[str, Any], default: str | None
) -> list[str]:
    """The paths of the frozen layers that get adapters of a sort."""
    able = [path for layer_path, one in frozen for path in _places(layer_path, one, sort)]
    if ADAPTER_LAYERS in values:
        found = [path for path in able if any(_fits(path, one) for one in _patterns(values[ADAPTER_LAYERS]))]
    elif default is None:
        found = [path for path, one in frozen if one["class_name"] in ATTENTIONS] or able
    else:
        found = [path for path in able if any(_fits(path, one) for one in _patterns(default))] or able
    if not found:
        named = f" whose name is like '{shown(values[ADAPTER_LAYERS])}'" if ADAPTER_LAYERS in values else ""
        listed = f"Such layers are {', '.join(able[:30])}." if able else "The parameter frozen says which do not train."
        raise InvalidArgument(
            f"{parameter} cannot be {shown(values[parameter])}: no frozen layer{named} can have such an adapter.",
            hint=listed,
        )
    return found


def _places(path: str, layer: Json, sort: str) -> list[str]:
    """Where a layer can have an adapter: as a whole, or in the layers that attention consists of."""
    if layer["class_name"] in ATTENTIONS:
        if sort == BOTTLENECK:
            return [path]
        biased = sort != BIAS or layer["config"].get("use_bias", True)
        return [f"{path}/{part}" for part in PARTS] if biased else []
    if layer["class_name"] not in CLASSES[sort] or (sort == BIAS and not _has_biases(layer["config"])):
        return []
    if sort == LORA and layer["class_name"] == "EinsumDense" and ends(str(layer["config"].get("equation"))) is None:
        return []
    return [path]


def ends(equation: str) -> tuple[str, str] | None:
    """The dimensions of an EinsumDense's matrix that its input has, and those that its output has.

    None: it has others, or none at an end, so it is no matrix from an input to an output.
    """
    given, _, rest = equation.partition(",")
    matrix, _, output = rest.partition("->")
    left = "".join(one for one in matrix if one in given and one not in output)
    right = "".join(one for one in matrix if one in output and one not in given)
    if not left or not right or len(left) + len(right) != len(matrix) or "." in equation:
        return None
    return left, right


def _has_biases(config: Json) -> bool:
    return bool(config.get("use_bias", True) and config.get("center", True) and config.get("bias_axes", True))


def _layers(model: Json, within: str) -> Iterator[tuple[str, Json]]:
    """The path of each layer, those of models within the model too."""
    for layer in model["config"]["layers"]:
        path = within + str(layer["config"].get("name", layer["class_name"]))
        if layer["class_name"] in MODELS:
            yield from _layers(layer, f"{path}/")
        else:
            yield path, layer


def _patterns(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _fits(path: str, pattern: str) -> bool:
    """Whether a pattern is a path, the end of one, or names all that is in it."""
    return any(fnmatch.fnmatchcase(path, each) for each in (pattern, f"*/{pattern}", f"{pattern}/*", f"*/{pattern}/*"))


def without(model: Json) -> Json:
    """The architecture without its adapters."""
    return {key: value for key, value in model.items() if key != KEY}


def has_bottleneck(model: Json) -> bool:
    """Whether there are adapters that no weights of layers can have in them."""
    return any(BOTTLENECK in one for one in model.get(KEY, ()))


def require_sound(model: Json) -> None:
    """Refuse a list of adapters that ``with_adapters`` would not make for the layers of the document."""
    layers = dict(_layers(model, ""))
    given = model[KEY]
    if not isinstance(given, list) or not 1 <= len(given) <= MOST_LAYERS:
        raise InvalidArgument(f"{KEY} must be a list of 1 to {MOST_LAYERS:,} adapters")
    seen: set[tuple[str, str]] = set()
    for number, one in enumerate(given):
        where = f"{KEY}[{number}]"
        sorts = [sort for sort in (LORA, BIAS, BOTTLENECK) if isinstance(one, dict) and sort in one]
        if len(sorts) != 1 or not isinstance(one.get(LAYER), str):
            raise InvalidArgument(f"{where} must be an object with a layer, and with one of lora, bias and bottleneck")
        sort, path = sorts[0], one[LAYER]
        owner = path if path in layers else path.rpartition("/")[0]
        if owner not in layers or path not in _places(owner, layers[owner], sort):
            raise InvalidArgument(f"{where}: there is no layer {shown(path)} that can have such an adapter")
        if (path, sort) in seen:
            raise InvalidArgument(f"{where}: the layer {shown(path)} has such an adapter already")
        seen.add((path, sort))
        names = {LORA: {LAYER, LORA, ALPHA, RATE}}.get(sort, {LAYER, sort})
        if set(one) - names:
            raise InvalidArgument(f"{where}: an adapter has no key {shown(min(set(one) - names))}")
        if sort == BIAS:
            wanted({BIASES: one[BIAS]})
        elif sort == BOTTLENECK:
            wanted({BOTTLENECK: one[BOTTLENECK]})
        else:
            wanted({LORA_RANK: one[LORA], LORA_ALPHA: one.get(ALPHA, 1), LORA_DROPOUT: one.get(RATE, 0)})
        if not one[sort]:
            raise InvalidArgument(f"{where}: {sort} cannot be {shown(one[sort])}")


def of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of adapters among those of an architecture."""
    return {name: value for name, value in values.items() if name in ADAPTERS}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _wrong(name: str, value: Any, must: str) -> InvalidArgument:
    return InvalidArgument(f"{name} cannot be {shown(value)}: {must}.", hint=HINT)
