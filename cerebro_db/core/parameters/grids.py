"""The rows of a model selection table: from grid search, random search, or a cross product of lists.

A row is (model_id, compile_params, fit_params); the parameters are strings.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Callable, Optional

from ..errors import CerebroError, InvalidArgument
from ..records import dataclass
from . import custom, grammar
from .custom import Known
from .grid_dimensions import OPTIMIZER_LIST, GridDimension, compile_spaces, fit_space, random_stream
from .params import compile_params, fit_params
from .writing import compile_text, fit_text

Row = tuple[int, str, Optional[str]]  # fit parameters may be NULL


Listen = Callable[[], None]

MOST_ROWS = 100_000
MOST_CHARACTERS = 100_000_000  # of all distinct texts of the rows: else a small grid could fill the memory
LISTEN_EVERY = 256  # rows


def generate(
    model_ids: Iterable[int | None],
    compile_grid: str | None,
    fit_grid: str | None,
    search_type: str | None = "grid",
    num_configs: int | None = None,
    random_state: int | None = None,
    *,
    existing: Collection[Row] = (),
    known: Known = custom.NONE,
    listen: Listen = lambda: None,
) -> list[Row]:
    """The rows of ``generate_model_configs``: those of the search that are not among the ``existing`` rows.

    It may take long, and calls ``listen`` again and again.
    """
    ids = _distinct_ids(model_ids)
    if compile_grid is None or not compile_grid.strip():
        raise InvalidArgument("Compile parameters cannot be empty or NULL.")
    grids = _Grids(ids, compile_spaces(compile_grid, "compile_params_dict"), fit_space(fit_grid, "fit_params_dict"))
    if _is_random(search_type):
        if num_configs is None or num_configs < 1:
            raise InvalidArgument("DL: 'num_configs' cannot be NULL and needs to be a natural number for random search")
        rows = _random_rows(grids, num_configs, random_state, set(existing), listen)
    else:
        if num_configs is not None or random_state is not None:
            raise InvalidArgument("DL: 'num_configs' and 'random_state' must be NULL for grid search")
        rows = _grid_rows(grids, set(existing))
    return _checked_rows(rows, known, listen)


def cross_product(
    model_ids: Iterable[int | None],
    compile_list: list[str | None] | None,
    fit_list: list[str | None] | None,
    known: Known = custom.NONE,
    listen: Listen = lambda: None,
) -> list[Row]:
    """The rows of ``load_model_selection_table``: each model with each element of both lists, as they are written."""
    if not fit_list:
        raise InvalidArgument("fit_params_list cannot be NULL")
    if not compile_list:
        raise InvalidArgument("compile_params_list cannot be NULL")
    ids = _distinct_ids(model_ids)
    compiles = [text or "" for text in _distinct_texts(compile_list, "compile_params")]
    fits = _distinct_texts(fit_list, "fit_params")
    rows = list(itertools.islice(itertools.product(ids, compiles, fits), MOST_ROWS + 1))
    return _checked_rows(rows, known, listen)


# ---- arguments ------------------------------------------------------------------------------------


def _is_random(search_type: str | None) -> bool:
    """Any beginning of the word is enough."""
    given = (search_type or "grid").strip().lower()
    for known in ("grid", "random"):
        if given and known.startswith(given):
            return known == "random"
    raise InvalidArgument("DL: 'search_type' must be either 'grid' or 'random'")


def _distinct_ids(model_ids: Iterable[int | None]) -> list[int]:
    ids = set(model_ids)
    if not ids or None in ids:
        raise InvalidArgument("model_id_list must have at least one element and no NULL")
    return sorted(number for number in ids if number is not None)


def _distinct_texts(texts: list[str | None], argument: str) -> list[str | None]:
    """The texts without repetitions.  Texts that differ only in blanks or in the order of keys count as equal."""
    kept: dict[str, str | None] = {}
    for text in texts:
        kept[_normalized(text, argument)] = text
    return list(kept.values())


def _normalized(text: str | None, argument: str) -> str:
    if text is None or not text.strip():
        return ""
    if text.lstrip().startswith("{"):
        return text.strip()
    given = grammar.assignments(text, argument)
    return repr(sorted((key, value.strip() if isinstance(value, str) else value) for key, value in given.items()))


# ---- grid search and random search ----------------------------------------------------------------


@dataclass(frozen=True)
class _Grids:
    """The architectures and the two grids of a call, as they were read."""

    ids: list[int]  # of the architectures
    spaces: list[list[GridDimension]]  # of the compile parameters: a point is from one of them
    fits: list[GridDimension]  # of the fit parameters


def _grid_rows(grids: _Grids, existing: set[Row]) -> list[Row]:
    ids, spaces, fits = grids.ids, grids.spaces, grids.fits
    for dimension in itertools.chain(fits, *spaces):
        if dimension.distribution is not None:
            raise InvalidArgument("DL: Cannot search from a distribution with grid search")

    size = _points(len(ids), spaces, fits)
    if size > MOST_ROWS:
        raise InvalidArgument(f"the grid has {size} configurations; the limit is {MOST_ROWS} in one call")
    compiles = _bounded(compile_text(point) for space in spaces for point in _of_space(space))
    fit_texts = _bounded(fit_text(point) for point in _of_space(fits))
    # In the order that gives an mst_key its meaning: the architecture varies fastest.
    rows = ((model_id, compiled, fit) for compiled, fit, model_id in itertools.product(compiles, fit_texts, ids))
    return [row for row in dict.fromkeys(rows) if row not in existing]


def points(compile_grid: str | None, fit_grid: str | None, architectures: int) -> int | None:
    """How many configurations the grids have with so many architectures; None: distributions have any number.

    Above MOST_ROWS it is the number of points, of which several may be the same configuration.
    """
    spaces, fits = compile_spaces(compile_grid, "compile_params_dict"), fit_space(fit_grid, "fit_params_dict")
    if any(one.distribution is not None for one in itertools.chain(fits, *spaces)):
        return None
    most = _points(architectures, spaces, fits)
    if most > MOST_ROWS:
        return most
    compiles = set(_bounded(compile_text(point) for space in spaces for point in _of_space(space)))
    return architectures * len(compiles) * len(set(_bounded(fit_text(point) for point in _of_space(fits))))


def _bounded(texts: Iterable[str]) -> list[str]:
    """The texts; an error if they are too long in all."""
    kept, characters = [], 0
    for text in texts:
        characters += len(text)
        if characters > MOST_CHARACTERS:
            raise _too_long()
        kept.append(text)
    return kept


def _too_long() -> InvalidArgument:
    return InvalidArgument(
        f"the parameters of the configurations have more than {MOST_CHARACTERS:,} characters, the limit in one call",
        hint="Give fewer values or shorter ones.",
    )


def _of_space(space: list[GridDimension]) -> Iterator[dict[str, Any]]:
    names = [dimension.name for dimension in space]
    for values in itertools.product(*(dimension.values for dimension in space)):
        yield dict(zip(names, values))


def _points(architectures: int, spaces: list[list[GridDimension]], fits: list[GridDimension]) -> int:
    """How many points a grid has."""
    return architectures * sum(math.prod(len(d.values) for d in [*space, *fits]) for space in spaces)


def _random_rows(grids: _Grids, count: int, random_state: int | None, existing: set[Row], listen: Listen) -> list[Row]:
    """Each dimension has a random stream of its own.

    So the dimensions are uncorrelated, and a further dimension does not change the values of the others.
    """
    ids, spaces, fits = grids.ids, grids.spaces, grids.fits
    if count > MOST_ROWS:
        raise InvalidArgument(f"num_configs is {count}; the limit is {MOST_ROWS} in one call")
    finite = all(one.distribution is None for one in itertools.chain(fits, *spaces))
    points = _points(len(ids), spaces, fits) if finite else MOST_ROWS
    if points < count:
        raise InvalidArgument(
            f"there are only {points} different configurations, but num_configs is {count}",
            hint="Make num_configs smaller, or give more values or distributions.",
        )
    seed = random.SystemRandom().getrandbits(64) if random_state is None else random_state
    which_model = GridDimension("model_id", tuple(ids), stream="model_id")
    which_space = GridDimension(OPTIMIZER_LIST, tuple(range(len(spaces))), stream=OPTIMIZER_LIST)
    dimensions = {one.stream: one for one in itertools.chain([which_model, which_space], *spaces, fits)}
    streams = {name: random_stream(seed, name) for name in dimensions}
    seen, rows, in_vain, characters = set(existing), [], 0, 0
    most_in_vain = 1000 + 30 * len(spaces) * points  # enough to find the last configuration
    for number in itertools.count():
        if number % LISTEN_EVERY == 0:
            listen()
        # Every dimension takes its next number in every round, also if the row does not use it: a dimension's values
        # must not depend on the values of the others.
        drawn = {name: one.draw(streams[name].random()) for name, one in dimensions.items()}
        space = spaces[drawn[which_space.stream]]
        compiled = compile_text({one.name: drawn[one.stream] for one in space})
        fit = fit_text({one.name: drawn[one.stream] for one in fits})
        row: Row = (drawn[which_model.stream], compiled, fit)
        in_vain += 1
        if row not in seen:
            in_vain = 0
            seen.add(row)
            rows.append(row)
            characters += len(compiled) + len(fit)
            if characters > MOST_CHARACTERS:
                raise _too_long()
            if len(rows) == count:
                return rows
        if in_vain > most_in_vain:
            break
    raise InvalidArgument(
        f"only {len(rows)} different configurations were found, but num_configs is {count}",
        hint="Make num_configs smaller, or give more values or wider distributions.",
    )


# ---- checking rows --------------------------------------------------------------------------------


def _checked_rows(rows: list[Row], known: Known, listen: Listen) -> list[Row]:
    """The rows, after their parameters have been read once."""
    if len(rows) > MOST_ROWS:
        raise InvalidArgument(f"there are more than {MOST_ROWS} configurations, which is the limit in one call")
    checks = (
        (1, "Compile", lambda text: compile_params(text, known)),
        (2, "Fit", lambda text: fit_params(text, tensorboard=True)),
    )
    for column, title, check in checks:
        for number, text in enumerate(dict.fromkeys(str(row[column] or "") for row in rows)):
            if number % LISTEN_EVERY == 0:
                listen()
            try:
                check(text)
            except CerebroError as error:
                message = f"{title} param check failed for: {text} \n {error.message}"
                raise type(error)(message, hint=error.hint, detail=error.detail) from None
    return rows
