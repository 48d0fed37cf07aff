"""What differs between PostgreSQL and Greenplum: where segments are, and how a table is spread over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cerebro_db.core.engines import in_turn
from cerebro_db.core.errors import BadData, InvalidArgument, UndefinedObject
from cerebro_db.core.names import Name, quote

from . import tables
from .db import Database, entry
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


# -- which segments: distribution_rules ----------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """Which of Greenplum's segments get rows; on PostgreSQL there is nothing to choose."""

    contents: list[int] | None = None  # None: all of them
    dbids: list[int] | None = None

    def segments(self, db: Database) -> int:
        return default_segments(db) if self.contents is None else len(self.contents)


ALL = Rule()


def distribution_keys(db: Database, segments: int, rule: Rule = ALL) -> list[int]:
    """Per segment, a value of the distribution key whose rows live there."""
    return _greenplum_keys(db, segments, rule.contents) if is_greenplum(db) else list(range(segments))


def distribution_rule(db: Database, rules: str | None, module: str) -> Rule:
    """What distribution_rules says: all_segments, gpu_segments, or a table with the dbids of segments."""
    wanted = (rules or "all_segments").strip()
    if wanted.lower() == "all_segments":
        return ALL
    if not is_greenplum(db):
        db.notice("distribution_rules is ignored: buffers go to all segments; the argument segments says how many")
        return ALL
    primaries = {row["dbid"]: row["content"] for row in _greenplum_segments(db)}
    if wanted.lower() == "gpu_segments":
        there = _gpus_by_content(db, _greenplum_keys(db, len(primaries), None))
        dbids = [dbid for dbid, content in primaries.items() if there.get(content)]
        if not dbids:
            raise InvalidArgument(
                f"{module} error: No GPUs configured on hosts.", hint="distribution_rules => 'all_segments'."
            )
    else:
        dbids = _dbids_of(db, wanted, primaries, module)
    return Rule(sorted(primaries[dbid] for dbid in dbids), sorted(dbids))


def _dbids_of(db: Database, text: str, primaries: dict[int, int], module: str) -> list[int]:
    table = tables.find(db, Name.parse(text))
    if table is None:
        raise UndefinedObject(
            f"{module} error: segments_to_use table ({text}) doesn't exist.",
            hint="distribution_rules takes 'all_segments', 'gpu_segments', or a table with a column dbid.",
        )
    tables.require_columns(db, table, ["dbid"], module)
    found = [row["dbid"] for row in db.rows(f"SELECT dbid FROM {table.sql}")]
    known = f"The primary segments are: {', '.join(map(str, primaries))} (SELECT dbid FROM gp_segment_configuration)."
    if len(set(found)) < len(found):
        raise BadData(f"{module} error: distribution rules table contains duplicate dbids.")
    if not found:
        raise BadData(f"{module} error: the distribution rules table '{text}' is empty.", hint=known)
    for dbid in found:
        if dbid not in primaries:
            raise BadData(f"{module} error: invalid dbid:{dbid} in the distribution rules table.", hint=known)
    return found


# -- which GPU -----------------------------------------------------------------------------------------


def gpus_of_segments(db: Database, keys: Sequence[int]) -> list[int | None]:
    """The GPU of each segment; None where its host has none."""
    if not is_greenplum(db):
        return in_turn(["here"] * len(keys), {"here": gpus()})
    counts, hosts = _gpus_by_content(db, keys), {row["content"]: row["host"] for row in _greenplum_segments(db)}
    contents = {row["key"]: row["content"] for row in _contents(db, keys)}
    return in_turn(
        [hosts[contents[key]] for key in keys], {hosts[content]: count for content, count in counts.items()}
    )


def _gpus_by_content(db: Database, keys: Sequence[int]) -> dict[int, int]:
    """How many GPUs the host of each segment has, said by the segment itself."""
    rows = db.rows(
        "SELECT gp_segment_id AS content, cerebro._gpus() AS gpus FROM cerebro.place"
        f" WHERE __dist_key__ IN ({', '.join(map(str, map(int, keys)))})"
    )
    return {row["content"]: row["gpus"] for row in rows}


def _contents(db: Database, keys: Sequence[int]) -> list[dict[str, Any]]:
    return db.rows(
        "SELECT __dist_key__ AS key, gp_segment_id AS content FROM cerebro.place"
        f" WHERE __dist_key__ IN ({', '.join(map(str, map(int, keys)))})"
    )


@entry
def gpus_here(db: Database) -> int:
    return gpus()


# -- tables --------------------------------------------------------------------------------------------


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
    return len(_greenplum_segments(db))


def _greenplum_segments(db: Database) -> list[dict[str, Any]]:
    return db.rows(
        "SELECT dbid, content, hostname AS host FROM pg_catalog.gp_segment_configuration"
        " WHERE role = 'p' AND content >= 0 ORDER BY content"
    )


def _greenplum_keys(db: Database, count: int, contents: Sequence[int] | None) -> list[int]:
    """For each segment in turn the next smallest key that is there, found by trial: the hash is Greenplum's own."""
    rows = db.rows(
        "SELECT k FROM (SELECT __dist_key__ AS k, gp_segment_id AS segment, row_number() OVER"
        " (PARTITION BY gp_segment_id ORDER BY __dist_key__) AS n FROM cerebro.place"
        " WHERE $2::integer[] IS NULL OR gp_segment_id = ANY ($2)) p ORDER BY n, segment LIMIT $1",
        ("integer", "integer[]"),
        count,
        contents,
    )
    return [row["k"] for row in rows]
