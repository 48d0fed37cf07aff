"""Work that needs several sessions at once: each does its part of a step, and the next step needs all answers."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Mapping
from typing import Any, Generic, TypeVar

import psycopg2

from cerebro_db.core.records import dataclass, field

from .failures import Refused
from .session import Session, Work

A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True)
class AtOnce(Generic[A]):
    """Awaited by such work: every session does its part at the same time, and all results come back."""

    parts: Mapping[int, Work[A]]  # by segment

    def __await__(self) -> Generator[Mapping[int, Work[A]], dict[int, A], dict[int, A]]:
        return (yield self.parts)


class SessionFailed(Exception):
    """The part of one session did not succeed.  Raised when all other sessions have ended theirs."""

    def __init__(self, segment: int, error: Refused | psycopg2.Error) -> None:
        super().__init__(str(error))
        self.segment, self.error = segment, error


@dataclass(eq=False)
class TeamWork(Generic[T]):
    """A coroutine that awaits ``AtOnce`` objects, taken step by step: nothing here waits."""

    sessions: Mapping[int, Session]  # by segment; nothing else uses them meanwhile
    work: Coroutine[Any, Any, T]
    _under_way: set[int] = field(default_factory=set)
    _results: dict[int, Any] = field(default_factory=dict)
    _failed: SessionFailed | None = None

    def advance(self) -> bool:
        """Take it as far as it goes: whether it is over.  Raises SessionFailed; then it is over, too."""
        for segment in sorted(self._under_way):
            session = self.sessions[segment]
            try:
                done, result = session.advance()
            except (Refused, psycopg2.Error) as error:
                session.work = None
                self._has_failed(segment, error)
                continue
            if done:
                self._has_ended(segment, result)
        return not self._under_way and self._next()

    @property
    def busy(self) -> list[Session]:
        """The sessions whose answers are awaited; one that was lost is not among them."""
        return [self.sessions[segment] for segment in sorted(self._under_way)]

    @property
    def result(self) -> T:
        return self._result

    def _next(self) -> bool:
        """Begin the next steps, until one of them takes time."""
        while not self._under_way:
            if self._failed is not None:
                self.work.close()
                raise self._failed
            results, self._results = self._results or None, {}
            try:
                parts = self.work.send(results)
            except StopIteration as end:
                self._result: T = end.value
                return True
            for segment, part in parts.items():
                self._begin(segment, part)
        return False

    def _begin(self, segment: int, part: Work[Any]) -> None:
        session = self.sessions[segment]
        self._under_way.add(segment)
        try:
            session.begin(part)
        except StopIteration as end:  # it needed nothing of the session
            session.work = None
            self._has_ended(segment, end.value)
        except (Refused, psycopg2.Error) as error:
            part.close()
            session.work = None
            self._has_failed(segment, error)

    def _has_ended(self, segment: int, result: Any) -> None:
        self._under_way.discard(segment)
        self._results[segment] = result

    def _has_failed(self, segment: int, error: Refused | psycopg2.Error) -> None:
        self._under_way.discard(segment)
        if self._failed is None:
            self._failed = SessionFailed(segment, error)
