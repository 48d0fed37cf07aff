"""How errors about an architecture name the place, show the value, and say what to do instead."""

from __future__ import annotations

from typing import Any

from ..errors import UnsafeModel

LONGEST_SHOWN = 60  # characters of a refused value that an error message repeats

# What to do instead of using a well-known class that is not on the allow-list, and why it is not there.
HINTS = {
    "Lambda": "A Lambda layer contains program code. Use built-in layers such as Rescaling, Activation or Reshape.",
    "TFSMLayer": "A TFSMLayer loads a program from a file. Use the layers of which the saved model consists.",
    "StringLookup": "Turn texts into numbers before the table is packed.",
    "TextVectorization": "Turn texts into numbers before the table is packed.",
    "TFOpLambda": "Use layers such as Add, Multiply and Rescaling rather than operators on tensors.",
    "SlicingOpLambda": "Use layers such as Cropping1D or Reshape rather than operators on tensors.",
    "CuDNNLSTM": "Use LSTM, which uses cuDNN where it can.",
    "CuDNNGRU": "Use GRU, which uses cuDNN where it can.",
}


def unsafe(path: str, problem: str, class_name: str = "") -> UnsafeModel:
    """The error for a part that is not on the allow-list; ``class_name`` selects the hint."""
    return UnsafeModel(f"{path}: {problem}" if path else problem, hint=HINTS.get(class_name))


def shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"


def at(path: str, key: str) -> str:
    """The path of a key within the object at ``path``."""
    return f"{path}.{key}" if path else key
