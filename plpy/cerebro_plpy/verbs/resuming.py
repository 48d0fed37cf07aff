"""``cerebro.resume``, and the driver of a run with ``wait => false``."""

from __future__ import annotations

from cerebro_db.core.events import Event, Following, RunStatus
from cerebro_db.core.names import Name
from cerebro_db.core.options import SESSION

from ..database.access import Database
from ..database.entry import INTERNAL, entry
from ..packing import visibility
from ..runs import background
from ..runs.drive import lost_rows
from ..runs.drive.execution import carry_out
from ..runs.fit import hand_out, say_result
from ..runs.record.log import RunLog
from ..runs.request import output
from ..sessions import recorder
from ..sessions.session import Session
from . import following


@entry
def resume(db: Database, run: int, epochs: int | None, retry_failed: bool, wait: bool | None) -> int:
    """Continue a run where its log ends, or train it for more epochs."""
    visibility.refuse_transaction(db)
    log = RunLog.of_caller(db, run)
    output.take(db, log.known.model_table(), resumed=run)
    if wait is False:
        if log.drivers.status() is RunStatus.CANCELLED:
            with recorder.opened(db) as session:  # the session that drives it must not find the earlier cancel
                RunLog.of(session, run).events.note(Event.SUBMITTED)
        background.start(db, run, epochs, bool(retry_failed))
        return run
    recorded = log.known.options()
    own = recorded is not None and recorded.execution == SESSION
    with recorder.opened(db, own=own) as session:
        output.require_place(db, session, RunLog.of(session, run).plan.load())
        with lost_rows.named(db, session, run):
            _to_its_end(db, session, run, epochs, bool(retry_failed), submitted=False)
    return run


@entry(called=INTERNAL)
def drive(db: Database, run: int, epochs: int | None, retry_failed: bool) -> None:
    """Drive a run with ``wait => false``.  If a table has its name, the model tables can be made later."""
    with recorder.opened(db) as session:
        _to_its_end(db, session, run, epochs, retry_failed, submitted=True)


def _to_its_end(
    db: Database, session: Session, run_id: int, epochs: int | None, retry_failed: bool, submitted: bool
) -> None:
    run = carry_out(db, session, run_id, epochs, retry_failed, submitted)
    name = Name.parse(run.model_table)
    hand_out(db, session, run, name, replace=output.in_the_way(db, session, run, name), waits=not submitted)
    judged = following.carry_out(db, run, name)
    steps = {step.task for step in run.options.follows}
    if steps and Following.REMOVE not in steps and not submitted:
        say_result(db, run, name, judged)
