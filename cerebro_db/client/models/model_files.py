"""Exports trained models as files of Keras and safetensors, and reads such files.

Files are not trusted: their architecture passes the allow-list, its weights are read with bounds, and Keras'
``load_model`` is never called.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cerebro_db import scorer
from cerebro_db.core import entry_points
from cerebro_db.core.architecture.adapters import document as adapters
from cerebro_db.core.architecture.limits import MOST_BYTES
from cerebro_db.core.entry_points import Extensible
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.models import state

from ..database import SNAPSHOT, DatabaseClient, Transaction
from ..errors import ClientError, MissingPackage
from ..errors import found as found_in
from . import archives, hdf5, keras_models, large_files, preparations, samples, stored_model
from .large_files import DTYPES
from .stored_model import StoredModel

KERAS_FILES = {"metadata.json": 1 << 20, "config.json": MOST_BYTES, "model.weights.h5": 1 << 40}  # name -> most bytes
PARTS = ("keras.initializers", "keras.regularizers", "keras.constraints")  # modules of objects within layers
FOLDER = "/"  # ends the name of a SavedModel, which is a folder
MOST_ONNX = 2_000_000_000  # bytes of weights: protobuf writes at most 2 GB
UNREADABLE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, KeyError, TypeError, AttributeError,
              RuntimeError)  # fmt: skip
# The largest difference that rounding explains. Engines add 32-bit numbers in different orders, and converters replace
# functions by others. docs/production.md#export has these figures, too.
TOLERANCE = 1e-5
TOLERANCES = {".onnx": 1e-4}  # of formats with another one
IN_16_BITS = 0.05  # of models with layers that compute in 16 bits: bfloat16 has 8 bits
COMPARED = 64 << 20  # bytes of weights; of larger files the bytes are compared, not the predictions
T = TypeVar("T")
MOST_EXPANDED = 4  # times: Keras does not compress, so a file that expands by more is none of its


@dataclass(frozen=True)
class Exported:
    """A file that was written. ``difference`` is the largest one between its predictions and the expected ones."""

    path: Path
    bytes: int
    sha256: str
    difference: float
    compared: str  # on which rows, and with what
    beside: tuple[Path, ...]  # other files
    left_out: tuple[str, ...]  # what of the model the file does not have


@dataclass(frozen=True)
class ForExport:
    """What the writers need."""

    stored: StoredModel
    model: Any  # of Keras
    document: dict[str, Any]  # the preparation
    sample: samples.SampleRows


Writer = Callable[[ForExport, Path], samples.Compute]  # writes a file, and returns how the file predicts


def export(
    database: DatabaseClient,
    model_table: str,
    file: str,
    configuration: int | None,
    sample: str | None,
    *,
    group: str | None = None,
    with_scorer: bool = False,
    replace: bool = False,
    tolerance: float | None = None,
) -> Exported:
    """Writes a model into a file, whose ending says the format, and compares its predictions on sample rows.

    If they differ by more than the tolerance, nothing is left.
    """
    path = Path(file)
    ending = FOLDER if file.endswith(FOLDER) else path.suffix.lower()
    writer = found_in(WRITERS, ending, f"{path.name!r} has no ending that names a format.", "formats")
    if not path.absolute().parent.is_dir():
        raise ClientError(f"There is no folder {path.absolute().parent}.", "Make it first.")
    if path.is_dir() and (not file.endswith(FOLDER) or any(path.iterdir())):
        raise ClientError(f"{path} is a folder that exists already.", "Choose another name, or remove it.")
    if path.is_file() and ending == FOLDER:
        raise ClientError(f"{path} is a file, and a SavedModel is a folder.", "Remove it, or choose another name.")
    if path.is_file() and not replace:
        raise _exists(path)
    if with_scorer and ending == archives.ENDING:
        raise ClientError("The scorer does not read archives.", "Export to .safetensors, or leave out --scorer.")
    with database.transaction(SNAPSHOT) as snapshot:
        stored = stored_model.read(snapshot, model_table, configuration, group)
        adapted = _has_adapters(stored, ending)
        large = ending in large_files.WRITERS and stored.size > COMPARED and sample is None and not with_scorer
        large = large and not adapted  # Keras adds them to the weights of their layers
        found = None if large else _prepared(snapshot, stored, sample)
        document = preparations.document(stored) if found is None else found.document
        left_out = _left_out(stored)
        beside = _beside(path, ending, document, with_scorer)
        for one, content in beside.items():
            if one.exists() and not replace and one.read_bytes() != content:
                raise _exists(one)
        try:
            with tempfile.TemporaryDirectory(prefix=".export-", dir=path.absolute().parent) as folder:
                made = Path(folder) / f"model{ending if ending != FOLDER else ''}"  # Keras knows small letters only
                if found is None:
                    difference, told = 0.0, _large(stored, document, made)
                else:
                    difference, told = _compared(writer, found, made, tolerance), found.sample.told
                    if with_scorer:
                        _require_scored(found, made)
                size, sha256 = sum(one.stat().st_size for one in _files(made)), hashed(made)
                for place, (one, content) in enumerate(beside.items()):
                    unfinished = Path(folder) / f"beside-{place}"
                    unfinished.write_bytes(content)
                    os.replace(unfinished, one)
                os.replace(made, path)
        except OSError as error:
            raise ClientError(f"{path} cannot be written: {error.strerror or error}.") from error
    return Exported(
        path=path,
        bytes=size,
        sha256=sha256,
        difference=difference,
        compared=told,
        beside=tuple(beside),
        left_out=left_out,
    )


def _compared(writer: Writer, given: ForExport, path: Path, tolerance: float | None) -> float:
    """Writes the file; returns the largest difference between its predictions and the expected ones."""
    compute = _written(lambda: writer(given, path), path)
    difference = samples.difference(given.document, given.sample, compute)
    _require_small(difference, _tolerance(given.model, path.suffix, tolerance), given.sample)
    return difference


def _large(stored: StoredModel, document: dict[str, Any], path: Path) -> str:
    """Writes the file of a large model; returns how it was compared."""
    _written(lambda: large_files.WRITERS[path.suffix](stored, document, path), path)
    return f"the weights have {stored.size >> 20:,} MB, so their bytes were compared, and no predictions"


def _tolerance(model: Any, ending: str, wanted: float | None) -> float:
    if wanted is not None:
        return wanted
    dtypes = {str(layer.compute_dtype) for layer in _layers(model)}
    return IN_16_BITS if dtypes & {"float16", "bfloat16"} else TOLERANCES.get(ending, TOLERANCE)


def _layers(model: Any) -> Iterator[Any]:
    for layer in model.layers:
        yield layer
        if hasattr(layer, "layers"):
            yield from _layers(layer)


def _require_small(difference: float, tolerance: float, sample: samples.SampleRows) -> None:
    if difference <= tolerance:  # NaN is not
        return
    what = "predicts NaN" if math.isnan(difference) else f"predicts other numbers: they differ by {difference:.2g}"
    raise ClientError(
        f"The file {what}, and at most {tolerance:.2g} is allowed ({sample.told}). Nothing was written.",
        "Other rows: --sample QUERY. If rounding explains the difference: --tolerance.",
    )


def _written(write: Callable[[], T], path: Path) -> T:
    try:
        return write()
    except (ClientError, OSError):
        raise
    except Exception as error:  # Keras and the converters have no errors of their own
        why = str(error).strip().partition("\n")[0]
        raise ClientError(f"The model cannot be written as {path.suffix or 'a SavedModel'}: {why}") from error


def _require_scored(given: ForExport, path: Path) -> None:
    """An error if the scorer cannot prepare the rows, or compute the file's predictions where it reads the file."""
    try:
        scorer.RowPreparation(given.document)
        if path.suffix == ".safetensors":
            scorer.Scorer(path).model(given.sample.inputs)
    except scorer.CannotScore as error:
        raise ClientError(
            f"cerebro_scorer.py cannot score this model: {error}. Nothing was written.",
            "Leave out --scorer. Of a .keras file, the scorer prepares the rows for Keras.",
        ) from error


