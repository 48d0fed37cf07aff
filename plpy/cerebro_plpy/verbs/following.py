"""Carries out the steps that follow the training of a run: in its call, in its driver, or when it is resumed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from cerebro_db.core import following
from cerebro_db.core.errors import InvalidArgument, Unsupported
from cerebro_db.core.events import Event, Following
from cerebro_db.core.following import Step, what_it_needs
from cerebro_db.core.models.quality import Quality
from cerebro_db.core.names import Name
from cerebro_db.core.sql import identifier, joined, literal, sql

from .. import platform
from ..database.access import Database
from ..runs.record.log import RunLog
from ..runs.record.run import Run
from ..runs.request.given import TRAIN, Given
from ..runs.request.training_rows import Rows

# The settings of the SQL functions that do these steps alone: exact texts, and scans that begin at the first row.
SETTINGS = {
    "extra_float_digits": "1", "datestyle": "ISO", "intervalstyle": "postgres", "bytea_output": "hex",
    "synchronize_seqscans": "off", "jit": "off",
}  # fmt: skip


def of_training(db: Database, given: Given, rows: Rows, budget: float | None) -> list[Step]:
    """The steps of a call of ``cerebro.train``: none without rows for validation, and none for models of groups.

    ``budget``: the seconds of the whole call.
    """
    if given.refit and not rows.named:
        raise InvalidArgument(
            f"refit needs the table with the rows, and '{given.source_table}' is packed already.",
            hint="Name the table that was packed as source_table.",
        )
    if given.refit and not platform.of(db).subtransactions_are_safe:
        raise Unsupported("refit cannot be true on Greenplum.", hint="Leave it out.")
    if given.verb != TRAIN or given.dry_run or rows.validation is None or rows.layout.groups is not None:
        return []
    if not platform.of(db).subtransactions_are_safe:  # an error would end the whole call
        model = given.model_table
        db.told(
            "on Greenplum, cerebro.train() adds no ensemble and no calibration",
            f"Afterwards: SELECT cerebro.ensemble('{model}', NULL); SELECT * FROM cerebro.calibrate('{model}');",
        )
        return []
    tasks = [Following.ENSEMBLE, Following.CALIBRATE, *([Following.REFIT] if given.refit else [])]
    return [Step(task, what_it_needs(task, budget or 0.0)) for task in tasks]


def carry_out(db: Database, run: Run, output: Name, deadline: float | None = None) -> list[Quality]:
    """Carry out the steps that are not done.  Each writes its event in the transaction of the model tables.

    How good the best model is, if a step finds out.  ``deadline``: of the call, as time.monotonic(); None: each step
    has the seconds that may be kept back for it.
    """
    steps = run.options.follows
    if not steps:  # no query: where segments can be lost, it could fail
        return []
    from . import calibrating, ensembling, refitting, succession  # other calls do not need these imports

    log = RunLog.of_caller(db, run.id)
    done = log.events.followed()
    qualities: list[Quality] = []
    with _settings(db):
        for place, step in enumerate(steps):
            if step.task.value in done:
                continue
            until = deadline if deadline is None else deadline - following.kept_back(steps[place + 1 :])
            if deadline is None and step.needs is not None and step.needs.most > 0:
                until = time.monotonic() + step.needs.most
            found: dict[str, Any] = {}
            if step.task is Following.ENSEMBLE:
                with db.as_steps():
                    ensembling.add_or_say(db, output, until)
            elif step.task is Following.CALIBRATE:
                with db.as_steps():
                    judged = calibrating.calibrate_or_say(db, output, until)
                if judged is not None:
                    qualities, found = [*judged.qualities], judged.to_json()
            elif step.task is Following.REFIT:
                found = refitting.refit_or_say(db, run, output, until)
            else:
                found = succession.carry_out(db, log, steps, step.task, output)
            log.events.note(Event.FOLLOWED, **{**found, "task": step.task.value})
    return qualities


@contextlib.contextmanager
def _settings(db: Database) -> Iterator[None]:
    """Within it, SETTINGS hold.  After an error, the end of the (sub)transaction restores what was before."""
    names = joined(", ", (sql("pg_catalog.current_setting({one}) AS {name}", one=literal(one), name=identifier(one))
                          for one in SETTINGS))  # fmt: skip
    before = db.one(sql("SELECT {names}", names=names))
    assert before is not None
    _set(db, SETTINGS)
    yield
    _set(db, before)


def _set(db: Database, settings: Mapping[str, str]) -> None:
    one_by_one = (sql("SET LOCAL {name} = {value}", name=identifier(name), value=literal(value))
                  for name, value in settings.items())  # fmt: skip
    db.text(joined("; ", one_by_one))
