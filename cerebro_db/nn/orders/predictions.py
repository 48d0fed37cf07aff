"""Predictions: a model's outputs for rows, written to files as an order asks for them (float32, little-endian).

Explanations of predictions are float64.
"""

from __future__ import annotations

import base64
import itertools
import math
import time
from collections.abc import Callable

import numpy as np

from cerebro_db.core.models.metrics import LEAST_PROBABILITY
from cerebro_db.core.protocol import (
    BestClasses,
    Calibrated,
    Predict,
    Predicted,
    PredictedMore,
    PredictedOutput,
    Quantiles,
)
from cerebro_db.nn.orders import explanations
from cerebro_db.nn.programs import Programs, ReadyProgram
from cerebro_db.nn.rows.data import Dataset, predicted_at_once, slabs


def predict(programs: Programs, order: Predict, dataset: Dataset, listen: Callable[[], None]) -> Predicted:
    """Apply the order's model to the rows, and write output n to the file OUT.n."""
    ready, found = _answers(programs, order, dataset, listen)
    outputs = []
    for number, (output, numbers) in enumerate(found):
        numbers.tofile(f"{order.out}.{number}")
        outputs.append(output)
    return Predicted(dataset.rows, outputs, holds=programs.holds(ready, order.state))


def predict_more(programs: Programs, order: Predict, dataset: Dataset, listen: Callable[[], None]) -> PredictedMore:
    """As ``predict``, with the answers themselves instead of files."""
    _, answers = _answers(programs, order, dataset, listen)
    return PredictedMore(
        [output for output, _ in answers], [base64.b64encode(numbers.tobytes()).decode() for _, numbers in answers]
    )


def _answers(
    programs: Programs, order: Predict, dataset: Dataset, listen: Callable[[], None]
) -> tuple[ReadyProgram, list[tuple[PredictedOutput, np.ndarray]]]:
    """What is answered for each output, and its numbers."""
    if order.explanation is None:
        ready, found = _outputs(programs, order, dataset, listen)
        if order.steps:  # each is answered as a row is
            found = [values.reshape(-1, *values.shape[2:]) for values in found]
        return ready, [_answer(order.best, number, values) for number, values in enumerate(found)]
    ready = programs.ready_to_predict(order.configuration, dataset.layout, order.state)

    def outputs(rows: Dataset) -> list[np.ndarray]:
        labels = order.best.labels if order.best else itertools.repeat(None)
        corrected = order.best.calibrated if order.best and order.best.calibrated else itertools.repeat(None)
        values = _outputs(programs, order, rows, listen)[1]
        if order.best and order.best.quantiles:
            values = [
                its if one is None else np.sort(its, axis=-1)[..., one.middle]
                for its, one in zip(values, order.best.quantiles)
            ]
        return [
            its if one is None else tempered(its, one.temperature)
            for its, one in zip(
                (probabilities(its, known).astype("f8") for its, known in zip(values, labels)), corrected
            )
        ]

    explained = explanations.explain(order.explanation, dataset, outputs)
    return ready, [(PredictedOutput(shape=[values.shape[1]]), values.astype("<f8", copy=False)) for values in explained]


def _outputs(
    programs: Programs, order: Predict, dataset: Dataset, listen: Callable[[], None]
) -> tuple[ReadyProgram, list[np.ndarray]]:
    ready = programs.ready_to_predict(order.configuration, dataset.layout, order.state)
    row_bytes = sum(array.nbytes for array in dataset.inputs) // max(1, dataset.rows)
    batch_size = predicted_at_once(row_bytes)
    with programs.configuration_errors():
        ready.program.prepare("predict", dataset, batch_size, dataset.rows)
    found: list[list[np.ndarray]] = [[] for _ in ready.program.outputs]  # per output, slab by slab
    with programs.configuration_errors(), programs.reading(ready):
        speed = ready.speed["predict", 1]
        for slab in slabs(dataset, dataset.rows, batch_size, speed):
            started = time.monotonic()
            for parts, part in zip(found, ready.program.predict(slab, batch_size)):
                parts.append(part)
            speed.measured(math.ceil(slab.rows / batch_size), time.monotonic() - started)
            listen()
    return ready, [
        np.concatenate(parts) if parts else np.empty((0, *(size or 0 for size in shape)), "f4")
        for parts, shape in zip(found, ready.program.outputs)
    ]


def _answer(best: BestClasses | None, number: int, values: np.ndarray) -> tuple[PredictedOutput, np.ndarray]:
    """What is answered for an output with this number, and its numbers."""
    labels = best.labels[number] if best else None
    quantiles = best.quantiles[number] if best and best.quantiles else None
    if quantiles is not None:
        return rising(values, quantiles)
    if best is None or labels is None:
        return PredictedOutput(shape=list(values.shape[1:])), values.astype("<f4", copy=False)
    return best_classes(values, labels, best.ranks, best.calibrated[number] if best.calibrated else None)


def rising(values: np.ndarray, wanted: Quantiles) -> tuple[PredictedOutput, np.ndarray]:
    """The quantiles of all rows, the lowest one of each row first.  A model may have learned some that cross."""
    found = np.sort(values.reshape(-1, wanted.count), axis=1)
    if wanted.shifts is not None:
        found = np.sort(found + np.array(wanted.shifts, found.dtype) * (found[:, -1:] - found[:, :1]), axis=1)
    return PredictedOutput(quantiles=wanted.count, middle=wanted.middle), found.T.astype("<f4", order="C")


def best_classes(
    values: np.ndarray, labels: int, most: int | None, calibrated: Calibrated | None = None
) -> tuple[PredictedOutput, np.ndarray]:
    """First the best class of each row, then the second best class of each row and so on; then their probabilities."""
    scores = its = probabilities(values, labels)
    if calibrated is not None:
        scores = its = tempered(its, calibrated.temperature)
        if calibrated.weights is not None:
            scores = its * np.array(calibrated.weights)
    classes = ranked(scores, most)
    chosen = np.take_along_axis(its, classes, 1)
    return PredictedOutput(ranks=classes.shape[1]), np.stack([classes.T, chosen.T]).astype("<f4")


def probabilities(values: np.ndarray, labels: int | None) -> np.ndarray:
    """Those of all classes.  One unit for two classes gives the probability of the second class."""
    found = values.reshape(len(values), -1)
    return np.hstack([1 - found, found]) if labels == 2 and found.shape[1] == 1 else found


def tempered(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """The probabilities with this temperature, as core/models/calibration.py has them."""
    if temperature == 1.0:
        return probabilities
    logarithms = np.log(np.maximum(probabilities, LEAST_PROBABILITY, dtype="f8")) / temperature
    powers = np.exp(logarithms - logarithms.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def ranked(values: np.ndarray, most: int | None) -> np.ndarray:
    """The best classes of each row in the order of SQL's ``value DESC, class``: NaN comes before all numbers."""
    if most == 1:
        return values.argmax(1)[:, None]  # argmax, too, takes NaN first, and the first of equal values
    return np.lexsort((-values, ~np.isnan(values)), axis=1)[:, :most]
