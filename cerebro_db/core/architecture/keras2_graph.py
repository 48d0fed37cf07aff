"""The graph of a functional model of Keras 2: references between layers, rewritten as Keras 3 writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import InvalidArgument
from .tables import MODELS

Node = dict[str, Any]

_RECURRENT = {"RNN", "SimpleRNN", "LSTM", "GRU", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D", "Bidirectional"}


class Keras2Graph:
    """The references ``[layer, call, output]`` between the layers of one functional model."""

    def __init__(self, layers: list[Node], config: Node, path: str) -> None:
        self.classes = {str(layer.get("name")): layer["class_name"] for layer in layers}
        self.path = path
        nodes = [layer.get("inbound_nodes") for layer in layers]
        calls = list(self.references([nodes, config.get("output_layers")]))
        # Keras 2 counts the calls of a nested model from 1 if its inputs are known, otherwise from 0.
        self.from_one = {name for name, class_name in self.classes.items() if class_name in MODELS}
        self.from_one -= {name for name, call in calls if call == 0}

    def is_reference(self, value: Any) -> bool:
        return (
            isinstance(value, list)
            and len(value) in (3, 4)
            and isinstance(value[0], str)
            and value[0] in self.classes
            and all(isinstance(number, int) and not isinstance(number, bool) for number in value[1:3])
        )

    def references(self, value: Any) -> Iterator[tuple[str, int]]:
        if self.is_reference(value):
            yield value[0], value[1]
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from self.references(inner)

    def call(self, class_name: str, node: Any) -> Node:
        """One call of a layer: the nested lists of Keras 2 become the arguments of a Python call."""
        if isinstance(node, dict):
            return node
        inputs, options = self.inputs(node)
        if class_name in _RECURRENT and isinstance(inputs, list) and len(inputs) > 1:
            inputs, options["initial_state"] = inputs[0], inputs[1:]  # Keras 2 calls the layer with [x, state…]
        return {"args": [inputs], "kwargs": options}

    def inputs(self, node: Any) -> tuple[Any, Node]:
        if self.is_reference(node):
            options = node[3] if len(node) == 4 and isinstance(node[3], dict) else {}
            kept = {key: self.tensors(value) for key, value in options.items() if value is not None}
            return self.tensors(node), kept
        if isinstance(node, list) and node and all(self.is_reference(item) for item in node):
            read = [self.inputs(item) for item in node]
            tensors = [tensor for tensor, _ in read]
            return tensors[0] if len(tensors) == 1 else tensors, read[0][1]
        raise InvalidArgument(f"{self.path}: {str(node)[:80]} in inbound_nodes is not a call of a layer")

    def tensors(self, value: Any) -> Any:
        """The value, with each reference replaced by the tensor that Keras 3 expects."""
        if self.is_reference(value):
            call = value[1] - (value[0] in self.from_one)
            # Shape and dtype are placeholders: Keras takes the tensor that keras_history names.
            config = {"shape": [None], "dtype": "float32", "keras_history": [value[0], call, value[2]]}
            return {"class_name": "__keras_tensor__", "config": config}
        if isinstance(value, list):
            return [self.tensors(item) for item in value]
        if isinstance(value, dict):
            return {key: self.tensors(item) for key, item in value.items()}
        return value

    def ends(self, value: Any) -> Any:
        """The inputs or outputs of the model.  Here Keras 3 counts the calls of a nested functional model from 1."""
        if self.is_reference(value):
            name, call, output = value[:3]
            from_zero = call - (name in self.from_one)
            return [name, from_zero + (self.classes[name] == "Functional"), output]
        if isinstance(value, list) and value:
            return self.ends(value[0]) if len(value) == 1 else [self.ends(item) for item in value]
        if isinstance(value, dict):
            return {key: self.ends(item) for key, item in value.items()}
        raise InvalidArgument(
            f"{self.path}: {str(value)[:80]} in input_layers or output_layers is not a reference to a layer"
        )
