"""The TensorFlow engine: Keras' own train_step in a loop that stays inside the graph.

``model.fit`` returns to Python after every batch; here one call runs a slab of batches.  The step itself is Keras'
(gradients, optimizer, metrics), so the bits are those of ``model.fit``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_db.nn.engines.graphs import Graph, Graphs, ProgramGraphs
from cerebro_db.nn.engines.program import KerasProgram
from cerebro_db.nn.models import custom_functions
from cerebro_db.nn.models.build import program_key
from cerebro_db.nn.rows.data import Dataset, Slab

LARGEST_COPY = 16 << 20  # bytes; a larger tensor is not copied when it is loaded


def import_framework() -> None:
    # oneDNN's own allocator never gives memory back: a model of 120 MB that was only built left 500 MB.
    os.environ["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"] = "1"
    import keras  # noqa: F401
    import tensorflow  # noqa: F401


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


class TensorFlowEngine:
    def __init__(self, tf: Any, folder: Path | None, settings: list[Any]) -> None:
        self._tf = tf
        self._graphs = Graphs(tf, folder, [self.versions(), self.devices(), *settings])

    def versions(self) -> dict[str, str]:
        import keras

        return {"keras": keras.__version__, "engine": "tensorflow", "engine_version": self._tf.__version__}

    def devices(self) -> list[str]:
        return [device.name.removeprefix("/physical_device:") for device in self._tf.config.list_physical_devices()]

    def program(self, configuration: dict[str, Any], layout: dict[str, Any] | None, seed: int = 0) -> TensorFlowProgram:
        return TensorFlowProgram(self._tf, self._graphs, configuration, layout, seed)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, self._tf.errors.ResourceExhaustedError)


class TensorFlowProgram(KerasProgram):
    def __init__(
        self, tf: Any, graphs: Graphs, configuration: dict[str, Any], layout: dict[str, Any] | None, seed: int
    ) -> None:
        super().__init__(configuration, layout, seed)
        self._tf = tf
        key = program_key(configuration, layout)
        self._graphs = ProgramGraphs(graphs, json.dumps([key, custom_functions.sources(key)]), self._all_variables())

    def set(self, index: int, value: np.ndarray) -> None:
        if value.nbytes <= LARGEST_COPY or value.dtype != np.float32:
            super().set(index, value)
            return
        # The array's memory becomes the variable's. assign() would copy the array twice; after assigning slices
        # TensorFlow would copy the variable at each read.
        self.touched()
        self._state[index].value.assign(self._tf.experimental.dlpack.from_dlpack(value.__dlpack__()))

    def get_all(self) -> list[np.ndarray]:
        """Reads all variables in one call: a call for each takes 0.5 ms, as Keras makes it."""
        return [tensor.numpy() for tensor in self._function("read")()]

    def set_all(self, values: Sequence[np.ndarray]) -> None:
        """Assigns all variables in one call: a call for each takes 1.2 ms, as Keras makes it."""
        self.touched()
        self._function("write")(*values)

    def recipe_was_right_before(self) -> bool:
        return self._graphs.noted("recipe")

    def recipe_was_right(self) -> None:
        self._graphs.note("recipe")

    def prepare(self, what: str, dataset: Dataset, batch_size: int, rows: int, members: int = 0) -> None:
        self._function(what)

    def prepare_ahead(self) -> None:
        if self._graphs.kept and self.output_columns:
            self._function("train")

    def train(self, slab: Slab, batch_size: int) -> None:
        self.touched()
        self._function("train")(*slab.gathered(slab.dataset.columns), np.int32(batch_size))

    def evaluate(self, slab: Slab, batch_size: int) -> None:
        self._function("evaluate")(*slab.gathered(slab.dataset.columns), np.int32(batch_size))

    def predict(self, batch: Slab) -> list[np.ndarray]:
        outputs = self._function("predict")(*batch.gathered(batch.dataset.inputs))
        return [np.asarray(output, "float32") for output in outputs]

    # --- what is traced ---

    def _function(self, what: str) -> Graph:
        return self._graphs.function(what, lambda: self._traced(what))

    def _traced(self, what: str) -> Any:
        tf = self._tf
        if what == "read":
            return self._concrete(lambda: [variable.value.read_value() for variable in self._state], [])
        if what == "write":
            values = [tf.TensorSpec(variable.shape, variable.dtype) for variable in self._state]
            return self._concrete(self._write_values, [values])
        assert self.layout is not None
        inputs, outputs = (
            [tf.TensorSpec((None, *column["shape"]), column["dtype"]) for column in self.layout[end]]
            for end in ("inputs", "outputs")
        )
        if what == "predict":
            return self._concrete(self._predict_batch, [inputs])
        batch_size = tf.TensorSpec((), tf.int32)  # an argument, so that one trace serves all batch sizes
        step = self.model.train_step if what == "train" else self.model.test_step
        return self._concrete(self._loop(what, step), [inputs + outputs, batch_size])

    def _concrete(self, function: Callable[..., Any], signature: list[Any]) -> Any:
        # without autograph: Keras' steps are graph code already
        traced = self._tf.function(function, input_signature=signature, autograph=False, jit_compile=False)
        return traced.get_concrete_function()

    def _write_values(self, values: list[Any]) -> None:
        for variable, value in zip(self._state, values):
            variable.value.assign(value)

    def _loop(self, what: str, step: Callable[[Any], Any]) -> Callable[[list[Any], Any], None]:
        """A function that runs a step on each batch of a slab; the last batch may have fewer rows, as with Keras."""
        tf = self._tf

        def loop(slab: list[Any], batch_size: Any) -> None:
            rows = tf.shape(slab[0])[0]

            def body(start: Any) -> list[Any]:
                end = tf.minimum(start + batch_size, rows)
                step(self.step_data(what, [column[start:end] for column in slab]))
                return [end]

            # one after the other: each step reads the variables that the step before it wrote
            tf.while_loop(lambda start: start < rows, body, [tf.constant(0)], parallel_iterations=1)

        return loop

    def _predict_batch(self, slab: list[Any]) -> list[Any]:
        import keras

        return keras.tree.flatten(self.model(self.model_inputs(slab), training=False))
