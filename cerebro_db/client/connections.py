"""Makes an SQLAlchemy engine that autocommits, from a DSN, an engine, a connection, or nothing."""

from __future__ import annotations

import os
from typing import Any

import psycopg2
import sqlalchemy
from psycopg2 import extensions
from sqlalchemy.engine import URL, Engine

from ..embedded.cluster import Cluster
from ..embedded.errors import ClusterError
from . import interrupts
from .errors import CannotConnect

# pool_pre_ping tests a connection before each use: the server may be restarted while a notebook is open.
POOL = {"pool_size": 2, "max_overflow": 8, "pool_pre_ping": True}


def engine_of(target: Any = None) -> Engine:
    """Each statement commits by itself. Otherwise other sessions would not see the tables that a fit makes."""
    if isinstance(target, extensions.connection):
        return _autocommitting(_like(target))
    if isinstance(target, (Engine, URL)):
        made = target if isinstance(target, Engine) else sqlalchemy.create_engine(target)
        return interrupts.observe(made.execution_options(isolation_level="AUTOCOMMIT"))
    if target is None:
        target = default_dsn()
    if not isinstance(target, str):
        raise TypeError(
            "a database is given by a DSN, an SQLAlchemy engine or URL, or a psycopg2 connection,"
            f" not {type(target).__name__}"
        )
    dsn = target.replace("postgresql+psycopg2://", "postgresql://", 1)
    return _autocommitting(lambda: psycopg2.connect(dsn, connect_timeout=10, application_name="cerebro"))


def default_dsn() -> str:
    """CEREBRO_DSN, else the DSN of the embedded cluster."""
    if given := os.environ.get("CEREBRO_DSN"):
        return given
    try:
        return Cluster(os.environ.get("CEREBRO_CLUSTER") or "default").dsn()
    except ClusterError as error:
        raise CannotConnect(str(error), "For a database of another server, set CEREBRO_DSN.") from error


def without_password(dsn: str) -> str:
    """The DSN without its password, so that it can be shown."""
    try:
        return extensions.make_dsn(**{**extensions.parse_dsn(dsn), "password": None})
    except psycopg2.Error:
        return "…"


def _autocommitting(creator: Any) -> Engine:
    made = sqlalchemy.create_engine("postgresql+psycopg2://", creator=creator, **POOL)
    return interrupts.observe(made.execution_options(isolation_level="AUTOCOMMIT"))


def _like(connection: Any) -> Any:
    """A function that opens connections like the given one: the same server, user, role and search_path.

    The given connection itself stays unused: its owner may be in the middle of a transaction.
    """
    parameters = {**connection.info.dsn_parameters, "password": connection.info.password}
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('search_path'), current_setting('role')")
        search_path, role = cursor.fetchone()

    def connect() -> Any:
        made = psycopg2.connect(**parameters)
        with made.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('search_path', %s, false), set_config('role', %s, false)", (search_path, role)
            )
        made.commit()
        return made

    return connect
