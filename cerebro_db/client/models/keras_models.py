"""Builds the Keras model of a trained model: an architecture with float32 weights."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Any, Protocol

from cerebro_db.core.architecture import keras_json
from cerebro_db.core.architecture.adapters import document as adapters
from cerebro_db.core.architecture.adapters import layers
from cerebro_db.core.architecture.limits import check_activations
from cerebro_db.core.errors import CerebroError

from ..database import SNAPSHOT, DatabaseClient
from ..errors import ClientError, MissingPackage, NoSuchModel
from . import stored_model

SLACK = 1 << 20  # bytes
ITEM_BYTES = {"float32": 4, "int32": 4, "uint32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1}


class ModelParts(Protocol):
    """What a Keras model is built from: a stored model, or what a file has of one."""

    @property
    def architecture(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def input_shapes(self) -> list[list[int]] | None: ...
    def pieces(self) -> Iterator[bytes]: ...


def load(database: DatabaseClient, model_table: str, configuration: int | None, group: str | None = None) -> Any:
    """The model of this configuration in a model table, or that of a group. Without a number, the best one."""
    with database.transaction(SNAPSHOT) as snapshot:
        return build(stored_model.read(snapshot, model_table, configuration, group))


def build(stored: ModelParts) -> Any:
    """The Keras model with its weights.  Adapters are merged into the weights of their layers; bottlenecks stay."""
    if bytes_of_weights(stored.architecture, stored.input_shapes) > 8 * stored.size + SLACK:  # before they take memory
        raise NoSuchModel(
            f"The table holds {stored.size:,} bytes of weights, which are far too few for the architecture."
        )
    model = built(stored.architecture, stored.input_shapes)
    document = checked(stored.architecture)
    merging = layers.install(_keras(), model, document)
    _require_size(stored, model)
    assign(model, stored.pieces())
    if not merging or adapters.has_bottleneck(document):
        return model
    for merge in merging:
        merge()
    plain = built(stored.architecture, stored.input_shapes)
    for variable, merged in zip(plain.weights, layers.weights(model)):
        variable.assign(merged.value)
    return plain


def outline(stored: ModelParts) -> Any:
    """The Keras model, whose variables have no values."""
    accepted = checked(stored.architecture)
    with without_values():
        model = built(accepted, stored.input_shapes)
    _require_size(stored, model)
    return model


def _require_size(stored: ModelParts, model: Any) -> None:
    needed = 4 * sum(_elements(variable) for variable in model.weights)
    if stored.size != needed:
        raise NoSuchModel(f"The table holds {stored.size:,} bytes of weights, the architecture needs {needed:,}.")


def bytes_of_weights(architecture: str | dict[str, Any], input_shapes: list[list[int]] | None) -> int:
    """The bytes that the weights of an architecture take in memory. No weight is allocated to find out."""
    accepted = checked(architecture)  # before Keras is even imported
    with without_values():
        model = built(accepted, input_shapes)
    return sum(_elements(variable) * ITEM_BYTES.get(str(variable.dtype), 8) for variable in model.weights)


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Variables that are made within have a shape and no value, and never get one.

    Keras keeps a list of variables that wait for their values, and gives them all at the next occasion, when any other
    model is built. Variables of a hostile file must not be in it then.
    """
    keras = _keras()
    from keras.src.backend.common import global_state  # has no public name

    name = "uninitialized_variables"
    before = global_state.get_global_attribute(name)
    global_state.set_global_attribute(name, [])
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        global_state.set_global_attribute(name, before)


def built(architecture: str | dict[str, Any], input_shapes: list[list[int]] | None) -> Any:
    """The Keras model of an architecture, without its adapters, with initial weights."""
    text, keras = json.dumps(adapters.without(checked(architecture))), _keras()
    try:
        model = keras.models.model_from_json(text)
    except Exception as error:  # Keras has no errors of its own: any layer may raise any
        why = str(error).strip().partition("\n")[0]
        raise ClientError(f"Keras cannot build the architecture: {type(error).__name__}: {why}") from error
    if not model.built:
        if not input_shapes:
            raise NoSuchModel("The architecture has no input shape, and there is no layout that has one.")
        shapes = [(None, *shape) for shape in input_shapes]
        model.build(shapes[0] if len(shapes) == 1 else shapes)
    for layer in list(model._flatten_layers()):
        # MultiHeadAttention makes layers when it is built, and does not tell them that it is frozen.
        for inner in () if layer.trainable else layer._flatten_layers(include_self=False):
            inner.trainable = False
    try:
        check_activations(model)
    except CerebroError as error:
        raise ClientError(f"The model's architecture is refused: {error.message}", error.hint) from error
    return model


def checked(architecture: str | dict[str, Any]) -> dict[str, Any]:
    """The architecture; ClientError if it has more than the allow-list allows."""
    try:
        return keras_json.architecture(architecture)
    except CerebroError as error:
        raise ClientError(f"The model's architecture is refused: {error.message}", error.hint) from error


def assign(model: Any, pieces: Iterable[bytes]) -> None:
    """Gives the model these weights: the arrays of ``get_weights()`` one after the other, as little-endian float32.

    No more than one array and one piece are in memory besides the model.
    """
    for variable, values in arrays(model, pieces):
        variable.assign(values)


def arrays(model: Any, pieces: Iterable[bytes]) -> Iterator[tuple[Any, Any]]:
    """Each variable of ``get_weights()``, then those of adapters, with its value, of the variable's type."""
    import ml_dtypes  # noqa: F401  (adds bfloat16 to NumPy)
    import numpy as np  # Keras brings both

    stream = _Stream(iter(pieces))
    for variable in layers.weights(model):
        values = np.empty(tuple(variable.shape), "<f4")
        stream.read_into(values.reshape(-1).view(np.uint8).data)
        yield variable, values.astype(str(variable.dtype), copy=False)


def names(variables: list[Any]) -> list[str]:
    """A name for each; those of equal paths get a number."""
    found: list[str] = []
    for variable in variables:
        name, number = variable.path, 1
        while name in found:
            number += 1
            name = f"{variable.path}#{number}"
        found.append(name)
    return found


def _elements(variable: Any) -> int:
    return math.prod(map(int, variable.shape))


class _Stream:
    """Fills buffers from pieces of any size."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces = pieces
        self.rest = memoryview(b"")

    def read_into(self, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            if not self.rest:
                self.rest = memoryview(next(self.pieces))
            taken = self.rest[: len(buffer) - done]
            buffer[done : done + len(taken)] = taken
            self.rest = self.rest[len(taken) :]
            done += len(taken)


def _keras() -> Any:
    if "KERAS_BACKEND" not in os.environ and not find_spec("tensorflow") and find_spec("jax"):
        os.environ["KERAS_BACKEND"] = "jax"  # Keras would only look for TensorFlow
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # no hints about the processor
    try:
        import keras
    except ImportError as error:
        raise MissingPackage(
            f"Keras cannot be imported: {error}.",
            "'keras>=3.13.2'",
            " and an engine, for example tensorflow-cpu. docker/install.sh installs both.",
        ) from error
    return keras
