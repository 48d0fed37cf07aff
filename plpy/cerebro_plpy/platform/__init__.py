"""What differs between PostgreSQL and Greenplum, and what the machine has.

Everything above may use it, through ``platform.of(db)``.  No module above branches on the database that it runs in.
"""

from __future__ import annotations

from ..database import cancellation
from ..database.access import Database
from .base import CheckedSetting, Platform
from .greenplum import SEGMENTS_DOWN, Greenplum
from .postgresql import PostgreSQL
from .segments import ALL, KEY, MOST_SEGMENTS, Rule, segments_wanted

__all__ = [
    "ALL",
    "KEY",
    "MOST_SEGMENTS",
    "SEGMENTS_DOWN",
    "CheckedSetting",
    "Greenplum",
    "Platform",
    "PostgreSQL",
    "Rule",
    "of",
    "segments_wanted",
]

POSTGRESQL, GREENPLUM = PostgreSQL(), Greenplum()


def of(db: Database) -> Platform:
    """The platform that this session runs on."""
    return GREENPLUM if cancellation.on_greenplum(db.plpy) else POSTGRESQL
