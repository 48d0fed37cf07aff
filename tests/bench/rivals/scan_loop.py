"""(b2) The bare loop on JAX: a jitted scan over an epoch's batches around Keras' own step, compiled once for each
architecture and batch size; the data in memory, one thread for each process. Convolutions are not scanned: within a
loop XLA has no fast ones on a CPU, so a jitted step is called from Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.bench.rivals.common import Json, Result, Task, from_queue, model_of, task


def prepare(given: Task) -> Callable[[Json], Result]:
    os.environ.update(
        KERAS_BACKEND="jax",
        JAX_PLATFORMS="cpu",
        XLA_FLAGS="--xla_cpu_multi_thread_eigen=false",
        NPROC="1",
        PJRT_NPROC="1",
    )
    import jax

    data = {name: jax.numpy.asarray(array) for name, array in given.arrays().items()}
    loops: dict[Any, Loop] = {}
    chance = jax.random.key(1)

    def train(configuration: Json) -> Result:
        nonlocal chance
        model, key = model_of(given.work, configuration), (configuration["model"], configuration["batch_size"])
        if key not in loops:
            loops[key] = Loop(model, key[1])
        loop, state = loops[key], state_of(model)
        for _ in range(given.epochs):
            chance, now = jax.random.split(chance)
            order = jax.random.permutation(now, len(data["x"]))
            state = loop.epoch(state, data["x"][order], data["y"][order])
        found = loop.validate(state, data["validation_x"], data["validation_y"])
        return {"loss": float(found["loss"]), "accuracy": float(found["accuracy"])}

    return train


def state_of(model: Any) -> Any:
    model.optimizer.build(model.trainable_variables)
    row = [np.zeros((1, *shape[1:]), "float32") for shape in (model.input_shape, model.output_shape)]
    model._symbolic_build(data_batch=row)  # the metrics have their variables only when a batch was seen
    return tuple(
        [variable.value for variable in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
    )


class Loop:
    def __init__(self, model: Any, batch: int) -> None:
        import jax

        self.model, self.batch = model, batch
        self.scanned = not any("Conv" in type(layer).__name__ for layer in model.layers)
        self._step = jax.jit(lambda state, x, y: model.train_step(state, (x, y))[1], donate_argnums=0)
        self._test = jax.jit(lambda state, x, y: model.test_step(state, (x, y))[1])
        self._scan = jax.jit(self._over_batches, donate_argnums=0)

    def _over_batches(self, state: Any, x: Any, y: Any) -> Any:
        import jax

        def step(state: Any, rows: Any) -> Any:
            return self.model.train_step(state, rows)[1], None

        batches = [array.reshape(-1, self.batch, *array.shape[1:]) for array in (x, y)]
        return jax.lax.scan(step, state, batches)[0]

    def epoch(self, state: Any, x: Any, y: Any) -> Any:
        whole = len(x) // self.batch * self.batch
        if self.scanned:
            state = self._scan(state, x[:whole], y[:whole])
        else:
            for start in range(0, whole, self.batch):
                state = self._step(state, x[start : start + self.batch], y[start : start + self.batch])
        return self._step(state, x[whole:], y[whole:]) if whole < len(x) else state

    def validate(self, state: Any, x: Any, y: Any) -> Any:
        trainable, others, _, metrics = state
        state = trainable, others, [metric * 0 for metric in metrics]
        for start in range(0, len(x), 256):
            state = self._test(state, x[start : start + 256], y[start : start + 256])
        return self._result(state[2])

    def _result(self, metrics: Any) -> Any:
        for variable, value in zip(self.model.metrics_variables, metrics):
            variable.assign(value)
        return self.model.get_metrics_result()


if __name__ == "__main__":
    from_queue(task(), prepare)