def _exists(path: Path) -> ClientError:
    return ClientError(f"The file {path} exists.", "--replace (in Python replace=True) writes over it.")


def _beside(path: Path, ending: str, document: dict[str, Any], with_scorer: bool) -> dict[Path, bytes]:
    """The files beside the model, with their contents."""
    found: dict[Path, bytes] = {}
    if ending not in WITH_PREPARATION:
        name = path.name if ending == FOLDER else path.stem
        found[path.with_name(f"{name}.preparation.json")] = json.dumps(document, ensure_ascii=False).encode()
    if with_scorer:
        found[path.with_name("cerebro_scorer.py")] = Path(scorer.__file__).read_bytes()
    return found


def _prepared(snapshot: Transaction, stored: StoredModel, sample: str | None) -> ForExport:
    document = preparations.document(stored)
    model = keras_models.build(stored)
    compute = keras_compute(model, document)
    return ForExport(stored, model, document, samples.taken(snapshot, stored, document, compute, sample))


def _has_adapters(stored: StoredModel, ending: str) -> bool:
    """Whether a model has adapters; an error if a file of this format cannot have them."""
    architecture = keras_models.checked(stored.architecture)
    if ending != archives.ENDING and adapters.has_bottleneck(architecture):
        raise ClientError(
            f"A {ending} file cannot have the model: the networks behind its layers (bottleneck) are no layers.",
            f"Export it to {archives.ENDING}, for another database.",
        )
    return adapters.KEY in architecture


