"""The shapes of a model, as one text: what the speed of its training depends on, beside its batch size."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

# What the speed does not depend on: random numbers, and where weights begin.
IGNORED = ("seed", "seed_generator", "build_config", "compile_config")
OF_ROWS = (
    "dtype",
    "shape",
    "kind",
    "steps",
    "quantiles",
)  # what a trainer knows of a variable that has to do with speed


class ModelShapes:
    """The shapes of the models on rows of one layout.  Thousands of configurations may share an architecture."""

    def __init__(self, rows: Mapping[str, Any]) -> None:
        """``rows``: the layout as trainers get it."""
        self._rows = {side: [{name: one.get(name) for name in OF_ROWS} for one in its] for side, its in rows.items()}
        self._known: dict[int, tuple[Any, str]] = {}  # by the id of an architecture, with the architecture itself

    def of(self, definition: Mapping[str, Any]) -> str:
        """Equal for models that take equally long: they differ in names, in seeds, and in numbers that are no sizes.

        ``definition``: architecture and compile parameters.  The architecture has the precision of its layers.
        """
        architecture, compiled = definition["architecture"], definition["compile"]
        if id(architecture) not in self._known:
            self._known[id(architecture)] = architecture, _hash(_sizes(architecture, _names(architecture)))
        told = [
            self._known[id(architecture)][1],
            _kind(compiled.get("optimizer")),
            _sizes([compiled.get("loss"), compiled.get("metrics"), compiled.get("weighted_metrics")], {}),
            self._rows,
        ]
        return _hash(told)


def _kind(optimizer: Any) -> Any:
    """Its class, and which of its numbers are said: momentum, for instance, is one more number for each weight."""
    if not isinstance(optimizer, Mapping):  # none is said, or the log was changed by hand
        return None
    config = optimizer.get("config")
    return [optimizer.get("class_name"), sorted(config) if isinstance(config, Mapping) else []]


def _hash(told: Any) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]


def _names(architecture: Any) -> dict[str, str]:
    """The name of each layer -> its place among all names: Keras numbers layers on from model to model."""
    found: dict[str, str] = {}
    pending = [architecture]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            name = part.get("name")
            if isinstance(name, str):
                found.setdefault(name, f"layer {len(found)}")
            pending += [part[key] for key in sorted(part, reverse=True)]
        elif isinstance(part, list):
            pending += reversed(part)
    return found


def _sizes(part: Any, names: Mapping[str, str]) -> Any:
    """A part of an architecture without what the speed does not depend on."""
    if isinstance(part, dict):
        return {
            key: names.get(value, value) if key == "name" and isinstance(value, str) else _sizes(value, names)
            for key, value in part.items()
            if key not in IGNORED and not key.endswith("_initializer")
        }
    if isinstance(part, (list, tuple)):  # a connection names the layers that it joins
        return [names.get(one, one) if isinstance(one, str) else _sizes(one, names) for one in part]
    return None if isinstance(part, float) else part  # a rate is no size
