"""A team whose workers are all the caller's own session: one segment works after the other, with one trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from cerebro_db.core import protocol
from cerebro_db.core.protocol import TrainerSettings

from ..database.access import Database
from ..database.cancellation import Listen, listener
from ..segment import current
from . import logins
from .own_session import OwnSession
from .resting import rest_mine
from .session import Session
from .team import Resident, Team, Worker


class OwnTeam(Team):
    def open(self) -> None:
        current.mine(self.db).silent = True  # the caller would see what trainers report to a driver
        super().open()
        resident: dict[int, Resident] = {}  # the states that the one trainer has in memory
        for worker in self.workers:
            worker.resident = resident

    def _asked(self, segment: int) -> Session:
        session = OwnSession(self.db, self.listen)
        session.send(self.open_trainer(segment))
        return session

    def trainer_settings(self, segment: int) -> TrainerSettings:
        return super().trainer_settings(0)

    def rest(self) -> None:
        """Leave the trainer, without rows, to the next call of this session."""
        for handle in {handle for worker in self.workers for handle in worker.cached}:
            current.mine(self.db).obey(protocol.DropRows(handle))
        self.workers.clear()
        rest_mine(self.db, self.options)

    def _end(self, workers: Sequence[Worker]) -> None:
        if workers:
            current.close_mine()


@contextlib.contextmanager
def opened(db: Database, dist_keys: Sequence[int], options: dict[str, Any], listen: Listen | None) -> Iterator[Team]:
    team = OwnTeam(db, logins.Owner.current(db), dist_keys, options, listen or listener(db.plpy))
    team.open()
    try:
        yield team
        team.rest()
    finally:
        team.close()
