"""The parameters ``loss``, ``metrics`` and ``weighted_metrics``: names of Keras 3 or of custom functions.

Each is one value for all outputs of a model, or a list or dictionary with a value for each output.
"""

from __future__ import annotations

from typing import Any, Callable

from ..errors import CerebroError, InvalidArgument
from ..models.metrics import LOSS, MOST_NUMBERS
from . import custom
from .calls import checked_arguments, named, read_call
from .custom import Known
from .value_types import refuse, shown
from .vocabulary import LOSSES, METRICS, Vocabulary

MOST_ITEMS = 1000  # losses, metrics or weights in one list or dictionary


def canonical_loss(value: Any, known: Known) -> Any:
    if isinstance(value, (list, dict)) and not value:
        raise InvalidArgument("loss is a required parameter for compile")
    return _for_each_output(value, lambda item: None if item is None else _function(LOSSES, item, known))


def canonical_metrics(parameter: str, value: Any, loss: Any, known: Known) -> Any:
    def canonical(item: Any) -> Any:
        if isinstance(item, list):
            return [canonical(inner) for inner in item]
        return None if item is None else _function(METRICS, _expand_crossentropy(item, loss), known)

    if value is None:
        return None
    if not isinstance(value, (list, dict)) or "class_name" in value:
        raise InvalidArgument(
            f"wrong input type for compile parameter {parameter}: {shown(value)}; please pass a list",
            hint=f"Write {parameter}=['accuracy'].",
        )
    return _for_each_output(value, canonical)


def _for_each_output(value: Any, canonical: Callable[[Any], Any]) -> Any:
    """``canonical`` of a single value, or of each value in a list or dictionary."""
    if isinstance(value, (list, dict)) and len(value) > MOST_ITEMS:
        raise InvalidArgument(f"there are {len(value)} losses or metrics in one list; the limit is {MOST_ITEMS}")
    if isinstance(value, list):
        return [canonical(item) for item in value]
    if isinstance(value, dict) and "class_name" not in value:
        return {str(output): canonical(item) for output, item in value.items()}
    return canonical(value)


def _expand_crossentropy(metric: Any, loss: Any) -> Any:
    """The metric that Keras 2 meant by ``ce``, which depends on the loss.  Keras 3 does not know this name."""
    if not isinstance(metric, str) or metric.lower() not in ("ce", "crossentropy"):
        return metric
    name = loss if isinstance(loss, str) else loss.get("class_name", "") if isinstance(loss, dict) else ""
    entry = LOSSES.find(name)
    if entry is not None and entry.class_name in ("BinaryCrossentropy", "SparseCategoricalCrossentropy"):
        return entry.short
    return "categorical_crossentropy"


def _function(vocabulary: Vocabulary, value: Any, known: Known) -> str | dict[str, Any]:
    """A loss or metric: its name in Keras 3, or an object if it has arguments, or a custom function's reference."""
    category = vocabulary.category
    if isinstance(value, str) and custom.split(str(value)):  # name@version, which the grammar cannot read
        return _custom_function(vocabulary, str(value), known)
    name, given = read_call(value, category)
    entry = vocabulary.find(name)
    if entry is None and not given and name in known.get(category, {}):
        return _custom_function(vocabulary, name, known)
    if entry is None and not given and vocabulary is METRICS and custom.top_k(name):
        entry, given = METRICS.entries["TopKCategoricalAccuracy"], {"k": custom.top_k(name), "name": name}
    if entry is None:
        raise _unknown(vocabulary, name, known)
    if isinstance(known, custom.WithoutSparse) and entry.class_name.startswith("Sparse"):
        raise InvalidArgument(
            f"{'Metric' if vocabulary is METRICS else 'Loss function'} {name} is not supported.",
            hint="Labels are packed as vectors with one element per class: the same name without sparse_ takes these.",
        )
    by_name = named(entry, given, entry.required)
    by_name = {key: item for key, item in by_name.items() if (key, item) != ("reduction", "auto")}  # Keras 2's default
    config = checked_arguments(vocabulary, entry, by_name)
    if vocabulary is METRICS:
        _require_usable(entry.class_name, config)
    if config:
        return {"class_name": entry.class_name, "config": config}
    return name if name in vocabulary.spelled else str(entry.short)


def _require_usable(metric: str, config: dict[str, Any]) -> None:
    """Refuse a metric that counts in too many numbers, and a name that belongs to the loss."""
    if config.get("name") == LOSS:
        refuse(f"{metric}.name", LOSS, "this is the name of the loss")
    classes = config.get("num_classes", 0)
    thresholds = config.get("num_thresholds", 200 if metric == "AUC" else 0)  # Keras' default
    if isinstance(config.get("thresholds"), list):
        thresholds = max(thresholds, len(config["thresholds"]))
    numbers = max(classes**2, 4 * thresholds * (config.get("num_labels") or 1))
    if numbers > MOST_NUMBERS:
        name = "num_classes" if classes else "num_thresholds"
        value = config.get(name, thresholds)
        refuse(
            f"{metric}.{name}",
            value,
            f"the metric would count in {numbers:,} numbers, and all metrics of a configuration may count in"
            f" {MOST_NUMBERS:,}",
        )


def _custom_function(vocabulary: Vocabulary, name: str, known: Known) -> str:
    if name not in known.get(vocabulary.category, {}):
        raise _unknown(vocabulary, name, known)
    return known[vocabulary.category][name]


def _unknown(vocabulary: Vocabulary, name: str, known: Known) -> CerebroError:
    if vocabulary is LOSSES and name in ("serialize", "deserialize", "get"):
        return InvalidArgument(f"Loss function {name} is not supported.")
    told = ""
    if isinstance(known, custom.WithoutSparse):
        told = " in compile_params: " + known.unknown.replace("{}", shown(name))
    return InvalidArgument(
        f"unknown {vocabulary.category} {shown(name)!r}{told}",
        hint=f"{vocabulary.closest(name)} {_registered(vocabulary, name, known)}",
    )


def _registered(vocabulary: Vocabulary, name: str, known: Known) -> str:
    """A hint about the custom functions of this server."""
    for category, functions in known.items():
        if name in functions:
            return f"{name} is registered as a {category}."
    names = sorted(name for name in known.get(vocabulary.category, {}) if not custom.split(name))
    if names:
        return f"Registered on this server: {', '.join(names[:20])}."
    return "An administrator can register a custom function with cerebro.add_custom_function()."
