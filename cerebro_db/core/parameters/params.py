"""Compile and fit parameters: the strings of a model selection table become canonical dictionaries.

Strings (``optimizer='Adam(lr=0.1)', loss='mse', metrics=['mae']``) and JSON objects are accepted.  The
dictionaries have one shape and only names of Keras 3 (docs/architecture.md, "A configuration").  Spellings of Keras 2
are translated.  Everything unknown is refused.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from ..documents import json_value
from ..errors import InvalidArgument, InvalidSyntax, UnsafeModel, Unsupported
from . import custom, grammar
from .custom import Known
from .losses import MOST_ITEMS, canonical_loss, canonical_metrics
from .optimizers import canonical_optimizer
from .value_types import checked, problem, refuse, shown

COMPILE_KEYS = ("optimizer", "loss", "metrics", "loss_weights", "weighted_metrics", "sample_weight_mode")
FIT_KEYS = ("batch_size", "epochs", "verbose", "shuffle", "class_weight", "initial_epoch", "steps_per_epoch")


def compile_params(text: str | None, known: Known = custom.NONE) -> dict[str, Any]:
    """The canonical compile parameters of a configuration.  ``known`` are the custom functions that it may name."""
    return canonical_compile(read(text, "compile_params"), known)


def canonical_compile(given: dict[str, Any], known: Known = custom.NONE) -> dict[str, Any]:
    """The same of parameters that are read already."""
    if not given:
        raise InvalidArgument("Compile parameters cannot be empty or NULL.", hint="Give at least optimizer= and loss=.")
    _refuse_unknown_keys(given, COMPILE_KEYS)
    for key in ("optimizer", "loss"):
        if given.get(key) is None:
            raise InvalidArgument(f"{key} is a required parameter for compile")
    # The value is accepted and has no effect, because there are no sample weights.
    if given.get("sample_weight_mode") not in (None, "temporal"):
        refuse("sample_weight_mode", given["sample_weight_mode"], "it must be 'temporal' or None")
    loss = canonical_loss(given["loss"], known)
    return {
        "optimizer": canonical_optimizer(given["optimizer"]),
        "loss": loss,
        "metrics": canonical_metrics("metrics", given.get("metrics"), loss, known) or [],
        "loss_weights": _loss_weights(given.get("loss_weights")),
        "weighted_metrics": canonical_metrics("weighted_metrics", given.get("weighted_metrics"), loss, known),
    }


def check_compile(compile: dict[str, Any], known: Known = custom.NONE) -> None:
    """Raise UnsafeModel or InvalidArgument unless this is a dictionary that ``compile_params`` can return."""
    if compile_params(json.dumps(compile), known) != compile:
        raise UnsafeModel(
            "the compile parameters are not in canonical form",
            hint="Write them into a model selection table; a fit translates them.",
        )


def has_tensorboard(text: str | None) -> bool:
    """Whether fit parameters have callbacks: one TensorBoard and nothing else."""
    callbacks = read(text, "fit_params").get("callbacks")
    one = callbacks[0] if isinstance(callbacks, list) and len(callbacks) == 1 else None
    return isinstance(one, grammar.Call) and one.name == "TensorBoard"


def fit_params(text: str | None, tensorboard: bool = False) -> dict[str, Any]:
    """The canonical fit parameters of a configuration.  Each parameter has a default.

    ``tensorboard``: a callback TensorBoard is accepted, and has no effect.
    """
    given = read(text, "fit_params")
    if tensorboard and has_tensorboard(text):
        del given["callbacks"]
    if "callbacks" in given:
        only = "Invalid callbacks fit param.  Currently, only TensorBoard callbacks are accepted."
        raise Unsupported(
            only if tensorboard else "callbacks are not accepted in fit_params",
            hint="Leave callbacks out. Losses and metrics of every epoch are recorded without them, and a "
            "learning-rate schedule can be given to the optimizer.",
        )
    return canonical_fit(given)


def canonical_fit(given: dict[str, Any]) -> dict[str, Any]:
    """The same of parameters that are read already."""
    _refuse_unknown_keys(given, FIT_KEYS)
    epochs = checked("epochs", given.get("epochs"), "count", 1)
    initial_epoch = checked("initial_epoch", given.get("initial_epoch"), "index", 0)
    if initial_epoch >= epochs:
        refuse("initial_epoch", initial_epoch, f"it must be below epochs={epochs}")
    # The value is accepted and has no effect: cerebro_db reports progress in its own way.
    if given.get("verbose") not in (None, "auto", 0, 1, 2):
        refuse("verbose", given["verbose"], "it must be 0, 1 or 2")
    shuffle = given.get("shuffle")
    return {
        "batch_size": checked("batch_size", given.get("batch_size"), "count", 32),
        "epochs": epochs - initial_epoch,
        "shuffle": True if shuffle == "batch" else checked("shuffle", shuffle, "flag", True),
        "class_weight": _class_weight(given.get("class_weight")),
        "steps_per_epoch": checked("steps_per_epoch", given.get("steps_per_epoch"), "count", None),
    }


# ---- reading a text -------------------------------------------------------------------------------


def read(text: str | None, argument: str) -> dict[str, Any]:
    if text is None or not text.strip():
        return {}
    if not text.lstrip().startswith("{"):
        return grammar.assignments(text, argument)
    if len(text) > grammar.LONGEST:
        raise InvalidSyntax(f"{argument} has {len(text)} characters; the limit is {grammar.LONGEST}")
    try:
        return json_value(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise InvalidSyntax(
            f"{argument} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            hint="A text that begins with { is read as a JSON object: put keys and texts in double quotes.",
        ) from None
    except (ValueError, RecursionError) as error:
        raise InvalidSyntax(f"{argument} is not valid JSON: {error}") from None


def _refuse_constant(name: str) -> NoReturn:
    """Python's JSON reader accepts NaN and Infinity, which are no JSON."""
    raise ValueError(f"{name} is not a number")


def _refuse_unknown_keys(given: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise InvalidArgument(
                f"{key} is not currently accepted as a parameter.", hint=f"Parameters are {', '.join(known)}."
            )


# ---- weights of classes and losses ----------------------------------------------------------------


def _class_weight(value: Any) -> dict[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not value or len(value) > MOST_ITEMS:
        refuse(
            "class_weight",
            value,
            f"it must be a dictionary of at most {MOST_ITEMS} weights, such as {{0: 1.0, 1: 2.5}}",
        )
    weights = {}
    for key, weight in value.items():
        if isinstance(key, float) or not str(key).isdecimal():
            refuse("class_weight", value, f"its key {key!r} is not a class number")
        if problem("nonneg", weight):
            refuse("class_weight", value, f"the weight of class {key} must be a number of at least 0")
        weights[int(key)] = float(weight)
    return {str(number): weights[number] for number in sorted(weights)}  # JSON allows only texts as keys.


def _loss_weights(value: Any) -> list[float] | dict[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, (list, dict)) or not value or len(value) > MOST_ITEMS:
        raise InvalidArgument(
            "wrong input type for compile parameter loss_weights: only list and dictionary are supported."
        )
    for weight in value.values() if isinstance(value, dict) else value:
        if problem("number", weight):
            refuse("loss_weights", value, f"{shown(weight)} is not a number")
    if isinstance(value, dict):
        return {str(output): float(weight) for output, weight in value.items()}
    return [float(weight) for weight in value]
