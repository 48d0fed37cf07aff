"""Writes down what the columns of a model's rows become: the document that ``cerebro_db.scorer`` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cerebro_db.core import codec
from cerebro_db.core.architecture import keras_json
from cerebro_db.core.documents import decoded
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.models import calibration
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.packing.preparation import OneHot
from cerebro_db.core.sql import quoted

from ..database import RunsStatements
from ..errors import ClientError, NoSuchModel
from . import keras_models, stored_model
from .stored_model import StoredModel

FORMAT = "cerebro preparation 1"
LONGEST_CALIBRATION = 10_000_000  # characters, as in the server
# The server's own functions tell how words are found, so its locale need not be known elsewhere.
SEPARATORS = (
    "SELECT min(i), max(i) FROM (SELECT i, i - row_number() OVER (ORDER BY i) AS island"
    " FROM generate_series(1, 1114111) i WHERE i NOT BETWEEN 55296 AND 57343"
    " AND chr(i) ~ '[[:space:][:punct:]]') s GROUP BY island ORDER BY 1"
)
LOWER = (
    "SELECT chr(i), lower(chr(i)) FROM generate_series(1, 1114111) i"
    " WHERE i NOT BETWEEN 55296 AND 57343 AND lower(chr(i)) <> chr(i)"
)


def layout_of(stored: StoredModel) -> Layout:
    if stored.layout is None:
        raise NoSuchModel(
            f"The table {stored.table.suffixed('_summary')} has no layout.", "Keep it with the model table."
        )
    try:
        return Layout.from_json(stored.layout, f"the layout of '{stored.table}'")
    except CerebroError as error:
        raise ClientError(error.message, error.hint) from error


def document(stored: StoredModel) -> dict[str, Any]:
    """What ``cerebro_db.scorer.RowPreparation`` reads."""
    layout, database = layout_of(stored), stored.database
    if layout.steps:
        raise ClientError(
            "the model predicts each step of a window, which an exported model cannot do.",
            "cerebro.predict_into() predicts in the database.",
        )
    if any(one.quantiles for one in layout.outputs) or any(one.later for one in layout.inputs):
        raise ClientError(
            "the model predicts quantiles, or reads columns of later rows, which an exported model does not.",
            "cerebro.predict_into() predicts in the database.",
        )
    if layout.windows is not None and layout.windows.mean:
        raise ClientError(
            "the model reads means of rows, which an exported model does not make.",
            "cerebro.predict_into() predicts in the database.",
        )
    architecture = keras_models.checked(stored.architecture)
    (encoding,) = database.rows("SELECT current_setting('server_encoding')")[0]
    ends = input_layers(architecture)
    matched = matching([name for name, _, _ in ends], layout.inputs)
    inputs = [{**_input(variable, ends[place]), "place": place} for variable, place in zip(layout.inputs, matched)]
    outputs = matching(keras_json.outputs(architecture), layout.outputs)
    words = any(variable.preparation.kind == "words" for variable in layout.inputs)
    listed = {variable.name: classes(stored, variable) for variable in layout.outputs}
    calibrated = _calibration(stored, listed)
    return {
        "format": FORMAT,
        "encoding": encoding,
        "group": stored.group.key if stored.group is not None else None,
        "window": layout.windows.length if layout.windows else None,
        **({"related": _of_related(layout)} if layout.related else {}),
        "inputs": inputs,
        "outputs": [
            {
                "name": variable.name,
                "output": place,
                "classes": listed[variable.name],
                "calibration": codec.encode(calibrated.get(variable.name)),
            }
            for variable, place in zip(layout.outputs, outputs)
        ],
        "words": _words(database) if words and encoding == "UTF8" else None,
    }


def _of_related(layout: Layout) -> list[str]:
    """The columns of related tables that a row needs."""
    made = set() if layout.related is None else set(layout.related.names)
    return sorted({column for variable in layout.inputs for column in variable.columns} & made)


def _calibration(stored: StoredModel, listed: Mapping[str, Sequence[str | None] | None]) -> calibration.Calibration:
    """What ``cerebro.calibrate`` has kept with the model. The document is checked as the server checks it."""
    if stored.calibration is None:
        return {}
    counts = {name: None if known is None else len(known) for name, known in listed.items()}
    where = f"the calibration of configuration {stored.configuration} of '{stored.table}'"
    try:
        return calibration.read(decoded(stored.calibration, where, most=LONGEST_CALIBRATION), counts, where)
    except CerebroError as error:
        raise ClientError(error.message, error.hint) from error


TRUTH = {"t": "true", "f": "false"}


def classes(stored: StoredModel, output: Variable) -> list[str | None] | None:
    """What a prediction calls each class: its label (None for NULL), or its number for a class without one."""
    if output.target == "real":
        return None
    labels: list[str | None] = []
    if isinstance(output.preparation, OneHot):
        named = "_labels" if stored.named.model_table == "model_table" else "_class_values"
        texts = stored_model.as_texts(quoted(output.name + named))
        known = stored.database.rows(f"SELECT {texts} FROM {stored.table.suffixed('_summary').quoted}")[0][0]
        if output.preparation.type.name == "boolean":  # format() writes t where a cast to text writes true
            known = [TRUTH.get(label, label) for label in known]
        first: list[str | None] = [None] if output.preparation.null_is_a_class and known[:1] == [None] else []
        labels = [*first, *(label for label in known if label is not None)]
    width = output.shape[-1] if output.shape else 1
    return [*labels, *map(str, range(len(labels), width))]


def input_layers(architecture: Mapping[str, Any]) -> list[tuple[str, Sequence[int | None] | None, str]]:
    """Name, shape of a row and type of each input of the model. A Sequential model may not say its shape."""
    config = architecture["config"]
    layers = {layer["config"].get("name"): layer for layer in config["layers"]}
    if architecture["class_name"] == "Sequential":
        first = config["layers"][0]
        if first["class_name"] != "InputLayer":
            return [("input", None, "float32")]
        names = [first["config"].get("name", "input")]
    else:
        ends = config["input_layers"]
        names = [ends[0]] if ends and isinstance(ends[0], str) else [one[0] for one in ends]
    found = []
    for name in names:
        of_layer = layers[name]["config"]
        shape = of_layer.get("batch_shape") or of_layer.get("batch_input_shape")
        found.append((name, shape[1:] if shape else None, of_layer.get("dtype") or "float32"))
    return found


def matching(names: Sequence[str], variables: Sequence[Variable]) -> list[int]:
    """The place of each variable among the model's inputs or outputs: by name if all names are the same, else in
    order. The trainer does the same."""
    if len(names) != len(variables):
        raise NoSuchModel(f"The architecture has {len(names)} inputs or outputs, and the layout {len(variables)}.")
    listed = [variable.name for variable in variables]
    return [list(names).index(name) for name in listed] if sorted(names) == sorted(listed) else list(range(len(names)))


def _input(variable: Variable, layer: tuple[str, Sequence[int | None] | None, str]) -> dict[str, Any]:
    name, shape, dtype = layer
    known = shape is not None and None not in shape
    return {
        "name": variable.name,
        "input": name,
        "input_shape": list(shape or ()) if known else list(variable.shape),
        "input_dtype": dtype if isinstance(dtype, str) and dtype.startswith(("int", "uint")) else "float32",
        "dtype": variable.dtype,
        "shape": list(variable.shape),
        "columns": list(variable.columns),
        "preparation": codec.encode(variable.preparation),
    }


def _words(database: RunsStatements) -> dict[str, Any]:
    return {"separators": database.rows(SEPARATORS), "lower": database.rows(LOWER)}
