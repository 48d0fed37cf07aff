"""The grids of MADlib as the JSON of a search space."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.parameters.grid_dimensions import GridDimension, compile_spaces, fit_space
from cerebro_db.core.parameters.params import COMPILE_KEYS, has_tensorboard
from cerebro_db.core.parameters.value_types import is_number
from cerebro_db.core.parameters.writing import DEFAULT_OPTIMIZER, fit_text

OPTIMIZER, CALLBACKS = "optimizer", "callbacks"


def space(model_ids: Sequence[int], compile_grid: str, fit_grid: str | None) -> dict[str, Any]:
    """The space of all configurations that a random search of the grids can find."""
    spaces = compile_spaces(compile_grid, "compile_params_dict")
    fits = fit_space(fit_grid, "fit_params_dict")
    if all(map(has_tensorboard, callbacks(fit_grid))):  # they have no effect, and a space has none
        fits = [one for one in fits if one.name != CALLBACKS]
    shared = {one.name: _tree(one) for one in spaces[0] if one.name in COMPILE_KEYS and one.name != OPTIMIZER}
    optimizers = [option for one in spaces for option in _optimizers(one)]
    return {
        "architecture": list(model_ids),
        "compile": {OPTIMIZER: optimizers[0] if len(optimizers) == 1 else {"choice": optimizers}, **shared},
        "fit": {one.name: _tree(one) for one in fits},
    }


def callbacks(fit_grid: str | None) -> list[str]:
    """Each value of the parameter callbacks, as a text of fit parameters."""
    found = [one for one in fit_space(fit_grid, "fit_params_dict") if one.name == CALLBACKS]
    return [fit_text({CALLBACKS: value}) for one in found for value in one.values]


def _optimizers(dimensions: list[GridDimension]) -> list[Any]:
    """Each optimizer with its own dimensions: every other parameter is an argument of the optimizer."""
    names = next((one.values for one in dimensions if one.name == OPTIMIZER), (DEFAULT_OPTIMIZER,))
    own = {one.name: _tree(one) for one in dimensions if one.name not in COMPILE_KEYS}
    return [{"class_name": str(name), "config": own} if own else name for name in dict.fromkeys(names)]


def _tree(dimension: GridDimension) -> Any:
    """The constant, or the dimension of a space."""
    name, values = dimension.name, dimension.values
    if dimension.distribution is None:
        different: dict[str, Any] = {}
        for value in values:
            different.setdefault(json.dumps(float(value) if is_number(value) else value), value)
        options = list(different.values())
        return options[0] if len(options) == 1 else {"choice": options}
    if dimension.distribution == "log_near_one":
        raise InvalidArgument(
            f"DL: Please choose a valid distribution type for '{name}': linear, log",
            hint="hyperopt with the algorithm tpe has no log_near_one; hyperband has.",
        )
    log = dimension.distribution == "log"
    if dimension.whole:
        return {"log_integer" if log else "integer": list(values)}
    return {"log_uniform" if log else "uniform": list(values)}
