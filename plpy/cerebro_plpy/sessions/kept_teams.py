"""Teams that are kept: the sessions and trainers of a call that went well stay for this session's next call.

Starting a framework takes seconds, often longer than the work.  What is kept is bounded.  A session keeps one team, for
as long as the administrator allows (``cerebro.set_limits``), until the session ends, or until somebody else lacks
connections or memory.  A kept team serves the user it was opened for, if the next call would open exactly the same
team.  In between its sessions are as empty as new ones, but for the trainer and its cached rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import psycopg2

from cerebro_db.core import protocol
from cerebro_db.core.protocol import TrainerSettings
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import identifier, sql

from ..database import listening
from ..database.access import Database
from ..database.cancellation import Listen, listener
from . import limits, own_team
from .failures import Refused
from .logins import WORKER, Owner, intact
from .session import Session, Statement, configured, worker_settings
from .team import Team, Worker
from .team_options import TeamOptions

APPLICATION = (
    "cerebro_db waiting"  # the name by which people and cerebro_internal._dismiss_waiting() know such a session
)
SETTLE_WITHIN = "3s"  # a worker that takes longer to become empty is not kept
LONGER = 5  # seconds that a session outlives its trainer, which removes its files first


@dataclass
class KeptTeam:
    """A team without work, and everything in which the next call must equal the last one."""

    user: Owner
    dist_keys: list[int]
    settings: list[TrainerSettings]
    workers: list[Worker]


_kept: KeptTeam | None = None  # this session's


@contextlib.contextmanager
def team_for(
    db: Database,
    dist_keys: Sequence[int],
    options: TeamOptions,
    listen: Listen | None = None,
    *,
    own: bool = False,
    recorder: Session | None = None,
    run: int | None = None,
) -> Iterator[Team]:
    """A team for one call: the kept team if it fits, else a new one.  After a call that went well it is kept again.

    ``own``: a team that is the caller's own session.  ``recorder``: of a run, which outlives the loss of a segment; the
    caller's own session is then asked nothing.
    """
    if own:
        with own_team.opened(db, dist_keys, options, listen) as mine:
            yield mine
        return
    owner = (recorder.owner if recorder is not None else None) or Owner.current(db)
    ask = recorder.run if recorder is not None else limits.asking(db)
    team = Team(db, owner, dist_keys, options, listen or listener(db.plpy), run)
    if not _take(team):
        limits.make_room(ask, len(team.dist_keys), team.listen, trainers=len(team.dist_keys))
        limits.require_connections(limits.answered(ask), len(team.dist_keys))
        team.open()
    try:
        yield team
        with contextlib.suppress(psycopg2.Error, Refused):
            _keep(team)
    finally:
        team.close()  # unless it is kept: then it has no workers any more


@listening.paused()
def _keep(team: Team) -> None:
    """Keep a team that has no work, unless that is not allowed or in the least doubtful."""
    global _kept
    if not _worth_keeping(team):
        return
    user = Owner.current(team.db)
    seconds = limits.waiting_seconds(team.db)
    if not seconds or not user.admitted or not _intact(team, user):
        return
    team.listen = lambda: None  # the work is done and on record, so a cancel that comes now has nothing to stop
    for worker in team.workers:
        worker.session.listen = team.listen

    async def settle(worker: Worker) -> None:
        # Code that the owner's statements ran may have left settings, temporary tables, locks and cursors.
        await Statement(sql("DISCARD ALL"))
        await Statement(sql("SET ROLE {role}", role=identifier(user.name)))
        await configured(
            statement_timeout=SETTLE_WITHIN,
            application_name=APPLICATION,
            idle_session_timeout=f"{seconds + LONGER}s",
        )
        await team.order(worker, protocol.Rest(seconds))

    team.run_all({worker.segment: settle(worker) for worker in team.workers})
    settings = [team.trainer_settings(worker.segment) for worker in team.workers]
    _kept = KeptTeam(user, team.dist_keys, settings, team.workers)
    team.workers = []


def _take(team: Team) -> bool:
    """Give the kept team's workers to this call if it would open the same team; else end them."""
    global _kept
    kept, _kept = _kept, None
    if kept is None:
        return False
    team.workers = kept.workers
    for worker in team.workers:
        worker.session.listen = team.listen
    settings = [team.trainer_settings(segment) for segment in range(len(team.dist_keys))]
    same = (kept.user, kept.dist_keys, kept.settings) == (team.owner, team.dist_keys, settings)
    if not same or not _intact(team, team.owner):
        team.close()
        return False

    async def back_to_work(worker: Worker) -> None:
        await configured(
            statement_timeout="0",
            application_name=team.application(worker.segment),
            idle_session_timeout="0",
            **worker_settings(team.commits_wait),
        )
        await Statement(sql("SET ROLE {role}", role=identifier(kept.user.name)))
        ((opened,),) = await team.open_trainer(worker.segment)
        worker.reopened(protocol.decode_opened(opened))

    try:
        team.run_all({worker.segment: back_to_work(worker) for worker in team.workers})
    except psycopg2.Error:
        return False  # a session is gone, or may no longer act for its user; all are closed
    return True


def _intact(team: Team, user: Owner) -> bool:
    return intact(team.db, user, [worker.session.role for worker in team.workers])


def _worth_keeping(team: Team) -> bool:
    """Not on Greenplum, where DISCARD ALL does not reach the segments and idle segment processes end by themselves; not
    with a GPU, whose memory a framework never gives back; not for a submitted run's driver, which has no next call."""
    if not team.platform.keeps_teams or team.options.gpus:
        return False
    return not str(team.db.value(sql("SELECT session_user AS u"))).startswith(WORKER)
