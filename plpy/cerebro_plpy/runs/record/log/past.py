"""The user's earlier runs, and what was found out in them."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.events import DataSetName
from cerebro_db.core.search.policy import Objective
from cerebro_db.core.sql import identifier, sql

from ....database.access import Database
from .base import ME

MOST_EARLIER_RUNS = 100


def earlier_runs(db: Database) -> list[dict[str, Any]]:
    """The caller's runs, the latest first; without those on rows with folds, whose values are of parts of the rows."""
    return db.rows(
        sql(
            "SELECT run, packed_table, layout::text AS layout FROM cerebro.run WHERE owner = {me}"
            " AND layout -> 'fold' IS NULL ORDER BY run DESC LIMIT {most_earlier_runs}",
            me=ME,
            most_earlier_runs=MOST_EARLIER_RUNS,
        )
    )


def newest_of_name(db: Database, name: str) -> int:
    """The number of the caller's newest run of this name; 0: there is none."""
    newest = sql("SELECT max(run) FROM cerebro.run WHERE name = $1 AND owner = {me}", me=ME)
    return int(db.value(newest, ("text",), name) or 0)


def earlier_configurations(db: Database, run: int, objective: Objective) -> list[dict[str, Any]]:
    """The configurations of a run of the caller's that have a value of the objective, with the best one."""
    return db.rows(
        sql(
            "SELECT c.configuration, c.chosen::text AS chosen, a.architecture::text"
            " AS architecture, c.compile::text AS compile,"
            " c.fit::text AS fit, {best}(v.value) AS value, max(v.epoch) AS epochs"
            "  FROM cerebro.configuration c JOIN cerebro.architecture a USING (run, owner, model_id)"
            "  JOIN cerebro.metrics v ON v.run = c.run AND v.configuration = c.configuration AND v.owner = current_user"
            " WHERE c.run = $1 AND c.owner = {me} AND v.dataset = $2 AND v.metric = $3 AND v.value IS NOT NULL"
            " GROUP BY c.configuration, c.chosen::text, a.architecture::text, c.compile::text, c.fit::text"
            " ORDER BY c.configuration",
            best=identifier(objective.direction),
            me=ME,
        ),
        ("bigint", "text", "text"),
        run,
        objective.dataset or DataSetName.TRAINING.value,
        objective.metric,
    )
