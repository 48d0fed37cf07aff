"""Adapters in Keras, one configuration after another: Keras' own enable_lora() on the queries and values."""

from __future__ import annotations

import fnmatch
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def adapted(model: Any, configuration: dict[str, Any]) -> Any:
    patterns = [one.strip().rpartition("/") for one in configuration["adapter_layers"].split(",")]
    for layer in model.layers[:-1]:
        layer.trainable = False
    for layer in model.layers:
        for pattern, _, part in patterns:
            if fnmatch.fnmatchcase(layer.name, pattern) and type(layer).__name__ == "MultiHeadAttention":
                inner = getattr(layer, f"_{part}_dense")
                inner.enable_lora(configuration["lora_rank"], lora_alpha=configuration["lora_alpha"])
                layer.trainable = True
                adapters = (inner.lora_kernel_a, inner.lora_kernel_b)
                for variable in layer.variables:
                    variable.trainable = "lora" in variable.path
                assert all(one.trainable for one in adapters)
    return model


def main(folder: Path) -> None:
    import keras

    work = json.loads((folder / "work.json").read_text())
    with np.load(folder / "rows.npz") as found:
        data = dict(found)
    scores = []
    for configuration in work["configurations"]:
        keras.utils.set_random_seed(1)
        model = adapted(keras.models.load_model(folder / "network.keras"), configuration)
        optimizer = keras.optimizers.AdamW(configuration["learning_rate"])
        model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(data["training_x"], data["training_y"], batch_size=configuration["batch_size"],
                  epochs=work["epochs"], verbose=0)  # fmt: skip
        scores.append(float(model.evaluate(data["held_x"], data["held_y"], verbose=0)[1]))
    (folder / "result.json").write_text(json.dumps(scores))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
