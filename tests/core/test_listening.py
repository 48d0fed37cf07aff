"""All Python of ours hears a cancel wherever it computes (plpy/cerebro_plpy/database/listening.py)."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cerebro_db import __version__
from cerebro_plpy.database import cancellation, listening
from cerebro_plpy.database import entry as entering
from cerebro_plpy.database.entry import entry
from cerebro_plpy.database.listening import during, paused, resumed


class Cancelled(Exception):
    sqlstate = "57014"


class FakePlpy:
    """A session of PostgreSQL that can be cancelled: its next statement raises the cancel, as the server does."""

    Error = SPIError = Cancelled

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.looks = 0
        self.version = __version__  # of the SQL

    def prepare(self, sql: str) -> FakePlpy:
        return self

    def execute(self, values: str | list[Any], limit: int = 0) -> list[Any]:
        if isinstance(values, str):  # a statement: that of entry.py
            return [{"v": self.version}]
        self.looks += 1
        if self.errors:
            raise self.errors.pop()
        return []


@pytest.fixture
def plpy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePlpy]:
    monkeypatch.setattr(cancellation, "_greenplum", False)
    monkeypatch.setattr(listening, "EVERY", 0.01)
    monkeypatch.setattr(entering, "_is_of_this_version", False)
    yield FakePlpy()
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
    assert listening._calls == [] and listening._paused is False


def compute(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_a_loop_is_cancelled(plpy: FakePlpy) -> None:
    plpy.errors = [Cancelled()]
    begun = time.process_time()
    with pytest.raises(Cancelled):
        during(plpy, lambda: compute(30))
    assert time.process_time() - begun < 5


def test_nobody_looks_while_nothing_is_computed(plpy: FakePlpy) -> None:
    during(plpy, lambda: time.sleep(0.2))
    assert plpy.looks == 0
    during(plpy, lambda: compute(0.2))
    assert plpy.looks > 0
    looks = plpy.looks
    compute(0.1)
    assert plpy.looks == looks, "the function has ended"


def test_greenplums_coordinator_is_asked_nothing(plpy: FakePlpy, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a statement fails if a segment was lost since the function began."""
    monkeypatch.setattr(cancellation, "_greenplum", True)
    during(plpy, lambda: compute(0.1))
    assert plpy.looks == 0


def test_a_paused_part_comes_to_its_end(plpy: FakePlpy) -> None:
    plpy.errors = [Cancelled()]
    done = []

    @paused()
    def clean_up(times: int) -> None:
        compute(0.1)
        done.append(times)
        if times:
            clean_up(times - 1)
        compute(0.1)

    def work() -> None:
        clean_up(1)
        assert plpy.looks == 0
        with paused():
            compute(0.1)
            assert plpy.looks == 0
            with resumed():
                compute(30)

    with pytest.raises(Cancelled):
        during(plpy, work)
    assert done == [1, 0]


def test_a_cancel_that_is_swallowed_is_raised_at_the_end(plpy: FakePlpy) -> None:
    plpy.errors = [Cancelled()]
    done = []

    def swallow() -> None:
        try:
            compute(30)
        except Exception:
            done.append("swallowed")

    with pytest.raises(Cancelled):
        during(plpy, swallow)
    assert done == ["swallowed"]


def test_who_swallows_a_cancel_and_computes_on_hears_it_again(plpy: FakePlpy) -> None:
    plpy.errors = [Cancelled()]
    heard = []

    def swallow() -> None:
        for _ in range(3):
            try:
                compute(30)
            except Exception as error:
                heard.append(error)

    with pytest.raises(Cancelled):
        during(plpy, swallow)
    assert len(heard) == 3 and len(set(map(id, heard))) == 1


def test_cleaning_up_after_a_cancel_is_not_cancelled(plpy: FakePlpy) -> None:
    """Neither by the first cancel nor by a second one."""
    plpy.errors = [Cancelled("second"), Cancelled("first")]
    done = []

    def work() -> None:
        try:
            compute(30)
        finally:
            compute(0.1)
            done.append("clean")

    with pytest.raises(Cancelled, match="first"):
        during(plpy, work)
    assert done == ["clean"] and not plpy.errors


def test_functions_that_call_each_other_through_sql(plpy: FakePlpy) -> None:
    done = []

    def inner() -> None:
        compute(0.05)
        done.append("inner")

    def outer() -> None:
        during(plpy, inner)
        looks = plpy.looks
        compute(0.1)
        assert plpy.looks > looks, "the outer function goes on listening"
        with paused():
            during(plpy, inner)
            looks = plpy.looks
            compute(0.1)
            assert plpy.looks == looks, "and its paused part stays paused"

    during(plpy, outer)
    assert done == ["inner", "inner"]


def test_no_room_for_a_look_is_no_cancel(plpy: FakePlpy) -> None:
    deep = Cancelled("stack depth limit exceeded")
    deep.sqlstate = "54001"
    plpy.errors = [deep]
    during(plpy, lambda: compute(0.2))
    assert not plpy.errors


# -- sizes ---------------------------------------------------------------------------------------------------------


@entry
def takes(db: Any, **arguments: Any) -> str:
    return "taken"


@entry(longest=10)
def takes_little(db: Any, **arguments: Any) -> str:
    return "taken"


@pytest.mark.parametrize(
    ("value", "has"),
    [
        ("x" * 1_000_001, "1,000,001 characters; at most 1,000,000"),
        ([1] * 100_001, "100,001 elements; at most 100,000"),
        ([[1] * 60_000, [2] * 60_000], "120,000 elements"),
        (["x" * 600_000] * 2, "texts of 1,200,000 characters"),
    ],
)
def test_a_large_argument_is_refused(plpy: FakePlpy, value: Any, has: str) -> None:
    with pytest.raises(Exception, match=f"grid has {has}"):
        takes(plpy, grid=value)


def test_a_sql_function_of_version_0_1_says_what_to_do(plpy: FakePlpy) -> None:
    """It gives the arguments by their places."""
    plpy.version = "0.1.0"
    with pytest.raises(Exception, match="older than the code on this server") as refused:
        takes(plpy, "rows", "models")
    assert "ALTER EXTENSION cerebro_db UPDATE" in getattr(refused.value, "hint", "")
    plpy.version = __version__
    assert takes(plpy, grid="updated") == "taken"


def test_arguments_of_the_largest_size_are_taken(plpy: FakePlpy) -> None:
    assert (
        takes(plpy, text="x" * 1_000_000, list=[1] * 100_000, weights=b"x" * 5_000_000, none=None, space={}) == "taken"
    )
    assert takes_little(plpy, text="x" * 10) == "taken"
    with pytest.raises(Exception, match="11 characters; at most 10"):
        takes_little(plpy, text="x" * 11)
