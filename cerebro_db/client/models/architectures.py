"""Adds architectures to a database, with weights of any size that training starts from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import psycopg2

from cerebro_db.core.architecture.limits import MOST_BYTES
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.models import state
from cerebro_db.core.models.state import Tensor

from ..database import DatabaseClient
from ..errors import ClientError, MissingPackage
from . import archives, keras_models

if TYPE_CHECKING:
    import numpy as np

ORDERS = ("names", "order")
FLOATS = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "BF16": "bfloat16"}  # of weights in safetensors
TYPES = {**FLOATS, "I64": "<i8", "I32": "<i4", "U32": "<u4", "U8": "u1", "I8": "i1", "BOOL": "?"}
MOST_SHOWN = 10
FORMATS = (".keras", ".safetensors", ".json")
HINT = f"It is a Keras model, the text of model.to_json(), or a file: {', '.join(FORMATS)}."


@dataclass(frozen=True)
class GivenModel:
    """An architecture, and its weights one after the other."""

    architecture: str
    weights: Iterator[np.ndarray] | None


def add(
    database: DatabaseClient,
    name: str,
    model: Any,
    weights: str | Path | None = None,
    by: Literal["names", "order"] = "names",
    description: str | None = None,
) -> str:
    """Adds an architecture, and says what was added. The comment of ``Cerebro.add_architecture`` describes the rest."""
    if by not in ORDERS:
        raise ClientError(f"by cannot be {by!r}.", "It is 'names' or 'order'.")
    given = _read(model) if weights is None else _with_file(model, Path(weights), by)
    size = 0
    with database.transaction() as transaction:
        transaction.rows(
            "SELECT cerebro.add_architecture(%s, %s::json, NULL, %s)", (name, given.architecture, description)
        )
        for array in given.weights or ():
            for piece in _pieces(array):
                transaction.rows(
                    "INSERT INTO cerebro.added_weights (name, start, payload) VALUES (%s, %s, %s)",
                    (name, size, psycopg2.Binary(piece)),
                )
                size += len(piece)
    if given.weights is None:
        return f"{name} is an architecture without weights: training starts from random ones"
    return f"{name} is an architecture with {size // 4:,} weights to start from"


def _pieces(array: np.ndarray) -> Iterator[memoryview]:
    import numpy as np

    whole = np.ascontiguousarray(array, "<f4").reshape(-1).view(np.uint8).data
    return (whole[start : start + state.PIECE] for start in range(0, len(whole), state.PIECE))


# -- what the caller gives -------------------------------------------------------------------------------------


def _read(model: Any) -> GivenModel:
    path = _path(model)
    if path is None or path.suffix.lower() == ".json":
        document = _document(model if path is None else path)
        # The server checks it; it may have parameters.
        return GivenModel(json.dumps(document), None) if document is not None else _of_model(model)
    return _of_model(model_files().READERS[path.suffix.lower()](path))


def model_files() -> ModuleType:
    """The module that reads and writes files of models. The client alone has no NumPy, which it needs."""
    try:
        from . import model_files as module
    except ImportError as error:
        raise MissingPackage(
            f"Files of models need NumPy and Keras: {error}.", "keras tensorflow-cpu", "; they bring NumPy."
        ) from error
    return module


def _path(model: Any) -> Path | None:
    """The file that is given; None: something else is."""
    if not isinstance(model, (str, os.PathLike)) or (isinstance(model, str) and model.lstrip().startswith("{")):
        return None
    path = Path(model)
    if not path.is_file():
        raise ClientError(f"There is no file {path}.", HINT)
    if path.suffix.lower() not in FORMATS:
        raise ClientError(
            f"{path.name!r} has no ending that names a format.",
            f"The formats: {archives.ENDING} (a model table), {', '.join(FORMATS)}.",
        )
    return path


def _document(given: Any) -> dict[str, Any] | None:
    """The architecture as JSON; None if it is a model."""
    if isinstance(given, Path):
        if given.stat().st_size > MOST_BYTES:
            raise ClientError(f"{given} has {given.stat().st_size:,} bytes, too many for an architecture.", HINT)
        given = given.read_text("utf-8")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise ClientError(f"The architecture cannot be read as JSON: {error}.", HINT) from error
    return given if isinstance(given, dict) else None


def _of_model(model: Any) -> GivenModel:
    """A Keras model as it is: its layers, which of them are frozen, and its weights. Its compile parameters stay."""
    architecture, variables = _architecture(model), list(model.weights)
    again = _without_values(architecture)
    if [_shape(one) for one in again] != [_shape(one) for one in variables]:
        raise ClientError(
            "Keras makes another model of the model's JSON: its weights have other shapes or another order.",
            "Layers and models must have the weights that their configuration describes.",
        )
    return GivenModel(json.dumps(architecture), (_array(one) for one in variables))


def _architecture(model: Any) -> dict[str, Any]:
    if not callable(getattr(model, "to_json", None)) or not hasattr(model, "weights"):
        raise ClientError(f"A {type(model).__name__} is no model.", HINT)
    if not getattr(model, "built", True):
        raise ClientError(
            f"The model {model.name!r} has no weights yet, because the shape of its inputs is not known.",
            "Begin it with keras.Input(…), or call it once.",
        )
    try:
        text = model.to_json()
    except Exception as error:  # Keras has no errors of its own; a layer of a user may raise any
        raise ClientError(
            f"The model {model.name!r} cannot be written as JSON: {str(error).strip().partition(chr(10))[0]}",
            "Make it of Keras' own layers, Sequential or Functional.",
        ) from error
    return keras_models.checked(text)


def _array(variable: Any) -> np.ndarray:
    import numpy as np

    return np.asarray(variable.numpy())


def _without_values(architecture: dict[str, Any]) -> list[Any]:
    """The weights of an architecture, which take no memory."""
    with keras_models.without_values():
        return list(keras_models.built(architecture, None).weights)


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(map(int, variable.shape))


# -- weights from a file ---------------------------------------------------------------------------------------


def _with_file(model: Any, path: Path, by: str) -> GivenModel:
    """The weights of the file in the order of the model's. They go from the file to the database without a model."""
    if path.suffix.lower() != ".safetensors" or not path.is_file():
        raise ClientError(f"weights: {path} is no file of safetensors.", "Other files of weights: load them in Keras.")
    file = _path(model)
    if file is not None and file.suffix.lower() != ".json":
        raise ClientError(f"{file} has weights itself.", "With weights, the model is a Keras model or its JSON.")
    document = _document(file or model)
    architecture = _architecture(model) if document is None else keras_models.checked(document)
    variables = list(model.weights) if document is None else _without_values(architecture)
    of_model = f"{architecture['config'].get('name')}/"  # Keras puts it before the names in some models
    names = [name.removeprefix(of_model) for name in keras_models.names(variables)]
    tensors = [tensor._replace(name=tensor.name.removeprefix(of_model)) for tensor in _header(path)]
    chosen = _by_names(path, names, variables, tensors) if by == "names" else _by_order(path, variables, tensors)
    misfits = [
        f"{name} {_shape(one)}: {tensor.name} has {tensor.dtype} {tensor.shape}"
        for name, one, tensor in zip(names, variables, chosen)
        if tensor.shape != _shape(one) or tensor.dtype not in TYPES
    ]
    if misfits:
        raise _misfit(path, misfits, "A Dense layer of PyTorch has the transposed matrix: set_weights() in Keras then.")
    return GivenModel(json.dumps(architecture), _tensors(path, chosen))


