"""What a tracker is told of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Engine

from cerebro_db.core.texts import harmless

from ..errors import translated
from ..orm import LeaderboardEntry, LearningCurvePoint, Run, RunPlan, RunProgress
from ..report import contents
from ..report.contents import RunReader
from ..report.importance import is_number

LONGEST = 500  # characters of a name or a value; MLflow takes 6,000


@dataclass(frozen=True)
class TrackedModel:
    model: int
    configuration: int
    status: str
    parameters: Mapping[str, float | int | str | bool]
    value: float | None  # of the objective
    curves: Mapping[str, Mapping[int, float]]  # such as "validation loss", by epoch
    times: Mapping[int, float]  # when an epoch ended, in seconds since 1970
    engine: str | None
    reason: str | None


@dataclass(frozen=True)
class TrackedRun:
    run: int
    owner: str
    name: str
    status: str
    ended: bool
    started_at: float  # seconds since 1970
    ended_at: float | None
    objective: str
    objective_curve: str  # the name of the curve with its values
    direction: str  # min or max
    about: Mapping[str, str]  # tables, settings
    models: tuple[TrackedModel, ...]
    left_out: int = 0  # models of folds and of groups

    @property
    def title(self) -> str:
        return f"run {self.run}: {self.name}" if self.name else f"run {self.run}"


def read(engine: Engine, run: Run) -> TrackedRun:
    """What the views say now, in one transaction."""
    with translated(), engine.connect().execution_options(**contents.AT_ONCE) as connection:
        reader = RunReader(connection, run)
        return _tracked(reader, reader.row(Run), reader.row(RunPlan))


def _tracked(reader: RunReader, run: dict[str, Any], plan: dict[str, Any]) -> TrackedRun:
    known = reader.rows(LeaderboardEntry, order=("rank", "model"))
    ranked = [one for one in known if contents.is_on_all_rows(one)]
    entries = sorted(ranked, key=lambda one: one["model"])
    objective = entries[0]["objective"] if entries else reader.row(RunProgress)["objective"]
    curves, times = reader.curves(), _times(reader)
    direction = contents.direction_of(objective, plan["options"] or {}, ranked)
    began = run["started_at"] or run["created_at"]
    return TrackedRun(
        run=run["run"], owner=run["owner"], name=_text(run["run_name"] or ""), status=run["status"], ended=run["ended"],
        started_at=began.timestamp(), ended_at=_seconds(run["ended_at"]), objective=objective or "loss",
        objective_curve=_text(contents.curve_of(objective or "loss")), direction=direction,
        about={name: _text(value) for name, value in contents.settings_of(plan, entries).items()},
        models=tuple(_model(one, curves, times.get(one["model"], {})) for one in entries),
        left_out=len(known) - len(ranked),
    )  # fmt: skip


def _model(entry: dict[str, Any], curves: contents.Curves, times: Mapping[int, float]) -> TrackedModel:
    described = {"architecture": entry["architecture"], **entry["parameters"]}
    value = entry["objective_value"]
    return TrackedModel(
        model=entry["model"], configuration=entry["configuration"], status=entry["status"],
        parameters={_text(name): _parameter(one) for name, one in described.items()},
        value=value if isinstance(value, float) and value - value == 0 else None,
        curves={_text(name): of_models[entry["model"]] for name, of_models in curves.items()
                if entry["model"] in of_models},
        times=times, engine=entry["engine"], reason=entry["reason"] and _text(entry["reason"]),
    )  # fmt: skip


def _times(reader: RunReader) -> dict[int, dict[int, float]]:
    found: dict[int, dict[int, float]] = {}
    for row in reader.rows(LearningCurvePoint, "model", "epoch", "trained_at", order=("model", "epoch")):
        if row["trained_at"] is not None:
            found.setdefault(row["model"], {})[row["epoch"]] = row["trained_at"].timestamp()
    return found


def _parameter(value: Any) -> float | int | str | bool:
    return value if is_number(value) or isinstance(value, bool) else _text(value)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _text(value: Any) -> str:
    return harmless(value if isinstance(value, str) else contents.text_of(value), longest=LONGEST)
