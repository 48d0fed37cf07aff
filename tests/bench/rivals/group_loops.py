"""Loops over groups.  (a) keras: a model is built and fitted for each group, as users write it, in one process.

(b) bare: all models of a configuration share one TensorFlow graph, which resets the weights, trains all epochs of a
group in a loop around Keras' own step, and evaluates it: one call for each group. One process with one thread.

(c) pool: as (a), with two processes, which take one group after the other.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.bench.rivals.common import Json, Result, Task, model_of, task

CLEAR_EVERY = 20  # models; Keras keeps what belongs to all models so far
Piece = tuple[int, int, int, int]  # the first and the last row for training, and the same for validation


def pieces(given: Task, every: int) -> list[Piece]:
    """The rows of each group, or of one group of ``every``."""
    rows = [len(given.arrays()[name]) for name in ("y", "validation_y")]
    starts = [[*given.work[name], size] for name, size in zip(("starts", "validation_starts"), rows)]
    found = [(*starts[0][group : group + 2], *starts[1][group : group + 2]) for group in range(len(starts[0]) - 1)]
    return found[every // 2 :: every]


def whole(given: Task) -> Piece:
    data = given.arrays()
    return 0, len(data["y"]), 0, len(data["validation_y"])


Train = Callable[[Json, Piece], Result]


def prepared(given: Task) -> Train:
    import keras

    data = given.arrays()
    models = 0

    def train(configuration: Json, piece: Piece) -> Result:
        nonlocal models
        models += 1
        if models % CLEAR_EVERY == 0:
            keras.backend.clear_session()
        begin, end, judge, last = piece
        model = model_of(given.work, configuration)
        model.fit(
            data["x"][begin:end], data["y"][begin:end], batch_size=configuration["batch_size"], epochs=given.epochs,
            verbose=0,
        )  # fmt: skip
        loss, accuracy = model.evaluate(data["validation_x"][judge:last], data["validation_y"][judge:last], verbose=0)
        return {"loss": loss, "accuracy": accuracy}

    return train


class Graph:
    """A model whose weights are reset, trained and evaluated in one call."""

    def __init__(self, given: Task, configuration: Json, data: dict[str, Any]) -> None:
        import tensorflow as tf

        model = self.model = model_of(given.work, configuration)
        model.optimizer.build(model.trainable_variables)
        changed = [*model.variables, *model.optimizer.variables]
        fresh = [tf.constant(np.asarray(variable)) for variable in changed]
        batch = configuration["batch_size"]

        def over(step: Callable[..., Any], x: Any, y: Any, size: int) -> None:
            rows = tf.shape(y)[0]

            def body(start: Any) -> list[Any]:
                end = tf.minimum(start + size, rows)
                step((x[start:end], y[start:end]))
                return [end]

            tf.while_loop(lambda start: start < rows, body, [tf.constant(0)], parallel_iterations=1)

        def epoch(number: Any, begin: Any, end: Any) -> list[Any]:
            order = tf.random.shuffle(tf.range(begin, end))
            over(model.train_step, tf.gather(data["x"], order), tf.gather(data["y"], order), batch)
            return [number + 1, begin, end]

        @tf.function(autograph=False, input_signature=[tf.TensorSpec((), tf.int32)] * 4)
        def group(begin: Any, end: Any, judge: Any, last: Any) -> Any:
            for variable, value in zip(changed, fresh):
                variable.assign(value)
            tf.while_loop(
                lambda number, *_: number < given.epochs, epoch, [tf.constant(0), begin, end], parallel_iterations=1
            )
            for metric in model.metrics:
                metric.reset_state()
            over(model.test_step, data["validation_x"][judge:last], data["validation_y"][judge:last], 256)
            return model.get_metrics_result()

        self.group = group

    def train(self, piece: Piece) -> Result:
        found = self.group(*map(np.int32, piece))
        return {"loss": float(found["loss"]), "accuracy": float(found["accuracy"])}


def bare(given: Task) -> Train:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    data = {name: tf.constant(array) for name, array in given.arrays().items()}
    graphs: dict[str, Graph] = {}

    def train(configuration: Json, piece: Piece) -> Result:
        key = str(configuration)
        if key not in graphs:
            graphs[key] = Graph(given, configuration, data)
        return graphs[key].train(piece)

    return train


_train: Train  # of a process of the pool


def _begin(folder: str) -> None:
    global _train
    _train = prepared(Task(folder))


def _one(todo: tuple[Json, Piece]) -> Result:
    return _train(*todo)


def main(given: Task, every: int, kind: str) -> None:
    groups = pieces(given, every)
    wholes = [(configuration, whole(given)) for configuration in given.configurations]
    todo = [(configuration, piece) for configuration in given.configurations for piece in groups]
    if kind == "pool":
        with multiprocessing.get_context("spawn").Pool(2, _begin, (str(given.folder),)) as pool:
            ready = time.time()
            results = pool.map(_one, wholes, chunksize=1)
            began = time.time()
            results += pool.map(_one, todo, chunksize=1)
    else:
        train = bare(given) if kind == "bare" else prepared(given)
        ready = time.time()
        results = [train(*one) for one in wholes]
        began = time.time()
        results += [train(*one) for one in todo]
    given.done(ready, results, with_groups=time.time() - began)


if __name__ == "__main__":
    main(task(), int(sys.argv[2]), sys.argv[3])
