"""Which trainer may outlive its session, and which session may have it then.

A trainer is kept if it has predicted with one model for one role and has done nothing else.  The next session gets it
only if all of this is equal: the role, the database, the settings, the limits, the preparation, the architecture, and
the version of the weights.  A hash of all that is the key, and the nursery compares keys.
"""

from __future__ import annotations

import json
import os
from typing import Callable, Optional

from cerebro_db import __version__
from cerebro_db.core import protocol
from cerebro_db.core.protocol import BeginPrediction, TrainerSettings
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import sql
from cerebro_db.core.trainers.nursery_messages import Keep

from ..database.access import Database
from . import nursery_place

Limits = dict[str, Optional[int]]
WriteRecipe = Callable[[Database, int, int, Limits], tuple[str, str]]  # of role, database and the limits of the trainer


@dataclass(frozen=True)
class LastingPrediction:
    """A prediction for which a kept trainer would do, and how a trainer that starts for it is kept."""

    order: BeginPrediction
    role: int
    most: int  # kept trainers of the role
    seconds: int
    recipe: WriteRecipe | None = None  # makes the key and the recipe for sessions that have read no model

    def keep(self, db: Database, settings: TrainerSettings) -> tuple[Keep | None, str]:
        """What the nursery is told, and the recipe.  None: the trainer is not kept."""
        if not self.most or not self.seconds or settings.gpu is not None or not hasattr(os, "memfd_create"):
            return None, ""
        database = db.value(
            sql(
                "SELECT d.oid::pg_catalog.int8 FROM pg_catalog.pg_database d"
                " WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()"
            )
        )
        made_of = [
            __version__,
            nursery_place.server_started(),
            database,
            self.role,
            protocol.encode_settings(settings),  # with the limit of memory
            protocol.encode(self.order),
        ]
        key = nursery_place.digest(json.dumps(made_of, sort_keys=True))
        recall, recipe = "", ""
        if self.recipe is not None:
            limits = {"trainer_mb": settings.memory_limit_mb, "seconds": self.seconds, "predictors": self.most}
            recall, recipe = self.recipe(db, self.role, database, limits)
        return Keep(key, self.role, self.most, self.seconds, "", recall), recipe
