"""Evaluations of models on one part of a data set; with a model's last part come the metrics of all its parts.

One order may evaluate several models, one after the other.  Each has a record of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from cerebro_db.core import protocol
from cerebro_db.core.models.metrics import merged_means, of_means
from cerebro_db.core.protocol import Evaluated, EvaluatedModel, ModelState, StateRef
from cerebro_db.core.scheduling.plan import Evaluate

from ...sessions.failures import Refused
from ...sessions.overlap import Task
from ...sessions.session import BEGIN, COMMIT, Statement
from ...sessions.team import Worker
from ..record.log.unit_rows import OrderOnRecord, UnitRows
from . import on_groups
from .unit import Fetched, OrderConfigurations, Result, Units


async def evaluate(units: Units, worker: Worker, task: Task, todo: Sequence[Evaluate], share: bool) -> list[Result]:
    """Evaluate models on one part of a data set, and record that in one transaction: a result for each, in order."""
    # A state that the trainer still has is used before another model's state takes its place.
    order = sorted(todo, key=lambda unit: unit.model not in worker.resident)
    fetched = await units.fetch_ahead(worker, task, [(units.model(unit), unit.hop) for unit in order])
    with worker.tasks.computes(task):
        worker.session.progress = None
        found = await _evaluated(units, worker, task, order, fetched, share)
    return [found[unit] for unit in todo]


async def _evaluated(
    units: Units, worker: Worker, task: Task, todo: Sequence[Evaluate], fetched: Fetched | None, share: bool
) -> dict[Evaluate, Result]:
    wanted = [(units.model(unit), unit.hop) for unit in todo]
    task.shares_session = share or fetched is not None
    began = worker.tasks.computing_since = datetime.now(timezone.utc)
    handle, reading = await units.read(worker, units.run.data(todo[0].dataset), todo[0].part, fetched)

    beside = {unit: on_groups.wanted(units.run, unit) for unit in todo}

    def order(refs: Sequence[StateRef]) -> protocol.Evaluate:
        configurations = OrderConfigurations()
        models = {
            unit: ModelState(
                configurations.place(model),
                state,
                state_bytes=model.state_bytes,
                fold=model.asked.fold,
                span=units.run.span_of(model, unit.dataset, unit.part),
                sampled=units.run.sampled(model, unit.dataset, unit.part, unit.epoch),
            )
            for unit, (model, _), state in zip(todo, wanted, refs)
        }
        # The groups of a model come after it, while its state is in memory.
        listed = [one for unit in todo for one in (models[unit], *(its.of(models[unit]) for its in beside[unit]))]
        return protocol.Evaluate(handle, configurations.all, listed, engine=wanted[0][0].build.engine)

    # The program that trains is not the one that evaluates rows whose columns have other names or types.
    alike = units.run.data(todo[0].dataset).for_trainer == units.run.source.for_trainer
    answer, took = await units.compute(worker, task, wanted, fetched, [], order, resident=alike)
    worker.still_resident(answer.resident, answer.trainer_pid)
    units.times.features.add(worker.segment, answer.features)
    answer, of_groups = _apart(answer, [len(beside[unit]) for unit in todo])
    results: dict[Evaluate, Result] = {}
    rows, copies = UnitRows(units.run.id, OrderOnRecord(began, answer.worker_pid)), []
    for unit, mine, groups, slice_of_time, seconds in zip(
        todo, answer.models, of_groups, *_times(answer, reading, took)
    ):
        if mine.error is not None:
            results[unit] = Result(error=Refused(mine.error.error()))
            continue
        units.count(task, seconds, "evaluate")
        metrics = await metrics_of_all(units, worker, task, unit, handle, mine)
        sampled = units.run.sampled(units.model(unit), unit.dataset, unit.part, unit.epoch)
        weight, part = mine.weight(sampled), slice_of_time[1] - slice_of_time[0]
        results[unit] = Result(None, weight, mine.loss, metrics, part=part)
        told = on_groups.on_record(units.objectives.objective.metric, list(zip(beside[unit], groups)))
        rows.evaluation(
            unit, mine, metrics, slice_of_time=slice_of_time, seconds=seconds, of_groups=told, sampled=sampled
        )
        copies += units.objectives.after_evaluation(unit, mine, metrics, rows, sampled)
    records = [*rows.statements(), *copies]
    if records:
        await Statement.joined(records if len(records) == 1 else [BEGIN, *records, COMMIT])
    for unit, result in results.items():
        if result.error is None:
            units.objectives.committed(unit)
        if result.metrics:  # they are on record now
            units.evaluated.pop((unit.model, unit.epoch, unit.dataset), None)
    return results


def _apart(answer: Evaluated, groups: Sequence[int]) -> tuple[Evaluated, list[list[EvaluatedModel]]]:
    """The results of the units, and those of the groups of each unit; so many of them come after its own result."""
    models, of_groups, place = [], [], 0
    for count in groups:
        mine, *others = answer.models[place : place + 1 + count]
        models.append(on_groups.with_seconds(mine, others))
        of_groups.append(others)
        place += 1 + count
    return replace(answer, models=models), of_groups


def _times(answer: Evaluated, reading: float, took: float) -> tuple[list[tuple[float, float]], list[dict[str, float]]]:
    """Of each model of an order: its part of the order's time, as fractions, and its seconds by stage."""
    count, computed = len(answer.models), sum(sum(model.seconds.values()) for model in answer.models)
    beside = {"data": reading / count, "load": max(0.0, took - computed) / count}
    seconds = []
    for model in answer.models:
        shared = {stage: model.seconds.get(stage, 0.0) + more for stage, more in beside.items()}
        seconds.append({**model.seconds, **{stage: round(value, 6) for stage, value in shared.items()}})
    ends = [0.0, *itertools.accumulate(sum(mine.values()) for mine in seconds)]
    whole = ends[-1] or 1.0
    return [(start / whole, end / whole) for start, end in zip(ends, ends[1:])], seconds


async def metrics_of_all(
    units: Units, worker: Worker, task: Task, unit: Evaluate, handle: str, found: EvaluatedModel
) -> dict[str, Any]:
    """The metrics over all parts of the data set, once the last part is evaluated; until then none.

    Metrics that are means are merged here.  For others the trainer that has just evaluated the last part computes the
    values: it has the model's metrics at hand.
    """
    model, parts = units.model(unit), units.evaluated.setdefault((unit.model, unit.epoch, unit.dataset), {})
    parts[unit.part] = found.metric_states
    if not parts.keys() >= set(units.run.parts_of(model, unit.dataset)):
        return {}
    states = [parts[part] for part in sorted(parts)]
    if len(states) == 1:
        return found.metrics
    if found.metric_states.others is None:
        return of_means(merged_means(one.means for one in states))
    order = protocol.MergeMetrics(model.asked.definition, handle, states, model.build.engine)
    give = units.team.order_and_share if task.shares_session else units.team.order
    return (await give(worker, order)).metrics