def _left_out(stored: StoredModel) -> tuple[str, ...]:
    """What cannot travel: models of groups, because a file has one model, and what ``_functions`` says."""
    found: tuple[str, ...] = ()
    if stored.group_by is not None:
        groups = stored.table.suffixed("_groups")
        found = (
            f"The models of the groups of {stored.group_by} are left out: they are in {groups}. The file has the model"
            f" on all rows of configuration {stored.configuration}, and predicts other numbers than cerebro.predict."
            " --group VALUE writes the model of a group.",
        )
    return (*found, *_functions(stored))


def _functions(stored: StoredModel) -> tuple[str, ...]:
    """Custom functions are Python of this database, and decide nothing about predictions."""
    functions = stored_model.of_info(stored.database, stored.table, stored.named, stored.configuration, "functions")
    if not functions:
        return ()
    return (
        f"The loss or metrics are custom functions of this database and stay in it: {', '.join(functions)}."
        " Predictions do not need them; to train on, add them elsewhere first.",
    )


def _files(path: Path) -> list[Path]:
    """The file, or the files in a folder."""
    return sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]


def hashed(path: Path) -> str:
    """The SHA-256 of a file. Of a folder, that of the lines that sha256sum writes about its files, in the order of
    their names."""
    digest = hashlib.sha256()
    if path.is_dir():
        for one in _files(path):
            digest.update(f"{hashed(one)}  {one.relative_to(path).as_posix()}\n".encode())
        return digest.hexdigest()
    with open(path, "rb") as file:
        while piece := file.read(16 << 20):
            digest.update(piece)
    return digest.hexdigest()


# -- Keras -----------------------------------------------------------------------------------------------------


def keras_compute(model: Any, document: dict[str, Any]) -> samples.Compute:
    names = [name for name, _, _ in _inputs_in_order(document)]

    def compute(inputs: samples.Inputs) -> list[Any]:
        import numpy as np

        arrays = [inputs[name] for name in names]
        found = model.predict(arrays[0] if len(arrays) == 1 else arrays, samples.BATCH, verbose=0)
        return [np.asarray(one) for one in (found if isinstance(found, (list, tuple)) else [found])]

    return compute


def _inputs_in_order(document: dict[str, Any]) -> list[tuple[str, list[int], str]]:
    """Name, shape and type of the model's inputs, in the order of the model."""
    listed = sorted(document["inputs"], key=lambda one: one["place"])
    return [(one["input"], one["input_shape"], one["input_dtype"]) for one in listed]


def write_keras(given: ForExport, path: Path) -> samples.Compute:
    given.model.save(path)
    return keras_compute(read_keras(path), given.document)


