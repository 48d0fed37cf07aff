"""The frozen beginning of a model: layers that give the same for a row in every step, so that they are computed once.

Training cuts such a model there.  What it trains begins with the tensors that leave the frozen layers: the features of
a row (features.py).  The state is that of the whole model.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from cerebro_db.core.architecture import reading


@dataclass(frozen=True)
class FrozenBeginning:
    """Where a model is cut."""

    head: Any  # the model behind the cut, which shares its layers with the whole one
    body: Any  # the model before it
    architecture: dict[str, Any]  # of the body
    key: str  # equal for bodies that compute the same with the same weights
    tensors: list[Any]  # that enter the head: features, or inputs of the model that no frozen layer reads
    layers: int  # that are computed once

    def is_input(self, tensor: Any) -> bool:
        return any(tensor is one for one in self.body.inputs)

    def features(self) -> list[tuple[int, ...]]:
        """The shape of each feature of a row."""
        return [tuple(tensor.shape[1:]) for tensor in self.body.outputs]


def cut(model: Any) -> FrozenBeginning | None:
    """None if the model has no frozen beginning that is worth a cut."""
    import keras

    functional = model._functional if isinstance(model, keras.Sequential) else model
    if not hasattr(functional, "_nodes_by_depth") or any(map(_masks, model._flatten_layers())):
        return None  # a mask goes along with a tensor, and would be lost
    same = {id(tensor) for tensor in functional.inputs}
    entering: dict[int, Any] = {}
    frozen, behind = [], False
    for depth in sorted(functional._nodes_by_depth, reverse=True):
        for node in functional._nodes_by_depth[depth]:
            if node.is_input:
                continue
            before = [tensor for tensor in node.input_tensors if id(tensor) in same]
            if len(before) == len(node.input_tensors) and _gives_the_same(node.operation):
                same.update(map(id, node.outputs))
                frozen.append(node.operation)
            else:
                entering.update((id(tensor), tensor) for tensor in before)
                behind = True
    tensors = list(entering.values())
    features = [tensor for tensor in tensors if not any(tensor is one for one in functional.inputs)]
    weights = [variable for operation in frozen for variable in getattr(operation, "weights", ())]
    if (
        not (features and behind)
        or not any(len(variable.shape) >= 2 for variable in weights)  # what scales numbers takes no time
        or any(id(tensor) in same for tensor in functional.outputs)
        or any(None in tensor.shape[1:] for tensor in features)
    ):
        return None
    body = keras.Model(functional.inputs, features)
    text = body.to_json()
    ends = functional._outputs_struct
    head = keras.Model(tensors if len(tensors) > 1 else tensors[0], ends)
    if [id(one) for one in head.trainable_variables] != [id(one) for one in model.trainable_variables]:
        return None  # the optimizer has its variables in the order of these
    return FrozenBeginning(head, body, reading.architecture(text), _key(json.loads(text)), tensors, len(frozen))


def _masks(layer: Any) -> bool:
    import keras

    return isinstance(layer, keras.layers.Masking) or bool(getattr(layer, "mask_zero", False))


def _gives_the_same(operation: Any) -> bool:
    """Whether an operation gives the same for the same tensors in every step, and adds nothing to the loss."""
    import keras

    if not isinstance(operation, keras.layers.Layer):
        return type(operation).__module__.startswith("keras.src.ops.")
    if operation.trainable_variables:
        return False
    return all(map(_is_calm, operation._flatten_layers()))


def _is_calm(layer: Any) -> bool:
    """Whether a layer without weights that are trained computes in training as elsewhere.

    To call it with training=False does not help: a functional model of Keras 3.15 passes its own mode on to all layers.
    A layer that looks at its mode and is not known here is not calm.
    """
    import keras

    layers = keras.layers
    if getattr(layer, "activity_regularizer", None) is not None or getattr(layer, "stateful", False):
        return False
    recurrent = (layers.RNN, layers.LSTMCell, layers.GRUCell, layers.SimpleRNNCell, layers.StackedRNNCells)
    if isinstance(layer, recurrent):
        return not (getattr(layer, "dropout", 0) or getattr(layer, "recurrent_dropout", 0))
    if not layer._call_has_training_arg or isinstance(layer, (keras.Model, layers.Wrapper)):
        return True
    if isinstance(layer, (layers.Dense, layers.EinsumDense, layers.Embedding)):
        return getattr(layer, "quantization_mode", None) is None  # else training rounds in another way
    if isinstance(layer, layers.BatchNormalization):
        return not layer.trainable
    attention = (layers.MultiHeadAttention, layers.GroupQueryAttention, layers.Attention, layers.AdditiveAttention)
    if isinstance(layer, attention):
        return not (getattr(layer, "dropout", 0) or getattr(layer, "_dropout", 0))
    return getattr(layer, "rate", None) == 0


def _key(document: dict[str, Any]) -> str:
    """The hash of an architecture, whatever its layers are called."""
    names = {layer["config"]["name"]: f"layer {place}" for place, layer in enumerate(document["config"]["layers"])}

    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: named(one) for key, one in value.items()}
        if isinstance(value, list):
            return [named(one) for one in value]
        return names.get(value, value) if isinstance(value, str) else value

    config = {**document["config"], "name": ""}
    return hashlib.sha256(json.dumps(named(config), sort_keys=True).encode()).hexdigest()
