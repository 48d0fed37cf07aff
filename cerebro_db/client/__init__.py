"""The Python client of cerebro_db.

from cerebro_db.client import connect

cerebro = connect()                     # the embedded cluster; or a DSN, an engine, a connection
run = cerebro.fit("iris", "iris_fitted", [{"learning_rate": 0.01}, {"units": 64}], target="species", epochs=10)
best = cerebro.leaderboard(run)[0]
model = cerebro.model(run, best.configuration)   # a keras.Model

May import ``cerebro_db.core`` and ``cerebro_db.embedded``. Only users import it.
"""

from __future__ import annotations

from .cerebro import Cerebro, connect
from .errors import (
    Cancelled,
    CannotConnect,
    ClientError,
    MissingPackage,
    NoSuchModel,
    NoSuchRun,
    RunFailed,
    ServerError,
)
from .interrupts import in_thread
from .row_lists import RowList
from .run_handle import RunHandle

__all__ = [
    "Cancelled",
    "CannotConnect",
    "Cerebro",
    "ClientError",
    "MissingPackage",
    "NoSuchModel",
    "NoSuchRun",
    "RowList",
    "RunFailed",
    "RunHandle",
    "ServerError",
    "connect",
    "in_thread",
]
