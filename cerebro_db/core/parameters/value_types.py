"""The types of argument values in vocabulary.py: a test for each, and the error for a value of another type."""

from __future__ import annotations

import sys
from typing import Any, Callable, NoReturn

from ..errors import InvalidArgument
from .grammar import Call

Test = Callable[[Any], bool]

LONGEST_LIST = 10_000
LONGEST_TEXT = 200  # characters
LONGEST_SHOWN = 80  # characters of a refused value that an error message repeats


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    # Python's whole numbers can be larger than any float, and compare with floats all the same.
    return is_number(value) and -sys.float_info.max <= value <= sys.float_info.max


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _fraction(value: Any) -> bool:
    return is_finite(value) and 0 <= value <= 1


def _axis(value: Any) -> bool:
    return _whole(value) and abs(value) < 64


def _list_of(test: Test) -> Test:
    return lambda value: isinstance(value, list) and 0 < len(value) <= LONGEST_LIST and all(map(test, value))


def _one_of(*choices: str) -> tuple[Test, str]:
    return lambda value: value in choices, " or ".join(map(repr, choices))


# name of the type -> (test, the same in words, for error messages)
VALUE_TYPES: dict[str, tuple[Test, str]] = {
    "number": (is_finite, "a number"),
    "nonneg": (lambda v: is_finite(v) and v >= 0, "a number of at least 0"),
    "positive": (lambda v: is_finite(v) and v > 0, "a number above 0"),
    "unit": (_fraction, "a number between 0 and 1"),
    # A dictionary is a learning-rate schedule. optimizers.py has checked it before it comes here.
    "rate": (
        lambda v: isinstance(v, dict) or (is_finite(v) and v >= 0),
        "a number of at least 0 or a learning-rate schedule",
    ),
    "flag": (lambda v: isinstance(v, bool), "True or False"),
    "count": (lambda v: _whole(v) and 0 < v < 2**31, "a whole number of at least 1"),
    "index": (lambda v: _whole(v) and 0 <= v < 2**31, "a whole number of at least 0"),
    "axis": (_axis, "an axis number"),
    "axes": (lambda v: _axis(v) or _list_of(_whole)(v), "an axis number or a list of them"),
    "text": (lambda v: isinstance(v, str) and 0 < len(v) <= LONGEST_TEXT, "a text"),
    "texts": (_list_of(lambda v: isinstance(v, str) and len(v) <= LONGEST_TEXT), "a list of texts"),
    "numbers": (_list_of(is_finite), "a list of numbers"),
    "indices": (_list_of(_whole), "a list of whole numbers"),
    "thresholds": (
        lambda v: _fraction(v) or _list_of(_fraction)(v),
        "a number between 0 and 1 or a list of them",
    ),
    "reduction": _one_of("sum_over_batch_size", "sum", "mean", "mean_with_sample_weight"),
    "dtype": _one_of("float16", "bfloat16", "float32", "float64"),
    "curve": _one_of("ROC", "PR"),
    "summation": _one_of("interpolation", "minoring", "majoring"),
    "average": _one_of("micro", "macro", "weighted"),
    "aggregation": _one_of("uniform_average", "variance_weighted_average"),
}


def problem(value_type: str, value: Any) -> str | None:
    """Why the value is not of the type, or None if it is."""
    if value is None and value_type.endswith("?"):
        return None
    test, words = VALUE_TYPES[value_type.rstrip("?!")]
    return None if test(value) else f"it must be {words}"


def checked(parameter: str, value: Any, value_type: str, default: Any = None) -> Any:
    """The value of a parameter, or the default if it is None."""
    if value is None:
        return default
    reason = problem(value_type, value)
    if reason:
        refuse(parameter, value, reason)
    return value


def refuse(parameter: str, value: Any, reason: str, hint: str | None = None) -> NoReturn:
    """Raise the error for a parameter with a wrong value."""
    raise InvalidArgument(
        f"invalid input value for parameter {parameter}={shown(value)}: {reason}",
        hint=hint,
    )


def shown(value: Any) -> str:
    """A value as error messages show it."""
    if isinstance(value, Call):
        return value.name + "(…)"
    text = str(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"
