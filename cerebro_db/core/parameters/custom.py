"""Custom functions, the losses and metrics that an administrator registers: their names and their source text.

A configuration contains a reference, which is the name and the version of a function (``focal@3``).  It never contains
source text.  The server reads the source from its own table and sends it to the trainer.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import InvalidArgument, InvalidName, InvalidSyntax
from .vocabulary import LOSSES, METRICS

KINDS = ("loss", "metric")
BOTH = "both"  # of a function that configurations may name as a loss and as a metric
PARAMETERS = ["y_true", "y_pred"]
LONGEST_SOURCE = 64 << 10  # characters
# All that Keras 3 has in keras.backend.
OF_BACKEND = {
    "backend", "clear_session", "epsilon", "floatx", "get_uid", "image_data_format", "is_float_dtype", "is_int_dtype",
    "is_keras_tensor", "result_type", "set_epsilon", "set_floatx", "set_image_data_format", "standardize_dtype",
}  # fmt: skip

# kind -> {name or reference that a user may write: reference}, such as {"loss": {"focal": "focal@3"}}
Known = Mapping[str, Mapping[str, str]]
NONE: Known = {}


class WithoutSparse(dict[str, Mapping[str, str]]):
    """The functions that a call without sparse losses and metrics may name.

    ``unknown``: its text for other names, with {} for the name.
    """

    def __init__(self, known: Known, unknown: str) -> None:
        super().__init__(known)
        self.unknown = unknown


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,58}")
_REFERENCE = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,58})@([1-9][0-9]{0,8})")
_TOP_K = re.compile(r"top_([1-9][0-9]{0,8})_accuracy")
_RESERVED = {"acc", "accuracy", "ce", "crossentropy", "custom", "deserialize", "get", "serialize", "none"}


def uses(kind: str) -> tuple[str, ...]:
    """What a function of a registered kind may be named as."""
    return KINDS if kind == BOTH else (kind,)


def reference(name: str, version: int) -> str:
    return f"{name}@{version}"


def split(text: str) -> tuple[str, int] | None:
    """The name and the version in a reference, or None: ``focal@3`` -> ``('focal', 3)``."""
    match = _REFERENCE.fullmatch(text)
    return (match.group(1), int(match.group(2))) if match else None


def with_references(known: Known, compiled: Iterable[Any]) -> Known:
    """The functions, and those versions of them that canonical compile parameters name."""
    named = {one: one for its in compiled for one in references(its)}
    return {kind: {**named, **known.get(kind, {})} for kind in KINDS}


def references(compile_params: Any) -> set[str]:
    """All references among the losses and metrics of compile parameters."""

    def search(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            if split(value):
                yield value
        elif isinstance(value, (list, dict)):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from search(inner)

    if not isinstance(compile_params, dict):
        return set()
    return {found for key in ("loss", "metrics", "weighted_metrics") for found in search(compile_params.get(key))}


def top_k(name: str) -> int | None:
    """The k of a metric ``top_<k>_accuracy``, or None.  Keras has one metric with an argument k."""
    match = _TOP_K.fullmatch(name)
    return int(match.group(1)) if match and int(match.group(1)) < 2**31 else None


def sha256(source: str) -> str:
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


def check_name(name: str | None, kind: str | None) -> None:
    """Raise an error unless a function may be registered under this name and kind."""
    if kind not in (*KINDS, BOTH):
        raise InvalidArgument(
            f"kind is {'NULL' if kind is None else repr(kind)}; it must be 'loss', 'metric' or 'both'."
        )
    if not name or not _NAME.fullmatch(name):
        raise InvalidName(
            f"{(name or '')[:80]!r} cannot be the name of a custom function",
            hint="Use the name of the Python function: at most 59 ASCII letters, digits and underscores,"
            " not beginning with a digit.",
        )
    if name.lower() in _RESERVED or top_k(name) or LOSSES.find(name) or METRICS.find(name):
        raise InvalidName(f"{name!r} already has a meaning in Keras or MADlib", hint="Choose another name.")


def check_source(name: str, source: str | None) -> None:
    """Raise an error unless the source defines one function of this name and does nothing else.

    The source is parsed and not executed.
    """
    if not source or not source.strip():
        raise InvalidSyntax(f"the source of {name} is empty")
    if len(source) > LONGEST_SOURCE:
        raise InvalidSyntax(f"the source of {name} has {len(source)} characters; the limit is {LONGEST_SOURCE}")
    try:
        body = ast.parse(source, filename=name).body
    except SyntaxError as error:
        where = f" at line {error.lineno}" if error.lineno else ""
        raise InvalidSyntax(f"the source of {name} is not Python: {error.msg}{where}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidSyntax(f"the source of {name} cannot be parsed: {type(error).__name__}") from None
    signature = f"def {name}({', '.join(PARAMETERS)}):"
    function = body[0] if len(body) == 1 else None
    if not isinstance(function, ast.FunctionDef) or function.name != name:
        raise InvalidSyntax(
            f"the source of {name} must be one function and nothing else: {signature}",
            hint="Write imports and helpers inside the function. keras and ops (keras.ops) are already defined.",
        )
    given = function.args
    extras = [given.vararg, given.kwarg, *given.kwonlyargs, *given.defaults, *given.posonlyargs, function.returns]
    annotated = any(argument.annotation for argument in given.args)
    if [argument.arg for argument in given.args] != PARAMETERS or any(extras) or function.decorator_list or annotated:
        raise InvalidSyntax(f"{name} must be defined as {signature} without decorators, defaults or annotations")
    _require_of_keras_3(name, function)


def _require_of_keras_3(name: str, function: ast.FunctionDef) -> None:
    """Refuse what Keras 2 had in keras.backend and Keras 3 has not: it would fail only when training begins."""
    modules = {"keras.backend"}  # and what the function calls it
    for node in ast.walk(function):
        if isinstance(node, ast.Import):
            modules |= {one.asname for one in node.names if one.name == "keras.backend" and one.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "keras":
            modules |= {one.asname or one.name for one in node.names if one.name == "backend"}
        elif isinstance(node, ast.ImportFrom) and node.module == "keras.backend":
            for one in node.names:
                _require_in_backend(name, one.name, node.lineno)
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and _dotted(node.value) in modules:
            _require_in_backend(name, node.attr, node.lineno)


def _require_in_backend(name: str, used: str, line: int) -> None:
    if used not in OF_BACKEND and not used.startswith("_"):
        raise InvalidSyntax(
            f"{name} uses keras.backend.{used} at line {line}, which Keras 3 does not have",
            hint=f"keras.ops has most functions that Keras 2 had in keras.backend, for instance ops.{used}; ops is"
            " already defined.",
        )


def _dotted(node: ast.expr) -> str:
    """The name that an expression is, with one dot at most; an empty text if it is none."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""
