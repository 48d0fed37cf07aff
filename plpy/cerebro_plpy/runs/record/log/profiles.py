"""What runs have measured: the table cerebro.profile, which the plans of later runs read."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from cerebro_db.core.events import HopKind
from cerebro_db.core.planning.speed_profile import MeasuredSpeed, ProfileKey, SpeedProfile
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import literal, sql

from .base import ME, OWN, Ask, Part

MOST_READ = 500  # rows


@dataclass(frozen=True)
class ModelMeasured:
    """What the visits and the evaluations of a model have taken, in seconds."""

    visits: int = 0
    rows: float = 0.0
    train: float = 0.0
    build: float = 0.0  # of all visits, also those that count no more
    beside: float = 0.0  # training, building and reading rows
    evaluated_rows: float = 0.0
    evaluate: float = 0.0


def read_profile(ask: Ask, machine: str, cores: int, shapes: Collection[str] = ()) -> SpeedProfile:
    """What earlier runs of this user have measured on this machine, the newest first.

    ``shapes``: only of such models; none: of all.
    """
    found = ask(
        sql(
            "SELECT engine, shapes, batch_size, parallel, run, threads, trainers, visits, train_row, evaluate_row,"
            " build, hop, state_bytes, memory_mb, fused, fused_share FROM cerebro.profile WHERE owner = {me}"
            " AND machine = {} AND ({} = '' OR shapes = ANY (pg_catalog.string_to_array({}, ',')))"
            " ORDER BY at DESC LIMIT {most}",
            me=ME,
            most=MOST_READ,
        ),
        (machine, *[",".join(sorted(shapes))] * 2),
    )
    measured = (MeasuredSpeed(ProfileKey(*row[:4]), *row[4:]) for row in found)
    return SpeedProfile([one for one in measured if one.train_row > 0], cores)


class Profiles(Part):
    """What this run has measured."""

    def measured(self) -> dict[int, ModelMeasured]:
        """By model.  What a first epoch takes says little, if there is another one."""
        found: dict[int, ModelMeasured] = {}
        built: dict[int, float] = {}
        for model, _, visits, rows, train, build, beside in self._all(
            sql(
                "SELECT model, epoch > 1 AS later, count(*) AS visits, sum(rows)::double precision AS rows,"
                " sum(train) AS train, sum(build) AS build, sum(GREATEST(took - train - build - data - features, 0))"
                " AS beside FROM (SELECT model, epoch, rows,"
                "  COALESCE((seconds ->> 'train')::double precision, 0) AS train,"
                "  COALESCE((seconds ->> 'build')::double precision, 0) AS build,"
                "  COALESCE((seconds ->> 'data')::double precision, 0) AS data,"
                "  COALESCE((seconds ->> 'features')::double precision, 0) AS features,"
                "  extract(epoch FROM finished_at - started_at)::double precision"
                "  - COALESCE((seconds ->> 'behind')::double precision, 0) AS took"
                "  FROM cerebro.hop WHERE {own} AND kind = {train}) h GROUP BY 1, 2 ORDER BY 1, 2",
                own=OWN,
                train=literal(HopKind.TRAIN),
            )
        ):
            built[model] = built.get(model, 0.0) + build
            found[model] = ModelMeasured(visits=visits, rows=rows, train=train, build=built[model], beside=beside)
        for model, rows, evaluate in self._all(
            sql(
                "SELECT model, sum(COALESCE(sampled, rows))::double precision AS rows,"
                " sum(COALESCE((seconds ->> 'evaluate')::double precision, 0)) AS evaluate"
                " FROM cerebro.evaluation WHERE {own} GROUP BY 1",
                own=OWN,
            )
        ):
            one = found.get(model, ModelMeasured())
            found[model] = replace(one, evaluated_rows=rows, evaluate=evaluate)
        return found

    def store(self, measured: Sequence[MeasuredSpeed], machine: str) -> None:
        """Put on record what was measured, and delete what is too much."""
        rows = [self._row(one, machine) for one in measured]
        if not rows:
            return
        columns = sql(
            "engine, shapes, batch_size, parallel, threads, trainers, machine, visits, train_row, evaluate_row, build,"
            " hop, state_bytes, memory_mb, fused, fused_share"
        )
        self.ask(
            sql(
                "INSERT INTO cerebro.profile (run, {columns}) SELECT {run}, {columns}"
                " FROM pg_catalog.jsonb_to_recordset({}::jsonb) AS p (engine text, shapes text, batch_size integer,"
                " parallel text, threads integer, trainers integer, machine text, visits bigint,"
                " train_row double precision, evaluate_row double precision, build double precision,"
                " hop double precision, state_bytes bigint, memory_mb integer, fused integer,"
                " fused_share double precision)",
                columns=columns,
                run=self.run,
            ),
            (json.dumps(rows),),
        )
        self.ask(sql("SELECT cerebro_internal._trim_profile(current_user)"), ())

    def _row(self, one: MeasuredSpeed, machine: str) -> dict[str, Any]:
        own = {name: value for name, value in vars(one).items() if name not in ("key", "run")}
        return {**vars(one.key), **own, "machine": machine}

    def took(self) -> float | None:
        """Seconds from the first visit to the end of the last visit or evaluation; None: there is none."""
        return self._value(  # type: ignore[no-any-return]
            sql(
                "SELECT extract(epoch FROM GREATEST(max(finished_at), (SELECT max(finished_at) FROM cerebro.evaluation"
                "  WHERE run = {run} AND owner = {me})) - min(started_at))::double precision AS took"
                " FROM cerebro.hop WHERE {own}",
                run=self.run,
                me=ME,
                own=OWN,
            )
        )
