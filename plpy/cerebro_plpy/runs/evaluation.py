"""An evaluation: a model's loss and metrics on one part of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from cerebro_db.core import protocol
from cerebro_db.core.protocol import StateRef
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
        await units.log.evaluation(
            unit,
            began=began,
            worker_pid=found.worker_pid,
            rows=found.rows,
            loss=found.loss,
            metrics=found.metrics,
            seconds=seconds,
        )
    return [Result(None, found.rows, found.loss, found.metrics)]
