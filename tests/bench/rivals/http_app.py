"""An HTTP model server: FastAPI, and a Keras model whose call is traced before the first request (http_server.py)."""

from __future__ import annotations

import os

import keras  # noqa: F401  (before TensorFlow, as in the other rivals)
import numpy as np
import tensorflow as tf
from fastapi import FastAPI
from pydantic import BaseModel

from tests.bench.rivals.common import Task, model_of

given = Task(os.environ["BENCH_TASK"])
model = model_of(given.work, given.configurations[0])
shape = tuple(given.work["shape"])


@tf.function(input_signature=[tf.TensorSpec((None, *shape), tf.float32)], autograph=False)
def outputs(rows: tf.Tensor) -> tf.Tensor:
    return model(rows, training=False)


outputs(np.zeros((1, *shape), "float32"))
app = FastAPI()


class Row(BaseModel):
    x: list[float]


@app.post("/predict")
def predict(row: Row) -> dict[str, float]:
    probabilities = outputs(np.array([row.x], "float32")).numpy()[0]
    best = int(probabilities.argmax())
    return {"class": best, "probability": float(probabilities[best])}