def read_keras(path: Path) -> Any:
    """The model of a ``.keras`` file, by its architecture and its weights alone."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = _entries(archive, path)
            config = archive.read(entries["config.json"])
            with tempfile.TemporaryDirectory() as folder:
                weights = Path(folder) / "model.weights.h5"
                architecture = _without_sharing(json.loads(config))
                with _refusals(path):
                    _need(architecture, entries["model.weights.h5"].file_size)
                with archive.open(entries["model.weights.h5"]) as source, open(weights, "wb") as target:
                    shutil.copyfileobj(source, target, 16 << 20)
                with _refusals(path):
                    hdf5.check(weights, weights.stat().st_size)  # it may have an optimizer's variables, too
                    model = keras_models.built(architecture, None)
                model.load_weights(weights)
                return model
    except UNREADABLE as error:
        raise ClientError(f"{path} cannot be read as a file of Keras: {error}") from error


def _need(architecture: str | dict[str, Any], there: int) -> int:
    """The bytes of the weights of an architecture; ClientError if the file has fewer."""
    needed = keras_models.bytes_of_weights(architecture, None)
    if needed > there:
        raise ClientError(f"the architecture has {needed:,} bytes of weights, and the file has {there:,}")
    return needed


def _without_sharing(value: Any) -> Any:
    """The configuration without the numbers by which ``save`` tells that two layers have one initializer or policy."""
    if isinstance(value, dict):
        is_part = value.get("class_name") == "DTypePolicy" or str(value.get("module")).startswith(PARTS)
        kept = {name: one for name, one in value.items() if not is_part or name != "shared_object_id"}
        return {name: _without_sharing(one) for name, one in kept.items()}
    return [_without_sharing(one) for one in value] if isinstance(value, list) else value


def _entries(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """The files within, if these are all that a model has and each is as small as it should be."""
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    if sorted(names) != sorted(KERAS_FILES):
        others = ", ".join(repr(name[:80]) for name in names[:10] if name not in KERAS_FILES)
        raise ClientError(
            f"{path} is refused: it must have {', '.join(KERAS_FILES)} and nothing else"
            + (f", and it has {others}." if others else f", and it has {len(names)} files."),
            "Save the model with model.save(), without layers that keep files of their own.",
        )
    for entry in entries:
        if entry.file_size > KERAS_FILES[entry.filename]:
            raise ClientError(f"{path} is refused: {entry.filename} has {entry.file_size:,} bytes.")
        # The file says itself how many bytes an entry takes in it.
        if entry.file_size > MOST_EXPANDED * max(min(entry.compress_size, path.stat().st_size), 4096):
            raise ClientError(
                f"{path} is refused: {entry.filename} expands from {entry.compress_size:,} bytes to"
                f" {entry.file_size:,}.",
                "Keras stores files without compression.",
            )
    return {entry.filename: entry for entry in entries}


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except MissingPackage:
        raise
    except ClientError as error:
        raise ClientError(f"{path} is refused: {error.message}", error.hint) from error


# -- safetensors -----------------------------------------------------------------------------------------------


def write_safetensors(given: ForExport, path: Path) -> samples.Compute:
    import numpy as np

    with open(path, "wb") as file:
        file.write(large_files.safetensors_header(given.stored, given.document, given.model))
        for variable in given.model.weights:
            array = np.ascontiguousarray(variable.numpy())
            array.tofile(file)

    def compute(inputs: samples.Inputs) -> list[Any]:
        try:
            return scorer.Scorer(path).model(inputs)
        except scorer.CannotScore:  # it has layers or activations that the scorer does not compute
            return keras_compute(read_safetensors(path), given.document)(inputs)

    return compute


def read_safetensors(path: Path) -> Any:
    """The model of a safetensors file with an architecture in its metadata."""
    size = path.stat().st_size
    try:
        with open(path, "rb") as file:
            header = state.read_header(file, size)
    except (CerebroError, OSError) as error:
        raise ClientError(f"{path} cannot be read as safetensors: {error}") from error
    if "architecture" not in header.metadata:
        raise ClientError(
            f"{path} has no architecture in its metadata.",
            "cerebro export writes one. In another file, the key architecture can have the text of model.to_json().",
        )
    with _refusals(path):
        _need(header.metadata["architecture"], size)
        model = keras_models.built(header.metadata["architecture"], None)
    wanted = [(DTYPES[str(one.dtype)], tuple(map(int, one.shape))) for one in model.weights]
    found = [(tensor.dtype, tensor.shape) for tensor in header.tensors]
    if found != wanted:
        place = next((i for i, (one, other) in enumerate(zip(found, wanted)) if one != other), None)
        what = (
            f"{len(found)} tensors where the architecture has {len(wanted)}"
            if place is None
            else f"the tensor {header.tensors[place].name!r} is {found[place]} and should be {wanted[place]}"
        )
        raise ClientError(
            f"{path} does not fit its architecture: {what}.", "The tensors are in the order of get_weights()."
        )
    import numpy as np

    with open(path, "rb") as file:
        file.seek(header.data_start)
        for variable in model.weights:
            count = int(np.prod(variable.shape, dtype=np.int64))
            variable.assign(np.fromfile(file, np.dtype(str(variable.dtype)), count).reshape(tuple(variable.shape)))
    return model


# -- SavedModel and ONNX, by TensorFlow ------------------------------------------------------------------------


def write_saved_model(given: ForExport, path: Path) -> samples.Compute:
    _compute_with_tensorflow()
    keras_compute(given.model, given.document)(given.sample.inputs)  # Keras exports no model that was never called
    given.model.export(path, format="tf_saved_model", verbose=False)
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    names = [name for name, _, _ in _inputs_in_order(given.document)]

    def compute(inputs: samples.Inputs) -> list[Any]:
        arrays = [tf.constant(inputs[name]) for name in names]
        found = loaded.serve(arrays[0] if len(arrays) == 1 else arrays)
        return [one.numpy() for one in (found if isinstance(found, (list, tuple)) else [found])]

    return compute


def write_onnx(given: ForExport, path: Path) -> samples.Compute:
    _compute_with_tensorflow()
    if given.stored.size > MOST_ONNX:
        raise ClientError(
            f"The model has {given.stored.size:,} bytes of weights, and an ONNX file has 2 GB at most.",
            "Export a SavedModel (a name that ends in /), .keras or .safetensors.",
        )
    onnx, runtime, _ = (_package(name) for name in ("onnx", "onnxruntime", "tf2onnx"))
    keras_compute(given.model, given.document)(given.sample.inputs)
    given.model.export(path, format="onnx", verbose=False)
    nodes = onnx.load(str(path)).graph.node
    if unknown := sorted({f"{node.op_type} (in {node.name})" for node in nodes if not _is_known(onnx, node)}):
        raise ClientError(
            f"The model cannot be converted to ONNX, which has no {', '.join(unknown[:10])}.",
            "Export a SavedModel (a name that ends in /), .keras or .safetensors.",
        )
    session = runtime.InferenceSession(str(path))
    names = [name for name, _, _ in _inputs_in_order(given.document)]
    given_to = [one.name for one in session.get_inputs()]

    def compute(inputs: samples.Inputs) -> list[Any]:
        return session.run(None, dict(zip(given_to, (inputs[name] for name in names))))

    return compute


def _is_known(onnx: Any, node: Any) -> bool:
    return onnx.defs.has(node.op_type, node.domain)


def _compute_with_tensorflow() -> None:
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ClientError(
            f"Keras computes with {keras.backend.backend()}, and TensorFlow writes this format.",
            "Set KERAS_BACKEND=tensorflow, whichever engine has trained the model; TensorFlow must be installed.",
        )


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackage(f"{name} cannot be imported: {error}.", "tf2onnx onnx onnxruntime") from error


# -- archives --------------------------------------------------------------------------------------------------


def write_archive(given: ForExport, path: Path) -> samples.Compute:
    archives.write(given.stored, path)
    return keras_compute(keras_models.build(archives.read(path)), given.document)


WRITERS: Extensible[Writer] = Extensible(entry_points.EXPORTERS, {
    ".keras": write_keras, ".safetensors": write_safetensors, archives.ENDING: write_archive,
    ".onnx": write_onnx, FOLDER: write_saved_model,
}, lambda point: entry_points.loaded(point, callable))  # fmt: skip
WITH_PREPARATION = (".safetensors", archives.ENDING)


# -- bring in --------------------------------------------------------------------------------------------------

READERS: dict[str, Callable[[Path], Any]] = {".keras": read_keras, ".safetensors": read_safetensors}
