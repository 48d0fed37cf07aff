"""The results of the user's earlier runs for the points of a search space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cerebro_db.core.documents import decoded
from cerebro_db.core.search.methods.tpe import COMPLETE, Trial
from cerebro_db.core.search.objective import Objective
from cerebro_db.core.search.spaces.past_points import point_of
from cerebro_db.core.search.spaces.space import Space
from cerebro_db.core.texts import counted

from ...database.access import Database
from ...packing.packed import Packed
from ..record.log import as_written, earlier_configurations, earlier_runs

MOST_TRIALS = 200  # the best of each run, and the latest runs first


def trials(
    db: Database, source: Packed, space: Space, architectures: Mapping[Any, Any], objective: Objective
) -> list[Trial]:
    """The points that earlier runs have trained on this table, or on another of the same shape; a NOTICE says which."""
    found: list[Trial] = []
    ours = shape(source.layout.to_json())
    for run in earlier_runs(db):
        if len(found) >= MOST_TRIALS:
            break
        same_table = run["packed_table"] == str(source.relation.name)
        of_run = []
        where = f"run {run['run']}"
        with as_written(run["run"]):
            if not same_table and shape(decoded(run["layout"], where)) != ours:
                continue
            for row in earlier_configurations(db, run["run"], objective):
                told = {name: decoded(row[name], where) for name in ("architecture", "compile", "fit")}
                chosen = None if row["chosen"] is None else decoded(row["chosen"], where)
                point = point_of(space, architectures, chosen, told["architecture"], told["compile"], told["fit"])
                score = objective.score(row["value"])
                if point is not None and score is not None:
                    of_run.append(Trial(point, COMPLETE, score, row["epochs"]))
        of_run = sorted(of_run, key=lambda trial: trial.score or 0.0)[: MOST_TRIALS - len(found)]
        if of_run:
            found += of_run
            where = "the same table" if same_table else f"{run['packed_table']}, which has the same shape"
            known = counted(len(of_run), "configuration")
            db.told(f"start_from: run {run['run']} on {where}: {known} with {objective.name}")
    if not found:
        db.notice(
            "start_from: no earlier run of yours on this table, or on one of the same shape, has configurations of this"
            f" space with the objective {objective.name}"
        )
    return found


def shape(layout: Mapping[str, Any]) -> Any:
    """What two tables have in common on which the same configurations can train."""
    return [[(v["shape"], v.get("kind")) for v in layout[side]] for side in ("inputs", "outputs")]
