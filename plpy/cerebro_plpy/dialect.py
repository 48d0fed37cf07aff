"""The few words in which the statements of a hop differ between PostgreSQL and Greenplum."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg2

from .db import Database
from .interrupts import on_greenplum


def is_greenplum(db: Database) -> bool:
    return on_greenplum(db.plpy)


SEGMENTS_DOWN = "gpstate -e names the segments that are down; gprecoverseg or gpstart brings them back."


def lost_a_segment(error: psycopg2.Error) -> bool:
    """Whether a session of Greenplum says that a process of a segment is gone; a new one is there in a moment.

    gp_interconnection_error, and what the segment itself says when it ends all of its processes and starts anew.
    """
    return error.pgcode in ("58M01", "57P02", "57P03")


@dataclass(frozen=True)
class Dialect:
    greenplum: bool

    @classmethod
    def of(cls, db: Database) -> Dialect:
        return cls(is_greenplum(db))

    def distributed_by(self, column: str) -> str:
        return f"DISTRIBUTED BY ({column})" if self.greenplum else ""

    def on_segment(self, dist_key: int) -> str:
        """The FROM clause that makes a function run on one segment, in its writer process."""
        return f"FROM cerebro.place WHERE __dist_key__ = {int(dist_key)}" if self.greenplum else ""

    def made_on_segment(self, function: str, dist_key: int) -> str:
        """A query for what a set-returning function gives on one segment: columns __dist_key__ and made.

        The key is the column's on Greenplum: with a constant the rows would be sent to the segment, and the
        function would run in another process than the one that trained.
        """
        key = "__dist_key__" if self.greenplum else f"{int(dist_key)} AS __dist_key__"
        return f"SELECT {key}, {function} AS made {self.on_segment(dist_key)}"
