"""Writes the JSON of a functional Keras model, layer by layer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..packing.windows import Windows
from ..records import dataclass, field

Json = dict[str, Any]

# Names of the layers whose numbers a trainer takes from the rows of a model's group; a number follows.
INPUTS_OF_GROUP, TARGET_OF_GROUP = "group_inputs", "group_target"
_OF_GROUP = re.compile(rf"(?:{INPUTS_OF_GROUP}|{TARGET_OF_GROUP})_[0-9]+")
ANGLES = "angles"  # layers whose numbers are far from 0, and need all digits
_EXACT = re.compile(rf"{_OF_GROUP.pattern}|{ANGLES}_[0-9]+")
ZEROS: Json = {"module": "keras.initializers", "class_name": "Zeros", "config": {}, "registered_name": None}
NUMPY = "keras.src.ops.numpy"
LEAST_DISTANCE = 1e-4  # deviations: a window may have the same number in all rows
SCALED = "bf,f->bf"  # each number times one of its own
SCALED_STEPS = "bsf,f->bsf"


@dataclass
class Level:
    """Where a window has what the target was in its rows: the later values are near them, in each series."""

    name: str  # of the input
    place: int  # among its numbers
    mean: str = ""  # of the window, and the mean distance from it: tensors, once the input is read
    distance: str = ""
    values: str = ""  # counted from the mean, in units of the distance


@dataclass
class Graph:
    """The layers so far.  Each method adds layers and returns the name of the last, as input for others."""

    taken: set[str]  # names that no inner layer may have: those of the inputs and outputs
    group_statistics: bool = False  # whether a model for a group measures its numbers by the group's rows
    # Of inputs that are read in part: the shape of the whole, and the parts of its last dimension.
    parts: dict[str, tuple[tuple[int, ...], list[tuple[int, int]]]] = field(default_factory=dict)
    level: Level | None = None  # of windows that forecast: the numbers that are measured by the window itself
    layers: list[Json] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def input(self, name: str, shape: Sequence[int], dtype: str) -> str:
        """An input, or what is read of it."""
        return self._read(name, self._declared(name, shape, dtype))

    def _declared(self, name: str, shape: Sequence[int], dtype: str) -> str:
        whole, _ = self.parts.get(name, (shape, []))
        config = {"name": name, "batch_shape": [None, *whole], "dtype": dtype}
        self.layers.append(node("keras.layers", "InputLayer", config, []))
        self.inputs.append(name)
        return name

    def _read(self, name: str, of: str) -> str:
        """What is read of a tensor that has the shape of an input."""
        if name not in self.parts:
            return of
        shape, parts = self.parts[name]
        return self.joined([self.slice(of, start, end, len(shape)) for start, end in parts])

    def numbers(self, name: str, shape: Sequence[int]) -> tuple[str, str]:
        """Numbers as they were packed, around 0, and as the next layers get them: around 0 within a group."""
        whole = self._declared(name, shape, "float32")
        packed = self._read(name, whole)
        if self.level is not None and self.level.name == name:
            packed = self._levelled(packed, shape, self.level)
        if not self.group_statistics:
            return packed, packed
        config: Json = {"trainable": False, "center": False, "scale": False, "epsilon": 1e-7}
        measured = self.layer("BatchNormalization", whole, self.free(INPUTS_OF_GROUP), **config)
        return packed, self._read(name, measured)

    def _levelled(self, of: str, shape: Sequence[int], level: Level) -> str:
        """A window whose numbers at a place are counted from their mean, in units of their mean distance from it."""
        _, width = shape
        its = self.slice(of, level.place, level.place + 1, 2)
        level.mean = self.operation("Mean", its, axis=1, keepdims=True)
        apart = self.layer("Subtract", [its, level.mean])
        distance = self.operation("Mean", self.operation("Absolute", apart), axis=1, keepdims=True)
        level.distance = self.layer("Rescaling", distance, scale=1.0, offset=LEAST_DISTANCE)
        level.values = self.layer("Multiply", [apart, self.operation("Reciprocal", level.distance)])
        spans = [(0, level.place), (level.place + 1, width)]
        others = [self.slice(of, start, end, 2) for start, end in spans if start < end]
        return self.joined([level.values, *others])

    def from_level(self, of: str, level: Level, steps: int, windows: Windows) -> str:
        """Numbers in the unit of those of the input: counted from what was a season before, or from the mean.

        ``steps``: each row has so many vectors; 0: one.

        The tensor of more elements comes last: Keras takes the last one of an Add for the bias of a layer if it has as
        many rows as the first one has steps or vectors, and then each row gets the means of others.
        """

        def fitting(one: str) -> str:
            return one if steps else self.layer("Reshape", one, target_shape=[1])

        if windows.season:
            of = self.layer("Add", [fitting(self._at(level.values, windows.before)), of])
        return self.layer("Add", [fitting(level.mean), self.layer("Multiply", [of, fitting(level.distance)])])

    def _at(self, of: str, places: Sequence[int]) -> str:
        """The rows at these places of a window.  Most of them follow each other."""
        starts = [at for at, place in enumerate(places) if not at or place != places[at - 1] + 1]
        ends = [*starts[1:], len(places)]
        whole = _span(None, None)
        parts = [
            self._item(of, [whole, _span(places[start], places[end - 1] + 1), whole])
            for start, end in zip(starts, ends)
        ]
        return self.layer("Concatenate", parts, axis=1) if len(parts) > 1 else parts[0]

    def measured(self, of: str, name: str, elements: int, deviation: float, mean: float, steps: int = 0) -> str:
        """Numbers around 0 in the unit of a target; with a group's statistics, of the target in the group's rows.

        ``steps``: so many times.
        """
        if not self.group_statistics:
            return self.layer("Rescaling", of, name, scale=deviation, offset=mean)
        found = self.layer(
            "EinsumDense", of, self.free(TARGET_OF_GROUP), equation=SCALED_STEPS if steps else SCALED,
            output_shape=[steps, elements] if steps else [elements], bias_axes="f",
            kernel_initializer=_constant(deviation), bias_initializer=_constant(mean), trainable=False,
        )  # fmt: skip
        return self.layer("Activation", found, name, activation="linear")

    def layer(
        self,
        class_name: str,
        inputs: str | Sequence[str],
        name: str = "",
        *,
        apart: bool = False,
        called_with: Mapping[str, str] | None = None,
        **config: Any,
    ) -> str:
        """A layer that is called on one tensor, or on a list of tensors.

        ``apart``: each is an argument of its own.  ``called_with``: further tensors, by the names of the arguments.
        """
        name = name or self.free(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", class_name).lower())
        called = tensor(inputs) if isinstance(inputs, str) else [tensor(one) for one in inputs]
        more = {argument: tensor(one) for argument, one in (called_with or {}).items()}
        called_on = [{"args": called if apart else [called], "kwargs": more}]
        self.layers.append(node("keras.layers", class_name, {"name": name, **config}, called_on))
        return name

    def element(self, of: str, place: int, axis: int = 1) -> str:
        """``of[:, place]``, or ``of[:, :, place]`` for axis 2"""
        return self._item(of, [*[_span(None, None)] * axis, place])

    def slice(self, of: str, start: int, end: int, dimensions: int) -> str:
        """``of[..., start:end]`` of a tensor with so many dimensions besides the rows."""
        return self._item(of, [*[_span(None, None)] * dimensions, _span(start, end)])

    def _item(self, of: str, index: list[Any]) -> str:
        name = self.free("get_item")
        called = [{"args": [tensor(of), index], "kwargs": {}}]
        self.layers.append(node(NUMPY, "GetItem", {"name": name}, called))
        return name

    def operation(self, class_name: str, of: str, **config: Any) -> str:
        """An operation of keras.ops on one tensor."""
        name = self.free(class_name.lower())
        called = [{"args": [tensor(of)], "kwargs": {}}]
        self.layers.append(node(NUMPY, class_name, {"name": name, **config}, called))
        return name

    def joined(self, tensors: Sequence[str]) -> str:
        return self.layer("Concatenate", tensors) if len(tensors) > 1 else tensors[0]

    def output(self, name: str) -> None:
        self.outputs.append(name)

    def model(self, name: str, compiled: Json) -> Json:
        """What ``to_json()`` of the compiled model would return."""
        ends = {
            "input_layers": [[one, 0, 0] for one in self.inputs],
            "output_layers": [[one, 0, 0] for one in self.outputs],
        }
        return {
            "module": "keras.src.models.functional",
            "class_name": "Functional",
            "config": {"name": name, "trainable": True, "layers": self.layers, **ends},
            "registered_name": "Functional",
            "compile_config": compiled,
        }

    def free(self, name: str) -> str:
        number = 1
        while f"{name}_{number}" in self.taken:
            number += 1
        self.taken.add(f"{name}_{number}")
        return f"{name}_{number}"


def measures_group(name: str) -> bool:
    """Whether a layer of this name may have numbers of a group."""
    return _OF_GROUP.fullmatch(name) is not None


def needs_all_digits(name: str) -> bool:
    """Whether a layer of this name computes in float32, whatever the precision."""
    return _EXACT.fullmatch(name) is not None


def _span(start: int | None, end: int | None) -> Json:
    return {"class_name": "__slice__", "config": {"start": start, "stop": end, "step": None}}


def _constant(value: float) -> Json:
    config = {"value": value}
    return {"module": "keras.initializers", "class_name": "Constant", "config": config, "registered_name": None}


def node(module: str, class_name: str, config: Json, called: list[Json]) -> Json:
    return {
        "module": module,
        "class_name": class_name,
        "config": config,
        "registered_name": class_name if module != "keras.layers" else None,
        "name": config["name"],
        "inbound_nodes": called,
    }


def tensor(name: str, place: int = 0) -> Json:
    """A reference to one of the outputs of a layer.  Keras reads the shape from the layer, not from here."""
    return {
        "class_name": "__keras_tensor__",
        "config": {"shape": [None, None], "dtype": "float32", "keras_history": [name, 0, place]},
    }
