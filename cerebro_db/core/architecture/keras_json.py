"""Reads a model architecture: JSON of Keras 2 or 3 becomes a checked architecture of Keras 3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from ..documents import json_value
from ..errors import InvalidArgument, InvalidSyntax
from . import allowlist, keras2, placeholders
from .limits import MOST_BYTES, check_limits, too_deep
from .tables import MODELS

# What Keras saves beside the architecture: how the model was compiled, and the versions that wrote it.
_NOT_ARCHITECTURE = ("compile_config", "keras_version", "backend")


def architecture(text: str | dict[str, Any]) -> dict[str, Any]:
    """The architecture as Keras 3 writes it, after the check against the allow-list."""
    given = _parse(text) if isinstance(text, str) else text
    if not isinstance(given, dict):
        raise _no_object()
    check_limits(given)
    if placeholders.has_parameters(given):
        given = placeholders.filled(given, {})
    translated = _architecture_only(keras2.to_keras3(given))
    allowlist.check(translated)
    return translated


def parameters(text: str) -> list[str] | None:
    """The parameters of an architecture that ``placeholders.filled`` has to fill; None if it has none."""
    given = _parse(text)
    if not isinstance(given, dict) or not placeholders.has_parameters(given):
        return None
    check_limits(given)
    return sorted(placeholders.names(given)) or None


def decoded(text: str) -> dict[str, Any]:
    """The JSON of an architecture as it was loaded, with its parameters, within the limits."""
    given = _parse(text)
    if not isinstance(given, dict):
        raise _no_object()
    check_limits(given)
    return given


def for_outputs(compile: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """The compile parameters, with a flat list of metrics repeated for each output of the model.

    In Keras 2, a flat list held for every output.  Keras 3 needs a list for each.
    """
    count = len(outputs(model))
    if count < 2:
        return compile

    def repeat(metrics: Any) -> Any:
        flat = isinstance(metrics, list) and metrics and not any(isinstance(one, list) for one in metrics)
        return [list(metrics) for _ in range(count)] if flat else metrics

    return {**compile, **{key: repeat(compile[key]) for key in ("metrics", "weighted_metrics")}}


def outputs(model: dict[str, Any]) -> list[str]:
    """The names of the layers that compute the model's outputs."""
    if model["class_name"] == "Functional":
        return _layer_names(model["config"].get("output_layers"))
    layers = model["config"].get("layers") or []
    return [str(layers[-1]["config"].get("name", layers[-1]["class_name"]))] if layers else []


def widths(model: dict[str, Any]) -> list[int | None]:
    """The number of units of each output: those of the last layer that has units, on the way to the output."""
    layers = {str(one["config"].get("name")): one for one in model["config"].get("layers") or []}
    if model["class_name"] == "Functional":
        known: dict[str, int | None] = {}
        return [_units(layers, name, known) for name in outputs(model)]
    found = [one["config"]["units"] for one in layers.values() if isinstance(one["config"].get("units"), int)]
    return [found[-1] if found else None]


def _units(layers: dict[str, Any], name: str, known: dict[str, int | None]) -> int | None:
    """The units of a layer, or else of the only layer before it.  ``known``: those of layers that were asked for."""
    way: list[str] = []
    units = None
    for _ in layers:
        if name in known:
            units = known[name]
            break
        way.append(name)
        layer = layers.get(name)
        given = None if layer is None else layer["config"].get("units")
        if isinstance(given, int):
            units = given
            break
        before = set() if layer is None else set(_history(layer.get("inbound_nodes")))
        if len(before) != 1:
            break
        (name,) = before
    known.update(dict.fromkeys(way, units))
    return units


def _history(value: Any) -> Iterator[str]:
    """The layers whose outputs are in a node's arguments."""
    if isinstance(value, dict):
        if isinstance(history := value.get("keras_history"), list) and history:
            yield str(history[0])
        for item in value.values():
            yield from _history(item)
    elif isinstance(value, list):
        for item in value:
            yield from _history(item)


def _layer_names(value: Any) -> list[str]:
    """The layers in a reference such as ``["dense", 0, 0]``, or in a list or dictionary of references."""
    if isinstance(value, dict):
        return [name for item in value.values() for name in _layer_names(item)]
    if isinstance(value, list) and value and isinstance(value[0], str):
        return [value[0]]
    return [name for item in value for name in _layer_names(item)] if isinstance(value, list) else []


def _parse(text: str) -> Any:
    if len(text) > MOST_BYTES or len(text.encode("utf-8", "replace")) > MOST_BYTES:
        raise InvalidArgument(
            f"the model architecture has {len(text)} characters; at most {MOST_BYTES >> 20} MB are allowed"
        )
    try:
        return json_value(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise InvalidSyntax(
            f"the model architecture is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            hint="Use the text that model.to_json() returns.",
        ) from None
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:
        raise InvalidSyntax(f"the model architecture is not valid JSON: {error}") from None


def _no_object() -> InvalidArgument:
    return InvalidArgument(
        "a model architecture must be a JSON object", hint="Use the text that model.to_json() returns."
    )


def _refuse_constant(name: str) -> NoReturn:
    """Python's JSON reader accepts NaN and Infinity, which are no JSON."""
    raise ValueError(f"{name} is not a number")


def _architecture_only(node: dict[str, Any]) -> dict[str, Any]:
    node = {key: value for key, value in node.items() if key not in _NOT_ARCHITECTURE}
    config = node.get("config")
    if node.get("class_name") in MODELS and isinstance(config, dict):
        layers = config.get("layers")
        if isinstance(layers, list):
            kept = [_architecture_only(layer) if isinstance(layer, dict) else layer for layer in layers]
            node["config"] = {**config, "layers": kept}
    return node
