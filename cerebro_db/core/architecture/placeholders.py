"""Architectures with parameters: ``"units": "$width"``, and blocks of layers that are repeated ``"$depth"`` times.

``filled`` replaces the parameters by values.  The result is checked against the allow-list like any other architecture.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgument
from .limits import DEEPEST, MOST_LAYERS, too_deep, too_many_layers
from .messages import shown

_PLACEHOLDER = re.compile(r"\$([A-Za-z_]\w*)\Z")
_BLOCK = {"repeat", "layers"}
HINT = (
    'A parameter stands for a whole value: "units": "$width". A block of layers is repeated with {"repeat":'
    ' "$depth", "layers": […]} in the list of layers of a Sequential model. A text that begins with $ is written $$.'
)


def names(template: Any) -> set[str]:
    """The parameters of an architecture."""
    found: set[str] = set()
    pending = [template]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, str) and (match := _PLACEHOLDER.match(value)):
            found.add(match.group(1))
    return found


def has_parameters(template: Any) -> bool:
    """Whether it needs ``filled``: it has parameters or blocks, or a text that begins with $$."""
    text = template if isinstance(template, str) else json.dumps(template)
    return '"$' in text or '"repeat"' in text


def filled(template: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The architecture with these values of its parameters; an error if one has none, or a value has no parameter."""
    needed = names(template)
    missing, unused = sorted(needed - set(values)), sorted(set(values) - needed)
    if missing:
        raise InvalidArgument(
            f"the architecture has {_parameters(missing)} without a value",
            hint="A search space, or a configuration, gives values to the parameters of its architecture.",
        )
    if unused:
        raise InvalidArgument(
            f"the architecture has no {_parameters(unused)}",
            hint=f"Its parameters are: {', '.join(sorted(needed))}." if needed else f"It has no parameters. {HINT}",
        )
    made: dict[str, Any] = _Filling(values).value(template, "", 1)
    return made


def _parameters(found: list[str]) -> str:
    return ("parameters " if len(found) > 1 else "parameter ") + ", ".join(found)


class _Filling:
    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._layers = 0  # made by repeating

    def value(self, node: Any, path: str, depth: int) -> Any:
        if depth > DEEPEST:
            raise too_deep()
        if isinstance(node, dict):
            if set(node) == _BLOCK:
                raise InvalidArgument(f"{path}: a repeated block is allowed only in the list of layers", hint=HINT)
            return {key: self.value(inner, f"{path}.{key}" if path else key, depth + 1) for key, inner in node.items()}
        if isinstance(node, list):
            made = []
            for index, inner in enumerate(node):
                place = f"{path}[{index}]"
                if isinstance(inner, dict) and set(inner) == _BLOCK and path.endswith("layers"):
                    made += self._repeated(inner, place, depth + 1)
                else:
                    made.append(self.value(inner, place, depth + 1))
            return made
        if isinstance(node, str) and node.startswith("$"):
            match = _PLACEHOLDER.match(node)
            if match is not None:
                return self._values[match.group(1)]
            if not node.startswith("$$"):
                raise InvalidArgument(f"{path}: {shown(node)} is not the name of a parameter", hint=HINT)
            return node[1:]
        return node

    def _repeated(self, block: dict[str, Any], path: str, depth: int) -> list[Any]:
        """The layers of a block, as often as it says.  The name of each gets a number: ``hidden_1``, ``hidden_2``."""
        times = self.value(block["repeat"], f"{path}.repeat", depth)
        if not isinstance(times, int) or isinstance(times, bool) or times < 0:
            raise InvalidArgument(f"{path}.repeat must be a whole number of at least 0, not {shown(times)}", hint=HINT)
        if not isinstance(block["layers"], list) or not block["layers"]:
            raise InvalidArgument(f"{path}.layers must be a list with at least one layer", hint=HINT)
        made: list[Any] = []
        for number in range(1, times + 1):
            layers = self.value(block["layers"], f"{path}.layers", depth)
            self._layers += len(layers)
            if self._layers > MOST_LAYERS:
                raise too_many_layers()
            made += [_numbered(layer, number) for layer in layers]
        return made


def _numbered(layer: Any, number: int) -> Any:
    config = layer.get("config") if isinstance(layer, dict) else None
    if not isinstance(config, dict) or not isinstance(config.get("name"), str):
        return layer  # Keras gives it a name
    name = f"{config['name']}_{number}"
    numbered = {**layer, "config": {**config, "name": name}}
    if "name" in layer:
        numbered["name"] = name
    return numbered