def _header(path: Path) -> list[Tensor]:
    try:
        with open(path, "rb") as source:
            return state.read_header(source, path.stat().st_size).tensors
    except (CerebroError, OSError) as error:
        raise ClientError(f"{path} cannot be read as safetensors: {error}") from error


def tensors_of(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """The name and the values of each tensor of a file of safetensors."""
    tensors = [tensor for tensor in _header(path) if tensor.dtype in TYPES]
    for tensor, array in zip(tensors, _tensors(path, tensors)):
        yield tensor.name, array.reshape(tensor.shape)


def _by_names(path: Path, names: Sequence[str], variables: Sequence[Any], tensors: Sequence[Tensor]) -> list[Tensor]:
    known = {tensor.name: tensor for tensor in tensors}
    missing = [f"{name} {_shape(one)} is not in it" for name, one in zip(names, variables) if name not in known]
    if missing:
        unused = [tensor.name for tensor in tensors if tensor.name not in names]
        raise _misfit(
            path, missing,
            (f"It has {_listed(unused)}, which no weight is called. " if unused else "")
            + "The names of weights are [w.path for w in model.weights]; by='order' takes them one after the other.",
        )  # fmt: skip
    return [known[name] for name in names]


def _by_order(path: Path, variables: Sequence[Any], tensors: Sequence[Tensor]) -> list[Tensor]:
    if len(tensors) != len(variables):
        raise _misfit(
            path, [f"it has {len(tensors)} tensors, and the model {len(variables)} weights"],
            "The tensors are in the order of model.get_weights().",
        )  # fmt: skip
    return list(tensors)


def _misfit(path: Path, what: Sequence[str], hint: str) -> ClientError:
    return ClientError(f"{path.name} does not fit the model: {_listed(what, '; ')}.", hint)


def _listed(what: Sequence[str], between: str = ", ") -> str:
    more = f"{between}and {len(what) - MOST_SHOWN} more" if len(what) > MOST_SHOWN else ""
    return between.join(what[:MOST_SHOWN]) + more


def _tensors(path: Path, tensors: Sequence[Tensor]) -> Iterator[np.ndarray]:
    import ml_dtypes  # noqa: F401  Keras brings it; NumPy then knows bfloat16
    import numpy as np

    with open(path, "rb") as file:
        for tensor in tensors:
            kind = np.dtype(TYPES[tensor.dtype])
            file.seek(tensor.start)
            yield np.fromfile(file, kind, (tensor.end - tensor.start) // kind.itemsize)
