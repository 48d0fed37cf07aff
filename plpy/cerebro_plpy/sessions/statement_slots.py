"""How many statements the sessions of a call run at the same time, where Greenplum's resource queues limit them.

The caller's own statement counts until the call ends.  A session keeps a statement back until the queue would let it
run at once, if nobody else uses the queue.  One of the statements that the queue allows is left to the run's record and
to questions for a cancel, which take milliseconds, if it allows that many.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Protocol

from ..platform.base import StatementLimit


class Sender(Protocol):
    """A session, as the slots see it."""

    lasting: bool  # its statements may take minutes

    def notice_end(self) -> None:
        """Give the slot back if the statement under way has ended."""

    def send_kept_back(self) -> None:
        """Send the statement that was kept back; the session has a slot now."""


class StatementSlots:
    """The slots that the sessions of this process share; no limit until ``limit_to`` sets one."""

    def __init__(self) -> None:
        self._limit: StatementLimit | None = None
        self._running: weakref.WeakSet[Sender] = weakref.WeakSet()
        self._waiting: list[weakref.ref[Sender]] = []  # oldest first

    def limit_to(self, limit: StatementLimit | None) -> None:
        self._limit = limit

    @property
    def limited(self) -> bool:
        return self._limit is not None

    def take(self, session: Sender) -> bool:
        """Whether the session may send now.  If not, ``send_kept_back`` is called as soon as it may."""
        if self._limit is None:
            return True
        if not self._waiting and self._free_for(session):
            self._running.add(session)
            return True
        self._waiting.append(weakref.ref(session))
        self._hand_on()
        return False

    def leave(self, session: Sender) -> None:
        """The session's statement has ended, or is not wanted any more."""
        if session in self._running or self._waiting:
            self._running.discard(session)
            self._waiting = [one for one in self._waiting if one() is not session]
            self._hand_on()

    def look(self) -> None:
        """Find out which statements have ended: their own sessions may not be looked at for a while."""
        for session in list(self._running):
            session.notice_end()
        self._hand_on()  # a session that nobody has any more has given nothing back

    def _hand_on(self) -> None:
        for session in self._in_turn():
            if self._free_for(session):
                self._waiting = [one for one in self._waiting if one() is not session]
                self._running.add(session)
                session.send_kept_back()

    def _in_turn(self) -> Iterator[Sender]:
        """Short statements first."""
        found = [session for one in self._waiting if (session := one()) is not None]
        yield from sorted(found, key=lambda session: session.lasting)

    def _free_for(self, session: Sender) -> bool:
        if self._limit is None:
            return True
        lasting = sum(1 for one in self._running if one.lasting)
        return len(self._running) < self._limit.slots and not (session.lasting and lasting >= self._limit.working)
