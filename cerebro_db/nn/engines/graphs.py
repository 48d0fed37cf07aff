"""TensorFlow functions as graphs that are kept in files, for later trainers of the same user.

Tracing a function runs the Python code of Keras for each operation: 0.2 s for a training step of a small model, 0.1 s
for an evaluation.  Reading a kept graph takes 2 ms, and its bits are the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_db.nn.engines.kept import Kept, read_whole, write_whole

# Operations that call Python functions of the process in which they were traced.
CALLS_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


class ProgramGraphs:
    """The functions of one program, which all read and write its variables and nothing else."""

    def __init__(self, tf: Any, kept: Kept, key: str, variables: Sequence[Any]) -> None:
        self._tf, self._kept, self._key = tf, kept, key
        unique = {id(one.value.handle): one for one in variables}.values()
        self._handles = [one.value.handle for one in unique]
        self._variables = [[str(one.dtype), list(one.shape)] for one in unique]
        self._ready: dict[str, GraphFunction] = {}

    @property
    def kept(self) -> bool:
        """Whether later trainers will read what this one traces."""
        return self._kept.folder is not None

    def function(self, what: str, traced: Callable[[], Any]) -> GraphFunction:
        """The function of this name: an earlier trainer's, or else the concrete function that ``traced`` returns."""
        if what not in self._ready:
            path = self._kept.path(self._key, what)
            found = self._read(path) if path is not None else None
            if found is None:
                concrete = traced()
                found = GraphFunction.of(self._tf, concrete)
                if path is not None:
                    self._write(path, concrete)
            self._ready[what] = found
        return self._ready[what]

    def note(self, what: str) -> None:
        """Tell later trainers that something was found out about this program."""
        self._kept.note(self._key, what)

    def noted(self, what: str) -> bool:
        return self._kept.noted(self._key, what)

    def _write(self, path: Path, concrete: Any) -> None:
        """Keep a function, unless it needs more than the program's variables."""
        from tensorflow.core.framework import function_pb2

        places = {id(handle): place for place, handle in enumerate(self._handles)}
        captured = [places.get(id(one)) for one in concrete.captured_inputs]
        definition, library = concrete.graph.as_graph_def(), function_pb2.FunctionDefLibrary()
        library.CopyFrom(definition.library)
        library.function.append(concrete.function_def)
        if None in captured or any(node.op in CALLS_PYTHON for one in library.function for node in one.node_def):
            return
        _rename(library, path.name)
        head = {
            "name": library.function[-1].signature.name,
            "captured": captured,
            "variables": self._variables,
            "outputs": len(concrete.outputs),
        }
        write_whole(path, json.dumps(head).encode() + b"\n" + library.SerializeToString())

    def _read(self, path: Path) -> GraphFunction | None:
        from tensorflow.core.framework import function_pb2
        from tensorflow.python.eager import context  # has no public name

        content = read_whole(path)
        if content is None:
            return None
        head_text, _, serialized = content.partition(b"\n")
        head = json.loads(head_text)
        if head["variables"] != self._variables:
            return None
        library = function_pb2.FunctionDefLibrary.FromString(serialized)
        for one in library.function:
            if not context.context().has_function(one.signature.name):
                context.context().add_function_def(one)
        captured = [self._handles[place] for place in head["captured"]]
        return GraphFunction(self._tf, head["name"], captured, head["outputs"])


class GraphFunction:
    """A function that can be called with arrays or tensors, and returns tensors."""

    def __init__(self, tf: Any, name: str, captured: list[Any], outputs: int, concrete: Any = None) -> None:
        from tensorflow.python.eager import context  # these have no public names
        from tensorflow.python.framework.constant_op import convert_to_eager_tensor

        self._tf, self._context, self._converted = tf, context.context(), convert_to_eager_tensor
        self._name, self._captured, self._outputs = name.encode(), captured, outputs
        self._concrete = concrete  # while it lives, TensorFlow knows the function by its name

    @classmethod
    def of(cls, tf: Any, concrete: Any) -> GraphFunction:
        name, captured = concrete.function_def.signature.name, list(concrete.captured_inputs)
        return cls(tf, name, captured, len(concrete.outputs), concrete)

    def __call__(self, *values: np.ndarray | Any) -> list[Any]:
        # As convert_to_tensor does, which takes twice as long.
        tensors = [
            self._converted(value, self._context) if isinstance(value, (np.ndarray, np.generic)) else value
            for value in values
        ]
        return self._context.call_function(self._name, [*tensors, *self._captured], self._outputs) or []


def _rename(library: Any, prefix: str) -> None:
    """Give the functions names that no function of another program, or traced by another trainer, has."""
    names = {one.signature.name: f"{prefix}_{number}" for number, one in enumerate(library.function)}
    for one in library.function:
        one.signature.name = names[one.signature.name]
        for node in one.node_def:
            for called in _called(node.attr.values()):
                called.name = names.get(called.name, called.name)


def _called(attributes: Any) -> Iterator[Any]:
    for attribute in attributes:
        if attribute.HasField("func"):
            yield attribute.func
            yield from _called(attribute.func.attr.values())
        elif attribute.HasField("list"):
            yield from attribute.list.func
