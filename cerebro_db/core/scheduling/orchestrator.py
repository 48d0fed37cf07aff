"""The loop that keeps segments busy, over ports: no database, no clock and no framework of its own.

The real ports (``cerebro_plpy.runs.drive.driver``) are worker sessions. The ports of the tests are a
simulated clock with injected faults. Either way this loop is all of model hopper parallelism.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..search.budget import Budget
from ..search.history import Figures
from ..search.methods.never_stop import NeverStop
from ..search.policy import History, Policy
from .deciding import NO_LIMIT, Deciding
from .plan import Train
from .ports import Outcome, Ports
from .progress import Status
from .schedule import Schedule


def run(
    schedule: Schedule,
    ports: Ports,
    policy: Policy | None = None,
    history: History | None = None,
    budget: Budget = NO_LIMIT,
    *,
    repeats: bool = False,
    least_models: int = 1,
) -> bool:
    """Drive a run from wherever its schedule stands to its end. Returns whether its budget has ended it.

    The arguments from ``policy`` on are those of ``Deciding``.
    """
    policy = policy or NeverStop()
    deciding = Deciding(schedule, ports, policy, history, budget, repeats=repeats, least_models=least_models)
    told = deciding.history if schedule.decides or policy.proposes else None
    while True:
        deciding.attend()
        if schedule.finished:
            return deciding.cut or deciding.spent()
        held_back = begin_units(schedule, ports, deciding)
        if schedule.busy or deciding.unruled or held_back:
            for outcome in ports.wait():
                settle(schedule, ports, outcome, told, figures=policy.reads_figures)
        elif not deciding.spent():
            raise RuntimeError("no unit is runnable and none is under way: the schedule is stuck")


def begin_units(schedule: Schedule, ports: Ports, deciding: Deciding) -> bool:
    """Every idle segment begins the most urgent unit that waits for it, perhaps with others beside it.

    Returns whether a segment stays idle because no more segments may be busy.
    """
    spent = deciding.spent()  # then only evaluations wait, and they may still begin
    allowed = ports.segments_allowed()
    # The order of the visits of a model is fixed, so the results do not depend on which segments begin. Those with most
    # units go first: if more segments may be busy later, all have units.
    segments: Iterable[int] = range(schedule.plan.segments)
    if allowed is not None:
        segments = sorted(segments, key=schedule.units_waiting, reverse=True)
    held_back = False
    for segment in segments:
        busy = segment in schedule.busy
        if busy and not ports.reads_ahead(segment):
            continue
        if allowed is not None and len(schedule.busy) + (not busy) > allowed:
            held_back |= not busy and schedule.units_waiting(segment) > 0
            continue
        if not spent and deciding.spent():
            break
        only = deciding.last_models()
        unit = schedule.take(segment, only)
        if unit is not None:
            most = deciding.hops_left() if only is None else 0  # visits of others beside it
            fused = schedule.fuse(unit, most)
            ports.start([[unit, *fused]] if fused else schedule.order_with(unit, most))
    return held_back


def settle(
    schedule: Schedule, ports: Ports, outcome: Outcome, history: History | None, *, figures: bool = True
) -> None:
    """An outcome takes effect.  ``figures``: whether the history gets losses and metrics, too."""
    unit, model = outcome.unit, outcome.unit.model
    if outcome.cut:
        schedule.cut(unit)
        return
    if outcome.error is None:
        if history is not None and figures:
            record(history, outcome)
        schedule.succeeded(unit, outcome.seconds, outcome.building)
        return
    # Several evaluations of one model may fail, each on its segment, but the model is given up once.
    already = schedule.progress[model].status is Status.FAILED
    if schedule.failed(
        unit, outcome.error, try_again=outcome.try_again, most_tries=outcome.most_tries, counts=outcome.counts
    ):
        ports.trying_again(unit, outcome.error)
    elif not already:
        if history is not None:
            history.fails(model)
        ports.gave_up(model, schedule.progress[model].reason or outcome.error)


def record(history: History, outcome: Outcome) -> None:
    unit, figures = outcome.unit, (outcome.weight, outcome.loss, outcome.metrics)
    if isinstance(unit, Train):
        history.trained(unit.model, unit.epoch, unit.hop, *figures)
    else:
        history.evaluated(unit.model, unit.epoch, unit.dataset, unit.part, Figures.of(*figures))
