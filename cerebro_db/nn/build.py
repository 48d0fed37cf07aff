"""A configuration (JSON) becomes a compiled Keras model; nothing that is not on the allow-list gets that far."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from cerebro_db.core import allowlist
from cerebro_db.core.errors import ConfigurationFailed
from cerebro_db.nn import functions

PICKED_BY_SHAPE = ("accuracy", "acc", "crossentropy", "ce")


def program_key(configuration: dict[str, Any], layout: dict[str, Any] | None) -> str:
    """Everything that shapes the compiled program.

    What is left out is a variable or an argument of it: a plain learning rate, the batch size, the
    epochs, the limit on steps.
    """
    compile_, fit = dict(configuration["compile"]), configuration.get("fit") or {}
    optimizer = compile_.get("optimizer")
    if isinstance(optimizer, dict):
        arguments = dict(optimizer.get("config") or {})
        if _is_number(arguments.get("learning_rate", 0.0)):
            arguments.pop("learning_rate", None)
        compile_["optimizer"] = {**optimizer, "config": arguments}
    columns = layout and [layout["inputs"], layout["outputs"]]
    parts = [configuration["architecture"], compile_, fit.get("class_weight"), columns]
    return json.dumps(parts, sort_keys=True)


def build_model(
    configuration: dict[str, Any], layout: dict[str, Any] | None, seed: int, weights: Iterable[Any] | None = None
) -> Any:
    """A fresh model with its optimizer's variables, compiled; its initial values depend on seed and weights alone."""
    import keras
    from keras.src.utils.naming import reset_uids  # has no public name

    allowlist.check(configuration["architecture"])
    allowlist.check_compile(configuration["compile"], functions.known())
    # Keras numbers what has no name of its own (dense_7, adam_3) through a process' life; the names go
    # into the state, and equal states must have equal bytes in whatever process they were written.
    reset_uids()
    keras.utils.set_random_seed(seed % (1 << 32))
    model = _architecture(configuration["architecture"])
    if not model.built:
        if layout is None or len(layout["inputs"]) != 1:
            raise ConfigurationFailed("the architecture does not say the shape of its input")
        model.build((None, *layout["inputs"][0]["shape"]))
    parameters = configuration["compile"]
    if parameters.get("optimizer") is None:
        raise ConfigurationFailed("the compile parameters name no optimizer")
    if parameters.get("loss") is None:
        raise ConfigurationFailed("the compile parameters name no loss")
    model.compile(
        optimizer=_optimizer(parameters["optimizer"]),
        loss=_each(parameters["loss"], keras.losses.get),
        loss_weights=parameters.get("loss_weights"),
        metrics=_each(parameters.get("metrics"), keras.metrics.get),
        weighted_metrics=_each(parameters.get("weighted_metrics"), keras.metrics.get),
        jit_compile=False,  # the engine compiles its own loop around train_step
    )
    if weights is not None:
        for variable, value in zip(model.weights, weights):  # set_weights() would want all of them at once
            variable.assign(value)
    model.optimizer.build(model.trainable_variables)  # after the weights: some optimizers start from them
    return model


def _architecture(architecture: dict[str, Any]) -> Any:
    import keras

    class_name, config = architecture["class_name"], dict(architecture["config"])
    if class_name == "Sequential":
        return keras.Sequential.from_config({"name": "sequential", **config})
    return keras.Model.from_config(config)


def _optimizer(optimizer: Any) -> Any:
    import keras

    if isinstance(optimizer, str):
        return keras.optimizers.get(optimizer)
    arguments = dict(optimizer.get("config") or {})
    rate = arguments.get("learning_rate")
    if isinstance(rate, dict):
        arguments["learning_rate"] = keras.optimizers.schedules.deserialize(rate)
    elif rate is not None and _is_number(rate):
        arguments["learning_rate"] = float(rate)
    if isinstance(arguments.get("inner_optimizer"), dict):
        arguments["inner_optimizer"] = _optimizer(arguments["inner_optimizer"])
    # the class itself: deserialize() would bury "unexpected argument 'lr'" under three other messages
    found = getattr(keras.optimizers, optimizer["class_name"], None)
    if not (isinstance(found, type) and issubclass(found, keras.optimizers.Optimizer)):
        raise ConfigurationFailed(f"there is no optimizer {optimizer['class_name']!r}")
    return found(**arguments)


def _each(wanted: Any, get: Callable[[Any], Any]) -> Any:
    """The losses or metrics of all outputs: names stay names (Keras picks 'accuracy' by shape), objects are made."""
    if isinstance(wanted, dict) and "class_name" in wanted:
        return get(wanted)
    if isinstance(wanted, dict):
        return {name: _each(one, get) for name, one in wanted.items()}
    if isinstance(wanted, (list, tuple)):
        return [_each(one, get) for one in wanted]
    if isinstance(wanted, str) and functions.is_one(wanted):
        return functions.get(wanted)
    if isinstance(wanted, str) and wanted.lower() not in PICKED_BY_SHAPE:
        get(wanted)  # only to hear now if there is no such thing
    return wanted


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
