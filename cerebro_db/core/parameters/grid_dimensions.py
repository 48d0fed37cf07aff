"""The grids of ``generate_model_configs``: their texts become dimensions, one for each parameter.

A dimension has either a list of values or a distribution between two bounds.
"""

from __future__ import annotations

import hashlib
import math
import random
from typing import Any

from ..errors import InvalidArgument, InvalidSyntax
from ..records import dataclass
from . import grammar
from .value_types import is_number
from .vocabulary import OPTIMIZERS

OPTIMIZER_LIST = "optimizer_params_list"

_DISTRIBUTIONS = ("linear", "log", "log_near_one")
_WHOLE_NUMBERS = {"batch_size", "epochs", "initial_epoch", "steps_per_epoch"} | {
    name
    for entry in OPTIMIZERS.entries.values()
    for name, value_type in entry.arguments.items()
    if value_type.startswith("count")
}


@dataclass(frozen=True)
class GridDimension:
    """One parameter of a grid."""

    name: str
    values: tuple[Any, ...] = ()  # the values to choose from, or the two bounds of the distribution
    distribution: str | None = None
    stream: str = ""  # names the dimension's random stream; a parameter that has several dimensions needs several
    whole: bool = False  # whether the distribution is of whole numbers

    def draw(self, uniform: float) -> Any:
        """The value that belongs to a uniform random number in [0, 1)."""
        if self.distribution is None:
            return self.values[int(uniform * len(self.values))]
        low, high = self.values
        if self.distribution == "log_near_one":
            return min(high, max(low, 1 - between(1 - high, 1 - low, uniform, log=True)))
        log = self.distribution == "log"
        if self.whole:
            return whole_between(low, high, uniform, log)
        return between(low, high, uniform, log)


def between(low: float, high: float, uniform: float, log: bool) -> float:
    """The number between two bounds that belongs to a uniform random number in [0, 1).

    With ``log`` the number's logarithm is uniform between the logarithms of the bounds: every order of magnitude is
    equally likely.
    """
    if not log:
        return float(min(high, max(low, low + uniform * (high - low))))
    value = math.exp(math.log(low) + uniform * (math.log(high) - math.log(low)))
    return float(min(high, max(low, value)))


def whole_between(low: int, high: int, uniform: float, log: bool) -> int:
    """As ``between``, for whole numbers, both bounds included: a number k has the interval from k - 1/2 to k + 1/2.

    So without ``log`` all numbers are equally likely, and with ``log`` k is about twice as likely as 2 * k.
    """
    return min(high, max(low, math.floor(between(low - 0.5, high + 0.5, uniform, log) + 0.5)))


def random_stream(seed: int, name: str) -> random.Random:
    """Random numbers that depend on the seed and the name, and on nothing else.

    So one more dimension changes no value of the others, and a dimension is independent of the one it hangs on.
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))


def compile_spaces(grid: str | None, argument: str) -> list[list[GridDimension]]:
    """The dimensions of the compile parameters.

    There is one space for each dictionary in optimizer_params_list, or a single space without that list.
    """
    given = _literal(grid, argument)
    outside = {key: value for key, value in given.items() if key != OPTIMIZER_LIST}
    shared = [_dimension(key, value, "compile") for key, value in outside.items()]
    if OPTIMIZER_LIST not in given:
        return [shared]
    optimizers = given[OPTIMIZER_LIST]
    if not isinstance(optimizers, list) or not optimizers or not all(isinstance(one, dict) for one in optimizers):
        raise InvalidArgument(f"DL: '{OPTIMIZER_LIST}' must be a list of dictionaries")
    spaces = []
    for number, optimizer in enumerate(optimizers):
        for key in optimizer:
            if key in outside:
                raise InvalidArgument(f"DL: '{key}' is given both inside and outside '{OPTIMIZER_LIST}'")
        own = [
            _dimension(key, value, "compile", f"{OPTIMIZER_LIST}[{number}].{key}") for key, value in optimizer.items()
        ]
        spaces.append([*own, *shared])
    return spaces


def fit_space(grid: str | None, argument: str) -> list[GridDimension]:
    """The dimensions of the fit parameters."""
    return [_dimension(key, value, "fit") for key, value in _literal(grid, argument).items()]


def _literal(text: str | None, argument: str) -> dict[str, Any]:
    """The dictionary that a grid's text consists of."""
    if text is None or not text.strip():
        return {}
    try:
        value = grammar.expression(text, argument)
        _refuse_words(value)
    except InvalidSyntax as error:
        raise InvalidSyntax(
            f"Invalid syntax in '{argument}': {error.message}",
            hint="Write a dictionary of lists, with texts in quotes: {'loss': ['mse'], 'lr': [0.1, 0.01]}.",
        ) from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InvalidSyntax(f"Invalid syntax in '{argument}': it must be a dictionary whose keys are texts")
    return value


def _refuse_words(value: Any) -> None:
    """The grammar also reads names without quotes and calls.  Neither has a meaning in a grid."""
    if isinstance(value, (grammar.BareWord, grammar.Call)):
        name = value.name if isinstance(value, grammar.Call) else value
        raise InvalidSyntax(f"{name} must be in quotes")
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    for item in inner:
        _refuse_words(item)


def _dimension(name: str, values: Any, grid: str, stream: str = "") -> GridDimension:
    if not name.isidentifier():
        raise InvalidArgument(f"{name} is not currently accepted as a parameter.")
    if not isinstance(values, list) or not values:
        raise InvalidArgument(f"DL: {grid} param values must be specified in a list", hint=f"'{name}': [value, …]")
    stream = stream or f"{grid}.{name}"
    if not _is_distribution(values):
        return GridDimension(name, tuple(values), stream=stream)
    if len(values) != 3:
        raise InvalidArgument(f"DL: '{name}' should have exactly 3 elements if picking from a distribution")
    low, high, distribution = values
    if distribution not in _DISTRIBUTIONS:
        raise InvalidArgument(
            f"DL: Please choose a valid distribution type for '{name}': {', '.join(_DISTRIBUTIONS)}",
            hint=f"{distribution!r} is not a distribution type.",
        )
    if not is_number(low) or not is_number(high) or low > high:
        raise InvalidArgument(
            f"DL: '{name}' should be of the format [lower_bound, upper_bound, distribution_type]",
            hint="The bounds are numbers, and the lower bound comes first.",
        )
    if distribution == "log" and low <= 0:
        raise InvalidArgument(f"DL: '{name}': the bounds of a log distribution must be above 0")
    if distribution == "log_near_one" and high >= 1:
        raise InvalidArgument(f"DL: '{name}': the bounds of a log_near_one distribution must be below 1")
    whole = isinstance(low, int) and isinstance(high, int) and distribution != "log_near_one"
    if not (whole if grid == "arch" else name in _WHOLE_NUMBERS):
        return GridDimension(name, (low, high), distribution, stream)
    if low != int(low) or high != int(high) or low < 0 or distribution == "log_near_one":
        raise InvalidArgument(
            f"DL: '{name}': the bounds must be whole numbers of at least 0, and the distribution linear or log"
        )
    return GridDimension(name, (int(low), int(high)), distribution, stream, whole=True)


def _is_distribution(values: list[Any]) -> bool:
    """Whether a grid's list means a distribution.

    It does if its last element is a text after numbers, or a distribution type after anything but texts.
    """
    *bounds, last = values
    if not bounds or not isinstance(last, str) or any(isinstance(bound, str) for bound in bounds):
        return False
    return last in _DISTRIBUTIONS or all(is_number(bound) for bound in bounds)
