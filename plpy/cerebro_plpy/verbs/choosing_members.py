"""Chooses the members of an ensemble by the rows for validation.

They are chosen by the predictions for the first of these rows.  If the objective of the run is the loss of such
predictions, it is computed from the predictions for all rows.  Otherwise the mean of the members is evaluated by the
objective, and has to be better than the best model.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cerebro_db.core.architecture import keras_json
from cerebro_db.core.architecture.ensembles import ensemble as mean_of
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.events import DataSetName
from cerebro_db.core.models import member_choice, optimism
from cerebro_db.core.models.member_choice import OfOutput
from cerebro_db.core.models.metrics import LOSS, number
from cerebro_db.core.packing.layout import Variable
from cerebro_db.core.records import dataclass
from cerebro_db.core.search.objective import Objective
from cerebro_db.core.sql import sql

from .. import platform
from ..database import relations
from ..database.access import Database
from ..database.relations import Relation
from ..judging import packed_rows
from ..judging.evaluating_team import evaluating
from ..judging.packed_rows import Batch
from ..models.trained import ModelTables, TrainedModel, read
from ..packing import packed, visibility
from ..packing.packed import Packed
from ..predicting import teams, trainers
from ..runs.record import own_runs
from ..segment.prediction import Answer, SegmentPrediction

COLUMNS = ("run", "objective", "direction")  # of the summary
CHOOSING_ROWS = 4000  # for validation, by which members are chosen
MOST_ROWS = 50_000  # that all models predict
MOST_BYTES = 128 << 20  # of their inputs, which stay in memory; with one packed row more
LEAST_OPTIMISM = 0.01  # of a loss: less is not worth a word
READING_SHARE = 0.2  # of the time, for reading the rows
CROSS_ENTROPY, SQUARED_ERROR = "categorical_crossentropy", "mse"


@dataclass
class Together:
    """Several models as one: their architecture, and their weights one after the other."""

    members: list[TrainedModel]

    @property
    def definition(self) -> dict[str, Any]:
        first, *others = (one.definition for one in self.members)
        if not others:
            return first
        architecture = json.dumps(mean_of([one["architecture"] for one in (first, *others)]))
        return {**first, "architecture": keras_json.architecture(architecture)}

    def weights(self, db: Database) -> Iterator[bytes]:
        return (piece for one in self.members for piece in one.weights(db))


@dataclass
class Measure:
    """What decides: the objective of the run on its validation rows, or else their loss."""

    rows: Packed
    objective: Objective
    of_run: bool  # else the run has another objective, which no validation rows measure


@dataclass
class Joined:
    keys: list[int]  # the best one first
    value: float | None  # of the objective
    loss: float | None
    best: int  # the model that is best alone
    alone: float | None  # its value
    error: float | None = None  # the standard error of the difference, if it was computed
    expected: float | None = None  # the loss of the best model on new rows, if its choice flatters it noticeably
    compared: int = 0  # models from which it was chosen
    rows: int = 0  # by which


def measure_of(db: Database, tables: ModelTables, summary: Relation, best: int) -> Measure | None:
    """None, with a notice, if the models cannot be judged on the validation rows of the run."""
    present = relations.columns(db, summary)
    found = None
    if set(COLUMNS) <= set(present):
        relations.require_readable(db, summary, [present[name] for name in COLUMNS])
        found = db.one(sql("SELECT run, objective, direction FROM {summary} LIMIT 1", summary=summary.sql))
    table, layout = tables.table, read(db, tables, best).layout
    run = None if found is None else own_runs.of_model(db, found["run"], layout)
    if found is None or run is None:
        db.notice(
            f"the run of {table.text} is not one of yours, so all members join: its rows for validation are not read"
        )
        return None
    try:
        visibility.refuse_transaction(db)
        validation = run.packed_validation(db)
        if validation is None:
            db.told("the run has no validation rows, so all members join")
            return None
        rows = packed.read(db, validation.name.quoted, argument="validation_table")
        packed.require_same_shapes(layout, table.text, rows)
    except CerebroError as error:
        db.notice(f"the models cannot be judged on the validation rows, so all members join: {error.message}")
        return None
    objective = None if found["objective"] is None else Objective(found["objective"], found["direction"])
    if objective is not None and objective.dataset == DataSetName.VALIDATION:
        return Measure(rows, objective, True)
    return Measure(rows, Objective(f"val_{LOSS}"), False)


def joined(
    db: Database,
    tables: ModelTables,
    keys: Sequence[int],
    measure: Measure,
    until: float | None = None,
    known: float | None = None,
) -> Joined:
    """The best of these models, or the mean of some of them.  ``keys``: the best one first.

    ``until``: when no further model is compared with the first ones.  ``known``: the first one's value on all rows.
    """
    models = {key: read(db, tables, key) for key in keys}
    sample = _sample(db, list(models.values()), measure, until)
    if sample is not None and sample.measures(measure, models[keys[0]]):
        if sample.whole:
            return _of_sample(sample, keys)
        if until is not None and known is not None:
            return _of_sample(sample, keys, known)
    data = measure.rows.dataset
    with evaluating(db, measure.rows, False, models[keys[0]].memory_mb) as (team, parts):

        def judged(which: Sequence[int]) -> Joined:
            together = Together([models[key] for key in which])
            loss, metrics = teams.again_if_lost(team, lambda: teams.evaluate(db, team, together, data, parts))
            named = measure.objective.metric
            value = number(loss if named == LOSS else metrics.get(named))
            return Joined(list(which), value, number(loss), keys[0], value)

        def better(one: Joined, other: Joined) -> bool:
            score, before = measure.objective.score(one.value), measure.objective.score(other.value)
            return score is not None and (before is None or score < before)

        best = alone = (
            judged(keys[:1]) if until is None or known is None else Joined([keys[0]], known, None, keys[0], known)
        )
        for chosen in _means(keys, sample):
            together = judged(chosen)
            if better(together, alone):
                best = together
                break
            if until is not None and time.monotonic() > until:
                break
    best.alone = alone.value
    return best


def _means(keys: Sequence[int], sample: ValidationSample | None) -> Iterator[list[int]]:
    """The means that are compared with the best model, one after the other, as lists of their members."""
    if sample is not None:
        yield [keys[place] for place in sample.chosen]
        return
    count = len(keys)
    while count > 1:
        yield list(keys[:count])
        count //= 2


# -- from predictions ----------------------------------------------------------------------------------------


@dataclass
class ValidationSample:
    """What the models predict of rows for validation."""

    outputs: list[OfOutput]
    whole: bool  # whether these are all of the rows

    def measures(self, measure: Measure, model: TrainedModel) -> bool:
        """Whether the objective is a mean over rows that ``OfOutput`` computes."""
        expected = CROSS_ENTROPY if self.outputs[0].of_classes else SQUARED_ERROR
        plain = len(self.outputs) == 1 and model.loss_name == expected and measure.rows.layout.weight is None
        return plain and measure.objective.metric == LOSS

    @property
    def chosen(self) -> list[int]:
        """The places of the members, the best one first."""
        return member_choice.members([one.first(CHOOSING_ROWS) for one in self.outputs])


def _of_sample(sample: ValidationSample, keys: Sequence[int], known: float | None = None) -> Joined:
    """``known``: the loss of the first model on all rows, if the sample has a part of them.

    The other losses on all rows are then expected to differ from it as they do on this part.
    """
    (output,) = sample.outputs
    chosen = sample.chosen
    best, further = chosen[0], 0.0 if known is None else known - output.loss([0])
    if len(output.of_models[0]) > CHOOSING_ROWS:  # rows that have not chosen the members judge them, too
        best = 0
        if not output.loss(chosen) < output.loss([best]):
            chosen = [best]
    loss, alone = number(output.loss(chosen) + further), number(output.loss([best]) + further)
    _, error = member_choice.difference(output.losses_of(chosen), output.losses_of([best]))
    found = Joined([keys[one] for one in chosen], loss, loss, keys[best], alone, number(error))
    rows = len(output.of_models[0])
    if alone is not None and rows <= CHOOSING_ROWS:  # with more rows, to choose by them adds next to nothing
        more = optimism.of_choosing([output.losses_of([model]) for model in range(len(output.of_models))])
        if more is not None and more > LEAST_OPTIMISM * alone:
            found.expected, found.compared, found.rows = alone + more, len(output.of_models), rows
    return found


def _sample(
    db: Database, models: Sequence[TrainedModel], measure: Measure, until: float | None
) -> ValidationSample | None:
    """None: that cannot be said of such targets, or not here."""
    layout = measure.rows.layout
    known = all(one.target == "class" or (one.target == "real" and one.of_step == (1,)) for one in layout.outputs)
    if not known or not platform.of(db).runs_functions_in_session:
        return None
    batches = _first(packed_rows.batches(db, measure.rows, layout, range(len(layout.outputs))), until)
    predicted: list[list[list[float]]] = [[] for _ in layout.outputs]
    took = 0.0  # for the last model
    with trainers.own_segment(db, models[0].memory_mb) as (mine, _):
        for number, model in enumerate(models):
            if not member_choice.joins(number, took, _left(until)):
                break
            began = time.monotonic()
            order = trainers.order_of(model, model.version(db), packed_rows.inputs(layout), None)
            with trainers.predicting(db, mine, model, order) as prediction:
                if number == 0:  # it tells for how many rows there is time
                    answers = _in_time(prediction, batches, len(models), until)
                    batches = batches[: len(answers)]
                else:
                    answers = [prediction.predict(batch.rows, batch.inputs) for batch in batches]
            took = time.monotonic() - began
            for place, variable in enumerate(layout.outputs):
                numbers = [_numbers(variable, batch, place, found[place][3]) for batch, found in zip(batches, answers)]
                predicted[place].append([one for its in numbers for one in its])
    if not all(of_models[0] for of_models in predicted):
        return None
    outputs = [OfOutput(one.target == "class", of_models) for one, of_models in zip(layout.outputs, predicted)]
    return ValidationSample(
        outputs, all(len(of_models[0]) == layout.rows * (layout.steps or 1) for of_models in predicted)
    )


def _left(until: float | None) -> float | None:
    return None if until is None else until - time.monotonic()


def _in_time(
    prediction: SegmentPrediction, batches: Sequence[Batch], members: int, until: float | None
) -> list[list[Answer]]:
    """The first member's answers for all batches, or for as many as all members have time for; for one at least."""
    answers: list[list[Answer]] = []
    enough = len(batches)
    while len(answers) < enough:
        began = time.monotonic()
        batch = batches[len(answers)]
        answers.append(prediction.predict(batch.rows, batch.inputs))
        each, left = time.monotonic() - began, _left(until)
        if left is not None and (len(answers) > 1 or left <= 0):  # the first batch has built the program, too
            enough = min(enough, member_choice.batches_in_time(len(answers), each, left, members))
    return answers[:enough]


def _first(batches: Iterable[Batch], until: float | None = None) -> list[Batch]:
    """The first ones, until they are enough rows or bytes, or reading them has taken its share of the time."""
    found: list[Batch] = []
    left = _left(until)
    enough = None if left is None else time.monotonic() + READING_SHARE * left
    rows = size = 0
    for batch in batches:
        found.append(batch)
        rows += batch.rows
        size += sum(len(one) for one in batch.inputs if one is not None)
        if rows >= MOST_ROWS or size >= MOST_BYTES or (enough is not None and time.monotonic() > enough):
            break
    return found


def _numbers(variable: Variable, batch: Batch, place: int, payload: bytes) -> list[float]:
    """Of each row or step that has a target, the probability of its class, or the error of the number."""
    found = array("f", payload)
    actual = batch.actual[place]
    width = len(found) // len(actual)
    if variable.target == "real":
        return [one - truth for one, truth in zip(found, actual) if truth is not None]
    if width == 1:  # the probability of the second of two classes
        return [one if truth else 1.0 - one for one, truth in zip(found, actual) if truth is not None]
    return [found[row * width + int(truth)] for row, truth in enumerate(actual) if truth is not None]
