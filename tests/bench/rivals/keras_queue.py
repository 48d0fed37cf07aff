"""(a) Keras as users write it: a process per processor, the data in memory, a queue of configurations, model.fit.

(b) with --tuned: what Keras' own manual says about speed. Many steps per call, XLA, and one thread for each process,
since there is one for each processor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.bench.rivals.common import Json, Result, Task, from_queue, model_of, task

STEPS_PER_CALL = 64


def prepare(given: Task, **compiled: object) -> Callable[[Json], Result]:
    import keras  # noqa: F401  the framework is a part of being ready

    data = given.arrays()

    def train(configuration: Json) -> Result:
        model = model_of(given.work, configuration, **compiled)
        model.fit(
            data["x"], data["y"], batch_size=configuration["batch_size"], epochs=given.epochs, verbose=0, shuffle=True
        )
        loss, accuracy = model.evaluate(data["validation_x"], data["validation_y"], verbose=0)
        return {"loss": loss, "accuracy": accuracy}

    return train


def prepare_tuned(given: Task) -> Callable[[Json], Result]:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return prepare(given, steps_per_execution=STEPS_PER_CALL, jit_compile=True)


if __name__ == "__main__":
    from_queue(task(), prepare_tuned if "--tuned" in sys.argv else prepare)
