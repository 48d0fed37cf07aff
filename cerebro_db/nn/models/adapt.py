"""The conversion of packed columns to a model's inputs and targets: chosen once, from shapes; applied to each batch.

A layout describes the columns of a row, a model the tensors that it takes.  Where these differ in form only (a scale, a
trailing 1, flattened or not, one-hot against class number) the columns are converted.  Any other difference is an error
that names both shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from cerebro_db.core.errors import ConfigurationFailed

Shape = tuple[Optional[int], ...]

SPARSE = "sparsecategoricalcrossentropy"
# losses that compare the output with the target element by element, over exclusive classes
CATEGORICAL = {"categoricalcrossentropy", "categoricalfocalcrossentropy", "kldivergence", "kld", "categoricalhinge"}
# losses that take each target as a probability
BINARY = {"binarycrossentropy", "bce", "binaryfocalcrossentropy"}
MSE_OR_CLASSES = "For a regression use mse or mae. For classes pack a view with the column cast to integer or text."
REGRESSION = "To predict the number itself, pack a view with the column cast to real or double precision, and use mse."


@dataclass(frozen=True)
class InputColumn:
    """Packed values → a tensor of the dtype and shape of one of the model's inputs."""

    scale: float
    dtype: str
    reshape: tuple[int, ...] | None

    def __call__(self, values: Any) -> Any:
        from keras import ops

        if self.scale != 1.0:
            values = ops.divide(ops.cast(values, "float32"), ops.cast(self.scale, "float32"))
        values = ops.cast(values, self.dtype)
        return values if self.reshape is None else ops.reshape(values, (-1, *self.reshape))


@dataclass(frozen=True)
class OutputColumn:
    """Packed values → the target that a loss compares with one of the model's outputs."""

    how: str  # "values", "class number" (of a one-hot vector) or "second class" (its probability)
    dtype: str
    reshape: tuple[int, ...] | None

    def __call__(self, values: Any) -> Any:
        from keras import ops

        if self.how == "class number":
            values = ops.argmax(values, axis=-1)
        elif self.how == "second class":
            values = values[..., 1:2]
        values = ops.cast(values, self.dtype)
        return values if self.reshape is None else ops.reshape(values, (-1, *self.reshape))


def input_column(variable: dict[str, Any], shape: Shape, dtype: str) -> InputColumn:
    """The conversion for an input of the model, which has this shape (without the batch dimension) and dtype."""
    packed = tuple(variable["shape"])
    wanted = _same_rows(packed, shape)
    if wanted is None:
        raise ConfigurationFailed(
            f"Input shape {_text(shape)} in the model architecture does not match the input shape {_text(packed)}"
            f" of column {variable['name']}",
            hint="Change the input shape of the architecture, or pack the column in that shape.",
        )
    return InputColumn(float(variable.get("scale") or 1.0), dtype, None if wanted == packed else wanted)


def output_column(variable: dict[str, Any], shape: Shape, loss: str) -> OutputColumn:
    """The conversion for an output of the model, which has this shape (without the batch dimension) and loss."""
    packed, name, kind = tuple(variable["shape"]), variable["name"], variable.get("kind", "real")
    units, steps = shape[-1] if shape else 1, variable.get("steps", 0)
    squashed = squash(loss)
    quantiles = variable.get("quantiles") or []
    if (squashed == "pinball") != bool(quantiles) or quantiles and units != len(quantiles):
        raise ConfigurationFailed(
            f"the model's output has {_count(units, 'unit')} and the loss {loss}, but the column {name} has"
            f" {len(quantiles)} quantiles",
            hint="The loss of quantiles is pinball, with a unit for each; pack the table with the same quantiles.",
        )
    if quantiles:
        return OutputColumn("values", "float32", None)
    if kind == "real" and math.prod(packed[1:] if steps else packed) == 1 and squashed in CATEGORICAL | {SPARSE}:
        raise ConfigurationFailed(
            f"{loss} compares classes, but the column {name} holds a number per row, for a regression",
            hint=MSE_OR_CLASSES,
        )
    if squashed == SPARSE:
        return _sparse(variable, shape)
    if kind == "class" and packed[-1:] == (2,) and len(packed) == 1 + bool(steps) and units == 1 \
            and squashed not in CATEGORICAL:  # fmt: skip
        ones = None if len(shape) == len(packed) else (*packed[:-1], *(1,) * (len(shape) - len(packed) + 1))
        return OutputColumn("second class", "float32", ones)
    if squashed in CATEGORICAL and packed and units != packed[-1]:
        classes = "classes" if kind in ("class", "encoded") else "values"
        raise ConfigurationFailed(
            f"the model's output has {_count(units, 'unit')} but the data has {packed[-1]} {classes} (column {name})",
            hint=_more_units(variable, units)
            if units != 1 or packed[-1] != 2
            else "Use binary_crossentropy, or give the last layer 2 units.",
        )
    wanted = _same_rows(packed, shape)
    if wanted is None:
        if kind == "class" and len(shape) == 1:
            raise ConfigurationFailed(
                f"the model's output has {_count(units, 'unit')} but the data has {packed[-1]} classes (column {name})",
                hint=_more_units(variable, units),
            )
        raise ConfigurationFailed(
            f"the model's output has shape {_text(shape)} per row but the data has {_text(packed)} (column {name})"
        )
    return OutputColumn("values", "float32", None if wanted == packed else wanted)


