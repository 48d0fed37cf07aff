"""Turns of a segment: in what order a session does what two units want of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from cerebro_db.core.schedule import Train
from cerebro_plpy.turns import Patient, Turn, Turns


def unit_of(turns: Turns, name: str, polls: int = 2) -> Turn:
    """Fetches unless it is the first; has the trainer; stores once who comes next has it."""
    turn = Turn([Train(1, 1, 1, 0)], time.monotonic(), begun=not turns.under_way)

    def steps() -> Iterator:
        if not turn.begun:
            yield f"{name} fetches", None
            while turns.computing is not None:
                yield None
        with turns.computes(turn):
            yield f"{name} begins", None
            for _ in range(polls):
                yield Patient((f"{name} computes", None))
        while turns.followed(turn) and turns.computing is None:
            yield None
        yield f"{name} stores", None
        return name

    turn.steps = steps()
    turns.under_way.append(turn)
    return turn


def said(work: Iterator, most: int = 100) -> list[str]:
    """The statements that a session is given, each answered with no rows."""
    found = []
    with pytest.raises(StopIteration):
        statement = next(work)
        for _ in range(most):
            found.append(statement[0])
            statement = work.send([])
    return found


def test_one_alone() -> None:
    turns = Turns()
    unit_of(turns, "a")
    assert said(turns.work()) == ["a begins", "a computes", "a computes", "a stores"]
    assert [turn.result for turn in turns.over] == ["a"] and not turns.under_way and turns.computing is None


def test_the_next_one_fetches_meanwhile_and_begins_before_the_last_one_stores() -> None:
    turns = Turns()
    unit_of(turns, "a")
    unit_of(turns, "b")
    assert said(turns.work()) == [
        "a begins", "b fetches", "a computes", "a computes", "b begins", "a stores", "b computes", "b computes",
        "b stores",
    ]  # fmt: skip
    assert [turn.result for turn in turns.over] == ["a", "b"]


def test_who_comes_late_fetches_first_and_has_the_trainer_before_the_other_stores() -> None:
    turns = Turns()
    unit_of(turns, "a", polls=1)
    work = turns.work()
    assert next(work)[0] == "a begins"
    assert work.send([])[0] == "a computes"
    unit_of(turns, "b", polls=1)
    assert [work.send([])[0] for _ in range(5)] == [
        "b fetches", "b begins", "a stores", "b computes", "b stores",
    ]  # fmt: skip


def test_of_who_is_abandoned_nothing_holds_the_trainer() -> None:
    turns = Turns()
    first, second = unit_of(turns, "a"), unit_of(turns, "b")
    work = turns.work()
    next(work), work.send([])
    assert turns.computing is first
    assert turns.abandon() == [first, second]
    assert turns.computing is None and not turns.under_way


def test_turns_that_wait_for_each_other_are_an_error() -> None:
    turns = Turns()
    stuck = unit_of(turns, "a")
    turns.computing = Turn([], 0.0, begun=True)  # of nobody who is under way
    stuck.begun = False
    work = turns.work()
    assert next(work)[0] == "a fetches"
    with pytest.raises(RuntimeError, match="wait for each other"):
        work.send([])
