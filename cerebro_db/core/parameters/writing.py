"""Parameters as texts: a point of a grid as strings of a selection table, and the names of losses and metrics."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidArgument
from . import params
from .calls import read_object
from .params import COMPILE_KEYS
from .vocabulary import OPTIMIZERS

DEFAULT_OPTIMIZER = "RMSprop"  # of strings that name none
_INNER = '"'  # the quote within the quotes of an optimizer


def compile_text(point: dict[str, Any]) -> str:
    """``optimizer='Adam(lr=0.1)',loss='mse',metrics=['mae']``: parameters of other names go to the optimizer."""
    name, own = _optimizer(point.get("optimizer", DEFAULT_OPTIMIZER))
    entry = OPTIMIZERS.find(name.partition("(")[0].strip())
    shared = {key: value for key, value in point.items() if key not in COMPILE_KEYS}
    twice = sorted(set(own) & set(shared))
    if twice:
        raise InvalidArgument(f"{twice[0]} is given both inside and outside of the optimizer {name}")
    arguments = [f"{key}={_optimizer_argument(value)}" for key, value in {**own, **shared}.items()]
    if "(" in name and arguments:
        raise InvalidArgument(
            f"DL: optimizer {name} already has arguments, and the grid has more of them: {', '.join(arguments)}",
            hint="Write only the optimizer's name, and give all of its arguments in the grid.",
        )
    call = name if "(" in name else f"{entry.class_name if entry else name}({','.join(arguments)})"
    parts = [f"optimizer={_literal(call)}"]
    for key, value in point.items():
        if key in ("metrics", "weighted_metrics") and isinstance(value, str):
            value = [value]  # In a grid's list of metrics, each element is one choice.
        if key in COMPILE_KEYS and key != "optimizer":
            parts.append(f"{key}={_literal(value)}")
    return ",".join(parts)


def fit_text(point: dict[str, Any]) -> str:
    """``batch_size=8,epochs=1``; a grid has the text of a list as callbacks."""

    def written(key: str, value: Any) -> str:
        return value if key == "callbacks" and isinstance(value, str) else _literal(value)

    return ",".join(f"{key}={written(key, value)}" for key, value in point.items())


def metrics_type(compiled: dict[str, Any], outputs: list[str], *, plain: bool = False) -> list[str] | None:
    """The metrics of canonical compile parameters, one text each; of a model with several outputs OUTPUT: METRIC.

    ``plain``: without the outputs.
    """
    return _by_output(compiled.get("metrics"), outputs, plain) or None


def loss_type(compiled: dict[str, Any], outputs: list[str]) -> str:
    """The loss of canonical compile parameters; of a model with several outputs OUTPUT: LOSS, one after the other."""
    return ", ".join(_by_output(compiled["loss"], outputs))


def as_written(text: str, loss: str, metrics: list[str] | None, outputs: int = 1) -> tuple[str, list[str] | None]:
    """Loss and metrics of a configuration by the names in its compile parameters (``ce``), where they are plain names.

    ``loss`` and ``metrics`` are their canonical names.
    Metrics that were given once for all ``outputs`` are named once.
    """
    given = params.read(text, "compile_params")

    def kept(written: Any, canonical: str) -> str:
        plain = isinstance(written, str) and "(" not in written
        return str(written) if plain else canonical

    listed = given.get("metrics")
    if isinstance(listed, list) and metrics and len(metrics) in (len(listed), len(listed) * outputs):
        metrics = [kept(written, canonical) for written, canonical in zip(listed, metrics)]
    return kept(given.get("loss"), loss), metrics


def _by_output(given: Any, outputs: list[str], plain: bool = False) -> list[str]:
    if isinstance(given, list) and len(given) == len(outputs) > 1:
        given = dict(zip(outputs, given))
    if isinstance(given, dict) and "class_name" not in given:
        prefix = "{}: " if len(outputs) > 1 and not plain else ""
        return [prefix.format(output) + _function(one) for output, its in given.items() for one in _flat(its)]
    return [_function(one) for one in _flat(given)]


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [inner for one in value for inner in _flat(one)]
    return [] if value is None else [value]


def _function(value: Any) -> str:
    """``accuracy``, ``AUC(curve='PR')``"""
    if not isinstance(value, dict):
        return str(value)
    arguments = ", ".join(f"{name}={_literal(given)}" for name, given in value["config"].items())
    return f"{value['class_name']}({arguments})"


def _optimizer(value: Any) -> tuple[str, dict[str, Any]]:
    """The name of an optimizer, and its arguments if it is an object such as Keras writes it."""
    if isinstance(value, dict):
        return read_object(value, "optimizer")
    return str(value), {}


def _optimizer_argument(value: Any) -> str:
    """An argument within the quotes of the optimizer.  A learning-rate schedule becomes a call."""
    if isinstance(value, str) and value.endswith(")"):
        return value
    if isinstance(value, dict) and "class_name" in value:
        name, arguments = read_object(value, "learning_rate")
        return f"{name}({','.join(f'{key}={_literal(one, _INNER)}' for key, one in arguments.items())})"
    return _literal(value, _INNER)


def _literal(value: Any, quote: str = "'") -> str:
    if isinstance(value, str):
        return quote + value.replace("\\", "\\\\").replace(quote, "\\" + quote) + quote
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_literal(item, quote) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_literal(key, quote)}:{_literal(item, quote)}" for key, item in value.items()) + "}"
    return repr(value)
