"""Which models are fused, that is, train together in one pass over the rows, where their engine can do that."""

from __future__ import annotations

from typing import Any

import psycopg2

from cerebro_db.core import protocol
from cerebro_db.core.events import Event
from cerebro_db.core.scheduling.ring import power_of_two

from ...database.access import Database
from ...sessions.failures import Refused, failure_of, session_was_lost
from ...sessions.team import Team, Worker
from ..record.log import RunLog
from ..record.run import MOST_FUSED, Model, Run
from ..record.speeds import RunSpeeds

WORTH = 0.7  # of the cost of one model alone: below it fusion pays for the segments that it keeps waiting
SMALL_STATE = 64 << 20  # bytes; several larger states at once could need more memory than one was found to need


def settle(db: Database, run: Run, team: Team, log: RunLog, speeds: RunSpeeds) -> None:
    """Settle which fusion groups train fused: those for which a rehearsal says that it pays.

    ``Model.group`` holds the fusion key of models that were built just now; here it becomes the group, or None.  Only
    models that would have to wait for a segment anyway can join others, so a group needs more models than there are
    segments.  All models of a group have states of the same size.
    """
    groups: dict[str, list[Model]] = {}
    for model in run.models.values():
        if not model.build.done and model.build.group is not None:
            groups.setdefault(model.build.group, []).append(model)
            model.build.group = None
    if run.options.fuse is False:
        return
    rehearsing = {
        key: members[: power_of_two(min(MOST_FUSED, -(-len(members) // run.segments)))]
        for key, members in groups.items()
        if len(members) > run.segments and members[0].state_bytes <= SMALL_STATE
    }
    found: dict[str, dict[str, Any]]
    if run.options.replay is not None:
        earlier = RunLog(log.ask, run.options.replay).plan.fusion()
        found = {key: detail for key, detail in earlier.items() if key in rehearsing}
    elif run.options.fuse:
        found = {key: {"fused": 0.0, "alone": 1.0, "asked": True} for key in rehearsing}
    else:
        found = recalled(speeds, rehearsing)
        fresh = rehearsed(team, run, {key: members for key, members in rehearsing.items() if key not in found})
        for key, told in fresh.items():
            members = rehearsing[key]
            speeds.rehearsals[members[0].number] = len(members), told["alone"], told["fused"]
        found.update(fresh)
    for key, seconds in found.items():
        pays = seconds["fused"] < WORTH * seconds["alone"]
        for model in groups[key]:
            model.build.group = key if pays else None
        detail = {"group": key, **seconds}
        log.events.note_each(Event.FUSED if pays else Event.NOT_FUSED, {model.number: detail for model in groups[key]})
        if pays:
            db.detail(f"{len(groups[key])} configurations train up to {len(rehearsing[key])} at a time in one pass")


def recalled(speeds: RunSpeeds, groups: dict[str, list[Model]]) -> dict[str, dict[str, Any]]:
    """What earlier runs have rehearsed with as many models of the same shapes."""
    found = {}
    for key, members in groups.items():
        earlier = speeds.profile.rehearsed(speeds.key(members[0], members[0].build.engine), len(members))
        if earlier is not None:
            share, run_id = earlier
            found[key] = {"alone": 1.0, "fused": share, "of_run": run_id}
    return found


def rehearsed(team: Team, run: Run, groups: dict[str, list[Model]]) -> dict[str, dict[str, float]]:
    """For each group what a batch costs a model, alone and fused; a group that cannot be fused is left out."""

    async def rehearse(worker: Worker, keys: list[str]) -> dict[str, dict[str, float]]:
        found = {}
        handle, _ = await team.read(worker, run.source, worker.segment)
        for key in keys:
            order = protocol.RehearseFusion(
                configurations=[model.asked.definition for model in groups[key]],
                handle=handle,
                engine=groups[key][0].build.engine,
            )
            try:
                answer = await team.order(worker, order)
            except Refused:
                continue
            found[key] = {"alone": answer.alone, "fused": answer.fused}
        return found

    shares = {worker.segment: list(groups)[worker.segment :: len(team.workers)] for worker in team.workers}
    work = {segment: rehearse(team.workers[segment], share) for segment, share in shares.items() if share}
    try:
        return {key: seconds for part in team.run_all(work).values() for key, seconds in part.items()}
    except psycopg2.Error as error:
        if not session_was_lost(error, team.platform):
            raise failure_of("a worker session", error, team.platform) from error
        team.reopen()  # a session was lost; every model trains alone, as it can at any time
        return {}
