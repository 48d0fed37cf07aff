"""Model selection: from grids and distributions to the rows of a model selection table.

A row is (model_id, compile_params, fit_params), the parameters being strings in MADlib's form.
Random search draws every dimension from a stream of its own, seeded by the search's seed and the
dimension's name: dimensions are uncorrelated, and one more of them does not move the others.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from . import custom, grammar
from .custom import Known
from .errors import CerebroError, InvalidArgument, InvalidSyntax
from .params import COMPILE_KEYS, compile_params, fit_params
from .vocabulary import OPTIMIZERS

Row = tuple[int, str, str]

OPTIMIZER_LIST = "optimizer_params_list"
MOST_ROWS = 100_000

_DISTRIBUTIONS = ("linear", "log", "log_near_one")
_WHOLE = {"batch_size", "epochs", "initial_epoch", "steps_per_epoch"} | {
    name for entry in OPTIMIZERS.entries.values() for name, kind in entry.arguments.items() if kind.startswith("count")
}


def generate(
    model_ids: Iterable[int | None],
    compile_grid: str | None,
    fit_grid: str | None,
    search_type: str | None = "grid",
    num_configs: int | None = None,
    random_state: int | None = None,
    existing: Collection[Row] = (),
    known: Known = custom.NONE,
) -> list[Row]:
    """The new rows that a grid or random search adds to a table which holds ``existing`` ones."""
    ids = _model_ids(model_ids)
    if compile_grid is None or not compile_grid.strip():
        raise InvalidArgument("Compile parameters cannot be empty or NULL.")
    spaces = _compile_spaces(_literal(compile_grid, "compile_params_dict"))
    fits = _fit_space(_literal(fit_grid, "fit_params_dict"))
    if _is_random(search_type):
        if num_configs is None or num_configs < 1:
            raise InvalidArgument("DL: 'num_configs' cannot be NULL and needs to be a natural number for random search")
        rows = _random_rows(ids, spaces, fits, num_configs, random_state, set(existing))
    else:
        if num_configs is not None or random_state is not None:
            raise InvalidArgument("DL: 'num_configs' and 'random_state' must be NULL for grid search")
        rows = _grid_rows(ids, spaces, fits, set(existing))
    return _checked(rows, known)


def cross_product(
    model_ids: Iterable[int | None],
    compile_list: list[str] | None,
    fit_list: list[str] | None,
    known: Known = custom.NONE,
) -> list[Row]:
    """The rows of ``load_model_selection_table``: each model with each of both lists, strings as given."""
    if not fit_list:
        raise InvalidArgument("fit_params_list cannot be NULL")
    if not compile_list:
        raise InvalidArgument("compile_params_list cannot be NULL")
    ids = _model_ids(model_ids)
    compiles, fits = _distinct(compile_list, "compile_params"), _distinct(fit_list, "fit_params")
    return _checked(list(itertools.islice(itertools.product(ids, compiles, fits), MOST_ROWS + 1)), known)


# ---- reading grids --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dimension:
    """One parameter: the values to choose from, or the two bounds and the shape of a distribution."""

    name: str
    values: tuple[Any, ...] = ()
    shape: str | None = None
    stream: str = ""  # names its random numbers; apart from the name where one name occurs in several places

    def draw(self, uniform: float) -> Any:
        """The value at a uniform number in [0, 1)."""
        if self.shape is None:
            return self.values[int(uniform * len(self.values))]
        low, high = self.values
        if self.name in _WHOLE:
            if self.shape == "linear":
                return low + int(uniform * (high - low + 1))
            return min(high, max(low, round(10 ** _between(math.log10(low), math.log10(high), uniform))))
        if self.shape == "linear":
            value = _between(low, high, uniform)
        elif self.shape == "log":
            value = 10 ** _between(math.log10(low), math.log10(high), uniform)
        else:
            value = 1 - 10 ** _between(math.log10(1 - high), math.log10(1 - low), uniform)
        return float(min(high, max(low, value)))


def _between(low: float, high: float, uniform: float) -> float:
    return low + uniform * (high - low)


def _literal(text: str | None, what: str) -> dict[str, Any]:
    if text is None or not text.strip():
        return {}
    try:
        value = grammar.expression(text, what)
        _no_words(value)
    except InvalidSyntax as error:
        raise InvalidSyntax(
            f"Invalid syntax in '{what}': {error.message}",
            hint="Write a dictionary of lists, texts in quotes: {'loss': ['mse'], 'lr': [0.1, 0.01]}.",
        ) from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InvalidSyntax(f"Invalid syntax in '{what}': it must be a dictionary, its keys texts")
    return value


def _no_words(value: Any) -> None:
    if isinstance(value, (grammar.Word, grammar.Call)):
        name = value.name if isinstance(value, grammar.Call) else value
        raise InvalidSyntax(f"{name} must be in quotes")
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    for item in inner:
        _no_words(item)


def _compile_spaces(grid: dict[str, Any]) -> list[list[Dimension]]:
    """One space of dimensions, or one for each entry of optimizer_params_list."""
    outside = {key: value for key, value in grid.items() if key != OPTIMIZER_LIST}
    shared = [_dimension(key, value, "compile") for key, value in outside.items()]
    if OPTIMIZER_LIST not in grid:
        return [shared]
    optimizers = grid[OPTIMIZER_LIST]
    if not isinstance(optimizers, list) or not optimizers or not all(isinstance(one, dict) for one in optimizers):
        raise InvalidArgument(f"DL: '{OPTIMIZER_LIST}' must be a list of dictionaries")
    spaces = []
    for number, one in enumerate(optimizers):
        for key in one:
            if key in outside:
                raise InvalidArgument(f"DL: '{key}' is given both inside and outside '{OPTIMIZER_LIST}'")
        own = [_dimension(key, value, "compile", f"{OPTIMIZER_LIST}[{number}].{key}") for key, value in one.items()]
        spaces.append([*own, *shared])
    return spaces


def _fit_space(grid: dict[str, Any]) -> list[Dimension]:
    return [_dimension(key, value, "fit") for key, value in grid.items()]


def _dimension(name: str, values: Any, which: str, stream: str = "") -> Dimension:
    if not name.isidentifier():
        raise InvalidArgument(f"{name} is not currently accepted as a parameter.")
    if not isinstance(values, list) or not values:
        raise InvalidArgument(f"DL: {which} param values must be specified in a list", hint=f"'{name}': [value, …]")
    stream = stream or f"{which}.{name}"
    if not _is_distribution(values):
        return Dimension(name, tuple(values), stream=stream)
    if len(values) != 3:
        raise InvalidArgument(f"DL: '{name}' should have exactly 3 elements if picking from a distribution")
    low, high, shape = values
    if shape not in _DISTRIBUTIONS:
        raise InvalidArgument(
            f"DL: Please choose a valid distribution type for '{name}': {', '.join(_DISTRIBUTIONS)}",
            hint=f"{shape!r} is none of them.",
        )
    if not _is_number(low) or not _is_number(high) or low > high:
        raise InvalidArgument(
            f"DL: '{name}' should be of the format [lower_bound, upper_bound, distribution_type]",
            hint="The bounds are numbers, the lower one first.",
        )
    if shape == "log" and low <= 0:
        raise InvalidArgument(f"DL: '{name}': the bounds of a log distribution must be above 0")
    if shape == "log_near_one" and high >= 1:
        raise InvalidArgument(f"DL: '{name}': the bounds of a log_near_one distribution must be below 1")
    if name in _WHOLE and not (low == int(low) and high == int(high) and low >= 0 and shape != "log_near_one"):
        raise InvalidArgument(f"DL: '{name}': the bounds must be whole numbers, with linear or log")
    bounds = (int(low), int(high)) if name in _WHOLE else (low, high)
    return Dimension(name, bounds, shape, stream)


def _is_distribution(values: list[Any]) -> bool:
    """A text after numbers, or one of our distribution types after anything but texts."""
    *bounds, last = values
    if not bounds or not isinstance(last, str) or any(isinstance(bound, str) for bound in bounds):
        return False
    return last in _DISTRIBUTIONS or all(_is_number(bound) for bound in bounds)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_random(search_type: str | None) -> bool:
    given = (search_type or "grid").strip().lower()
    for known in ("grid", "random"):
        if given and known.startswith(given):
            return known == "random"
    raise InvalidArgument("DL: 'search_type' must be either 'grid' or 'random'")


def _model_ids(model_ids: Iterable[int | None]) -> list[int]:
    ids = set(model_ids)
    if not ids or None in ids:
        raise InvalidArgument("model_id_list must hold at least one model_id, and no NULL")
    return sorted(number for number in ids if number is not None)


# ---- drawing rows ---------------------------------------------------------------------------------


def _grid_rows(ids: list[int], spaces: list[list[Dimension]], fits: list[Dimension], taken: set[Row]) -> list[Row]:
    for dimension in itertools.chain(fits, *spaces):
        if dimension.shape is not None:
            raise InvalidArgument("DL: Cannot search from a distribution with grid search")

    def points(space: list[Dimension]) -> Iterator[dict[str, Any]]:
        names = [dimension.name for dimension in space]
        for values in itertools.product(*(dimension.values for dimension in space)):
            yield dict(zip(names, values))

    size = len(ids) * sum(math.prod(len(d.values) for d in [*space, *fits]) for space in spaces)
    if size > MOST_ROWS:
        raise InvalidArgument(f"the grid has {size} configurations; at most {MOST_ROWS} are made at once")
    compiles = [_compile_text(point) for space in spaces for point in points(space)]
    rows = itertools.product(ids, compiles, [_fit_text(point) for point in points(fits)])
    return [row for row in dict.fromkeys(rows) if row not in taken]


def _random_rows(
    ids: list[int],
    spaces: list[list[Dimension]],
    fits: list[Dimension],
    count: int,
    random_state: int | None,
    taken: set[Row],
) -> list[Row]:
    if count > MOST_ROWS:
        raise InvalidArgument(f"{count} configurations are too many; at most {MOST_ROWS} are made at once")
    seed = random.SystemRandom().getrandbits(64) if random_state is None else random_state
    which_model = Dimension("model_id", tuple(ids), stream="model_id")
    which_space = Dimension(OPTIMIZER_LIST, tuple(range(len(spaces))), stream=OPTIMIZER_LIST)
    dimensions = {one.stream: one for one in itertools.chain([which_model, which_space], *spaces, fits)}
    streams = {name: _stream(seed, name) for name in dimensions}
    rows: list[Row] = []
    for _ in range(1000 + 100 * count):  # enough to find the last of a small space's configurations
        # every dimension moves on at every draw, used or not: so none depends on the others
        drawn = {name: one.draw(streams[name].random()) for name, one in dimensions.items()}
        space = spaces[drawn[which_space.stream]]
        compile_text = _compile_text({one.name: drawn[one.stream] for one in space})
        fit_text = _fit_text({one.name: drawn[one.stream] for one in fits})
        row = (drawn[which_model.stream], compile_text, fit_text)
        if row not in taken:
            taken.add(row)
            rows.append(row)
            if len(rows) == count:
                return rows
    raise InvalidArgument(
        f"only {len(rows)} different configurations were found, not {count}",
        hint="Ask for fewer with num_configs, or give more values or wider distributions.",
    )


def _stream(seed: int, dimension: str) -> random.Random:
    digest = hashlib.sha256(f"{seed}/{dimension}".encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))


# ---- writing rows ---------------------------------------------------------------------------------


def _compile_text(point: dict[str, Any]) -> str:
    """``optimizer='Adam(lr=0.1)',loss='mse',metrics=['mae']``"""
    name = str(point.get("optimizer", "RMSprop"))
    entry = OPTIMIZERS.find(name.partition("(")[0].strip())
    arguments = [f"{key}={_argument(value)}" for key, value in point.items() if key not in COMPILE_KEYS]
    if "(" in name and arguments:
        raise InvalidArgument(f"DL: optimizer {name} has arguments already; give them all in the grid")
    called = name if "(" in name else f"{entry.class_name if entry else name}({','.join(arguments)})"
    parts = [f"optimizer={_written(called)}"]
    for key, value in point.items():
        if key in ("metrics", "weighted_metrics") and isinstance(value, str):
            value = [value]  # each element of the grid's list is one choice
        if key in COMPILE_KEYS and key != "optimizer":
            parts.append(f"{key}={_written(value)}")
    return ",".join(parts)


def _fit_text(point: dict[str, Any]) -> str:
    return ",".join(f"{key}={_written(value)}" for key, value in point.items())


def _argument(value: Any) -> str:
    """Inside the quotes of the optimizer; a call such as a learning-rate schedule stays a call."""
    if isinstance(value, str) and value.endswith(")"):
        return value
    return _written(value, '"')


def _written(value: Any, quote: str = "'") -> str:
    if isinstance(value, str):
        return quote + value.replace("\\", "\\\\").replace(quote, "\\" + quote) + quote
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_written(item, quote) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_written(key, quote)}:{_written(item, quote)}" for key, item in value.items()) + "}"
    return repr(value)


# ---- checking rows --------------------------------------------------------------------------------


def _distinct(texts: list[str], what: str) -> list[str]:
    """Without repetitions that differ in blanks or in the order of keys only; the last spelling stays."""
    kept: dict[str, str] = {}
    for text in texts:
        kept[_fingerprint(text, what)] = text or ""
    return list(kept.values())


def _fingerprint(text: str | None, what: str) -> str:
    if text is None or not text.strip():
        return ""
    if text.lstrip().startswith("{"):
        return text.strip()
    given = grammar.assignments(text, what)
    return repr(sorted((key, value.strip() if isinstance(value, str) else value) for key, value in given.items()))


def _checked(rows: list[Row], known: Known) -> list[Row]:
    if len(rows) > MOST_ROWS:
        raise InvalidArgument(f"more than {MOST_ROWS} configurations at once")
    checks = ((1, "Compile", lambda text: compile_params(text, known)), (2, "Fit", fit_params))
    for index, words, check in checks:
        for text in dict.fromkeys(str(row[index]) for row in rows):
            try:
                check(text)
            except CerebroError as error:
                message = f"{words} param check failed for: {text} \n {error.message}"
                raise type(error)(message, hint=error.hint, detail=error.detail) from None
    return rows
