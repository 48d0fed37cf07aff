"""How many segments a packed table gets, and which of Greenplum's segments they are."""

from __future__ import annotations

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import sql

from ..database.access import Database

MOST_SEGMENTS = 1024
KEY = "__dist_key__"  # the column of packed tables and state tables that says to which segment a row belongs


@dataclass(frozen=True)
class DistributionRule:
    """Which of Greenplum's primary segments get rows.  PostgreSQL offers no choice: the rule is always ALL."""

    contents: list[int] | None = None  # content ids of gp_segment_configuration; None: all segments
    dbids: list[int] | None = None


ALL = DistributionRule()


def segments_wanted(db: Database, segments: int | None) -> int | None:
    """The number that the argument or the setting cerebro.segments asks for; None if neither is set."""
    origin = "segments"
    if segments is None:
        text = db.value(sql("SELECT pg_catalog.current_setting('cerebro.segments', true)"))
        if not text:
            return None
        origin = "setting cerebro.segments"
        if not text.isdecimal() or len(text) > 9:
            raise InvalidArgument(f"{origin} is '{text[:40]}'; it must be a number.", hint="RESET it.")
        segments = int(text)
    if not 1 <= segments <= MOST_SEGMENTS:
        raise InvalidArgument(f"{origin} is {segments}; it must be between 1 and {MOST_SEGMENTS}.")
    return segments
