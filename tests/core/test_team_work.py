"""Work of several sessions in step: what happens if one of them is lost while others are under way."""

from __future__ import annotations

from typing import Any

import psycopg2
import pytest

from cerebro_plpy.sessions.at_once import AtOnce, SessionFailed, TeamWork


class FakeSession:
    """Its part needs so many looks until it has ended, or is lost."""

    def __init__(self, looks: int, lost: bool = False) -> None:
        self.looks, self.lost = looks, lost
        self.work: Any = None
        self.left = 0

    def begin(self, work: Any) -> None:
        self.work, self.left = work, self.looks
        if self.lost and not self.looks:
            raise psycopg2.InterfaceError("connection already closed")
        work.send(None)

    def advance(self) -> tuple[bool, Any]:
        self.left -= 1
        if self.left > 0:
            return False, None
        if self.lost:
            raise psycopg2.OperationalError("terminated")
        try:
            self.work.send("answer")
        except StopIteration as end:
            self.work = None
            return True, end.value
        raise AssertionError("one answer is enough")


def team_work(sessions: Any, work: Any) -> TeamWork[Any]:
    return TeamWork(sessions, work)


class Asks:
    def __await__(self) -> Any:
        return (yield "a statement")


async def part(number: int) -> tuple[int, str]:
    return number, await Asks()


async def at_once(number: int) -> int:
    return number


async def steps(count: int, segments: list[int]) -> list[Any]:
    found: list[Any] = []
    for _ in range(count):
        found.append(await AtOnce({segment: part(segment) for segment in segments}))
    return found


def test_every_step_has_the_answers_of_all() -> None:
    work = team_work({1: FakeSession(1), 4: FakeSession(3)}, steps(2, [1, 4]))
    looks = 0
    while not work.advance():
        looks += 1
        assert work.busy
    assert work.result == [{1: (1, "answer"), 4: (4, "answer")}] * 2 and looks == 6


def test_a_part_may_need_nothing_of_its_session() -> None:
    class Unasked(FakeSession):
        def begin(self, work: Any) -> None:
            work.send(None)

    async def once() -> Any:
        return await AtOnce({0: at_once(7)})

    work = team_work({0: Unasked(0)}, once())
    assert work.advance() and work.result == {0: 7}


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_a_lost_session_is_told_when_the_others_have_ended(looks: int) -> None:
    """And nobody waits for it meanwhile: its connection has no file any more."""
    lost, other = FakeSession(looks, lost=True), FakeSession(4)
    work = team_work({0: lost, 1: other}, steps(1, [0, 1]))
    with pytest.raises(SessionFailed) as failed:
        for _ in range(10):
            work.advance()
            if lost.left <= 0:
                assert list(work.busy) == [other]  # type: ignore[comparison-overlap]
    assert failed.value.segment == 0 and isinstance(failed.value.error, psycopg2.Error)
    assert other.work is None and not work.busy
