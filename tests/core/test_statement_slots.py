"""The slots that sessions share where a resource queue limits statements."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest

from cerebro_plpy.platform.base import FEWEST, StatementLimit, needed
from cerebro_plpy.sessions.statement_slots import StatementSlots
from tests.thorough import tries


class Session:
    def __init__(self, slots: StatementSlots, lasting: bool) -> None:
        self.slots, self.lasting = slots, lasting
        self.state = "idle"  # then kept back, running, ended (but nobody has looked)

    def send(self) -> None:
        self.state = "kept back"
        if self.slots.take(self):
            self.state = "running"

    def send_kept_back(self) -> None:
        assert self.state == "kept back"
        self.state = "running"

    def notice_end(self) -> None:
        if self.state == "ended":
            self.state = "idle"
            self.slots.leave(self)

    def give_up(self) -> None:
        self.state = "idle"
        self.slots.leave(self)


def limit(statements: int) -> StatementLimit:
    return StatementLimit(statements, "resource queue few", "ALTER RESOURCE QUEUE few …")


def team(statements: int | None, workers: int = 3) -> tuple[StatementSlots, Session, list[Session]]:
    slots = StatementSlots()
    slots.limit_to(None if statements is None else limit(statements))
    return slots, Session(slots, lasting=False), [Session(slots, lasting=True) for _ in range(workers)]


def states(sessions: list[Session]) -> list[str]:
    return [session.state for session in sessions]


def test_without_a_limit_all_run() -> None:
    _, recorder, workers = team(None)
    for one in (*workers, recorder):
        one.send()
    assert states([*workers, recorder]) == ["running"] * 4


@pytest.mark.parametrize(("statements", "working"), [(2, 1), (3, 1), (4, 2), (5, 3), (6, 3)])
def test_as_many_work_as_the_queue_allows_and_a_place_is_left_for_short_statements(
    statements: int, working: int
) -> None:
    _, recorder, workers = team(statements)
    for one in workers:
        one.send()
    assert states(workers).count("running") == min(working, 3)
    recorder.send()
    assert recorder.state == ("running" if statements > 2 else "kept back")


def test_the_oldest_comes_next_and_short_statements_first() -> None:
    _, recorder, (one, two, three) = team(2)
    for session in (one, two, three, recorder):
        session.send()
    one.give_up()
    assert states([recorder, two, three]) == ["running", "kept back", "kept back"]
    recorder.give_up()
    assert states([two, three]) == ["running", "kept back"]
    one.send()
    two.give_up()
    assert states([three, one]) == ["running", "kept back"]


def test_an_end_that_nobody_looked_at_is_noticed() -> None:
    """The recorder waits in a call of its own, where the sessions of segments are not looked at."""
    slots, recorder, workers = team(2)
    workers[0].send()
    recorder.send()
    workers[0].state = "ended"
    slots.look()
    assert recorder.state == "running"


def test_a_session_that_is_gone_takes_no_slot() -> None:
    slots, recorder, workers = team(2)
    workers.pop().send()
    gc.collect()
    recorder.send()
    slots.look()
    assert recorder.state == "running"


def test_never_too_many_and_nobody_waits_for_ever() -> None:
    for seed in range(tries(60)):
        chance = random.Random(seed)
        statements = chance.randint(FEWEST, 7)
        slots, recorder, workers = team(statements, chance.randint(1, 6))
        everybody = [recorder, *workers]
        for _ in range(200):
            one: Any = chance.choice(everybody)
            if one.state == "idle":
                one.send()
            elif one.state == "running":
                one.state = "ended"
            elif one.state == "ended" or chance.random() < 0.1:
                one.give_up()
            slots.look()
            assert states(everybody).count("running") <= statements - 1
        for _ in range(len(everybody) + 1):
            for one in everybody:
                if one.state == "running":
                    one.state = "ended"
            slots.look()
        assert states(everybody) == ["idle"] * len(everybody)


def test_what_people_are_told() -> None:
    assert limit(5).found(3) == ("resource queue few lets 5 statements run at a time; a run on 3 segments uses up to 5")
    assert limit(4).found(3).endswith("uses up to 5, so 2 segments will work at a time")
    assert limit(1).found(3).endswith("uses up to 5 and at least 2")
    assert needed(3) == 5 and limit(4).short_for(3) and not limit(5).short_for(3)
