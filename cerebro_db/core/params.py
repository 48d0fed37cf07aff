"""Compile and fit parameters: from the strings of a model selection table to canonical dictionaries.

Both MADlib's strings (``optimizer='Adam(lr=0.1)', loss='mse', metrics=['mae']``) and JSON objects
are taken.  What comes out has one shape and Keras 3's names only (docs/architecture.md, "A
configuration"); spellings that Keras 3 no longer takes are translated, everything unknown is refused.
"""

from __future__ import annotations

import json
from typing import Any, Callable, NoReturn

from . import custom, grammar
from .custom import Known
from .errors import CerebroError, InvalidArgument, InvalidSyntax, Unsupported
from .grammar import Call, Word
from .vocabulary import DEFAULT_RATE, LOSSES, METRICS, OPTIMIZERS, SCHEDULES, Entry, Vocabulary, problem

COMPILE_KEYS = ("optimizer", "loss", "metrics", "loss_weights", "weighted_metrics", "sample_weight_mode")
FIT_KEYS = ("batch_size", "epochs", "verbose", "shuffle", "class_weight", "initial_epoch", "steps_per_epoch")

_MOST_ITEMS = 1000  # losses, metrics or class weights in one list
_SCHEDULES_MODULE = "keras.optimizers.schedules"


def compile_params(text: str | None, known: Known = custom.NONE) -> dict[str, Any]:
    """The canonical ``compile`` dictionary of a configuration; ``known`` are the custom functions it may name."""
    given = _read(text, "compile_params")
    if not given:
        raise InvalidArgument("Compile parameters cannot be empty or NULL.", hint="Give at least optimizer= and loss=.")
    _only(given, COMPILE_KEYS)
    for key in ("optimizer", "loss"):
        if given.get(key) is None:
            raise InvalidArgument(f"{key} is a required parameter for compile")
    if given.get("sample_weight_mode") not in (None, "temporal"):  # there are no sample weights to apply it to
        _refuse("sample_weight_mode", given["sample_weight_mode"], "it must be 'temporal' or None")
    loss = _loss(given["loss"], known)
    return {
        "optimizer": _optimizer(given["optimizer"]),
        "loss": loss,
        "metrics": _metrics("metrics", given.get("metrics"), loss, known) or [],
        "loss_weights": _loss_weights(given.get("loss_weights")),
        "weighted_metrics": _metrics("weighted_metrics", given.get("weighted_metrics"), loss, known),
    }


def fit_params(text: str | None) -> dict[str, Any]:
    """The canonical ``fit`` dictionary of a configuration; nothing given means the defaults."""
    given = _read(text, "fit_params")
    if "callbacks" in given:
        raise Unsupported(
            "callbacks are not accepted in fit_params",
            hint="Leave callbacks out. Losses and metrics of every epoch are recorded without them, and a "
            "learning-rate schedule can be given to the optimizer.",
        )
    _only(given, FIT_KEYS)
    epochs = _checked("epochs", given.get("epochs"), "count", 1)
    done = _checked("initial_epoch", given.get("initial_epoch"), "index", 0)
    if done >= epochs:
        _refuse("initial_epoch", done, f"it must be below epochs={epochs}")
    if given.get("verbose") not in (None, "auto", 0, 1, 2):  # understood, but progress is reported in our own way
        _refuse("verbose", given["verbose"], "it must be 0, 1 or 2")
    shuffle = given.get("shuffle")
    return {
        "batch_size": _checked("batch_size", given.get("batch_size"), "count", 32),
        "epochs": epochs - done,
        "shuffle": True if shuffle == "batch" else _checked("shuffle", shuffle, "flag", True),
        "class_weight": _class_weight(given.get("class_weight")),
        "steps_per_epoch": _checked("steps_per_epoch", given.get("steps_per_epoch"), "count", None),
    }


# ---- reading --------------------------------------------------------------------------------------


