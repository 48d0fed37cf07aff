"""Samples of rows with what a model predicts of them: of the rows of a packed table, or of others that are added.

The caller's session predicts them.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Union

from cerebro_db.core.errors import BadData
from cerebro_db.core.packing.layout import Variable
from cerebro_db.core.protocol import PredictionInput
from cerebro_db.core.texts import counted

from ..database.access import Database
from ..models.trained import TrainedModel, class_labels
from ..packing import packed
from ..packing.packed import Packed
from ..predicting import trainers
from ..segment.prediction import Answer, SegmentPrediction
from . import packed_rows
from .packed_rows import Known

MOST_ROWS = 50_000  # a random sample of more rows
MOST_VALUES = 500_000  # probabilities of a target's classes in all rows

Values = Union[float, Sequence[float]]  # a number, or the probabilities of the classes


class Sample:
    """A random sample of rows: what is predicted of a target, and the value that it has."""

    def __init__(self, variable: Variable) -> None:
        self.target = variable.name
        self.labels = None if variable.target == "real" else class_labels(variable)
        self.places = {label: place for place, label in enumerate(self.labels or ())}
        self.predicted: list[Any] = []
        self.actual: list[Any] = []
        self.levels = variable.quantiles
        self.quantiles: list[list[float]] = []  # of these rows, if the model predicts some
        self.numbers: list[int] = []  # of these rows, among all that were read
        self.rows = self.left_out = 0
        self._most = min(MOST_ROWS, max(1, MOST_VALUES // len(self.labels or (0,))))
        self._random = random.Random(0)

    def known(self, text: str | None) -> Known:
        """The actual value from its text."""
        if self.labels is not None:
            return self.places.get(text)
        number = math.nan if text is None else float(text)
        return number if math.isfinite(number) else None

    def add(self, answer: Answer, actual: list[Known]) -> None:
        """The answers for some rows, as float32."""
        numbers = array("f", answer[3])
        of_rows = array("f", answer[2] or b"") if self.levels else array("f")  # the quantiles, one after the other
        width = len(numbers) // len(actual)
        for row, known in enumerate(actual):
            if known is None:
                self.left_out += 1
                continue
            number = self.rows + self.left_out
            place = self.rows if self.rows < self._most else self._random.randrange(self.rows + 1)
            self.rows += 1
            if place >= self._most:
                continue
            values: Values = numbers[row] if self.labels is None else numbers[row * width : (row + 1) * width]
            if self.levels:
                self.quantiles[place : place + 1] = [list(of_rows[row :: len(actual)])]
            if place == len(self.actual):
                self.predicted.append(values)
                self.actual.append(known)
                self.numbers.append(number)
            else:
                self.predicted[place], self.actual[place], self.numbers[place] = values, known, number

    def probabilities(self) -> list[Sequence[float]]:
        """Of each row, those of all classes.  One unit for two classes gives the probability of the second one."""
        two = len(self.labels or ()) == 2
        return [[1.0 - its[0], its[0]] if two and len(its) == 1 else its for its in self.predicted]

    def tell_left_out(self, db: Database) -> None:
        if self.left_out:
            what = "number" if self.labels is None else "class that training had"
            db.notice(f"{counted(self.left_out, 'row')} without a {what} in '{self.target}' are left out")


def share(until: float | None, steps: int) -> float | None:
    """Until when the first of so many steps may take."""
    return None if until is None else time.monotonic() + (until - time.monotonic()) / steps


@contextlib.contextmanager
def predicting(db: Database, model: TrainedModel, inputs: list[PredictionInput]) -> Iterator[SegmentPrediction]:
    order = trainers.order_of(model, model.version(db), inputs, None)
    with (
        trainers.own_segment(db, model.memory_mb, sealed=model.tables.must_seal(db)) as (mine, _),
        trainers.predicting(db, mine, model, order) as prediction,
    ):
        yield prediction


def of_packed_table(
    db: Database, model: TrainedModel, table: str, chosen: list[Variable], until: float | None = None
) -> list[tuple[Variable, Sample]]:
    """A sample for each of these targets; of fewer rows if the time is over.  ``until``: as time.monotonic()."""
    please = f"Name a packed table that fits the model, or give a query: 'SELECT * FROM {table.strip()}'."
    test = packed.read(db, table, argument="query", please=please)
    packed.require_same_shapes(model.layout, model.table.text, test)
    layout = test.layout
    samples = [Sample(variable) for variable in chosen]
    places = [model.layout.outputs.index(variable) for variable in chosen]
    for variable, place in zip(chosen, places):
        if variable.target == "class" and class_labels(variable) != _labels(test, layout.outputs[place]):
            raise BadData(f"'{test.relation.text}' has other classes of '{variable.name}' than the model.", hint=please)
    with predicting(db, model, packed_rows.inputs(layout)) as prediction:
        for batch in packed_rows.batches(
            db, test, layout, places, lambda: until is not None and time.monotonic() > until
        ):
            answers = prediction.predict(batch.rows, batch.inputs)
            for place, sample, actual in zip(places, samples, batch.actual):
                sample.add(answers[place], actual)
    return list(zip(chosen, samples))


def _labels(test: Packed, output: Variable) -> list[str | None]:
    kept = test.summary.labels.get(output.name)
    return class_labels(output) if kept is None else [*kept, *class_labels(output)[len(kept) :]]
