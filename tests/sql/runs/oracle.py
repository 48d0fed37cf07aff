"""The reference for runs in the database: Keras' model.fit in one process, without hops.

A script.  Its argument is a JSON file of cases.  Each case has a configuration, a seed, and an .npz file with the rows
of each visit, in the order of the visits.  The script writes the final variables of a case to the case's file ``out``.
It shares no code with the product.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.experimental.enable_op_determinism()
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


traced: dict[str, Any] = {}  # the first model of each configuration


def made(compiled: dict[str, Any], model: Any) -> Any:
    """The model, compiled, with an optimizer that has not trained."""
    optimizer = keras.optimizers.deserialize(compiled["optimizer"])
    model.compile(optimizer, loss=compiled["loss"], metrics=compiled["metrics"])
    optimizer.build(model.trainable_variables)
    return model


def copy(variables: list[Any], others: list[Any]) -> None:
    for variable, other in zip(variables, others, strict=True):
        variable.assign(other)


def train(case: dict[str, Any]) -> list[np.ndarray]:
    compiled = case["compile"]
    configuration = json.dumps([case["architecture"], compiled])  # before Keras changes it
    keras.utils.set_random_seed(case["seed"] % (1 << 32))
    new = made(compiled, keras.Sequential.from_config(case["architecture"]["config"]))
    # Tracing takes longer than training, so the first model of a configuration stands for the others: it gets all
    # variables of the new one.
    model = traced.setdefault(configuration, new)
    copy(model.variables, new.variables)
    copy(model.optimizer.variables, new.optimizer.variables)
    untrained = [np.asarray(v) for v in model.optimizer.variables]
    if "weights" in case:  # it starts with the first variables of another model
        given = [*np.load(case["weights"]).values()]
        model.set_weights(given[: len(model.get_weights())])
    visits = np.load(case["visits"])
    for visit in range(case["count"]):
        if case["forgetful"]:  # Only the weights hop, and the optimizer begins anew at each visit.
            copy(model.optimizer.variables, untrained)
        model.fit(
            visits[f"x{visit}"], visits[f"y{visit}"],
            batch_size=case["batch_size"], epochs=1, shuffle=False, verbose=0,
        )  # fmt: skip
    weights = list(model.weights)
    others = [v for v in model.variables if not any(v is weight for weight in weights)]
    return [np.asarray(v) for v in weights + others + model.optimizer.variables]


if __name__ == "__main__":
    for case in json.loads(Path(sys.argv[1]).read_text()):
        np.savez(case["out"], *train(case))
