"""A model with an output more: the vector that an inner layer gives for a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cerebro_db.core.architecture import trees
from cerebro_db.core.errors import ConfigurationFailed
from cerebro_db.core.texts import counted

WIDEST = 16_000  # numbers; a vector of pgvector has no more
MOST_NAMED = 30  # layers, in an error


def with_vector(model: Any, layer: str | None) -> Any:
    """The model, with the vector behind its outputs.  ``layer``: as in asked_vector.py."""
    import keras

    functional = model._functional if isinstance(model, keras.Sequential) else model
    if not hasattr(functional, "_nodes_by_depth"):
        raise ConfigurationFailed("the model is no graph of layers, so it has no vectors of inner layers")
    found = _last_hidden(functional) if layer is None else _named(functional, layer.split("/"), layer, functional)
    _require_vector(found, layer, functional)
    whole = keras.Model(functional._inputs_struct, [*functional.outputs, found], name=model.name)
    assert [id(one) for one in whole.weights] == [id(one) for one in model.weights]
    return whole


def _named(model: Any, names: list[str], path: str, outer: Any) -> Any:
    """The output of a layer, over the inputs of ``model``."""
    # Names of layers may have a / themselves.
    known = {layer.name: layer for layer in model.layers}
    count = next((count for count in range(len(names), 0, -1) if "/".join(names[:count]) in known), 0)
    if not count:
        raise ConfigurationFailed(f"the model has no layer {path}", hint=_vectors_of(outer))
    layer, rest = known["/".join(names[:count])], names[count:]
    nodes = _calls(layer, model)
    if len(nodes) != 1 or (not rest and len(nodes[0].outputs) != 1):
        raise ConfigurationFailed(
            f"the layer {path} gives {counted(sum(len(node.outputs) for node in nodes), 'tensor')} for a row",
            hint=_vectors_of(outer),
        )
    if not rest:
        return nodes[0].outputs[0]
    inner = _graph_of(layer)
    if inner is None:
        raise ConfigurationFailed(f"the model has no layer {path}", hint=_vectors_of(outer))
    return _called(inner, [_named(inner, rest, path, outer)], nodes[0])[0]


def _last_hidden(model: Any) -> Any:
    """What enters the last layers with a matrix.  Several of them, as of an ensemble, are joined."""
    import keras

    tensors = _hidden(model)
    if not tensors:
        raise ConfigurationFailed(
            "the model has no hidden layer: trees and linear models have none",
            hint=f"configuration => … names another model. {_vectors_of(model)}",
        )
    if len(tensors) == 1:
        return tensors[0]
    for tensor in tensors:
        _require_vector(tensor, None, model)
    return keras.layers.Concatenate(name="vector_of_several")(tensors)


def _hidden(model: Any) -> list[Any]:
    return list({id(tensor): tensor for output in model.outputs for tensor in _before(output)}.values())


def _before(tensor: Any) -> Iterator[Any]:
    """What enters the last layer with a matrix on each way to a tensor, if it has such layers before it, too."""
    node = _node_of(tensor)
    inner = None if node.is_input else _graph_of(node.operation)
    if inner is not None:
        if not trees.have_leaves(layer.name for layer in inner.layers) and (found := _hidden(inner)):
            yield from _called(inner, found, node)
    elif _has_matrix(node.operation):
        yield from filter(_is_learned, node.input_tensors)
    else:
        for one in node.input_tensors:
            yield from _before(one)


def _is_learned(tensor: Any) -> bool:
    node = _node_of(tensor)
    return not node.is_input and (_has_matrix(node.operation) or any(map(_is_learned, node.input_tensors)))


def _node_of(tensor: Any) -> Any:
    history = tensor._keras_history
    return history.operation._inbound_nodes[history.node_index]


def _has_matrix(operation: Any) -> bool:
    return any(len(one.shape) >= 2 for one in getattr(operation, "weights", ()))


def _graph_of(layer: Any) -> Any:
    """The graph of a layer that is a model; None if it is none."""
    found = getattr(layer, "_functional", None) or layer
    return found if hasattr(found, "_nodes_by_depth") else None


def _called(inner: Any, tensors: list[Any], node: Any) -> list[Any]:
    """The tensors of a model within a model, over what this one is called with at a node."""
    import keras

    part = keras.Model(inner.inputs, tensors, name=f"{inner.name}_vectors")
    return list(part(list(node.input_tensors)))


def _require_vector(tensor: Any, layer: str | None, model: Any) -> None:
    if len(tensor.shape) == 2 and tensor.shape[1] is not None and tensor.shape[1] <= WIDEST:
        return
    which = "the last hidden layer" if layer is None else f"the layer {layer}"
    if len(tensor.shape) == 2:
        raise ConfigurationFailed(f"{which} gives {tensor.shape[1]:,} numbers, and a vector has {WIDEST:,} at most")
    shape = " × ".join(map(str, tensor.shape[1:])) or "one"
    raise ConfigurationFailed(f"{which} gives {shape} numbers for a row, and no vector", hint=_vectors_of(model))


def _calls(layer: Any, model: Any) -> list[Any]:
    """The nodes at which a model calls a layer: other models may call it, too."""
    return [node for nodes in model._nodes_by_depth.values() for node in nodes if node.operation is layer]


def _vectors_of(model: Any) -> str:
    names = [
        layer.name
        for layer in model.layers
        if len(found := [one for node in _calls(layer, model) for one in node.outputs]) == 1
        and len(found[0].shape) == 2
    ]
    more = "" if len(names) <= MOST_NAMED else f" and {len(names) - MOST_NAMED} others"
    return f"Layers that give a vector: {', '.join(names[:MOST_NAMED])}{more}."
