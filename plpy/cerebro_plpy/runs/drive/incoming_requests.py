"""Looks for a cancel of the run, and once a second for requests of other sessions."""

from __future__ import annotations

import time
from typing import Callable

from cerebro_db.core.errors import Cancelled
from cerebro_db.core.search.request import Request

from ...database.cancellation import Listen
from ...sessions.session import Session, Work
from ..record.log import RunLog

ASK_EVERY = 1.0  # seconds


class IncomingRequests:
    """Call it while waiting.  It raises once for ``cerebro.cancel()``, and gathers the requests of people.

    The recorder session asks, when it has nothing else to do: on Greenplum the caller's own session may have lost its
    segments while the run goes on.
    """

    def __init__(self, own: Listen, recorder: Session, log: RunLog) -> None:
        self._own, self._recorder, self._log = own, recorder, log
        self._asked_at = time.monotonic()
        self._cancelled = self._raised = False
        # The requests that were ever seen, and those of them that no decision answers yet.
        self._seen = {request.request: request for request in log.events.requests()}
        self._open = set(self._seen)
        self.beat: Callable[[], Work[None]] | None = None  # says that the run is there, before its loop does

    def __call__(self) -> None:
        self._own()
        if self._recorder.work is not None:
            self._recorder.attend()
        elif not self._raised and not self._recorder.busy and time.monotonic() - self._asked_at >= ASK_EVERY:
            self._asked_at = time.monotonic()
            self._recorder.begin(self._ask())
        if self._cancelled and not self._raised:
            self._raised = True
            raise cancelled(self._log.run)

    def requests(self) -> list[Request]:
        """The requests that no decision answers, in the order of their numbers."""
        return [self._seen[number] for number in sorted(self._open)]

    def answered(self, request: int) -> None:
        self._open.discard(request)

    async def _ask(self) -> None:
        rows = await self._log.events.cancel_requested()
        self._cancelled = bool(rows and rows[0][0])
        # A request can be committed after another one with a larger number.
        for row in await self._log.events.new_requests(list(self._seen)):
            request = self._log.events.request_of(row)
            self._seen[request.request] = request
            self._open.add(request.request)
        if self.beat is not None:
            await self.beat()


def cancelled(run: int) -> Cancelled:
    return Cancelled(f"run {run} was cancelled", hint=f"SELECT cerebro.resume({run}) goes on.")
