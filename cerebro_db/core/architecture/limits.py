"""The limits of an architecture's JSON: its size, its depth, and the values in it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ..errors import InvalidArgument
from .messages import shown

MOST_BYTES = 16 << 20
DEEPEST = 64  # levels
MOST_LAYERS = 10_000
LARGEST = 2**40  # the largest whole number in an argument, and the largest product of the sizes of one layer
MOST_VALUES = 2**28  # that one layer computes of one row, which is 1 GB of float32
LONGEST_TEXT = 1000  # characters
LONGEST_NAME = 255  # characters
HEADS = ("num_query_heads", "num_heads", "_num_heads")  # of the attention layers of Keras


def too_deep() -> InvalidArgument:
    return InvalidArgument(f"the architecture is nested more than {DEEPEST} levels deep")


def too_many_layers() -> InvalidArgument:
    return InvalidArgument(f"the architecture has more than {MOST_LAYERS} layers")


def check_limits(architecture: Any) -> None:
    """Raise InvalidArgument unless this is JSON within the limits.

    The walk does not use recursion, so a deep architecture cannot exhaust the stack before its depth is known.
    """
    pending = [(architecture, 1)]
    while pending:
        value, depth = pending.pop()
        if depth > DEEPEST:
            raise too_deep()
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str) or len(key) > LONGEST_NAME:
                    raise InvalidArgument(
                        f"the architecture has the key {shown(key)}, which is not a text of at most {LONGEST_NAME}"
                        " characters"
                    )
            pending.extend((inner, depth + 1) for inner in value.values())
        elif isinstance(value, list):
            if len(value) > MOST_LAYERS and isinstance(value[0], dict):  # Refuse it now, not after a long walk.
                raise too_many_layers()
            pending.extend((inner, depth + 1) for inner in value)
        elif isinstance(value, str):
            if len(value) > LONGEST_TEXT:
                raise InvalidArgument(
                    f"the architecture contains a text of {len(value)} characters; the limit is {LONGEST_TEXT}:"
                    f" {shown(value)}"
                )
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise InvalidArgument(f"the architecture contains {value}, which is not a finite number")
        elif isinstance(value, int):
            if abs(value) >= 2**63:
                raise InvalidArgument("the architecture contains a whole number of more than 64 bits")
        elif value is not None:
            raise InvalidArgument(f"the architecture contains a {type(value).__name__}, which is not a JSON value")


def check_activations(model: Any) -> None:
    """Raise InvalidArgument if a layer of a Keras model without weights to speak of would fill the memory with values.

    Keras knows the shapes when the model is built, and nothing is computed for that.
    """
    for layer in model._flatten_layers():
        for operation in getattr(layer, "operations", [layer]):
            for shape, heads in _computed(operation):
                values = heads * math.prod(size for size in shape[1:] if size is not None)
                if values > MOST_VALUES:
                    raise InvalidArgument(
                        f"the layer {shown(operation.name)} computes {values:,} values of each row; at most"
                        f" {MOST_VALUES:,} are allowed",
                        hint="Repeat or enlarge less before it, or pool.",
                    )


def _computed(operation: Any) -> Iterator[tuple[tuple[int | None, ...], int]]:
    """The shapes that an operation computes, rows first, and how many times each.  Attention scores are such, too."""
    for node in getattr(operation, "_inbound_nodes", ()):
        yield from ((tuple(one.shape), 1) for one in node.output_tensors)
        if "Attention" in type(operation).__name__:
            lengths = [one.shape[1] or 1 for one in node.input_tensors if len(one.shape) > 2]
            heads = next((found for name in HEADS if (found := getattr(operation, name, None)) is not None), 1)
            if lengths:
                yield (None, lengths[0], max(lengths)), heads
