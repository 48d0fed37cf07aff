"""The Python client of cerebro_db.

    from cerebro_db.client import connect

    cerebro = connect()                     # the embedded cluster; or a DSN, an engine, a connection
    run = cerebro.fit("iris_packed", "iris_multi", "mst", 10, validation_table="iris_val")
    best = cerebro.leaderboard(run)[0]
    model = cerebro.model(run, best.mst_key)   # a keras.Model
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .door import Cerebro, connect
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
    from .handle import RunHandle

__all__ = [
    "Cancelled",
    "CannotConnect",
    "Cerebro",
    "ClientError",
    "MissingPackage",
    "NoSuchModel",
    "NoSuchRun",
    "RunFailed",
    "RunHandle",
    "ServerError",
    "connect",
]

_PLACES = {"Cerebro": "door", "connect": "door", "RunHandle": "handle"}


def __getattr__(name: str) -> Any:
    # Late: extension.py and the commands about clusters need no SQLAlchemy, which takes a while to import.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PLACES.get(name, 'errors')}", __name__), name)
