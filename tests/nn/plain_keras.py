"""The reference for hops: Keras' own model.fit, in one process, on the same rows in the same order.

Run as a script with a JSON file of cases, and "torch" for Keras on PyTorch; writes each case's final variables to an
.npz beside it. Shares no code with the trainer.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
os.environ["KERAS_BACKEND"] = "torch" if "torch" in sys.argv[2:] else "tensorflow"

import keras
import numpy as np

if keras.backend.backend() == "torch":
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
else:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def replay(case: dict[str, Any]) -> list[np.ndarray]:
    configuration = case["configuration"]
    keras.utils.set_random_seed(case["seed"])
    architecture, parameters = configuration["architecture"], configuration["compile"]
    model = getattr(keras, {"Sequential": "Sequential", "Functional": "Model"}[architecture["class_name"]]).from_config(
        architecture["config"]
    )
    # The layers have their own; the model's own, which Keras leaves out of what it reads, has the loss scaled.
    model.dtype_policy = keras.dtype_policies.get(architecture["config"].get("dtype") or "float32")
    optimizer = keras.saving.deserialize_keras_object({"module": "keras.optimizers", **parameters["optimizer"]})
    model.compile(optimizer, loss=parameters["loss"], metrics=parameters["metrics"])
    fit = dict(configuration["fit"])
    if fit.get("class_weight"):
        fit["class_weight"] = {int(label): weight for label, weight in fit["class_weight"].items()}
    for unit, file in enumerate(case["units"]):
        arrays = np.load(file)
        x, y = ([arrays[name] for name in case[side]] for side in ("inputs", "outputs"))
        order = np.random.Generator(np.random.PCG64([case["shuffle_seeds"][unit], 0])).permutation(len(x[0]))
        x, y = ([array[order] for array in side] for side in (x, y))
        model.fit(x if len(x) > 1 else x[0], y if len(y) > 1 else y[0], shuffle=False, verbose=0, **fit)
    weights = list(model.weights)
    others = [v for v in model.variables if not any(v is weight for weight in weights)]
    return [np.asarray(v) for v in weights + others + model.optimizer.variables]


if __name__ == "__main__":
    for case in json.loads(Path(sys.argv[1]).read_text()):
        np.savez(case["out"], *replay(case))
