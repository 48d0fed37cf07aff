"""The results of earlier runs: their configurations as points of another run's space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import CerebroError
from ...parameters import params
from ...parameters.params import COMPILE_KEYS
from .dimensions import Choice, Dimension, same
from .space import ARCHITECTURE, Label, Point, Space

Json = Mapping[str, Any]


def point_of(
    space: Space,
    architectures: Mapping[Label, Json],
    chosen: Point | None,
    architecture: Json,
    compiled: Json,
    fit: Json,
) -> dict[str, Any] | None:
    """The point of the space that an earlier configuration is; None if it is none.

    ``architectures``: those of the space that have no parameters, as they are trained.  ``chosen``: the point that the
    configuration was in its own run.  ``architecture``, ``compiled`` and ``fit``: the configuration as it was trained.
    """
    if chosen and space.has(chosen):
        return dict(chosen)
    label = next((one for one, known in architectures.items() if known == architecture), None)
    if label is None:
        return None
    try:
        point = space.point(lambda one: _value(one, label, compiled, fit))
        drawn = space.configuration(point)
        alike = params.compile_params(drawn.compile_params) == compiled and params.fit_params(drawn.fit_params) == fit
    except (CerebroError, LookupError, StopIteration):
        return None
    return point if alike and space.has(point) else None


def _value(dimension: Dimension, label: Label, compiled: Json, fit: Json) -> Any:
    """What a configuration has for a dimension; a LookupError if that cannot be told."""
    if dimension.path == ARCHITECTURE:
        return label
    part, _, path = dimension.path.partition(".")
    key = path.rpartition(".")[2]
    if part == "fit":
        value = fit[key]
    elif path == "optimizer":
        value = compiled["optimizer"]["class_name"]
    elif path in COMPILE_KEYS:
        value = compiled[path]
    else:
        value = compiled["optimizer"]["config"]["learning_rate" if key == "lr" else key]
    if isinstance(dimension, Choice):
        return next(label for label in dimension.labels if same(label, value) or _same_name(label, value))
    if not dimension.has(value):
        raise LookupError(f"{dimension.path} is never {value}")
    return value


def _same_name(label: Any, value: Any) -> bool:
    return isinstance(label, str) and isinstance(value, str) and label.lower() == value.lower()
