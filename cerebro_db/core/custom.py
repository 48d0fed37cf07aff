"""Losses and metrics that an administrator registered: how they are named, and what their source may look like.

A configuration names one as ``focal@3``, its name and version; it never carries source.  Where the
function is needed, the server fetches the source from its own table and hands it to the trainer.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .errors import InvalidArgument, InvalidName, InvalidSyntax
from .vocabulary import LOSSES, METRICS

KINDS = ("loss", "metric")
PARAMETERS = ["y_true", "y_pred"]
LONGEST_SOURCE = 64 << 10

# kind -> what a user may write (focal, focal@3) -> what the configuration then says (focal@3)
Known = Mapping[str, Mapping[str, str]]
NONE: Known = {}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,58}")
_REFERENCE = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,58})@([1-9][0-9]{0,8})")
_TOP_K = re.compile(r"top_([1-9][0-9]{0,8})_accuracy")
_TAKEN = {"acc", "accuracy", "ce", "crossentropy", "custom", "deserialize", "get", "serialize", "none"}


def reference(name: str, version: int) -> str:
    return f"{name}@{version}"


def split(text: str) -> tuple[str, int] | None:
    """``focal@3`` -> ('focal', 3); None if it is no reference."""
    match = _REFERENCE.fullmatch(text)
    return (match.group(1), int(match.group(2))) if match else None


def references(value: Any) -> set[str]:
    """All references among the losses and metrics of compile parameters."""

    def found(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            if split(value):
                yield value
        elif isinstance(value, (list, dict)):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from found(inner)

    if not isinstance(value, dict):
        return set()
    return {name for key in ("loss", "metrics", "weighted_metrics") for name in found(value.get(key))}


def top_k(name: str) -> int | None:
    """MADlib registers a function of this name for every k; Keras has a metric that takes k."""
    match = _TOP_K.fullmatch(name)
    return int(match.group(1)) if match and int(match.group(1)) < 2**31 else None


def sha256(source: str) -> str:
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


def check_name(name: str | None, kind: str | None) -> None:
    if kind not in KINDS:
        raise InvalidArgument(f"kind is {'NULL' if kind is None else repr(kind)}; it must be 'loss' or 'metric'")
    if not name or not _NAME.fullmatch(name):
        raise InvalidName(
            f"{(name or '')[:80]!r} cannot be the name of a custom function",
            hint="It must be the function's own name in Python: ASCII letters, digits and underscores, at most 59.",
        )
    if name.lower() in _TAKEN or top_k(name) or LOSSES.find(name) or METRICS.find(name):
        raise InvalidName(f"{name!r} is a name of Keras' own", hint="Choose another that nobody mistakes for it.")


def check_source(name: str, source: str | None) -> None:
    """The source must define one function of that name and do nothing else.  Nothing of it is executed here."""
    if not source or not source.strip():
        raise InvalidSyntax(f"the source of {name} is empty")
    if len(source) > LONGEST_SOURCE:
        raise InvalidSyntax(f"the source of {name} has {len(source)} characters; at most {LONGEST_SOURCE} are taken")
    try:
        body = ast.parse(source, filename=name).body
    except SyntaxError as error:
        where = f" at line {error.lineno}" if error.lineno else ""
        raise InvalidSyntax(f"the source of {name} is not Python: {error.msg}{where}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidSyntax(f"the source of {name} cannot be read: {type(error).__name__}") from None
    shape = f"def {name}({', '.join(PARAMETERS)}):"
    function = body[0] if len(body) == 1 else None
    if not isinstance(function, ast.FunctionDef) or function.name != name:
        raise InvalidSyntax(
            f"the source of {name} must be one function and nothing else: {shape}",
            hint="Imports and helpers go inside of it; keras, and keras.ops as ops, are there already.",
        )
    given = function.args
    extras = [given.vararg, given.kwarg, *given.kwonlyargs, *given.defaults, *given.posonlyargs, function.returns]
    annotated = any(argument.annotation for argument in given.args)
    if [argument.arg for argument in given.args] != PARAMETERS or any(extras) or function.decorator_list or annotated:
        raise InvalidSyntax(f"{name} must be defined as {shape} without decorators, defaults, annotations")
