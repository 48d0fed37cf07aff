"""The TensorFlow engine: Keras' own train_step in a loop that stays inside the graph.

``model.fit`` returns to Python after every batch; here one call runs a slab of batches.  The step itself is Keras'
(gradients, optimizer, metrics), so the bits are those of ``model.fit``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_db.core.protocol import MetricStates
from cerebro_db.nn import metric_states
from cerebro_db.nn.engines.gradients import kept_gradients
from cerebro_db.nn.engines.graphs import GraphFunction, ProgramGraphs
from cerebro_db.nn.engines.kept import Kept
from cerebro_db.nn.engines.program import KerasProgram
from cerebro_db.nn.models import build, custom_functions, numbers
from cerebro_db.nn.models.build import program_key
from cerebro_db.nn.rows.data import Dataset, Slab

LARGEST_COPY = 16 << 20  # bytes; a larger tensor is not copied when it is loaded

# Tracing takes as long as these batches gain by it: 150 ms, against 1 to 5 ms for each batch of 1,024 rows of W1.
BATCHES_UNTRACED = 16


def import_framework() -> None:
    # oneDNN's own allocator never gives memory back: a model of 120 MB that was only built left 500 MB.
    os.environ["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"] = "1"
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    with contextlib.suppress(Exception):  # nothing of this is public, and a later version may not have it
        fill_registries()


@functools.cache
def fill_registries() -> None:
    """Have TensorFlow do what else it does at its first operation, which would take each fork 15 ms.

    It opens no device and starts no thread.
    """
    from tensorflow.python.framework import kernels, op_def_registry
    from tensorflow.python.util import pywrap_xla_ops

    kernels.get_registered_kernels_for_op("NoOp")
    pywrap_xla_ops.get_cpu_kernel_names()
    op_def_registry.get("")  # the first operation that is not known makes a list of all that are


def open(threads: int | None, deterministic: bool, compiled: str | None) -> TensorFlowEngine:
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # several trainers may share a GPU
    import tensorflow as tf

    if threads is None and deterministic:
        threads = 1
    if threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    if deterministic or not tf.config.list_physical_devices("GPU"):
        tf.config.experimental.enable_op_determinism()
        # Grappler rewrites the graph of a loop in another way than the graph of a single step, which changes the order
        # of additions. On a CPU neither setting costs anything, so bits are always reproducible there: 120 against 117
        # µs/step for a 64-128-64-2 MLP, 1420 against 1390 for a small CNN (1 thread; within the noise).
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    return TensorFlowEngine(tf, None if compiled is None else Path(compiled) / "tensorflow", [threads, deterministic])


ONEDNN_OUT_OF_MEMORY = "exception:Status: 1,"  # of dnnl_types.h; the message says "could not create a primitive"


class TensorFlowEngine:
    def __init__(self, tf: Any, folder: Path | None, settings: list[Any]) -> None:
        self._tf = tf
        self._kept = Kept(folder, [self.versions(), self.devices(), *settings])

    def versions(self) -> dict[str, str]:
        import keras

        return {"keras": keras.__version__, "engine": "tensorflow", "engine_version": self._tf.__version__}

    def devices(self) -> list[str]:
        return [device.name.removeprefix("/physical_device:") for device in self._tf.config.list_physical_devices()]

    def program(
        self,
        configuration: dict[str, Any],
        layout: dict[str, Any] | None,
        seed: int | None = 0,
        features: str | None = None,
    ) -> TensorFlowProgram:
        return TensorFlowProgram(self._tf, self._kept, configuration, layout, seed, features)

    def warm_up(self) -> None:
        tf = self._tf
        one = tf.Variable(tf.constant([[0.0]]))
        tf.nn.softmax(tf.nn.relu(tf.matmul(one, one)))

    def is_out_of_memory(self, error: BaseException) -> bool:
        if isinstance(error, self._tf.errors.ResourceExhaustedError):
            return True
        return isinstance(error, self._tf.errors.AbortedError) and ONEDNN_OUT_OF_MEMORY in str(error)


class TensorFlowProgram(KerasProgram):
    def __init__(
        self,
        tf: Any,
        kept: Kept,
        configuration: dict[str, Any],
        layout: dict[str, Any] | None,
        seed: int | None,
        features: str | None = None,
    ) -> None:
        super().__init__(configuration, layout, seed, features)
        self._tf = tf
        key = program_key(configuration, layout)
        cut = None if self.cut is None else self.cut.type
        self._kept = kept, json.dumps([key, custom_functions.sources(key), seed is None, cut])
        self._untraced = self._left_untraced()
        self._metrics_are_reset = False  # or will be, by the next function that counts
        self._counted: list[Any] | None = None  # the values of the metrics' variables, if the last function told them
        self._scalars: dict[Any, Any] = {}  # tensors of arguments

    @functools.cached_property
    def _graphs(self) -> ProgramGraphs:
        """Only when it is needed: the variables must have values."""
        return ProgramGraphs(self._tf, *self._kept, self._all_variables())

    def get(self, index: int) -> np.ndarray:
        variable = self._state[index].value
        if variable.dtype != self._tf.float32 or self._tf.config.list_physical_devices("GPU"):
            return super().get(index)
        # The variable's own memory: while the array is there, TensorFlow puts a new value elsewhere.
        read = self._tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
        return np.asarray(memoryview(read))

    def set(self, index: int, value: np.ndarray, *, stays: bool = False) -> None:
        if (value.nbytes <= LARGEST_COPY and not stays) or value.dtype != np.float32:
            super().set(index, value)
            return
        # The array's memory becomes the variable's. assign() would copy the array twice; after assigning slices
        # TensorFlow would copy the variable at each read.
        tensor = self._tf.experimental.dlpack.from_dlpack(value.__dlpack__())
        if build.has_value(self._state[index]):
            self.touched()
            self._state[index].value.assign(tensor)
        else:
            super().set(index, tensor)

    # Twenty variables: Keras assigns them in 2.2 ms and reads them in 0.9 ms; the operations take 0.3 and 0.2 ms.

    def values_of(self, variables: list[Any]) -> list[np.ndarray]:
        read = self._tf.raw_ops.ReadVariableOp
        values = [one.value for one in variables]
        return [np.asarray(read(resource=one.handle, dtype=one.dtype).numpy()) for one in values]

    def put_back(self) -> Callable[[], None]:
        written = [*self._written_by_calls, *(self._state[place] for place in self._averages)]
        kept = [value.tobytes() for value in self.values_of(written)]

        def put() -> None:
            for variable, value, before in zip(written, self.values_of(written), kept):
                if value.tobytes() != before:
                    self._assign([variable], [np.frombuffer(before, value.dtype).reshape(value.shape)])

        return put

    def set_all(self, values: Sequence[np.ndarray]) -> None:
        self.touched()
        self._assign(self._state, values)

    def put_numbers(self, configuration: dict[str, Any]) -> None:
        if self._numbers:
            found = numbers.apart(configuration)[1]
            self._assign(
                [each for one in self._numbers for each in (one, one.complement)],
                [np.asarray(each, "float32") for number in found for each in (number, 1.0 - number)],
            )

    # Resetting, reading and naming the metrics would take as long as some steps of a small model, so the functions that
    # count reset them first, and return what they have counted.

    @functools.cached_property
    def _metric_variables(self) -> list[Any]:
        return [variable for metric in self.model.metrics for variable in metric.variables]

    @functools.cached_property
    def _metrics_reset(self) -> list[np.ndarray]:
        """The values of the metrics' variables after a reset."""
        super().start_metrics()
        return self.values_of(self._metric_variables)

    def start_metrics(self) -> None:
        self._metrics_are_reset, self._counted = True, None

    def _reset_metrics(self) -> None:
        """Reset them now, if no function has done it."""
        if self._metrics_are_reset:
            self._assign(self._metric_variables, self._metrics_reset)
            self._metrics_are_reset = False

    def metric_states(self) -> MetricStates:
        if self._counted is None:
            self._reset_metrics()
            return super().metric_states()
        known = {id(one): np.asarray(value) for one, value in zip(self._metric_variables, self._counted)}
        return metric_states.read(self._metrics_by_name, lambda variables: [known[id(one)] for one in variables])

    def metric_values(self, states: MetricStates) -> dict[str, Any]:
        self._counted = None  # metrics that are no means are put into their variables
        return super().metric_values(states)

    def running_loss(self) -> float:
        self._reset_metrics()
        return super().running_loss()

    def _assign(self, variables: Sequence[Any], values: Sequence[np.ndarray]) -> None:
        assign = self._tf.raw_ops.AssignVariableOp
        for variable, value in zip(variables, values):
            assign(resource=variable.value.handle, value=value)

    def recipe_was_right_before(self) -> bool:
        return self._graphs.noted("recipe")

    def recipe_was_right(self) -> None:
        self._graphs.note("recipe")

    def prepare(self, what: str, dataset: Dataset, batch_size: int, rows: int, members: int = 0) -> None:
        if what == "predict" and math.ceil(rows / batch_size) <= self._untraced:
            return
        self._function(what)
        self._untraced = 0 if what == "predict" else self._untraced

    def prepare_ahead(self) -> None:
        if self._graphs.kept and self.output_columns:
            self._function("train")

    def train(self, slab: Slab, batch_size: int) -> None:
        self.touched()
        self._count("train", slab, batch_size)

    def zeros(self, rows: int) -> list[np.ndarray]:
        """The packed columns of so many rows, for trials."""
        assert self.columns is not None
        columns = (*self.columns["inputs"], *self.columns["outputs"])
        return [np.zeros((rows, *column["shape"]), column["dtype"]) for column in columns]

    def seconds_of_batch(self, batch_size: int, batches: int) -> float:
        """How long a batch of zeros takes in training, the shorter of two times.  The state changes."""
        rows, found = self.zeros(batch_size * batches), []
        arguments = self._scalar(np.int32(batch_size)), self._scalar(np.bool_(True))
        self._metrics_reset  # noqa: B018  (before the function that puts it in the variables)
        for _ in range(3):  # the first one traces and allocates
            begun = time.monotonic()
            self._function("train")(*rows, *arguments)
            found.append((time.monotonic() - begun) / batches)
        return min(found[1:])

    def gradients(self, batch: Slab) -> list[np.ndarray]:
        self.touched()
        self._reset_metrics()
        self._counted = None
        return [np.asarray(one) for one in self._gradients(*batch.gathered(batch.dataset.columns))]

    def step(self, gradients: Sequence[np.ndarray]) -> None:
        self.touched()
        self._step(*gradients)

    def evaluate(self, slab: Slab, batch_size: int) -> None:
        self._count("evaluate", slab, batch_size)

    def _count(self, what: str, slab: Slab, batch_size: int) -> None:
        columns = slab.gathered(slab.dataset.columns)
        arguments = self._scalar(np.int32(batch_size)), self._scalar(np.bool_(self._metrics_are_reset))
        self._counted = self._function(what)(*columns, *arguments)
        self._metrics_are_reset = False

    def _scalar(self, value: Any) -> Any:
        key = value.dtype.name, value.item()
        if key not in self._scalars:
            self._scalars[key] = self._tf.constant(value)
        return self._scalars[key]

    def predict(self, slab: Slab, batch_size: int) -> list[np.ndarray]:
        if self._untraced:
            return super().predict(slab, batch_size)
        outputs = self._function("predict")(*slab.gathered(slab.dataset.inputs), np.int32(batch_size))
        return [np.asarray(output, "float32") for output in outputs]

    def outputs_of(self, batch: Slab) -> list[np.ndarray]:
        self._untraced -= 1
        inputs = [self._tf.constant(column) for column in batch.gathered(batch.dataset.inputs)]
        return [np.asarray(output, "float32") for output in self._outputs(inputs)]

    def features_of(self, batch: Slab) -> list[np.ndarray]:
        return [np.asarray(one) for one in self._body(*batch.gathered(batch.dataset.inputs))]

    # --- what is traced ---

    def _function(self, what: str) -> GraphFunction:
        return self._graphs.function(what, lambda: self._traced(what))

    def _traced(self, what: str) -> Any:
        tf = self._tf
        batch_size = tf.TensorSpec((), tf.int32)  # an argument, so that one trace serves all batch sizes
        if what == "predict":
            return self._concrete(self._predict_slab, [self._columns("inputs"), batch_size])
        step = self.model.train_step if what == "train" else self.model.test_step
        reset = list(zip(self._metric_variables, self._metrics_reset))
        return self._concrete(self._loop(what, step, reset), [self._columns(), batch_size, tf.TensorSpec((), tf.bool)])

    def _columns(self, *ends: str) -> list[Any]:
        """What a function gets as columns of a batch: all of them, or only inputs."""
        assert self.columns is not None
        return self._specifications([column for end in ends or ("inputs", "outputs") for column in self.columns[end]])

    def _specifications(self, columns: list[dict[str, Any]]) -> list[Any]:
        return [self._tf.TensorSpec((None, *column["shape"]), column["dtype"]) for column in columns]

    @functools.cached_property
    def _body(self) -> GraphFunction:
        """The frozen layers."""
        import keras

        tf, cut, layout = self._tf, self.cut, self.layout
        assert cut is not None and layout is not None

        def body(*columns: Any) -> list[Any]:
            found = keras.tree.flatten(cut.body(self.body_inputs(columns), training=False))
            return [tf.cast(one, tf.float32) for one in found]

        return GraphFunction.of(tf, self._concrete(body, self._specifications(layout["inputs"])))

    @functools.cached_property
    def _gradients(self) -> GraphFunction:
        tf = self._tf

        def gradients(*columns: Any) -> list[Any]:
            with kept_gradients(self.model.optimizer) as found:
                self.model.train_step(self.step_data("train", list(columns)))
            return list(map(tf.convert_to_tensor, self.with_gradients(found)))  # those of lookups are sparse

        return GraphFunction.of(tf, self._concrete(gradients, self._columns()))

    @functools.cached_property
    def _step(self) -> GraphFunction:
        """After the first gradients, which show to which weights they belong."""

        def step(*gradients: Any) -> Any:
            self.model.optimizer.apply_gradients(zip(gradients, self._stepped))
            return self.model.optimizer.iterations.value

        signature = [self._tf.TensorSpec(one.shape, one.dtype) for one in self._stepped]
        return GraphFunction.of(self._tf, self._concrete(step, signature))

    def _left_untraced(self) -> int:
        """The number of batches to predict before the function that does it is traced; the bits are the same.

        A traced function is rewritten on a GPU, and oneDNN rewrites 16-bit operations in it, which changes bits.  A
        recurrent layer that is not traced returns to Python at each of its steps.
        """
        import keras

        layers = self.model._flatten_layers()
        traced = any(isinstance(each, keras.layers.RNN) or each.compute_dtype != "float32" for each in layers)
        return 0 if traced or self._tf.config.list_physical_devices("GPU") else BATCHES_UNTRACED

    def _concrete(self, function: Callable[..., Any], signature: list[Any]) -> Any:
        # without autograph: Keras' steps are graph code already
        traced = self._tf.function(function, input_signature=signature, autograph=False, jit_compile=False)
        return traced.get_concrete_function()

    def _loop(
        self, what: str, step: Callable[[Any], Any], metrics: list[tuple[Any, np.ndarray]]
    ) -> Callable[[list[Any], Any, Any], list[Any]]:
        """A function that runs a step on each batch of a slab; the last batch may have fewer rows, as with Keras.

        It resets the metrics first if it is to ``begin`` with them, and returns the values of their variables.
        """
        tf = self._tf

        def loop(slab: list[Any], batch_size: Any, begin: Any) -> list[Any]:
            rows = tf.shape(slab[0])[0]
            for variable, value in metrics:
                variable.value.assign(tf.where(begin, tf.constant(value), variable.value))

            def body(start: Any) -> list[Any]:
                end = tf.minimum(start + batch_size, rows)
                step(self.step_data(what, [column[start:end] for column in slab]))
                return [end]

            # one after the other: each step reads the variables that the step before it wrote
            tf.while_loop(lambda start: start < rows, body, [tf.constant(0)], parallel_iterations=1)
            return [tf.identity(variable.value) for variable, _ in metrics]

        return loop

    def _predict_slab(self, slab: list[Any], batch_size: Any) -> list[Any]:
        """The outputs, batch by batch: the operations are those of single batches, and so are the bits."""
        tf = self._tf
        rows = tf.shape(slab[0])[0]

        def body(number: Any, *found: Any) -> list[Any]:
            start = number * batch_size
            outputs = self._outputs([column[start : start + batch_size] for column in slab])
            return [number + 1, *(array.write(number, output) for array, output in zip(found, outputs))]

        batches = (rows + batch_size - 1) // batch_size
        found = [
            tf.TensorArray(output.dtype, size=batches, element_shape=[None, *output.shape[1:]])
            for output in self.model.outputs
        ]
        _, *found = tf.while_loop(
            lambda number, *_: number < batches, body, [tf.constant(0), *found], parallel_iterations=1
        )
        return [array.concat() for array in found]

    def _outputs(self, columns: list[Any]) -> list[Any]:
        import keras

        return keras.tree.flatten(self.model(self.model_inputs(columns), training=False))
