"""A team whose workers are all the caller's own session: one segment works after the other.

On PostgreSQL all segments have one trainer, that of the caller's process.  On Greenplum the session has a process on
each segment, with a trainer that gets only the rows stored there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cerebro_db.core import protocol
from cerebro_db.core.protocol import TrainerSettings

from ..database.access import Database
from ..database.cancellation import Listen, listener
from ..segment import current
from . import limits, logins
from .own_session import OwnSession
from .session import Session
from .team import Resident, Team, Versions, Worker
from .team_options import TeamOptions


class OwnTeam(Team):
    def open(self) -> None:
        super().open()
        resident: dict[tuple[str, int], dict[int, Resident]] = {}  # the states that the trainers of a process have
        for worker in self.workers:
            worker.resident = resident.setdefault((worker.place, worker.worker_pid), {})

    def _asked(self, segment: int) -> Session:
        session = OwnSession(self.db, self.listen)
        session.lasting = True
        session.send(self.open_trainer(segment))
        return session

    @property
    def _one_process(self) -> bool:
        """Whether all segments work in the caller's own process."""
        return self.platform.runs_functions_in_session

    def trainer_settings(self, segment: int) -> TrainerSettings:
        # The caller would see what trainers report to a driver.
        return replace(super().trainer_settings(0 if self._one_process else segment), silent=True)

    async def versions(self, packed: str, key: int, end: int) -> Versions:
        return None  # rows are cached for this call only

    def rest(self) -> None:
        """Leave the trainer of the caller's process, without rows, to the next call of this session.

        Trainers of other processes end with the call.
        """
        if not self._one_process:
            return
        mine = current.mine(self.db)
        for handle in {handle for worker in self.workers for handle in worker.cached}:
            mine.obey(protocol.DropRows(handle))
        self.workers.clear()
        current.rest(mine, 0 if self.options.gpus else limits.waiting_seconds(self.db))

    def _end(self, workers: Sequence[Worker]) -> None:
        if not self._one_process:
            super()._end(workers)
        elif workers:
            current.close_mine()


@contextlib.contextmanager
def opened(db: Database, dist_keys: Sequence[int], options: TeamOptions, listen: Listen | None) -> Iterator[Team]:
    team = OwnTeam(db, logins.Owner.current(db), dist_keys, options, listen or listener(db.plpy))
    try:
        team.open()
        yield team
        team.rest()
    finally:
        team.close()
