"""A joint visit: the trainers of several segments train one model, and exchange gradients through the driver.

A minibatch is one step of all of them: each answers with what it adds to the minibatch's gradient, and gets what the
others have added (nn/orders/joint.py).  The first segment stores the state and the records, as after a visit of its
own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone

from cerebro_db.core import protocol
from cerebro_db.core.events import DataSetName
from cerebro_db.core.protocol import JointStep, Member, MemberVisit, StateRef
from cerebro_db.core.scheduling.plan import TrainJointly

from ...sessions.at_once import AtOnce
from ...sessions.overlap import Task
from ...sessions.team import Worker
from . import visit
from .unit import Result, Units
from .visit import Computed


async def train(units: Units, workers: Sequence[Worker], task: Task) -> list[Result]:
    """Carry out the joint visit of a task: its result.  ``workers``: of the visit's segments, in their order."""
    (unit,) = task.units
    assert isinstance(unit, TrainJointly)
    model, lead, began = units.model(unit), workers[0], datetime.now(timezone.utc)
    engine = model.build.engine
    started = time.monotonic()
    for worker in workers[1:]:
        worker.resident.clear()
    steps = await AtOnce({
        worker.segment: _begin(units, worker, task, unit, place, began) for place, worker in enumerate(workers)
    })  # fmt: skip
    begun = time.monotonic() - started
    rows, of = 0, units.run.rows_of(model)
    for number in range(steps[lead.segment].steps):
        rows += sum(step.rows for step in steps.values())
        added = [steps[worker.segment].gradient for worker in workers]
        steps = await AtOnce({
            worker.segment: units.team.order(worker, protocol.StepJoint(number, _of_others(added, place), engine))
            for place, worker in enumerate(workers)
        })  # fmt: skip
        task.rows = min(rows, of)
    ended = [steps[worker.segment] for worker in workers]
    end = protocol.EndJoint(
        [step.metric_states for step in ended if step.metric_states is not None],
        [step.statistics for step in ended if step.statistics is not None],
        engine,
    )
    trained = (await AtOnce({lead.segment: units.team.order(lead, end)}))[lead.segment]
    computed = Computed(trained, began, {"data": 0.0, "load": begun})
    results = (await AtOnce({lead.segment: visit.commit(units, lead, task, computed)}))[lead.segment]
    return results


async def _begin(
    units: Units, worker: Worker, task: Task, unit: TrainJointly, place: int, began: datetime
) -> JointStep:
    """The first step of one segment: it has the rows, and the state that the visit starts from."""
    run, model = units.run, units.model(unit)
    handle, _ = await units.read(worker, run.source, worker.segment, None)
    there = run.rows_by_segment(model)
    member_rows = [there.get(segment, 0) for segment in unit.segments]

    def order(refs: Sequence[StateRef]) -> protocol.BeginJoint:
        member = Member(
            configuration=0,
            seed=model.asked.seed,
            visits=[MemberVisit(run.shuffle_seed(model, unit.hop, worker.segment))],
            state=refs[0],
            state_bytes=model.state_bytes,
            fold=model.asked.fold,
            span=run.span_of(model, DataSetName.TRAINING, worker.segment),
        )
        return protocol.BeginJoint(
            model.asked.definition, handle, member, member_rows, place, engine=model.build.engine
        )

    before = visit.attempts(units, worker, [unit], began) if place == 0 else []
    wanted = [(model, unit.start)]
    step, _ = await units.compute(worker, task, wanted, None, before, order, resident=place == 0)
    return step


def _of_others(added: Sequence[str | None], place: int) -> list[str | None]:
    return [None if other == place else gradient for other, gradient in enumerate(added)]