def _more_units(variable: dict[str, Any], units: int | None) -> str:
    """What to do about an output with fewer units than classes; numbers as classes may be meant as numbers."""
    hint = f"Give the last layer {variable['shape'][-1]} units."
    words = (variable.get("preparation") or {}).get("type") in ("text", "character varying", "character", "boolean")
    return hint if units != 1 or words or variable.get("kind") != "class" else f"{hint} {REGRESSION}"


def takes_probabilities(loss: str) -> bool:
    return squash(loss) in BINARY


def require_probabilities(name: str, loss: str, least: float, most: float) -> None:
    """Refuse targets that a loss takes as probabilities and that are none."""
    if least < 0 or most > 1:
        raise ConfigurationFailed(
            f"{loss} takes values from 0 to 1, but the column {name} has values from {least:g} to {most:g}",
            hint=MSE_OR_CLASSES,
        )


def require_known(name: str, layer: str, size: int, least: float, most: float) -> None:
    """Refuse numbers that an Embedding has no row for: TensorFlow would not say whose they are, and JAX gives NaN."""
    if least < 0 or most >= size:
        raise ConfigurationFailed(
            f"the layer {layer} (Embedding) takes numbers from 0 to {size - 1}, but the column {name} has numbers from"
            f" {least:g} to {most:g}",
            hint=f"Give the layer input_dim={int(most) + 1} or more."
            if least >= 0
            else "Map the values to numbers from 0 on before the table is packed.",
        )


def _sparse(variable: dict[str, Any], shape: Shape) -> OutputColumn:
    packed, name, kind = tuple(variable["shape"]), variable["name"], variable.get("kind", "real")
    units = shape[-1] if shape else 1
    if kind != "real" and packed and packed[-1] > 1:
        if units is not None and units < packed[-1]:
            raise ConfigurationFailed(
                f"the model's output has {_count(units, 'unit')} but the data has {packed[-1]} classes (column {name})",
                hint=_more_units(variable, units),
            )
        packed, how = packed[:-1], "class number"
    else:
        how = "values"
    wanted = _same_rows(packed, shape[:-1])
    if wanted is None:
        raise ConfigurationFailed(
            f"the model's output has shape {_text(shape)} per row, for which {name} should hold class numbers of "
            f"shape {_text(shape[:-1])}, not {_text(packed)}"
        )
    # Keras' own fit gives targets of rank 2 here, (rows, 1), and its loss squeezes them
    return OutputColumn(how, "int32", None if wanted == packed else wanted)


def _same_rows(packed: tuple[int, ...], model: Shape) -> tuple[int, ...] | None:
    """The shape in which a row of the packed column fits the model, or None."""
    if _compatible(packed, model):
        return packed
    if _compatible(_without_ones(packed), _without_ones(model)):
        values = iter(_without_ones(packed))
        # the trailing ones are the model's, the other sizes are the data's
        core = len(_without_ones(model))
        return tuple(next(values) for _ in range(core)) + (1,) * (len(model) - core)
    known = tuple(size for size in model if size is not None)
    flat = len(packed) <= 1 or len(model) <= 1
    if flat and len(known) == len(model) and math.prod(known) == math.prod(packed):
        return known
    return None


def _compatible(packed: Sequence[int], model: Sequence[int | None]) -> bool:
    return len(packed) == len(model) and all(m is None or m == p for p, m in zip(packed, model))


def _without_ones(shape: Sequence[Any]) -> tuple[Any, ...]:
    end = len(shape)
    while end and shape[end - 1] == 1:
        end -= 1
    return tuple(shape[:end])


def squash(loss: str) -> str:
    """One spelling for ``sparse_categorical_crossentropy`` and ``SparseCategoricalCrossentropy``."""
    return loss.replace("_", "").lower()


def _text(shape: Sequence[int | None]) -> str:
    if not shape:
        return "a single value"
    return (
        "(" + ", ".join("any" if size is None else str(size) for size in shape) + ("," if len(shape) == 1 else "") + ")"
    )


def _count(number: int | None, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def loss_name(losses: Any, number: int, name: str) -> str:
    """The name of an output's loss, from any of the forms in which losses may be given."""
    if isinstance(losses, dict):
        losses = losses["class_name"] if "class_name" in losses else losses.get(name)
    elif isinstance(losses, (list, tuple)):
        losses = losses[number] if number < len(losses) else None
    if isinstance(losses, dict):
        losses = losses.get("class_name")
    return losses if isinstance(losses, str) else ""
