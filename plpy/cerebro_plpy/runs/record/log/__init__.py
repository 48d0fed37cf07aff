"""The log of runs: every SQL statement that reads or writes its tables, by name.

No other folder has SQL of the log (tests/core/test_structure.py checks that).  ``RunLog`` asks through any session of
the run's owner: the recorder session, or the caller's own.  The records of a visit are ``Statement`` objects: a worker
session stores them in the transaction that stores the state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cerebro_db.core.sql import sql

from ....database.access import Database
from ....sessions.session import Session
from ..run import no_such_run
from .base import OF_ALL_ROWS, Ask, as_written, asking
from .drivers import Drivers
from .events import Events
from .known import Known
from .past import earlier_configurations, earlier_runs
from .plan import PlanLog
from .profiles import Profiles, read_profile
from .states import EarlierModel, StateOnRecord, States
from .tables import ARCHITECTURE, CHANGED, EVALUATED, GROUP_INFO, MODEL_INFO, SELECTION_ROWS
from .units import UnitLog

__all__ = [
    "ARCHITECTURE",
    "CHANGED",
    "EVALUATED",
    "GROUP_INFO",
    "MODEL_INFO",
    "OF_ALL_ROWS",
    "SELECTION_ROWS",
    "EarlierModel",
    "RunLog",
    "StateOnRecord",
    "as_written",
    "asking",
    "earlier_configurations",
    "earlier_runs",
    "read_profile",
]


class RunLog:
    """The log of one run, through one session."""

    def __init__(self, ask: Ask, run: int) -> None:
        self.ask, self.run = ask, run
        self.plan = PlanLog(ask, run)
        self.events = Events(ask, run)
        self.units = UnitLog(ask, run)
        self.states = States(ask, run)
        self.drivers = Drivers(ask, run)
        self.known = Known(ask, run)
        self.profiles = Profiles(ask, run)

    @classmethod
    def of(cls, recorder: Session, run: int) -> RunLog:
        return cls(recorder.run, run)

    @classmethod
    def of_caller(cls, db: Database, run: int | None) -> RunLog:
        if run is None:
            raise no_such_run(run)
        return cls(asking(db), run)

    @classmethod
    def create(
        cls,
        recorder: Session,
        values: dict[str, Any],
        architectures: Iterable[dict[str, Any]],
        configurations: Iterable[dict[str, Any]],
        models: Iterable[dict[str, Any]],
    ) -> RunLog:
        """Put a new run on record, within the recorder's transaction."""
        log = cls.of(recorder, recorder.run(sql("SELECT nextval('cerebro.run_id')"))[0][0])
        log.plan.create(recorder, values, architectures, configurations, models)
        return log
