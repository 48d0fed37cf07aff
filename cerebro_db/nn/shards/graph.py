"""A model as a sequence of steps that can be cut: the nodes of its graph, in the order in which Keras computes them.

A cut lies between two steps.  What earlier steps give and later ones need crosses it: the boundary tensors, those of
branches and residuals among them.  A layer whose weights are used by several steps is not cut apart: these steps and
all between them make one piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cerebro_db.core.errors import ConfigurationFailed
from cerebro_db.nn.models.dtypes import item_bytes


@dataclass(frozen=True)
class GraphPiece:
    """Steps that are never cut apart."""

    nodes: tuple[Any, ...]
    variables: tuple[Any, ...]  # of their layers, states of random numbers included; each once

    @property
    def name(self) -> str:
        return str(self.nodes[0].operation.name)

    @property
    def bytes(self) -> int:
        return sum(bytes_of(variable) for variable in self.variables)


@dataclass(frozen=True)
class Shard:
    """Pieces that are in memory together, and the tensors that enter and leave them."""

    pieces: tuple[GraphPiece, ...]
    entering: tuple[Any, ...]  # symbolic tensors; some only pass through
    leaving: tuple[Any, ...]  # those of the last shard are the model's outputs

    @property
    def nodes(self) -> Iterator[Any]:
        return (node for piece in self.pieces for node in piece.nodes)

    @property
    def variables(self) -> list[Any]:
        return [variable for piece in self.pieces for variable in piece.variables]

    @property
    def layers(self) -> list[Any]:
        """Its layers, those within layers included, each once."""
        import keras

        found: dict[int, Any] = {}
        for node in self.nodes:
            if isinstance(node.operation, keras.layers.Layer):
                found.update((id(layer), layer) for layer in node.operation._flatten_layers())
        return list(found.values())


def functional_of(model: Any) -> Any:
    """The graph of a model."""
    import keras

    found = model._functional if isinstance(model, keras.Sequential) else model
    if found is None or not hasattr(found, "_nodes_by_depth"):
        raise ConfigurationFailed(
            "the model is no graph of layers, so it cannot be cut into shards",
            hint='Describe it as a Sequential or Functional model, or train it with {"shard": "never"}.',
        )
    return found


def nodes_of(model: Any) -> list[Any]:
    """The calls of a model's layers, in the order in which they are computed."""
    return [
        node
        for _, same_depth in sorted(functional_of(model)._nodes_by_depth.items(), reverse=True)
        for node in same_depth
        if not node.is_input
    ]


def pieces(model: Any) -> list[GraphPiece]:
    """The smallest parts of a model between which it can be cut."""
    nodes = nodes_of(model)
    if not nodes:
        raise ConfigurationFailed("the model has no layers", hint="Add a layer that trains.")
    last: dict[int, int] = {}  # by a variable, the last step that uses it
    used = [_variables(node.operation) for node in nodes]
    for place, variables in enumerate(used):
        last.update((id(variable), place) for variable in variables)
    found, start, end = [], 0, -1
    for place, variables in enumerate(used):
        end = max([end, place, *(last[id(variable)] for variable in variables)])
        if end == place:
            own = {id(one): one for each in used[start : place + 1] for one in each}
            found.append(GraphPiece(tuple(nodes[start : place + 1]), tuple(own.values())))
            start = place + 1
    return found


def shards(model: Any, groups: Sequence[Sequence[GraphPiece]]) -> list[Shard]:
    """The shards of these groups of pieces, which are all pieces of the model in their order."""
    functional = functional_of(model)
    needed: list[dict[int, Any]] = [{id(one): one for one in functional.outputs}]  # after each group, backwards
    for group in reversed(groups):
        before = dict(needed[0])
        for piece in reversed(group):
            for node in reversed(piece.nodes):
                for tensor in node.outputs:
                    before.pop(id(tensor), None)
                before.update((id(tensor), tensor) for tensor in node.input_tensors)
        needed.insert(0, before)
    needed[0] = {id(one): one for one in functional.inputs}  # also those that no layer reads
    needed[-1] = {number: one for number, one in enumerate(functional.outputs)}  # a tensor may be an output twice
    return [
        Shard(tuple(group), tuple(entering.values()), tuple(leaving.values()))
        for group, entering, leaving in zip(groups, needed, needed[1:])
    ]


def bytes_of(variable: Any) -> int:
    """Of a variable, whether it has a value or not."""
    return math.prod(variable.shape) * item_bytes(str(variable.dtype))


def _variables(operation: Any) -> list[Any]:
    import keras

    if not isinstance(operation, keras.layers.Layer):
        return []
    own = {id(one): one for one in operation.variables}  # seeds are among them
    return list(own.values())
