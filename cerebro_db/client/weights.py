"""A trained model out of MADlib-shaped tables: architecture JSON and float32 weights become a Keras model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from cerebro_db.core import models
from cerebro_db.core.errors import CerebroError

from .errors import ClientError, MissingPackage, NoSuchModel


def keras_model(architecture: str, weights: Sequence[memoryview | bytes], input_shapes: list[list[int]] | None) -> Any:
    """``weights`` are the pieces of all weights, in ``get_weights()`` order, as little-endian float32."""
    try:
        # The server checked it too, but the table may have been written to since.
        checked = models.architecture(architecture)
    except CerebroError as error:
        raise ClientError(f"The model's architecture is refused: {error.message}", error.hint) from error
    keras = _keras()
    model = keras.models.model_from_json(json.dumps(checked))
    if not model.built:
        if not input_shapes:
            raise NoSuchModel("The architecture does not say its input shape, and there is no summary table that does.")
        shapes = [(None, *shape) for shape in input_shapes]
        model.build(shapes[0] if len(shapes) == 1 else shapes)
    model.set_weights(_split(b"".join(weights), model.get_weights()))
    return model


def _split(payload: bytes, like: list[np.ndarray]) -> list[np.ndarray]:
    needed = 4 * sum(array.size for array in like)
    if len(payload) != needed:
        raise NoSuchModel(f"The table holds {len(payload):,} bytes of weights, the architecture needs {needed:,}.")
    flat = np.frombuffer(payload, dtype="<f4")
    ends = np.cumsum([array.size for array in like])[:-1]
    pieces = np.split(flat, ends) if like else []
    return [piece.reshape(array.shape).astype(array.dtype) for piece, array in zip(pieces, like)]


def _keras() -> Any:
    try:
        import keras
    except ImportError as error:
        raise MissingPackage(
            f"Keras cannot be imported: {error}.",
            "pip install 'keras>=3.13.2' and one of its engines, say tensorflow-cpu; docker/install.sh has done it.",
        ) from error
    return keras
