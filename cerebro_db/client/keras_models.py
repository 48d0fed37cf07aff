"""Reads a trained model from a model table: architecture and float32 weights become a Keras model."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cerebro_db.core import model_columns
from cerebro_db.core.architecture import reading
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.names import Name

from .database import DatabaseClient
from .errors import ClientError, MissingPackage, NoSuchModel

if TYPE_CHECKING:
    import numpy as np

COLUMNS = (
    "SELECT attname::text FROM pg_catalog.pg_attribute"
    " WHERE attrelid = %s::pg_catalog.regclass AND attnum > 0 AND NOT attisdropped"
)


def load(database: DatabaseClient, model_table: str, configuration: int) -> Any:
    """The model of this configuration in a model table."""
    try:
        table = Name.parse(model_table, "model table")
        weights_table, summary_table = table.suffixed("_weights"), table.suffixed("_summary")
    except CerebroError as error:
        raise NoSuchModel(error.message, error.hint) from error
    if database.rows("SELECT to_regclass(%s) IS NULL", (table.quoted,))[0][0]:
        raise NoSuchModel(
            f"There is no table {table}.",
            "Give its schema too, or a run's number. SELECT cerebro.materialize(run, table) makes a run's table again.",
        )
    present = {name for (name,) in database.rows(COLUMNS, (table.quoted,))}
    named = model_columns.of(present) or model_columns.PLAIN
    number = named.configuration
    found = database.rows(
        f"SELECT {named.architecture}::text, {named.weights} FROM {_escaped(table)} WHERE {number} = %s",
        (configuration,),
    )
    if not found:
        raise NoSuchModel(
            f"The table {table} has no model of configuration {configuration}.",
            f"SELECT {number}, status, reason FROM {table.suffixed('_info')}; a configuration may have failed.",
        )
    architecture, weights = found[0]
    pieces = [weights]
    if weights is None:  # too large for one value: the weights are in chunks in a table of their own
        chunks = f"SELECT payload FROM {_escaped(weights_table)} WHERE {number} = %s ORDER BY start"
        pieces = [payload for (payload,) in database.rows(chunks, (configuration,))]
    layout = database.rows(f"SELECT layout FROM {summary_table.quoted}")
    shapes = [entry["shape"] for entry in layout[0][0]["inputs"]] if layout and layout[0][0] else None
    return build(architecture, pieces, shapes)


def build(architecture: str, weights: Sequence[memoryview | bytes], input_shapes: list[list[int]] | None) -> Any:
    """The Keras model. ``weights`` are the pieces of all weights, in the order of ``get_weights()``, as little-endian
    float32."""
    try:
        # The server has checked the architecture, but the table may have been changed since.
        checked = reading.architecture(architecture)
    except CerebroError as error:
        raise ClientError(f"The model's architecture is refused: {error.message}", error.hint) from error
    keras = _keras()
    model = keras.models.model_from_json(json.dumps(checked))
    if not model.built:
        if not input_shapes:
            raise NoSuchModel("The architecture has no input shape, and the summary table has none either.")
        shapes = [(None, *shape) for shape in input_shapes]
        model.build(shapes[0] if len(shapes) == 1 else shapes)
    model.set_weights(_split(b"".join(weights), model.get_weights()))
    return model


def _split(payload: bytes, like: list[np.ndarray]) -> list[np.ndarray]:
    import numpy as np  # Keras brings it; the client has no other use for it

    needed = 4 * sum(array.size for array in like)
    if len(payload) != needed:
        raise NoSuchModel(f"The table holds {len(payload):,} bytes of weights, the architecture needs {needed:,}.")
    flat = np.frombuffer(payload, dtype="<f4")
    ends = np.cumsum([array.size for array in like])[:-1]
    pieces = np.split(flat, ends) if like else []
    return [piece.reshape(array.shape).astype(array.dtype) for piece, array in zip(pieces, like)]


def _escaped(table: Name) -> str:
    """The name in a statement with parameters, in which psycopg2 wants % doubled."""
    return table.quoted.replace("%", "%%")


def _keras() -> Any:
    if "KERAS_BACKEND" not in os.environ and not find_spec("tensorflow") and find_spec("jax"):
        os.environ["KERAS_BACKEND"] = "jax"  # Keras would only look for TensorFlow
    try:
        import keras
    except ImportError as error:
        raise MissingPackage(
            f"Keras cannot be imported: {error}.",
            "pip install 'keras>=3.13.2' and an engine, for example tensorflow-cpu. docker/install.sh installs both.",
        ) from error
    return keras
