"""The numbers of a configuration that are variables of its program, so that configurations can share a program.

Another penalty (1e-4 instead of 1e-3) or another momentum changes a value and no operation.  Such numbers are left out
of the program's key, and are put into its variables before a configuration is trained.  They are no part of the state,
because the configuration holds them.

Not every number can be a variable.  The bits have to be those of plain Keras, which computes in float64 with a Python
number and in float32 with a variable.  Where the results differ (``1 / (1 - rate)`` of Dropout,
``1 / global_clipnorm``) the number stays in the key.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

Configuration = dict[str, Any]
Places = list[tuple[Any, str]]  # objects and the names of their attributes

REGULARIZERS = {"L1": ("l1",), "L2": ("l2",), "L1L2": ("l1", "l2")}
OF_EVERY_OPTIMIZER = ("clipnorm", "clipvalue", "weight_decay")
OF_OPTIMIZERS = {
    "Adadelta": ("epsilon", "rho"),
    "Adagrad": ("epsilon",),
    "Adam": ("beta_1", "beta_2", "epsilon"),
    "AdamW": ("beta_1", "beta_2", "epsilon"),
    "Adamax": ("beta_1", "beta_2", "epsilon"),
    "Lamb": ("beta_1", "beta_2", "epsilon"),
    "Lion": ("beta_1", "beta_2"),
    "Nadam": ("beta_1", "beta_2", "epsilon"),
    "RMSprop": ("epsilon", "momentum", "rho"),
    "SGD": ("momentum",),
}
# Rounding to float32 and then to another type need not be rounding to that type.
OTHER_TYPES = re.compile(r"float16|float64|float8|int8")


def apart(configuration: Configuration) -> tuple[Configuration, list[float]]:
    """The configuration without such numbers, and the numbers, in an order that depends on that configuration alone.

    An optimizer's number is replaced by its name.  A regularizer's number is replaced by its position, counted from
    1.0: a model can be built with these positions, and then shows which attribute holds which number.
    """
    if OTHER_TYPES.search(json.dumps(configuration["architecture"])):
        return configuration, []
    numbers: list[float] = []
    architecture = _regularizers_apart(configuration["architecture"], numbers)
    return {
        **configuration,
        "architecture": architecture,
        "compile": _optimizer_apart(configuration["compile"], numbers),
    }, numbers


class Plain:
    """A number as a Python number, for engines that compile nothing: Keras reads it anew at each step."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def put(self, number: float) -> None:
        _put_in(self._places, number)


def install(model: Any, configuration: Configuration, as_variables: bool) -> list[Any]:
    """Put the numbers into a model that was built from the architecture of ``apart``; return their holders."""
    holders: list[Any] = []
    for number, places in zip(apart(configuration)[1], _places(model, configuration)):
        if as_variables:
            from cerebro_db.nn.models.number import NumberVariable

            holders.append(NumberVariable(number))
            _put_in(places, holders[-1])
        else:
            holders.append(Plain(places))
            holders[-1].put(number)
    return holders


def _places(model: Any, configuration: Configuration) -> list[Places]:
    """For each number the attributes that hold it."""
    found: list[Places] = [[] for _ in apart(configuration)[1]]
    for regularizer in _regularizers(model):
        for name in REGULARIZERS.get(type(regularizer).__name__, ()):
            position = float(getattr(regularizer, name))
            if position in range(1, len(found) + 1):
                found[int(position) - 1].append((regularizer, name))
    names = _shared_names(configuration["compile"].get("optimizer")) if found else []
    for name, places in zip(reversed(names), reversed(found)):  # the optimizer's numbers come last
        places.append((model.optimizer, name))
    return found


def _put_in(places: Places, value: Any) -> None:
    for owner, name in places:
        # Keras' own __setattr__ would add a variable to the optimizer's state
        object.__setattr__(owner, name, value)


def put(holders: Sequence[Any], configuration: Configuration) -> None:
    if holders:
        for holder, number in zip(holders, apart(configuration)[1]):
            holder.put(number)


def _regularizers_apart(part: Any, numbers: list[float]) -> Any:
    if isinstance(part, list):
        return [_regularizers_apart(one, numbers) for one in part]
    if not isinstance(part, dict):
        return part
    names = REGULARIZERS.get(str(part.get("class_name")), ())
    if not names or not isinstance(part.get("config"), dict):
        return {key: _regularizers_apart(part[key], numbers) for key in sorted(part)}
    config = dict(part["config"])
    for name in names:
        if _is_shared(config.get(name)):
            numbers.append(float(config[name]))
            config[name] = float(len(numbers))
    return {**part, "config": config}


def _optimizer_apart(compile_: dict[str, Any], numbers: list[float]) -> dict[str, Any]:
    optimizer = compile_.get("optimizer")
    names = _shared_names(optimizer)
    if not names or not isinstance(optimizer, dict):
        return compile_
    config = dict(optimizer["config"])
    for name in names:
        numbers.append(float(config[name]))
        config[name] = name
    return {**compile_, "optimizer": {**optimizer, "config": config}}


def _shared_names(optimizer: Any) -> list[str]:
    if not isinstance(optimizer, dict):
        return []
    config = optimizer.get("config") or {}
    names = OF_OPTIMIZERS.get(str(optimizer.get("class_name")), ())
    return sorted(name for name in (*names, *OF_EVERY_OPTIMIZER) if _is_shared(config.get(name)))


def _is_shared(number: Any) -> bool:
    """Whether a number can be a variable.  Zero and None cannot: Keras leaves out the operations with them."""
    return type(number) in (int, float) and 0 < number < math.inf


def _regularizers(model: Any) -> list[Any]:
    """All objects of a model that add penalties, each once."""
    found = [getattr(variable, "regularizer", None) for variable in model.variables]
    found += [getattr(layer, "activity_regularizer", None) for layer in model._flatten_layers()]
    return list({id(one): one for one in found if one is not None}.values())
