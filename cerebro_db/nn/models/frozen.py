"""The frozen beginning of a model: layers that give the same for a row in every step, so that they are computed once.

Training cuts such a model there.  What it trains begins with the tensors that leave the frozen layers: the features of
a row (frozen_features.py).  The state is that of the whole model.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

# Layers that compute each row by itself, in training as elsewhere, if their weights are frozen.  No other layer is
# taken for frozen: it may look at all rows of a batch.
CALM = """
    InputLayer Identity Dense Embedding Activation ReLU LeakyReLU PReLU ELU Rescaling Normalization
    Conv1D Conv2D Conv3D Conv1DTranspose Conv2DTranspose Conv3DTranspose DepthwiseConv1D DepthwiseConv2D
    SeparableConv1D SeparableConv2D
    MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D AveragePooling2D AveragePooling3D
    GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D
    GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
    ZeroPadding1D ZeroPadding2D ZeroPadding3D Cropping1D Cropping2D Cropping3D UpSampling1D UpSampling2D UpSampling3D
    Flatten Reshape Permute RepeatVector Add Subtract Multiply Average Maximum Minimum Concatenate
    BatchNormalization LayerNormalization GroupNormalization UnitNormalization
    LSTM LSTMCell GRU GRUCell SimpleRNN SimpleRNNCell Bidirectional TimeDistributed MultiHeadAttention
    Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D