def _read(text: str | None, what: str) -> dict[str, Any]:
    if text is None or not text.strip():
        return {}
    if not text.lstrip().startswith("{"):
        return grammar.assignments(text, what)
    if len(text) > grammar.LONGEST:
        raise InvalidSyntax(f"{what}: {len(text)} characters are too many; at most {grammar.LONGEST} are read")
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InvalidSyntax(
            f"{what}: not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            hint="A text that begins with { is read as a JSON object: keys and texts in double quotes.",
        ) from None
    except (ValueError, RecursionError) as error:
        raise InvalidSyntax(f"{what}: not valid JSON: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _only(given: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise InvalidArgument(
                f"{key} is not currently accepted as a parameter.", hint=f"Parameters are {', '.join(known)}."
            )


def _shown(value: Any) -> str:
    if isinstance(value, Call):
        return value.name + "(…)"
    text = str(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:80] + "…"


def _refuse(key: str, value: Any, why: str, hint: str | None = None) -> NoReturn:
    raise InvalidArgument(
        f"invalid input value for parameter {key}={_shown(value)}, please refer to the documentation: {why}", hint=hint
    )


def _checked(key: str, value: Any, kind: str, default: Any = None) -> Any:
    if value is None:
        return default
    wrong = problem(kind, value)
    if wrong:
        _refuse(key, value, wrong)
    return value


def _class_weight(value: Any) -> dict[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not value or len(value) > _MOST_ITEMS:
        _refuse("class_weight", value, "it must be a dictionary such as {0: 1.0, 1: 2.5}")
    weights = {}
    for key, weight in value.items():
        if isinstance(key, float) or not str(key).isdecimal():
            _refuse("class_weight", value, f"its key {key!r} is not the number of a class")
        if problem("nonneg", weight):
            _refuse("class_weight", value, f"the weight of class {key} must be a number of at least 0")
        weights[int(key)] = float(weight)
    return {str(number): weights[number] for number in sorted(weights)}  # JSON has no other keys than texts


def _loss_weights(value: Any) -> list[float] | dict[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, (list, dict)) or not value or len(value) > _MOST_ITEMS:
        raise InvalidArgument(
            "wrong input type for compile parameter loss_weights: only list and dictionary are supported."
        )
    for weight in value.values() if isinstance(value, dict) else value:
        if problem("number", weight):
            _refuse("loss_weights", value, f"{_shown(weight)} is not a number")
    if isinstance(value, dict):
        return {str(output): float(weight) for output, weight in value.items()}
    return [float(weight) for weight in value]


# ---- names with arguments -------------------------------------------------------------------------


def _named(value: Any, key: str) -> tuple[str, dict[str, Any]]:
    """The name and arguments in ``Adam``, ``'Adam'``, ``'Adam(lr=1)'``, ``Adam(lr=1)`` or a Keras object."""
    if isinstance(value, str) and not isinstance(value, Word):
        value = grammar.expression(value, key) if value.strip() else ""
    if isinstance(value, Word):
        return str(value), {}
    if isinstance(value, Call):
        return value.name, value.arguments
    if isinstance(value, dict):
        return _object(value, key)
    _refuse(key, value, "it must be a name, with arguments in round brackets where needed")


def _object(value: dict[str, Any], key: str) -> tuple[str, dict[str, Any]]:
    """A serialized Keras object; only its name and arguments are used, never its module."""
    name, arguments = value.get("class_name"), value.get("config") or {}
    if not isinstance(name, str) or not isinstance(arguments, dict):
        _refuse(key, value, 'it must be {"class_name": …, "config": {…}}')
    strangers = set(value) - {"class_name", "config", "module", "registered_name", "build_config"}
    module = str(value.get("module") or "keras")
    registered = value.get("registered_name")
    if strangers or module.split(".")[0] != "keras" or registered not in (None, name):
        _refuse(key, name, "only objects of Keras itself are accepted")
    return name, {str(argument): given for argument, given in arguments.items()}


def _arguments(vocabulary: Vocabulary, entry: Entry, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an optimizer, schedule, loss or metric, each with a value of its kind."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        kind = entry.arguments.get(name)
        if kind is None:
            raise InvalidArgument(
                f"{entry.class_name}: {name} is not currently accepted as a parameter.",
                hint=_closest_argument(entry, name),
            )
        if value is None and not kind.endswith("?"):
            continue  # Keras 2 took None for "your default"
        if kind == "rate" and not isinstance(value, (int, float)):
            found[name] = _schedule(value)
            continue
        value = str(value) if isinstance(value, Word) else value
        wrong = problem(kind, value)
        if wrong:
            _refuse(f"{entry.class_name}.{name}", value, wrong)
        found[name] = value
    for name in entry.required:
        if name not in found:
            raise InvalidArgument(f"{vocabulary.kind} {entry.class_name} needs the argument {name}")
    return found


def _closest_argument(entry: Entry, name: str) -> str:
    near = [known for known in entry.arguments if known.replace("_", "") == name.lower().replace("_", "")]
    return f"Did you mean {near[0]}?" if near else f"{entry.class_name} takes {', '.join(entry.arguments)}."


# ---- optimizers -----------------------------------------------------------------------------------

_NO_LONGER = {"jit_compile", "is_legacy_optimizer"}  # in objects saved by Keras 2; no bearing on training


def _optimizer(value: Any) -> dict[str, Any]:
    name, given = _named(value, "optimizer")
    entry = OPTIMIZERS.find(name)
    if entry is None:
        raise InvalidArgument(
            f"model_keras error: invalid optimizer name: {_shown(name)}", hint=OPTIMIZERS.closest(name)
        )
    given = {argument: value for argument, value in given.items() if argument not in _NO_LONGER}
    decay = _old_spellings(entry, given)
    config = _arguments(OPTIMIZERS, entry, given)
    if decay:
        config["learning_rate"] = _inverse_time(entry, config.get("learning_rate"), decay)
    clips = [clip for clip in ("clipnorm", "clipvalue", "global_clipnorm") if config.get(clip) is not None]
    if len(clips) > 1:
        raise InvalidArgument(f"optimizer {entry.class_name}: only one of {' and '.join(clips)} can be given")
    return {"class_name": entry.class_name, "config": config}


def _old_spellings(entry: Entry, given: dict[str, Any]) -> float:
    """Renames the arguments of Keras 2 in place and returns its ``decay``."""
    if "lr" in given:
        if "learning_rate" in given:
            raise InvalidArgument(f"optimizer {entry.class_name}: lr and learning_rate are the same, give one of them")
        given["learning_rate"] = given.pop("lr")
    if entry.class_name == "Nadam" and given.get("schedule_decay") in (0.004, None):
        given.pop("schedule_decay", None)  # Keras 3 has this value built in
    return float(_checked("decay", given.pop("decay", None), "nonneg", 0))


def _inverse_time(entry: Entry, rate: Any, decay: float) -> dict[str, Any]:
    """Keras 2's ``decay``: in step t the rate is rate / (1 + decay * t)."""
    if isinstance(rate, dict):
        raise InvalidArgument(f"optimizer {entry.class_name}: decay cannot be combined with a learning-rate schedule")
    initial = DEFAULT_RATE.get(entry.class_name, 0.001) if rate is None else rate
    config = {"initial_learning_rate": initial, "decay_steps": 1, "decay_rate": decay, "staircase": False}
    return _schedule({"class_name": "InverseTimeDecay", "config": config})


def _schedule(value: Any) -> dict[str, Any]:
    name, given = _named(value, "learning_rate")
    entry = SCHEDULES.find(name)
    if entry is None:
        _refuse("learning_rate", value, "it must be a number or a learning-rate schedule", SCHEDULES.closest(name))
    config = _arguments(SCHEDULES, entry, given)
    if entry.class_name == "PiecewiseConstantDecay" and len(config["values"]) != len(config["boundaries"]) + 1:
        _refuse("learning_rate", name, "it needs one more value than boundaries")
    # unlike the objects around it, a schedule is found by Keras only with its module
    return {"module": _SCHEDULES_MODULE, "class_name": entry.class_name, "config": config, "registered_name": None}


# ---- losses and metrics ---------------------------------------------------------------------------


def _per_output(value: Any, one: Callable[[Any], Any]) -> Any:
    """Applies ``one`` to a value, or to each of a list or dictionary of them."""
    if isinstance(value, (list, dict)) and len(value) > _MOST_ITEMS:
        raise InvalidArgument(f"{len(value)} losses or metrics are too many")
    if isinstance(value, list):
        return [one(item) for item in value]
    if isinstance(value, dict) and "class_name" not in value:
        return {str(output): one(item) for output, item in value.items()}
    return one(value)


def _loss(value: Any, known: Known) -> Any:
    if isinstance(value, (list, dict)) and not value:
        raise InvalidArgument("loss is a required parameter for compile")
    return _per_output(value, lambda item: None if item is None else _function(LOSSES, item, known))


def _metrics(key: str, value: Any, loss: Any, known: Known) -> Any:
    def one(item: Any) -> Any:
        if isinstance(item, list):
            return [one(inner) for inner in item]
        return None if item is None else _function(METRICS, _crossentropy(item, loss), known)

    if value is None:
        return None
    if not isinstance(value, (list, dict)) or "class_name" in value:
        raise InvalidArgument(
            f"wrong input type for compile parameter {key}: {_shown(value)}; please pass a list",
            hint=f"Write {key}=['accuracy'].",
        )
    return _per_output(value, one)


def _crossentropy(metric: Any, loss: Any) -> Any:
    """Keras 2 chose among three metrics for ``ce``, as the loss asked for; Keras 3 has no such word."""
    if not isinstance(metric, str) or metric.lower() not in ("ce", "crossentropy"):
        return metric
    name = loss if isinstance(loss, str) else loss.get("class_name", "") if isinstance(loss, dict) else ""
    entry = LOSSES.find(name)
    if entry is not None and entry.class_name in ("BinaryCrossentropy", "SparseCategoricalCrossentropy"):
        return entry.short
    return "categorical_crossentropy"


def _function(vocabulary: Vocabulary, value: Any, known: Known) -> str | dict[str, Any]:
    """A loss or metric: its Keras 3 name alone, or an object where it has arguments."""
    kind = vocabulary.kind
    if isinstance(value, str) and custom.split(str(value)):  # name@version, which the grammar does not have
        return _custom(vocabulary, str(value), known)
    name, given = _named(value, kind)
    entry = vocabulary.find(name)
    if entry is None and not given and name in known.get(kind, {}):
        return _custom(vocabulary, name, known)
    if entry is None and not given and vocabulary is METRICS and custom.top_k(name):
        entry, given = METRICS.entries["TopKCategoricalAccuracy"], {"k": custom.top_k(name), "name": name}
    if entry is None:
        raise _unknown(vocabulary, name, known)
    given = {key: item for key, item in given.items() if (key, item) != ("reduction", "auto")}  # Keras 2's default
    config = _arguments(vocabulary, entry, given)
    if config:
        return {"class_name": entry.class_name, "config": config}
    return name if name in vocabulary.spelled else str(entry.short)


def _custom(vocabulary: Vocabulary, name: str, known: Known) -> str:
    if name not in known.get(vocabulary.kind, {}):
        raise _unknown(vocabulary, name, known)
    return known[vocabulary.kind][name]


def _unknown(vocabulary: Vocabulary, name: str, known: Known) -> CerebroError:
    if vocabulary is LOSSES and name in ("serialize", "deserialize", "get"):
        return InvalidArgument(f"Loss function {name} is not supported.")
    return InvalidArgument(
        f"unknown {vocabulary.kind} {_shown(name)!r} in compile_params",
        hint=f"{vocabulary.closest(name)} {_registered(vocabulary, name, known)}",
    )


def _registered(vocabulary: Vocabulary, name: str, known: Known) -> str:
    for kind, functions in known.items():
        if name in functions:
            return f"{name} is registered as a {kind}."
    names = sorted(name for name in known.get(vocabulary.kind, {}) if not custom.split(name))
    if names:
        return f"Registered on this server: {', '.join(names[:20])}."
    return "Functions of your own are registered by an administrator with cerebro.load_custom_function()."
