"""Writes files of models that are too large to be in this client's memory: one weight after the other.

What was written is read again and compared, byte by byte: to predict with a file, the model would have to fit into
memory twice.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cerebro_db import scorer
from cerebro_db.core.architecture.adapters import document as adapters
from cerebro_db.core.models import state

from ..errors import ClientError
from . import archives, keras_models
from .stored_model import StoredModel

DTYPES = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int32": "I32", "int64": "I64",
          "uint8": "U8", "int8": "I8", "bool": "BOOL"}  # fmt: skip
WEIGHTS = "model.weights.h5"
PIECE = 16 << 20

Document = dict[str, Any]  # the preparation


def write_archive(stored: StoredModel, _document: Document, path: Path) -> None:
    archives.write(stored, path)
    for _ in archives.read(path).pieces():  # an error if the hash is another one
        pass


def write_safetensors(stored: StoredModel, document: Document, path: Path) -> None:
    model, written = keras_models.outline(stored), hashlib.sha256()
    with open(path, "wb") as file:
        start = file.write(safetensors_header(stored, document, model))
        for _, values in keras_models.arrays(model, stored.pieces()):
            content = _bytes_of(values)
            written.update(content)
            file.write(content)
    found = hashlib.sha256()
    with open(path, "rb") as file:
        file.seek(start)
        while piece := file.read(PIECE):
            found.update(piece)
    _require_equal(found.digest(), written.digest())


def safetensors_header(stored: StoredModel, document: Document, model: Any) -> bytes:
    """All weights in the order of ``get_weights()``; architecture and preparation are in the metadata."""
    variables = list(model.weights)
    names = keras_models.names(variables)
    by_variable = {id(variable): name for variable, name in zip(variables, names)}
    metadata = {
        "format": "cerebro model 1",
        "architecture": json.dumps(adapters.without(keras_models.checked(stored.architecture))),
        "layers": json.dumps(_names_by_layer(model, by_variable)),
        "preparation": json.dumps(document, ensure_ascii=False),
        state.WEIGHTS: str(len(variables)),
    }
    tensors = [
        (name, DTYPES[str(variable.dtype)], tuple(map(int, variable.shape))) for name, variable in zip(names, variables)
    ]
    return state.header_bytes(tensors, metadata)


def _names_by_layer(model: Any, names: dict[int, str]) -> dict[str, Any]:
    """The names of each layer's weights; of a layer that is a model, the same of its layers."""
    return {
        layer.name: _names_by_layer(layer, names)
        if type(layer).__name__ in scorer.MODELS
        else [names[id(one)] for one in layer.weights]
        for layer in model.layers
    }


def write_keras(stored: StoredModel, _document: Document, path: Path) -> None:
    """As ``model.save`` writes it, but for the numbers of random generators, which are 0: predictions need none."""
    from keras.src.saving import saving_lib  # has no public name

    model, weights = keras_models.outline(stored), path.with_name(WEIGHTS)
    config, metadata = saving_lib._serialize_model_as_json(model)
    places = _empty_file(model, weights)
    written = hashlib.sha256()
    import h5py

    with h5py.File(weights, "r+") as file:
        for variable, values in keras_models.arrays(model, stored.pieces()):
            file[places[id(variable)]][...] = values
            written.update(_bytes_of(values))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", metadata)
        archive.writestr("config.json", config)
        archive.write(weights, WEIGHTS)
    weights.unlink()
    found = hashlib.sha256()
    with zipfile.ZipFile(path) as archive, archive.open(WEIGHTS) as inner, h5py.File(inner, "r") as file:
        for variable in model.weights:
            found.update(_bytes_of(file[places[id(variable)]][...]))
    _require_equal(found.digest(), written.digest())


def _empty_file(model: Any, path: Path) -> dict[int, str]:
    """Make the file of the weights without their values; return the place of each variable, by its identity."""
    import numpy as np
    from keras.src.saving import saving_lib  # has no public name

    weights = {id(variable): variable for variable in model.weights}
    places: dict[int, str] = {}

    class Places(saving_lib.H5IOStore):  # type: ignore[misc]
        def __setitem__(self, key: str, value: Any) -> None:
            super().__setitem__(key, np.zeros((), np.uint8))  # makes the group
            del self[key]
            group = self._h5_entry_group
            dtype = str(value.dtype)
            one = group.create_dataset(key, shape=tuple(value.shape), dtype=np.dtype(dtype))
            if dtype == "bfloat16":
                one.attrs["dtype"] = dtype
            places[id(value)] = one.name

    store = Places(path, mode="w")
    try:
        saving_lib._save_state(model, store, None, inner_path="", visited_saveables=set())
    finally:
        store.close()
    if weights.keys() - places.keys():
        raise ClientError(
            "The model has layers that keep their weights in a way of their own, and it is too large to be written as a"
            " whole.",
            "--sample QUERY writes it as a whole, with several times its size in memory.",
        )
    return places


def _bytes_of(values: Any) -> memoryview:
    import numpy as np

    found: memoryview = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
    return found


def _require_equal(found: bytes, written: bytes) -> None:
    if found != written:
        raise ClientError("The file has other bytes than were written into it.", "Is the disk in order?")


WRITERS: dict[str, Callable[[StoredModel, Document, Path], None]] = {
    archives.ENDING: write_archive, ".safetensors": write_safetensors, ".keras": write_keras,
}  # fmt: skip