"""
# Operations of Keras that are no layers, such as x + 3: of tensors with the same number of dimensions, and of numbers.
CALM_OPERATIONS = {"Add", "Subtract", "Multiply", "Divide", "TrueDivide", "Negative"}
OPERATIONS = "keras.src.ops.numpy"  # the module of these
NOT_WITH = ("dropout", "_dropout", "recurrent_dropout", "rate")  # numbers that make a layer drop values


@dataclass(frozen=True)
class FrozenBeginning:
    """Where a model is cut."""

    head: Any  # the model behind the cut; it and the body have their layers from the whole one
    body: Any  # the model before it; its outputs are the features
    key: str  # equal for bodies that compute the same with the same weights
    sources: list[int | None]  # of what enters the head: the place of an input of the model; None: the next feature
    layers: int  # that are computed once
    type: str  # of the numbers in which features are kept

    @property
    def features(self) -> list[tuple[int, ...]]:
        """The shape of each feature of a row."""
        return [tuple(tensor.shape[1:]) for tensor in self.body.outputs]


def has_frozen(architecture: Any) -> bool:
    """Whether some layer says that it does not train.  Most models have none, and nobody looks further."""
    if isinstance(architecture, dict):
        return architecture.get("trainable") is False or any(map(has_frozen, architecture.values()))
    return isinstance(architecture, list) and any(map(has_frozen, architecture))


def constant_weights(model: Any, weights: Sequence[Any]) -> list[int]:
    """The places of the weights, in this order, that neither training nor a call of the model changes."""
    changed = {id(variable) for variable in model.trainable_variables}
    for layer in model._flatten_layers():
        if not _keeps_statistics(layer):
            changed.update(map(id, layer._non_trainable_variables))
    return [place for place, variable in enumerate(weights) if id(variable) not in changed]


def _keeps_statistics(layer: Any) -> bool:
    """Whether a layer never writes the statistics that it has."""
    import keras

    return type(layer) is keras.layers.Normalization or (
        type(layer) is keras.layers.BatchNormalization and not layer.trainable
    )


def cut(model: Any, type: str) -> FrozenBeginning | None:
    """None if the model has no frozen beginning that is worth a cut.  ``type``: of the numbers that are kept."""
    import keras

    functional = model._functional if isinstance(model, keras.Sequential) else model
    if not hasattr(functional, "_nodes_by_depth") or any(map(_masks, model._flatten_layers())):
        return None  # a mask goes along with a tensor, and would be lost
    nodes = [node for _, each in sorted(functional._nodes_by_depth.items(), reverse=True) for node in each]
    called = Counter(id(node.operation) for node in nodes)
    same = {id(tensor) for tensor in functional.inputs}
    entering: dict[int, Any] = {}
    frozen = []
    for node in nodes:
        if node.is_input:
            continue
        before = [tensor for tensor in node.input_tensors if id(tensor) in same]
        # A layer that is called again may be needed behind the cut, too.
        once = called[id(node.operation)] == 1 and len(before) == len(node.input_tensors)
        if once and _is_calm(node.operation) and not getattr(node.operation, "trainable_variables", ()):
            same.update(map(id, node.outputs))
            frozen.append(node.operation)
        else:
            entering.update((id(tensor), tensor) for tensor in before)
    tensors, inputs = list(entering.values()), [id(tensor) for tensor in functional.inputs]
    features = [tensor for tensor in tensors if id(tensor) not in inputs]
    layers = [operation for operation in frozen if isinstance(operation, keras.Layer)]
    weights = [variable for layer in layers for variable in layer.weights]
    if (
        not features
        or not any(len(variable.shape) >= 2 for variable in weights)  # what scales numbers takes no time
        or any(id(tensor) in same for tensor in functional.outputs)
        or any(tensor.shape[0] is not None or None in tensor.shape[1:] for tensor in features)
    ):
        return None
    with contextlib.suppress(Exception):  # a graph that Keras cannot cut is trained as a whole
        body = keras.Model(functional.inputs, features, name="body")
        key = body.to_json()  # before the head calls layers again
        head = keras.Model(tensors if len(tensors) > 1 else tensors[0], functional._outputs_struct)
        # The optimizer has its variables in the order of these.
        if [id(one) for one in head.trainable_variables] == [id(one) for one in model.trainable_variables]:
            sources = [inputs.index(id(tensor)) if id(tensor) in inputs else None for tensor in tensors]
            return FrozenBeginning(head, body, key, sources, len(layers), type)
    return None


def _masks(layer: Any) -> bool:
    import keras

    return isinstance(layer, keras.layers.Masking) or bool(getattr(layer, "mask_zero", False))


@functools.cache
def _calm_classes() -> Collection[type]:
    import keras

    return frozenset(getattr(keras.layers, name) for name in CALM.split())


def _is_calm(operation: Any) -> bool:
    """Whether an operation computes each row by itself, in training as elsewhere, and adds nothing to the loss.

    To call it with training=False does not help: a functional model of Keras 3.15 passes its own mode on to all layers.
    """
    import keras

    if type(operation) in (keras.Model, keras.Sequential) or type(operation).__name__ == "Functional":
        functional = operation._functional if isinstance(operation, keras.Sequential) else operation
        return functional is not None and all(map(_is_calm, functional._operations))
    if type(operation).__module__ == OPERATIONS:
        return type(operation).__name__ in CALM_OPERATIONS and all(map(_is_of_rows, operation._inbound_nodes))
    if type(operation) not in _calm_classes() or _reads_one_number(operation):
        return False
    inner = operation._flatten_layers(include_self=False)  # those of attention are known
    if not isinstance(operation, keras.layers.MultiHeadAttention) and not all(map(_is_calm, inner)):
        return False
    axes = [*_listed(getattr(operation, "axis", -1)), *_listed(getattr(operation, "_attention_axes", None) or -1)]
    return not (
        any(getattr(operation, name, None) for name in NOT_WITH)
        or any(axis in (0, None) or axis < -1 for axis in axes)
        or getattr(operation, "activity_regularizer", None) is not None
        or getattr(operation, "stateful", False)
        or getattr(operation, "quantization_mode", None) is not None
        or (isinstance(operation, keras.layers.BatchNormalization) and operation.trainable)
    )


def _reads_one_number(operation: Any) -> bool:
    """Whether the last dimension of a tensor that it reads is that of the rows, which a softmax would mix."""
    return any(len(tensor.shape) < 2 for node in operation._inbound_nodes for tensor in node.input_tensors)


def _is_of_rows(node: Any) -> bool:
    """Whether an operation is called with numbers, and tensors whose first dimension is that of the rows."""
    given = [*node.arguments.args, *node.arguments.kwargs.values()]
    tensors = [id(one) for one in node.input_tensors]
    numbers = [one for one in given if id(one) not in tensors]
    same = len({len(tensor.shape) for tensor in node.input_tensors}) == 1
    return same and len(given) - len(numbers) == len(tensors) and all(type(one) in (int, float) for one in numbers)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
