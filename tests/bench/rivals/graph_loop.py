"""(b2) A bare loop: a whole epoch in one TensorFlow graph around Keras' own step, the data in memory, one thread for
each process, no fit. Nothing that the database does is done here: no hop, no state kept, no record.

As it comes, a graph is traced for each configuration. With --shared, for each architecture: the batch size is an
argument, the learning rate a variable, and a configuration begins by putting fresh weights in. XLA does not pay here:
compiling takes a second, longer than a configuration trains.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.bench.rivals.common import Json, Result, Task, from_queue, model_of, task


class Loop:
    """A model, and its graphs over the data."""

    def __init__(self, model: Any, data: dict[str, Any]) -> None:
        import tensorflow as tf

        self.model = model
        model.optimizer.build(model.trainable_variables)
        self.fresh_optimizer = [np.array(variable) for variable in model.optimizer.variables]

        def over(step: Callable[..., Any], x: Any, y: Any, batch: Any) -> None:
            rows = x.shape[0]

            def body(start: Any) -> list[Any]:
                end = tf.minimum(start + batch, rows)
                step((x[start:end], y[start:end]))
                return [end]

            tf.while_loop(lambda start: start < rows, body, [tf.constant(0)], parallel_iterations=1)

        @tf.function(autograph=False, input_signature=[tf.TensorSpec((), tf.int32)])
        def epoch(batch: Any) -> None:
            order = tf.random.shuffle(tf.range(data["x"].shape[0]))
            over(model.train_step, tf.gather(data["x"], order), tf.gather(data["y"], order), batch)

        @tf.function(autograph=False)
        def validate() -> None:
            over(model.test_step, data["validation_x"], data["validation_y"], 256)

        self.epoch, self.validate = epoch, validate

    def begin_as(self, another: Any) -> None:
        """Take over another model's weights and learning rate, and begin anew."""
        for mine, given in zip(self.model.variables, another.variables):
            mine.assign(given)
        for variable, value in zip(self.model.optimizer.variables, self.fresh_optimizer):
            variable.assign(value)
        self.model.optimizer.learning_rate = another.optimizer.learning_rate

    def train(self, epochs: int, batch: int) -> Result:
        for _ in range(epochs):
            self.epoch(batch)
        self.model.reset_metrics()
        self.validate()
        found = self.model.get_metrics_result()
        return {"loss": float(found["loss"]), "accuracy": float(found["accuracy"])}


def prepare(given: Task, shared: bool) -> Callable[[Json], Result]:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    import keras

    data = {name: tf.constant(array) for name, array in given.arrays().items()}
    loops: dict[tuple[int, str], Loop] = {}

    def train(configuration: Json) -> Result:
        if not shared:
            keras.backend.clear_session()
            loops.clear()
        model, key = model_of(given.work, configuration), (configuration["model"], configuration["optimizer"])
        if key in loops:
            loops[key].begin_as(model)
        else:
            loops[key] = Loop(model, data)
        return loops[key].train(given.epochs, configuration["batch_size"])

    return train


if __name__ == "__main__":
    from_queue(task(), partial(prepare, shared="--shared" in sys.argv))
