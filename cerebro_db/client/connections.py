"""Whatever somebody calls a database (nothing, a DSN, an engine, a connection) becomes an engine that autocommits."""

from __future__ import annotations

import os
from typing import Any

import psycopg2
import sqlalchemy
from psycopg2 import extensions
from sqlalchemy.engine import URL, Engine

from .cluster import Cluster, ClusterError
from .errors import CannotConnect

# Asked before each use whether they still live: a server may be restarted while a notebook is open.
POOL = {"pool_size": 2, "max_overflow": 8, "pool_pre_ping": True}


def engine_of(target: Any = None) -> Engine:
    """Each statement commits by itself: a fit in an open transaction would leave tables that nobody else sees."""
    if isinstance(target, extensions.connection):
        return _autocommitting(_beside(target))
    if isinstance(target, (Engine, URL)):
        made = target if isinstance(target, Engine) else sqlalchemy.create_engine(target)
        return made.execution_options(isolation_level="AUTOCOMMIT")
    if target is None:
        target = default_dsn()
    if not isinstance(target, str):
        raise TypeError(f"a DSN, an SQLAlchemy engine or URL, or a psycopg2 connection, not {type(target).__name__}")
    dsn = target.replace("postgresql+psycopg2://", "postgresql://", 1)
    return _autocommitting(lambda: psycopg2.connect(dsn, connect_timeout=10, application_name="cerebro"))


def default_dsn() -> str:
    """CEREBRO_DSN, else the embedded cluster."""
    if given := os.environ.get("CEREBRO_DSN"):
        return given
    try:
        return Cluster(os.environ.get("CEREBRO_CLUSTER") or "default").dsn()
    except ClusterError as error:
        raise CannotConnect(str(error)) from error


def without_password(dsn: str) -> str:
    """A DSN that can be shown."""
    try:
        return extensions.make_dsn(**{**extensions.parse_dsn(dsn), "password": None})
    except psycopg2.Error:
        return "…"


def _autocommitting(creator: Any) -> Engine:
    made = sqlalchemy.create_engine("postgresql+psycopg2://", creator=creator, **POOL)
    return made.execution_options(isolation_level="AUTOCOMMIT")


def _beside(connection: Any) -> Any:
    """Makes connections like the given one: the same server, user, role and search_path.

    Not the given one itself: what runs in the background would get in the way of its owner.
    """
    facts = {**connection.info.dsn_parameters, "password": connection.info.password}
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('search_path'), current_setting('role')")
        search_path, role = cursor.fetchone()

    def connect() -> Any:
        made = psycopg2.connect(**facts)
        with made.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('search_path', %s, false), set_config('role', %s, false)", (search_path, role)
            )
        made.commit()
        return made

    return connect
