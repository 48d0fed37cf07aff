"""Builds a compiled Keras model from a configuration (JSON), after the allow-list has accepted the configuration."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from cerebro_db.core.architecture import allowlist, trees
from cerebro_db.core.architecture.adapters import layers as adapters
from cerebro_db.core.architecture.limits import check_activations
from cerebro_db.core.errors import ConfigurationFailed, OutOfResources
from cerebro_db.core.models import asked_vector
from cerebro_db.core.parameters.params import check_compile
from cerebro_db.nn.models import custom_functions, numbers, pinball, vectors
from cerebro_db.nn.models.dtypes import item_bytes

PICKED_BY_SHAPE = ("accuracy", "acc", "crossentropy", "ce")


def program_key(configuration: dict[str, Any], layout: dict[str, Any] | None) -> str:
    """Equal for configurations that can share a compiled program.

    Left out is what is a variable or an argument of the program: a plain learning rate, the numbers of numbers.py, the
    batch size, the epochs, the limit on steps.
    """
    allowlist.check_limits(configuration["architecture"])  # first of all: later code walks through it recursively
    shape, _ = numbers.apart(configuration)
    compile_, fit = dict(shape["compile"]), configuration.get("fit") or {}
    optimizer = compile_.get("optimizer")
    if isinstance(optimizer, dict):
        arguments = dict(optimizer.get("config") or {})
        if is_number(arguments.get("learning_rate", 0.0)):
            arguments.pop("learning_rate", None)
        compile_["optimizer"] = {**optimizer, "config": arguments}
    columns = layout and [layout["inputs"], layout["outputs"]]
    parts = [shape["architecture"], compile_, fit.get("class_weight"), columns]
    return json.dumps(parts, sort_keys=True)


def build_model(
    configuration: dict[str, Any], layout: dict[str, Any] | None, seed: int, weights: Iterable[Any] | None = None
) -> Any:
    """A compiled model with its optimizer's variables; all initial values depend on the seed and the weights alone."""
    _begin(configuration, seed, lambda: _require_room(configuration, layout))
    model = _built(configuration["architecture"], layout)
    _compile_to_train(model, configuration)
    if weights is not None:
        for variable, value in zip(
            adapters.weights(model), weights
        ):  # set_weights() would need all values in memory at once
            variable.assign(value)
    model.optimizer.build(model.trainable_variables)  # after the weights: some optimizers start from their values
    return model


