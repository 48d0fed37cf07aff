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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Union

from cerebro_db.core import documents
from cerebro_db.core.errors import BadData, InvalidArgument, NotPermitted, Unsupported, WrongState
from cerebro_db.core.models import calibration, quality
from cerebro_db.core.models.calibration import Calibration, Classes, Errors, Shifts
from cerebro_db.core.models.quality import Quality
from cerebro_db.core.names import is_name
from cerebro_db.core.packing.layout import Variable
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import identifier, shown, sql
from cerebro_db.core.texts import counted, short

from ..database import relations
from ..database.access import Database
from ..database.relations import Relation
from ..models import calibrations, document_columns
from ..models.trained import TrainedModel, class_labels
from ..packing import packed
from ..predicting import by_group, streaming
from ..predicting.keys_and_outputs import PAIR
from . import judged_rows, samples
from .actual_values import actual_of
from .samples import Sample, share

FEW_ROWS = 100  # a notice tells of fewer
TRIED_ROWS = 1000  # tell how long more of them will take
COVERAGE = 0.9  # of the intervals that a notice tells of
NEARLY = 0.01  # how far the sum of probabilities may be from 1

Learned = tuple[Union[Errors, Shifts, Classes], list[calibration.Summary]]


@dataclass(frozen=True)
class KnownQuality:
    """How good a model is on the rows that it was calibrated with."""

    configuration: int
    made_of: str | None  # an ensemble
    qualities: tuple[Quality, ...]
    document: dict[str, Any]  # as it is kept

    def to_json(self) -> dict[str, Any]:
        """As the log of its run has it."""
        return {"configuration": self.configuration, "made_of": self.made_of, "quality": self.document}


def calibrate(
    db: Database,
    model: TrainedModel,
    rows: Callable[[], str],
    *,
    target: str | None = None,
    decide_by: str | None = calibration.F1,
    until: float | None = None,
    related: str | None = None,
) -> tuple[list[dict[str, Any]], KnownQuality]:
    """What was found, a row for each target and measure; and how good the model is on the same rows.

    ``rows``: returns a query, or the name of a packed table.  ``until``: when it should end, as time.monotonic().
    """
    by_group.refuse_groups(model)
    info = _info(db, model)
    chosen = [judged_rows.target_of(model.layout, target)] if target is not None else list(model.layout.outputs)
    for variable in chosen:
        if variable.target == "encoded" or (variable.target == "real" and variable.of_step != (1,)):
            raise Unsupported(f"the target '{variable.name}' is an array.", hint="Arrays cannot be calibrated.")
    measure = _measure(decide_by, chosen)
    found: dict[str, Errors | Shifts | Classes] = dict(calibrations.of_model(db, model))
    told: list[dict[str, Any]] = []
    qualities: list[Quality] = []
    read = _samples(db, model, rows(), chosen, until, related)
    for place, (variable, sample) in enumerate(read):
        predicted = _checked(db, variable, sample)
        kept, lines = _calibrated(db, variable, sample, predicted, measure, share(until, len(read) - place))
        found[variable.name] = kept
        with contextlib.suppress(OverflowError):  # squares of the largest numbers
            qualities.append(_quality(variable, sample, predicted))
        told += [
            {"target": variable.name, "measure": name, "before": before, "after": after}
            for name, before, after in lines
        ]
    return told, _keep(db, model, info, found, qualities)


WORDS = {"log_loss": "log loss", "ece": "calibration error"}
CROSS_VALIDATED = "log_loss cross-validated"


def in_words(told: Sequence[Mapping[str, Any]], by_default: Mapping[str, bool]) -> str:
    """What a calibration has changed, in a line.  ``by_default``: the targets whose predictions it changes."""
    several = len({one["target"] for one in told}) > 1
    said = []
    for one in told:
        of = f" of {one['target']}" if several else ""
        if one["measure"] == CROSS_VALIDATED and one["before"]:
            less = 1 - one["after"] / one["before"]
            said.append(
                f"new rows{of} should have {less:.1%} less log loss by it, so predictions have calibrated probabilities"
                if by_default.get(one["target"])
                else f"it is not sure that new rows{of} would have less log loss by it, so predictions do without"
            )
        elif one["measure"] in WORDS:
            said.append(f"{WORDS[one['measure']]}{of} {short(one['before'])} before and {short(one['after'])} after it")
        elif one["measure"].startswith("coverage "):
            level = one["measure"].partition(" ")[2]
            said.append(f"intervals{of} with coverage {level} held {one['before']:.0%} before it")
        elif one["measure"] == f"interval_width {COVERAGE:g}":
            said.append(f"intervals{of} with coverage {COVERAGE:g} are {short(one['after'])} wide on average")
    return "; ".join(said)


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


