"""What differs between PostgreSQL and Greenplum, and what the machine has.

Everything above may use it, through ``platform.of(db)``.  No module above branches on the database that it runs in.
"""

from __future__ import annotations

from collections.abc import Sequence

from cerebro_db.core.errors import InvalidArgument

from ..database import cancellation
from ..database.access import Database
from .base import Pieces, Platform, RowsToPack
from .greenplum import SEGMENTS_DOWN, Greenplum
from .postgresql import PostgreSQL
from .segments import ALL, KEY, MOST_SEGMENTS, DistributionRule, segments_wanted

__all__ = [
    "ALL",
    "KEY",
    "MOST_SEGMENTS",
    "SEGMENTS_DOWN",
    "Greenplum",
    "Pieces",
    "Platform",
    "RowsToPack",
    "PostgreSQL",
    "DistributionRule",
    "of",
    "require_gpus",
    "segments_wanted",
]

POSTGRESQL, GREENPLUM = PostgreSQL(), Greenplum()


def of(db: Database) -> Platform:
    """The platform that this session runs on."""
    return GREENPLUM if cancellation.on_greenplum(db.plpy) else POSTGRESQL


def require_gpus(db: Database, use_gpus: bool | None, keys: Sequence[int]) -> list[int | None]:
    """The GPU of each segment, or an empty list if trainers may use none."""
    if not use_gpus:
        return []
    found = of(db).gpus_of_segments(db, keys)
    without = found.count(None)
    if without == len(found):
        raise InvalidArgument("No GPUs configured on host(s).", hint="Call it with use_gpus => false.")
    if without:
        db.notice(
            f"{without} of {len(found)} segments have no GPU and use processors; distribution_rules => 'gpu_segments'"
            " would leave them out when rows are packed"
        )
    return found
