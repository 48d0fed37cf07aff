"""What a page about a model shows of the rows for validation: their predictions, and some of them as examples."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, Union

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.models import calibration
from cerebro_db.core.models.calibration import Classes, Errors, Shifts
from cerebro_db.core.packing import originals
from cerebro_db.core.packing.features import NumberFeature
from cerebro_db.core.packing.layout import Variable

from ..database.access import Database
from ..models import calibrations
from ..models.trained import TrainedModel
from ..packing import packed
from ..packing.packed import Packed
from . import evaluating, explaining, packed_rows, samples
from .samples import Sample

Json = dict[str, Any]
Kept = Union[Errors, Shifts, Classes, None]

MOST_TARGETS = 5
EXAMPLES = 4  # of each sort
SECONDS = 30  # for predicting; then fewer rows are a sample
COVERAGE = 0.9  # of intervals
DIGITS = 6  # of what a page shows as a point
PUSHES = 6  # columns of an explained example
MOST_EXPLAINED = 3 * EXAMPLES * MOST_TARGETS  # rows: all examples


def document(db: Database, model: TrainedModel, table: str) -> Json:
    """``targets``: what is predicted for the rows of a packed table; ``examples``: of each target, rows to look at."""
    judged = [one for one in model.layout.outputs if not _is_array(one)][:MOST_TARGETS]
    kept, applied = calibrations.of_model(db, model), calibrations.by_default(db, model) or calibrations.Applied()
    read = samples.of_packed_table(db, model, table, judged, time.monotonic() + SECONDS)
    test = packed.read(db, table, argument="query")
    shown = [_as_predicted(sample, applied) for _, sample in read]
    # Of steps there are no examples: they are numbered within windows.
    chosen = [[] if test.layout.steps else _examples(sample) for sample in shown]
    numbers = {number for sorts in chosen for _, places in sorts for number in places}
    rows = {
        number: originals.of_row(test.layout, values)
        for number, values in packed_rows.inputs_of_rows(db, test, numbers)
    }
    targets = []
    for (variable, plain), sample, sorts in zip(read, shown, chosen):
        targets.append({
            "target": variable.name,
            "labels": sample.labels,
            "rows": sample.rows,
            "without_target": sample.left_out,
            "metrics": [
                {"metric": one.metric, "value": one.value, "baseline": one.baseline}
                for one in evaluating.of_sample(db, sample, calibrations.Applied(), covers=False)
            ],
            **(
                _of_numbers(sample, kept.get(variable.name))
                if sample.labels is None
                else _of_classes(sample, plain, kept.get(variable.name))
            ),
            "last_known": _last_known(db, test, variable, sample),
            "examples": [
                {"sort": sort, "rows": [_example(sample, place, rows[number]) for number, place in places.items()]}
                for sort, places in sorts
            ],
        })  # fmt: skip
    not_judged = [one.name for one in model.layout.outputs if one not in judged]
    return {"configuration": model.key, "targets": targets, "not_judged": not_judged}


def _last_known(db: Database, test: Packed, variable: Variable, sample: Sample) -> Json | None:
    """Of a forecast, the errors of the value that the target had in the last row of the window."""
    layout = test.layout
    if layout.windows is None or not layout.windows.horizon or sample.labels is not None:
        return None
    for place, one in enumerate(layout.inputs):
        for at, (column, feature) in enumerate(zip(one.columns, one.preparation.features)):
            if column == variable.columns[0] and isinstance(feature, NumberFeature):
                start = sum(len(before.names) for before in one.preparation.features[:at])
                width = one.elements // one.shape[0]
                known = dict(zip(sample.numbers, sample.actual))
                errors = [
                    originals.number_of(feature, values[place][start - width]) - known[number]
                    for number, values in packed_rows.inputs_of_rows(db, test, known)
                ]
                return {"rmse": math.sqrt(math.fsum(one * one for one in errors) / max(1, len(errors))),
                        "mae": math.fsum(map(abs, errors)) / max(1, len(errors))}  # fmt: skip
    return None


def _is_array(variable: Variable) -> bool:
    return variable.target == "encoded" or (variable.target == "real" and variable.of_step != (1,))


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def _of_numbers(sample: Sample, kept: Kept) -> Json:
    found: Json = {"actual": _rounded(sample.actual), "predicted": _rounded(sample.predicted)}
    if isinstance(kept, Errors) and kept.rows >= calibration.rows_needed(COVERAGE):
        halves = [kept.half_width(value, COVERAGE) for value in sample.predicted]
        inside = sum(abs(known - value) <= half for known, value, half in zip(sample.actual, sample.predicted, halves))
        if halves:
            found["interval"] = {"coverage": COVERAGE, "inside": inside / len(halves),
                                 "width": 2 * math.fsum(halves) / len(halves)}  # fmt: skip
    return found


def _as_predicted(sample: Sample, applied: calibrations.Applied) -> Sample:
    """With the probabilities that ``cerebro.predict`` returns."""
    if sample.target not in applied.classes:
        return sample
    found = copy.copy(sample)
    temperature = applied.classes[sample.target].temperature
    found.predicted = [calibration.tempered(its, temperature) for its in sample.probabilities()]
    return found


def _of_classes(sample: Sample, plain: Sample, kept: Kept) -> Json:
    """``sure``: the probability of the predicted class; ``known``: that of the actual one.

    ``plain``: the same with the probabilities of the model itself.
    """
    probabilities = sample.probabilities()
    predicted = list(map(_largest, probabilities))
    found: Json = {
        "actual": list(sample.actual),
        "predicted": predicted,
        "sure": _rounded(its[place] for its, place in zip(probabilities, predicted)),
        "known": _rounded(its[place] for its, place in zip(probabilities, sample.actual)),
    }
    if isinstance(kept, Classes) and probabilities:
        before = plain.probabilities()
        after = [calibration.tempered(its, kept.temperature) for its in before]
        found["calibrated"] = {
            "temperature": kept.temperature,
            "sure": _rounded(its[place] for its, place in zip(after, predicted)),
            "log_loss": [calibration.log_loss(one, sample.actual) for one in (before, after)],
            "ece": [calibration.calibration_error(one, sample.actual) for one in (before, after)],
        }
    return found


def _largest(its: Sequence[float]) -> int:
    return max(range(len(its)), key=its.__getitem__)


# -- examples ------------------------------------------------------------------------------------------------


def _examples(sample: Sample) -> list[tuple[str, dict[int, int]]]:
    """Good, bad and typical rows: the number of each among all rows, and its place in the sample."""
    places = range(len(sample.actual))
    if sample.labels is None:
        errors = [abs(known - value) for known, value in zip(sample.actual, sample.predicted)]
        order = sorted(places, key=errors.__getitem__)
        sorts = [("smallest errors", order[:EXAMPLES]), ("largest errors", order[::-1][:EXAMPLES])]
    else:
        probabilities = sample.probabilities()
        surest = sorted(places, key=lambda place: -max(probabilities[place]))
        is_right = [_largest(its) == known for its, known in zip(probabilities, sample.actual)]
        order = sorted(places, key=lambda place: probabilities[place][sample.actual[place]])
        sorts = [
            ("right, and sure", [one for one in surest if is_right[one]][:EXAMPLES]),
            ("wrong, and sure", [one for one in surest if not is_right[one]][:EXAMPLES]),
        ]
    middle = max(0, (len(order) - EXAMPLES) // 2)
    sorts.append(("typical", order[middle : middle + EXAMPLES]))
    return [(sort, {sample.numbers[place]: place for place in chosen}) for sort, chosen in sorts]


def _example(sample: Sample, place: int, row: list[tuple[str, str | None]]) -> Json:
    """``number``: of the row, for ``explained``."""
    number = sample.numbers[place]
    if sample.labels is None:
        (predicted,) = _rounded([sample.predicted[place]])
        (actual,) = _rounded([sample.actual[place]])
        return {"number": number, "actual": actual, "predicted": predicted, "columns": row}
    its = sample.probabilities()[place]
    best = _largest(its)
    return {"number": number, "actual": sample.labels[sample.actual[place]], "predicted": sample.labels[best],
            "probability": its[best], "columns": row}  # fmt: skip


def explained(db: Database, model: TrainedModel, table: str, numbers: Sequence[int | None]) -> dict[str, Json]:
    """By target and number of the row: what its columns add to the prediction, the largest first.

    ``base``: the mean prediction of other rows; ``others``: how many more columns there are, and what they add.
    Empty if the model has a single column, or predicts steps.
    """
    wanted = {number for number in numbers if number is not None}
    if len(wanted) > MOST_EXPLAINED:
        raise InvalidArgument(
            f"numbers has {len(wanted)} rows, which is more than {MOST_EXPLAINED}.",
            hint="cerebro.explain explains the rows of a query.",
        )
    test = packed.read(db, table, argument="query")
    packed.require_same_shapes(model.layout, model.table.text, test)
    if test.layout.steps or len({column for one in test.layout.inputs for column in one.columns}) < 2:
        return {}
    of_outputs = explaining.of_packed_rows(db, model, test, wanted)
    return {
        variable.name: {str(row.number): _pushes(row) for row in rows}
        for variable, rows in zip(model.layout.outputs, of_outputs)
    }


def _pushes(row: explaining.ExplainedRow) -> Json:
    order = sorted(row.added.items(), key=lambda one: -abs(one[1]))
    rest = [value for _, value in order[PUSHES:]]
    return {"base": row.base, "pushes": order[:PUSHES], "others": [len(rest), math.fsum(rest)]}
