"""(b2) The bare loop on JAX: a jitted scan over an epoch's batches around Keras' own step, compiled once for each
architecture and batch size; the data in memory, one thread for each process. With --gpu: on the GPU. On a CPU
convolutions are not scanned: within a loop XLA has no fast ones there, so a jitted step is called from Python.

What is compiled is kept in a folder that the processes share, and the next call finds. On a CPU, what runs once or
twice (initial values, an epoch's last batch, validation) is compiled in a hurry, which takes less time than it costs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.bench.rivals.common import Json, Result, Task, from_queue, model_of, task


def prepare(given: Task, **settings: str) -> Callable[[Json], Result]:
    os.environ.update(KERAS_BACKEND="jax", **settings)
    import jax
    import keras  # noqa: F401

    jax.config.update("jax_compilation_cache_dir", str(given.folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    data = {name: jax.numpy.asarray(array) for name, array in given.arrays().items()}
    loops: dict[Any, Loop] = {}
    chance = jax.random.key(1)

    def train(configuration: Json) -> Result:
        nonlocal chance
        model, key = model_of(given.work, configuration), (configuration["model"], configuration["batch_size"])
        if key not in loops:
            loops[key] = Loop(model, key[1])
        loop = loops[key]
        state = loop.begin(model)
        for _ in range(given.epochs):
            chance, now = jax.random.split(chance)
            order = jax.random.permutation(now, len(data["x"]))
            state = loop.epoch(state, data["x"][order], data["y"][order])
        found = loop.validate(state, data["validation_x"], data["validation_y"])
        return {"loss": float(found["loss"]), "accuracy": float(found["accuracy"])}

    return train


WELL = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": True}  # what runs for every batch


ON_PROCESSORS = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"
    " --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
    "NPROC": "1",
    "PJRT_NPROC": "1",
}


def prepare_on_processors(given: Task) -> Callable[[Json], Result]:
    return prepare(given, **ON_PROCESSORS)


class Loop:
    def __init__(self, model: Any, batch: int) -> None:
        import jax

        self.model, self.batch = model, batch
        on_gpu = jax.default_backend() != "cpu"
        self.scanned = on_gpu or not any("Conv" in type(layer).__name__ for layer in model.layers)
        row = [np.zeros((1, *shape[1:]), "float32") for shape in (model.input_shape, model.output_shape)]
        model._symbolic_build(data_batch=row)  # the metrics have their variables only when a batch was seen
        self._metrics = [np.asarray(variable.value) for variable in model.metrics_variables]
        self._all = self._compiled(self._over_batches if self.scanned else self._batch, None if on_gpu else WELL)
        self._rest = self._compiled(self._batch, None)
        self._test = jax.jit(lambda state, x, y: model.test_step(state, (x, y))[1][2])

    def _compiled(self, function: Callable[..., Any], options: Any) -> Any:
        import jax

        return jax.jit(function, donate_argnums=0, compiler_options=options)

    def begin(self, model: Any) -> Any:
        """The state of another model of that architecture."""
        model.optimizer.build(model.trainable_variables)
        variables = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
        return (*([variable.value for variable in some] for some in variables), self._metrics)

    def _batch(self, state: Any, x: Any, y: Any) -> Any:
        return self.model.train_step(state, (x, y))[1]

    def _over_batches(self, state: Any, x: Any, y: Any) -> Any:
        import jax

        def step(state: Any, rows: Any) -> Any:
            return self.model.train_step(state, rows)[1], None

        batches = [array.reshape(-1, self.batch, *array.shape[1:]) for array in (x, y)]
        return jax.lax.scan(step, state, batches)[0]

    def epoch(self, state: Any, x: Any, y: Any) -> Any:
        whole = len(x) // self.batch * self.batch
        size = whole if self.scanned else self.batch
        for start in range(0, whole, size or 1):
            state = self._all(state, x[start : start + size], y[start : start + size])
        return self._rest(state, x[whole:], y[whole:]) if whole < len(x) else state

    def validate(self, state: Any, x: Any, y: Any) -> Any:
        return self._result(self._test((*state[:2], self._metrics), x, y))

    def _result(self, metrics: Any) -> Any:
        for variable, value in zip(self.model.metrics_variables, metrics):
            variable.assign(value)
        return self.model.get_metrics_result()


if __name__ == "__main__":
    from_queue(task(), prepare if "--gpu" in sys.argv else prepare_on_processors)
