"""What differs between PostgreSQL and Greenplum: where segments are, and how a table is spread over them."""

from __future__ import annotations

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.names import Name, quote

from .db import Database
from .dialect import is_greenplum
from .machine import cores, gpus

MOST_SEGMENTS = 1024
KEY = "__dist_key__"


def segments_wanted(db: Database, segments: int | None, module: str) -> int | None:
    """What the argument or else the setting says; None: the default may be adapted to the table."""
    origin = "segments"
    if segments is None:
        text = db.value("SELECT pg_catalog.current_setting('cerebro.segments', true)")
        if not text:
            return None
        origin = "setting cerebro.segments"
        if not text.isdecimal() or len(text) > 9:
            raise InvalidArgument(f"{module} error: {origin} is '{text[:40]}'; it must be a number.", hint="RESET it.")
        segments = int(text)
    if not 1 <= segments <= MOST_SEGMENTS:
        raise InvalidArgument(f"{module} error: {origin} is {segments}; it must be between 1 and {MOST_SEGMENTS}.")
    return segments


def default_segments(db: Database) -> int:
    """All of Greenplum's segments; on PostgreSQL one per GPU or else per processor."""
    if is_greenplum(db):
        return _primaries(db)
    return min(gpus() or cores(), MOST_SEGMENTS)


def distribution_keys(db: Database, segments: int) -> list[int]:
    """Per segment, a value of the distribution key whose rows live there."""
    return _greenplum_keys(db, segments) if is_greenplum(db) else list(range(segments))


def make_packed_table(db: Database, name: Name, columns: list[tuple[str, str]], keys: list[int]) -> None:
    """The table of buffers: one list partition per key, or distributed by the key."""
    body = ", ".join([f"{quote(KEY)} integer NOT NULL", *(f"{quote(column)} {kind}" for column, kind in columns)])
    greenplum = is_greenplum(db)
    spread = "DISTRIBUTED" if greenplum else "PARTITION"
    where = f"({quote(KEY)})" if greenplum else f"LIST ({quote(KEY)})"
    db.execute(f"CREATE TABLE {name.sql} ({body}) {spread} BY {where}")
    # Stored out of line and uncompressed: weights and pixels hardly compress, and reading is a plain copy.
    external = [f"ALTER COLUMN {quote(column)} SET STORAGE EXTERNAL" for column, kind in columns if kind == "bytea"]
    db.execute(f"ALTER TABLE {name.sql} {', '.join(external)}")
    if not greenplum:
        for place, key in zip(partitions(name, len(keys)), keys):
            db.execute(f"CREATE TABLE {place.sql} PARTITION OF {name.sql} FOR VALUES IN ({int(key)})")


def partitions(name: Name, segments: int) -> list[Name]:
    return [name.suffixed(f"_seg{segment}") for segment in range(segments)]


def _primaries(db: Database) -> int:
    return int(db.value("SELECT count(*) FROM pg_catalog.gp_segment_configuration WHERE role = 'p' AND content >= 0"))


def _greenplum_keys(db: Database, count: int) -> list[int]:
    """For each segment in turn the next smallest key that is there, found by trial: the hash is Greenplum's own."""
    rows = db.rows(
        "SELECT k FROM (SELECT __dist_key__ AS k, gp_segment_id AS segment, row_number() OVER"
        " (PARTITION BY gp_segment_id ORDER BY __dist_key__) AS n FROM cerebro.place) p ORDER BY n, segment LIMIT $1",
        ("integer",),
        count,
    )
    return [row["k"] for row in rows]
