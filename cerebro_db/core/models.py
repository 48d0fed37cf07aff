"""From a user's text to something that can be trained: architectures and whole configurations."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from . import allowlist, legacy, params
from .errors import InvalidArgument, InvalidSyntax

Shape = list[Any]  # of int, or None where any length will do


def architecture(text: str | dict[str, Any]) -> dict[str, Any]:
    """A model's JSON, of Keras 2 or 3: read, translated to Keras 3 and checked against the allow-list."""
    given = _parsed(text) if isinstance(text, str) else text
    if not isinstance(given, dict):
        raise InvalidArgument(
            "a model architecture must be a JSON object", hint="Use the text that model.to_json() returns."
        )
    allowlist.check_limits(given)
    made = _without_leftovers(legacy.to_keras3(given))
    allowlist.check(made)
    return made


def configuration(model: dict[str, Any], compile_text: str | None, fit_text: str | None) -> dict[str, Any]:
    """The full configuration of docs/architecture.md; ``model`` is what ``architecture`` returned."""
    compile_ = for_outputs(params.compile_params(compile_text), model)
    return {"architecture": model, "compile": compile_, "fit": params.fit_params(fit_text)}


def for_outputs(compile: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """Metrics given once hold for every output; Keras 3 wants them repeated for each."""
    count = len(outputs(model))
    if count < 2:
        return compile

    def spread(metrics: Any) -> Any:
        flat = isinstance(metrics, list) and metrics and not any(isinstance(one, list) for one in metrics)
        return [list(metrics) for _ in range(count)] if flat else metrics

    return {**compile, **{key: spread(compile[key]) for key in ("metrics", "weighted_metrics")}}


def input_shapes(model: dict[str, Any]) -> list[Shape]:
    """The shape of each input, without the batch; empty where the architecture does not say."""
    config = model["config"]
    layers = config.get("layers") or []
    if model["class_name"] == "Functional":
        by_name = {layer.get("name"): layer for layer in layers}
        return [shape for name in _ends(config.get("input_layers")) for shape in _shape_of(by_name.get(name))]
    shapes = _shape_of(layers[0]) if layers else []
    return shapes or ([list(config["build_input_shape"][1:])] if config.get("build_input_shape") else [])


def outputs(model: dict[str, Any]) -> list[str]:
    """The names of the layers that give the outputs."""
    if model["class_name"] == "Functional":
        return _ends(model["config"].get("output_layers"))
    layers = model["config"].get("layers") or []
    return [str(layers[-1]["config"].get("name", layers[-1]["class_name"]))] if layers else []


def output_units(model: dict[str, Any]) -> list[int | None]:
    """How many numbers each output has per row, where that can be read off without building the model."""
    layers = model["config"].get("layers") or []
    if model["class_name"] == "Sequential":
        return [_units(list(reversed(layers)))]
    by_name = {layer.get("name"): layer for layer in layers}
    return [_units(_upstream(by_name, name)) for name in outputs(model)]


# ---- reading --------------------------------------------------------------------------------------


def _parsed(text: str) -> Any:
    if len(text) > allowlist.MOST_BYTES or len(text.encode("utf-8", "replace")) > allowlist.MOST_BYTES:
        raise InvalidArgument(f"a model architecture has at most {allowlist.MOST_BYTES >> 20} MB")
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InvalidSyntax(
            f"the model architecture is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            hint="Use the text that model.to_json() returns.",
        ) from None
    except RecursionError:
        raise InvalidArgument(f"the architecture is nested more than {allowlist.DEEPEST} deep") from None
    except ValueError as error:
        raise InvalidSyntax(f"the model architecture is not valid JSON: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _without_leftovers(node: dict[str, Any]) -> dict[str, Any]:
    """What a saved model says about its past: how it was compiled, and which Keras wrote it."""
    node = {key: value for key, value in node.items() if key not in ("compile_config", "keras_version", "backend")}
    config = node.get("config")
    if node.get("class_name") in allowlist.MODELS and isinstance(config, dict):
        layers = config.get("layers")
        if isinstance(layers, list):
            kept = [_without_leftovers(layer) if isinstance(layer, dict) else layer for layer in layers]
            node["config"] = {**config, "layers": kept}
    return node


# ---- looking --------------------------------------------------------------------------------------

# Layers that leave the last axis as it is.
_TRANSPARENT = frozenset(
    """Activation ActivityRegularization AlphaDropout BatchNormalization Dropout ELU GaussianDropout GaussianNoise
    Identity LayerNormalization LeakyReLU PReLU ReLU RMSNormalization Rescaling Softmax UnitNormalization""".split()  # noqa: SIM905
)


def _ends(value: Any) -> list[str]:
    """Layer names in ``["a", 0, 0]``, in a list or in a dictionary of such references."""
    if isinstance(value, dict):
        return [name for item in value.values() for name in _ends(item)]
    if isinstance(value, list) and value and isinstance(value[0], str):
        return [value[0]]
    return [name for item in value for name in _ends(item)] if isinstance(value, list) else []


def _shape_of(layer: dict[str, Any] | None) -> list[Shape]:
    if layer is None:
        return []
    if layer["class_name"] in allowlist.MODELS:
        return input_shapes(layer)
    config = layer.get("config") or {}
    if layer["class_name"] == "InputLayer" and config.get("batch_shape"):
        return [list(config["batch_shape"][1:])]
    return [list(config["shape"])] if config.get("shape") else []


def _units(backwards: list[dict[str, Any]]) -> int | None:
    """The units of the first layer, going backwards, that sets the last axis."""
    for layer in backwards:
        name, config = layer["class_name"], layer.get("config") or {}
        if name in allowlist.MODELS:
            inner = output_units(layer)
            return inner[0] if len(inner) == 1 else None
        if name == "TimeDistributed" and isinstance(config.get("layer"), dict):
            return _units([config["layer"]])
        if name not in _TRANSPARENT:
            units = config.get("units")
            return units if isinstance(units, int) else None
    return None


def _upstream(by_name: dict[Any, dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """An output layer and what leads to it, as far as that is one chain of layers used once."""
    chain: list[dict[str, Any]] = []
    while name in by_name and by_name[name] not in chain:
        layer = by_name[name]
        chain.append(layer)
        calls = layer.get("inbound_nodes") or []
        sources = _sources(calls[0]) if len(calls) == 1 else []
        if len(sources) != 1:
            break
        name = sources[0]
    return chain


def _sources(value: Any) -> list[str]:
    if isinstance(value, dict) and isinstance(value.get("config"), dict) and "keras_history" in value["config"]:
        return [value["config"]["keras_history"][0]]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [name for item in inner for name in _sources(item)]