def _keep(
    db: Database, model: TrainedModel, info: Relation, found: Calibration, qualities: Sequence[Quality]
) -> KnownQuality:
    for name in (calibrations.COLUMN, calibrations.QUALITY):
        if name not in relations.columns(db, info):  # tables of version 0.1 do not have it
            db.patiently(
                sql("ALTER TABLE {info} ADD COLUMN {column} pg_catalog.jsonb", info=info.sql, column=identifier(name))
            )
    present = relations.columns(db, info)
    document_columns.require(present, info.text, model.named.types)
    document_columns.require_known_types(present, info.text, ["reason"])
    column, number, key = identifier(calibrations.COLUMN), identifier(model.named.configuration), model.key
    kept = sql(
        "SELECT quality::pg_catalog.text AS quality, CASE WHEN {trained} IS NULL THEN {reason}::pg_catalog.text END"
        " AS made_of FROM {info} WHERE {number} = {key}",
        trained=identifier(model.named.training_loss),
        reason=sql("reason") if "reason" in present else sql("NULL"),
        info=info.sql,
        number=number,
        key=key,
    )
    before = db.one(kept) or {"quality": None, "made_of": None}
    where = f"the quality of configuration {key} in '{info.text}'"
    known = documents.decoded(before["quality"] or "null", where, most=calibrations.LONGEST)
    judged = KnownQuality(
        configuration=key,
        made_of=before["made_of"],
        qualities=tuple(qualities),
        document=quality.document(known, qualities, [one.name for one in model.layout.outputs]),
    )
    text = json.dumps(calibration.to_json(found))
    update = sql(
        "UPDATE {info} SET {column} = ($1::text[])[1]::pg_catalog.jsonb,"
        " quality = ($1::text[])[2]::pg_catalog.jsonb WHERE {number} = {key}",
        info=info.sql,
        column=column,
        number=number,
        key=key,
    )
    db.patiently(update, [text, json.dumps(judged.document)])
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
    return judged


# -- the rows ------------------------------------------------------------------------------------------------


def _samples(
    db: Database, model: TrainedModel, rows: str, chosen: list[Variable], until: float | None, related: str | None
) -> list[tuple[Variable, Sample]]:
    if is_name(rows) and packed.is_packed(db, relations.existing(db, rows, argument="query")):
        return samples.of_packed_table(db, model, rows, chosen, share(until, 2))
    query = relations.require_query(db, rows)
    return [(variable, _of_query(db, model, query, variable, related)) for variable in chosen]


def _of_query(db: Database, model: TrainedModel, query: str, variable: Variable, related: str | None) -> Sample:
    sample = Sample(variable)
    judged = judged_rows.judged_of(db, model, query, variable.name)
    source, windows = judged.source, model.layout.windows
    actual = actual_of(db, source, judged.present[variable.columns[0]], variable)
    pairs = shown(judged_rows.with_pairs(source.rows, actual, sql("NULL::pg_catalog.text"), variable, windows))
    rows, reading = streaming.reading_of(db, model, relations.of_query(db, pairs), PAIR, None, related=related)
    place = model.layout.outputs.index(variable)
    with samples.predicting(db, model, [one.for_prediction() for one in reading.inputs]) as prediction:
        for count, ids, variables in streaming.chunks(db, rows, reading):
            answers = prediction.predict(count, variables)
            pair_of = [json.loads(one or "[]") for one in ids]
            sample.add(answers[place], [sample.known(pair[1]) if len(pair) > 1 else None for pair in pair_of])
    return sample


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
    sample.tell_left_out(db)
    if rows < 2:
        raise BadData(f"there are {counted(rows, 'row')} to calibrate '{variable.name}' with; at least 2 are needed.")
    if rows < FEW_ROWS:
        db.told(f"'{variable.name}' is calibrated with only {counted(rows, 'row')}: what it promises is uncertain")
    if sample.labels is None:
        if not all(map(math.isfinite, sample.predicted)):
            raise BadData(f"the model predicts numbers of '{variable.name}' that are NaN or infinite.")
        return sample.predicted
    probabilities = sample.probabilities()
    for its in probabilities:
        if not (min(its) >= -NEARLY and abs(sum(its) - 1) <= NEARLY):
            raise Unsupported(
                f"the outputs of the model for '{variable.name}' are no probabilities.",
                hint="End the architecture with a softmax, or with a sigmoid for two classes.",
            )
    if len(set(sample.actual)) < 2:
        raise BadData(
            f"all {rows} rows have the same class of '{variable.name}'.", hint="Calibrate with rows of several classes."
        )
    return probabilities


def _calibrated(
    db: Database, variable: Variable, sample: Sample, predicted: list[Any], measure: Any, until: float | None
) -> Learned:
    if sample.levels:
        of_levels = partial(calibration.of_quantiles, sample.levels)
        return _in_time(db, variable, of_levels, sample.quantiles, sample.actual, until)
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