def build_in_pieces(
    configuration: dict[str, Any],
    layout: dict[str, Any] | None,
    seed: int | None,
    place: Callable[[Any], None],
) -> tuple[Any, list[tuple[Any, Any]]]:
    """As ``build_model``, but no variable of the model and no slot of its optimizer has a value.

    ``place`` is called with each of them, which keeps its initializer.  Returns the model, and the slots, each with
    its weight.  Without a seed the model is not compiled.
    """
    slots: list[tuple[Any, Any]] = []
    _begin(configuration, seed)
    with no_values():
        model = _built(configuration["architecture"], layout)
    for variable in model.variables:
        place(variable)
    if seed is not None:
        _compile_to_train(model, configuration)
        optimizer = model.optimizer
        add = optimizer.add_variable_from_reference

        def noting(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
            with no_values():
                slots.append((add(reference_variable, *args, **kwargs), reference_variable))
            return slots[-1][0]

        optimizer.add_variable_from_reference = noting
        try:
            optimizer.build(model.trainable_variables)
        finally:
            del optimizer.add_variable_from_reference
        for slot, _ in slots:
            place(slot)
    return model, slots


def _begin(configuration: dict[str, Any], seed: int | None, require_room: Callable[[], None] = lambda: None) -> None:
    """What has to be before a model is built."""
    import keras
    from keras.src.utils.naming import reset_uids  # has no public name

    allowlist.check(asked_vector.apart(configuration["architecture"])[0])
    if seed is not None:
        check_compile(configuration["compile"], custom_functions.known())
    require_room()
    # Keras gives unnamed objects names with numbers (dense_7, adam_3) that grow through a process' life. The names go
    # into the state, and equal states must have equal bytes in any process.
    reset_uids()
    if seed is not None:
        keras.utils.set_random_seed(seed % (1 << 32))


def _compile_to_train(model: Any, configuration: dict[str, Any]) -> None:
    import keras

    parameters = configuration["compile"]
    if parameters.get("optimizer") is None:
        raise ConfigurationFailed("the compile parameters name no optimizer")
    if parameters.get("loss") is None:
        raise ConfigurationFailed("the compile parameters name no loss")
    optimizer = _optimizer(parameters["optimizer"])
    if trees.are_grown(configuration["architecture"]):  # none steps, so none needs numbers of its own for each weight
        optimizer = keras.optimizers.SGD()
    if _policy(configuration["architecture"]) == "mixed_float16":  # as Keras does for a model that knows its policy
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
    _compile(model, optimizer, parameters)


def compile_as(head: Any, whole: Any, parameters: dict[str, Any]) -> None:
    """Compile the end of a model to train with the optimizer of the whole one."""
    _compile(head, whole.optimizer, parameters)


def _compile(model: Any, optimizer: Any, parameters: dict[str, Any]) -> None:
    import keras

    model.compile(
        optimizer=optimizer,
        loss=_each(parameters["loss"], pinball.get),
        loss_weights=parameters.get("loss_weights"),
        metrics=_each(parameters.get("metrics"), keras.metrics.get),
        weighted_metrics=_each(parameters.get("weighted_metrics"), keras.metrics.get),
        jit_compile=False,  # the engine compiles a loop around train_step itself
    )


def build_to_predict(configuration: dict[str, Any], layout: dict[str, Any] | None) -> Any:
    """A model that is not compiled.  Its variables have no values until ``give_value``."""
    from keras.src.utils.naming import reset_uids  # has no public name

    allowlist.check(asked_vector.apart(configuration["architecture"])[0])
    reset_uids()
    model, size = _without_values(configuration["architecture"], layout)
    _require_memory(size)
    return _built(configuration["architecture"], layout) if model is None else model


def build_to_merge(architecture: dict[str, Any], layout: dict[str, Any]) -> tuple[Any, list[Callable[[], None]]]:
    """As ``build_to_predict``, with what adds each adapter to the weights of its layer."""
    import keras

    allowlist.check(architecture)
    with no_values() as made:
        model = _without_adapters(architecture, layout)
        merging = adapters.install(keras, model, architecture)
    _require_memory(_bytes(made))
    return model, merging


def give_value(variable: Any, value: Any = None) -> None:
    """The first value of a variable that has none: this value, or the value with which Keras begins."""
    if value is not None:
        variable._initializer = lambda shape, dtype: value
    variable._deferred_initialize()  # has no public name


def has_value(variable: Any) -> bool:
    return variable._value is not None


def has_initializer(variable: Any) -> bool:
    """Whether the first value of a variable without one would be computed."""
    return callable(getattr(variable, "_initializer", None))


_roomy: set[str] = set()  # architectures that fit into memory


def _require_room(configuration: dict[str, Any], layout: dict[str, Any] | None) -> None:
    """Refuse a model that cannot fit into memory before allocating it: a few bytes of JSON can ask for terabytes."""
    architecture = numbers.apart(configuration)[0]["architecture"]
    key = json.dumps([architecture, layout and layout["inputs"]], sort_keys=True)
    if key in _roomy:
        return
    _, size = _without_values(architecture, layout)
    _require_memory(size)
    _roomy.add(key)


def _without_values(architecture: dict[str, Any], layout: dict[str, Any] | None) -> tuple[Any, int]:
    """A model whose variables have shapes but no values, and the bytes that the values would take.

    The model is None if it cannot be built in this way.  An error of the architecture is raised when it is built
    with values.
    """
    model = None
    with no_values() as made:
        with contextlib.suppress(Exception):
            model = _built(architecture, layout)
        return model, _bytes(made)


def _bytes(variables: Iterable[Any]) -> int:
    return sum(math.prod(variable.shape) * item_bytes(str(variable.dtype)) for variable in variables)


@contextlib.contextmanager
def no_values() -> Iterator[list[Any]]:
    """Variables that are made within have shapes and no values; they are in the list."""
    import keras
    from keras.src.backend.common import global_state  # has no public name

    name = "uninitialized_variables"
    made: list[Any] = []
    before = global_state.get_global_attribute(name)
    global_state.set_global_attribute(name, made)
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield made
    finally:
        global_state.set_global_attribute(name, before)


def _require_memory(size: int) -> None:
    """Refuse weights of so many bytes if there is no memory for them and for their gradients."""
    there = memory()
    if 2 * size > there:
        raise OutOfResources(
            f"the model's weights take {size / 2**30:,.1f} GB, and this machine has {there / 2**30:,.1f} GB of memory",
            hint="Make the layers smaller, or pool before a Dense layer.",
        )


def memory() -> int:
    """Bytes of memory of this machine or container."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return found


def _built(architecture: dict[str, Any], layout: dict[str, Any] | None) -> Any:
    import keras

    architecture, vector_of, is_asked = asked_vector.apart(architecture)
    model = _without_adapters(architecture, layout)
    adapters.install(keras, model, architecture)
    check_activations(model)
    return vectors.with_vector(model, vector_of) if is_asked else model


def _without_adapters(architecture: dict[str, Any], layout: dict[str, Any] | None) -> Any:
    shape = [None, *layout["inputs"][0]["shape"]] if layout is not None and len(layout["inputs"]) == 1 else None
    model = _architecture(
        copy.deepcopy(_with_input(architecture, shape))
    )  # Keras empties the dictionaries that it reads
    if not model.built:
        if shape is None:
            raise ConfigurationFailed("the architecture does not say the shape of its input")
        model.build(tuple(shape))
    for layer in list(model._flatten_layers(include_self=False)):
        if not layer.trainable:  # Keras does not tell the layers in it, such as those that attention makes
            for inner in layer._flatten_layers(include_self=False):
                inner.trainable = False
    return model


def _with_input(model: dict[str, Any], shape: list[Any] | None) -> dict[str, Any]:
    """Adds an input of float32 to a Sequential without an input whose layers compute in mixed precision.

    Keras would give the model an input of the first layer's precision, and would round the rows to it, also numbers of
    words.
    """
    if model["class_name"] != "Sequential":
        return model
    config = model["config"]
    shape = config.get("build_input_shape") or shape
    first, *others = config["layers"]
    if first["class_name"] == "Sequential":
        layers = [_with_input(first, shape), *others]
    elif shape and str(_policy(first)).startswith("mixed_"):
        rows = {"batch_shape": shape, "dtype": "float32"}
        layers = [{"module": "keras.layers", "class_name": "InputLayer", "config": rows}, first, *others]
    else:
        return model
    return {**model, "config": {**config, "layers": layers}}


def _architecture(architecture: dict[str, Any]) -> Any:
    import keras

    class_name, config = architecture["class_name"], dict(architecture["config"])
    if class_name == "Sequential":
        return _sequential({"name": "sequential", **config})
    return keras.Model.from_config(config)


def _sequential(config: dict[str, Any]) -> Any:
    """What from_config() makes, which builds the model anew with each layer that it adds.  Built once it takes half."""
    import keras
    from keras.src.utils.naming import reset_uids  # has no public name

    if all("module" in layer for layer in config["layers"]):
        before = random.getstate()  # Keras draws the seeds of a layer's initial values from it
        layers = [keras.layers.deserialize(layer) for layer in copy.deepcopy(config["layers"])]
        drawn = random.getstate()
        model = keras.Sequential(layers, name=config["name"])
        if not model.built and config.get("build_input_shape"):
            model.build(tuple(config["build_input_shape"]))
        if random.getstate() == drawn:
            return model
        # A layer (MultiHeadAttention) draws seeds when it is built, so the order matters.
        random.setstate(before)
        reset_uids()
    return keras.Sequential.from_config(config)


def _policy(node: dict[str, Any]) -> str | None:
    """The dtype policy of a layer, or of a model (Keras ignores a model's policy when it reads the model)."""
    policy = node["config"].get("dtype")
    return policy["config"].get("name") if isinstance(policy, dict) else policy


def _optimizer(optimizer: Any) -> Any:
    import keras

    if isinstance(optimizer, str):
        return keras.optimizers.get(optimizer)
    arguments = dict(optimizer.get("config") or {})
    rate = arguments.get("learning_rate")
    if isinstance(rate, dict):
        arguments["learning_rate"] = keras.optimizers.schedules.deserialize(rate)
    elif rate is not None and is_number(rate):
        arguments["learning_rate"] = float(rate)
    # by the class: deserialize() would hide "unexpected argument 'lr'" under three other messages
    found = getattr(keras.optimizers, optimizer["class_name"], None)
    if not (isinstance(found, type) and issubclass(found, keras.optimizers.Optimizer)):
        raise ConfigurationFailed(f"there is no optimizer {optimizer['class_name']!r}")
    return found(**arguments)


def _each(wanted: Any, get: Callable[[Any], Any]) -> Any:
    """The losses or metrics of all outputs. Names stay names, because Keras chooses 'accuracy' by the shape."""
    if isinstance(wanted, dict) and "class_name" in wanted:
        return get(wanted)
    if isinstance(wanted, dict):
        return {name: _each(one, get) for name, one in wanted.items()}
    if isinstance(wanted, (list, tuple)):
        return [_each(one, get) for one in wanted]
    if isinstance(wanted, str) and custom_functions.is_one(wanted):
        return custom_functions.get(wanted)
    if isinstance(wanted, str) and wanted.lower() not in PICKED_BY_SHAPE:
        get(wanted)  # raises now if Keras knows no such name
    return wanted


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
