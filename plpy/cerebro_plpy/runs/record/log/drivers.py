"""Whose turn it is: which session drives a run, and the status of the run."""

from __future__ import annotations

import os
import time
from typing import Any

import psycopg2

from cerebro_db.core.errors import Cancelled, InUse, InvalidArgument, WrongState
from cerebro_db.core.events import Event, RunStatus
from cerebro_db.core.sql import joined, literal, sql

from ....database import locks
from ....database.polling import LISTEN_EVERY
from ....sessions import limits, logins
from ....sessions.session import BEGIN, COMMIT, ENDURE, ROLLBACK, Session
from ..run import no_such_run, require_countable
from .base import OWN, OWN_IN_VIEW, Ask, Part
from .events import Events
from .known import Known


class Drivers(Part):
    """The claim of a run, and its status."""

    def __init__(self, ask: Ask, run: int) -> None:
        super().__init__(ask, run)
        self._events = Events(ask, run)

    def status(self, owner: str | None = None) -> RunStatus:
        """The run's status, to its owner, a monitor or an administrator."""
        return self.standing(owner)[0]

    def under_way(self, owner: str) -> RunStatus | None:
        """The status of a run that a session works on.

        None also where the log does not say how the run stands: its owner can remove its events, and forget it.
        """
        statuses = joined(", ", map(literal, (RunStatus.RUNNING, RunStatus.FINISHING)))
        found = self._all(
            sql(
                "SELECT status FROM cerebro.runs WHERE run = {} AND owner = {} AND status IN ({statuses})",
                statuses=statuses,
            ),
            owner,
        )
        return RunStatus(found[0][0]) if found else None

    def standing(self, owner: str | None = None) -> tuple[RunStatus, bool, str | None]:
        """The run's status, whether nobody drives it or makes its model tables any more, and the view's message."""
        whose = owner or self.whose()
        for _ in range(2):
            found = self._all(
                sql("SELECT status, ended, message FROM cerebro.runs WHERE run = {} AND owner = {}"), whose
            )
            # The driver may have ended while the statement ran and recorded that after the statement's snapshot; the
            # next statement sees it.
            if found and found[0][0] != RunStatus.INTERRUPTED and found[0][2] is None:
                break
        if not found:
            raise no_such_run(self.run)
        status, ended, message = found[0]
        return RunStatus(status), ended, message

    def whose(self, owner: str | None = None) -> str:
        """The owner of the run that the current user means: the one it names, or itself, or the only one."""
        owners = [
            found
            for (found,) in self._all(
                sql(
                    "SELECT owner::pg_catalog.text AS owner FROM cerebro.run_plan WHERE run = {}"
                    " ORDER BY owner = current_user DESC, owner"
                )
            )
        ]
        mine = self.ask(sql("SELECT current_user::pg_catalog.text AS me"), ())[0][0]
        if owner is not None:
            owners = [found for found in owners if found == owner]
        if not owners:
            raise no_such_run(self.run)
        if len(owners) > 1 and owners[0] != mine:
            raise WrongState(
                f"several users have a run {self.run}: {', '.join(owners)}",
                hint=f"Say whose run it is: cerebro.cancel({self.run}, owner => '{owners[0]}'), for example.",
            )
        return owners[0]

    def claim(
        self, recorder: Session, epochs: int | None, retry_failed: bool, submitted: bool = False, begins: bool = False
    ) -> None:
        """Become the one session that drives the run, or say which session does.

        Submitted: nobody waits for it.  Begins: a run that was cancelled meanwhile does not begin.
        """
        deadline = time.monotonic() + ENDURE
        while True:
            try:
                return self._claim_at_once(recorder, epochs, retry_failed, submitted, begins)
            except psycopg2.Error as error:  # nothing is on record: the transaction is repeated as a whole
                if recorder.own or recorder.lost or not recorder.endures(error) or time.monotonic() > deadline:
                    raise
            time.sleep(LISTEN_EVERY)
            recorder.listen()

    def _claim_at_once(
        self, recorder: Session, epochs: int | None, retry_failed: bool, submitted: bool, begins: bool
    ) -> None:
        listen = recorder.listen
        recorder.run_statement(BEGIN)
        try:
            self._lock(recorder)
            self._claim(recorder, epochs, retry_failed, submitted, begins)
            # Between the claim and the code that records an end, nothing may raise: not even a cancel.
            recorder.listen = lambda: None
            recorder.run_statement(COMMIT)
        except BaseException:
            recorder.settle()
            recorder.run_statement(ROLLBACK)
            raise
        finally:
            recorder.listen = listen

    def _lock(self, recorder: Session) -> None:
        """Of two sessions that claim or forget a run at once the second waits, and then sees what the first did.

        The runs of one owner are counted one after the other: two that start at once would not see each other.  But the
        caller's own transaction would keep all other runs waiting for its end.

        A session that waits for the lock of the owner does not hold the lock of the run, which a cancel needs.
        """
        owner = recorder.run(sql("SELECT current_user::text"))[0][0]
        names = {locks.of_run(self.run): f"run {self.run}"}
        if not recorder.own:
            names[locks.of_owner(owner)] = f"the runs of {owner}"
        deadline = time.monotonic() + locks.PATIENCE
        while held := next((name for name in names if not recorder.run(locks.attempt(sql("{}")), (name,))[0][0]), None):
            if time.monotonic() > deadline:
                raise locks.in_use(names[held])
            recorder.run_statement(ROLLBACK)
            time.sleep(LISTEN_EVERY)
            recorder.run_statement(BEGIN)

    def _claim(self, recorder: Session, epochs: int | None, retry_failed: bool, submitted: bool, begins: bool) -> None:
        for _ in range(2):
            found = self._all(
                sql(
                    "SELECT status, driver_pid, epochs, segments FROM cerebro.runs WHERE {own_in_view}",
                    own_in_view=OWN_IN_VIEW,
                )
            )
            if not found:
                raise no_such_run(self.run)
            if found[0][0] != RunStatus.INTERRUPTED:  # as in ``status``
                break
        status, driver, planned, segments = found[0]
        # If this very session drove the run, a full disk may have kept it from recording how that ended.
        if status in (RunStatus.RUNNING, RunStatus.FINISHING) and driver != os.getpid():
            raise InUse(
                f"run {self.run} is {status}: the session with process id {driver} drives it",
                hint=f"SELECT cerebro.wait({self.run}) waits for its end."
                if status == RunStatus.FINISHING
                else f"Follow it in cerebro.run_progress, or end it with SELECT cerebro.cancel({self.run}).",
            )
        # A session of a submitted run begins it because of the event SUBMITTED.
        if submitted:
            begins = self._events.last_of(Event.SUBMITTED, Event.CANCEL_REQUESTED) == Event.CANCEL_REQUESTED
        if begins and status == RunStatus.CANCELLED:
            raise Cancelled(
                f"run {self.run} was cancelled before it began", hint=f"SELECT cerebro.resume({self.run}) begins it."
            )
        if epochs is not None and epochs < planned:
            raise InvalidArgument(
                f"run {self.run} is planned for {planned} epochs; epochs cannot be {epochs}",
                hint="epochs is the new total and includes the epochs that are done.",
            )
        if epochs is not None:
            require_countable(epochs, segments)
        if (
            status in (RunStatus.FINISHED, RunStatus.FINISHING)
            and (epochs is None or epochs == planned)
            and not (retry_failed and self._events.failed(for_good=False))
            and not self._events.requests()
            and self._is_whole()
        ):
            raise WrongState(
                f"run {self.run} is finished",
                hint=f"SELECT cerebro.resume({self.run}, epochs => {planned + 1}) would extend it.",
            )
        limits.require_run(recorder.run, segments, recorder.listen)
        if not recorder.own:
            logins.note_run(recorder, self.run, segments)
        if epochs is not None:
            self._events.note(Event.EXTENDED, epochs=epochs)
        if submitted and self._events.last_of(Event.SUBMITTED, Event.STARTED) != Event.SUBMITTED:
            self._events.note(Event.SUBMITTED)
        self._events.note(Event.STARTED, **session_of(recorder))

    def _is_whole(self) -> bool:
        """Whether everything is done that follows the training."""
        options = Known(self.ask, self.run).options()
        return options is None or {step.task.value for step in options.follows} <= set(self._events.followed())

    def starts(self) -> int:
        """How often a session has begun to drive the run."""
        return int(
            self._value(
                sql(
                    "SELECT count(*) FROM cerebro.event WHERE {own} AND event = {started}",
                    own=OWN,
                    started=literal(Event.STARTED),
                )
            )
        )


def session_of(recorder: Session) -> dict[str, Any]:
    """The session that this function runs in, as the log names it: a process id alone may be used again.

    With its transaction: as long as that lasts, it may still make the model tables.
    """
    # JSON's format of a timestamp is read back the same under every DateStyle.
    began = sql("SELECT to_jsonb(backend_start), transaction FROM cerebro_internal._sessions() WHERE pid = {}")
    ((backend_start, transaction),) = recorder.run(began, (os.getpid(),))
    return {"pid": os.getpid(), "backend_start": backend_start, "transaction": transaction}
