"""The log of runs: every SQL statement that reads or writes its tables, by name.

No other folder has SQL of the log (tests/core/test_structure.py checks that).  ``RunLog`` asks through any session of
the run's owner: the recorder session, or the caller's own.  The records of a visit are ``Statement`` objects: a worker
session stores them in the transaction that stores the state.
"""

from __future__ import annotations

from .base import as_written
from .drivers import Drivers
from .known import Known
from .loading import Loading
from .past import earlier_configurations, earlier_runs
from .states import EarlierModel, StateOnRecord
from .tables import ARCHITECTURE, EVALUATED, MODEL_INFO
from .units import UnitLog

__all__ = [
    "ARCHITECTURE",
    "EVALUATED",
    "MODEL_INFO",
    "EarlierModel",
    "RunLog",
    "StateOnRecord",
    "as_written",
    "earlier_configurations",
    "earlier_runs",
]


class RunLog(Drivers, Loading, Known, UnitLog):
    """The log of one run, through one session."""
