"""The calibration that is kept of a model, and what a prediction makes of it.

It is a document in the column ``calibration`` of the model's row in ``_info``: whoever may read the model may read it,
and it goes where the model table goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cerebro_db.core import documents
from cerebro_db.core.errors import BadData, InvalidArgument, WrongState
from cerebro_db.core.protocol import Calibrated
from cerebro_db.core.records import dataclass, field
from cerebro_db.core.sql import identifier, sql

from ..database import relations
from ..database.access import Database
from . import document_columns
from .trained import TrainedModel, class_labels

if TYPE_CHECKING:
    from cerebro_db.core.models.calibration import Calibration, Shifts
    from cerebro_db.core.packing.layout import Variable

COLUMN = "calibration"
QUALITY = "quality"  # the column with how good the model was on the same rows
LONGEST = 10_000_000  # characters
NEARLY = 1e-6
KEPT = "kept calibration"  # among what is remembered of a model


@dataclass(frozen=True)
class Wanted:
    """What a call wants besides the predictions."""

    coverage: float | None  # of intervals
    calibrated: bool | None  # None: where that has lowered the log loss
    thresholds: bool

    @classmethod
    def of(cls, coverage: float | None, calibrated: bool | None, thresholds: bool | None) -> Wanted:
        if coverage is not None and not 0 < coverage < 1:
            raise InvalidArgument(
                f"coverage cannot be {coverage:g}.",
                hint="It is the part of all values that lie in their interval, between 0 and 1: 0.9 means 90 percent.",
            )
        return cls(coverage, calibrated, bool(thresholds))


@dataclass
class Applied:
    """What is made of the answers, by target."""

    classes: dict[str, Calibrated] = field(default_factory=dict)
    # the edges of the bins of predictions, and half the width of the intervals in each
    intervals: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    shifts: dict[str, list[float]] = field(default_factory=dict)  # of quantiles
    pairs: dict[str, list[int]] = field(default_factory=dict)  # the places of the quantiles that are an interval's ends


def applied(db: Database, model: TrainedModel, wanted: Wanted) -> Applied | None:
    """None: nothing but the predictions is wanted."""
    numbers = [one.name for one in model.layout.outputs if one.target == "real"]
    classes = [one.name for one in model.layout.outputs if one.target != "real"]
    if wanted.coverage is None and not wanted.calibrated and not wanted.thresholds:
        quantiles = any(one.quantiles for one in model.layout.outputs)
        return by_default(db, model) if wanted.calibrated is None and (classes or quantiles) else None
    from cerebro_db.core.models.calibration import (
        Classes,
        Shifts,
    )  # only now: predictions of numbers need nothing of it

    if wanted.coverage is not None and not numbers:
        raise InvalidArgument(
            f"coverage: the model predicts classes ({', '.join(classes)}), which have no interval.",
            hint="calibrated => true gives calibrated probabilities.",
        )
    of_quantiles = {one.name: one for one in model.layout.outputs if one.quantiles}
    if (wanted.calibrated and not of_quantiles or wanted.thresholds) and not classes:
        raise InvalidArgument(
            f"{'thresholds' if wanted.thresholds else 'calibrated'}: the model predicts numbers"
            f" ({', '.join(numbers)}), which have no probabilities.",
            hint="coverage => 0.9 gives intervals.",
        )
    kept = of_model(db, model)
    found = (by_default(db, model) if wanted.calibrated is None else None) or Applied()
    needed = [one for one in numbers if one not in of_quantiles] if wanted.coverage is not None else []
    for name, variable in of_quantiles.items():
        if wanted.coverage is not None:
            found.pairs[name] = _pair(variable, wanted.coverage)
    needed += list(of_quantiles) if wanted.calibrated else []
    for name in [*needed, *(classes if wanted.calibrated or wanted.thresholds else [])]:
        if name not in kept:
            raise _missing(model, name)
        one = kept[name]
        if isinstance(one, Shifts):
            found.shifts[name] = _shifts(model, of_quantiles[name], one)
            continue
        if not isinstance(one, Classes):
            assert wanted.coverage is not None
            found.intervals[name] = (list(one.edges), list(one.half_widths(wanted.coverage)))
            continue
        if wanted.thresholds and one.weights is None:
            raise WrongState(
                f"no thresholds of '{name}' are kept: it has too many classes.",
                hint="""cerebro.calibrate(…, decide_by => '{"class": 10}') keeps those that follow from costs.""",
            )
        found.classes[name] = Calibrated(
            one.temperature, list(one.weights) if wanted.thresholds and one.weights is not None else None
        )
    return found


def by_default(db: Database, model: TrainedModel) -> Applied | None:
    """What predictions have unless a call says otherwise: temperatures that lower the log loss of new rows, and the
    shifts of quantiles.

    None: there are none.  Nor are there for a caller who may read the model and not its calibration.
    """
    if KEPT not in model.remembered and not _may_read(db, model):
        return None
    from cerebro_db.core.models.calibration import Classes, Shifts

    kept = of_model(db, model)
    found = {
        name: Calibrated(one.temperature) for name, one in kept.items() if isinstance(one, Classes) and one.gain > 0
    }
    shifts = {
        variable.name: _shifts(model, variable, one)
        for variable in model.layout.outputs
        if isinstance(one := kept.get(variable.name), Shifts) and variable.quantiles
    }
    return Applied(found, shifts=shifts) if found or shifts else None


def _shifts(model: TrainedModel, variable: Variable, kept: Shifts) -> list[float]:
    if len(kept.shifts) != len(variable.quantiles):
        raise BadData(
            f"the calibration of '{variable.name}' has {len(kept.shifts)} numbers, and '{model.table.text}'"
            f" {len(variable.quantiles)} quantiles.",
            hint=f"SELECT * FROM cerebro.calibrate('{model.table.name}'); makes it anew.",
        )
    return list(kept.shifts)


def _pair(variable: Variable, coverage: float) -> list[int]:
    """The places of the two quantiles between which this part of all values lies."""
    levels = variable.quantiles
    found = {
        round(levels[-1 - place] - levels[place], 6): [place, len(levels) - 1 - place]
        for place in range(len(levels) // 2)
        if abs(levels[place] + levels[-1 - place] - 1) < NEARLY
    }
    if round(coverage, 6) not in found:
        raise InvalidArgument(
            f"coverage cannot be {coverage:g}: the quantiles of '{variable.name}' are"
            f" {', '.join(f'{one:g}' for one in levels)}.",
            hint=f"It can be {' or '.join(f'{one:g}' for one in found)}."
            if found
            else "Two quantiles such as 0.05 and 0.95 have 0.9 of all values between them.",
        )
    return found[round(coverage, 6)]


def _may_read(db: Database, model: TrainedModel) -> bool:
    info = model.tables.info
    if info is None or not model.named.has_key:
        return False
    present = relations.columns(db, info)
    return COLUMN in present and present[COLUMN].readable and present[model.named.configuration].readable


def of_model(db: Database, model: TrainedModel) -> Calibration:
    """What is kept of each target; nothing of a model that was never calibrated."""
    if KEPT not in model.remembered:
        model.remembered[KEPT] = _read(db, model)
    kept: Calibration = model.remembered[KEPT]
    return kept


def _read(db: Database, model: TrainedModel) -> Calibration:
    from cerebro_db.core.models import calibration

    info = model.tables.info
    present = relations.columns(db, info) if info is not None else {}
    if info is None or COLUMN not in present or not model.named.has_key:
        return {}
    document_columns.require(present, info.text, model.named.types)
    relations.require_readable(db, info, [present[COLUMN], present[model.named.configuration]])
    text = db.value(
        sql(
            "SELECT {column}::text FROM {info} WHERE {number} = $1",
            column=identifier(COLUMN),
            info=info.sql,
            number=identifier(model.named.configuration),
        ),
        ("integer",),
        model.key,
    )
    if text is None:
        return {}
    where = f"the calibration of configuration {model.key} of '{model.table.text}'"
    return calibration.read(documents.decoded(text, where, most=LONGEST), numbers_of_classes(model), where)


def numbers_of_classes(model: TrainedModel) -> Mapping[str, int | None]:
    """Of each target, how many classes it has; None: it is a number."""
    return {one.name: None if one.target == "real" else len(class_labels(one)) for one in model.layout.outputs}


def _missing(model: TrainedModel, target: str) -> WrongState:
    which = f", configuration => {model.key}" if model.named.has_key else ""
    return WrongState(
        f"no calibration of '{target}' is kept with configuration {model.key} of '{model.table.text}'.",
        hint=f"SELECT * FROM cerebro.calibrate('{model.table.name}'{which}); makes one from the rows for validation.",
    )
