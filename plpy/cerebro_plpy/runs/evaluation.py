"""An evaluation of a model on one part of a data set; with the last part come the metrics of all parts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from cerebro_db.core import protocol
from cerebro_db.core.metrics import merged_means, of_means
from cerebro_db.core.protocol import Evaluated, StateRef
from cerebro_db.core.scheduling.plan import Evaluate

from ..sessions.overlap import Task
from ..sessions.team import Worker
from .unit import Result, Units


async def evaluate(units: Units, worker: Worker, task: Task, unit: Evaluate, share: bool) -> list[Result]:
    """Evaluate a model on one part of a data set, and record that."""
    model = units.model(unit)
    wanted = [(model, unit.hop)]
    fetched = await units.fetch_ahead(worker, task, wanted)
    with worker.tasks.computes(task):
        worker.session.progress = None
        handle, reading = await units.read(worker, units.run.data(unit.dataset), unit.part, fetched)
        task.shares_session = share or fetched is not None
        began = worker.tasks.computing_since = datetime.now(timezone.utc)

        def order(refs: Sequence[StateRef]) -> protocol.Evaluate:
            return protocol.Evaluate(
                configuration=model.definition,
                handle=handle,
                state=refs[0],
                state_bytes=model.state_bytes,
                engine=model.engine,
            )

        found, fetching = await units.compute(worker, task, wanted, fetched, [], order)
        seconds = {"data": reading, **found.seconds}
        seconds["load"] = seconds.get("load", 0.0) + max(0.0, fetching - sum(found.seconds.values()))
        units.count(task, seconds, "evaluate")
        metrics = await metrics_of_all(units, worker, task, unit, handle, found)
        await units.log.evaluation(
            unit,
            began=began,
            worker_pid=found.worker_pid,
            rows=found.rows,
            loss=found.loss,
            metrics=metrics,
            counted=found.metric_states,
            seconds=seconds,
        )
        if metrics:  # they are on record now
            units.evaluated.pop((unit.model, unit.epoch, unit.dataset), None)
    return [Result(None, found.rows, found.loss, metrics)]


async def metrics_of_all(
    units: Units, worker: Worker, task: Task, unit: Evaluate, handle: str, found: Evaluated
) -> dict[str, Any]:
    """The metrics over all parts of the data set, once the last part is evaluated; until then none.

    Metrics that are means are merged here.  For others the trainer that has just evaluated the last part computes the
    values: it has the model's metrics at hand.
    """
    model, parts = units.model(unit), units.evaluated.setdefault((unit.model, unit.epoch, unit.dataset), {})
    parts[unit.part] = found.metric_states
    if not parts.keys() >= set(units.run.parts(unit.dataset)):
        return {}
    states = [parts[part] for part in sorted(parts)]
    if len(states) == 1:
        return found.metrics
    if found.metric_states.others is None:
        return of_means(merged_means(one.means for one in states))
    order = protocol.MergeMetrics(model.definition, handle, states, model.engine)
    give = units.team.order_and_share if task.shares_session else units.team.order
    return (await give(worker, order)).metrics
