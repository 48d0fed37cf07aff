"""Who applies a trained model to rows: worker sessions and their trainers, or a trainer of the session we run in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg2

from cerebro_db.core.engines import DEFAULT

from . import limits, segment, tables
from .db import Database
from .machine import cores
from .options import require_gpus
from .team import Refused, Seat, Steps, Team, failure_of
from .trained import Model


def options(db: Database, use_gpus: bool | None, module: str, keys: Sequence[int]) -> dict[str, Any]:
    return {
        "engine": DEFAULT,
        "deterministic": False,
        "threads": max(1, cores() // len(keys)),
        "gpus": require_gpus(db, use_gpus, keys, module),
    }


@contextlib.contextmanager
def team_of(db: Database, keys: Sequence[int], chosen: dict[str, Any]) -> Iterator[Team]:
    team = Team(db, tables.current_role(db), keys, chosen)
    try:
        yield team
        team.release()
    except Refused as refused:
        raise refused.error from refused
    except psycopg2.Error as error:
        raise failure_of("a worker session", error) from error
    finally:
        team.close()


@contextlib.contextmanager
def own_segment(db: Database, chosen: dict[str, Any]) -> Iterator[segment.Segment]:
    """A trainer of this very session: for little data, and for what only this transaction can see."""
    try:
        mine = segment.mine(db)
        mine.open(
            {
                "engine": chosen["engine"],
                "threads": chosen["threads"],
                "deterministic": chosen["deterministic"],
                "gpu": chosen["gpus"][0] if chosen["gpus"] else None,
            }
        )
        yield mine
        seconds, _ = limits.of(db)["waiting_seconds"]
        if seconds and not chosen["gpus"]:
            mine.rest(seconds)
        else:
            segment.close_mine()
    except BaseException:
        segment.close_mine()
        raise


def send_weights(db: Database, team: Team, seat: Seat, model: Model, ticket: str) -> Steps:
    where, start = team.dialect.on_segment(seat.dist_key), 0
    for piece in model.weights(db):
        yield f"SELECT cerebro._state_in(%s, %s, %s) {where}", (ticket, start, psycopg2.Binary(piece))
        start += len(piece)
