# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""The steps after the training of ``cerebro.retrain``: the new model is judged, registered, and promoted if better."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Optional

import psycopg2

from cerebro_db.core import codec
from cerebro_db.core.codec import OneOf, Text, Within
from cerebro_db.core.errors import BadData, CerebroError, WrongState
from cerebro_db.core.events import Event, Following
from cerebro_db.core.following import Step
from cerebro_db.core.models import metrics
from cerebro_db.core.models.model_columns import COMPANIONS
from cerebro_db.core.names import Name
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import joined, sql
from cerebro_db.core.texts import counted

from ..database import relations
from ..database.access import Database
from ..models import calibrations
from ..registry import aliases
from ..runs.record import own_runs
from ..runs.record.log import RunLog
from ..sessions import recorder
from . import calibrating, comparing, ensembling, registering
from .champion import Champion, RowsOfToday, of_alias, validation_query
from .comparing import BEST_IS
from .registering import RegisterArguments

ENDINGS = ("", *COMPANIONS)  # of the tables of a call


Positive = Annotated[float, Within(0.0, sys.float_info.max)]


@dataclass(frozen=True)
class Judging:
    """How the new model is judged and promoted, as its run has it on record."""

    registered_model: Text
    alias: Text
    metric: Annotated[str, OneOf(*BEST_IS)]
    margin: Positive
    standard_errors: Positive  # of the difference, by which the new model must be better
    query: Optional[Text] = None  # of the rows for the comparison; None: those for validation
    lenient = True

    @property
    def steps(self) -> tuple[Step, ...]:
        judge, *others = (Following.JUDGE, Following.REGISTER, Following.PROMOTE, Following.REMOVE)
        return (Step(judge, arguments=codec.encode_fields(self)), *map(Step, others))

    @classmethod
    def of(cls, steps: Sequence[Step], run: int) -> Judging:
        arguments = next((step.arguments for step in steps if step.task is Following.JUDGE), None)
        if arguments is None:
            raise WrongState(f"run {run} is not followed by the step '{Following.JUDGE.value}' of cerebro.retrain().")
        return codec.decode(cls, arguments, f"what follows run {run}", BadData)


@dataclass(frozen=True)
class Judged:
    """How the new model and the version of the alias, ``version``, predicted the same rows."""

    version: int
    before: float
    after: float
    needed: float  # by how much the new model had to be better
    wins: bool
    says: str

    def to_json(self) -> dict[str, Any]:
        figures = {name: repr(getattr(self, name)) for name in FIGURES}  # JSON has no infinite numbers
        return {**vars(self), **figures}

    @classmethod
    def read(cls, found: Mapping[str, dict[str, Any]]) -> Judged:
        """``found``: the results of the steps, by their names."""
        judged = found[Following.JUDGE.value]
        before, after, needed = (float(judged[name]) for name in FIGURES)
        return cls(judged["version"], before, after, needed, judged["wins"], judged["says"])


FIGURES = ("before", "after", "needed")


def carry_out(db: Database, log: RunLog, steps: Sequence[Step], task: Following, output: Name) -> dict[str, Any]:
    """Carry out a step after the training of a run of the caller; return its result."""
    asked = Judging.of(steps, log.run)
    try:
        with db.naming("cerebro.retrain"):
            return _carried_out(db, log, task, asked, output)
    except BaseException as error:
        _note(db, log.run, error)
        raise


def _carried_out(db: Database, log: RunLog, task: Following, asked: Judging, output: Name) -> dict[str, Any]:
    if task is Following.REMOVE:
        _drop(db, log.run, output)
        return {}
    before = of_alias(db, asked.registered_model, asked.alias)
    if task is Following.JUDGE:
        return _judged(db, log.run, before, asked, output).to_json()
    found = log.events.followed()
    judged = Judged.read(found)
    reason = f"retrained from version {judged.version} by run {log.run}: {judged.says}"
    if task is Following.REGISTER:
        with db.naming("cerebro.register"):
            given = RegisterArguments(registered_model=before.model, model_table=output.quoted, reason=reason)
            return {"version": registering.add_version(db, given)}
    if judged.wins:
        version = found[Following.REGISTER.value]["version"]
        with db.naming("cerebro.set_alias"):
            aliases.name_version(db, before.model, before.alias, version, reason)
    return {}


def _join(db: Database, champion: Champion, output: Name) -> None:
    """Make an ensemble of the new models, if the version is an ensemble."""
    if champion.infos[0].get("members") is not None:
        ensembling.add_or_say(db, output)


def _calibrate(db: Database, champion: Champion, output: Name, query: str | None) -> None:
    """Calibrate the new model, if the version is calibrated."""
    if champion.grouped is not None or champion.infos[0].get(calibrations.COLUMN) is None:
        return
    validated = db.value(sql("SELECT validation_table FROM {summary} LIMIT 1", summary=output.suffixed("_summary").sql))
    rows = query if validated is None else None  # None: the rows for validation
    with db.naming("cerebro.calibrate"):
        calibrating.calibrate_best(db, output, rows)


def _judged(db: Database, run: int, champion: Champion, asked: Judging, output: Name) -> Judged:
    """Compare the new model and the version of the alias on the same rows."""
    _join(db, champion, output)
    _calibrate(db, champion, output, asked.query)
    query = asked.query
    if query is None:
        # Rows may have come while the new model was trained.
        own = own_runs.of_number(db, run)
        source = None if own is None else own.source(db)
        if own is None or source is None:
            raise WrongState(f"run {run} does not say which rows it was trained on, so its model cannot be judged.")
        rows = RowsOfToday(
            relations.filled(db, source.name.quoted, argument="source_table"), own.validation(db), own.related_for_calls
        )
        query = validation_query(db, champion, rows, output.suffixed("_groups"))
    before = comparing.value(db, asked.metric, champion.reference, query)
    after = comparing.value(db, asked.metric, output.quoted, query)
    spread = None
    if asked.standard_errors:
        spread = comparing.standard_error(db, asked.metric, (champion.reference, output.quoted), query, after[1])
    needed = max(asked.margin, asked.standard_errors * (spread or 0.0))
    wins = metrics.is_better(BEST_IS[asked.metric], after[0], before[0], needed)
    says = f"{asked.metric} {after[0]:.6g} instead of {before[0]:.6g} on {counted(after[1], 'row')}"
    if spread is not None:
        says += f" (standard error of the difference: {spread:.2g})"
    return Judged(champion.version, before[0], after[0], needed, wins, says)


def _note(db: Database, run: int, error: BaseException) -> None:
    """Write the error into the log of the run: perhaps nobody waits for this call."""
    with contextlib.suppress(psycopg2.Error, CerebroError), recorder.opened(db) as session:
        RunLog.of(session, run).events.note(Event.NOT_MATERIALIZED, message=str(error))


def _drop(db: Database, run: int, output: Name) -> None:
    """Drop the tables of the call: the registry has the model.  Packed rows that another call needs stay."""
    packed = own_runs.rows_of_models(db, output)
    names = [name for ending in ENDINGS if relations.find(db, name := output.suffixed(ending)) is not None]
    db.patiently(sql("DROP TABLE {names}", names=joined(", ", (name.sql for name in names))))
    own_runs.drop_unneeded(db, packed, besides=run)
