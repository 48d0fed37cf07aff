"""The checks of arguments that are plain values: numbers, texts, booleans, and lists of these.

A check takes the value and its path, and raises UnsafeModel or InvalidArgument.  Every argument may be null.
"""

from __future__ import annotations

from typing import Any, Callable

from ..errors import InvalidArgument
from .limits import LARGEST, LONGEST_NAME
from .messages import at, shown, unsafe
from .tables import ARGUMENTS_ROWS, SIZES, rows

Check = Callable[[Any, str], None]

LARGEST_RANK = 16  # sizes in a shape
INDICES = {"__slice__": {"start", "stop", "step"}, "__ellipsis__": set[str]()}


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_name(value: Any) -> bool:
    """Whether this can be a layer's name.

    Keras names folders after layers when it saves a model, so a name must not lead out of a folder.
    """
    printable = isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()
    return printable and ".." not in value.replace("\\", "/").split("/")


def is_reference(value: Any) -> bool:
    """Whether this is a reference to a tensor, ``[layer, call, output]``."""
    return isinstance(value, list) and len(value) == 3 and is_name(value[0]) and all(map(is_whole, value[1:]))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_plain(value: Any, path: str) -> None:
    """Keras would build an object that stands here, so none is allowed."""
    if isinstance(value, dict):
        name = value.get("class_name", "an object")
        raise unsafe(path, f"{shown(name)} is not allowed here, because this must be a plain value", str(name))
    if isinstance(value, list):
        for index, item in enumerate(value):
            check_plain(item, f"{path}[{index}]")
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise InvalidArgument(f"{path}: {value} is too large; the limit is {LARGEST}")


def check_call(value: Any, path: str) -> None:
    """The arguments of a call between layers: plain values, and references to tensors."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            check_call(item, f"{path}[{index}]")
    elif isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
        _check_tensor(value, path)
    elif isinstance(value, dict) and str(value.get("class_name")) in INDICES:
        _check_index(value, path)
    elif isinstance(value, dict):
        if "class_name" in value:
            check_plain(value, path)
        for key, item in value.items():
            check_call(item, at(path, key))
    else:
        check_plain(value, path)


def _check_index(value: dict[str, Any], path: str) -> None:
    """A slice or an ellipsis of ``x[:, ..., 0]``."""
    config = value.get("config")
    if set(value) != {"class_name", "config"} or not isinstance(config, dict):
        raise InvalidArgument(f"{path}: this is not an index as Keras 3 writes it")
    if set(config) != INDICES[value["class_name"]] or not all(one is None or is_whole(one) for one in config.values()):
        raise InvalidArgument(f"{path}: an index has whole numbers only")
    check_plain(list(config.values()), path)


def _check_tensor(value: dict[str, Any], path: str) -> None:
    malformed = InvalidArgument(f"{path}: this is not a reference to a tensor as Keras 3 writes it")
    config = value.get("config")
    if set(value) != {"class_name", "config"} or not isinstance(config, dict):
        raise malformed
    if not set(config) <= {"shape", "dtype", "keras_history"}:
        raise malformed
    for key, item in config.items():
        check_plain(item, f"{path}.config.{key}")
    if not is_reference(config.get("keras_history")):
        raise malformed


def check_layer_size(config: dict[str, Any], path: str) -> None:
    """The product of a layer's sizes is bounded."""
    product, pending = 1, [value for key, value in config.items() if key in SIZES]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, int) and value > 1:
            product *= value
        if product > LARGEST:
            raise InvalidArgument(f"{path}: this layer is too large; the product of its sizes is above {LARGEST}")


# ---- a check for each argument --------------------------------------------------------------------


def _each(test: Callable[[Any], bool], words: str, *, lists: bool = False) -> Check:
    """The check of an argument that is one value for which the test is true, or a list of such values."""

    def check(value: Any, path: str) -> None:
        if lists and isinstance(value, list):
            for index, item in enumerate(value):
                check(item, f"{path}[{index}]")
            return
        check_plain(value, path)
        if value is not None and not test(value):
            raise InvalidArgument(f"{path} must be {words}, not {shown(value)}")

    return check


def _check_null(value: Any, path: str) -> None:
    if value is not None:
        raise unsafe(path, "this argument is not supported and must be null")


def _check_name(value: Any, path: str) -> None:
    if value is not None and not is_name(value):
        raise InvalidArgument(
            f"{path}: {shown(value)} cannot be a name",
            hint=f"A name has at most {LONGEST_NAME} characters, all of them printable, and no '..' between slashes.",
        )


def _check_vocabulary(value: Any, path: str) -> None:
    """Keras would read a text as the name of a file."""
    if isinstance(value, str):
        raise unsafe(path, f"{shown(value)} names a file; the vocabulary must be a list of whole numbers")
    _CHECKS_BY_TYPE["indices"](value, path)


def _check_shape(value: Any, path: str) -> None:
    sizes = value if isinstance(value, list) and len(value) <= LARGEST_RANK else [0]
    if value is not None and not all(size is None or (is_whole(size) and 0 < size <= LARGEST) for size in sizes):
        raise InvalidArgument(
            f"{path}: {shown(value)} is not a shape",
            hint=f"A shape is a list of at most {LARGEST_RANK} sizes; each is null or a whole number of at least 1.",
        )


def _check_ends(value: Any, path: str) -> None:
    """The inputs or outputs of a functional model: references such as ["dense", 0, 0], in lists or by name."""
    if isinstance(value, dict) and "class_name" not in value:
        for key, item in value.items():
            _check_ends(item, f"{path}.{key}")
    elif isinstance(value, list) and value and not isinstance(value[0], str):
        for index, item in enumerate(value):
            _check_ends(item, f"{path}[{index}]")
    elif not is_reference(value):
        check_plain(value, path)
        raise InvalidArgument(f"{path}: {shown(value)} does not name an output of a layer")


_CHECKS_BY_TYPE: dict[str, Check] = {
    "size": _each(lambda value: is_whole(value) and value > 0, "a whole number of at least 1"),
    "sizes": _each(
        lambda value: is_whole(value) and value > 0, "a whole number of at least 1, or a list of them", lists=True
    ),
    "indices": _each(is_whole, "a whole number, or a list of them", lists=True),
    "fraction": _each(lambda value: _is_number(value) and 0 <= value <= 1, "a number between 0 and 1"),
    "number": _each(_is_number, "a number"),
    "numbers": _each(_is_number, "a number, or a list of them", lists=True),
    "flag": _each(lambda value: isinstance(value, bool), "true or false"),
    "text": _each(lambda value: isinstance(value, str), "a text"),
    "plain": check_plain,
    "null": _check_null,
}
VALUE_CHECKS: dict[str, Check] = {
    **{name: _CHECKS_BY_TYPE[value_type] for value_type, names in rows(ARGUMENTS_ROWS).items() for name in names},
    "vocabulary": _check_vocabulary,
    "vocabulary_size": _CHECKS_BY_TYPE["size"],
    "idf_weights": _CHECKS_BY_TYPE["numbers"],
    "salt": _CHECKS_BY_TYPE["indices"],
    "batch_shape": _check_shape,
    "shape": _check_shape,
    "build_input_shape": _check_shape,
    "input_layers": _check_ends,
    "output_layers": _check_ends,
    "name": _check_name,
}
