"""Learns how far the predictions of a model can be trusted, and keeps it with the model: ``cerebro.calibrate``.

It learns from rows that did not train the model: those of a packed table, or those of a query.  The caller's session
predicts them.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Union

from cerebro_db.core import documents
from cerebro_db.core.errors import BadData, InvalidArgument, NotPermitted, Unsupported, WrongState
from cerebro_db.core.models import calibration, quality
from cerebro_db.core.models.calibration import Calibration, Classes, Errors
from cerebro_db.core.models.quality import Quality
from cerebro_db.core.names import is_name
from cerebro_db.core.packing.layout import Variable
from cerebro_db.core.protocol import PredictionInput
from cerebro_db.core.sql import identifier, shown, sql
from cerebro_db.core.texts import counted

from ..database import relations
from ..database.access import Database
from ..database.relations import Relation
from ..models import calibrations
from ..models.trained import TrainedModel, class_labels
from ..packing import packed
from ..packing.packed import Packed
from ..predicting import by_group, streaming, trainers
from ..predicting.keys_and_outputs import PAIR
from ..segment.prediction import SegmentPrediction
from . import judged_rows, packed_rows
from .actual_values import actual_of
from .packed_rows import Known

MOST_ROWS = 50_000  # a random sample of more rows
MOST_VALUES = 500_000  # probabilities of a target's classes in all rows
FEW_ROWS = 100  # a notice tells of fewer
TRIED_ROWS = 1000  # tell how long more of them will take
NEARLY = 0.01  # how far the sum of probabilities may be from 1

Values = Union[float, Sequence[float]]  # a number, or the probabilities of the classes
Learned = tuple[Union[Errors, Classes], list[calibration.Summary]]


def calibrate(
    db: Database,
    model: TrainedModel,
    rows: Callable[[], str],
    *,
    target: str | None = None,
    decide_by: str | None = calibration.F1,
    until: float | None = None,
    qualities: list[Quality] | None = None,
) -> list[dict[str, Any]]:
    """What was found: a row for each target and measure.

    ``rows``: returns a query, or the name of a packed table.  ``until``: when it should end, as time.monotonic().
    ``qualities``: gets how good the model is for each target, on the same rows.
    """
    by_group.refuse_groups(model)
    info = _info(db, model)
    chosen = [judged_rows.target_of(model.layout, target)] if target is not None else list(model.layout.outputs)
    for variable in chosen:
        if variable.target == "encoded" or (variable.target == "real" and variable.elements > 1):
            raise Unsupported(f"the target '{variable.name}' is an array.", hint="Arrays cannot be calibrated.")
    measure = _measure(decide_by, chosen)
    found: dict[str, Errors | Classes] = dict(calibrations.of_model(db, model))
    told: list[dict[str, Any]] = []
    samples = _samples(db, model, rows(), chosen, until)
    for place, (variable, sample) in enumerate(samples):
        predicted = _checked(db, variable, sample)
        kept, lines = _calibrated(db, variable, sample, predicted, measure, _share(until, len(samples) - place))
        found[variable.name] = kept
        if qualities is not None:
            with contextlib.suppress(OverflowError):  # squares of the largest numbers
                qualities.append(_quality(variable, sample, predicted))
        told += [
            {"target": variable.name, "measure": name, "before": before, "after": after}
            for name, before, after in lines
        ]
    _keep(db, model, info, found)
    return told


def _quality(variable: Variable, sample: Sample, predicted: list[Any]) -> Quality:
    if sample.labels is None:
        return quality.of_numbers(variable.name, predicted, sample.actual)
    return quality.of_classes(variable.name, predicted, sample.actual, sample.labels)


# -- where it is kept ----------------------------------------------------------------------------------------


def _info(db: Database, model: TrainedModel) -> Relation:
    """The table that keeps the calibration; an error if this user does not own it.

    A superuser must not write into a table of another user, whose triggers would run with the superuser's rights.
    """
    if model.is_registered:
        raise WrongState(
            "a registered version never changes.",
            hint="Calibrate the model table that it was made from, and register it as a new version.",
        )
    info = model.tables.info
    if info is None or not model.named.has_key or "parameters" not in relations.columns(db, info):
        raise Unsupported(
            f"'{model.table.text}' is a table of MADlib's form, which keeps no calibration.",
            hint="cerebro.train(), cerebro.search() and cerebro.fit() make tables that do.",
        )
    relations.require_own(db, info, "calibrate the models")
    if info.kind not in ("r", "p"):
        raise Unsupported(f"'{info.text}' is not a table.", hint="Calibrate the models of the original table.")
    return info


def _keep(db: Database, model: TrainedModel, info: Relation, found: Calibration) -> None:
    if calibrations.COLUMN not in relations.columns(db, info):  # tables of version 0.1 do not have it
        db.patiently(
            sql(
                "ALTER TABLE {info} ADD COLUMN {column} pg_catalog.jsonb",
                info=info.sql,
                column=identifier(calibrations.COLUMN),
            )  # fmt: skip
        )
    text = json.dumps(calibration.to_json(found))
    column, number, key = identifier(calibrations.COLUMN), identifier(model.named.configuration), model.key
    update = sql(
        "UPDATE {info} SET {column} = ($1::text[])[1]::pg_catalog.jsonb WHERE {number} = {key}",
        info=info.sql,
        column=column,
        number=number,
        key=key,
    )
    db.patiently(update, [text])
    same = sql(
        "SELECT {column}::pg_catalog.jsonb = $1::pg_catalog.jsonb FROM {info} WHERE {number} = {key}",
        info=info.sql,
        column=column,
        number=number,
        key=key,
    )
    if not db.value(same, ("text",), text):
        raise NotPermitted(
            f"the row of configuration {model.key} in '{info.text}' could not be changed.",
            hint="A policy or a trigger of the table keeps it.",
        )
    model.remembered.clear()


# -- the rows ------------------------------------------------------------------------------------------------


class Sample:
    """A random sample of rows: what is predicted of a target, and the value that it has."""

    def __init__(self, variable: Variable) -> None:
        self.labels = None if variable.target == "real" else class_labels(variable)
        self.places = {label: place for place, label in enumerate(self.labels or ())}
        self.predicted: list[Any] = []
        self.actual: list[Any] = []
        self.rows = self.left_out = 0
        self._most = min(MOST_ROWS, max(1, MOST_VALUES // len(self.labels or (0,))))
        self._random = random.Random(0)

    def known(self, text: str | None) -> Known:
        """The actual value from its text."""
        if self.labels is not None:
            return self.places.get(text)
        number = math.nan if text is None else float(text)
        return number if math.isfinite(number) else None

    def add(self, payload: bytes, actual: list[Known]) -> None:
        """The answers for some rows, as float32."""
        numbers = array("f", payload)
        width = len(numbers) // len(actual)
        for row, known in enumerate(actual):
            if known is None:
                self.left_out += 1
                continue
            place = self.rows if self.rows < self._most else self._random.randrange(self.rows + 1)
            self.rows += 1
            if place >= self._most:
                continue
            values: Values = numbers[row] if self.labels is None else numbers[row * width : (row + 1) * width]
            if place == len(self.actual):
                self.predicted.append(values)
                self.actual.append(known)
            else:
                self.predicted[place], self.actual[place] = values, known


def _samples(
    db: Database, model: TrainedModel, rows: str, chosen: list[Variable], until: float | None
) -> list[tuple[Variable, Sample]]:
    samples = [Sample(variable) for variable in chosen]
    if is_name(rows):
        _read_packed_table(db, model, rows, chosen, samples, _share(until, 2))
    else:
        for variable, sample in zip(chosen, samples):
            _read_query(db, model, rows, variable, sample)
    return list(zip(chosen, samples))


def _read_query(db: Database, model: TrainedModel, query: str, variable: Variable, sample: Sample) -> None:
    judged = judged_rows.judged_of(db, model, query, variable.name)
    source, windows = judged.source, model.layout.windows
    actual = actual_of(db, source, judged.present[variable.columns[0]], variable)
    pairs = shown(judged_rows.with_pairs(source.rows, actual, sql("NULL::pg_catalog.text"), variable, windows))
    rows, reading = streaming.reading_of(db, model, relations.of_query(db, pairs), PAIR, None)
    place = model.layout.outputs.index(variable)
    with _predicting(db, model, [one.for_prediction() for one in reading.inputs]) as prediction:
        for count, ids, variables in streaming.chunks(db, rows, reading):
            answers = prediction.predict(count, variables)
            pair_of = [json.loads(one) for one in ids]
            sample.add(answers[place][3], [sample.known(pair[1]) if len(pair) > 1 else None for pair in pair_of])


@contextlib.contextmanager
def _predicting(db: Database, model: TrainedModel, inputs: list[PredictionInput]) -> Iterator[SegmentPrediction]:
    order = trainers.order_of(model, model.version(db), inputs, None)
    with (
        trainers.own_segment(db, model.memory_mb) as (mine, _),
        trainers.predicting(db, mine, model, order) as prediction,
    ):
        yield prediction


def _share(until: float | None, steps: int) -> float | None:
    """Until when the first of so many steps may take."""
    return None if until is None else time.monotonic() + (until - time.monotonic()) / steps


def _read_packed_table(
    db: Database, model: TrainedModel, table: str, chosen: list[Variable], samples: list[Sample], until: float | None
) -> None:
    please = f"Name a packed table that fits the model, or give a query: 'SELECT * FROM {table.strip()}'."
    test = packed.read(db, table, argument="query", please=please)
    packed.require_same_shapes(model.layout, model.table.text, test)
    layout = test.layout
    places = [model.layout.outputs.index(variable) for variable in chosen]
    for variable, place in zip(chosen, places):
        if variable.target == "class" and class_labels(variable) != _labels(db, test, layout.outputs[place]):
            raise BadData(f"'{test.relation.text}' has other classes of '{variable.name}' than the model.", hint=please)
    with _predicting(db, model, packed_rows.inputs(layout)) as prediction:
        for batch in packed_rows.batches(
            db, test, layout, places, lambda: until is not None and time.monotonic() > until
        ):
            answers = prediction.predict(batch.rows, batch.inputs)
            for place, sample, actual in zip(places, samples, batch.actual):
                sample.add(answers[place][3], actual)


def _labels(db: Database, test: Packed, output: Variable) -> list[str | None]:
    kept = test.summary.labels.get(output.name)
    return class_labels(output) if kept is None else [*kept, *class_labels(output)[len(kept) :]]


# -- what is learned -----------------------------------------------------------------------------------------


def _measure(decide_by: str | None, chosen: list[Variable]) -> Any:
    """The measure of thresholds, or the costs of classes as JSON; None: none are sought."""
    if decide_by is None or decide_by.strip() in calibration.MEASURES:
        return None if decide_by is None else decide_by.strip()
    found = documents.argument(decide_by, "decide_by") if decide_by.lstrip().startswith("{") else decide_by
    labelled = [one for one in chosen if one.target != "real"]
    if len(labelled) != 1 and isinstance(found, dict):
        raise InvalidArgument("decide_by: costs need one target of classes.", hint="target => '…' names it.")
    for variable in labelled:
        calibration.costs(found, class_labels(variable), "decide_by")
    return found


def _checked(db: Database, variable: Variable, sample: Sample) -> list[Any]:
    """The predictions: numbers, or the probabilities of all classes; an error if they cannot be calibrated."""
    rows = len(sample.actual)
    if sample.left_out:
        what = "number" if sample.labels is None else "class that training had"
        db.notice(f"{counted(sample.left_out, 'row')} without a {what} in '{variable.name}' are left out")
    if rows < 2:
        raise BadData(f"there are {counted(rows, 'row')} to calibrate '{variable.name}' with; at least 2 are needed.")
    if rows < FEW_ROWS:
        db.told(f"'{variable.name}' is calibrated with only {counted(rows, 'row')}: what it promises is uncertain")
    if sample.labels is None:
        if not all(map(math.isfinite, sample.predicted)):
            raise BadData(f"the model predicts numbers of '{variable.name}' that are NaN or infinite.")
        return sample.predicted
    probabilities = [_probabilities(variable, values, len(sample.labels)) for values in sample.predicted]
    if len(set(sample.actual)) < 2:
        raise BadData(
            f"all {rows} rows have the same class of '{variable.name}'.", hint="Calibrate with rows of several classes."
        )
    return probabilities


def _calibrated(
    db: Database, variable: Variable, sample: Sample, predicted: list[Any], measure: Any, until: float | None
) -> Learned:
    if sample.labels is None:
        return _in_time(db, variable, calibration.of_numbers, predicted, sample.actual, until)
    labels, weigh = sample.labels, _weigh(db, variable, sample, measure)

    def learn(predicted: Sequence[Any], actual: Sequence[Any]) -> Learned:
        return calibration.of_classes(predicted, actual, labels, weigh)

    return _in_time(db, variable, learn, predicted, sample.actual, until)


def _in_time(
    db: Database,
    variable: Variable,
    learn: Callable[[Sequence[Any], Sequence[Any]], Learned],
    predicted: Sequence[Any],
    actual: Sequence[Any],
    until: float | None,
) -> Learned:
    """What is learned from all rows, or from as many of them as there is time for.  A few rows tell the speed."""
    if until is None or len(actual) <= TRIED_ROWS:
        return learn(predicted, actual)

    def some(rows: int) -> Learned | None:
        places = sorted(random.Random(0).sample(range(len(actual)), rows))
        chosen = [actual[place] for place in places]
        if variable.target == "class" and len(set(chosen)) < 2:
            return None
        return learn([predicted[place] for place in places], chosen)

    begun = time.monotonic()
    found = some(TRIED_ROWS)
    now = time.monotonic()
    rows = int((until - now) / max(now - begun, 1e-6) * TRIED_ROWS)
    if found is None or rows >= len(actual):
        return learn(predicted, actual)
    rows = max(rows, TRIED_ROWS)
    found = some(rows) or found if rows > TRIED_ROWS else found
    db.told(f"'{variable.name}' is calibrated with {rows:,} of {len(actual):,} rows, for which there is time")
    return found


def _weigh(db: Database, variable: Variable, sample: Sample, measure: Any) -> calibration.Weigh | None:
    labels = sample.labels or []
    if measure is None:
        return None
    if isinstance(measure, dict):
        return lambda probabilities, actual: calibration.costs(measure, labels, "decide_by")
    if len(labels) > calibration.MOST_CLASSES:
        db.notice(
            f"no thresholds are sought for the {len(labels)} classes of '{variable.name}'; at most"
            f" {calibration.MOST_CLASSES} can have them",
            """decide_by => '{"class": 10}' gives costs instead.""",
        )
        return None
    return lambda probabilities, actual: calibration.weights_of(probabilities, actual, len(labels), measure)


def _probabilities(variable: Variable, values: Sequence[float], classes: int) -> Sequence[float]:
    """The probabilities of all classes; an error if the model's outputs are none."""
    found = [1.0 - values[0], values[0]] if len(values) == 1 and classes == 2 else values
    if not (min(found) >= -NEARLY and abs(sum(found) - 1) <= NEARLY):
        raise Unsupported(
            f"the outputs of the model for '{variable.name}' are no probabilities.",
            hint="End the architecture with a softmax, or with a sigmoid for two classes.",
        )
    return found
