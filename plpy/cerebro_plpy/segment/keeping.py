"""Which trainer may outlive its session, and which session may have it then.

A trainer is kept if it has predicted with one model for one role and has done nothing else.  The next session gets it
only if all of this is equal: the role, the database, the settings, the limits, the preparation, the architecture, and
the version of the weights.  A hash of all that is the key, and the nursery compares keys.
"""

from __future__ import annotations

import json
import os
from typing import Callable

from cerebro_db import __version__
from cerebro_db.core import protocol
from cerebro_db.core.protocol import BeginPrediction, TrainerSettings
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import sql
from cerebro_db.core.trainers.nursery_messages import Keep

from ..database.access import Database
from . import nursery_place


@dataclass(frozen=True)
class Caller:
    """Whose trainers those of this session are, and what they may take."""

    role: int
    database: int
    schemas: str  # of the search_path
    trainer_mb: int | None  # of private memory, for each trainer; None: no limit
    seconds: int  # for which a trainer waits for the session's next call; 0: not at all
    predictors: int  # the most trainers of the role that stay when their sessions have ended


def caller(db: Database) -> Caller:
    found = db.one(
        sql(
            "SELECT pg_catalog.quote_ident(current_user)::pg_catalog.regrole::pg_catalog.oid::pg_catalog.int8 AS role,"
            " (SELECT d.oid::pg_catalog.int8 FROM pg_catalog.pg_database d"
            " WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()) AS database,"
            " pg_catalog.array_to_json(pg_catalog.current_schemas(false))::pg_catalog.text AS schemas,"
            " cerebro._trainer_limit(current_user, session_user) AS trainer_mb, l.waiting_seconds AS seconds,"
            # No column of this name before ALTER EXTENSION.
            " COALESCE(pg_catalog.jsonb_extract_path_text(pg_catalog.to_jsonb(l), 'predictors')::pg_catalog.int4, 0)"
            " AS predictors FROM cerebro._own_limits l"
        )
    )
    assert found is not None
    return Caller(**found)


@dataclass(frozen=True)
class LastingPrediction:
    """A prediction for which a kept trainer would do, and how a trainer that starts for it is kept."""

    order: BeginPrediction
    caller: Caller
    recipe: Callable[[Caller], tuple[str, str]] | None  # makes the key and the recipe for sessions that read no model

    def keep(self, settings: TrainerSettings) -> tuple[Keep | None, str]:
        """What the nursery is told, and the recipe.  None: the trainer is not kept."""
        mine = self.caller
        if not mine.predictors or not mine.seconds or settings.gpu is not None or not hasattr(os, "memfd_create"):
            return None, ""
        made_of = [
            __version__,
            nursery_place.server_started(),
            mine.database,
            mine.role,
            protocol.encode_settings(settings),  # with the limit of memory
            protocol.encode(self.order),
        ]
        key = nursery_place.digest(json.dumps(made_of, sort_keys=True))
        recall, recipe = ("", "") if self.recipe is None else self.recipe(mine)
        return Keep(key, mine.role, mine.predictors, mine.seconds, "", recall), recipe
