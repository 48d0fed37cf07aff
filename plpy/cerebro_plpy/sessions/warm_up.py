"""The function ``warm_up``: the framework is imported before somebody has to wait for that."""

from __future__ import annotations

from cerebro_db.core.sql import sql

from .. import platform
from ..database.access import Database
from ..database.cancellation import listener
from ..database.entry import INTERNAL, entry
from ..segment import nursery_connection


def require_engine(engine: str) -> None:
    """Raise an error if no engine has this name."""
    from ..segment import filling  # what it imports takes a new session 0.03 s, after the default engine has begun

    filling.require_engine(engine)


@entry
def warm_up(db: Database, engine: str | None) -> None:
    everywhere(db, engine)


@entry(called=INTERNAL)
def warm_up_here(db: Database, engine: str | None) -> None:
    """On the server of a segment."""
    if engine is not None:
        require_engine(engine)
    nursery_connection.prepare(engine, listener(db.plpy))


def ahead(db: Database, engine: str | None = None) -> None:
    """Have an engine (None: the default engine) imported for a call that is going to train.

    Not on Greenplum: that would be a query to all segments, in a process of each that has no other use.
    """
    if not platform.of(db).on_every_server:
        if engine is not None:
            require_engine(engine)
        nursery_connection.prepare(engine, listener(db.plpy))


def everywhere(db: Database, engine: str | None = None) -> None:
    """Have every server of segments import an engine, for trainers that will be wanted soon.  Nobody waits for it.

    So does this server where it has no segments: cerebro.predict computes in its caller's session.  None is the default
    engine of each server.
    """
    if engine is not None:
        require_engine(engine)
    if platform.of(db).on_every_server:
        nursery_connection.prepare(engine, listener(db.plpy))
    db.rows(
        sql("SELECT cerebro_internal._warm_up($1) {on_every_server}", on_every_server=platform.of(db).on_every_server),
        ("text",),
        engine,
    )
